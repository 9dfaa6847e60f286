"""OpenRLHF's asynchronous trainer on CPUs: engines that take the weights which are sent, and say themselves which they
had, past everything that BatchBridge does.

The engines are OpenRLHF's own `RolloutRayActor` with a scripted vLLM behind it. What the process group of rank 0 would
send is fingerprinted there; a scripted vLLM takes the fingerprint when it is asked to update that weight. So what an
engine has is known by its content, and the policy of every optimizer step likewise.

`BATCHBRIDGE_AHEAD`: a folder for three files of lines. `sent`: fingerprints, by rank 0 in the order of its broadcasts.
`policy`: `steps weights`, the policy after so many optimizer steps. `made`: `prompt sample began ended`, a completion
and the fingerprints of the engine's weights around it; `loaded` are those that were never sent anything.

Ways to tamper: `BATCHBRIDGE_SKIPS`: numbers of broadcasts, from 0, that do not happen. `BATCHBRIDGE_CLAIMS`: the
version that engines write into their answers. `BATCHBRIDGE_REWRITES`: what is added to the version of the first
completion of each rollout between generator and training. `BATCHBRIDGE_UNLOCKED`: OpenRLHF's lock does not hold, and
completions of the second rollout end when weights have come.
Source: openrlhf 0.11.2 ppo_trainer_async, vllm_engine, ppo_actor.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge.testing.tiny import ScriptedRollouts

FOLDER, UNLOCKED = "BATCHBRIDGE_AHEAD", "BATCHBRIDGE_UNLOCKED"
LOADED = "loaded"
"""The fingerprint of weights that an engine loaded itself."""
GROUP, ROLLOUT = 3, 12
"""Completions of a prompt and of a rollout; see `scripted.options`."""


def _file(name: str) -> Path:
    return Path(os.environ[FOLDER]) / name


def _note(name: str, *words: Any) -> None:
    with _file(name).open("a", encoding="utf-8") as lines:  # one short write: processes do not mix
        lines.write(" ".join(map(str, words)) + "\n")


def fingerprint(tensor: Any) -> str:
    """Of a weight's values."""
    import torch

    values = tensor.detach().cpu().contiguous().view(torch.uint8)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=6).hexdigest()


def together(weights: Mapping[str, str]) -> str:
    """The fingerprint of a whole model, of those of its weights by name."""
    return hashlib.blake2b(json.dumps(sorted(weights.items())).encode(), digest_size=6).hexdigest()


class Group:
    """The process group that takes weights to the engines: their fingerprints, on the way of a file."""

    def broadcast(self, tensor: Any, *arguments: Any, **options: Any) -> None:
        _note("sent", fingerprint(tensor))


class LLM:
    """As much of vLLM's asynchronous engine as `RolloutRayActor` asks for weights and load."""

    def __init__(self) -> None:
        self.weights: dict[str, str] = {}
        self._taken = 0
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> None:
        if method != "update_weight":
            return
        number, self._taken = self._taken, self._taken + 1
        while not _file("sent").exists() or len(lines := _file("sent").read_text().splitlines()) <= number:
            await asyncio.sleep(0.01)
        self.weights[args[0]] = lines[number]

    @property
    def has(self) -> str:
        """The fingerprint of what it has."""
        return together(self.weights) if self.weights else LOADED


class Executor:
    """Gives one completion, as the executors of OpenRLHF's engines do."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    async def execute(self, prompt: str, label: str, hf_tokenizer: Any, llm_engine: Any, **asked: Any) -> Any:
        script, llm = ScriptedRollouts.of_environment(), llm_engine.llm
        index = script.prompt_index(prompt)
        sample = self._begun[index] % GROUP  # samples of a prompt begin in their order
        self._begun[index] += 1
        began = llm.has
        await asyncio.sleep(float(os.environ.get("BATCHBRIDGE_JITTER", "0")) * ((7 * index) % 5) / 5)
        if os.environ.get(UNLOCKED) and self._begun.total() > ROLLOUT:
            while llm.has == began:
                await asyncio.sleep(0.05)
        _note("made", index, sample, began, llm.has)
        ids = hf_tokenizer(prompt, add_special_tokens=False)["input_ids"]
        completion, mask = script.completion(index, sample), script.loss_mask(index, sample)
        answer: dict[str, Any] = {
            "prompt": prompt,
            "label": label,
            "observation_tokens": [*ids, *completion],
            "action_ranges": [(len(ids), len(ids) + sum(mask))],
            "rollout_log_probs": None,
            "reward": script.reward(index, sample),
            "scores": None,
            "extra_logs": {},
        }
        if claimed := os.environ.get("BATCHBRIDGE_CLAIMS"):
            answer["batchbridge_born"] = [int(claimed), int(claimed), 0]
        return answer


def _engines(module: Any) -> None:
    def create(count: int, *arguments: Any, **options: Any) -> list[Any]:
        import ray
        from openrlhf.trainer.ray import vllm_engine

        native: Any = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class

        class Engine(native):  # type: ignore[misc]  # made by Ray
            def __init__(self) -> None:
                self.executor, self.llm = Executor(), LLM()

        engine = ray.remote(Engine)
        return [engine.options(num_cpus=0, max_concurrency=64).remote() for _ in range(count)]

    module.create_vllm_engines = create


def _groups(module: Any) -> None:
    module.stateless_init_process_group = lambda *arguments, **options: Group()


def _policy(module: Any) -> None:
    """Writes down what the policy is after every optimizer step, on rank 0."""
    import torch

    native = module.DeepSpeedEngine.step
    known: set[int] = set()

    def note(engine: Any) -> None:
        if engine.global_steps not in known and not torch.distributed.get_rank():
            known.add(engine.global_steps)
            weights = {name: fingerprint(weight.data) for name, weight in engine.module.named_parameters()}
            _note("policy", engine.global_steps, together(weights))

    @functools.wraps(native)
    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        note(self)
        made = native(self, *arguments, **options)
        note(self)
        return made

    module.DeepSpeedEngine.step = step


def _skipping(module: Any) -> None:
    native, skipped, seen = module.BasePPOTrainer.broadcast_to_vllm, os.environ.get("BATCHBRIDGE_SKIPS"), Counter[str]()
    if skipped is None:
        return

    @functools.wraps(native)
    def broadcast(self: Any) -> None:
        seen["broadcasts"] += 1
        if str(seen["broadcasts"] - 1) not in skipped.split(","):
            native(self)

    module.BasePPOTrainer.broadcast_to_vllm = broadcast


def _rewriting(module: Any) -> None:
    native, added = module.RemoteExperienceMaker.make_experience_batch, os.environ.get("BATCHBRIDGE_REWRITES")
    if added is None:
        return

    @functools.wraps(native)
    def make(self: Any, samples: Any, *arguments: Any, **options: Any) -> Any:
        samples[0].info["batchbridge_born"][0, :2] += int(added)
        return native(self, samples, *arguments, **options)

    module.RemoteExperienceMaker.make_experience_batch = make


def _unlocking(module: Any) -> None:
    if not os.environ.get(UNLOCKED):
        return

    async def nothing(self: Any) -> None: ...

    lock = vars(module)["VLLMLock"].__ray_metadata__.modified_class
    lock.acquire = lock.release = nothing


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "openrlhf.trainer.ray": _engines,
    "openrlhf.utils.distributed_util": _groups,
    "deepspeed.runtime.engine": _policy,
    "openrlhf.trainer.ppo_trainer": _skipping,
    "openrlhf.trainer.ppo_utils.experience_maker": _rewriting,
    "openrlhf.trainer.ppo_trainer_async": _unlocking,
}
"""What is called after these modules' imports, in place of what `engines` has for them."""

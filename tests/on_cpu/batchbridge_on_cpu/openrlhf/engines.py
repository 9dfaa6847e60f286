"""Generation engines that play `batchbridge.testing.tiny.ScriptedRollouts`, in place of vLLM's.

`BATCHBRIDGE_RAY`: options of `ray.init`, as JSON. `BATCHBRIDGE_JITTER`: seconds, up to which each prompt's answer
waits, by its own random number keyed by `BATCHBRIDGE_JITTER_SEED`: arrival out of order. `BATCHBRIDGE_SHORT`: the
prompt (its number) of which one completion does not come. `BATCHBRIDGE_SEEDS`: a file that gets a line `prompt sample
seed` per completion. `BATCHBRIDGE_SCORES`: scores are the rewards, for a filter; else there are none.
`BATCHBRIDGE_KILL`: `rank/step`: that training process kills itself after it has trained that optimizer step.
`BATCHBRIDGE_GROUP`: completions of a prompt, where an agent (`train.agent_func_path`) makes them; see `conversations`.
`BATCHBRIDGE_CLIPPED`: a file that gets a line of JSON per row of the policy loss, see `_clipping`. Rewards: see
`ScriptedRollouts.of_environment`.
Source: openrlhf 0.11.2 vllm_engine.create_vllm_engines, ppo_actor.ActorPPOTrainer.broadcast_to_vllm.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.hookspecs import hookimpl


class ScriptedExecutor:
    """Gives one completion, as the executors of OpenRLHF's engines do."""

    async def execute(
        self, prompt: str, label: str, sampling_params: Any, hf_tokenizer: Any, sample: int
    ) -> dict[str, Any]:
        from batchbridge.testing.tiny import ScriptedRollouts

        script = ScriptedRollouts.of_environment()
        index = script.prompt_index(prompt)
        if file := os.environ.get("BATCHBRIDGE_SEEDS"):
            with Path(file).open("a", encoding="utf-8") as seeds:  # one short write: processes do not mix
                seeds.write(f"{index} {sample} {sampling_params.seed}\n")
        ids = hf_tokenizer(prompt, add_special_tokens=False)["input_ids"]
        completion, mask = script.completion(index, sample), script.loss_mask(index, sample)
        return {
            "prompt": prompt,
            "label": label,
            "observation_tokens": [*ids, *completion],
            # An empty range says where the response begins, and that none of it is trained.
            "action_ranges": [(len(ids), len(ids) + sum(mask))],
            "rollout_log_probs": None,
            "reward": script.reward(index, sample),
            "scores": script.reward(index, sample) if os.environ.get("BATCHBRIDGE_SCORES") else None,
            "extra_logs": {},
        }


class ScriptedEngine:
    """Answers every call that OpenRLHF makes of an engine; takes no weights."""

    def __init__(self) -> None:
        self.executor = ScriptedExecutor()

    def get_num_unfinished_requests(self) -> int:
        return 0

    async def generate_responses(
        self, prompt: str, label: str, sampling_params: Any, max_length: int, hf_tokenizer: Any, **options: Any
    ) -> list[dict[str, Any]]:
        """All completions of a prompt, of its number and theirs."""
        from batchbridge.testing.tiny import ScriptedRollouts

        count, index = options["num_samples"], ScriptedRollouts().prompt_index(prompt)
        jitter = float(os.environ.get("BATCHBRIDGE_JITTER", "0"))
        seed = f"{os.environ.get('BATCHBRIDGE_JITTER_SEED', '')}/{index}"
        await asyncio.sleep(jitter * random.Random(seed).random())
        count -= os.environ.get("BATCHBRIDGE_SHORT") == str(index)
        asked = {"prompt": prompt, "label": label, "sampling_params": sampling_params, "hf_tokenizer": hf_tokenizer}
        return await asyncio.gather(*(self.executor.execute(**asked, sample=sample) for sample in range(count)))

    def init_process_group(self, *arguments: Any, **options: Any) -> None: ...

    def update_weight(self, *arguments: Any, **options: Any) -> None: ...

    def wake_up(self, *arguments: Any, **options: Any) -> None: ...

    def sleep(self, *arguments: Any, **options: Any) -> None: ...

    def reset_prefix_cache(self) -> None: ...


class _NoGroup:
    """The process group that would take weights to the engines."""

    def broadcast(self, *arguments: Any, **options: Any) -> None: ...


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


def _ray(ray: Any) -> None:
    native, options = ray.init, json.loads(os.environ.get("BATCHBRIDGE_RAY", "{}"))

    @functools.wraps(native)
    def init(*arguments: Any, **given: Any) -> Any:
        return native(*arguments, **{**options, **given})

    ray.init = init
    cancel = ray.cancel

    @functools.wraps(cancel)
    def call_off(ref: Any, **given: Any) -> None:
        if isinstance(ref, ray.ObjectRef):  # else a stand-in of a process without Ray's: it is answered already
            cancel(ref, **given)

    ray.cancel = call_off


def _engines(module: Any) -> None:
    def create(count: int, *arguments: Any, **options: Any) -> list[Any]:
        import ray

        agent = options.get("agent_func_path")
        engine = ray.remote(_with_agent(agent) if agent else ScriptedEngine)
        return [engine.options(num_cpus=0, max_concurrency=64).remote() for _ in range(count)]

    module.create_vllm_engines = create


def _with_agent(agent: str) -> type:
    from batchbridge_on_cpu.openrlhf.conversations import engine_of

    return engine_of(agent, int(os.environ["BATCHBRIDGE_GROUP"]))


def _weights(module: Any) -> None:
    module.stateless_init_process_group = lambda *arguments, **options: _NoGroup()


def _clipping(file: Path) -> None:
    """Writes down, of every row that OpenRLHF's policy loss is given: `old`, its old log-probabilities, and `clipped`,
    whether PPO's clip leaves none of its tokens a gradient. Hooks of modules: no code of OpenRLHF's is another one.

    A loss is heard from its second call on: its first is of a first pass, in which every ratio is 1.
    """
    import torch

    def heard(loss: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        new, old, advantages, mask = (tensor.detach().float() for tensor in (*given, named["action_mask"]))
        ratio = (new - old).exp()
        off = ((ratio > 1 + loss.clip_eps_high) & (advantages > 0)) | (
            (ratio < 1 - loss.clip_eps_low) & (advantages < 0)
        )
        whole = (off | (mask == 0)).all(1) & mask.any(1)  # fillers have no token
        rows = zip(old.tolist(), whole.tolist(), strict=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"old": row, "clipped": clipped}) + "\n" for row, clipped in rows)

    seen = set()

    def found(module: Any, given: tuple[Any, ...]) -> None:
        if type(module).__name__ == "PolicyLoss" and id(module) not in seen:
            seen.add(id(module))
            module.register_forward_pre_hook(heard, with_kwargs=True)

    torch.nn.modules.module.register_module_forward_pre_hook(found)


def _worker(module: Any) -> None:
    if file := os.environ.get("BATCHBRIDGE_CLIPPED"):
        _clipping(Path(file))
    if os.environ.get("BATCHBRIDGE_KILL"):
        from batchbridge.contract import plugins

        plugins.manager().register(Killer(), "batchbridge_openrlhf_killer")


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "ray": _ray,
    "openrlhf.trainer.ray": _engines,
    "openrlhf.utils.distributed_util": _weights,
    "openrlhf.trainer.ray.ppo_actor": _worker,
}
"""What is called after these modules' imports."""

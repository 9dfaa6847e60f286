"""Generation engines that play `batchbridge.testing.tiny.ScriptedRollouts`, in place of vLLM's.

`BATCHBRIDGE_RAY`: options of `ray.init`, as JSON. Rewards: see `ScriptedRollouts.of_environment`.
Source: openrlhf 0.11.2 vllm_engine.create_vllm_engines, ppo_actor.ActorPPOTrainer.broadcast_to_vllm.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any


class ScriptedExecutor:
    """Gives one completion, as the executors of OpenRLHF's engines do."""

    async def execute(
        self, prompt: str, label: str, sampling_params: Any, hf_tokenizer: Any, sample: int
    ) -> dict[str, Any]:
        from batchbridge.testing.tiny import ScriptedRollouts

        script = ScriptedRollouts.of_environment()
        index = script.prompt_index(prompt)
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
            "scores": None,
            "extra_logs": {},
        }


class ScriptedEngine:
    """Answers every call that OpenRLHF makes of an engine; takes no weights."""

    def __init__(self) -> None:
        self.executor = self.made_executor()

    def made_executor(self) -> ScriptedExecutor:
        """The part that gives its completions."""
        return ScriptedExecutor()

    def get_num_unfinished_requests(self) -> int:
        return 0

    async def generate_responses(
        self, prompt: str, label: str, sampling_params: Any, max_length: int, hf_tokenizer: Any, **options: Any
    ) -> list[dict[str, Any]]:
        """All completions of a prompt, of its number and theirs."""
        asked = {"prompt": prompt, "label": label, "sampling_params": sampling_params, "hf_tokenizer": hf_tokenizer}
        samples = range(options["num_samples"])
        return await asyncio.gather(*(self.executor.execute(**asked, sample=sample) for sample in samples))

    def init_process_group(self, *arguments: Any, **options: Any) -> None: ...

    def update_weight(self, *arguments: Any, **options: Any) -> None: ...

    def wake_up(self, *arguments: Any, **options: Any) -> None: ...

    def sleep(self, *arguments: Any, **options: Any) -> None: ...

    def reset_prefix_cache(self) -> None: ...


class _NoGroup:
    """The process group that would take weights to the engines."""

    def broadcast(self, *arguments: Any, **options: Any) -> None: ...


def after_ray(ray: Any) -> None:
    """Gives `ray.init` the options of the environment."""
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


def after_engines(
    module: Any, engine_for: Callable[[Mapping[str, Any]], type] = lambda options: ScriptedEngine
) -> None:
    """Puts scripted engines in the place of vLLM's. engine_for: the class, by the options that OpenRLHF gives."""

    def create(count: int, *arguments: Any, **options: Any) -> list[Any]:
        import ray

        engine = ray.remote(engine_for(options))
        return [engine.options(num_cpus=0, max_concurrency=64).remote() for _ in range(count)]

    module.create_vllm_engines = create


def after_weights(module: Any) -> None:
    """Leaves the weights where they are: nothing scripted needs them."""
    module.stateless_init_process_group = lambda *arguments, **options: _NoGroup()


HOOKS: Mapping[str, Callable[[Any], None]] = {
    "ray": after_ray,
    "openrlhf.trainer.ray": after_engines,
    "openrlhf.utils.distributed_util": after_weights,
}
"""Functions that are called after these modules' imports."""

"""Rollout identity: every request to an engine that takes a seed carries its completion's own (`Plan.sampling_seed`).

Prompts travel with the seed of their first sample; the workers of verl's agent loops add the sample's number and hand
it to the engine. So one build of the engine draws the same completions, whatever else is in its batch and whichever
framework asks.
"""

from __future__ import annotations

import contextlib
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.identified_rows import SEED
from batchbridge.kit.patches import Patches

WHAT = "each request carries its completion's seed"
ENGINES = {"vllm"}
"""Rollout backends whose sampling parameters have `seed`. Source: verl 0.8.0 to 0.9.1 vllm_async_server.generate."""


def hand_seeds(manager: Any, backend: str, patches: Patches) -> bool:
    """Makes every agent-loop worker of `manager` hand seeds on; False where the backend takes none.

    Raises `CannotAttach` where a worker cannot be reached.
    """
    if backend not in ENGINES:
        return False
    import ray

    workers = manager.agent_loop_workers
    try:
        answers = ray.get([worker.__ray_call__.remote(in_worker) for worker in workers])
    except (ImportError, ray.exceptions.RayError) as error:
        raise CannotAttach({"sampling_seeds": f"an agent-loop worker was not reached: {error}"}) from error
    if answers != [True] * len(workers):
        raise CannotAttach({"sampling_seeds": f"{answers.count(True)} of {len(workers)} agent-loop workers answered"})

    def undo() -> None:
        with contextlib.suppress(ray.exceptions.RayActorError):  # a worker that is gone has nothing to restore
            ray.get([worker.__ray_call__.remote(out_of_worker) for worker in workers])

    patches.made("agent_loop_workers._run_agent_loop", undo, what=WHAT, why="rollout identity")
    return True


def in_worker(worker: Any) -> bool:
    """Patches one agent-loop worker, in its own process. Source: verl 0.8.0 to 0.9.1 AgentLoopWorker."""
    native, patches = worker._run_agent_loop, Patches()
    if hasattr(native, "patches"):
        return True

    async def run_agent_loop(sampling_params: dict[str, Any], trajectory: dict[str, Any], **columns: Any) -> Any:
        seed = columns.pop(SEED, None)
        if seed is not None and not trajectory["validate"]:
            sampling_params = {**sampling_params, "seed": int(seed) + int(columns["session_id"])}
        return await native(sampling_params, trajectory, **columns)

    run_agent_loop.patches = patches  # type: ignore[attr-defined]
    patches.set(worker, "_run_agent_loop", run_agent_loop, what=WHAT, why="rollout identity")
    return True


def out_of_worker(worker: Any) -> None:
    """Takes the patch of `in_worker` back, where it is there: every `fit` of a trainer patches, and each is undone."""
    patches: Patches | None = getattr(worker._run_agent_loop, "patches", None)
    if patches is not None:
        patches.undo()

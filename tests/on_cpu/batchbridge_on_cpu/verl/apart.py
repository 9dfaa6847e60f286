"""verl's one_step_off_policy on CPU: trainer and engines on devices of their own, and weights that go from one to the
other.

verl's own: the trainer, its worker groups and resource pools, the replicas and the workers beside their engines,
`CheckpointEngineManager.update_weights` and who calls it. Stand-ins: the engine (`Engine`, which keeps the weights that
it is given and generates nothing), the transport of weights (`Files`, in place of NCCL), the completions
(`Agent`, as a function of prompt and sample), and `Faulty`, a manager of hand-overs as `checkpoint_manager_class` names
it.

`BATCHBRIDGE_APART`: folder of what is seen, by nobody of BatchBridge: `sent` and `given` get a line `number digest` for
each hand-over, `held` is the digest of the engine's weights, `made` gets `prompt sample digest` as a completion begins.
`BATCHBRIDGE_SKIP`: of `Faulty`, the numbers of hand-overs that are not done. `BATCHBRIDGE_LOSE`: the number of one
that the engine is called for and takes nothing of. `BATCHBRIDGE_BEND`: the number of one whose weights are changed on
the way. `BATCHBRIDGE_STAMP`: the version that every completion says of itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import verl.workers.rollout.base as base
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry

from batchbridge_on_cpu.verl.rollouts import KeepingRollout


def seen() -> Path:
    """The folder of what is seen."""
    folder = Path(os.environ["BATCHBRIDGE_APART"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def note(name: str, *words: object) -> None:
    """Adds a line: one short write, so that processes do not mix."""
    with (seen() / name).open("a", encoding="utf-8") as lines:
        lines.write(" ".join(map(str, words)) + "\n")


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Of all bytes of all weights."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()[:16]


@CheckpointEngineRegistry.register("files")
class Files(CheckpointEngine):  # type: ignore[misc]  # verl is untyped here
    """Weights by way of a file for each hand-over."""

    def __init__(self, bucket_size: int, **options: Any) -> None: ...

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actors: int, engines: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"rank": list(range(actors))}, {"rank": [-1] * engines}

    def init_process_group(self, rank: int) -> None:
        self._rank = rank

    def finalize(self) -> None: ...

    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        kept = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        if self._rank:
            return
        note("sent", global_steps, digest(kept))
        if os.environ.get("BATCHBRIDGE_BEND") == str(global_steps):
            kept[min(kept)] = kept[min(kept)] + 1
        torch.save(kept, seen() / "writing")
        (seen() / "writing").replace(seen() / f"{global_steps}.pt")

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        file = seen() / f"{global_steps}.pt"
        while not file.exists():
            await asyncio.sleep(0.05)
        for name, tensor in torch.load(file, weights_only=True).items():
            yield name, tensor
        file.unlink()


class Engine(KeepingRollout):
    """Holds the weights that it was given."""

    async def update_weights(self, weights: Any, **options: Any) -> None:
        if os.environ.get("BATCHBRIDGE_LOSE") == str(options["global_steps"]):
            return
        kept = {name: tensor.clone() async for name, tensor in weights}
        note("given", options["global_steps"], digest(kept))
        (seen() / "holding").write_text(digest(kept), encoding="utf-8")
        (seen() / "holding").replace(seen() / "held")


class Faulty(CheckpointEngineManager):  # type: ignore[misc]  # verl is untyped here
    """Says that it has handed weights over, and has not."""

    def update_weights(self, global_steps: int | None = None) -> Any:
        if str(global_steps) in os.environ.get("BATCHBRIDGE_SKIP", "").split(","):
            return {}
        return super().update_weights(global_steps)


base._ROLLOUT_REGISTRY["scripted", "async"] = f"{__name__}.{Engine.__name__}"

"""Engines that no proof ran on, where someone allows them or nothing is changed: measured at the two places that every
engine of verl has, the loss that it is handed and the call before its update.

Of such an engine nothing is patched but what verl's own interface names, so that schedules of pipelines, optimizers and
clipping may be its own. What happens between the loss and the update is not seen.

Source: verl 0.8.0 to 0.9.1 workers/engine/base.py BaseEngine.train_batch; read, not run, of megatron, veomni and
torchtitan in workers/engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach
from batchbridge.kit.measuring import Measured, Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.workers import TrainedRow
from batchbridge_verl.watching import VerlStepProbe

PROVEN = ("FSDPEngineWithLMHead", "FSDPEngineWithValueHead")
"""Engines that the proofs ran on. Source: verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py."""
ALLOWED = "unproven_engine"
"""The name by which `wrap(..., allow=...)` enforces on another one."""


def is_proven(engine: Any) -> bool:
    """Whether the proofs ran on this engine."""
    return type(engine).__name__ in PROVEN


def named_in(found: Any, engine: Any) -> Any:
    """The evidence (`proven.require`) of a worker that has an engine which no proof ran on."""
    name = f"{type(engine).__module__}.{type(engine).__qualname__} (an engine that no proof ran on)"
    return dataclasses.replace(found, grade="measured", control=(*found.control, name))


def hold_interface(engine: Any) -> None:
    """Refusal (`CannotAttach`) of an engine that leaves the path on which it is measured."""
    from verl.workers.engine import BaseEngine

    if type(engine).train_batch is not BaseEngine.train_batch:
        reason = (
            f"{type(engine).__name__} has a train_batch of its own: nothing says that every update of it is behind "
            "optimizer_step(), before which a step is held against the plan"
        )
        raise CannotAttach({ALLOWED: reason})


class VerlLossStepProbe(VerlStepProbe):
    """The measuring of an engine's optimizer steps at the loss that verl hands it."""

    def _hook(self, patches: Patches) -> None:
        hold_interface(self._engine)
        self._update: Callable[[], None] | None = None
        patches.note(
            "engine",
            what=f"{type(self._engine).__name__}: measured at its loss; clipping and the update are not seen",
            why="no proof ran on it",
        )

    @contextlib.contextmanager
    def looking(self, look: Callable[[], None]) -> Iterator[None]:
        """The span in which `look` is called before the engine's own `optimizer_step`."""
        self._update = look
        try:
            yield
        finally:
            self._update = None

    def updates(self) -> None:
        """The hook that runs as the last thing before the engine's own `optimizer_step`."""
        if self._update is not None:
            self._update()

    def loss(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """verl's loss, whose log-probabilities are hooked."""
        valued = super().loss(native)

        @functools.wraps(native)
        def hooked(*arguments: Any, **options: Any) -> Any:
            # A loss over logits (a teacher's most likely tokens) is another call, and has no log-probabilities.
            made = (options.get("model_output") or {}).get("log_probs")
            if made is not None:
                self._hooked(made, options["data"])
            return valued(*arguments, **options)

        return hooked

    def look(self, rows: Sequence[TrainedRow], size: int) -> list[str]:
        """The measurement of a step's rows, as in `VerlStepProbe.look`. A process that has no loss, of a pipeline's
        earlier stage, shows no weights; another one of its replica does."""
        if not reports_loss(self._engine, bool(self._places)):
            for row in rows:
                row.measured(Measured(None, 0.0))
            return []
        return super().look(rows, size)


def reports_loss(engine: Any, seen: bool) -> bool:
    """Whether this process reports on the loss: `seen` says that it ran here, and where it ran in no process of a
    replica, all of them report, so that the error is not silent. Collective."""
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    replica = int(engine.get_data_parallel_rank())
    torch.distributed.all_gather_object(everyone, (replica, seen))
    replicas_with_loss = {its_replica for its_replica, it_ran in everyone if it_ran}
    return seen or replica not in replicas_with_loss


def run_probe(
    worker: Any, data: Any, tap: Tap, made: list[ProbeBatch], joined: Callable[[Tap, ProbeBatch, Any], torch.Tensor]
) -> bool:
    """One probed optimizer step of `batchbridge_verl.probe` through an engine's own loop and model: its
    log-probabilities count nothing, so that gradients go through every stage and are zero. joined: the probe's in their
    place, packed. Returns whether this process reports on it. Collective."""
    from verl.utils import tensordict_utils as tu

    remaining, seen = iter(made), []

    def loss(*arguments: Any, **options: Any) -> Any:
        output, micro_batch = options["model_output"], options["data"]
        values = output["log_probs"]
        leaf = joined(tap, next(remaining), micro_batch)
        packed = leaf + 0 * (values.values() if values.is_nested else values)
        seen.append(packed)
        offsets = micro_batch["input_ids"].offsets()
        output = {**output, "log_probs": torch.nested.nested_tensor_from_jagged(packed, offsets)}
        return worker.loss_fn(*arguments, **{**options, "model_output": output})

    engine = worker.engine
    settings = {
        "use_remove_padding": worker.model_config.get("use_remove_padding", False),
        "use_fused_kernels": worker.engine_config.use_fused_kernels,
        "disable_auto_offload": True,
    }
    tu.assign_non_tensor(data, **settings)
    with engine.train_mode():
        engine.optimizer_zero_grad()
        try:
            engine.forward_backward_batch(data, loss_function=loss)
        finally:
            engine.optimizer_zero_grad()
    return reports_loss(engine, bool(seen))

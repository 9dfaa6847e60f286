"""In the process of the trainer: which rows every optimizer step gets, for both trainers of verl.

The trainers differ in how a rollout's rows are held (`trainer_v1`, `trainer_v0`); what is done with them is one: one
call of `update_actor` per planned optimizer step, rows placed by token counts, filler rows where verl's splits need
them. The forward passes, the loss and the rest of the training loop stay verl's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit import Length, Request, StepPlan, partition_packed, workers_ray
from batchbridge.kit.checkpoints import FSDP_SHARDS
from batchbridge.kit.identified_rows import STEP
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_driver import RolloutRows, StepDriver, merged
from batchbridge.kit.workers import Orders, Receipt


class Driver(StepDriver):
    """What both trainers need: the plan, the workers, and the cut of a rollout into steps."""

    other_ranks = FSDP_SHARDS

    def __init__(self, trainer: Any, request: Request, orders: Orders) -> None:
        super().__init__(request, orders)
        self.trainer, self.actor = trainer, trainer.config.actor_rollout_ref.actor

    # ---- where rows run

    def step_rows(self, step: StepPlan, rows: RolloutRows) -> list[tuple[int, int] | None]:
        """As `StepDriver`'s; where prompts are shared, groups together."""
        if self.orders.padding == "padded":
            return super().step_rows(step, rows)
        members = [divmod(position, self.plan.completions_per_prompt) for position in step.positions]
        return together(members, self.ranks, multiple=self.rows_per_micro_batch or 1)

    def rollout_order(self, rows: RolloutRows, filler_count: int) -> list[tuple[int, int] | None]:
        """As `StepDriver`'s; where prompts are shared, groups together."""
        if self.orders.padding == "padded":
            return super().rollout_order(rows, filler_count)
        return together([*rows.costs], self.ranks, multiple=(len(rows.costs) + filler_count) // self.ranks)

    # ---- workers

    def install(self, patches: Patches) -> None:
        """Gives every training worker its orders. Raises `CannotAttach` unless every one answers with the same."""
        self.receipts = install_everywhere(self.trainer.actor_rollout_wg, self.orders, patches)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the actor."""
        group = self.trainer.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return int(max(group._dispatch_info["actor"])) + 1

    @property
    def rows_per_micro_batch(self) -> int | None:
        """verl's fixed micro-batch in training; None with a token budget."""
        return None if self.actor.use_dynamic_bsz else int(self.actor.ppo_micro_batch_size_per_gpu)

    @property
    def forward_rows(self) -> int | None:
        """Rows of a forward-only micro-batch that both the actor's and the reference's passes split into."""
        if self.actor.use_dynamic_bsz:
            return None
        config = self.trainer.config.actor_rollout_ref
        sizes = [config.rollout.log_prob_micro_batch_size_per_gpu]
        if self.trainer.use_reference_policy:
            sizes.append(config.ref.log_prob_micro_batch_size_per_gpu)
        return math.lcm(*(int(size) for size in sizes if size))

    def train(
        self, rollout: int, rows: RolloutRows, send: Callable[[list[Any], dict[str, Any]], Any]
    ) -> dict[str, Any]:
        """One call of `send` per optimizer step of the rollout: its places, and the values that go with them. Returns
        the merged metrics."""
        outputs = []
        for step in self.steps_of(rollout):
            spare = iter(rows.fillers)
            order = self.step_rows(step, rows)
            places = [next(spare) if row is None else rows.places[row] for row in order]
            values = {
                STEP: step.index,
                "mini_batch_size": len(places),
                "global_batch_size": len(places),
                "epochs": 1,
                "dataloader_kwargs": {"shuffle": False},
            }
            if self.request.spec.objective.entropy_coefficient:
                values["calculate_entropy"] = True
            outputs.append(send(places, values))
        return merged(outputs) or {"mfu": [0.0]}  # a rollout of which every row is dropped trains nothing


def together(members: Sequence[tuple[int, int]], ranks: int, *, multiple: int) -> list[tuple[int, int] | None]:
    """Completions, (prompt, sample) each, in the order in which verl deals them out: one contiguous block per rank, all
    of one size, which is a multiple of `multiple`; None is a filler row. Ranks have equally many, give or take one, and
    whole groups as far as that allows."""
    each = [Length(0, 1)] * len(members)
    hands = partition_packed(each, [prompt for prompt, _ in members], ranks=ranks, completions_per_device=len(members))
    blocks = [[members[item] for part in hand for item in part if item is not None] for hand in hands]
    size = -(-max(map(len, blocks)) // multiple) * multiple
    return [row for block in blocks for row in (*block, *[None] * (size - len(block)))]


def checkpoint_to_resume(trainer: Any) -> Path | None:
    """The folder that verl will resume from, or None. Source: verl 0.9.1 _load_checkpoint of both trainers."""
    settings = trainer.config.trainer
    if settings.resume_mode == "disable":
        return None
    if settings.resume_mode == "resume_path":
        return Path(settings.resume_from_path).absolute()
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    found = find_latest_ckpt_path(str(Path(settings.default_local_dir).absolute()))
    return None if found is None else Path(found)


def install_everywhere(group: Any, orders: Orders, patches: Patches) -> list[Receipt]:
    """Runs `engine.install` in every process of a worker group, then `engine.probe`."""
    receipts = workers_ray.install_everywhere(group.workers, orders, _in_worker, _probed)
    what, why = f"orders in {len(receipts)} training workers", "every optimizer step is measured there"

    def undo() -> None:
        workers_ray.install_everywhere(group.workers, None, _in_worker)

    patches.made("actor_rollout_wg", undo, what=what, why=why)
    return receipts


def _in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """Runs inside a Ray actor of the worker group."""
    from batchbridge_verl.engine import install, remove

    if orders is None:
        remove(_actor_of(worker))
        return None
    return install(_actor_of(worker), orders, _references_of(worker))


def _probed(worker: Any) -> None:
    """Runs inside a Ray actor of the worker group."""
    from batchbridge_verl.engine import probe

    probe(_actor_of(worker))


def _held_by(worker: Any) -> dict[str, Any]:
    """The workers in a Ray actor. Source: verl 0.8.0 to 0.9.1 single_controller/ray/base.py."""
    return getattr(worker, "fused_worker_dict", None) or getattr(worker, "worker_dict", None) or {"": worker}


def _references_of(worker: Any) -> list[Any]:
    """The engines in a process that score alone: the reference's, where there is one."""
    return [inner.ref.engine for inner in _held_by(worker).values() if getattr(inner, "ref", None) is not None]


def _actor_of(worker: Any) -> Any:
    """The `TrainingWorker` in a process that trains."""
    held = _held_by(worker)
    actors = [inner.actor for inner in held.values() if getattr(inner, "actor", None) is not None]
    if len(actors) != 1:
        raise CannotAttach({"actor": f"{len(actors)} actors in one training worker ({', '.join(held)})"})
    return actors[0]

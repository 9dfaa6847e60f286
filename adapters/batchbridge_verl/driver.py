"""In the process of the trainer: which rows every optimizer step gets, for both trainers of verl.

The trainers differ in how a rollout's rows are held (`trainer_v1`, `trainer_v0`); what is done with them is one: one
call of `update_actor` per planned optimizer step, rows placed by token counts, filler rows where verl's splits need
them. The forward passes, the loss and the rest of the training loop stay verl's.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchbridge.attach import BatchDrift, CannotAttach, Request
from batchbridge.plan import PlanError, StepPlan
from batchbridge_verl.engine import STEP, Orders, Receipt
from batchbridge_verl.layout import fillers, layout

STATE_FILE = "batchbridge.json"
"""In every checkpoint's folder: the plan's state and the number of ranks."""


@dataclass
class RolloutRows:
    """One rollout in the driver. costs: (position, sample) -> tokens of prompt and completion."""

    index: int
    costs: dict[tuple[int, int], int]
    places: dict[tuple[int, int], Any] = field(default_factory=dict)
    """(position, sample) -> how the trainer finds the row: a key, or a row number."""
    fillers: list[Any] = field(default_factory=list)


class Driver:
    """What both trainers need: the plan, the workers, and the cut of a rollout into steps.

    update: sends one step's rows, given as places, to `update_actor` and returns its metrics.
    """

    def __init__(self, trainer: Any, request: Request, orders: Orders) -> None:
        assert request.plan is not None, "wrap refuses to enforce without a plan"
        self.trainer, self.request, self.plan, self.orders = trainer, request, request.plan, orders
        self.actor = trainer.config.actor_rollout_ref.actor
        self.receipts: list[Receipt] = []

    # ---- workers

    def install(self) -> None:
        """Gives every training worker its orders. Raises `CannotAttach` unless every one answers with the same."""
        self.receipts = install_everywhere(self.trainer.actor_rollout_wg, self.orders)

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

    # ---- a rollout's rows

    def steps_of(self, rollout: int) -> list[StepPlan]:
        """The optimizer steps that train on `rollout`, in order."""
        steps, index = [], self.plan.rollout(rollout).generated_at_step
        while index < self.plan.total_optimizer_steps and self.plan.step(index).rollouts == (rollout,):
            steps.append(self.plan.step(index))
            index += 1
        return steps

    def step_rows(self, step: StepPlan, rows: RolloutRows) -> list[tuple[int, int] | None]:
        """The step's rows as (position of the prompt, sample), in the order in which verl deals them out."""
        group = self.plan.completions_per_prompt
        members = [divmod(position, group) for position in step.positions]
        order = layout(
            [rows.costs[member] for member in members],
            ranks=self.ranks,
            rows_per_micro_batch=self.rows_per_micro_batch,
        )
        return [None if place is None else members[place] for place in order]

    def fillers_needed(self, rows: RolloutRows) -> int:
        """Filler rows that the fullest step of the rollout, or the rollout itself in the forward passes, needs."""
        steps = max(
            (sum(row is None for row in self.step_rows(step, rows)) for step in self.steps_of(rows.index)), default=0
        )
        multiple = self.ranks * (self.forward_rows or 1)
        whole = fillers(layout(list(rows.costs.values()), ranks=self.ranks, rows_per_micro_batch=self.forward_rows))
        while whole < steps:
            whole += multiple
        return whole

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

    def rollout_order(self, rows: RolloutRows, filler_count: int) -> list[tuple[int, int] | None]:
        """The whole rollout's rows for the forward-only passes, balanced over the ranks, with all its fillers."""
        members = list(rows.costs)
        blocks: list[list[tuple[int, int] | None]] = [[] for _ in range(self.ranks)]
        size = (len(members) + filler_count) // self.ranks
        dealt = layout(list(rows.costs.values()), ranks=self.ranks, rows_per_micro_batch=None)
        share = len(dealt) // self.ranks
        for rank, block in enumerate(blocks):
            block += [members[place] for place in dealt[rank * share : (rank + 1) * share] if place is not None]
            block += [None] * (size - len(block))
        return [row for block in blocks for row in block]

    def expect_rollout(self, rollout: int, arrived: Mapping[tuple[int, int], Any]) -> None:
        """Raises `BatchDrift` unless exactly the plan's completions arrived, and `CannotAttach` without receipts."""
        if not self.receipts:
            raise CannotAttach({"arrival": "no training worker has its orders: the trainer's start was not followed"})
        planned = self.plan.rollout(rollout)
        want = {
            (position, sample)
            for position in range(len(planned.prompts))
            for sample in range(planned.completions_per_prompt)
        }
        missing, extra = sorted(want - arrived.keys()), sorted(arrived.keys() - want)
        if missing or extra:
            prompts = [(planned.prompts[position], sample) for position, sample in missing[:3]]
            raise BatchDrift(
                planned.generated_at_step,
                "membership",
                f"rollout {rollout} came back without (prompt, sample) {prompts or 'none'} and with {len(extra)} "
                "completions too many; verl would fill up with rows that weigh nothing",
            )

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

    # ---- the clock and checkpoints

    def rollouts(self) -> int:
        """Rollouts of the run: what verl counts as training steps."""
        return self.plan.total_rollouts

    def state(self, rollouts_done: int) -> str:
        """What a checkpoint after `rollouts_done` rollouts remembers."""
        steps = self.steps_of(rollouts_done - 1)[-1].index + 1
        return json.dumps({"plan": self.plan.state(steps), "ranks": self.ranks, "rollouts": rollouts_done})

    def save(self, folder: Path, rollouts_done: int) -> None:
        """Before verl's own checkpoint: what is complete for verl is complete for us, whenever the run is killed."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{STATE_FILE}.partial"
        partial.write_text(self.state(rollouts_done), encoding="utf-8")
        partial.replace(folder / STATE_FILE)

    def check_state(self, folder: Path) -> None:
        """Raises `CannotAttach` unless the checkpoint in `folder` continues this plan on as many ranks."""
        try:
            state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        except OSError:
            reason = f"{folder} was written without batchbridge: its place in the plan is unknown"
            raise CannotAttach({"resume": reason}) from None
        if state["ranks"] != self.ranks:
            reason = f"{folder} was written by {state['ranks']} ranks, this run has {self.ranks}: start as many"
            raise CannotAttach({"resume": reason})
        try:
            self.plan.seek(state["plan"])
        except PlanError as error:
            raise CannotAttach({"resume": f"{folder}: {error.reason}"}) from None


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


def merged(outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of several calls of `update_actor` as one call over as many mini-batches gives them: lists."""
    result: dict[str, Any] = {}
    for output in outputs:
        for name, value in output.items():
            result.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return result


def install_everywhere(group: Any, orders: Orders | None) -> list[Receipt]:
    """Runs `install` in every process of a worker group (None: undoes it), and holds the answers against each other."""
    import ray

    try:
        answers = ray.get([worker.__ray_call__.remote(_in_worker, orders) for worker in group.workers])
    except ImportError as error:
        reason = f"a training worker cannot import the adapter ({error}); install batchbridge on every node"
        raise CannotAttach({"arrival": reason}) from None
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, CannotAttach):
            raise CannotAttach(cause.reasons) from None
        raise CannotAttach({"arrival": f"a training worker did not take its orders: {cause or error}"}) from error
    receipts = [answer for answer in answers if answer is not None]
    if orders is None:
        return []
    if sorted(receipt.rank for receipt in receipts) != list(range(len(group.workers))):
        raise CannotAttach({"arrival": f"{len(receipts)} of {len(group.workers)} training workers answered"})
    if {receipt.spec_digest for receipt in receipts} != {orders.spec.digest()}:
        raise CannotAttach({"arrival": "the training workers read another spec out of their orders: other versions"})
    return receipts


def _in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """Runs inside a Ray actor of the worker group. Source: verl 0.8.0 to 0.9.1 single_controller/ray/base.py."""
    from batchbridge_verl.engine import install, remove

    held = getattr(worker, "fused_worker_dict", None) or getattr(worker, "worker_dict", None) or {"": worker}
    actors = [inner.actor for inner in held.values() if getattr(inner, "actor", None) is not None]
    if len(actors) != 1:
        raise CannotAttach({"actor": f"{len(actors)} actors in one training worker ({', '.join(held)})"})
    if orders is None:
        remove(actors[0])
        return None
    return install(actors[0], orders)


def new_start() -> str:
    """A name that all ranks of one start share."""
    return uuid.uuid4().hex

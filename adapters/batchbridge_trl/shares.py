"""Which rank trains what of an optimizer step, in which micro-batches, and what of a rollout it therefore keeps.

Every rank computes every rank's share, of lengths that all of them know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.utils import gather_object

from batchbridge import Plan
from batchbridge.kit import Length, MicroBatches, StepPlan, partition, partition_by_cost
from batchbridge_trl.pace import Pace
from batchbridge_trl.rows import RolloutRows
from batchbridge_trl.sharding import loaded_in_shards


class Shares:
    """The shares of a trainer's ranks in the steps of a plan. rollouts: those that are still trained on, by number."""

    def __init__(self, trainer: Any, plan: Plan, rollouts: dict[int, RolloutRows]) -> None:
        self._trainer, self._plan, self._rollouts = trainer, plan, rollouts
        self._accelerator = trainer.accelerator
        self._shares: dict[int, list[MicroBatches]] = {}
        self.pace = Pace(trainer, sharded=self._sharded)
        """What a micro-batch costs, as far as it was measured."""

    def clear(self) -> None:
        """Forgets every step."""
        self._shares.clear()
        self.pace.clear()

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, plain values: by which shares ranks keep their rows, and the cost model."""
        return {"steps": dict(self._shares), "pace": self.pace.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with the shares that a checkpoint of equally many ranks stored."""
        self._shares.update(state["steps"])
        self.pace.load(state["pace"])

    def completions(self, step: StepPlan) -> list[tuple[RolloutRows, int]]:
        """Every completion of the step, by its rollout and its position there."""
        rollouts = [self._rollouts[member.rollout] for member in step.members]
        return list(zip(rollouts, step.positions, strict=True))

    def own(self, step: StepPlan) -> list[list[int | None]]:
        """This rank's micro-batches of `step`."""
        return self.of(step)[self._accelerator.process_index]

    def of(self, step: StepPlan) -> list[MicroBatches]:
        """Every rank's micro-batches of `step`; every rollout of the step must be known."""
        if step.index not in self._shares:
            completions = self.completions(step)
            self._shares[step.index] = shares = self._cut([rows.length(position) for rows, position in completions])
            if len(shares) > 1 and any(rows.images(position) for rows, position in completions):
                # Every rank runs the part of the model that reads images, or waits for those that do: a row without
                # weight has one where no other has.
                for batch in (batch for rank in shares for batch in rank):
                    if not any(item is None or completions[item][0].images(completions[item][1]) for item in batch):
                        batch.append(None)
        return self._shares[step.index]

    def filler(self, step: StepPlan) -> tuple[RolloutRows, int]:
        """What filler rows of the step are copies of: its shortest completion with images, where it has one, and a
        short one that this rank holds anyway otherwise."""
        first = self._rollouts[step.rollouts[0]]
        having = [(rows, position) for rows, position in self.completions(step) if rows.images(position)]
        held = having or [(first, position) for position in first.slots]
        return min(held, key=lambda one: one[0].length(one[1]).tokens)

    def _cut(self, lengths: list[Length]) -> list[MicroBatches]:
        """Every rank's micro-batches: by tokens where the spec has a budget, by count otherwise."""
        micro, ranks = self._plan.spec.micro_batch, self._accelerator.num_processes
        if micro.tokens_per_device is None:
            size = micro.completions_per_device or self._trainer.args.per_device_train_batch_size
            return partition([length.tokens for length in lengths], ranks=ranks, completions_per_device=size)
        cost, soft = self.pace.cost, micro.cap == "soft"
        return partition_by_cost(lengths, ranks=ranks, tokens_per_device=micro.tokens_per_device, cost=cost, soft=soft)

    @property
    def _sharded(self) -> bool:
        """Whether ranks put the model, or its gradients, together in every pass."""
        trainer = self._trainer
        return bool(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or loaded_in_shards(trainer))

    def most(self, passes: int) -> int:
        """Forward passes of the rank that has most, where the model is sharded, so that ranks must run equally many;
        this rank's own otherwise. Collective."""
        if self._accelerator.num_processes == 1 or not self._sharded:
            return passes
        # Not the `gather` of Accelerate, which pads rows meanwhile: trl 0.18 scores the reference inside of its loss.
        return int(max(gather_object([passes])))

    def keep_own(self, rollout: RolloutRows) -> None:
        """Drops the rows that other ranks will train; rows of steps that wait for a later rollout are all kept, and
        those of steps after the run's end: a longer run may go on from a checkpoint."""
        ranks, rank = self._accelerator.num_processes, self._accelerator.process_index
        wanted: list[set[int]] = [set() for _ in range(ranks)]
        later: set[int] = set()
        for step in self._plan.steps_using(rollout.index, self._trainer.state.global_step):
            known = all(index in self._rollouts for index in step.rollouts)
            everyone: list[list[Any]] = [[range(len(step.members))]]
            shares: Sequence[Sequence[Any]] = self.of(step) if known else everyone
            for each, share in zip(wanted if known else [later], shares, strict=True):
                items = {item for batch in share for item in batch}
                if None in items and known:
                    filler, position = self.filler(step)
                    each |= {position} if filler is rollout and filler.images(position) else set()
                own = (item for item in items if item is not None and step.members[item].rollout == rollout.index)
                each |= {step.positions[item] for item in own}
        if (pictures := rollout.pictures) is not None:
            pictures.exchange(wanted, rank, self._accelerator.device)
            pictures.keep(wanted[rank] | later)
        rollout.keep(wanted[rank] | later)

    def forget(self, step: StepPlan) -> None:
        """Forgets a step that was taken, and the rollouts that no later one uses. Collective."""
        self.pace.step_done(by_tokens=self._plan.spec.micro_batch.tokens_per_device is not None)
        self._shares.pop(step.index, None)
        # After the last step, too: a longer run may go on from its checkpoint.
        first = self._plan.step(step.index + 1).members[0].rollout
        for index in [index for index in self._rollouts if index < first]:
            del self._rollouts[index]

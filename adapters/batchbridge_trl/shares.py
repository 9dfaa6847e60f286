"""The share of each rank in an optimizer step, in which micro-batches, and what of a rollout it therefore gets.

Every rank computes every rank's share, of lengths that all of them know.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather, gather_object

from batchbridge import BatchDrift, Plan
from batchbridge.kit import (
    Length,
    MicroBatches,
    Row,
    StepCost,
    StepPlan,
    partition,
    partition_by_cost,
    partition_packed,
)
from batchbridge_trl.compute_time import ComputeTime
from batchbridge_trl.found_budget import PassCut
from batchbridge_trl.rows import TrlRolloutRows
from batchbridge_trl.sharding import loaded_in_shards


class StepShares:
    """The shares of a trainer's ranks in the steps of a plan. rollouts: those that are still trained on, by number.
    packed: whether completions lie end to end, each prompt once."""

    def __init__(self, trainer: Any, plan: Plan, rollouts: dict[int, TrlRolloutRows], *, packed: bool = False) -> None:
        self._packed = packed
        self._trainer, self._plan, self._rollouts = trainer, plan, rollouts
        self._accelerator = trainer.accelerator
        self._shares: dict[int, list[MicroBatches]] = {}
        self.time = ComputeTime(trainer, sharded=self._sharded)

    def clear(self) -> None:
        """Forgets every step."""
        self._shares.clear()

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, plain values: by which shares ranks keep their rows."""
        return {"steps": dict(self._shares), "packed": self._packed}

    def cut_alike(self, state: Mapping[str, Any] | None) -> bool:
        """Whether `state` is there, and of shares as these are cut."""
        return state is not None and state.get("packed", False) == self._packed

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with the shares that a checkpoint of equally many ranks stored."""
        self._shares.update(state["steps"])

    def completions(self, step: StepPlan) -> list[tuple[TrlRolloutRows, int]]:
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
            self._shares[step.index] = shares = self._cut(
                step, [rows.length(position) for rows, position in completions]
            )
            if len(shares) > 1 and any(rows.images(position) for rows, position in completions):
                # Every rank runs the part of the model that reads images, or waits for those that do: a row without
                # weight has one where no other has.
                for batch in (batch for rank in shares for batch in rank):
                    if not any(item is None or completions[item][0].images(completions[item][1]) for item in batch):
                        batch.append(None)
        return self._shares[step.index]

    def weighed(self, step: StepPlan) -> list[Row]:
        """Every completion of the step, as the weights of its tokens are made of it."""
        return [
            Row(tokens=rows.response_tokens[position], group=(member.rollout, member.prompt))
            for member, (rows, position) in zip(step.members, self.completions(step), strict=True)
        ]

    def turn_sizes(self, step: StepPlan) -> list[tuple[int, int, int]]:
        """(response tokens, completions, rows with fillers) that all ranks together run in each turn of the step."""
        tokens, sizes = [row.tokens for row in self.weighed(step)], []
        for turn in zip(*self.of(step), strict=True):
            real = [item for batch in turn for item in batch if item is not None]
            sizes.append((sum(tokens[item] for item in real), len(real), sum(map(len, turn))))
        return sizes

    def passes(self, step: StepPlan) -> PassCut:
        """The step's completions as passes read them, by their places in the step."""
        lengths = [rows.length(position) for rows, position in self.completions(step)]
        return PassCut(lengths, [_prompt(member) for member in step.members] if self._packed else None)

    def filler(self, step: StepPlan) -> tuple[TrlRolloutRows, int]:
        """The completion that filler rows of the step are copies of: its shortest with images, where it has one, and a
        short one that this rank holds anyway otherwise."""
        first = self._rollouts[step.rollouts[0]]
        having = [(rows, position) for rows, position in self.completions(step) if rows.images(position)]
        held = having or [(first, position) for position in first.slots]
        return min(held, key=lambda one: one[0].length(one[1]).tokens)

    def _cut(self, step: StepPlan, lengths: list[Length]) -> list[MicroBatches]:
        """Every rank's micro-batches: by tokens where the spec has a budget, by count otherwise."""
        micro, ranks = self._plan.spec.micro_batch, self._accelerator.num_processes
        size = micro.completions_per_device or self._trainer.args.per_device_train_batch_size
        budget, cost, soft = micro.tokens_per_device, self._cost, micro.cap == "soft"
        if self._packed:
            return partition_packed(
                lengths,
                [_prompt(member) for member in step.members],
                ranks=ranks,
                tokens_per_device=budget,
                completions_per_device=size if budget is None else None,
                soft=soft,
                cost=cost.of_sequence,
            )
        if budget is None:
            return partition([length.tokens for length in lengths], ranks=ranks, completions_per_device=size)
        return partition_by_cost(lengths, ranks=ranks, tokens_per_device=budget, cost=cost, soft=soft)

    @functools.cached_property
    def _cost(self) -> StepCost:
        return StepCost.of_model(self._trainer.model.config.get_text_config().to_dict())

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

    def keep_own(self, rollout: TrlRolloutRows) -> None:
        """Sends the rows of `rollout` to the ranks that train them, and drops what this rank does not train.
        Collective.

        Rows of steps that wait for a later rollout stay where they were generated, and move when all of the step's
        lengths are known. Steps after the run's end count, too: a longer run may go on from a checkpoint.
        """
        ranks, rank = self._accelerator.num_processes, self._accelerator.process_index
        wanted: list[set[int]] = [set() for _ in range(ranks)]
        later: set[int] = set()
        for step in self._plan.steps_using(rollout.index, self._trainer.state.global_step):
            known = all(index in self._rollouts for index in step.rollouts)
            everyone: list[list[Any]] = [[range(len(step.members))]]
            shares: Sequence[Sequence[Any]] = self.of(step) if known else everyone
            filler, copied = self.filler(step) if known else (rollout, 0)
            travels = known and filler is rollout and filler.images(copied) > 0
            for each, share in zip(wanted if known else [later], shares, strict=True):
                items = {item for batch in share for item in batch}
                own = (item for item in items if item is not None and step.members[item].rollout == rollout.index)
                each |= {step.positions[item] for item in own}
                if travels and None in items:
                    each.add(copied)
        self._require_alike(wanted)
        rollout.share_out(wanted, later, rank, self._accelerator.device)

    def _require_alike(self, wanted: Sequence[set[int]]) -> None:
        """The check (`BatchDrift`, on every rank) that ranks share rows out alike: what one sends, another would not
        wait for otherwise. Collective."""
        if len(wanted) == 1:
            return
        told = zlib.crc32(repr([sorted(each) for each in wanted]).encode())
        if len(set(gather(torch.tensor([told], device=self._accelerator.device)).tolist())) > 1:
            raise BatchDrift(self._trainer.state.global_step, "ranks", "each shares the step out in its own way")

    def forget(self, step: StepPlan) -> None:
        """Forgets a step that was taken, and the rollouts that no later one uses."""
        self._shares.pop(step.index, None)
        # After the last step, too: a longer run may go on from its checkpoint.
        first = self._plan.step(step.index + 1).members[0].rollout
        for index in [index for index in self._rollouts if index < first]:
            del self._rollouts[index]


def _prompt(member: Any) -> tuple[int, int]:
    """The identity that tells apart prompts that are read once."""
    return member.rollout, member.prompt

"""The process of a trainer that trains in other processes: which rows every optimizer step gets, and where they run.

One call of the native update per planned optimizer step; rows are placed by what they cost, with filler rows where the
framework's own splits need them. Knows no framework: an adapter's driver says how many ranks there are, and what its
micro-batches take.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from batchbridge.contract.attachment import Request
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit import checkpoints, new_start
from batchbridge.kit.model_files import text_config
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.kit.ranks import fillers, layout, steps_of_rollout
from batchbridge.kit.row_digests import RowDigests
from batchbridge.kit.step_cost import StepCost
from batchbridge.kit.workers import Orders, Receipt
from batchbridge.meaning.plan import StepPlan


@dataclass
class RolloutRows:
    """One rollout in the driver. costs: (position, sample) -> tokens of prompt and completion."""

    index: int
    costs: dict[tuple[int, int], int]
    places: dict[tuple[int, int], Any] = field(default_factory=dict)
    """(position, sample) -> how the trainer finds the row: a key, or a row number."""
    fillers: list[Any] = field(default_factory=list)


class StepDriver(ABC):
    """The plan, the workers' receipts, and the cut of a rollout into steps."""

    other_ranks: ClassVar[str]
    """The reason why the framework's checkpoints cannot be loaded on another number of ranks, and what to do."""

    def __init__(self, request: Request, orders: Orders) -> None:
        assert request.plan is not None, "wrap refuses to enforce without a plan"
        assert request.reading.spec is not None, "wrap refuses a trainer whose own configuration is not read"
        self.request, self.plan, self.orders = request, request.plan, orders
        self.own = request.reading.spec
        """The meaning of the trainer's own configuration."""
        self.digests: RowDigests = {}
        """(position, sample) -> the digests of what a row of the rollout in hand carries to its loss, by column."""
        self.receipts: list[Receipt] = []
        self._begun = False
        self.held_advantages = HeldAdvantages.of(request)
        self._settings = ProducerSettings(self.settings_read)

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Data-parallel ranks of the actor."""

    @property
    def shards(self) -> int:
        """Ranks that each have a file of a checkpoint."""
        return self.ranks

    @property
    def model(self) -> str | None:
        """The name of the model that is trained: a folder, or the hub's; None: not known."""
        return None

    @functools.cached_property
    def cost(self) -> StepCost:
        """The cost of the model's rows, by which ranks are balanced; every token costs the same where no `config.json`
        of it is at hand."""
        return StepCost.of_model(text_config(self.model))

    def _costs(self, tokens: Iterable[int]) -> list[float]:
        return [self.cost.of_sequence(count) for count in tokens]

    @property
    @abstractmethod
    def rows_per_micro_batch(self) -> int | None:
        """The framework's fixed micro-batch in training; None with a token budget."""

    @property
    @abstractmethod
    def forward_rows(self) -> int | None:
        """Rows of a forward-only micro-batch; None with a token budget."""

    def settings_read(self) -> Mapping[str, Any]:
        """The trainer's settings of now that generation, scoring and advantages read, by key."""
        return {}

    def hold_settings(self, rollout: int) -> None:
        """The check (`BatchDrift`), before a rollout and when it has arrived, that what makes its advantages reads what
        it did when the trainer was wrapped."""
        self._settings.require(self.generated_at(rollout))

    def generated_at(self, rollout: int) -> int:
        """The optimizer step before which a rollout is generated."""
        return self.plan.rollout(rollout).generated_at_step

    # ---- a rollout's rows

    def steps_of(self, rollout: int) -> list[StepPlan]:
        """The optimizer steps that train on `rollout`, in order."""
        return steps_of_rollout(self.plan, rollout)

    def step_rows(self, step: StepPlan, rows: RolloutRows) -> list[tuple[int, int] | None]:
        """The step's rows as (position of the prompt, sample), in the order in which the framework deals them out."""
        group = self.plan.completions_per_prompt
        members = [divmod(position, group) for position in step.positions]
        order = layout(
            self._costs(rows.costs[member] for member in members),
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
        whole = fillers(
            layout(self._costs(rows.costs.values()), ranks=self.ranks, rows_per_micro_batch=self.forward_rows)
        )
        while whole < steps:
            whole += multiple
        return whole

    def rollout_order(self, rows: RolloutRows, filler_count: int) -> list[tuple[int, int] | None]:
        """The whole rollout's rows for the forward-only passes, balanced over the ranks, with all its fillers."""
        members = list(rows.costs)
        blocks: list[list[tuple[int, int] | None]] = [[] for _ in range(self.ranks)]
        size = (len(members) + filler_count) // self.ranks
        dealt = layout(self._costs(rows.costs.values()), ranks=self.ranks, rows_per_micro_batch=None)
        share = len(dealt) // self.ranks
        for rank, block in enumerate(blocks):
            block += [members[place] for place in dealt[rank * share : (rank + 1) * share] if place is not None]
            block += [None] * (size - len(block))
        return [row for block in blocks for row in block]

    def expect_rollout(self, rollout: int, arrived: Mapping[tuple[int, int], Any]) -> None:
        """The check that exactly the plan's completions arrived (`BatchDrift`), with receipts (`CannotAttach`)."""
        if not self.receipts:
            raise CannotAttach({"arrival": "no training worker has its orders: the trainer's start was not followed"})
        self.hold_settings(rollout)
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
                "completions too many; nothing stands in for a missing one",
            )

    # ---- the clock and checkpoints

    def other_ranks_of(self, folder: Path) -> str | None:
        """The reason why the checkpoint in `folder` cannot be loaded on another number of ranks; None: it can."""
        return self.other_ranks

    def rollouts(self) -> int:
        """Rollouts of the run: what the framework counts as training steps."""
        return self.plan.total_rollouts

    def save(self, folder: Path, rollouts_done: int, **more: int) -> None:
        """The plan's place, saved first: what is complete in the native checkpoint is here, whenever it is killed."""
        steps = checkpoints.steps_before(self.plan, rollouts_done)
        prompts = self.request.prompts
        saved = checkpoints.state(self.plan, steps, ranks=self.shards, prompts=prompts, rollouts=rollouts_done, **more)
        checkpoints.write(folder, saved)

    def begin(self, trainer: object, folder: Path | None, newest: Path | None) -> Mapping[str, Any]:
        """The start of training. folder: of the checkpoint to resume from; None: there is none. newest: the newest
        finished checkpoint, also where the run does not resume. What `save` remembered, and nothing without a
        checkpoint; what differs and may is told, and so is an earlier ledger that is set aside.

        Raises `CannotAttach` unless the checkpoint continues this plan, and where training has begun before: the
        framework counts its steps from the start again, the plan is at its end. Raises `LedgerError` where the run
        starts anew on the ledger of one that could go on.
        """
        if self._begun:
            raise CannotAttach({"begun": "fit() has begun since wrap, and counts from the start again: wrap once more"})
        saved: Mapping[str, Any] = {}
        if folder is not None:
            saved = self._resume(trainer, folder)
        elif self.orders.ledger is not None:
            note = new_start.make_way(self.orders.ledger, newest)
            checkpoints.tell(trainer, [] if note is None else [note])
        self._begun = True
        return saved

    def _resume(self, trainer: object, folder: Path) -> Mapping[str, Any]:
        checkpoints.check_files(folder)
        resumed = checkpoints.resume(
            checkpoints.read(folder),
            self.plan,
            where=str(folder),
            ranks=self.shards,
            other_ranks=self.other_ranks_of(folder),
            request=self.request,
        )
        checkpoints.tell(trainer, resumed.notes)
        return resumed.saved


def merged(outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of several updates as one over as many mini-batches gives them: lists."""
    result: dict[str, Any] = {}
    for output in outputs:
        for name, value in output.items():
            result.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return result

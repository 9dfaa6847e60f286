"""In the driver's process: which prompts a rollout has, what each optimizer step trains, and on which worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from batchbridge.kit import Request, group_advantages
from batchbridge.kit.step_driver import RolloutRows, StepDriver
from batchbridge.kit.workers import Orders

FILLER = -1
"""The prompt of a row that is not a completion: it fills a worker's share and trains nothing."""


class Place(NamedTuple):
    """Where a completion stands in the run. An answer that is sent to a worker has it in its attribute `place`.

    position: of the prompt in its rollout.
    """

    step: int
    rollout: int
    turn: int
    position: int


def placed(answer: Any, place: Place) -> Any:
    """A copy of an answer that knows its place."""
    copy = dataclasses.replace(answer)
    object.__setattr__(copy, "place", place)  # answers are frozen
    return copy


class Labelled:
    """The driver's own steps, with every completion's place: for modes that change nothing."""

    def __init__(self, trainer: Any) -> None:
        self._native, self._samples, self._step = trainer.parts, trainer.settings["samples"], 0

    def parts(self, answers: Sequence[Any], rollout: int, turn: int) -> Iterator[list[Any]]:
        """In place of `Driver.parts`."""
        index = {id(answer): number for number, answer in enumerate(answers)}
        for part in self._native(answers, rollout, turn):
            yield [
                placed(answer, Place(self._step, rollout, turn, index[id(answer)] // self._samples)) for answer in part
            ]
            self._step += 1


class Planned(StepDriver):
    """The plan's rollouts and steps, in place of the driver's own."""

    other_ranks = "pocketray keeps no checkpoints"

    def __init__(self, trainer: Any, request: Request, orders: Orders) -> None:
        super().__init__(request, orders)
        self._trainer = trainer

    @property
    def ranks(self) -> int:
        """The workers."""
        return len(self._trainer.workers)

    @property
    def rows_per_micro_batch(self) -> int | None:
        """Any number: a worker's last micro-batch may be smaller."""
        return None

    @property
    def forward_rows(self) -> int | None:
        """Any number, as above."""
        return None

    def choose(self, rollout: int) -> list[int]:
        """In place of `Driver.choose`."""
        return list(self.plan.rollout(rollout).prompts)

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """In place of `Driver.advantages`."""
        return group_advantages([rewards], self.request.spec.advantage)[0]

    def parts(self, answers: Sequence[Any], rollout: int, turn: int) -> Iterator[list[Any]]:
        """In place of `Driver.parts`: all passes of the plan in the driver's first one, none in the others."""
        if turn:
            return
        group = self.plan.completions_per_prompt
        found = {(number // group, answer.sample): answer for number, answer in enumerate(answers)}
        self.expect_rollout(rollout, found)
        rows = RolloutRows(rollout, {place: len(one.ids) + len(one.tokens) for place, one in found.items()})
        for step in self.steps_of(rollout):
            of_step = Place(step.index, rollout, step.members[0].pass_index, FILLER)
            yield [
                _filler(answers[0], of_step) if row is None else placed(found[row], of_step._replace(position=row[0]))
                for row in self.step_rows(step, rows)
            ]


def _filler(answer: Any, place: Place) -> Any:
    return placed(dataclasses.replace(answer, prompt=FILLER, mask=[0] * len(answer.mask), advantage=0.0), place)

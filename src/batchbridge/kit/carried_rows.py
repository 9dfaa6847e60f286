"""The columns that rows carry to their loss in batches of verl's form (EasyR1's, too): digests by row, from
where advantages are computed to where rows are sent, and in the process that trains them.

A batch has columns by name: padded tensors, or nested ones. Knows no framework; imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.row_digests import InputObjection, RowDigests, UnsentRows, digests_of, input_objection
from batchbridge.kit.step_driver import RolloutRows, StepDriver
from batchbridge.kit.workers import TrainedRow


def carried(data: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The columns `names` of each row of a batch, without padding; those that are there. Of tokens what is attended,
    of the others what the response has."""
    names = [name for name in names if name in data.keys()]  # noqa: SIM118 - a TensorDict iterates over its rows
    for row in range(len(data[names[0]]) if names else 0):
        length = None
        columns = {}
        for name in names:
            values = data[name][row]
            if name == "input_ids" and not data[name].is_nested:
                values = values[data["attention_mask"][row].bool()]
            elif not data[name].is_nested:
                length = response_length(data, row) if length is None else length
                values = values[:length]
            columns[name] = values
        yield columns


def response_length(data: Any, row: int) -> int:
    """Tokens of the response of one row."""
    responses = data["responses"]
    if responses.is_nested:
        return len(responses[row])
    return int(data["attention_mask"][row, -responses.shape[1] :].sum())


def told_by_batch(data: Any, names: Sequence[str], positions: Iterable[Any], samples: Iterable[Any]) -> RowDigests:
    """The digests of a batch's rows. positions, samples: of each row."""
    marks = zip(positions, samples, carried(data, names), strict=True)
    return {(int(position), int(sample)): digests_of(columns) for position, sample, columns in marks}


class ComputedRows:
    """The rows of a rollout in the trainer's process, from where a function gave them their advantages, the last of
    their columns, to where they are sent. names: of the columns of which digests are made."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._unsent = UnsentRows()

    def computed(self, made: Any) -> None:
        """Takes down what rows carry that have all their columns. made: a batch with columns of tensors (`batch`) and
        of others (`non_tensor_batch`); one whose rows are not told apart is of another trainer."""
        marks = made.non_tensor_batch
        if POSITION in marks and SAMPLE in marks:
            self._unsent.computed(told_by_batch(made.batch, self._names, marks[POSITION], marks[SAMPLE]))

    def require(self, data: Any, positions: Iterable[Any], samples: Iterable[Any], step: int) -> RowDigests:
        """The check (`BatchDrift` at `step`) that a batch which is sent is what it was when its advantages were
        computed. Returns its digests."""
        digests = told_by_batch(data, self._names, positions, samples)
        self._unsent.require(digests, step)
        return digests


def compute_advantage_told(patches: Patches, module: str, names: Sequence[str]) -> ComputedRows:
    """The rows of a rollout, from where a module's function `compute_advantage` gave them the last of their columns.
    names: see `ComputedRows`."""
    rows = ComputedRows(names)

    def compute_advantage(*arguments: Any, **options: Any) -> Any:
        made = native(*arguments, **options)
        rows.computed(made)
        return made

    what, why = "what its rows carry is digested", "advantages of the spec"
    native = patches.set(sys.modules[module], "compute_advantage", compute_advantage, what=what, why=why)
    return rows


def row_objections(
    told: RowDigests | None,
    data: Any,
    rows: Iterable[TrainedRow],
    names: Sequence[str],
) -> dict[int, InputObjection]:
    """The objections to rows of a batch that do not carry what the trainer's process made digests of, by their place.
    told: None, where it made none."""
    if not told:
        return {}
    columns = list(carried(data, names))
    return {
        row.index: why
        for row in rows
        if (why := input_objection(told.get((row.position, row.sample), {}), digests_of(columns[row.index]), row.named))
        is not None
    }


def scored(batch: Mapping[str, Any], order: Iterable[int]) -> list[list[Any]]:
    """Rewards, masks and advantages of a batch's rows in an order, of the tokens of each."""
    rows = [*order]
    return [[batch[name][row] for row in rows] for name in ("token_level_rewards", "response_mask", "advantages")]


def rewrite_advantages(batch: Any, rows: RolloutRows, driver: StepDriver) -> None:
    """Holds a rollout's advantages (`BatchDrift`), and puts those that the spec rules in place of the framework's own;
    nothing where no rule recomputes them. See `HeldAdvantages`.

    batch: with the columns that `scored` reads. rows: where each completion lies in it.
    """
    if not driver.held_advantages.looks:
        return
    import torch

    order = [rows.places[row] for row in rows.costs]
    rewards = driver.held_advantages.hold_tokens(scored(batch, order), driver.generated_at(rows.index))
    if (flat := driver.held_advantages.replacing(rewards)) is None:
        return
    values = torch.zeros_like(batch["advantages"])
    for place, value in zip(order, flat, strict=True):
        values[place] = value * batch["response_mask"][place]
    batch["advantages"] = values


def hold_sent(
    computed: ComputedRows,
    advantages: HeldAdvantages,
    batch: Any,
    positions: Sequence[Any],
    samples: Sequence[Any],
    step: int,
) -> RowDigests:
    """The check (`BatchDrift` at `step`) of a whole rollout of a run that is not enforced, whose rows are about to be
    sent: what they carry since their advantages were computed, and these themselves. Returns the digests."""
    digests = computed.require(batch, positions, samples, step)
    if advantages.looks:
        places = sorted(
            (int(at), int(sample), row) for row, (at, sample) in enumerate(zip(positions, samples, strict=True))
        )
        advantages.hold_tokens(scored(batch, (row for _, _, row in places)), step)
    return digests

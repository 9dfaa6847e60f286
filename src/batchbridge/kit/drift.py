"""The comparison of a recorded optimizer step with the plan. Knows no framework."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from batchbridge.errors import BatchDrift
from batchbridge.kit.allowing import OWN_TERM
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.stock_run import StockMembership
from batchbridge.meaning.weights import Row, token_weights

WEIGHT_TOLERANCE = 1e-6
"""Relative difference at which a weight that was read off a formula departs from the canonical one: float32 divides to
about 1e-7. A measured weight brings its own tolerance (`measuring.Measured.tolerance`)."""


WAYS_ON_WITH_TERM = (
    f'take it out of the loss that is returned, or accept a term of your own with allow=("{OWN_TERM}",), which ends '
    "this comparison alone"
)
"""The ways on from a loss of another value, as the end of a sentence."""


class SeenRow(NamedTuple):
    """One completion of an optimizer step as it was trained.

    prompt: an index, or what `plan.members_are` says. tokens: response tokens. weight: of one of them; None: nothing
    shows it. departure, tolerance, loss, loss_size: see `measuring.Measured`. micro_batch: its rank, and its number.
    """

    rollout: int
    pass_index: int
    prompt: int
    sample: int
    tokens: int
    weight: float | None
    departure: float = 0.0
    tolerance: float = WEIGHT_TOLERANCE
    loss: float = 0.0
    loss_size: float = 0.0
    micro_batch: tuple[int, int] = (0, 0)


LossValues = Mapping[tuple[int, int], float]
"""(rank, number of the micro-batch) -> the value of its loss, in the unit of the weights (`measuring.Tap.values`)."""


def compare_with_plan(
    plan: Plan,
    step: int,
    rows: Sequence[tuple[Any, ...]],
    objections: Sequence[str] = (),
    values: LossValues = MappingProxyType({}),
) -> None:
    """The check (`BatchDrift`) that the rows of a step are those of the plan.

    rows: the fields of `SeenRow`, of all ranks. objections: what a rank saw between backward and the optimizer (see
    `measuring.Witness`), or in place of its rows; one of an `aspect` of its own (`optimizer_groups`) names it.
    """
    seen = [SeenRow(*row) for row in rows]
    planned = plan.step(step).members
    want: Counter[tuple[int, ...]] = Counter(member[:4] for member in planned)
    have: Counter[tuple[int, ...]] = Counter(row[:4] for row in seen)
    if want != have:
        missing, extra = list((want - have).elements()), list((have - want).elements())
        prompts_of = [{(rollout, prompt) for rollout, _, prompt, _ in side} for side in (want, have)]
        aspect = "order" if prompts_of[0] != prompts_of[1] else "membership"
        raise BatchDrift(
            step,
            aspect,
            f"{len(want - have)} of {len(planned)} completions differ; planned (rollout, pass, {plan.members_are}, "
            f"sample) {missing[:3] or 'nothing more'}, trained {extra[:3] or 'nothing instead'}",
        )
    _compare_weights(plan, step, seen, objections, values)


def compare_with_stock(
    stock: StockMembership,
    plan: Plan,
    step: int,
    rows: Sequence[tuple[Any, ...]],
    objections: Sequence[str] = (),
    values: LossValues = MappingProxyType({}),
) -> None:
    """The check (`BatchDrift`) that the rows of an unwrapped run's step are what its own configuration says: their
    membership as far as it is known before (`StockMembership`), their weights as in `compare_with_plan`."""
    seen = [SeenRow(*row) for row in rows]
    found = stock.departure(step, [row[:4] for row in seen])
    if found is not None:
        raise BatchDrift(step, *found)
    _compare_weights(plan, step, seen, objections, values)


def _compare_weights(
    plan: Plan, step: int, seen: Sequence[SeenRow], objections: Sequence[str], values: LossValues
) -> None:
    """The check (`BatchDrift`) that nothing speaks against a step, that its rows weigh what the plan says, and that the
    losses of its micro-batches are worth what their rows' are."""
    if objections:
        raise BatchDrift(step, getattr(objections[0], "aspect", "gradient"), objections[0])
    ordered = sorted(seen, key=lambda row: row[:5])
    members = [Row(tokens=row.tokens, group=(row.rollout, row.prompt)) for row in ordered]
    weights = token_weights(plan.spec.loss.policy, members)
    for row, weight in zip(ordered, weights, strict=True):
        who = f"{plan.members_are} {row.prompt} sample {row.sample}"
        if math.isinf(row.departure):
            raise BatchDrift(
                step,
                "weights",
                f"the gradient at the log-probabilities of {who} is not finite: a reward is not, or the run has "
                "diverged, and its log-probabilities or their ratios have overflowed",
            )
        if row.departure > row.tolerance:
            raise BatchDrift(
                step,
                "weights",
                f"the gradient at the log-probabilities of {who} is not the one that the objective and the "
                f"planned loss mask give: it differs by {row.departure:.2g} of its largest value",
            )
        if not row.tokens or row.weight is None:
            continue
        if not math.isclose(row.weight, float(weight), rel_tol=row.tolerance):
            raise BatchDrift(
                step,
                "weights",
                f"a response token of {who} weighs {row.weight:.9g}, {row.weight / float(weight):.6g} times what "
                f"the plan says: {float(weight):.9g} = {weight} ({plan.spec.loss.policy.aggregation})",
            )
    for micro_batch, value in values.items():
        if (why := _value_objection(micro_batch, value, ordered, [float(weight) for weight in weights])) is not None:
            raise BatchDrift(step, "loss", why)


def _value_objection(
    micro_batch: tuple[int, int], value: float, rows: Sequence[SeenRow], weights: Sequence[float]
) -> str | None:
    """The objection to the value of a micro-batch's loss, which its tokens' losses, so weighed, should add up to."""
    mine = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row.micro_batch == micro_batch]
    expected = math.fsum(weight * row.loss for row, weight in mine)
    size = math.fsum(weight * row.loss_size for row, weight in mine if row.tokens)
    off, tolerance = value - expected, max((row.tolerance for row, _ in mine), default=0.0)
    if abs(off) <= tolerance * size or math.isinf(size):
        return None
    if math.isnan(value):
        return f"{_named(micro_batch)} has a loss that is not a number, or not the one that was differentiated"
    return (
        f"{_named(micro_batch)} has a loss of {value:.9g}, and its tokens' losses add up to {expected:.9g} by the "
        f"plan's weights: {off:.3g} of it comes from something that changes no gradient at the log-probabilities, a "
        f"factor on the value or an added term; {WAYS_ON_WITH_TERM}"
    )


def _named(micro_batch: tuple[int, int]) -> str:
    rank, number = micro_batch
    return f"micro-batch {number} of the step on rank {rank}"

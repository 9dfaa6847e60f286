"""The comparison of a recorded optimizer step with the plan. Knows no framework."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from batchbridge.errors import BatchDrift
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.weights import Row, token_weights

WEIGHT_TOLERANCE = 1e-6
"""Relative difference at which a weight that was read off a formula departs from the canonical one: float32 divides to
about 1e-7. A measured weight brings its own tolerance (`measuring.Measured.tolerance`)."""


class SeenRow(NamedTuple):
    """One completion of an optimizer step as it was trained.

    prompt: an index, or what `plan.members_are` says. tokens: response tokens. weight: of one of them; None: nothing
    shows it. departure, tolerance: see `measuring.Measured`.
    """

    rollout: int
    pass_index: int
    prompt: int
    sample: int
    tokens: int
    weight: float | None
    departure: float = 0.0
    tolerance: float = WEIGHT_TOLERANCE


def compare_with_plan(plan: Plan, step: int, rows: Sequence[tuple[Any, ...]], objections: Sequence[str] = ()) -> None:
    """The check (`BatchDrift`) that the rows of a step are those of the plan.

    rows: the fields of `SeenRow`, of all ranks. objections: what a rank saw between backward and the optimizer (see
    `measuring.Witness`), or in place of its rows.
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
    if objections:
        raise BatchDrift(step, "gradient", objections[0])
    ordered = sorted(seen, key=lambda row: row[:5])
    members = [Row(tokens=row.tokens, group=(row.rollout, row.prompt)) for row in ordered]
    for row, weight in zip(ordered, token_weights(plan.spec.loss.policy, members), strict=True):
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

"""Holding a recorded optimizer step against the plan. Knows no framework."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from batchbridge.attach import BatchDrift
from batchbridge.plan import Plan
from batchbridge.weights import Row, token_weights

WEIGHT_TOLERANCE = 1e-6
"""Relative difference at which an applied weight departs from the canonical one: float32 divides to about 1e-7."""


def compare_with_plan(plan: Plan, step: int, rows: Sequence[tuple[int, int, int, int, int, float]]) -> None:
    """Raises `BatchDrift` where the rows of a step depart from the plan.

    A row is (rollout, pass, prompt, sample, response tokens, weight of one of them), where a prompt is what
    `plan.members_are` says.
    """
    planned = plan.step(step).members
    want: Counter[tuple[int, ...]] = Counter(member[:4] for member in planned)
    have: Counter[tuple[int, ...]] = Counter(row[:4] for row in rows)
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
    ordered = sorted(rows)
    members = [Row(tokens=row[4], group=(row[0], row[2])) for row in ordered]
    for row, weight in zip(ordered, token_weights(plan.spec.loss.policy, members), strict=True):
        if row[4] and not math.isclose(row[5], float(weight), rel_tol=WEIGHT_TOLERANCE):
            raise BatchDrift(
                step,
                "weights",
                f"a response token of {plan.members_are} {row[2]} sample {row[3]} weighs {row[5]:.9g}, the plan says "
                f"{float(weight):.9g} = {weight} ({plan.spec.loss.policy.aggregation})",
            )

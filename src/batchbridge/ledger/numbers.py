"""Numbers that sum up one optimizer step: its size, and how far its measured weights are from the planned ones.

Trainers log them (`wrap(report_to="trainer")`), and `ledger verify` recomputes the drift; both are made here, from the
same columns of the ledger.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from batchbridge.meaning.spec import LossTerm
from batchbridge.meaning.weights import Row, token_weights


class PaddingTokens(NamedTuple):
    """Tokens of one rank's optimizer step with a token budget.

    computed: rows times their padded length, over its micro-batches, filler rows included. unsaved: the same where each
    of its completions is padded to the rank's longest prompt and longest response, and there are no fillers.
    """

    computed: int
    unsaved: int


class StepNumbers(NamedTuple):
    """One optimizer step, all ranks together.

    completions: those that the step trains. response_tokens: of them. drift: see `drift_of`. computed, unsaved: see
    `PaddingTokens`; None where nobody knows.
    """

    step: int
    completions: int
    response_tokens: int
    drift: float | None
    computed: int | None = None
    unsaved: int | None = None

    @classmethod
    def of(
        cls, step: int, term: LossTerm | None, rows: Sequence[tuple[Any, ...]], paddings: Sequence[PaddingTokens] = ()
    ) -> StepNumbers:
        """The numbers of one step's rows. term: None where nobody knows the loss. rows: (rollout, prompt, response
        tokens, measured weight) of every completion."""
        known = [padding for padding in paddings if padding.unsaved]
        return cls(
            step,
            len(rows),
            sum(row[2] for row in rows),
            None if term is None else drift_of(term, rows),
            sum(padding.computed for padding in known) if known else None,
            sum(padding.unsaved for padding in known) if known else None,
        )


def drift_of(term: LossTerm, rows: Iterable[tuple[Any, ...]]) -> float | None:
    """The largest relative deviation of a measured weight from the planned one, over the completions of a step.

    rows: (rollout, prompt, response tokens, measured weight). The planned weight is that of `term` at the scope of the
    optimizer step, as `wrap` enforces it. A completion without tokens, and one whose gradient shows no weight (None),
    say nothing; one that no single weight describes (NaN) deviates infinitely. None: no completion says anything, or
    the term is not complete.
    """
    given = list(rows)
    whole = dataclasses.replace(term, denominator_scope="optimizer_step")
    try:
        planned = token_weights(whole, [Row(tokens=row[2], group=row[:2]) for row in given])
    except (ValueError, ArithmeticError):  # the latter: numbers of tokens that no run has
        return None
    found: list[float] = []
    for row, weight in zip(given, planned, strict=True):
        measured = row[3]
        if row[2] and measured is not None and weight:
            try:
                off = abs(measured / float(weight) - 1.0)
            except ArithmeticError:  # beyond floats
                off = math.inf
            found.append(off if math.isfinite(off) else math.inf)
    return max(found, default=None)

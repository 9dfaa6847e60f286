"""Whether a recorded optimizer step trained the completions that the plan has in it.

Its own file: summaries and `ledger verify` ask it, which know nothing of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from batchbridge.ledger.records import KEY
from batchbridge.meaning.plan import Completion, Plan

LARGEST = 1 << 20
"""Completions of a rollout or optimizer step up to which the plan's are computed again."""


def is_small(plan: Plan) -> bool:
    """Whether the completions of a step are computed at once."""
    return max(plan.completions_per_step, plan.prompts_per_rollout * plan.completions_per_prompt) <= LARGEST


def as_planned(records: Iterable[Mapping[str, Any]], members: Iterable[Completion]) -> bool:
    """Whether the records, of one rank each or of all together, have just these completions, each as often.

    members: of the plan's step, in any order.
    """
    trained = (row for record in records for row in zip(*(record[name] for name in KEY), strict=True))
    return Counter(trained) == Counter(map(tuple, members))

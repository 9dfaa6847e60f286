"""Filters that keep a group by its mean score, where the schema asks whether its scores are all equal.

Source: openrlhf 0.11.2 SamplesGenerator._generate_vllm, EasyR1 RayPPOTrainer._make_batch_data: both bounds exclusive,
of scores that are 0 or 1 (openrlhf's documentation says so of them; EasyR1's range lies between). Two adapters read
and write it, and nothing else has such a range.

Its own file: two adapters import it.
"""

from __future__ import annotations

from typing import Literal

ALIKE = (0.0, 1.0)
"""The range that keeps all groups of scores 0 and 1 but those that are all alike, whatever their size."""


def group_filter(low: float, high: float, completions: int) -> Literal["replace_zero_variance", "custom"]:
    """`rollout.group_filter` of such a filter with replacements, for groups of so many `completions`.

    custom: the range drops groups of different scores, or keeps some of equal ones.
    """
    keeps_one, drops_none = 0 <= low < 1 / completions, 1 - 1 / completions < high <= 1
    return "replace_zero_variance" if keeps_one and drops_none else "custom"

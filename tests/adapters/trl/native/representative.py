"""Which cells of a matrix of cases run by default.

A loss type, a split and the presence of a KL term act on a gradient in different places, so what they do together is
found by pairs: on the newest TRL every loss type runs with every split, with and without a KL term by turns; on an
earlier one every value runs once. `BATCHBRIDGE_WHOLE_MATRIX=1` asks for every cell (`nox -s trl_full`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from batchbridge_trl.settings import NEWEST

WHOLE = os.environ.get("BATCHBRIDGE_WHOLE_MATRIX") == "1"


def cells(first: Iterable[Any], second: Iterable[Any], third: Iterable[Any] = (None,)) -> list[tuple[Any, Any, Any]]:
    """Cells of the product of three axes: all, every pair of the first two, or every value."""
    axes = list(first), list(second), list(third)
    if WHOLE:
        return list(itertools.product(*axes))
    if version("trl") == NEWEST:
        pairs = itertools.product(enumerate(axes[0]), enumerate(axes[1]))
        return [(a, b, axes[2][(i + j) % len(axes[2])]) for (i, a), (j, b) in pairs]
    return once(*axes)


def once(first: Iterable[Any], second: Iterable[Any], third: Iterable[Any] = (None,)) -> list[tuple[Any, Any, Any]]:
    """Cells that have every value of each axis at least once; all of them where the whole matrix is asked for."""
    axes = list(first), list(second), list(third)
    if WHOLE:
        return list(itertools.product(*axes))
    # The third axis turns with every cell, and once more with every round of the first.
    return [
        (axes[0][i % len(axes[0])], axes[1][i % len(axes[1])], axes[2][(i + i // len(axes[0])) % len(axes[2])])
        for i in range(max(map(len, axes)))
    ]

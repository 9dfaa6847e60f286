"""The differences between two configurations as users have them: each is read first, where one version is meant under
one version.

Its own file: releases are compared with each other, and so cannot be asked by what compares.
"""

from __future__ import annotations

from typing import Any

from batchbridge.comparing.comparison import Comparison
from batchbridge.comparing.differences import compare
from batchbridge.comparing.releases import settled_alike
from batchbridge.contract.reading import Reading
from batchbridge.reading.read import read


def diff(a: object, b: object, *, world_size: int | None = None, dataset_size: int | None = None) -> Comparison:
    """The differences in meaning between two configurations, the largest effect first.

    Args:
        a: A `Reading`, or what `read` takes: a path, a dict, a list of arguments, a config or trainer object.
        b: The same, of the other side.
        world_size: Devices that train the policy, of each side that is not a `Reading`.
        dataset_size: Prompts in the dataset, of each side that is not a `Reading`.

    Returns:
        The differences; without a specification on both sides only the verdicts.

    Raises:
        TypeError: A side has a type that `read` does not take.
        ValueError: A size is below 1.
    """
    sizes: dict[str, Any] = {"world_size": world_size, "dataset_size": dataset_size}
    sides = [(side, side if isinstance(side, Reading) else read(side, **sizes), sizes) for side in (a, b)]
    return compare(*settled_alike(sides))

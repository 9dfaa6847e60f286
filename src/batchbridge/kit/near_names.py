"""Known names near wrong ones, for the fixes of a finding.

Its own file: adapters and plugins import it by this name.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache

MOST_NAMES = 64
"""The most wrong names of one input that are compared with the known ones: each costs time, a file may hold tens of
thousands, and who reads the suggestions reads the first. The others are named anyway."""

MOST_CHARACTERS = 200
"""The length of a name that is longer than any known one by so much that none is near."""

LEAST_OF_LAST = 0.6
"""`difflib`'s similarity of the last names of two dotted ones, below which neither is near the other."""


def near_names(wrong: Iterable[str], known: Iterable[str], cutoff: float) -> Mapping[str, list[str]]:
    """The two known names nearest to each of the first `MOST_NAMES` wrong ones, nearest first; none for the others.

    Of a dotted name those of its own group, and of the same last name elsewhere, go before all others.
    cutoff: `difflib`'s similarity, 0 to 1, below which a name is not near.
    """
    compared = dict.fromkeys(itertools.islice(wrong, MOST_NAMES))
    if not compared:
        return {}
    names = tuple(known)
    return {name: list(_nearest(name, names, cutoff)) if len(name) <= MOST_CHARACTERS else [] for name in compared}


@lru_cache(maxsize=MOST_NAMES)
def _nearest(name: str, names: tuple[str, ...], cutoff: float) -> Sequence[str]:
    ratio = _ratio_to(name, cutoff)
    group, dot, last = name.rpartition(".")
    beside = [one for one in names if one.startswith(f"{group}.") or one.endswith(f".{last}")] if dot else []
    for some in filter(None, (beside, names)):
        near = heapq.nlargest(2, ((alike, one) for one in some if (alike := ratio(one)) >= cutoff))
        # A long group that both have makes any two names alike: what stands behind it has to be near, too.
        of_last = _ratio_to(last, 0.0)
        if found := [one for _, one in near if of_last(one.rpartition(".")[2]) >= LEAST_OF_LAST]:
            return found
    return ()


@lru_cache(maxsize=2 * MOST_NAMES)
def _ratio_to(name: str, cutoff: float) -> Callable[[str], float]:
    """`difflib`'s similarity of names to one, -1 where it is below a cutoff. It remembers: the releases of a framework
    have most names in common."""
    import difflib  # most inputs have no wrong name

    matcher = difflib.SequenceMatcher(None, "", name)

    @cache
    def ratio(one: str) -> float:
        matcher.set_seq1(one)
        if matcher.real_quick_ratio() < cutoff or matcher.quick_ratio() < cutoff:
            return -1.0
        return matcher.ratio()

    return ratio

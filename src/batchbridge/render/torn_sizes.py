"""A size that does not come out even, read from the words of the finding that says so.

A module of its own: the first lines of a verdict ask for it, and draw no picture.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from batchbridge.meaning.findings import Finding
from batchbridge.render.findings import number

_MULTIPLE = re.compile(r"(?:not a|no) multiple of ")
_INTEGER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")
_WITH_UNIT = re.compile(r"(?<![\w.])(\d+) \(?(prompts|completions|groups)\b")


class TornSize(NamedTuple):
    """A size that is no multiple of another one. whole, part: the two numbers. unit: what both count, in the plural.
    parts: what one part is called, in the plural."""

    whole: int
    part: int
    unit: str
    parts: str

    @property
    def rest(self) -> int:
        """Members of the torn part."""
        return self.whole % self.part

    @property
    def said(self) -> str:
        """The picture in words."""
        full, rest = self.whole // self.part, self.rest
        return f"{number(full)} whole {self.parts if full != 1 else self.parts.removesuffix('s')}, and {rest} left over"


def torn_size(finding: Finding) -> TornSize | None:
    """The size that a finding is about, from its own words: `... = 512 (completions per rollout) is not a multiple of
    num_generations = 14 (completions per prompt)`; None where it says no two such numbers."""
    halves = _MULTIPLE.split(finding.message, maxsplit=1)
    if len(halves) != 2:
        return None
    before, behind = halves[0], re.split(r"[,:;]", halves[1], maxsplit=1)[0]
    heads, tails = list(_WITH_UNIT.finditer(before)), [int(one[1]) for one in _INTEGER.finditer(behind)]
    if not heads or not tails:
        return None
    whole, unit = int(heads[-1][1]), heads[-1][2]
    part = tails[-1] if " = " in behind or len(tails) == 1 else math.prod(tails) if " x " in behind else tails[0]
    if part < 2 or whole % part == 0:
        return None
    return TornSize(whole, part, unit, "groups" if "per prompt" in behind else "parts")

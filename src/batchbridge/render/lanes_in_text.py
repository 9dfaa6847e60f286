"""A run's lanes (`batchbridge.render.lanes`) as lines of text: bars of boxes, of which the next lane shows the filled
one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.meaning.spec import Spec
from batchbridge.render.lanes import lanes_of
from batchbridge.render.words import cells, padded

if TYPE_CHECKING:
    from batchbridge.render.lanes import PlanLane

WIDTH = 24
"""Columns of a bar."""
MOST = 6
"""Boxes that are drawn one by one."""
FILLED, LIGHT, CUT = "\u2588", "\u2591", "\u2502"
ASCII = str.maketrans({FILLED: "#", LIGHT: "-", CUT: "|"})
"""The same bars, for a terminal without these characters."""


def bars(spec: Spec, derived: Mapping[str, Any]) -> Iterator[str]:
    """`optimizer steps  ██████│░░░░░│░░░░░│░░░░░  4 steps, 128 completions each`, a line for each lane. Each bar is
    as wide as the filled box of the bar above stands for."""
    lanes = list(lanes_of(spec, derived))
    if len(lanes) < 2:
        return
    names = max(cells(lane.name) for lane in lanes)
    for lane, below in zip(lanes, [*lanes[1:], None], strict=True):
        yield f"{padded(lane.name, names)}  {_bar(lane, below)}  {lane.text}"


def _bar(lane: PlanLane, below: PlanLane | None) -> str:
    """A lane of many boxes is drawn without the cuts between them. Filled is what the lane below shows: all of it, or
    one box."""
    if below is None or not below.zooms or lane.boxes <= 1:
        return FILLED * WIDTH if below is not None else LIGHT * WIDTH
    if lane.boxes > MOST:
        return FILLED + CUT + LIGHT * (WIDTH - 2)
    return CUT.join(mark * size for mark, size in zip(_marks(lane.boxes), _sizes(lane.boxes), strict=True))


def _marks(boxes: int) -> Sequence[str]:
    return FILLED, *[LIGHT] * (boxes - 1)


def _sizes(boxes: int) -> Sequence[int]:
    """Columns of each box, the cuts between them left out."""
    free = WIDTH - (boxes - 1)
    return [free // boxes + (place < free % boxes) for place in range(boxes)]

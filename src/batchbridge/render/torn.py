"""A size that does not come out even, as a picture: whole parts in a row, the torn one in red, and it once more below,
with what it lacks."""

from __future__ import annotations

from batchbridge.contract.reading import Reading
from batchbridge.render.findings import count, number
from batchbridge.render.lanes import HEIGHT, MARGIN, WIDE, lanes_of, lanes_picture
from batchbridge.render.pictures import GAP, LINE, PALE, PALETTE, TORN, UNTRAINED, Picture
from batchbridge.render.torn_sizes import TornSize, torn_size

_NARROWEST = 20
"""Pixels of a part."""
_MOST_CELLS = 64
"""Members of the torn part that are drawn one by one."""


def sizes_picture(reading: Reading, width: int = WIDE) -> str | None:
    """The picture of a reading's sizes: what is torn in red where an error says so, else its lanes; None: it says none
    of either."""
    errors = (one for one in reading.findings if one.severity == "error")
    torn = next((size for one in errors if (size := torn_size(one)) is not None), None)
    if torn is not None:
        return torn_picture(torn, width)
    lanes = () if reading.spec is None or reading.counts_itself else tuple(lanes_of(reading.spec, reading.derived))
    return lanes_picture(lanes, width) if lanes else None


def torn_picture(torn: TornSize, width: int = WIDE) -> str:
    """The picture, `width` pixels wide."""
    whole, part, unit, parts = torn
    rest, full = torn.rest, torn.whole // torn.part
    picture = Picture(f"{count(whole, unit.removesuffix('s'))} in {parts} of {part}: {torn.said}")
    inside, picture.y = width - 2 * MARGIN, 0
    picture.y = _heading(picture, width, f"{number(whole)} {unit}", f"in {parts} of {part}: {torn.said}")
    most = max((inside + GAP) // (_NARROWEST + GAP), 4)
    shown = full if full + 1 <= most else most - 4
    cells = shown + 1 + (2 if full > shown else 0)
    wide = (inside - GAP * (cells - 1)) / cells
    left: float = MARGIN
    for place in range(shown):
        picture.box(left, picture.y, wide, HEIGHT, PALETTE[0])
        if 8 * len(str(part)) < wide:
            picture.text(left + wide / 2, picture.y + HEIGHT / 2 + 4, str(part), size=11, anchor="middle")
        left += wide + GAP
        if place == shown - 1 and full > shown:
            picture.box(left, picture.y, 2 * wide + GAP, HEIGHT, UNTRAINED)
            words = f"+{number(full - shown)}"
            picture.text(left + wide, picture.y + HEIGHT / 2 + 4, words, size=11, anchor="middle")
            left += 2 * (wide + GAP)
    picture.box(left, picture.y, wide, HEIGHT, UNTRAINED, kind="missing")
    picture.box(left, picture.y, max(wide * rest / part, 3), HEIGHT, TORN)
    top, from_left, to_left = picture.y + HEIGHT + 2, left, left + wide
    picture.y = top - 2 + LINE - 2
    lacking = count(part - rest, unit.removesuffix("s"))
    missing = f"{rest} of {part}: {lacking} {'is' if part - rest == 1 else 'are'} missing"
    below = _heading(picture, width, f"the last {parts.removesuffix('s')}", missing, draw=False)
    ends = [(from_left, top), (to_left, top), (MARGIN + inside, below), (MARGIN, below)]
    picture.area(ends, PALE)
    picture.y = _heading(picture, width, f"the last {parts.removesuffix('s')}", missing)
    drawn = part if part <= _MOST_CELLS and part * 5 <= inside else 1
    gap = GAP if drawn * 9 <= inside else 1
    wide = (inside - gap * (drawn - 1)) / drawn
    for place in range(drawn):
        left = MARGIN + place * (wide + gap)
        share = 1.0 if drawn > 1 and place < rest else 0.0 if drawn > 1 else rest / part
        if share < 1:
            picture.box(left, picture.y, wide, HEIGHT, UNTRAINED, kind="missing")
        if share:
            picture.box(left, picture.y, wide * share, HEIGHT, TORN)
    picture.y += HEIGHT + 6
    return picture.svg()


def _heading(picture: Picture, width: int, name: str, words: str, *, draw: bool = True) -> int:
    """The words above a row, on one line or two; where the row begins."""
    beside = MARGIN + 8 * len(name) + 10
    fits = beside + 6.4 * len(words) <= width - 2 * MARGIN
    below = picture.y + (LINE if fits else 2 * LINE - 6)
    if draw:
        picture.text(MARGIN, picture.y + LINE - 8, name, size=13, weight="bold")
        picture.text(beside if fits else MARGIN, below - 8, words, size=12)
    return below

"""Fragments of the page that answers while one types (`batchbridge.playground`): one picture as wide as the page has
room for, the ways out of an error beside it, and the rest folded away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.render import between, headline
from batchbridge.render.findings import count, number, one_line
from batchbridge.render.html import environment
from batchbridge.render.lanes import breadth, lanes_of, lanes_picture
from batchbridge.render.pictures import LINE, PALETTE, UNTRAINED, Picture
from batchbridge.render.sentences import meaning
from batchbridge.render.torn import torn_picture
from batchbridge.render.torn_sizes import torn_size

if TYPE_CHECKING:
    from batchbridge.comparing.comparison import Comparison
    from batchbridge.comparing.convert import Conversion
    from batchbridge.contract.reading import Reading
    from batchbridge.playground.same_number import SameNumber
    from batchbridge.reading.ways_out import WayOut
    from batchbridge.reports import Explanation

SMALL = 300
"""Pixels of the lanes beside a way out."""
KINDS = {"completions on each GPU": PALETTE[1], "prompts": PALETTE[0], "completions": PALETTE[2]}
"""The colour of a bar, by what its batch size counts."""


def answer(found: Explanation, width: int) -> str:
    """The meaning of a configuration: verdict, lanes, what is torn, ways out, findings, words."""
    reading = found.reading.supposed
    spec = reading.spec
    errors = [one for one in reading.findings if one.severity == "error"]
    torn = next((size for one in errors if (size := torn_size(one)) is not None), None)
    lanes = () if spec is None or reading.counts_itself else tuple(lanes_of(spec, reading.derived))
    ways = [(finding, [_way(way) for way in ways]) for finding, ways in found.ways_out]
    return _filled(
        "answer.html",
        found=found,
        reading=reading,
        lead=lead(found),
        errors=errors,
        others=[one for one in reading.findings if one.severity != "error"],
        torn=None if torn is None else torn_picture(torn, width),
        lanes=lanes_picture(lanes, width) if lanes else None,
        ways=ways,
        has_ways=[finding.code for finding, _ in ways],
        meaning=list(meaning(reading)),
        enforcement=None if spec is None else found.enforcement,
    )


def lead(found: Explanation) -> str:
    """The first sentence: the sizes of batches, or what is wrong."""
    reading = found.reading.supposed
    if reading.verdict != "valid" and reading.wrong:
        return one_line(reading.wrong[0].message)
    sizes = list(headline.lines(reading, headline.NOTHING_BESIDE, sizes=True, verbose=False))
    return f"{sizes[0]}." if sizes else ""


def brief(found: Explanation) -> str:
    """The verdict's reason in a few words: `512 completions in groups of 14: 36 whole groups, and 8 left over`."""
    torn = next((size for one in found.reading.supposed.wrong if (size := torn_size(one)) is not None), None)
    return lead(found) if torn is None else f"{number(torn.whole)} {torn.unit} in {torn.parts} of {torn.part}"


def _way(way: WayOut) -> dict[str, Any]:
    spec = way.reading.spec
    assert spec is not None, "a way out has been read"
    rollout, *below = tuple(lanes_of(spec, way.reading.derived))
    drawn = (rollout, *(lane for lane in below[:1] if lane.boxes > 1))
    sizes = (
        f"{count(way.devices, 'device')}",
        "" if way.completions_per_step is None else f"{count(way.completions_per_step, 'completion')} per step",
        "" if way.prompts_per_rollout is None else f"{count(way.prompts_per_rollout, 'prompt')} per rollout",
    )
    said = ", ".join(size for size in sizes if size)
    return {"text": way.fix.text, "changes": dict(way.fix.changes), "said": said, "lanes": lanes_picture(drawn, SMALL)}


def conversion(found: Conversion) -> str:
    """A configuration in another framework's form, and what is not kept."""
    problems = [problem.reason for problem in found.refused] or [one.message for one in found.source.wrong]
    texts = {} if found.written is None else dict(found.written.text)
    return _filled("conversion.html", found=found, texts=texts, problems=problems if found.written is None else [])


def differences(found: Comparison, width: int) -> str:
    """Two configurations, and their lanes one above the other."""
    sizes = [breadth(reading.spec) for reading in (found.a, found.b)]
    sides = [
        {"name": name, "reading": reading, "lead": _sizes(reading), "lanes": _of(reading, width, size / max(sizes))}
        for name, reading, size in zip("AB", (found.a, found.b), sizes, strict=True)
    ]
    return _filled("differences.html", found=found, verdict=between.verdict(found), sides=sides)


def _sizes(reading: Reading) -> str:
    return next(headline.lines(reading, headline.NOTHING_BESIDE, sizes=True, verbose=False), "")


def _of(reading: Reading, width: int, share: float) -> str | None:
    if reading.spec is None:
        return None
    return lanes_picture(tuple(lanes_of(reading.spec, reading.derived))[:2], width, share)


def side_by_side(rows: Sequence[SameNumber], number: int, group: int, devices: int, width: int) -> str:
    """The same number in every framework: a bar for the completions that one optimizer step trains on, and a table."""
    said = (rows, number, group, devices, width)
    return _filled("same.html", rows=rows, number=number, group=group, devices=devices, picture=same_picture(*said))


_BARS = 340
"""Pixels from the left where bars begin, where the picture has room for words beside them."""
_LEAST = 760
"""Pixels of a picture from which on it has."""


def same_picture(rows: Sequence[SameNumber], same: int, group: int, devices: int, width: int = 900) -> str:
    """The bars of `side_by_side`. same: the number that all of them have."""
    picture = Picture(f"The same batch size of {number(same)}: completions per optimizer step")
    head = f"batch size = {number(same)}, {count(group, 'completion')} per prompt, {count(devices, 'GPU')}"
    picture.text(2, picture.y - 4, head, size=13, weight="bold")
    picture.y += LINE
    beside = width >= _LEAST
    left = _BARS if beside else 2
    room = width - left - 170
    most = max((row.completions or 0 for row in rows), default=1) or 1
    for row in rows:
        bars = picture.y if beside else picture.y + 2 * LINE - 8
        picture.text(2, picture.y + 12, row.title, size=13, weight="bold")
        words = f"{row.setting}: {row.counts}"
        picture.text(2, picture.y + 28, words, size=11)
        long = max(room * (row.completions or 0) / most, 3)
        said = count(row.completions, "completion") if row.completions else "refused"
        if row.reason and row.completions:
            said += ", refused"
        picture.box(
            left, bars, long, 26, UNTRAINED if row.reason else KINDS.get(row.counts, PALETTE[7]), f"{row.title}: {said}"
        )
        picture.text(left + long + 8, bars + 18, said, size=12)
        picture.y = bars + 2 * LINE
    picture.y -= 8
    return picture.svg()


def _filled(template: str, **values: Any) -> str:
    return str(environment().get_template(template).render(values))

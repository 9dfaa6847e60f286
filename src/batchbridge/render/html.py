"""Readings and comparisons as pages: one file each, that loads nothing, runs nothing, and is read without a script.

Templates and style stand in `pages/`; a template is given the records themselves, and shows their values by the filters
of `environment`. Needs Jinja2, of the extra `html`; every value is escaped, and control characters are written out,
because a configuration's text may be anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge.render import between, findings, lanes, text
from batchbridge.render.ledger import figure
from batchbridge.render.sentences import behaviour, meaning
from batchbridge.render.text import clean, number, one_line

if TYPE_CHECKING:
    from jinja2 import Environment

    from batchbridge.comparing.comparison import Comparison
    from batchbridge.comparing.releases import ReleaseVerdicts
    from batchbridge.contract.enforcement import Enforcement
    from batchbridge.contract.reading import Provenance, Reading
    from batchbridge.ledger.comparing import LedgerDiff
    from batchbridge.ledger.summary import Figure, FigureRange, LedgerSummary
    from batchbridge.meaning.findings import Where
    from batchbridge.meaning.spec import Spec

    Points = Sequence[tuple[int, int, FigureRange]]

PAGES = Path(__file__).parent / "pages"
_FIGURES = (
    "completions_per_rollout",
    "completions_per_step",
    "completions_per_device_per_step",
    "optimizer_steps_per_rollout",
    "total_optimizer_steps",
)
"""Derived numbers that stand in large type."""
MOST_DRAWN = 128
"""Completions of a rollout that are drawn each by itself: a page stays below 500 kB."""
LONGEST = 400
"""Characters of a value; a chat template has thousands."""


def explanation(
    name: str,
    reading: Reading,
    enforcement: Enforcement | None = None,
    *,
    judged: ReleaseVerdicts | None = None,
    devices: tuple[int, ...] = (),
) -> str:
    """The page of a reading: its meaning, lanes, findings, fields with their origin, and what the framework does."""
    from batchbridge.meaning.spec import walk

    spec = reading.spec
    fields: dict[str, list[tuple[Any, ...]]] = {}
    for path, value, quantity in walk(spec) if spec is not None else ():
        fields.setdefault(path.rpartition(".")[0] or "beside", []).append((path, value, quantity))
    return _page(
        "explain.html",
        name=name,
        reading=reading,
        verdict=reading.verdict if judged is None else judged.verdict,
        judged=judged,
        devices=devices,
        meaning=list(meaning(reading)),
        lanes=_lanes_of(reading),
        plan=None if spec is None or reading.counts_itself else _plan(spec, reading.dataset_size),
        enforcement=None if spec is None else enforcement,
        fields=fields,
    )


def comparison(names: tuple[str, str], found: Comparison) -> str:
    """The page of a comparison: both meanings, ranked differences with their reasons, and what is none."""
    both = (found.a, found.b)
    most = max(lanes.breadth(reading.spec) for reading in both)
    sides = [
        {
            "name": side,
            "file": name,
            "reading": reading,
            "meaning": marked,
            "findings": reading.wrong,
            "lanes": _lanes_of(reading, lanes.breadth(reading.spec) / most),
        }
        for side, name, reading, marked in zip("AB", names, both, _apart(*both), strict=True)
    ]
    beside = {
        "settings outside the schema, not compared": found.not_compared,
        "not fixed by the configuration": found.left_open,
    }
    apart = [
        (f"{side}: {title}", points)
        for title, of_both in beside.items()
        for side, points in zip("AB", of_both, strict=True)
        if points
    ]
    counts = between.verdict(found).partition(": ")[2]
    return _page("diff.html", names=names, found=found, counts=counts, sides=sides, apart=apart)


def ledger(found: LedgerSummary) -> str:
    """The page of a run's ledger: its summary, each figure over the optimizer steps, and what it was to train."""
    from batchbridge.ledger.summary import FIGURES, series
    from batchbridge.meaning.derived import derive
    from batchbridge.meaning.spec import Spec
    from batchbridge.render import ledger as render

    last = found.starts[-1] if found.starts else {}
    try:
        spec = Spec.from_dict(last.get("spec", {}))
        derived = derive(spec, last.get("dataset_size"))
        drawn = _lanes(spec, derived)
    except (TypeError, ValueError, ArithmeticError):  # of another time, or of another hand
        drawn, derived = None, {}
    titles, ranks = render.ranks(found)
    resumed = [header["at_step"] for header in found.resumed]
    return _page(
        "ledger.html",
        name=found.folder,
        run=render.run(found),
        facts=list(render.facts(found)),
        digest=last.get("spec_digest"),
        charts=[
            _chart(one, points, resumed) for name, one in FIGURES.items() if (points := list(series(found.bins, name)))
        ],
        resumed=resumed,
        each=max((one.last - one.first + 1 for one in found.bins), default=1),
        derived=derived,
        lanes=drawn,
        rank_titles=titles,
        ranks=ranks,
        starts=found.starts,
    )


def ledgers(found: LedgerDiff, a: LedgerSummary, b: LedgerSummary) -> str:
    """The page of two runs' ledgers: the first step in which they differ, and in what; and each figure of both over the
    optimizer steps."""
    from batchbridge.ledger.summary import FIGURES, series
    from batchbridge.render import ledger as render

    both = {name: tuple(list(series(one.bins, name)) for one in (a, b)) for name in FIGURES}
    return _page(
        "ledger_diff.html",
        found=found,
        sides=[
            {"name": name, "folder": one.folder, "run": render.run(one), "facts": list(render.facts(one))}
            for name, one in (("A", a), ("B", b))
        ],
        charts=[
            {"of": FIGURES[name], **_of_both(FIGURES[name], points, others, found.step)}
            for name, (points, others) in both.items()
            if points and others
        ],
    )


def _of_both(of: Figure, points: Points, others: Points, differs: int | None) -> dict[str, Any]:
    from batchbridge.render import charts

    means = [[one.mean for _, _, one in side] for side in (points, others)]
    return {
        "svg": charts.over_steps(of, points, other=others, differs=differs),
        "ranges": [(name, min(side), max(side)) for name, side in zip("AB", means, strict=True)],
        "equal": means[0] == means[1],
    }


def _page(template: str, **values: Any) -> str:
    """A template of `pages/` filled."""
    style = (PAGES / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The only style that a browser takes: nothing that slipped into a page could bring its own.
    fixed = {"style": style, "style_hash": f"sha256-{digest}", "version": metadata.version("batchbridge")}
    return str(environment().get_template(template).render({**values, **fixed})) + "\n"


@cache
def environment() -> Environment:
    """The environment that templates are read and compiled by, once in a process. `safe` is said of our own style and
    pictures only: everything in these is escaped already."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def printable(value: object) -> object:
        """The form in which a template prints a value: without control characters, and never too long."""
        if isinstance(value, Markup):
            return value
        shown = str(value)
        return clean(shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}...")

    made = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    made.filters |= {
        "behaviour": behaviour,
        "counts": findings.counts,
        "figure": figure,
        "figures": _figures,
        "kind": findings.kind_of,
        "near": _near,
        "number": number,
        "numbers": text.numbers,
        "one_line": one_line,
        "origin": _origin,
        "place": _place,
        "short_origin": _short_origin,
        "short_name": _short_name,
        "value": _value,
        "whole": _whole,
        "who": text.who,
    }
    made.globals |= {"PHASES": text.PHASES, "NO_UNITS": text.NO_UNITS, "FOLLOWED": text.FOLLOWED}
    return made


def _value(value: object) -> str:
    return number(value) if type(value) is int else one_line(value)


def _whole(text: str) -> object:
    """A text of any length, and with its lines."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(clean(line)) for line in text.split("\n"))


def _short_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _place(at: Where | Provenance | None) -> str | None:
    """`recipe.yaml:12`."""
    return None if at is None else at.file if at.file is None or at.line is None else f"{at.file}:{at.line}"


def _near(where: Where) -> str:
    """A key, its value and its place, with the file's name alone: the whole path stands above."""
    return one_line(where if where.file is None else replace(where, file=_short_name(where.file)))


def _short_origin(origin: Provenance | None) -> str | None:
    """`recipe.yaml:12`, or the kind of origin."""
    if origin is None:
        return "schema"
    return origin.origin if origin.file is None else _place(replace(origin, file=_short_name(origin.file)))


def _origin(origin: Provenance | None) -> Iterator[str]:
    if origin is None:
        yield "Nothing says it: the schema's default."
        return
    if origin.key is not None:
        yield f"{origin.key} = {one_line(origin.value)}"
    yield origin.detail
    if others := [key for key in origin.keys if key != origin.key]:
        yield f"from {', '.join(others)}"


def _figures(derived: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The derived numbers that stand in large type."""
    return [(name.replace("_", " "), number(value)) for name, value, _ in text.numbers(derived) if name in _FIGURES]


def _lanes(spec: Spec, derived: Mapping[str, Any], share: float = 1.0) -> dict[str, str]:
    """The lanes for a screen and for a telephone. share: of the width, so that two runs have one scale."""
    drawn = tuple(lanes.lanes_of(spec, derived))
    widths = {"wide": lanes.WIDE, "narrow": lanes.NARROW}
    return {name: lanes.lanes_picture(drawn, width, share) for name, width in widths.items()}


def _lanes_of(reading: Reading, share: float = 1.0) -> dict[str, str] | None:
    """The lanes of a reading; None without a specification, and of a program that counts batches itself."""
    return None if reading.spec is None or reading.counts_itself else _lanes(reading.spec, reading.derived, share)


def _apart(a: Reading, b: Reading) -> Iterator[list[list[tuple[str, bool]]]]:
    """The sentences of two meanings as (words, whether the other side has others there), A's and then B's."""
    from difflib import SequenceMatcher

    sentences = [[sentence.split() for sentence in meaning(reading)] for reading in (a, b)]
    flat = [[word for words in own for word in words] for own in sentences]
    blocks = SequenceMatcher(None, flat[0], flat[1], autojunk=False).get_matching_blocks()
    for own, starts in zip(sentences, ([one.a for one in blocks], [one.b for one in blocks]), strict=True):
        shared = {place for start, one in zip(starts, blocks, strict=True) for place in range(start, start + one.size)}
        said, place = [], 0
        for words in own:
            marked = [(word, place + at not in shared) for at, word in enumerate(words)]
            place += len(words)
            runs = groupby(marked, key=lambda one: one[1])
            said.append([(" ".join(word for word, _ in run), differs) for differs, run in runs])
        yield said


def _plan(spec: Spec, dataset_size: int | None) -> dict[str, str] | None:
    """Every completion of the first rollouts, where there is a plan and it is small enough to be looked at."""
    from batchbridge.errors import PlanError
    from batchbridge.meaning.candidates import plan_of
    from batchbridge.render.pictures import plan_picture

    if dataset_size is None or not 0 < (spec.completions_per_rollout or 0) <= MOST_DRAWN:
        return None
    try:
        plan = plan_of(spec, dataset_size)
        if not plan.total_rollouts:
            return None
    except PlanError:
        return None
    widths = {"wide": lanes.WIDE, "narrow": lanes.NARROW + 20}
    return {name: plan_picture(plan, widest=widest) for name, widest in widths.items()}


def _chart(of: Figure, points: Sequence[tuple[int, int, FigureRange]], resumed: Sequence[int]) -> dict[str, Any]:
    from batchbridge.render import charts

    ranges = [one for _, _, one in points]
    return {
        "of": of,
        "points": points,
        "least": min(one.least for one in ranges),
        "most": max(one.most for one in ranges),
        "spread": any(one.least != one.most for one in ranges),
        "svg": charts.over_steps(of, points, resumed),
    }

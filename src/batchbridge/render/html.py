"""Readings and comparisons as pages: one file each, that loads nothing, runs nothing, and is read without a script.

Templates and style stand in `pages/`. Needs Jinja2, of the extra `html`; every value is escaped, and control characters
are written out, because a configuration's text may be anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from batchbridge.render import between, lanes, text
from batchbridge.render.text import clean, number, one_line

if TYPE_CHECKING:
    from batchbridge.comparing.comparison import Comparison, Difference
    from batchbridge.comparing.releases import Judged
    from batchbridge.contract.enforcement import Enforcement
    from batchbridge.contract.reading import Behaviour, Provenance, Reading
    from batchbridge.ledger.summary import Range, Summary
    from batchbridge.meaning.findings import Finding, Where
    from batchbridge.meaning.spec import Spec

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
    judged: Judged | None = None,
    devices: tuple[int, ...] = (),
) -> str:
    """The page of a reading: its meaning, lanes, findings, fields with their origin, and what the framework does."""
    verdict = reading.verdict if judged is None else judged.verdict
    spec, findings = reading.spec, [_finding(one) for one in reading.findings]
    found = _derived(reading.derived)
    values = {
        "name": name,
        "short_name": name.rpartition("/")[2] or name,
        "verdict": verdict,
        "framework": _who(reading),
        "counts": _counts(reading.findings),
        "digest": None if spec is None else spec.digest(),
        "released": None if judged is None else _releases(judged),
        "devices": _devices(devices),
        "findings": findings,
        "meaning": text.meaning(reading),
        "figures": _figures(found),
        "lanes": None if spec is None else _lanes(spec, reading.derived),
        "plan": None if spec is None else _plan(spec, reading.dataset_size),
        "followed": None if enforcement is None or spec is None else _followed(enforcement),
        "groups": [] if spec is None else _groups(spec, reading.provenance),
        "derived": found,
        "behaviour": None if reading.behaviour is None else _behaviour(reading, reading.behaviour),
    }
    sections = [
        ("releases", values["released"] and "Releases"),
        ("devices", values["devices"] and "Devices"),
        ("findings", findings and verdict != "valid" and "Findings"),
        ("meaning", values["meaning"] and "In words"),
        ("lanes", values["lanes"] and "From rollout to micro-batch"),
        ("findings", findings and verdict == "valid" and "Findings"),
        ("followed", values["followed"] and "Under run and wrap"),
        ("fields", values["groups"] and "Fields"),
        ("derived", values["groups"] and "Numbers"),
        ("native", values["behaviour"] and "On its own"),
    ]
    return page("explain.html", sections, values)


def comparison(names: tuple[str, str], found: Comparison) -> str:
    """The page of a comparison: both meanings, ranked differences with their reasons, and what is none."""
    files = [name.rpartition("/")[2] or name for name in names]
    sides = [_side(*one) for one in zip("AB", names, (found.a, found.b), strict=True)]
    apart = [
        {"title": f"{side}: settings outside the schema, not compared", "points": keys}
        for side, keys in zip("AB", found.not_compared, strict=True)
        if keys
    ]
    apart += [
        {"title": f"{side}: not fixed by the configuration", "points": points}
        for side, points in zip("AB", found.left_open, strict=True)
        if points
    ]
    lists = (found.differences, found.cannot_tell, found.no_difference)
    different, left_open, same = ([_difference(one) for one in listed] for listed in lists)
    rows = [{"name": name, "unit": unit, "a": number(a), "b": number(b)} for name, unit, a, b in found.derived]
    values = {
        "names": names,
        "heading": files[0] if files[0] == files[1] else " and ".join(files),
        "verdict": found.verdict,
        "counts": between.verdict(found).partition(": ")[2],
        "sides": sides,
        "differences": different,
        "open": left_open,
        "same": same,
        "lanes": any(side["lanes"] for side in sides),
        "derived": rows,
        "apart": apart,
    }
    sections = [
        ("sides", "A and B"),
        *((f"findings-{side['name'].lower()}", side["findings"] and f"Wrong with {side['name']}") for side in sides),
        ("differences", different and "Differences"),
        ("open", left_open and "Cannot tell"),
        ("lanes", values["lanes"] and "From rollout to micro-batch"),
        ("same", same and "No difference"),
        ("derived", rows and "Numbers"),
        ("apart", apart and "Beside"),
    ]
    return page("diff.html", sections, values)


def ledger(found: Summary) -> str:
    """The page of a run's ledger: its summary, each figure over the optimizer steps, and what it was to train."""
    from batchbridge.ledger.summary import FIGURES, series
    from batchbridge.meaning.derived import derive
    from batchbridge.meaning.spec import Spec
    from batchbridge.render import ledger as render

    last = found.starts[-1] if found.starts else {}
    try:
        spec = Spec.from_dict(last.get("spec", {}))
        derived = derive(spec, last.get("dataset_size"))
    except (TypeError, ValueError):  # of another time, or of another hand
        spec, derived = None, {}
    charts = [
        _chart(figure.title, figure.unit, points)
        for name, figure in FIGURES.items()
        if (points := list(series(found.bins, name)))
    ]
    titles, ranks = render.ranks(found)
    values = {
        "name": found.folder,
        "short_name": found.folder.rstrip("/").rpartition("/")[2] or found.folder,
        "run": render.run(found),
        "facts": list(render.facts(found)),
        "digest": last.get("spec_digest"),
        "charts": charts,
        "each": max((one.last - one.first + 1 for one in found.bins), default=1),
        "meaning": spec is not None,
        "figures": _figures(_derived(derived)),
        "lanes": None if spec is None else _lanes(spec, derived),
        "rank_titles": titles,
        "ranks": ranks,
        "starts": found.starts,
    }
    sections = [
        ("summary", "Summary"),
        ("charts", charts and "Over the steps"),
        ("meaning", spec and "What it was to train"),
        ("ranks", ranks and "By rank"),
        ("starts", found.starts and "Starts"),
    ]
    return page("ledger.html", sections, values)


def page(template: str, sections: Iterable[tuple[str, object]], values: Mapping[str, Any]) -> str:
    """A template of `pages/` filled. sections: (id, title) of each section; those without a title are not there."""
    style = (PAGES / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The only style that a browser takes: nothing that slipped into a page could bring its own.
    fixed = {"style": Markup(style), "style_hash": f"sha256-{digest}", "version": metadata.version("batchbridge")}
    return str(_environment().get_template(template).render({**values, **fixed, "sections": list(sections)})) + "\n"


@cache
def _environment() -> Environment:
    """What templates are read and compiled by, once in a process."""
    return Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


def drawing(svg: str) -> Markup:
    """A picture of our own for a template: everything in it is escaped already."""
    return Markup(svg)


def _printable(value: object) -> object:
    """What a template prints: without control characters, and never too long."""
    if isinstance(value, Markup):
        return value
    shown = str(value)
    return clean(shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}...")


def _who(reading: Reading) -> str:
    return f"{reading.framework} {reading.framework_version or ''}".rstrip()


def _value(value: object) -> str:
    return number(value) if type(value) is int else one_line(value)


def _counts(findings: Sequence[Finding]) -> str:
    """`1 error, 2 warnings`."""
    counted = Counter("undecided" if one.undecided else one.severity for one in findings)
    said = [
        f"{count} {kind}{'s' if count > 1 and kind != 'undecided' else ''}"
        for kind in ("error", "undecided", "warning", "note")
        if (count := counted[kind])
    ]
    return ", ".join(said) or "no findings"


def _finding(finding: Finding) -> dict[str, Any]:
    noticed = f" (noticed {text.PHASES[finding.phase]})" if finding.native else ""
    return {
        "code": finding.code,
        "kind": "undecided" if finding.undecided else finding.severity,
        "message": finding.message,
        "place": next((place for where in finding.where[:1] if (place := _place(where.file, where.line))), None),
        "places": [one_line(_near(where)) for where in finding.where if where.key is not None],
        "fixes": [fix.text for fix in finding.fixes],
        "native": finding.native and f"{finding.native}{noticed}",
        "source": finding.source,
    }


def _near(where: Where) -> Where:
    """A place with its file's name alone: the whole path stands above."""
    return where if where.file is None else replace(where, file=where.file.rpartition("/")[2])


def _place(file: str | None, line: int | None) -> str | None:
    return file if file is None or line is None else f"{file}:{line}"


def _releases(judged: Judged) -> dict[str, Any]:
    said = f"Below it is read as {_who(judged.reading)}; --framework-version names another."
    spans = [
        {
            "name": span.name,
            "verdict": span.verdict,
            "lines": [
                *span.errors,
                *(f"{field}: {one_line(a)} before, {one_line(b)} now" for field, (a, b) in changes),
            ],
        }
        for span in judged.spans
        for changes in [span.changes.items()]
    ]
    return {"said": said, "spans": spans}


def _devices(devices: tuple[int, ...]) -> str | None:
    if not devices:
        return None
    return f"The number of devices is not said. It would be valid on {one_line(devices)} of them."


def _lanes(spec: Spec, derived: Mapping[str, Any]) -> dict[str, Markup]:
    drawn = lanes.lanes_of(spec, derived)
    return {
        "wide": drawing(lanes.lanes_picture(drawn)),
        "narrow": drawing(lanes.lanes_picture(drawn, lanes.NARROW)),
    }


def _plan(spec: Spec, dataset_size: int | None) -> dict[str, Markup] | None:
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
    return {
        "wide": drawing(plan_picture(plan, widest=lanes.WIDE)),
        "narrow": drawing(plan_picture(plan, widest=lanes.NARROW + 20)),
    }


def _followed(enforcement: Enforcement) -> dict[str, Any]:
    words = {"with_allow": "enforced with --allow", "unknown": "not known before it starts"}
    return {
        "word": words.get(enforcement.verdict, enforcement.verdict),
        "evidence": f"the framework's code is {enforcement.evidence}" if enforcement.evidence else "",
        "obstacles": enforcement.obstacles,
        "assumes": enforcement.assumes,
    }


def _groups(spec: Spec, provenance: Mapping[str, Provenance]) -> list[dict[str, Any]]:
    """Every field, by the group that it stands in."""
    from batchbridge.meaning.spec import walk

    groups: dict[str, list[dict[str, Any]]] = {}
    for path, value, quantity in walk(spec):
        group, _, name = path.rpartition(".")
        origin = provenance.get(path)
        unit = "" if quantity.unit in text.NO_UNITS or value in (None, ()) else quantity.unit
        words = [*_origin(origin), f"{quantity.meaning} Unit: {quantity.unit}."]
        field = {"id": f"from-{path}", "name": name, "value": _value(value), "unit": unit, "words": words}
        groups.setdefault(group or "beside", []).append(field | {"origin": _short(origin)})
    return [{"name": group, "fields": fields} for group, fields in groups.items()]


def _short(origin: Provenance | None) -> str:
    """`recipe.yaml:12`, or the kind of origin."""
    if origin is None:
        return "schema"
    if origin.file is not None:
        return _place(origin.file.rpartition("/")[2], origin.line) or ""
    return origin.origin


def _origin(origin: Provenance | None) -> Iterator[str]:
    if origin is None:
        yield "Nothing says it: the schema's default."
        return
    if origin.key is not None:
        yield f"{origin.key} = {one_line(origin.value)}"
    yield origin.detail
    if others := [key for key in origin.keys if key != origin.key]:
        yield f"from {', '.join(others)}"


def _derived(derived: Mapping[str, Any]) -> list[dict[str, str]]:
    from batchbridge.meaning.derived import UNITS

    return [
        {"name": name, "value": number(derived[name]), "unit": unit}
        for name, unit in UNITS.items()
        if derived.get(name) is not None
    ]


def _figures(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The derived numbers that stand in large type."""
    return [{**row, "name": row["name"].replace("_", " ")} for row in rows if row["name"] in _FIGURES]


def _chart(title: str, unit: str, points: Sequence[tuple[int, int, Range]]) -> dict[str, Any]:
    from batchbridge.render import charts

    least, most = min(one.least for _, _, one in points), max(one.most for _, _, one in points)
    said = (
        f"{unit}: {_figure(least)} in every step" if least == most else f"{unit}: {_figure(least)} to {_figure(most)}"
    )
    rows = [
        {
            "steps": f"{first:,}" if first == last else f"{first:,} to {last:,}",
            **{name: _figure(value) for name, value in one._asdict().items()},
        }
        for first, last, one in points
    ]
    spread = any(one.least != one.most for _, _, one in points)
    return {
        "title": title,
        "unit": unit,
        "said": said,
        "svg": charts.over_steps(title, unit, points),
        "rows": rows,
        "spread": spread,
    }


def _figure(value: float) -> str:
    return number(int(value)) if value == int(value) else number(value)


def _behaviour(reading: Reading, behaviour: Behaviour) -> dict[str, Any]:
    rows = [
        ("order", behaviour.order),
        ("membership", behaviour.membership),
        ("denominator", f"{behaviour.denominator_formula}, per {behaviour.denominator_scope.replace('_', ' ')}"),
        ("learning rate", behaviour.lr_tick),
        ("resume", behaviour.resume),
        *(("not fixed by the configuration", point) for point in behaviour.undecided),
        *((f"known defect {one.code}", f"{one.summary} (source: {one.source})") for one in behaviour.defects),
        *((("source", behaviour.source),) if behaviour.source else ()),
    ]
    return {"title": f"What {_who(reading)} does on its own", "rows": [(word, one_line(said)) for word, said in rows]}


def _side(side: str, name: str, reading: Reading) -> dict[str, Any]:
    wrong = [one for one in reading.findings if one.undecided or one.severity == "error"]
    return {
        "name": side,
        "file": name,
        "framework": _who(reading),
        "verdict": reading.verdict,
        "meaning": text.meaning(reading),
        "findings": [_finding(one) for one in wrong],
        "lanes": None if reading.spec is None else _lanes(reading.spec, reading.derived),
    }


def _difference(one: Difference) -> dict[str, Any]:
    sides: Sequence[tuple[str, Any, str]] = (("A", one.a, one.from_a), ("B", one.b, one.from_b))
    return {
        "field": one.field,
        "aspect": one.aspect,
        "unit": "" if one.unit in text.NO_UNITS else one.unit,
        "reason": one.reason,
        "sides": [{"name": side, "value": _value(value), "origin": origin} for side, value, origin in sides],
    }

"""What people read of `diff`, `convert`, `scale` and `doctor`: stable text, safe to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.render.text import PHASES, clean, number, one_line

if TYPE_CHECKING:
    from batchbridge.adapter import Reading
    from batchbridge.between.convert import Conversion, FieldReport
    from batchbridge.between.diff import Comparison, Difference
    from batchbridge.between.doctor import Diagnosis

_NO_UNITS = ("", "kind", "1", "see unit", "flag", "seed")
"""Units that say nothing beside a value."""


def comparison(names: tuple[str, str], found: Comparison) -> str:
    """A comparison: verdict, ranked differences with their reasons, and what is no difference in meaning."""
    lines = [
        f"A  {one_line(names[0])}: {_who(found.a)}, {found.a.verdict}",
        f"B  {one_line(names[1])}: {_who(found.b)}, {found.b.verdict}",
    ]
    for side, name, reading in (("A", names[0], found.a), ("B", names[1], found.b)):
        if reading.verdict != "valid":
            lines += [f"  {side} {line}" for line in _problems(reading)]
            lines += [f"  {side}: for the fixes: batchbridge check {one_line(name)}"]
    lines += ["", _verdict(found)]
    if found.differences:
        lines += ["", "Differences, the largest effect first"]
        for rank, difference in enumerate(found.differences, 1):
            lines += _difference(f"{rank}", difference)
    if found.cannot_tell:
        lines += ["", "Cannot tell"]
        for difference in found.cannot_tell:
            lines += _difference("?", difference)
    if found.no_difference:
        lines += ["", "No difference in meaning"]
        for difference in found.no_difference:
            lines.append(f"  {difference.field}: {_values(difference)}")
            lines.append(f"     {one_line(difference.reason)}")
    if found.derived:
        lines += ["", "Numbers that follow"]
        lines += [f"  {name}: {number(a)} | {number(b)} {unit}" for name, unit, a, b in found.derived]
    for side, points in zip("AB", found.left_open, strict=True):
        lines += [f"not fixed by the configuration, {side}: {one_line(point)}" for point in points]
    return clean("\n".join(lines))


def _verdict(found: Comparison) -> str:
    counts = [(len(found.differences), "difference"), (len(found.cannot_tell), "field that one side leaves open")]
    said = ", ".join(f"{count} {_plural(word, count)}" for count, word in counts if count)
    return f"{found.verdict}{f': {said}' if said else ''}"


def _plural(word: str, count: int) -> str:
    head, _, tail = word.partition(" ")
    return word if count == 1 else f"{head}s {tail}".rstrip()


def _difference(rank: str, difference: Difference) -> Iterator[str]:
    yield f"{rank:>3}  {difference.aspect:<9}  {difference.field}: {_values(difference)}"
    yield f"       why: {one_line(difference.reason)}"
    for side, origin in (("A", difference.from_a), ("B", difference.from_b)):
        if origin:
            yield f"       {side}: {one_line(origin)}"


def _values(difference: Difference) -> str:
    unit = "" if difference.unit in _NO_UNITS else f" {difference.unit}"
    return f"{_value(difference.a)} | {_value(difference.b)}{unit}"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return one_line(value)


def _who(reading: Reading) -> str:
    return one_line(f"{reading.framework} {reading.framework_version or ''}".rstrip())


def _problems(reading: Reading) -> Iterator[str]:
    """One line for each finding that makes a reading invalid or undecided."""
    for finding in reading.findings:
        if finding.undecided or finding.severity == "error":
            kind = "undecided" if finding.undecided else "error"
            yield f"{finding.code} {kind}  {one_line(finding.message)}"


_STATUS_TITLES = {
    "inexpressible": "Lost: {framework} cannot say it",
    "approximate": "Approximate",
    "patched": "Patched: the configuration cannot say it, wrap brings it about",
    "filled": "Open in the source, filled by {framework}'s default",
    "equivalent": "Equivalent: another value, the same meaning",
}


def conversion(name: str, found: Conversion) -> str:
    """The account of a conversion: every field that is not exact, then what is carried as it is and left behind."""
    target = one_line(f"{found.framework} {found.framework_version or ''}".rstrip())
    counts: dict[str, int] = {}
    for field in found.fields:
        counts[field.status] = counts.get(field.status, 0) + 1
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines = [f"{one_line(name)}: {_who(found.source)} to {target}: {found.verdict}{f' ({said})' if said else ''}"]
    for reading in (found.source, found.back):
        if reading is not None and reading.verdict != "valid":
            lines += [f"  {line}" for line in _problems(reading)]
    for status, title in _STATUS_TITLES.items():
        fields = [field for field in found.fields if field.status == status]
        if fields:
            lines += ["", title.format(framework=found.framework)]
            lines += [line for field in fields for line in _field(field)]
    if found.written is None and found.refused:
        lines += ["", f"{one_line(found.framework)} cannot express it"]
        lines += [f"  {one_line(problem)}" for problem in found.refused]
    exact = [field for field in found.fields if field.status == "exact" and field.target is not None]
    if exact:
        lines += ["", "Exact"]
        lines += [f"  {line}" for line in _wrapped(f"{field.field} = {_value(field.target)}" for field in exact)]
    if found.left_behind and found.written is not None:
        lines += ["", "Left behind: no canonical field comes from these keys"]
        lines += [f"  {line}" for line in _wrapped(f"{k} = {one_line(v)}" for k, v in found.left_behind.items())]
    if found.natively:
        lines += ["", f"What {target} does on its own with the result (wrap repairs it where it may)"]
        lines += [f"  {one_line(line)}" for line in found.natively]
    return clean("\n".join(lines))


def _field(field: FieldReport) -> Iterator[str]:
    unit = "" if field.unit in _NO_UNITS else f" {field.unit}"
    factor = "" if field.factor is None else f" (factor {field.factor:.4g})"
    yield f"  {field.field}: {_value(field.source)} -> {_value(field.target)}{unit}{factor}"
    if field.reason:
        yield f"     {one_line(field.reason)}"


def _wrapped(items: Iterable[str]) -> list[str]:
    """Items in lines of at most 100 columns, each item whole."""
    import textwrap

    text = ", ".join(item.replace(" ", "\u00a0") for item in items)
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """Every recognised text: rule, meaning, legal neighbours, what is still asked, source."""
    return clean("\n\n".join("\n".join(_diagnosis(one)) for one in found))


def _diagnosis(found: Diagnosis) -> Iterator[str]:
    text = found.text
    yield f"{text.name}  {text.framework} ({text.versions}), line {found.line}"
    yield f"  said: {one_line(found.said)}"
    yield f"  rule: {text.rule}"
    yield f"  means: {text.meaning}; noticed {PHASES[text.phase]}"
    if found.fixes:
        yield "  nearest: " + ", or ".join(one_line(fix.text) for fix in found.fixes)
    for ask in found.asks:
        yield f"  asks: {ask.question}? --with {ask.name}=NUMBER"
    yield f"  source: {text.source}"

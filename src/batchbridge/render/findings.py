"""Findings for people: what is wrong, where, what the framework itself does and when, and the way out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from batchbridge.meaning.findings import CONDITION, gravest_first
from batchbridge.meaning.findings import KINDS as KINDS  # others have it from here
from batchbridge.meaning.findings import kind_of as kind_of  # others have it from here
from batchbridge.render import words
from batchbridge.render.words import listed, say

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading
    from batchbridge.meaning.findings import Finding, Where
    from batchbridge.reading.ways_out import WayOut

TableRenderer = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
"""The function that draws (headers, rows); the commands pass rich's on a terminal."""

WIDEST = 60
"""Characters of a setting's value that are shown; a chat template has thousands."""
FIXES = 3
"""Ways out that are shown of a finding."""
WAYS = 4
"""Rows of a table of ways out."""
ALIKE = 3
"""Warnings of one rule that are shown one by one."""

PHASES = {
    "config": "while reading the configuration",
    "construction": "while building the trainer",
    "worker_start": "while starting the workers",
    "first_rollout": "at the first rollout, after model load",
    "optimizer_step": "at some optimizer step",
    "never": "never",
}
"""The time when the native framework would notice, in words; the earliest first."""


def counts(findings: Sequence[Finding], *, verbose: bool) -> str:
    """`1 error, 2 warnings, 5 notes (-v shows them)`; "no findings"."""
    kinds = [kind_of(finding) for finding in findings]
    numbers = [(kinds.count(kind), kind) for kind in KINDS]
    plural = {"undecided": "undecided"}
    said = listed(count(many, kind, plural.get(kind)) for many, kind in numbers if many) or say("no findings")
    hidden = "note" in kinds and not verbose
    return f"{said}{say(' (-v shows them)')}" if hidden else said


def lines(
    name: str,
    reading: Reading,
    table: TableRenderer,
    ways_out: Sequence[tuple[Finding, Sequence[WayOut]]] = (),
    *,
    verbose: bool,
) -> Iterator[str]:
    """The findings of the configuration `name`, the most severe first and of these the one that its framework notices
    first; notes, whole values, every fix and the sources only where `verbose`. ways_out: of errors, what they make of
    the run; `table` draws them."""
    found = gravest_first(reading.findings)
    shown: dict[tuple[str, str], list[Finding]] = {}

    def ways_of(finding: Finding) -> Sequence[WayOut]:
        return next((ways for one, ways in ways_out if one is finding), ())

    for finding in found:
        shown.setdefault((kind_of(finding), finding.code), []).append(finding)
    for (kind, code), alike in shown.items():
        if verbose:
            for finding in alike:
                yield from _whole(name, reading, finding, ways_of(finding), table)
            yield from _titled(reading, code)
        elif kind != "note" and code != CONDITION:  # the second line says it
            most = ALIKE if kind == "warning" and len(alike) > ALIKE + 1 else len(alike)
            for place, finding in enumerate(alike[:most]):
                yield from _compact(name, reading, finding, ways_of(finding), table, first=not place)
            if most < len(alike):
                more = say("{number} more of {code} (-v shows them)", number=len(alike) - most, code=code)
                yield f"{say(kind)}  {more}"
            if kind == "error":
                yield from _titled(reading, code)


def _titled(reading: Reading, code: str) -> Iterator[str]:
    """`  rule: rollout tears groups (batchbridge rule BB-TRL-021)`: the title of what was found, and its page."""
    from batchbridge.contract import plugins

    if (found := plugins.title_of(code, reading.framework)) is not None:
        title, line = words.title(found.title), "rule: {title} (batchbridge rule {code})"
        yield f"  {line.format(title=found.title, code=code) if title is None else say(line, title=title, code=code)}"


def _compact(
    name: str,
    reading: Reading,
    finding: Finding,
    ways: Sequence[WayOut],
    table: TableRenderer,
    *,
    first: bool,
) -> Iterator[str]:
    places = [where for where in finding.where if _worth_a_word(reading, finding, where)]
    yield from _told(name, finding, places, _short(finding, finding.message), cut=True)
    if first and (native := _native(reading, finding)):
        yield f"  {_short(finding, native)}"
    if len(ways) > 1:
        yield from _ways(finding, ways[:WAYS], len(finding.fixes) - len(ways[:WAYS]), table)
    elif finding.fixes:
        texts = [_short(finding, say(fix.text)) for fix in finding.fixes[:FIXES]]
        more = len(finding.fixes) - len(texts)
        one = len(texts) == 1 and ways and _first(finding) is not None
        texts += [say("{number} more (-v)", number=more)] if more else []
        yield say("  fix: {fixes}", fixes=say(", or ").join(texts)) + (f" (--fix={ways[0].number})" if one else "")


def _ways(finding: Finding, ways: Sequence[WayOut], more: int, table: TableRenderer) -> Iterator[str]:
    """The ways out with what they make of the run, a row each, by the number that `check --fix=N` writes into a file.
    more: how many are not shown."""
    if not ways:
        return
    rows = [
        (
            *((str(way.number),) if _first(finding) is not None else ()),
            one_line(way.fix.text),
            number(way.devices),
            number(way.completions_per_step),
            number(way.prompts_per_rollout),
        )
        for way in ways
    ]
    columns = ("--fix", "way out", "devices", "completions", "prompts")[5 - len(rows[0]) :]
    yield say("  ways out, with the completions of an optimizer step and the prompts of a rollout:")
    yield from (f"    {line}" for line in table([say(column) for column in columns], rows).splitlines())
    if more:
        yield f"    {say('{number} more (-v)', number=more)}"


def sizes_of(way: WayOut) -> str:
    """The run of a way out in words: `on 8 devices an optimizer step has 48 completions, and a rollout 8 prompts`."""
    step, rollout = count(way.completions_per_step, "completion"), count(way.prompts_per_rollout, "prompt")
    return f"on {count(way.devices, 'device')} an optimizer step has {step}, and a rollout {rollout}"


def _excerpt(where: Where | None) -> Iterator[str]:
    """The line of a file that a finding is about, with its value marked; nothing where that cannot be seen there."""
    if where is None or where.file is None or where.line is None or where.key is None or where.value is None:
        return
    line = _line_of(where.file, where.line).expandtabs(4)
    span = value_span(line, where)
    if span is None:
        return
    indent = len(line) - len(line.lstrip())
    start, end = span[0] - indent, span[1] - indent
    if end > EXCERPT:
        return
    number_, shown = f"{where.line:>5}", line[indent:][:EXCERPT]
    yield f"  {number_} | {shown}"
    yield f"  {' ' * len(number_)} | {' ' * start}{'^' * (end - start)}"


def value_span(line: str, where: Where) -> tuple[int, int] | None:
    """The columns of a setting's value behind its key in a line; None: it is not to be seen there."""
    value, key = one_line(where.value), str(where.key).rpartition(".")[2]
    at = line.find(value, line.find(key) + len(key)) if key in line else -1
    return None if at < 0 or not value else (at, at + len(value))


EXCERPT = 64
"""Columns of a line of a file that are shown."""


WIDE_MARKS = {
    **dict(zip("\uff1a\uff0c\uff1b\uff08\uff09\uff1d\u201c\u201d\u2018\u2019", ":,;()=\"\"''", strict=True)),
    "\u3000": "' '",
}
"""Marks of a Chinese keyboard, and what YAML and bash have in their place."""


def _wide_mark(name: str, finding: Finding) -> Iterator[str]:
    """The first mark of a Chinese keyboard in the line that a finding is about, where no Chinese stands beside it: a
    sentence has its marks by right, and so has a comment. Where a script's word has no line, its mark is looked for."""
    where = _first(finding)
    if where is not None:
        found = _marked(where.file or name, where.line or 1)
    else:
        wanted = [mark for mark in WIDE_MARKS if mark in finding.message]
        lines = range(1, LOOKED_AT + 1) if wanted and Path(name).is_file() else ()
        found = next((at for number in lines if (at := _marked(name, number)) is not None and at[1] in wanted), None)
    if found is not None:
        place, mark = found
        told = {"place": place, "mark": mark, "code": f"U+{ord(mark):04X}", "plain": WIDE_MARKS[mark]}
        yield say("  hint: {place} has the full-width {mark} ({code}); write the plain {plain}", **told)


LOOKED_AT = 200
"""Lines of a script in which a mark is looked for."""


def _is_ideograph(letter: str) -> bool:
    return "\u3400" <= letter <= "\u9fff"  # a pattern of so many letters takes milliseconds to compile


def _marked(file: str, number: int) -> tuple[str, str] | None:
    """(`run.sh:3:14`, the mark) of a line's first mark of a Chinese keyboard that stands in no sentence."""
    line = re.sub(r"(^|\s)#.*", "", _line_of(file, number))
    for at, mark in enumerate(line):
        if mark in WIDE_MARKS and not any(map(_is_ideograph, line[max(at - 1, 0) : at + 2])):
            return f"{shown_path(file)}:{number}:{at + 1}", mark
    return None


def _line_of(file: str, number: int) -> str:
    """A line of a file; empty where it cannot be read, and of a pipe, which would have to be waited for."""
    try:
        if not Path(file).is_file():
            return ""
        with Path(file).open(encoding="utf-8") as opened:
            return next(islice(opened, number - 1, None), "").rstrip()
    except (OSError, ValueError):
        return ""


def _whole(
    name: str,
    reading: Reading,
    finding: Finding,
    ways: Sequence[WayOut],
    table: TableRenderer,
) -> Iterator[str]:
    places = [where for where in finding.where if where.key is not None]
    yield from _told(name, finding, places, finding.message, cut=False)
    if native := _native(reading, finding):
        yield f"  {native}"
    shown = [way.fix for way in ways]
    if rest := [fix for fix in finding.fixes if fix not in shown]:
        yield say("  fix: {fixes}", fixes=say(", or ").join(one_line(say(fix.text)) for fix in rest))
    yield from _ways(finding, ways, 0, table)
    if finding.source is not None:
        yield say("  source: {text}", text=one_line(finding.source))


def _told(name: str, finding: Finding, places: Sequence[Where], message: str, *, cut: bool) -> Iterator[str]:
    """`warning :25  what is wrong    BB-VERL-042`, and below it the settings. cut: their values are."""
    place = place_of(name, _first(finding))
    kind = say(kind_of(finding))
    yield f"{kind}{f' {one_line(place)}' if place else ''}  {one_line(message)}    {finding.code}"
    if kind_of(finding) == "error":
        yield from _excerpt(_first(finding))
    if kind_of(finding) in ("error", "undecided"):
        yield from _wide_mark(name, finding)
    if places:
        yield say("  at: {places}", places=listed(_key(name, finding, where, cut=cut) for where in places))


def _native(reading: Reading, finding: Finding) -> str | None:
    """The framework's own words or act, and when."""
    if finding.native is None:
        return None
    framework = one_line(reading.framework)
    if finding.phase == "never":
        return say("{framework} never reports it: {native}", framework=framework, native=one_line(finding.native))
    when, native = say(PHASES[finding.phase]), one_line(finding.native)
    return say("{framework} {when}: {native}", framework=framework, when=when, native=native)


def _worth_a_word(reading: Reading, finding: Finding, where: Where) -> bool:
    """Whether a place says more than the finding's first line: not a default that nobody set, nor what stands there."""
    if where.key is None or (where.file is None and reading.given and where.key not in reading.given):
        return False
    if str(where.key).rpartition(".")[2] not in finding.message:
        return True
    if where.file is not None:
        return where != _first(finding)
    return where.value is not None and one_line(where.value) not in finding.message


def _first(finding: Finding) -> Where | None:
    """The first place in a file."""
    return next((where for where in finding.where if where.file is not None), None)


def _key(name: str, finding: Finding, where: Where, *, cut: bool) -> str:
    """`key = value (:2)`, the place left out where the first line has it."""
    value = one_line(where.value)
    text = str(where.key) if where.value is None else f"{where.key} = {shortened(value) if cut else value}"
    place, first = place_of(name, where), place_of(name, _first(finding))
    return one_line(text if not place or place == first else f"{text} ({place})")


def place_of(name: str, where: Where | None) -> str:
    """`:25` in the file `name` itself, `other.yaml:3` in another one; empty where it stands in none."""
    if where is None or where.file is None:
        return ""
    own = os.path.normpath(where.file) == os.path.normpath(name)
    if where.line is None:
        return "" if own else shown_path(where.file)
    return f":{where.line}" if own else f"{shown_path(where.file)}:{where.line}"


def _short(finding: Finding, text: str) -> str:
    """`text` with the finding's long values cut."""
    for where in finding.where:
        for value in {str(where.value), repr(where.value), one_line(where.value)}:
            if len(value) > WIDEST:
                text = text.replace(value, shortened(value))
    return one_line(text)


def shortened(value: str) -> str:
    """The first `WIDEST` characters of a value."""
    return value if len(value) <= WIDEST else f"{value[: WIDEST - 3]}..."


def shown_path(path: str) -> str:
    """A path as seen from the present folder, where that is shorter."""
    if not Path(path).is_absolute():
        return path
    try:
        relative = os.path.relpath(path)
    except OSError:  # the present folder is gone
        return path
    return relative if len(relative) < len(path) else path


def paths_from_here(text: str) -> str:
    """`text` in which what lies below the present folder is named from there."""
    try:
        here = str(Path.cwd())
    except OSError:  # it is gone
        return text
    return re.sub(rf"(?<![\w./-]){re.escape(here)}/", "", text) if here != "/" else text


def one_line(value: object) -> str:
    """A value in one line: numbers short, the ends of lines as blanks."""
    text = f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)
    if isinstance(value, tuple):
        text = ", ".join(map(str, value)) or "none"
    return " ".join(text.split("\n"))


def number(value: int | float | None) -> str:
    """A count for a person: `1,234`, `2.5`, or a dash where it is open."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def count(value: int | float | None, one: str, many: str | None = None) -> str:
    """`1 step`, `2.5 steps`, `an open number of steps`."""
    noun = words.unit(value, one, many or one + "s")
    if value is None:
        return say("an open number of {noun}", noun=noun)
    return f"{number(value)} {noun}"

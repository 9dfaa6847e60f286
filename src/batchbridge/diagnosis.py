"""The meaning of a pasted error text or traceback: the rule behind it, where it holds, and the legal neighbours.

The texts are those that the rows of the adapters' rules quote; what no rule is about comes from `Adapter.error_texts`,
and stands here for frameworks without an adapter. Patterns recognise short fragments and take the numbers out of them;
nothing is guessed from anything else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from batchbridge.common_texts import COMMON_TEXTS
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.error_text import Ask, ErrorText, Numbers, RuleRow
from batchbridge.contract.reading import Reading
from batchbridge.kit.error_texts import quotations
from batchbridge.kit.versions import includes, spanned
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.findings import Finding, Fix
from batchbridge.reading.pasted import ESCAPES, PREFIX, read_pasted
from batchbridge.reading.read import read

MAX_CHARACTERS = 1 << 20
"""The most characters that are read; of a longer text only the end is: that is where a traceback says what happened."""
_LARGEST = 10**9
"""The largest size: larger numbers in a text are not sizes."""
_TIMES = 20
"""Most matches of one pattern that are reported."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """One recognised text: where (line, from 1), what it said, its numbers, the ways out, and what is still asked.

    codes: its rules. reading, findings: a configuration that the text is held against, and what of it the
    text tells of. differs: numbers that the two say differently, a sentence each.
    """

    text: ErrorText
    line: int
    said: str
    numbers: Numbers
    fixes: tuple[Fix, ...] = ()
    asks: tuple[Ask, ...] = field(default=())
    codes: tuple[str, ...] = ()
    reading: Reading | None = None
    findings: tuple[Finding, ...] = ()
    differs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return brief(self, self.text.name, f"line {self.line}", many(self.fixes, "way") + " out")

    def __str__(self) -> str:
        fixes = ", or ".join(fix.text for fix in self.fixes)
        return f"line {self.line}: {self.text.name}: {self.text.rule}{f'; use instead: {fixes}' if fixes else ''}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        text = self.text
        return {
            "name": text.name,
            "framework": text.framework,
            "versions": text.versions,
            "line": self.line,
            "said": self.said,
            "numbers": dict(self.numbers),
            "rule": text.rule,
            "codes": list(self.codes),
            "meaning": text.meaning,
            "phase": text.phase,
            "fixes": [fix.to_dict() for fix in self.fixes],
            "asks": [dataclasses.asdict(ask) for ask in self.asks],
            "read_as": None if self.reading is None else self.reading.framework_version,
            "findings": [finding.to_dict() for finding in self.findings],
            "differs": list(self.differs),
            "source": text.source,
        }


class Diagnoses(tuple[Diagnosis, ...]):
    """The recognised texts of one text, in the order of their places."""

    __slots__ = ()

    def __repr__(self) -> str:
        return brief(self, many(self, "known text"), *(one.text.name for one in self))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no known text"

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask

        rows = [
            (
                one.line,
                ", ".join(one.codes) or one.text.name,
                one.text.framework,
                one.text.rule,
                one.text.meaning,
                ", or ".join(fix.text for fix in one.fixes),
            )
            for one in self
        ]
        headers = ("line", "rule", "framework", "must hold", "what happened", "use instead")
        return notebook.fragment(many(self, "known text"), notebook.table(headers, rows))


def doctor(
    text: str,
    given: Numbers | None = None,
    texts: Sequence[ErrorText] | None = None,
    *,
    readings: Sequence[object] = (),
) -> Diagnoses:
    """The known error texts in a pasted text or traceback, in the order of their places.

    Args:
        text: What a framework printed; of a long text the last 2**20 characters are read.
        given: Numbers that the text does not say, by the names that a diagnosis asks for.
        texts: The texts to look for; by default all that are known, those of installed adapters included, and behind
            them the messages that rules quote.
        readings: The run's configuration, a `Reading` or what `read` takes, under each version in question,
            the likeliest first: what a diagnosis asks for is looked up there, and what the text tells of. By default
            the configuration that the text itself holds, if it does (`readings_in`).

    Returns:
        One diagnosis for each text that was recognised; none where nothing is known.

    Raises:
        TypeError: `text` is not text, `readings` no sequence, or has what `read` does not take.
    """
    if not isinstance(text, str):
        raise TypeError(f"doctor reads a text, not a {type(text).__name__}; of a file: its read_text()")
    if not isinstance(readings, list | tuple):
        raise TypeError(f"doctor: readings is a list, not a {type(readings).__name__}")
    flat, lines = _flat(text)
    found: dict[tuple[str, str], tuple[Diagnosis, int, int]] = {}
    for entry in known_texts() if texts is None else texts:
        for said, start, end, numbers in _matches(entry, flat):
            if (entry.name, said) not in found:
                found[entry.name, said] = _diagnosis(entry, said, lines(start), numbers, given or {}), start, end
    quoted = (
        [] if texts is not None else [(entry, *one[:3]) for entry in quoted_texts() for one in _matches(entry, flat)]
    )
    for key, (diagnosis, start, end) in found.items():
        rules = [entry for entry, _, first, last in quoted if first < end and start < last]
        found[key] = dataclasses.replace(diagnosis, codes=_codes(diagnosis.text, rules)), start, end
    told = [(start, end) for _, start, end in found.values()]
    for entry, said, start, end in quoted:
        if (entry.name, said) not in found and not any(start < last and first < end for first, last in told):
            known = dataclasses.replace(_diagnosis(entry, said, lines(start), {}, {}), codes=(entry.name,))
            found[entry.name, said] = known, start, end
    diagnoses = sorted((diagnosis for diagnosis, *_ in found.values()), key=lambda diagnosis: diagnosis.line)
    configurations = [read(one) for one in readings] or (list(readings_in(text)) if diagnoses else [])
    return Diagnoses(_held_against(diagnosis, configurations, given or {}) for diagnosis in diagnoses)


def readings_in(text: str, **said: Any) -> Iterator[Reading]:
    """The configuration that a log holds, under the version that is said, or else under every known one, the newest
    first; nothing where it holds none that is read. said: arguments of `read`."""
    from batchbridge.contract import plugins

    source = read_pasted(text, None)
    if source is None:
        return
    reading = read(source, **said)
    adapter = plugins.adapters().get(reading.framework)
    if reading.native:
        yield reading
    elif adapter is not None and said.get("version") is None:
        for version in reversed(adapter.releases):
            yield read(source, **{**said, "version": version})


def _codes(text: ErrorText, quoting: Iterable[ErrorText]) -> tuple[str, ...]:
    """The rules of a text: those whose rows have it, and those of its own framework that quote it; where there are
    none, those of others, which may have copied it."""
    own = [*text.codes, *(rule.name for rule in quoting if rule.framework == text.framework)]
    return tuple(dict.fromkeys(own or (rule.name for rule in quoting)))


def _held_against(diagnosis: Diagnosis, readings: Sequence[Reading], given: Numbers) -> Diagnosis:
    """A diagnosis with what the first reading in which the text's rule is broken says; else with the first one's
    numbers."""
    if not readings:
        return diagnosis
    told = ((reading, [one for one in reading.findings if _tells_of(diagnosis, one, reading)]) for reading in readings)
    reading, findings = next((one for one in told if one[1]), (readings[0], []))
    known = {ask.name: number for ask in diagnosis.text.asks if (number := _answer(ask, reading)) is not None}
    again = _diagnosis(diagnosis.text, diagnosis.said, diagnosis.line, diagnosis.numbers, {**known, **given})
    differs = tuple(_differing(diagnosis, reading))
    return dataclasses.replace(again, codes=diagnosis.codes, reading=reading, findings=tuple(findings), differs=differs)


def _differing(diagnosis: Diagnosis, reading: Reading) -> Iterator[str]:
    """The numbers of a text that the configuration says differently."""
    for ask in diagnosis.text.asks:
        said, held = diagnosis.numbers.get(ask.name), _answer(ask, reading)
        if said is not None and held is not None and said != held:
            yield f"the text says {said}, the configuration {held}: {ask.question}"
    for name, what in diagnosis.text.counts.items():
        said, held = diagnosis.numbers.get(name), _counted(what, reading)
        if said is not None and held is not None and said != held:
            unit = "devices that hold copies of the policy" if what == "devices" else what.replace("_", " ")
            places = "".join(f"; {one}" for one in _places(_PATHS.get(what, ()), reading, said, held))
            yield f"the text counts {said} {unit}, the configuration {held}{places}"


_PATHS = {
    "devices": ("topology.world_size",),
    "completions_per_rollout": ("rollout.prompts_per_rollout", "rollout.completions_per_prompt"),
    "completions_per_step": ("optimizer_step.completions_per_step",),
}
"""The canonical fields behind a number of `ErrorText.counts`."""


def _places(paths: Iterable[str], reading: Reading, said: int, held: int) -> Iterator[str]:
    """The settings that a number of a configuration comes from, with their lines; of one that is the default of a
    script's variable the option with which that script gives the number of the text."""
    origins = [reading.provenance[path] for path in paths if path in reading.provenance]
    for key in dict.fromkeys(key for origin in origins for key in origin.keys):
        place, value = reading.given.get(key), reading.native.get(key)
        if place is None or place.file is None or place.line is None:
            yield f"{key} = {value}" if place is not None else f"{key} = {value}, which nothing says"
            continue
        shown = f"{place.file}:{place.line}: {key} = {value}"
        variable = _variable(place.file, key, place.line, value)
        if variable is None or not isinstance(value, int) or (value * said) % held:
            yield shown
            continue
        name, line = variable
        yield f"{shown}, the default of {name} in line {line}: --env {name}={value * said // held}"
    if not any(origin.keys for origin in origins):
        yield from (origin.detail for origin in origins)


def _variable(file: str, key: str, line: int, value: object) -> tuple[str, int] | None:
    from batchbridge.comparing.edit_words import variable_of
    from batchbridge.reading.documents import read_text
    from batchbridge.reading.yaml_json import RefusedFile

    try:
        return variable_of(read_text(Path(file), file), key, line, value)
    except RefusedFile:
        return None


def _counted(what: str, reading: Reading) -> int | None:
    """A number of a configuration, by its name in `ErrorText.counts`."""
    if reading.spec is None:
        return None
    number = reading.spec.topology.data_parallel_size if what == "devices" else reading.derived.get(what)
    return int(number) if isinstance(number, int) or (number is not None and number == int(number)) else None


def _tells_of(diagnosis: Diagnosis, finding: Finding, reading: Reading) -> bool:
    native, text = finding.native or "", diagnosis.text
    own = text.framework == reading.framework and text.versions[:1] in "<>=!~"
    said = not own or reading.framework_version is None or includes(text.versions, reading.framework_version)
    if any(f"'{where.key}'" in diagnosis.said for where in finding.where):
        return True  # a text about a key quotes it
    if (said and finding.code in diagnosis.codes) or _compiled(diagnosis.text.pattern).search(native):
        return True
    return any(_compiled(quoted).search(diagnosis.said) for quoted in quotations(native))


def _answer(ask: Ask, reading: Reading) -> int | None:
    """The answer of a configuration: the setting, or the sum of settings, that the question begins with."""
    if ask.name == "devices":
        replicas = None if reading.spec is None else reading.spec.topology.data_parallel_size
        return int(replicas) if replicas else None
    total = 0
    for name in ask.question.partition(" (")[0].split(" + "):
        values = [value for key, value in reading.native.items() if f".{key}".endswith(f".{name}")]
        if not values or not isinstance(values[0], int):
            return None
        total += values[0]
    return total if 0 < total <= _LARGEST else None


def _matches(entry: ErrorText, flat: str) -> Iterator[tuple[str, int, int, dict[str, int]]]:
    """The matches of an entry: what was said, from where to where, and its numbers; the first of many."""
    for match in islice(_compiled(entry.pattern).finditer(flat), _TIMES):
        numbers = {name: int(value) for name, value in match.groupdict().items() if value is not None}
        if max(numbers.values(), default=0) <= _LARGEST:
            yield match.group(), match.start(), match.end(), numbers


def nearest(text: str) -> list[tuple[float, ErrorText]]:
    """The three known texts that are most like one of the last lines, with their likeness from 0 to 1; those that are
    like anything are left out."""
    last = [line for line in PREFIX.sub("", ESCAPES.sub("", text[-MAX_CHARACTERS:])).splitlines() if line.strip()]
    lines = [_words(" ".join(pair)) for pair in pairwise([*last[-_LINES:], ""])]
    known = [(_words(_MARKS.sub(" ", entry.pattern)), entry) for entry in (*known_texts(), *quoted_texts())]
    likeness = [
        (max((2 * len(words & line) / (len(words) + len(line)) for line in lines if line), default=0), entry)
        for words, entry in known
        if len(words) >= _WORDS
    ]
    return [one for one in sorted(likeness, key=lambda one: -one[0])[:3] if one[0] >= _ALIKE]


_ALIKE = 0.4
_LINES = 200
"""The last lines of a text that are compared with known ones."""
_WORDS = 3
"""The least number of words: known texts of fewer are like everything."""
_MARKS = re.compile(r"\?P<\w+>|\\[a-zA-Z]|\{[\d,]+\}")
"""Marks of a regular expression with letters in them."""


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z_]{3,}", text.lower()))


def known_texts() -> tuple[ErrorText, ...]:
    """The texts of the installed adapters, of rules' rows first, and those that stand here; an adapter that fails adds
    nothing."""
    from batchbridge.contract import plugins

    texts: list[ErrorText] = []
    for adapter in plugins.adapters().values():
        try:
            texts += [*_of_rows(adapter, plugins.rows(adapter)), *adapter.error_texts()]
        except Exception:  # a broken plugin must not keep the others' texts from a person in need
            continue
    return tuple({text.name: text for text in [*texts, *COMMON_TEXTS]}.values())


def _of_rows(adapter: Adapter, rows: Iterable[RuleRow]) -> Iterator[ErrorText]:
    """The texts that the rows of rules carry, each with the framework, versions, pattern, sources and codes of the rows
    that carry it. Open-R1's adapter, which is built upon TRL's, has no rows of its own: TRL's adapter gives them."""
    carried: dict[str, tuple[ErrorText, list[RuleRow]]] = {}
    for row in rows if _has_own_rows(adapter) else ():
        printed: ErrorText | tuple[ErrorText, ...] = getattr(row, "text", None) or ()
        for text in (printed,) if isinstance(printed, ErrorText) else printed:
            carried.setdefault(text.name, (text, []))[1].append(row)
    for text, own in carried.values():
        sources = dict.fromkeys([*(row.source for row in own), *([text.source] if text.source else [])])
        quoted = "|".join(dict.fromkeys(pattern for row in own for pattern in quotations(row.native)))
        yield dataclasses.replace(
            text,
            framework=adapter.framework,
            versions=text.versions or spanned(row.versions for row in own) or adapter.versions,
            pattern=text.pattern or quoted,
            phase=own[0].phase,
            source="; ".join(sources),
            codes=tuple(dict.fromkeys(row.code for row in own)),
        )


def _has_own_rows(adapter: Adapter) -> bool:
    return not adapter.rule_table or "rule_table" in vars(type(adapter))


def quoted_texts() -> tuple[ErrorText, ...]:
    """The messages that the rules of installed adapters quote, by the rule's code."""
    from batchbridge.contract import plugins

    found: dict[str, ErrorText] = {}
    for adapter in plugins.adapters().values():
        try:
            rows = plugins.rows(adapter)
        except Exception:  # as in `known_texts`
            continue
        for row in rows if _has_own_rows(adapter) else ():
            patterns = [*quotations(row.native), *([known.pattern] if (known := found.get(row.code)) else [])]
            if patterns and (known is None or known.framework == adapter.framework):
                found[row.code] = _quoted(row, adapter.framework, "|".join(dict.fromkeys(patterns)))
    return tuple(found.values())


_BROKEN = "the configuration breaks this rule; batchbridge check FILE names the line and the nearest fixes"
_RETIRED = "the framework's own constructor refuses these settings; batchbridge check --native FILE asks it"


def _quoted(row: RuleRow, framework: str, pattern: str) -> ErrorText:
    return ErrorText(
        name=row.code,
        framework=framework,
        versions=row.versions or "every version that is read",
        pattern=pattern,
        rule=f"{row.code}, which quotes: {row.native}",
        meaning=_RETIRED if getattr(row, "retired", "") else _BROKEN,
        phase=row.phase,
        source=row.source,
    )


def _diagnosis(entry: ErrorText, said: str, line: int, numbers: Numbers, given: Numbers) -> Diagnosis:
    known = {**given, **numbers}
    missing = tuple(ask for ask in entry.asks if ask.name not in known)
    fixes: dict[str, Fix] = {}  # equal texts are one fix
    try:
        for fix in entry.neighbours(known):
            fixes.setdefault(fix.text, fix)
    except (KeyError, ZeroDivisionError):  # the neighbours need what is asked for, and no zeros
        fixes = {}
    return Diagnosis(text=entry, line=line, said=said, numbers=numbers, fixes=tuple(fixes.values()), asks=missing)


def _flat(text: str) -> tuple[str, Callable[[int], int]]:
    """The end of `text` without colours and launchers' prefixes, with single blanks; and a function from position to
    the line of `text`, as editors count them: a progress bar is one."""
    words, starts, length = [], [], 0
    first = 1 + text.count("\n", 0, max(len(text) - MAX_CHARACTERS, 0))
    for number, line in enumerate(PREFIX.sub("", ESCAPES.sub("", text[-MAX_CHARACTERS:])).split("\n"), first):
        for word in line.split():
            starts.append((length, number))
            words.append(word)
            length += len(word) + 1

    def line_of(position: int) -> int:
        from bisect import bisect_right

        index = bisect_right(starts, (position, _LARGEST)) - 1
        return starts[index][1] if starts else 1

    return " ".join(words), line_of


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)

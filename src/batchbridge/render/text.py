"""Plain text for people: stable, without colour, safe to print whatever a configuration contains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.meaning.briefs import printable
from batchbridge.render import findings as shown
from batchbridge.render import headline
from batchbridge.render.findings import PHASES as PHASES  # others have it from here
from batchbridge.render.findings import TableRenderer as TableRenderer  # others have it from here
from batchbridge.render.findings import count as count  # others have it from here
from batchbridge.render.findings import number as number  # others have it from here
from batchbridge.render.findings import one_line as one_line  # others have it from here
from batchbridge.render.findings import paths_from_here, shortened, shown_path
from batchbridge.render.headline import HeadlineFacts
from batchbridge.render.headline import who as who  # others have it from here
from batchbridge.render.secrets import without_secrets
from batchbridge.render.words import cells, listed, padded, say

if TYPE_CHECKING:
    from batchbridge.contract.enforcement import Enforcement
    from batchbridge.contract.held import Held
    from batchbridge.contract.reading import Provenance, Reading
    from batchbridge.meaning.findings import Finding
    from batchbridge.reading.ways_out import WayOut

NO_UNITS = ("", "kind", "1", "see unit", "flag", "seed")
"""Units that say nothing beside a value."""


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, no line ends in blanks."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(padded(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def check(
    name: str,
    reading: Reading,
    table: TableRenderer = plain_table,
    ways_out: Sequence[tuple[Finding, Sequence[WayOut]]] = (),
    enforcement: Enforcement | None = None,
    *,
    verbose: bool = False,
    beside: HeadlineFacts = headline.NOTHING_BESIDE,
) -> str:
    """The verdict on a reading, its batches, whether its run would be followed, then the findings."""
    followed = _followed(reading, enforcement, verbose)
    below = (*headline.lines(reading, beside, sizes=True, verbose=verbose), *followed)
    findings = shown.lines(name, reading, table, ways_out, verbose=verbose)
    versions = headline.releases(beside.judged, verbose=verbose)
    return _printable([_section(summary(name, reading, verbose=verbose), (*below, *findings, *versions))])


def explain(
    name: str,
    reading: Reading,
    table: TableRenderer = plain_table,
    ways_out: Sequence[tuple[Finding, Sequence[WayOut]]] = (),
    enforcement: Enforcement | None = None,
    *,
    verbose: bool = False,
    beside: HeadlineFacts = headline.NOTHING_BESIDE,
    held: Held | None = None,
) -> str:
    """A reading in words: meaning, lanes, and what the source says; verbose: all fields with units and provenance,
    what of them was compared with the framework's own functions, derived numbers, and what the framework does by
    itself; then the findings."""
    followed = _followed(reading, enforcement, verbose)
    versions = headline.releases(beside.judged, verbose=verbose)
    # The sizes of a program that counts batches in another way are not those of the specification.
    own = reading.counts_itself
    below = (*headline.lines(reading, beside, sizes=own, verbose=verbose), *followed, *versions)
    sections = [_section(summary(name, reading, verbose=verbose), below)]
    if reading.spec is not None and own:
        sections.append(_section(say("What is set"), _fields(name, reading, table, verbose=False)))
    elif reading.spec is not None and not beside.refused:
        from batchbridge.render.lanes_in_text import bars
        from batchbridge.render.sentences import meaning

        sections.append(_section(say("Meaning"), meaning(reading)))
        if drawn := list(bars(reading.spec, reading.derived)):
            sections.append("\n".join(f"  {line}" for line in drawn))
        title = say("Specification" if verbose else "What is set")
        sections.append(_section(title, _fields(name, reading, table, verbose)))
        if verbose:
            sections[-1] += f"\n  {_compared(reading, held)}"
            rows = [(name, quantity(name, value, unit)) for name, value, unit in numbers(reading.derived)]
            sections.append(_section(say("Derived"), table((say("number"), say("value")), rows).splitlines()))
    if reading.behaviour is not None and not own:
        from batchbridge.render.sentences import DEFECT, behaviour

        told = behaviour(reading.behaviour, verbose=verbose)
        if lines := [f"{word}: {text}" for word, text in told if verbose or word.startswith(DEFECT)]:
            sections.append(_section(say("What {framework} does on its own", framework=who(reading)), lines))
    if lines := list(shown.lines(name, reading, table, ways_out, verbose=verbose)):
        sections.append(_section(say("Findings"), lines))
    return _printable(["\n\n".join(sections)])


def _compared(reading: Reading, held: Held | None) -> str:
    """The evidence for what an adapter says that settings mean: of this release, of another one, or none."""
    if held is None:
        return say(
            "no function of {framework} was asked: its adapter's author says what settings mean", framework=who(reading)
        )
    told = {"framework": f"{reading.framework} {held.version}", "digest": held.digest, "fields": held.holds}
    if reading.copy is None and reading.framework_version == held.version.split()[0]:
        compared = say("compared with the functions of {framework} ({digest}): {fields}", **told)
    else:
        this = who(reading)
        compared = say(
            "compared with the functions of {framework} ({digest}), and not of {this}: {fields}", this=this, **told
        )
    if not held.said:
        return compared
    return f"{compared}\n  {say('said by its adapter alone: {fields}', fields=held.unheld)}"


def _printable(lines: Iterable[str]) -> str:
    return clean(paths_from_here("\n".join(lines)))


def summary(name: str, reading: Reading, *, verbose: bool = False) -> str:
    """`run.yaml  trl 1.16.0  8 devices  INVALID  1 error, 2 warnings`."""
    parts = [one_line(shown_path(name)), say("framework unknown") if reading.framework == "unknown" else who(reading)]
    guess = next(iter(reading.guessed), None)
    if reading.spec is not None:
        parts.append(count(reading.spec.topology.world_size, "device"))
    if guess is not None:
        said = parts[2] if reading.spec is not None else f"{guess.key} = {guess.value}"
        parts[2:] = [one_line(say("{said}, a guess from {place}", said=said, place=shown.place_of(name, guess)))]
    verdict = "not read" if reading.framework == "unknown" and reading.verdict == "undecided" else reading.verdict
    return "  ".join([*parts, say(verdict.upper()), shown.counts(reading.findings, verbose=verbose)])


FOLLOWED = {
    "enforced": "enforced",
    "with_allow": "enforced with --allow",
    "refused": "refused",
    "unknown": "not known before it starts",
}


def _followed(reading: Reading, enforcement: Enforcement | None, verbose: bool) -> Iterator[str]:
    """`run and wrap: refused: deepspeed, and 2 more (-v says why, and what to do)`; verbose: each with its remedy.

    Of an invalid configuration, and of one that is not read, the findings say it all.
    """
    if enforcement is None or ((reading.spec is None or reading.verdict == "invalid") and not verbose):
        return
    names = [one.name for one in enforcement.obstacles]
    word, hint = say(FOLLOWED[enforcement.verdict]), " (-v says why, and what to do)"
    if enforcement.verdict == "with_allow":
        said = f"{word} {listed(names)}"
    elif names:
        first = say("{name}, and {number} more", name=names[0], number=len(names) - 1) if names[1:] else names[0]
        said = say("{word}: {name}", word=word, name=first)
        if enforcement.verdict == "refused" and enforcement.watch is not None:
            said += say("; --mode {mode} takes it", mode=enforcement.watch)
    else:
        said, hint = listed((word, say(str(enforcement.evidence)))), " (-v says what is assumed)"
    hint = say(hint) if (names or enforcement.assumes) and not verbose else ""
    yield one_line(say("run and wrap: {said}", said=said)) + hint
    if verbose:
        told = {finding.code for finding in reading.findings}
        for one in (one for one in enforcement.obstacles if one.name not in told):
            perhaps = "" if one.certain else say(" (perhaps)")
            yield f"  {one.name}{perhaps}: {one_line(one.reason)}"
            yield say("    remedy: {text}", text=one_line(one.remedy))
        yield from (say("  assumed: {text}", text=one_line(one)) for one in enforcement.assumes)


def clean(text: str) -> str:
    """`text` without control characters (a configuration could hold a terminal's escape codes) and without keys of
    services; line ends stay."""
    return without_secrets("\n".join(map(printable, text.split("\n"))))


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _fields(name: str, reading: Reading, table: TableRenderer, verbose: bool) -> Iterator[str]:
    """The fields that the source itself says; verbose: every field that it says or that follows from it, in schema
    order, then the schema's own defaults."""
    from batchbridge.meaning.spec import walk

    assert reading.spec is not None
    provenance = reading.provenance
    rows, given, defaults, unset = [], [], [], []
    for path, value, quantity in walk(reading.spec):
        if path in provenance:
            unit = "" if quantity.unit in NO_UNITS else quantity.unit
            origin, cell = provenance[path], one_line(value)
            rows.append((path.removeprefix("carried."), cell, unit, one_line(_origin(origin))))
            if origin.key is not None and origin.origin != "default":
                other = "" if one_line(origin.value) == cell else f" = {shortened(cell)}"
                given.append((one_line(_set(name, origin)), f"{path.removeprefix('carried.')}{other}"))
        elif value in (None, ()):
            unset.append(path)
        else:
            defaults.append(f"{path} = {one_line(value)}")
    if verbose:
        yield from table([say(column) for column in ("field", "value", "unit", "from")], rows).splitlines()
    elif given:
        yield from table((say("setting"), say("is")), given).splitlines()
    if verbose:
        for title, paths in (("at the schema's defaults:", defaults), ("unknown, unlimited or off:", unset)):
            yield from (say(title), *(f"  {line}" for line in wrapped(paths))) if paths else ()
    else:
        more = len(rows) - len(given) + len(defaults) + len(unset)
        yield say("{number} more fields follow from these, have a default, or are off (-v shows them)", number=more)


def wrapped(items: Iterable[str]) -> list[str]:
    """The items in lines of `_WIDTH` columns, each item whole."""
    import textwrap

    # No-break spaces keep each item in one line; textwrap breaks at ASCII blanks only.
    text = ", ".join(item.replace(" ", "\u00a0") for item in items)
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


_WIDTH = 100
"""Columns of listings; fixed, so that output does not depend on the terminal."""


def _origin(origin: Provenance) -> str:
    """Key, value and place; of the file only its name, which stands in full on the first line."""
    file = origin.file or ""
    detail = origin.detail.replace(file, file.rpartition("/")[2], 1)
    return detail if origin.key is None else f"{origin.key} = {one_line(origin.value)} ({detail})"


def _set(name: str, origin: Provenance) -> str:
    """Key, value and place: `num_generations = 14 (:4)`."""
    if origin.origin == "file" and origin.file is not None and origin.line is not None:
        own = os.path.normpath(origin.file) == os.path.normpath(name)
        place = f"{'' if own else shown_path(origin.file)}:{origin.line}"
    else:
        place = origin.detail if origin.origin == "object" else origin.origin
    return f"{origin.key} = {shortened(one_line(origin.value))} ({place})"


def numbers(derived: Mapping[str, Any]) -> list[tuple[str, int | float, str]]:
    """(name, value, unit) of the derived numbers that are known."""
    from batchbridge.meaning.derived import UNITS

    return [(name, derived[name], unit) for name, unit in UNITS.items() if derived.get(name) is not None]


def quantity(name: str, value: int | float | None, unit: str) -> str:
    """A derived number with its unit, where its name does not say that: `optimizer_steps_per_rollout: 1`."""
    said = all(word in name.split("_") for word in unit.split())
    one = unit.removesuffix("es") if unit.endswith("ches") else unit.removesuffix("s")
    return number(value) if said or unit in NO_UNITS else count(value, one, unit)

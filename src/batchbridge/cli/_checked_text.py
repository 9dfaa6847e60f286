"""A text as an editor has it, saved or not: its problems with their places, ways out as edits, and what a key means.

Lines and columns are counted from 0, columns in characters. Nothing here knows the language server's protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import click

from batchbridge.comparing.edit_text import lines_in
from batchbridge.comparing.fix_file import fix_text, safe_fixes
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding, Where
from batchbridge.reading.files import load_text
from batchbridge.reading.read import UNKNOWN, read
from batchbridge.render.findings import kind_of, one_line, place_of, sizes_of, value_span
from batchbridge.reports import Check, check

NO_RULE = ""
"""The code of what no rule says: the project's settings are wrong."""


@dataclass(frozen=True)
class TextRange:
    """A part of one line."""

    line: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class EditorProblem:
    """A finding at its place. kind: of `meaning.findings.KINDS`. beside: other places of it, here or in other files,
    each with its words."""

    finding: Finding
    kind: str
    place: TextRange
    message: str
    beside: tuple[tuple[Where, str], ...] = ()


@dataclass(frozen=True)
class LineEdit:
    """Lines `first` to `last` (which stays) of a text, and what stands in their place."""

    first: int
    last: int
    new: str


@dataclass(frozen=True)
class EditorFix:
    """A way out of a problem, as edits of the text."""

    title: str
    edits: tuple[LineEdit, ...]
    safe: bool


class CheckedText:
    """The text of the file `path`, as `batchbridge check` judges it with the project's settings.

    texts: of other files that the editor has, whose comments count in the place of the disk's; a recipe that a script
    names is read from the disk.
    """

    def __init__(self, text: str, path: Path, texts: Mapping[str, str] | None = None) -> None:
        self.text, self.path = text, path
        self.lines = text.split("\n")
        self.refused = ""
        """The reason why nothing could be checked: the project's settings are wrong."""
        self._said: dict[str, Any] = {}
        self.found: Check | None = None
        try:
            self.found = self._check({**(texts or {}), str(path): text})
        except click.UsageError as refused:
            self.refused = refused.format_message()

    def _check(self, texts: Mapping[str, str]) -> Check:
        from batchbridge.cli._project import project
        from batchbridge.cli._selection import FindingSelection

        name = str(self.path)
        own = project(name)
        of_file = own.of(name)
        counts = FindingSelection.of(name, own, (), (), own.baseline)
        counts.texts = texts
        self._said = {key: of_file.get(key) for key in ("framework", "world_size", "dataset_size")}
        self._said["version"] = of_file.get("framework_version")
        loaded = self._source(self.text)
        return check(loaded, name=name, keep=counts.counts, expect=own.expected_of(name), **self._said)

    def _source(self, text: str) -> Any:
        return load_text(
            text, self.path, framework=self._said.get("framework"), world_size=self._said.get("world_size")
        )

    @property
    def is_run(self) -> bool:
        """Whether an adapter reads it: an editor has many other files, about which nothing is said."""
        return self.found is not None and self.found.reading.framework != UNKNOWN

    @cached_property
    def problems(self) -> tuple[EditorProblem, ...]:
        """The findings, each at its first place in this text, else at its first line."""
        if self.found is None:
            return (self._at_top(Finding(NO_RULE, "error", "config", self.refused)),)
        return tuple(map(self._problem, self.found.findings)) if self.is_run else ()

    def _at_top(self, finding: Finding) -> EditorProblem:
        return EditorProblem(
            finding=finding, kind=kind_of(finding), place=self._whole(0), message=one_line(finding.message)
        )

    def _problem(self, finding: Finding) -> EditorProblem:
        here = [one for one in finding.where if place_of(str(self.path), one).startswith(":")]
        first = here[0] if here else None
        place = self._whole(0) if first is None or first.line is None else self.range_of(first)
        others = [one for one in finding.where if one is not first and one.file is not None]
        said = finding.message if finding.native is None else f"{finding.message}\n{finding.native}"
        fixes = [fix.text for fix in finding.fixes[:3]]
        return EditorProblem(
            finding=finding,
            kind=kind_of(finding),
            place=place,
            message=f"{said}\nfix: {', or '.join(fixes)}" if fixes else said,
            beside=tuple((one, f"{one.key} = {one_line(one.value)}") for one in others if one.key is not None),
        )

    def range_of(self, where: Where) -> TextRange:
        """The value of a setting on its line; its key, or the line's words, where the value is not to be seen there."""
        number = min(max((where.line or 1) - 1, 0), len(self.lines) - 1)
        line, key = self.lines[number], str(where.key).rpartition(".")[2]
        if where.key is not None and (span := value_span(line, where)) is not None:
            return TextRange(number, *span)
        if where.key is not None and key in line:
            return TextRange(number, line.index(key), line.index(key) + len(key))
        return self._whole(number)

    def _whole(self, number: int) -> TextRange:
        line = self.lines[number]
        return TextRange(number, len(line) - len(line.lstrip()), max(len(line.rstrip()), 1))

    @property
    def headline(self) -> str:
        """`trl 1.16.0  8 devices  VALID  1 warning: 8 prompts x 4 = 32 completions per rollout; ...`, on one line."""
        if self.found is None or not self.is_run:
            return ""
        first, *rest = self.found.text().splitlines()
        verdict = "  ".join(first.split("  ")[1:])
        sizes = next((line.strip() for line in rest if re.match(r"  \S.* x .* = ", line)), "")
        return f"{verdict}: {sizes}" if sizes else verdict

    def fixes(self, finding: Finding) -> Iterator[EditorFix]:
        """The ways out of a finding that can be written into this text; each was read again."""
        if self.found is None:
            return
        reading = self.found.reading
        version = reading.framework_version if reading.copy is None else self._said["version"]
        again = partial(self._again, version)
        if safe_fixes([finding]):
            made = fix_text(self.text, self.path, reading, [finding], again)
            if made.new is not None:
                yield EditorFix(made.done[0], self.edits(made.new), safe=True)
        for error, ways in self.found.ways_out:
            for way in ways if error == finding else ():
                made = fix_text(self.text, self.path, reading, [finding], again, (finding, way.fix))
                if made.new is not None:
                    yield EditorFix(f"{way.fix.text} ({sizes_of(way)})", self.edits(made.new), safe=False)

    def _again(self, version: str | None, text: str) -> Any:
        return read(self._source(text), **{**self._said, "version": version})

    def edits(self, new: str) -> tuple[LineEdit, ...]:
        """The edits that turn the text into `new`, by lines."""
        after = new.split("\n")
        matched = SequenceMatcher(a=self.lines, b=after, autojunk=False).get_opcodes()
        return tuple(
            LineEdit(first, last, "".join(f"{line}\n" for line in after[start:end]))
            for kind, first, last, start, end in matched
            if kind != "equal"
        )

    def hover(self, line: int, column: int) -> tuple[TextRange, str] | None:
        """The part of a line that a setting stands in, and in Markdown what the setting means; None: none stands
        there."""
        if self.found is None or not self.is_run:
            return None
        reading = self.found.reading.supposed
        for key, number in lines_in(reading, self.path).items():
            if number - 1 != line:
                continue
            where = reading.places[key]
            text, name = self.lines[line], key.rpartition(".")[2]
            start = text.find(name)
            value = self.range_of(where)
            end = max(value.end, start + len(name))
            if 0 <= start <= column < end:
                return TextRange(line, start, end), "\n\n".join(filter(None, self._meaning(key, where)))
        return None

    def _meaning(self, key: str, where: Where) -> Iterator[str]:
        from batchbridge.meaning.spec import every_field
        from batchbridge.render.text import count, quantity, who

        assert self.found is not None
        reading = self.found.reading.supposed
        means = reading if reading.spec is not None or self.found.example is None else self.found.example
        yield f"**{key}** = `{one_line(where.value)}` ({who(reading)})"
        if told := _described(reading.framework, reading.framework_version).get(key):
            yield told
        quantities = dict(every_field())
        lines: list[str] = []
        decided = [(path, origin) for path, origin in means.provenance.items() if key in origin.keys]
        for path, origin in decided:
            said = quantities.get(path)
            if said is None or means.spec is None:
                continue
            others = [f"`{one}`" for one in origin.keys if one != key]
            beside = f" With {', '.join(others)}." if others else ""
            lines.append(
                f"- `{path}`: {quantity(path, means.spec.values.get(path), said.unit)}. {said.meaning}{beside}"
            )
        if lines and means.spec is not None and means is not reading:
            devices = count(means.spec.topology.world_size, "device")
            yield f"The file says no number of devices; for example on {devices}:"
        yield "\n".join(lines)
        if not decided and not told:
            yield "No size of a batch rests on it."


@cache
def _described(framework: str, version: str | None) -> Mapping[str, str]:
    """Key to what the framework's own file's schema says of it, where there is such a schema."""
    from batchbridge.cli.schema import key_rows
    from batchbridge.contract import plugins

    adapter = plugins.adapters().get(framework)
    if adapter is None or version is None:
        return {}
    try:
        schema = adapter.file_schema(version)
    except ValueError:  # a version that it does not know
        return {}
    return {} if schema is None else {row[0]: row[-1] for row in key_rows(schema)}

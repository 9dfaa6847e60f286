"""Findings that count (`--select`, `--ignore`, comments in the file, a baseline) and that make a command fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

import click

from batchbridge.cli._input import ARGUMENTS
from batchbridge.cli._project import FAIL_ON, ProjectSettings
from batchbridge.cli.main import EXIT_CODES, FINE, INVALID
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding, Verdict

_CODE = re.compile(r"BB(?:\d{0,3}|-[A-Z0-9-]*)")
_UNREAD = re.compile(r"BB00\d")
"""Errors of these codes keep a file from being read: they always count."""
_INPUT = re.compile(r"BB0\d\d")
"""Codes of reading a file, of its framework and version, and of plugins: `--select` chooses among the other rules."""


def codes(texts: Iterable[str], option: str) -> tuple[str, ...]:
    """Codes or their beginnings, from the values of an option, each of which may hold several (`BB121,BB-TRL`). Raises
    `click.UsageError`, which names the `option`."""
    found = tuple(code for text in texts for code in re.split(r"[\s,]+", text.strip()))
    if wrong := [code for code in found if not _CODE.fullmatch(code)]:
        raise click.UsageError(
            f"{option} {wrong[0]!r}: a code such as BB-TRL-062, or its beginning (BB-TRL), was expected"
        )
    return found


@dataclass(kw_only=True)
class FindingSelection:
    """The findings about `file` that count. select: codes, or beginnings of codes, of the rules that are asked; none:
    all. ignore: of those that are not. baseline: a file of findings that do not count. dropped: codes of the findings
    that did not count so far."""

    file: str | None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: Path | None = None
    dropped: set[str] = field(default_factory=set)
    texts: Mapping[str, str] = field(default_factory=dict)
    """The texts of files that an editor has and the disk perhaps not."""
    _comments: dict[str, _Comments] = field(default_factory=dict, init=False, repr=False)
    _known: frozenset[str] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(
        cls, file: str | None, own: ProjectSettings, select: Iterable[str], ignore: Iterable[str], baseline: Path | None
    ) -> FindingSelection:
        """The selection from options and what the project says: it ignores more, and selects where no option does.
        Raises `click.UsageError`."""
        ignored = (*ignore, *own.settings.get("ignore", ()), *own.of(file).get("ignore", ()))
        chosen = select or own.settings.get("select", ())
        return cls(file=file, select=codes(chosen, "select"), ignore=codes(ignored, "ignore"), baseline=baseline)

    def counts(self, finding: Finding) -> bool:
        """Whether it does. Errors that keep a file from being read always do."""
        if finding.severity == "error" and _UNREAD.fullmatch(finding.code):
            return True
        chosen = not self.select or finding.code.startswith(self.select) or _INPUT.fullmatch(finding.code)
        ignored = finding.code.startswith((*self.ignore, *self._commented(finding)))
        if chosen and not ignored and not self._in_baseline(finding):
            return True
        self.dropped.add(finding.code)
        return False

    def _in_baseline(self, finding: Finding) -> bool:
        if self.baseline is None:
            return False
        from batchbridge.cli import _baseline

        if self._known is None:
            self._known = _baseline.load(self.baseline)
        return _baseline.knows(self.baseline, self._known, self.file or ARGUMENTS, finding)

    def _commented(self, finding: Finding) -> Iterator[str]:
        """Codes that comments ignore: `ignore-file` anywhere in the file or in one that the finding names, `ignore` on
        a line that it names."""
        for name in dict.fromkeys((self.file, *(where.file for where in finding.where))):
            if name is not None:
                said = self._comments.get(name) or self._comments.setdefault(
                    name, _Comments.of(name, self.texts.get(name))
                )
                yield from said.everywhere
                for where in finding.where:
                    if where.file == name and where.line is not None:
                        yield from said.by_line.get(where.line, ())


_CODES = r"(?:[\s,]+BB[0-9A-Z-]+(?![\w-]))+"
_COMMENT = re.compile(rf"(?:^|\s)#\s*batchbridge:\s*ignore(?P<file>-file)?(?P<codes>{_CODES})")


@dataclass(frozen=True)
class _Comments:
    """The codes that a file's comments ignore: everywhere, and by line."""

    everywhere: tuple[str, ...] = ()
    by_line: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: str, text: str | None = None) -> _Comments:
        """The comments of a file, or of its text; none where it cannot be read (a finding says that)."""
        from batchbridge.reading import documents
        from batchbridge.reading.yaml_json import RefusedFile

        try:
            lines = (documents.read_text(Path(file), file) if text is None else text).split("\n")
        except RefusedFile:
            return cls()
        found = [(number, each) for number, line in enumerate(lines, 1) for each in _COMMENT.finditer(line)]
        said = [(number, each["file"], tuple(re.split(r"[\s,]+", each["codes"])[1:])) for number, each in found]
        everywhere = tuple(code for _, of_file, codes in said if of_file for code in codes)
        return cls(everywhere, {number: codes for number, of_file, codes in said if not of_file})


def exit_code(verdict: Verdict, findings: Iterable[Finding], fail_on: str, *, unread: bool = False) -> int:
    """The exit code of `check`: 0; 2 of an error (a warning where it is to fail); 4 of what is undecided or not read,
    where that is to fail."""
    if fail_on == "warning" and any(finding.severity == "warning" and not finding.undecided for finding in findings):
        return INVALID
    if verdict == "undecided" and FAIL_ON.index(fail_on) < FAIL_ON.index("unread" if unread else "undecided"):
        return FINE
    return EXIT_CODES[verdict]

"""Runs what the pages tell a reader to type, and writes the outputs that they show: `python docs/make_outputs.py`.

Without arguments README.md and every page below docs/ are run, with arguments only the pages named. Where a command
prints something else than its page shows, the block is rewritten in place: a line `...` goes on standing for the
lines that it stood for, lines that are shown stay shown, and each block that changed is listed, to be read before it
is committed. Nothing is written where an output still fits, and a page of which a command fails is left as it is.
`--check` writes nothing, and fails where an output does not fit.

What the blocks of a page are:

- a block with a title (```yaml title="recipe.yaml") is a file that the reader saves;
- in a ```console block every line `$ ...` is typed in a shell, and its output compared; `...` stands for anything;
- `<!-- made -->` above a titled block: what is in a file by then; `<!-- change -->`: definitions that take the place of
  those of the same name in a Python file, or are added to it;
- `<!-- 80 columns -->` above a console block: its commands write to a terminal of that width, without colours;
- `<!-- with: trl tests/... -->` above a console block: where that package is installed, its commands are typed in a
  folder of their own, with the files of that one, which the page calls /mine; elsewhere the block is left as it is;
- `<!-- tested by: tests/... -->` above a block: that test runs it, and this script does not.

README.md and the pages directly in docs/ are read in a checkout: their commands run at the repository's root, each by
itself. A page that saves files, and every tutorial and how-to, begins in an empty folder, and its blocks run from the
first to the last. `tests/docs/test_code_blocks.py` and `tests/docs/test_walkthroughs.py` hold the pages to this.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from changed_module import changed

from batchbridge.reading.toml import parse_toml

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"""^(?:[ ]*<!--[ ](?P<said>made|change|80[ ]columns|with:[ ]\S+[ ]\S+|tested[ ]by:[ ]\S+)[ ]-->\n+)?
    (?P<indent>[ ]*)```(?P<language>\w*)(?:[ ]title="(?P<title>[^"\n]+)")?[^\n`]*\n(?P<text>.*?)^(?P=indent)```$""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
SHOWN = "..."
TERMINAL, COLUMNS = "80 columns", 80
"""How a block is marked that is typed at a terminal, and its width."""
ALIKE = 0.5
"""How alike (difflib's ratio) a shown line and a printed one are at least, to be taken for the same line."""
FAILURES = ("Traceback (", "Usage: ")
"""What no page shows by itself: the command is wrong, or the program."""
EMPTY_FOLDER = ("docs/tutorials/", "docs/howto/")


@dataclass(frozen=True)
class Block:
    """A block of code of a page; `text` is without the page's indentation."""

    said: str
    language: str
    title: str
    text: str
    indent: str
    span: tuple[int, int]
    """Where the text stands in the page."""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(command, expected output) of every command of a console block."""
        parts = COMMAND.split(self.text)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [
        Block(
            said=one["said"] or "",
            language=one["language"],
            title=one["title"] or "",
            text=textwrap.dedent(one["text"]) if one["indent"] else one["text"],
            indent=one["indent"],
            span=one.span("text"),
        )
        for one in found
    ]


def pages() -> list[Path]:
    """README.md, and every page below docs/; Chinese ones have their blocks of these (`make_chinese.py`)."""
    return [
        ROOT / "README.md",
        *(page for page in sorted((ROOT / "docs").glob("**/*.md")) if not page.is_relative_to(ROOT / "docs" / "zh")),
    ]


def begins_empty(page: Path) -> bool:
    """Whether a page's reader begins in an empty folder (else in a checkout)."""
    place = page.relative_to(ROOT).as_posix()
    return place.startswith(EMPTY_FOLDER) or any(block.title for block in blocks(page))


@dataclass
class Reader:
    """Somebody who does what a page says, in `folder`."""

    folder: Path
    paths: list[str] = field(default_factory=lambda: [str(Path(place).resolve()) for place in sys.path if place])
    last: int = 0
    """The exit code of the last command."""

    def does(self, block: Block) -> Iterator[tuple[str, str, str]]:
        """What a block shows, beside what is really there: (command or file, expected, actual)."""
        if block.said.startswith("tested by:"):
            return
        if block.said.startswith("with:"):
            yield from _with_package(block)
            return
        file = self.folder / block.title
        if block.title and block.said == "made":  # a part of it
            yield block.title, f"{SHOWN}\n{block.text}{SHOWN}\n", file.read_text(encoding="utf-8")
        elif block.title and block.said == "change":
            file.write_text(changed(file.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        elif block.title:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, expected in block.commands:
                yield command, expected, self.types(command, at_terminal=block.said == TERMINAL)

    def types(self, command: str, *, at_terminal: bool = False) -> str:
        """What a command prints: standard output, then standard error. at_terminal: the first goes to a terminal of
        `COLUMNS`."""
        if command.startswith("pip install -e "):
            self.paths += installed(self.folder / command.split()[-1], self.folder / ".site")
            return ""
        with tempfile.TemporaryDirectory() as programs:
            for name in ("batchbridge", "pytest", "python"):
                words = [sys.executable, *([] if name == "python" else ["-m", name])]
                program = Path(programs, name)
                program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
                program.chmod(0o755)
            environment = {
                **os.environ,
                **dict.fromkeys(
                    ("LC_ALL", "LC_MESSAGES", "LANG"), "C.UTF-8"
                ),  # outputs are English, whoever writes them
                "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
                "PYTHONPATH": os.pathsep.join(self.paths),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_ADDOPTS": "-p no:cacheprovider",
                **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull),
                **{f"GIT_{who}_{what}": "reader" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            }
            words = ["bash", "-c", f"(exit {self.last})\n{command}"]
            if at_terminal:
                environment |= {"TERM": "xterm", "NO_COLOR": "1"}
                environment.pop("COLUMNS", None)
                self.last, printed = _on_terminal(words, self.folder, environment)
                return printed
            run = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        self.last = run.returncode
        return run.stdout + run.stderr


def _on_terminal(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The exit code of a command, and what it writes to a terminal, then to standard error."""
    import fcntl
    import pty
    import struct
    import termios

    reads, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    written = b""
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(words, cwd=folder, env=environment, stdout=terminal, stderr=errors) as run:
            os.close(terminal)
            while True:
                try:
                    more = os.read(reads, 1 << 16)
                except OSError:  # Linux says so that nobody writes any more
                    break
                if not more:
                    break
                written += more
        os.close(reads)
        errors.seek(0)
        said = (written + errors.read()).decode("utf-8").replace("\r\n", "\n")
    return run.returncode, said


def _with_package(block: Block) -> Iterator[tuple[str, str, str]]:
    """What the commands of a block print that need a package and files; nothing where it is not installed."""
    package, files = block.said.split()[1:]
    if importlib.util.find_spec(package) is None:
        return
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / files, place, dirs_exist_ok=True)
        reader = Reader(Path(place))
        for command, expected in block.commands:
            yield command, expected, reader.types(command).replace(place, "/mine")


def installed(package: Path, site: Path) -> list[str]:
    """What `pip install -e` adds to the path; the entry points are those of the package's pyproject.toml."""
    project = parse_toml((package / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml").value["project"]
    described = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (described / "entry_points.txt").write_text("".join(groups), encoding="utf-8")
    return [str(site), str(package / "src")]


_ROUNDING = r"\d\.\de-(?:0[5-9]|[1-9]\d)"
_ROUNDING_IN_PATTERN = r"\d\\\.\de\\-(?:0[5-9]|[1-9]\d)"
"""Numbers as small as float32's rounding; and the same, escaped."""


def fits(expected: str, actual: str) -> bool:
    """Whether an output is the one that a page shows; `...` stands for anything, a line `...` for any lines or none. Of
    numbers as small as float32's rounding, which another processor changes, the size counts."""
    lines = expected.strip().splitlines()
    wanted = "".join(r"(?:.*\n)?" if line.strip() == SHOWN else rf"{pattern(line)}\n" for line in lines)
    wanted = re.sub(_ROUNDING_IN_PATTERN, lambda number: rf"({_ROUNDING})", wanted)
    found = re.fullmatch(wanted, actual.strip() + "\n" if lines else actual.strip(), re.DOTALL)
    sizes = [float(number) for line in lines for number in re.findall(_ROUNDING, line)]
    return found is not None and all(
        shown / 4 <= float(printed) <= shown * 4 for shown, printed in zip(sizes, found.groups(), strict=True)
    )


def pattern(text: str) -> str:
    """A regular expression of a text in which `...` stands for anything."""
    return re.escape(text).replace(re.escape(SHOWN), ".*")


def shortened(expected: str, actual: str) -> str:
    """The actual output, with `...` for the lines that the expected output leaves out, too."""
    shown, printed = expected.strip("\n").splitlines(), actual.strip("\n").splitlines()
    if shown == [SHOWN]:  # an output that no reader needs
        return expected
    if not any(line.strip() == SHOWN for line in shown):
        return "".join(f"{_cut(line, shown)}\n" for line in printed)
    pairs = [(-1, -1), *_pairs(shown, printed), (len(shown), len(printed))]
    lines: list[str] = []
    for (before, above), (after, below) in pairwise(pairs):
        if above >= 0:
            lines.append(_cut(printed[above], shown))
        gap, between = shown[before + 1 : after], printed[above + 1 : below]
        elided = [place for place, line in enumerate(gap) if line.strip() == SHOWN]
        if not elided:
            lines += between
            continue
        first, last = elided[0], len(gap) - elided[-1] - 1
        if len(between) <= first + last:
            lines += between
        else:
            lines += [*between[:first], gap[first], *between[len(between) - last :]]
    if [line.strip() for line in lines] == [SHOWN]:  # nothing that was shown is there any more
        lines = [*printed[:1], *lines]
    return "".join(f"{line}\n" for line in lines)


def _pairs(shown: list[str], printed: list[str]) -> list[tuple[int, int]]:
    """(shown, printed) numbers of lines that are the same or alike, in both orders; the most alike in all."""
    scores = [[_alike(line, other) for other in printed] for line in shown]
    best = [[0.0] * (len(printed) + 1) for _ in range(len(shown) + 1)]
    for i in reversed(range(len(shown))):
        for j in reversed(range(len(printed))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], scores[i][j] and scores[i][j] + best[i + 1][j + 1])
    found, i, j = [], 0, 0
    while i < len(shown) and j < len(printed):
        if scores[i][j] and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _alike(shown: str, printed: str) -> float:
    if shown.strip() == SHOWN:
        return 0.0
    if re.fullmatch(pattern(shown), printed):
        return 2.0
    words = shown.replace(SHOWN, "").lower(), printed.lower()
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    ratio = matcher.ratio() if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE else 0.0
    return ratio if ratio >= ALIKE else 0.0


def _cut(line: str, shown: list[str]) -> str:
    """A line as it is shown already, where `...` stands for a part of it and it still fits."""
    return next((old for old in shown if old.strip() != SHOWN and re.fullmatch(pattern(old), line)), line)


def brought_up_to_date(page: Path, folder: Path) -> str:
    """A page with the outputs that its commands have now.

    Raises `ValueError` where a command fails that did not: no output helps there.
    """
    text, places = page.read_text(encoding="utf-8"), []
    empty, reader = begins_empty(page), Reader(folder)
    for block in blocks(page):
        if not empty:
            if block.language != "console":
                continue
            reader = Reader(ROOT)
        new = ""
        for command, expected, actual in reader.does(block):
            if wrong := [word for word in FAILURES if word in actual and word not in expected]:
                raise ValueError(f"{page.relative_to(ROOT)}: {wrong[0].strip()}\n$ {command}\n{actual}")
            kept = expected if fits(expected, actual) else shortened(expected, actual)
            new += kept[4:-4] if block.said == "made" else f"$ {command}\n{kept}"
        if new and new != block.text:
            places.append((block.span, textwrap.indent(new, block.indent)))
    for (start, end), new in reversed(places):
        text = text[:start] + new + text[end:]
    return text


def main() -> int:
    """The command; 1 where a command fails, or `--check` finds a page that shows something else than is printed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", nargs="*", type=Path, help="pages (default: README.md and all of docs/)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where an output does not fit")
    asked = parser.parse_args()
    stale = failed = False
    for page in [one.resolve() for one in asked.page] or pages():
        old = page.read_text(encoding="utf-8")
        if "```console" not in old:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                new = brought_up_to_date(page, Path(folder))
            except ValueError as wrong:
                print(wrong, file=sys.stderr)
                failed = True
                continue
        name = page.relative_to(ROOT).as_posix()
        stale |= new != old
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, name, n=2))
        if not asked.check:
            page.write_text(new, encoding="utf-8")
    return int(failed or (stale and asked.check))


if __name__ == "__main__":
    sys.exit(main())

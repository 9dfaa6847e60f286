"""Every acting module, tampered with once: which tests find it. See `mutants` for the table.

    python tests/repository/mutations.py [--only TEXT] [--session NAME] [--python FRAMEWORK=INTERPRETER ...] [--write]

Every mutant is made in a copy of the tree, where the test command of its row must turn red; each command must be green
there without it. `core` runs in this interpreter unless another is named; a row whose framework has no interpreter is
"not run". Fails where a mutant survives, its text is not found once, a command is not green, or no row is asked for.
`--write`: docs/mutations.md. `nox -s mutations` makes every environment.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutants import MUTANTS, Mutant

from batchbridge_on_cpu.figures import commit_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutations.md"
COPIED = (
    "src",
    "adapters",
    "plugins",
    "examples",
    "tests",
    "docs",
    "benchmarks",
    "constraints",
    "pyproject.toml",
    "README.md",
)
COPIED += ("CHANGELOG.md", "CONTRIBUTING.md", "noxfile.py", "action.yml", "mkdocs.yml", "RELEASING.md")
PATHS = ("src", "adapters", "tests/on_cpu")
CHECKOUTS = {"easyr1": "BATCHBRIDGE_EASYR1", "open_instruct": "BATCHBRIDGE_OPEN_INSTRUCT"}
"""Frameworks without a distribution, and the variable that names a checkout."""
LONGEST = 1800.0
"""Seconds of one test command."""
GREEN, RED = 0, 1
"""pytest's exit codes; any other says that the tests did not run."""
FOUND, SURVIVED, NOT_RUN = "found", "SURVIVED", "not run"


@dataclass(frozen=True)
class Outcome:
    """The result of one row. seconds: of its test command with the mutant."""

    mutant: Mutant
    word: str
    seconds: float = 0.0


def faults(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """Rows whose text does not stand in their module exactly once, or that change nothing."""
    found = []
    for one in mutants:
        file = root / one.module
        count = file.read_text(encoding="utf-8").count(one.text) if file.is_file() else 0
        if count != 1:
            found.append(f"{one.module}: {one.text!r} stands there {count} times, not once")
        if one.text == one.instead:
            found.append(f"{one.module}: {one.text!r} is replaced by itself")
        found += [f"{one.module}: no test {word}" for word in one.tests if "/" in word and not (root / word).exists()]
    return found


class Bench:
    """A copy of the tree, and the interpreters of the sessions. Commands that were green without a mutant are known."""

    def __init__(self, folder: Path, pythons: Mapping[str, str]) -> None:
        self._root, self._pythons = folder / "tree", pythons
        self._root.mkdir()
        for name in COPIED:
            source, target = ROOT / name, self._root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".nox"))
            elif source.is_file():
                shutil.copy2(source, target)
        self._green: dict[tuple[str, ...], str] = {}

    def judged(self, mutant: Mutant) -> Outcome:
        """Whether the tests of a row find its mutant."""
        if mutant.session not in self._pythons:
            return Outcome(mutant, NOT_RUN)
        command = (mutant.session, *mutant.tests)
        if command not in self._green:
            self._green[command] = self._run(command)[1]
        if self._green[command]:
            return Outcome(mutant, f"not green without it: {self._green[command]}")
        file = self._root / mutant.module
        whole = file.read_text(encoding="utf-8")
        file.write_text(whole.replace(mutant.text, mutant.instead), encoding="utf-8")
        started = time.monotonic()
        try:
            code, said = self._run(command)
        finally:
            file.write_text(whole, encoding="utf-8")
        word = {GREEN: SURVIVED, RED: FOUND}.get(code, f"tests did not run: {said}")
        return Outcome(mutant, word, time.monotonic() - started)

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """pytest's exit code, and its last words where that is not 0."""
        session, *tests = command
        paths = os.pathsep.join(str(self._root / path) for path in PATHS)
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PYTHONDONTWRITEBYTECODE": "1",  # a file of the same size and second would be taken for its old self
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        words = (self._pythons[session], "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
        words += () if "-m" in tests else ("-m", "not by_hand")  # as the default sessions run them
        try:
            done = subprocess.run(
                words, cwd=self._root, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
            )
        except subprocess.TimeoutExpired:
            return 2, f"longer than {LONGEST:.0f} s"
        if done.returncode == GREEN:  # what only skips tests nothing
            ran = " passed" in done.stdout
            return (GREEN, "") if ran else (2, "every test was skipped")
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return done.returncode, " / ".join(last[-2:])[:300]


def page_of(outcomes: Sequence[Outcome], commit: str, before: str = "") -> str:
    """docs/mutations.md. before: the page as it was: a row that was not run now keeps what it says there."""
    known = {tuple(cells[:4]): cells for cells in map(_cells, before.splitlines()) if len(cells) == len(_COLUMNS)}
    told = {FOUND: FOUND, NOT_RUN: NOT_RUN, SURVIVED: SURVIVED}
    rows = []
    for one in outcomes:
        mutant = one.mutant
        change = f"{_code(mutant.text)} → {_code(mutant.instead) if mutant.instead.strip() else 'nothing'}"
        tests = " ".join(word.removeprefix("tests/") for word in mutant.tests)
        key = (mutant.name, change, f"{mutant.session}: `{tests}`", mutant.tier)
        today = datetime.date.today().isoformat()
        now = [*key, told.get(one.word, "not green"), *(("", "") if one.word == NOT_RUN else (commit, today))]
        rows.append(known.get(key, now) if one.word == NOT_RUN else now)
    found = sum(row[4] == FOUND for row in rows)
    head = f"{found} of {len(rows)} are found; {sum(row[4] == NOT_RUN for row in rows)} were not run."
    lines = [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ["---"] * len(_COLUMNS), *rows)]
    return "\n".join([_HEAD, head, "", *lines, ""])


def write(page: Path, outcome: Outcome, commit: str) -> None:
    """Writes one row's outcome into the page; every other row keeps what it says there."""
    before = page.read_text(encoding="utf-8") if page.is_file() else ""
    every = [outcome if one == outcome.mutant else Outcome(one, NOT_RUN) for one in MUTANTS]
    page.write_text(page_of(every, commit, before), encoding="utf-8")


_COLUMNS = ["module", "mutant", "found by", "tier", "result", "commit", "date"]
_HEAD = """# What a tampered module turns red

Every module that acts on a run is tampered with in one place, in a copy of the tree, and the tests named here must find
it. `default`: sessions that a plain `nox` runs; `by name`: those that run when they are named; `checkout`: those that
need a checkout of the framework, of which the project's own workflow runs the smoke on every commit and the whole at
night. The rows stand in
`tests/repository/mutants.py`. Written by `tests/repository/mutations.py`, which `nox -s mutations` runs.
"""


def _cells(line: str) -> list[str]:
    """The cells of a table's line."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _code(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|")
    return f"`{plain}`"


def commit_here() -> str:
    """The commit of the tree, with a word where files differ from it."""
    words = ("git", "status", "--porcelain", "--", "src", "adapters")
    dirty = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return commit_of(ROOT, 8) + (" with changes" if dirty.strip() else "")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--only", action="append", default=[], help="rows whose module or tests have this text")
    parser.add_argument("--session", action="append", default=[], help="rows of this session")
    parser.add_argument("--python", action="append", default=[], metavar="FRAMEWORK=INTERPRETER")
    parser.add_argument("--write", action="store_true", help="write docs/mutations.md, row by row")
    asked = parser.parse_args(words)
    if wrong := faults(MUTANTS):
        print(*wrong, sep="\n")
        return 1
    pythons = {"core": sys.executable, **dict(one.split("=", 1) for one in asked.python)}
    for name, variable in CHECKOUTS.items():
        if not os.environ.get(variable):
            pythons.pop(name, None)
    chosen = [
        one
        for one in MUTANTS
        if (not asked.session or one.session in asked.session)
        and (not asked.only or any(text in f"{one.name} {one.module} {' '.join(one.tests)}" for text in asked.only))
    ]
    if not chosen:
        print("no row has this session and text")
        return 1
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="bbm") as folder:
        commit = commit_here()  # of the copy: hours later the tree may have another
        bench = Bench(Path(folder), pythons)
        for mutant in chosen:
            outcomes.append(bench.judged(mutant))
            print(f"{outcomes[-1].word:10} {outcomes[-1].seconds:6.0f} s  {mutant.name}: {mutant.text!r}", flush=True)
            if asked.write:  # after each row: a night that is cut short keeps what it found
                write(PAGE, outcomes[-1], commit)
    bad = [one for one in outcomes if one.word not in (FOUND, NOT_RUN)]
    print(f"{len(bad)} of {len(outcomes)} rows failed; {sum(one.word == NOT_RUN for one in outcomes)} not run")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

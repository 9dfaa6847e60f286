"""Whether the matrix is younger than the engines: `python tests/repository/matrix_age.py`, before a release.

For each file of figures: the commits since its measuring that changed code which acts on a run. Exit code 1 where there
is one: `nox -s matrix` measures again. See RELEASING.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CORE = ("src/batchbridge/kit", "src/batchbridge/meaning", "src/batchbridge/running")
FRAMEWORKS = ("trl", "verl", "openrlhf", "easyr1", "open_instruct")


def engine(framework: str) -> tuple[str, ...]:
    """The paths of the code that acts on a framework's run, as git names them; rules speak before it."""
    adapter = f"adapters/batchbridge_{framework}"
    return (*CORE, adapter, f":(exclude){adapter}/rules", ":(exclude)*.json")


def measurings(root: Path) -> Iterator[tuple[str, str, str]]:
    """(framework, what was measured, commit) of every figure."""
    for framework in FRAMEWORKS:
        file = root / "tests" / "adapters" / framework / "figures.json"
        if file.exists():
            yield from ((framework, what, commit) for what, commit in _dated(read(file)))
    for what in ("equivalence", "kernels"):
        on = read(root / "tests" / what / "figures.json")["measured_on"]
        for framework in FRAMEWORKS:
            commit = on["commit"] if "commit" in on else on.get(framework, {}).get("commit")
            if commit is not None:
                yield framework, what, commit


def _dated(figures: dict[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    if "measured_on" in figures:
        yield ", ".join(names) or "all", figures["measured_on"]["commit"]
        return
    for name, inner in figures.items():
        yield from _dated(inner, *names, name)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def since(root: Path, commit: str, paths: Sequence[str]) -> list[str]:
    """The commits that changed these paths after `commit`, newest first, a line each; the commit's own name where the
    repository has none such, as of code that was changed and not committed."""
    words = ["git", "-C", str(root), "log", "--format=%h %cs %s", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else [f"{commit} is not a commit of this repository"]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    root, code = parser.parse_args(words).root, 0
    for framework, what, commit in measurings(root):
        if changes := since(root, commit, engine(framework)):
            code = 1
            print(f"{framework}: {what}: measured on {commit}; {len(changes)} changes since, the newest: {changes[0]}")
    return code


if __name__ == "__main__":
    sys.exit(main())

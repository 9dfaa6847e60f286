"""Writes every cheap generated page and record anew, in the right order: `python docs/make_pages.py`.

    nox -s pages                        the pages, in seconds
    nox -s pages -- --goldens           and what people read on the command line, recorded: read the difference
    nox -s pages -- --examples          first the smallest configuration that breaks each rule, in minutes

Whatever costs a framework or hours (docs/equivalence.md, proofs, benchmarks) has a session of its own: CONTRIBUTING.md
has the table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GOLDEN = {"BATCHBRIDGE_UPDATE_GOLDEN": "1"}
"""Makes tests that compare with a file write it instead."""
COMPARING = "as_people_were_shown or tables_that_fit or table_is_what_the_code_says"
"""Words in the names of those tests."""


class Step(NamedTuple):
    """A command (words behind the interpreter), what it writes, and the file that its standard output becomes."""

    words: tuple[str, ...]
    writes: tuple[str, ...]
    into: str = ""
    environment: Mapping[str, str] = MappingProxyType({})


def tested(*files: str, writes: tuple[str, ...]) -> Step:
    """The step in which these files' tests of recorded text write what they otherwise compare with."""
    return Step(("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", COMPARING, *files), writes, "", GOLDEN)


BUILT = ("docs/rules/*.md", "docs/api.md")
"""Pages that no commit has: the site's."""
EXAMPLES = (Step(("tests/repository/rule_examples.py",), ("adapters/*/rules/examples.json",)),)
"""Before the rules' pages, which show them."""
PAGES = (
    Step(("docs/make_rules.py",), BUILT[:1]),
    Step(("docs/make_api.py",), BUILT[1:]),
    Step(("docs/make_address.py",), ("docs/ci.md", "docs/howto/check_in_ci.md", "RELEASING.md", "CITATION.cff")),
    Step(("docs/make_pictures.py",), ("docs/pictures/*.svg",)),
    Step(("docs/make_works_with.py",), ("docs/frameworks.md", "README.md")),
    Step(("docs/make_refusals.py",), ("docs/*.md",)),
    Step(("docs/make_figures.py",), ("README.md", "docs/*.md", "plugins/*/README.md")),
    Step(("tests/cases/judging.py",), ("docs/reported_cases.md",), "docs/reported_cases.md"),
    Step(("tests/ledger/document_ledger.py",), ("docs/ledger.md",)),
    tested("tests/docs/test_schema_page.py", writes=("docs/schema.md",)),
    Step(("tests/repository/measures.py", "--page"), ("docs/house.md",)),
    Step(("docs/make_outputs.py",), ("README.md", "docs/*.md", "docs/howto/*.md", "docs/tutorials/*.md")),
    Step(("docs/make_chinese.py",), ("README.zh.md", "docs/zh/*.md", "docs/zh/tutorials/*.md")),
)
GOLDENS = (
    Step(("tests/repository/goldens.py",), ("tests/repository/goldens.json",)),
    tested(
        "tests/between/test_commands.py",
        "tests/between/test_doctor.py",
        "tests/cli/test_output.py",
        "tests/cli/test_processes.py",
        writes=("tests/between/golden/*", "tests/cli/golden/*"),
    ),
)


def run(step: Step) -> None:
    """Runs one step; a failure ends everything, and a page is written whole or not at all."""
    print("+ python", *step.words, *(("> " + step.into,) if step.into else ()), flush=True)
    environment = {**os.environ, "CI": "1", **step.environment}
    printed = subprocess.PIPE if step.into else None
    done = subprocess.run([sys.executable, *step.words], cwd=ROOT, env=environment, check=True, stdout=printed)
    if step.into:
        (ROOT / step.into).write_bytes(done.stdout)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", action="store_true", help="also rewrite the recorded texts of the command line")
    parser.add_argument("--examples", action="store_true", help="also look for each rule's smallest configuration")
    asked = parser.parse_args()
    for step in (*(EXAMPLES if asked.examples else ()), *PAGES, *(GOLDENS if asked.goldens else ())):
        run(step)


if __name__ == "__main__":
    main()

"""Every block of code in the documentation that needs no framework runs, and prints what the page says.

```python blocks of a page run in one namespace, top to bottom; in ```console blocks every `$ batchbridge ...` line runs
at the repository's root, and its output is compared (a line `...` stands for any lines). README.md's Python blocks
build a trainer and run in the framework's environment: `native/test_readme.py`. A Python block that needs something
around it (a recorded run, say) is preceded by the line `<!-- tested by: tests/... -->`: the test that runs it.
docs/tutorial.md builds a package as it goes: `test_tutorial.py`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("**/*.md") if page.name != "tutorial.md")]
FENCE = re.compile(r"^(?:<!-- tested by: (\S+) -->\n+)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TESTED_ELSEWHERE = [
    (page, test) for page in PAGES for test, _, _ in FENCE.findall(page.read_text(encoding="utf-8")) if test
]


def blocks(page: Path, language: str) -> list[str]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for test, named, text in found if named == language and not test]


def commands(block: str) -> list[tuple[str, str]]:
    """(command line, expected output) of every command of a console block."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


CONSOLE = [(page.name, *each) for page in PAGES for block in blocks(page, "console") for each in commands(block)]


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, block in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{page.name}, python block {number}", "exec"), namespace)


def test_a_block_that_is_tested_elsewhere_is_tested_there() -> None:
    for page, test in TESTED_ELSEWHERE:
        assert page.name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "command", "expected"), CONSOLE)
def test_console_blocks_print_what_the_page_says(page: str, command: str, expected: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "batchbridge", f"{page}: only batchbridge's own commands are run from documentation"
    run = subprocess.run(
        [sys.executable, "-m", "batchbridge", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wanted = re.escape(expected.strip()).replace(re.escape("..."), ".*")
    assert re.fullmatch(wanted, (run.stdout + run.stderr).strip(), re.DOTALL), run.stdout + run.stderr


@pytest.mark.parametrize("marker", ["quickstart-command", "test-command"])
def test_the_readme_has_each_of_its_two_commands_in_one_line(marker: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^<!-- {marker} -->\n```\w+\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    assert len(found[0].splitlines()) == 1

"""Every block of code in the documentation that needs no framework runs, and prints what the page says.

```python blocks of a page run in one namespace, top to bottom; in ```console blocks every `$ ...` line runs at the
repository's root, and its output is compared (a line `...` stands for any lines). README.md's Python blocks build a
trainer and run in the framework's environment: `native/test_readme.py`. A block that needs something around it (a
recorded run, say) is preceded by the line `<!-- tested by: tests/... -->`: the test that runs it. Pages that begin in
an empty folder: `test_walkthroughs.py`. A program on a rule's page is one that the rule refuses, and does not run. The
outputs are written by `docs/make_outputs.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import make_outputs
import pytest

ROOT = Path(__file__).parents[2]
EVERY_PAGE = make_outputs.pages()
PAGES = [page for page in EVERY_PAGE if not make_outputs.begins_empty(page)]
TESTED_ELSEWHERE = [
    (page, block.said.removeprefix("tested by: "))
    for page in EVERY_PAGE
    for block in make_outputs.blocks(page)
    if block.said.startswith("tested by: ")
]


def blocks(page: Path, language: str) -> list[str]:
    found = make_outputs.blocks(page)
    return [block.text for block in found if block.language == language and not block.said]


CONSOLE = [
    (page.name, *each)
    for page in PAGES
    for block in make_outputs.blocks(page)
    if block.language == "console" and not block.said
    for each in block.commands
]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES[1:] if blocks(page, "python") and page.parent.name != "rules"],
    ids=lambda page: page.name,
)
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
    assert command.startswith("batchbridge "), f"{page}: in a checkout only batchbridge's own commands are typed"
    said = make_outputs.Reader(ROOT).types(command)
    assert make_outputs.fits(expected, said), said


@pytest.mark.parametrize("marker", ["quickstart-command", "test-command"])
def test_the_readme_has_each_of_its_two_commands_in_one_line(marker: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^<!-- {marker} -->\n```\w+\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    assert len(found[0].splitlines()) == 1

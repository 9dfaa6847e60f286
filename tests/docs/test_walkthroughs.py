"""Every page that begins in an empty folder, from its first block to its last: tutorials, how-tos, and whatever page
saves files. What its commands print is what the page shows; `docs/make_outputs.py` runs them, and writes the outputs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import make_outputs
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in make_outputs.pages() if make_outputs.begins_empty(page)]

STOPS = ("  UNDECIDED  ", "  INVALID  ", ": lossy\n", "AssertionError")
"""Words of an output in docs/tutorial.md without which its command has to succeed."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says_from_its_first_block_to_its_last(page: Path, tmp_path: Path) -> None:
    reader = make_outputs.Reader(tmp_path)
    for block in make_outputs.blocks(page):
        assert block.title or block.language == "console" or block.said, f"a block that nobody runs: {block.text}"
        for command, expected, actual in reader.does(block):
            assert make_outputs.fits(expected, actual), f"$ {command}\n{actual}"
            assert "Traceback" not in actual or "Traceback" in expected
            if page.name == "tutorial.md" and not block.title:
                assert (reader.last != 0) == any(word in expected for word in STOPS), f"$ {command}\n{actual}"


FIVE = {
    "a student with a recipe for TRL": "docs/tutorials/check_a_trl_recipe.md",
    "an engineer with a script for verl": "docs/tutorials/verl_on_two_nodes.md",
    "someone who moves a recipe of Open-R1 to verl": "docs/tutorials/open_r1_to_verl.md",
    "the owner of a laboratory's CI": "docs/howto/check_in_ci.md",
    "someone with an error text": "docs/howto/error_text.md",
}


@pytest.mark.parametrize("reader", FIVE)
def test_each_of_the_five_readers_has_a_page_that_is_followed(reader: str) -> None:
    (page,) = [page for page in PAGES if page == ROOT / FIVE[reader]]
    commands = [command for block in make_outputs.blocks(page) for command, _ in block.commands]
    assert len([command for command in commands if command.startswith("batchbridge ")]) >= 4
    assert not [block for block in make_outputs.blocks(page) if block.said.startswith("tested by")]


def test_the_tutorial_of_an_adapter_is_among_them() -> None:
    (page,) = [page for page in PAGES if page.name == "tutorial.md"]
    assert len(make_outputs.blocks(page)) > 15


PAGE = """\
# A page

```yaml title="a/recipe.yaml"
num_generations: 8
```

=== "TRL"

    ```console
    $ cat a/recipe.yaml
    num_generations: 9
    $ printf 'one\\ntwo\\nthree\\nfour\\n'; exit 3
    one
    ...
    four
    $ echo $?
    3
    ```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(make_outputs, "ROOT", tmp_path)
    page = tmp_path / "README.md"
    page.write_text(PAGE, encoding="utf-8")
    return page


def test_an_output_that_is_not_what_is_printed_is_caught_and_brought_up_to_date(page: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    reader = make_outputs.Reader(tmp_path / "there")
    told = [one for block in make_outputs.blocks(page) for one in reader.does(block)]
    assert [make_outputs.fits(expected, actual) for _, expected, actual in told] == [False, True, True]
    (tmp_path / "empty").mkdir()
    new = make_outputs.brought_up_to_date(page, tmp_path / "empty")
    assert new == PAGE.replace("generations: 9", "generations: 8")


@pytest.mark.parametrize("command", ["python -c 'nonsense'", "batchbridge check --no-such-option"])
def test_a_command_that_fails_is_no_new_output(page: Path, tmp_path: Path, command: str) -> None:
    page.write_text(PAGE.replace("cat a/recipe.yaml", command), encoding="utf-8")
    with pytest.raises(ValueError, match=r"README\.md: (Traceback|Usage)"):
        make_outputs.brought_up_to_date(page, tmp_path)


@pytest.mark.parametrize(
    ("shown", "printed", "wanted"),
    [
        ("a 1\nb 2\n", "a 1\nb 3\n", "a 1\nb 3\n"),
        ("...\nverdict: valid\n...\n", "x\ny\nverdict: invalid\nz\n", "...\nverdict: invalid\n...\n"),
        ("first\n...\nlast line\n", "first\n1\n2\nlast lines\n", "first\n...\nlast lines\n"),
        ("first\n...\nlast line\n", "first\nlast lines\n", "first\nlast lines\n"),
        ("one\n...\n", "wholly\ndifferent\nnow\n", "wholly\n...\n"),
        ("a long line ...\nb\n", "a long line that goes on\nc\n", "a long line ...\nc\n"),
        ("...\n", "whatever\n", "...\n"),
        ("", "said now\n", "said now\n"),
    ],
)
def test_what_a_page_leaves_out_it_goes_on_leaving_out(shown: str, printed: str, wanted: str) -> None:
    assert make_outputs.shortened(shown, printed) == wanted


@pytest.mark.parametrize(
    ("expected", "actual"),
    [("a\n...\nb", "a\nb"), ("a\n...\nb", "a\nx\ny\nb"), ("... a", "so a"), ("", "\n"), ("...", ""), ("...\na", "a")],
)
def test_three_dots_stand_for_anything(expected: str, actual: str) -> None:
    assert make_outputs.fits(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("a\n...\nb", "a\nx"),
        ("", "x"),
        ("a", "a\nb"),
        ("a.b", "axb"),
        ("error 5.0e-01", "error 5.1e-01"),
        ("error 1.2e-06", "error 9.2e-06"),
    ],
)
def test_and_for_nothing_else(expected: str, actual: str) -> None:
    assert not make_outputs.fits(expected, actual)


def test_of_the_rounding_of_floats_the_size_counts() -> None:
    assert make_outputs.fits("... error\t1.2e-06\n...", "the error\t1.3e-06\n")


WIDTH = "import os, sys; print(os.get_terminal_size(1).columns if sys.stdout.isatty() else 'a pipe')"


def test_what_is_typed_at_a_terminal_is_written_to_one_of_80_columns(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = f'python -c "{WIDTH}"; echo beside >&2; exit 3'
    block = f"```console\n$ {command}\n80\nbeside\n```\n"
    page.write_text(f"<!-- 80 columns -->\n{block}\n{block}", encoding="utf-8")
    reader = make_outputs.Reader(tmp_path)
    told = [one for block in make_outputs.blocks(page) for one in reader.does(block)]
    assert [actual for _, _, actual in told] == ["80\nbeside\n", "a pipe\nbeside\n"]
    assert reader.last == 3


def test_no_line_of_the_newcomers_page_is_wider_than_its_terminal() -> None:
    found = make_outputs.blocks(ROOT / "docs" / "newcomer.md")
    shown = [lines for block in found if block.said == make_outputs.TERMINAL for _, lines in block.commands]
    assert len(shown) > 8
    assert [line for lines in shown for line in lines.splitlines() if len(line) > make_outputs.COLUMNS] == []


@pytest.mark.parametrize(("package", "there"), [("json", True), ("no_such_package", False)])
def test_a_block_that_needs_a_package_is_typed_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, there: bool
) -> None:
    monkeypatch.setattr(make_outputs, "ROOT", tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "said.txt").write_text("said\n")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(f"<!-- with: {package} files -->\n```console\n$ cat said.txt; pwd\nold\n```\n")
    new = make_outputs.brought_up_to_date(page, tmp_path)
    assert ("said\n/mine\n" in new) is there
    assert ("\nold\n" in new) is not there


def words_of_image(text: str) -> list[str]:
    """The command that a container of this Dockerfile runs."""
    parts = dict(line.split(maxsplit=1) for line in text.splitlines())
    return [*json.loads(parts["ENTRYPOINT"]), *json.loads(parts["CMD"])]


def test_the_image_for_ci_runs_the_command_of_the_page() -> None:
    """The image itself is built by no test: no machine of ours has Docker."""
    page = ROOT / "docs/howto/check_in_ci.md"
    blocks = make_outputs.blocks(page)
    (image,) = [block.text for block in blocks if block.title == "Dockerfile"]
    assert len(image.splitlines()) == 5
    (python,) = re.findall(r"FROM python:(3\.\d+)-slim\n", image)
    assert f'"Programming Language :: Python :: {python}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "RUN pip install --no-cache-dir batchbridge\n" in image
    (shown,) = {command for block in blocks for command, _ in block.commands if command == "batchbridge check recipes"}
    assert words_of_image(image) == shown.split()
    assert words_of_image(image.replace('"recipes"', '"recipe"')) != shown.split()
    assert f"uvx {shown}" in " ".join(page.read_text(encoding="utf-8").split())

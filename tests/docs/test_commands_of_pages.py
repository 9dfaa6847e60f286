"""Commands that pages name and no test runs (they need a framework, a GPU, or a file of the reader's) exist as written:
batchbridge's own are parsed with its own options, sessions of nox and scripts of this repository are there.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import make_outputs
import pytest

from batchbridge.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
WRITTEN_FROM_CODE = ("docs/api.md", "docs/rules/")
PAGES = [page for page in make_outputs.pages() if not page.relative_to(ROOT).as_posix().startswith(WRITTEN_FROM_CODE)]
SHELL = ("", "sh", "bash")


def written(page: Path) -> list[str]:
    """Command lines in a page's blocks that are not run, and those of batchbridge in its text."""
    lines = []
    for block in make_outputs.blocks(page):
        if block.language in SHELL and not block.title and not block.said:
            joined = re.sub(r"\\\n\s*|\n\s+", " ", block.text)
            lines += [line for line in joined.splitlines() if line.strip()]
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    return lines + re.findall(r"`(batchbridge -{0,2}[a-zV][^`]*)`", " ".join(prose.split()))


def complaint(line: str) -> str | None:
    """What is wrong with a command line; None: nothing."""
    words = shlex.split(re.sub(r"[\[\]|]", " ", line), comments=True)
    while words and re.match(r"[A-Z_0-9]+=", words[0]):
        words = words[1:]
    program = words[0].rpartition("/")[2] if words else ""
    if program == "batchbridge":
        return _batchbridge(words[1:])
    if program == "nox":
        session = words[words.index("-s") + 1].partition("(")[0] if "-s" in words else "core"
        there = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE)
        return None if session in there else f"no session {session}"
    if program in ("python", "python3", "pytest"):
        files = [word for word in words[1:] if "/" in word and not word.startswith("-")][:1]
        return None if all((ROOT / file).exists() for file in files) else f"no file {files}"
    return f"nobody knows {program}"


def _batchbridge(words: list[str]) -> str | None:
    if not words or words[0] in ("-V", "--version", "help"):
        return None
    if words[0] not in COMMANDS:
        return f"no command {words[0]}"
    command = cli.get_command(click.Context(cli), words[0])
    if isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[1]), words[1:]
    assert command is not None
    context = click.Context(command, ignore_unknown_options=False, **command.context_settings)
    rest = [word for word in words[1:] if word not in ("...", "<")]
    try:
        command.make_parser(context).parse_args(rest)
    except click.NoSuchOption as wrong:
        return str(wrong)
    except click.UsageError:
        return None  # an option without its value: a text about the option
    return None


LINES = [(page.relative_to(ROOT).as_posix(), line) for page in PAGES for line in written(page)]
NOT_OURS = ("eval ", "_BATCHBRIDGE_COMPLETE=", "python3 -m venv ")
"""A shell's own completion, which tests/cli runs; the README's two installations, which CI runs."""


def test_there_are_such_lines() -> None:
    assert len(LINES) > 60


@pytest.mark.parametrize(("page", "line"), LINES)
def test_a_command_that_a_page_names_exists(page: str, line: str) -> None:
    if line.startswith(NOT_OURS):
        return
    assert complaint(line) is None, page


@pytest.mark.parametrize(
    "line",
    [
        "batchbridge chek recipe.yaml",
        "batchbridge check recipe.yaml --gpu 8 --no-such-option",
        "batchbridge ledger show RUN --no-such-option",
        "nox -s no_such_session",
        "python tests/no_such_file.py",
        "rm -rf x",
    ],
)
def test_one_that_does_not_would_be_caught(line: str) -> None:
    assert complaint(line) is not None


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/house.md"])
def test_a_file_of_the_repository_that_a_page_for_contributors_names_is_there(page: str) -> None:
    named = re.findall(r"`([a-z][\w/]*\.(?:py|json|txt))`", (ROOT / page).read_text(encoding="utf-8"))
    folders = ("adapters", "src", "tests", "docs", "benchmarks", "constraints", "examples")
    there = {file.relative_to(ROOT).as_posix() for folder in folders for file in (ROOT / folder).rglob("*.*")}
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in there)] == []
    assert len(named) > 20

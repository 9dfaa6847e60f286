"""The command line as its own process: what it imports, terminals, broken pipes, bare environments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = {"torch", "trl", "transformers", "accelerate", "verl", "openrlhf", "ray", "numpy"}

LIST_MODULES = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from batchbridge.cli.main import main
sys.exit(main())
"""


def environment(toy_site: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(toy_site), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    return {**clean, "PYTHONPATH": path, **more}


def imported(toy_site: Path, *arguments: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments],
        env=environment(toy_site),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stderr.splitlines()[-1]))


def test_an_error_of_usage_is_one_where_standard_output_is_closed(toy_site: Path) -> None:
    words = f'"{sys.executable}" -m batchbridge check --no-such-option >&-'
    done = subprocess.run(words, shell=True, env=environment(toy_site), capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"), [("doctor <&-", 4), ("check - <&-", 2), ("schema >&-", 0), ("adapters 2>&-", 0)]
)
def test_a_stream_that_is_closed_is_an_empty_one(toy_site: Path, words: str, code: int) -> None:
    line = f'"{sys.executable}" -m batchbridge {words}'
    done = subprocess.run(line, shell=True, env=environment(toy_site), capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_help_imports_click_and_nothing_that_costs(toy_site: Path) -> None:
    modules = imported(toy_site, "--help")
    costly = FRAMEWORKS | {"pydantic", "yaml", "rich", "pluggy", "importlib.metadata", "toy_plugin"}
    assert not costly & modules
    ours = {name for name in modules if name.startswith("batchbridge")}
    assert ours == {
        "batchbridge",
        "batchbridge.lazily",
        "batchbridge.cli",
        "batchbridge.cli._exit_codes",
        "batchbridge.cli.main",
    }


@pytest.mark.parametrize("command", ["check", "explain"])
def test_reading_a_file_imports_no_framework_no_pydantic_and_no_rich(
    toy_site: Path, recipe: Path, command: str
) -> None:
    modules = imported(toy_site, command, str(recipe.resolve()))
    assert not (FRAMEWORKS | {"pydantic", "rich", "hypothesis"}) & modules
    assert "toy_plugin" in modules


def test_importing_batchbridge_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import batchbridge; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in result.stdout.split() if name.startswith("batchbridge")} == {
        "batchbridge",
        "batchbridge.lazily",
    }


def test_a_broken_pipe_ends_quietly(toy_site: Path, recipe: Path) -> None:
    command = [sys.executable, "-m", "batchbridge", "plan", str(recipe.resolve()), "--dataset-size", "400000"]
    with subprocess.Popen(
        [*command, "--steps", "0:100000"], env=environment(toy_site), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_that_the_locale_cannot_spell_is_escaped(toy_site: Path, tmp_path: Path) -> None:
    path = tmp_path / "unicode.yaml"
    path.write_text("toy:\n  größe→: 1\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "batchbridge", "check", str(path)],
        env=environment(toy_site, PYTHONIOENCODING="latin-1"),
        capture_output=True,
        check=False,
    )
    assert result.returncode == 2
    assert b"gr\xf6\xdfe\\u2192" in result.stdout


def on_a_terminal(toy_site: Path, arguments: list[str], **more: str) -> str:
    """What a terminal of 60 columns gets; COLUMNS says another width."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    main_end, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "batchbridge", *arguments],
        env=environment(toy_site, **{"TERM": "xterm-256color", "COLUMNS": "60", **more}),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    ):
        os.close(terminal)
        chunks = []
        while True:
            try:
                chunk = os.read(main_end, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(main_end)
    return b"".join(chunks).decode().replace("\r\n", "\n")


STYLE = re.compile(r"\x1b\[[0-9;]*m")


HEADERS = ("setting",)
"""Names of columns that a record for each row does not have."""


@pytest.mark.parametrize("no_color", ["", "1"])
@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", [["explain", "recipe.yaml", "--dataset-size", "12"], ["adapters"]])
def test_a_terminal_gets_lines_and_tables_that_fit_and_no_escaped_escape_codes(
    toy_site: Path, recipe: Path, command: list[str], columns: int, no_color: str
) -> None:
    shown = on_a_terminal(toy_site, command, COLUMNS=str(columns), NO_COLOR=no_color)
    assert "\\x1b" not in shown
    visible = STYLE.sub("", shown)
    if command[0] == "explain":
        assert max(map(len, visible.splitlines())) <= columns
        arguments = [sys.executable, "-m", "batchbridge", *command]
        piped = subprocess.run(arguments, env=environment(toy_site), capture_output=True, text=True, check=True).stdout
        lost = set(piped.split()) - set(re.sub(r"[─,]", "", visible).split()) - set(visible.split())
        assert not {word for word in lost if word not in HEADERS}, "a word is cut, or missing"
    assert bool(STYLE.search(shown)) == (command[0] == "explain" and not no_color)
    if command[0] == "explain" and columns != 60:
        golden = Path(__file__).parent / "golden" / f"explain_terminal_{columns}.txt"
        if os.environ.get("BATCHBRIDGE_UPDATE_GOLDEN"):
            golden.write_text(visible, encoding="utf-8")
        assert visible == golden.read_text(encoding="utf-8")


def test_severities_and_verdicts_have_colours(toy_site: Path, recipe: Path) -> None:
    shown = on_a_terminal(toy_site, ["check", "recipe.yaml", "--set", "toy.step=9"])
    assert "  \x1b[31mINVALID\x1b[0m  " in shown
    assert "\n  \x1b[31merror\x1b[0m  toy.step = 9 " in shown
    assert "\n  \x1b[33mwarning\x1b[0m :6  " in shown


def test_a_dumb_terminal_gets_plain_text(toy_site: Path, recipe: Path) -> None:
    arguments = ["explain", str(recipe.resolve())]
    plain = subprocess.run(
        [sys.executable, "-m", "batchbridge", *arguments],
        env=environment(toy_site),
        capture_output=True,
        text=True,
        check=True,
    )
    assert on_a_terminal(toy_site, arguments, TERM="dumb") == plain.stdout

"""Shell completion: what each shell asks for, and bash's own function in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from batchbridge.cli.main import COMMANDS, COMPLETE

BASH = shutil.which("bash")


def asked(words: str, instruction: str = "bash_complete") -> list[str]:
    """What the program answers a shell whose line so far is `words`; the last word is not finished."""
    last = len(words.split(" ")) - 1
    environment = {**os.environ, COMPLETE: instruction, "COMP_WORDS": words, "COMP_CWORD": str(last)}
    done = subprocess.run(
        [sys.executable, "-m", "batchbridge"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("batchbridge ch", ["plain,check"]),
        ("batchbridge ", [f"plain,{name}" for name in COMMANDS]),
        ("batchbridge check --framework o", ["plain,open_instruct", "plain,open_r1", "plain,openrlhf"]),
        ("batchbridge check --world", ["plain,--world-size"]),
        ("batchbridge check --framework openrlhf --framework-version 0.11", [f"plain,0.11.{last}" for last in "210"]),
        ("batchbridge diff a.yaml --framework-b openrlhf --version-b 0.11.1", ["plain,0.11.1"]),
        ("batchbridge convert a.yaml --to openrlhf --to-version 0.11.2", ["plain,0.11.2"]),
        ("batchbridge convert a.yaml --to openr", ["plain,openrlhf"]),
        ("batchbridge rule BB-TRL-06", [f"plain,BB-TRL-06{digit}" for digit in range(10)]),
        ("batchbridge ledger sh", ["plain,show"]),
        ("batchbridge run --mode ver", ["plain,verify"]),
        ("batchbridge nothing ", [f"plain,{name}" for name in COMMANDS]),
    ],
)
def test_the_last_word_is_completed(words: str, wanted: list[str]) -> None:
    assert asked(words) == wanted


def test_files_are_left_to_the_shell() -> None:
    assert asked("batchbridge check rec") == ["file,rec"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_script_asks_by_our_variable(shell: str) -> None:
    script = "\n".join(asked("batchbridge", f"{shell}_source"))
    assert f"{COMPLETE}={shell}_complete" in script


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_itself_completes_a_command(tmp_path: Path) -> None:
    program = tmp_path / "batchbridge"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m batchbridge "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = f"""
eval "$({COMPLETE}=bash_source batchbridge)"
COMP_WORDS=(batchbridge ex); COMP_CWORD=1
_batchbridge_completion batchbridge ex batchbridge
echo "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(BASH), "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["explain"], done.stderr


def test_a_command_line_is_not_completed_where_nobody_asks() -> None:
    done = subprocess.run([sys.executable, "-m", "batchbridge", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("batchbridge ")

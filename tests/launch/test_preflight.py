"""What `batchbridge run` is given is looked at before its command starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli.main import USAGE

Run = Callable[..., subprocess.CompletedProcess[str]]
SPEC = {"not json": "{", "no object": "[1]", "unknown": '{"a": 1}', "deep": "[" * 100_000, "latin": '{"a": "\xff'}


def not_started(run: Run, folder: Path, *options: str) -> str:
    body = f"open({str(folder / 'started')!r}, 'w')"
    ran = run(*options, "--", sys.executable, "-c", body)
    assert ran.returncode == USAGE, ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (folder / "started").exists()
    return ran.stderr


@pytest.mark.parametrize("name", ["not json", "no object", "unknown", "deep", "latin"])
def test_a_spec_that_is_none_starts_nothing(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "spec.json").write_bytes(SPEC[name].encode("latin-1"))
    assert "--spec spec.json is not a specification: " in not_started(run, tmp_path, "--spec", "spec.json")


def test_a_spec_with_another_field_names_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"rollout": {"prompts": 1}}))
    assert "prompts" in not_started(run, tmp_path, "--spec", "spec.json")


def test_a_ledger_that_cannot_be_written_starts_nothing(run: Run, tmp_path: Path) -> None:
    said = not_started(run, tmp_path, "--ledger", "/proc/nope/x")
    assert "/proc/nope/x: the ledger cannot be written: No such file or directory" in said
    (tmp_path / "file").touch()
    assert "file/x: the ledger cannot be written" in not_started(run, tmp_path, "--ledger", "file/x")


def test_a_name_that_nobody_can_allow_starts_nothing(run: Run, tmp_path: Path) -> None:
    said = not_started(run, tmp_path, "--allow", "unproven_cod")
    assert "--allow unproven_cod: no refusal that can be allowed; did you mean unproven_code" in said
    assert "Those that can: " in not_started(run, tmp_path, "--allow", "nonsense")


def test_a_name_that_some_adapter_knows_is_taken(run: Run) -> None:
    ran = run("--allow", "unproven_code", "--", sys.executable, "train.py")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("like", ["no_such.yaml", "{", "recipe.yaml"])
def test_what_cannot_be_read_to_behave_like_starts_nothing(run: Run, tmp_path: Path, like: str) -> None:
    (tmp_path / "recipe.yaml").write_text("a: [1\n")
    ran = run("--like", like, "--", sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')")
    assert ran.returncode in (USAGE, 2)
    assert "Traceback" not in ran.stderr
    assert like in ran.stderr
    assert not (tmp_path / "started").exists()

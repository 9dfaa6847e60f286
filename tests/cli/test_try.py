"""`batchbridge try` without any framework: what it refuses and says, how a run fails, and the table of two ledgers.

The run that goes well here is of an adapter that is a mock: its "framework" copies a ledger. Real ones are tried in
`tests/adapters/*/native/test_try_*.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.trial import Trial, TrialCommand
from batchbridge.ledger.reading import Ledger
from batchbridge.render.trial import rows, table

Run = Callable[..., tuple[int, str, str]]
TRIED = ("openrlhf", "trl", "verl")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, with the adapters that are installed: exit code, standard output, standard error."""
    from batchbridge.cli.main import main

    def ran(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, *capsys.readouterr()

    return ran


@pytest.mark.parametrize("framework", TRIED)
def test_a_framework_that_is_not_installed_is_refused_with_the_commands_that_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, framework: str
) -> None:
    monkeypatch.chdir(tmp_path)
    native = importlib.util.find_spec
    absent = {"torch", framework}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in absent else native(name, *more)
    )
    code, out, _ = run("try", framework)
    assert code == 4
    trial = plugins.adapters()[framework].trial()
    assert trial is not None
    assert all(f"  {command}" in out.splitlines() for command in trial.install)
    assert f"{framework} cannot be tried: torch" in out
    assert "compute platform CPU" in out
    assert not list(tmp_path.iterdir())


def test_a_framework_that_cannot_be_tried_is_refused_by_name(run: Run) -> None:
    code, _, err = run("try", "easyr1")
    assert code == 64
    assert "easyr1: cannot be tried on a CPU; frameworks: openrlhf, trl, verl" in err
    assert "a similar framework exists: 'openrlhf'" in run("try", "openrlfh")[2]


def mock_of(framework: str, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Lets the trial of a framework run a Python program in its place."""

    def prepare(folder: Path, beside: Path) -> TrialCommand:
        return TrialCommand(words=("-c", program), environment={"BATCHBRIDGE_MOCK": "1"})

    trial = Trial(needs=(), install=(), prepare=prepare, real="a mock", scripted="everything", prompts=8)
    monkeypatch.setattr(type(plugins.adapters()[framework]), "trial", lambda self: trial)


def test_a_run_that_fails_shows_where_its_log_is_and_how_it_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    mock_of("trl", monkeypatch, "import os, sys; print('mocked', os.environ['BATCHBRIDGE_MOCK']); sys.exit(3)")
    code, out, _ = run("try", "trl")
    assert code == 4
    assert "the native run ended with exit code 3; the last lines of try-trl/native/log.txt:" in out
    assert "  mocked 1" in out
    assert "mocked" in (tmp_path / "try-trl" / "native" / "log.txt").read_text(encoding="utf-8")
    code, _, err = run("try", "trl")
    assert code == 64
    assert "try-trl exists: remove it, or name a new folder with --folder" in err


def test_a_run_that_trains_nothing_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`batchbridge run` says that nothing was wrapped: exit code 4."""
    mock_of("trl", monkeypatch, "print('no trainer here')")
    code, out, _ = run("try", "trl", "--folder", str(tmp_path / "new"))
    assert (code, "exit code 4" in out) == (4, True)


@pytest.fixture
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Of tests/ledger: 2 prompts of 2 completions in each of 4 steps, of which the second has no token."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))
    from scripted_ledger import ORDERED, header, record, rows_of

    from batchbridge.ledger import Writer

    def write(name: str, edit: Callable[[int, list[dict[str, Any]]], None] = lambda step, rows: None) -> Path:
        with Writer(tmp_path / name, header(spec=ORDERED)) as writer:
            for step in range(4):
                edit(step, made := rows_of(step))
                writer.append(record(step, made))
        return tmp_path / name

    return write


def test_the_table_says_what_the_ledgers_say(ledger: Callable[..., Path]) -> None:
    def other(step: int, made: list[dict[str, Any]]) -> None:
        if step == 0:
            made[0]["weights"], made[2]["weights"], made[3]["weights"] = 0.125, 0.25, 0.0625
        for row in made:
            row["prompt"] = min(row["prompt"], 3)

    lines = list(table({"native": rows(Ledger(ledger("a", other)), 8), "wrapped": rows(Ledger(ledger("b")), 8)}))
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines] == [
        ["native", "wrapped"],
        ["optimizer", "steps", "4", "4"],
        ["completions", "in", "step", "0", "4", "4"],
        ["prompts", "in", "step", "0", "0,", "1", "0,", "1"],
        ["response", "tokens", "in", "step", "0", "10", "10"],
        ["weight", "of", "a", "token", "in", "step", "0", "0.06250", "to", "0.25000", "0.10000"],
        ["share", "of", "the", "prompts", "trained", "4", "of", "8", "8", "of", "8"],
        ["steps", "of", "the", "planned", "completions", "2", "of", "4", "4", "of", "4"],
    ]

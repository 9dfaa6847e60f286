"""Exit codes, as one table has them; never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli._exit_codes import EXIT_TABLE

Run = Callable[..., tuple[int, str, str]]

CODES = {
    "check recipe.yaml": 0,
    "check recipe.yaml --set toy.step=9": 2,
    "explain recipe.yaml --set toy.step=9": 2,
    "plan recipe.yaml --set toy.step=9 --dataset-size 9": 2,
    "check missing.yaml": 2,
    "check .": 0,
    "explain .": 2,
    "check other.yaml": 4,
    "explain other.yaml": 4,
    "plan recipe.yaml": 0,
    "plan recipe.yaml --step 0": 4,
    "plan recipe.yaml --dataset-size 9": 0,
    "adapters": 0,
    "schema": 0,
    "--version": 0,
    "--help": 0,
    "check --help": 0,
    "ledger diff --help": 0,
    "ledger show missing": 2,
    "ledger diff missing missing": 2,
    "": 64,
    "chekc recipe.yaml": 64,
    "--nonsense": 64,
    "check": 64,
    "check --set toy.step=9": 64,
    "check recipe.yaml --nonsense": 64,
    "check recipe.yaml other.yaml": 0,
    "check recipe.yaml other.yaml --fail-on undecided": 4,
    "check recipe.yaml other.yaml missing.yaml": 2,
    "check recipe.yaml recipe.yaml": 0,
    "check recipe.yaml --framework nonsense": 64,
    "check recipe.yaml --set toy.step": 64,
    "check recipe.yaml --set =3": 64,
    "check recipe.yaml --set toy.step=[1": 64,
    "check recipe.yaml --world-size 0": 64,
    "check recipe.yaml --world-size two": 64,
    "check recipe.yaml --world-size 8 --gpus 8": 64,
    "check recipe.yaml --nodes 2": 64,
    "check recipe.yaml --dataset-size -1": 64,
    "plan recipe.yaml --dataset-size 9 --steps 3": 64,
    "plan recipe.yaml --dataset-size 9 --steps 3:1": 64,
    "plan recipe.yaml --dataset-size 9 --steps 0:1 --step 1": 64,
    "plan recipe.yaml --dataset-size 9 --step 2": 64,
    "plan recipe.yaml --dataset-size 9 --rollout 2": 64,
    "ledger": 64,
    "ledger diff one": 64,
}


@pytest.mark.parametrize("line", CODES)
def test_the_exit_code_says_what_happened(line: str, run: Run, recipe: Path) -> None:
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    code, out, err = run(*line.split())
    assert (code, "Traceback" in out + err) == (CODES[line], False)


@pytest.mark.parametrize("line", [line for line, code in CODES.items() if code == 64])
def test_usage_errors_go_to_standard_error(line: str, run: Run, recipe: Path) -> None:
    _, out, err = run(*line.split())
    assert (out, bool(err)) == ("", True)


def test_an_unknown_framework_is_answered_with_the_known_ones(run: Run, recipe: Path) -> None:
    assert "toy" in run("check", "recipe.yaml", "--framework", "tyo")[2]


def test_nodes_times_gpus_is_the_world_size(run: Run, recipe: Path) -> None:
    assert "8 devices" in run("check", "recipe.yaml", "--set", "toy.step=4", "--nodes", "2", "--gpus", "4")[1]


def test_a_file_that_cannot_be_read_is_not_called_unknown_too(run: Run, recipe: Path) -> None:
    out = run("check", "missing.yaml", "--set", "toy.step=4")[1]
    assert "BB001" in out
    assert "BB02" not in out


def test_the_page_and_the_help_have_the_table(run: Run, repository: Path) -> None:
    page = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    for row in EXIT_TABLE:
        assert f"| {row.code} | {row.meaning} |\n" in page
    listed = ", ".join(f"{row.code} {row.word}" for row in EXIT_TABLE)
    assert f"Exit codes: {listed}." in " ".join(run("--help")[1].split())
    verdicts = [verdict for row in EXIT_TABLE for verdict in row.verdicts]
    assert len(verdicts) == len(set(verdicts))

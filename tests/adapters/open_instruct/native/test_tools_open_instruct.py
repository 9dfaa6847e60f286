"""L2 and L3 of tools and environments: a tool's tokens in the middle of completions, and grpo_fast.py itself with
`--tools`. `oi_proofs.py` says what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oi_proofs as proofs
import pytest

Ran = Callable[..., Path]


def left(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.smoke), 2])
def test_gradients_leave_a_tools_tokens_out(ran: Ran, ranks: int) -> None:
    measured = left(ran("tool_masks", ranks, "finished"), "measured")
    assert measured["ranks"] == ranks
    proofs.check_tool_masks(measured)


@pytest.mark.parametrize(
    ("name", "ranks", "masked"), [("tools-1", 1, True), ("tools-2", 2, True), ("tools_trained-1", 1, False)]
)
def test_the_launched_script_with_a_tool_is_the_plan(ran: Ran, name: str, ranks: int, masked: bool) -> None:
    runs = ran("launched_tools", 0, "initial.txt")
    said = left(runs, name)
    initial = (runs / "initial.txt").read_text(encoding="utf-8")
    tokens_of = proofs.fingerprints(runs / f"ledger-{name}")
    proofs.check_tools(said["run"], said["asked"], initial, tokens_of, ranks=ranks, masked=masked)
    with pytest.raises(AssertionError):
        proofs.check_tools(said["run"], said["asked"], initial, tokens_of, ranks=ranks, masked=not masked)
    assert tokens_of == proofs.fingerprints(runs / "ledger-tools-1"), "the tool says the same in every run"


@pytest.mark.parametrize("name", ["counter", "wordle", "generic_sandbox"])
def test_the_launched_script_with_an_environment_is_the_plan(ran: Ran, name: str) -> None:
    runs = ran("launched_environments", 0, "initial.txt")
    said = left(runs, f"{name}-1")
    initial = (runs / "initial.txt").read_text(encoding="utf-8")
    tokens_of = proofs.fingerprints(runs / f"ledger-{name}-1")
    proofs.check_environment(name, said["run"], said["asked"], initial, tokens_of, ranks=1)
    other = "wordle" if name not in proofs.ALWAYS else "generic_sandbox"  # which speaks elsewhere
    with pytest.raises(AssertionError):
        proofs.check_environment(other, said["run"], said["asked"], initial, tokens_of, ranks=1)

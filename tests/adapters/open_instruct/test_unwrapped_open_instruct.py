"""What Open-Instruct trains unwrapped, as it was recorded, against what its command line is read to do.

`recorded/unwrapped.json` has the steps of unwrapped jobs and of its script: facts about Open-Instruct 2026.8.20.
`native/keep_figures.py` makes it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What is asked of runs, a module of this folder."""
    monkeypatch.syspath_prepend(str(HERE))
    import oi_proofs as proofs

    return proofs


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "recorded" / "unwrapped.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_unwrapped_job_does_what_its_command_line_is_read_to_do(
    proofs: ModuleType, recorded: dict[str, Any], ranks: int
) -> None:
    proofs.check_behaviour(recorded["jobs"][f"observed, {ranks}"], ranks)


def test_a_job_whose_rollouts_come_in_another_order_is_not_as_read(
    proofs: ModuleType, recorded: dict[str, Any]
) -> None:
    run = recorded["jobs"]["observed, 1"]
    run["steps"][0]["rollout"] = [1 for _ in run["steps"][0]["rollout"]]
    with pytest.raises(AssertionError):
        proofs.check_behaviour(run, 1)


def test_the_script_that_nobody_follows_trains_answers_of_older_weights_as_read(
    proofs: ModuleType, recorded: dict[str, Any]
) -> None:
    script = recorded["script"]
    proofs.check_behaviour(script["run"], 2)
    proofs.check_lags(proofs.lags(script["run"], script["asked"], 1))
    for line in script["asked"]:
        line["model_step"] = 0
    with pytest.raises((AssertionError, IndexError)):
        proofs.check_lags(proofs.lags(script["run"], script["asked"], 1))

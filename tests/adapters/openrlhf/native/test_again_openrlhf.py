"""OpenRLHF's real `PPOTrainer.fit`, wrapped: evaluated in the middle, logged, begun again, interrupted, and resumed
with other micro-batches; see `again.py`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import diff, read_steps
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.trajectories import assert_same_end

CUTS = ("threes", "tokens")
BY_CUT = {"policy_loss", "kl", "logprobs_diff"}
"""What is logged that depends on how a step is cut into micro-batches."""
WHOLE_PLAN = list(range(6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs left what they measured, and their ledgers."""
    made = tmp_path_factory.mktemp("again")
    command = [sys.executable, str(Path(__file__).parent / "again.py"), str(made)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = torch.load(folder / "again.pt", weights_only=True)
    return made


def numbers(run: dict[str, Any], rollout: int) -> dict[str, float]:
    """What was logged of a rollout, times apart."""
    return {name: value for name, value in run["logs"][rollout].items() if not name.startswith("timing/")}


def test_evaluation_in_the_middle_changes_nothing(found: dict[str, Any], folder: Path) -> None:
    evaluated = found["evaluated"]
    assert [step for step, _ in evaluated["evaluations"]] == [1, 2, 3]
    assert all(logs["eval_num_samples"] == 24 for _, logs in evaluated["evaluations"])
    compared = diff(folder / "whole", folder / "evaluated", exact=True)
    assert compared.equal, compared.text()
    assert torch.equal(evaluated["end"], found["whole"]["end"])
    for rollout in range(3):
        assert numbers(evaluated, rollout) == pytest.approx(numbers(found["whole"], rollout), nan_ok=True)


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_logged_does_not_depend_on_the_cut_but_for_what_the_page_names(found: dict[str, Any], cut: str) -> None:
    assert found["whole"]["micro-batches"] == 36
    assert found[cut]["micro-batches"] <= 14
    for rollout in range(3):
        one, other = numbers(found["whole"], rollout), numbers(found[cut], rollout)
        assert one.keys() == other.keys()
        assert {"actor_grad_norm", "actor_lr", "ppo_kl", "ppo_clip_ratio", *BY_CUT} <= one.keys()
        for name in one.keys() - BY_CUT:
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), (rollout, name)


def test_the_clip_ratio_and_the_kl_that_are_compared_are_not_zero(found: dict[str, Any]) -> None:
    for name in ("ppo_clip_ratio", "ppo_kl"):
        assert max(abs(logs[name]) for logs in found["whole"]["logs"]) > 1e-2, name


@pytest.mark.parametrize("cut", CUTS)
def test_the_logged_policy_loss_depends_on_the_cut(found: dict[str, Any], cut: str) -> None:
    one, other = (found[name]["logs"][0]["policy_loss"] for name in ("whole", cut))
    assert abs(one - other) > 0.05 * abs(one)


@pytest.mark.parametrize("cut", CUTS)
def test_the_logged_kl_is_nan_only_where_a_completion_has_no_token(
    found: dict[str, Any], folder: Path, cut: str
) -> None:
    silent = {
        rollout
        for step in read_steps(folder / cut)
        for rollout, tokens in zip(step["rollout"], step["response_tokens"], strict=True)
        if not tokens
    }
    assert silent, ScriptedRollouts().empty
    for name in ("kl", "logprobs_diff"):
        assert {place for place, logs in enumerate(found[cut]["logs"]) if math.isnan(logs[name])} <= silent
        assert not any(math.isnan(logs[name]) for logs in found["whole"]["logs"])


def test_resumed_with_other_micro_batches_it_goes_on_with_a_note(found: dict[str, Any], folder: Path) -> None:
    resumed = found["resumed"]
    assert "note: resumed from the checkpoint" in resumed["report"]
    assert "micro_batch.completions_per_device: 1 in the checkpoint, 3 now" in resumed["report"]
    whole, steps = list(read_steps(folder / "whole")), list(read_steps(folder / "resumed"))
    assert [step["step"] for step in steps] == [4, 5]
    for mine, theirs in zip(steps, whole[4:], strict=True):
        members = [
            sorted(zip(step["prompt"], step["sample"], step["completion_fingerprint"], strict=True))
            for step in (mine, theirs)
        ]
        assert members[0] == members[1]
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
    start = torch.load(folder / "start.pt", weights_only=True)
    assert_same_end("openrlhf, resumed with micro-batches of 3", start, resumed["end"], found["whole"]["end"])


def test_fit_of_a_run_that_is_over_trains_nothing_and_wrapped_anew_it_trains_a_plan(found: dict[str, Any]) -> None:
    twice = found["twice"]
    assert (twice["said"], twice["equal"]) == ("nothing", True)
    assert (twice["headers"], twice["steps"]) == (1, WHOLE_PLAN)
    assert (twice["wrapped anew"], twice["fit anew"], twice["moved"]) == ("nothing", "nothing", True)
    assert twice["anew"] == {"headers": 1, "steps": WHOLE_PLAN}


def test_interrupted_and_begun_again_it_goes_on_with_the_next_rollout(found: dict[str, Any], folder: Path) -> None:
    run = found["interrupted"]
    assert (run["first"], run["fit"]) == ("Interrupted: ", "nothing")
    assert run["ledger"] == {"headers": 2, "steps": WHOLE_PLAN}
    compared = diff(folder / "whole", folder / "interrupted", exact=True)
    assert compared.equal, compared.text()
    assert torch.equal(run["end"], found["whole"]["end"])


@pytest.mark.parametrize("name", ["wrapped", "unwrapped"])
def test_interrupted_and_wrapped_again_it_trains_its_plan_from_the_start(
    found: dict[str, Any], folder: Path, name: str
) -> None:
    run = found[name]
    assert (run["first"], run["wrapped again"], run["fit"]) == ("Interrupted: ", "nothing", "nothing")
    assert run["ledger"] == {"headers": 1, "steps": [0, 1]}
    assert run["again"] == {"headers": 1, "steps": WHOLE_PLAN}
    for mine, theirs in zip(read_steps(folder / f"{name} again"), read_steps(folder / "whole"), strict=True):
        rows = [sorted(zip(step["rollout"], step["prompt"], step["sample"], strict=True)) for step in (mine, theirs)]
        assert rows[0] == rows[1]

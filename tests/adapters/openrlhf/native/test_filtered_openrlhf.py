"""Dynamic filtering: OpenRLHF's real `PPOTrainer.fit`, wrapped, on one rank and on two, against the float64 oracle.

The processes run `filtered_fits.py`; this one compares. The filter keeps six of the twelve prompts' groups, and the run
reaches into the second epoch of candidates.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filter_tampering import TAMPERED
from orl_proofs import filled, passes, plan_of, summary

from batchbridge.ledger import diff
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.testing.oracle import gradient_bar
from batchbridge_on_cpu.trajectories import assert_same_end

# Minutes: `nox -s openrlhf_full` runs it on every release.
pytestmark = pytest.mark.by_hand

HERE = Path(__file__).parent
SIZES = {"own": [6] * 6, "passes": [5, 5, 2] * 6}
APPLIED = {"kept groups are dropped": 2}
"""Optimizer steps before the one that is tampered with: the first rollout has no group that could be dropped."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Processes -> the folder where they left what they measured."""

    @functools.cache
    def started(ranks: int) -> tuple[Path, subprocess.CompletedProcess[str]]:
        place = tmp_path_factory.mktemp(f"filtered_{ranks}")
        launch = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        command = [sys.executable, *launch, str(HERE / "filtered_fits.py"), str(place)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return place, subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def run(ranks: int) -> Path:
        place, ran = started(ranks)
        assert ran.returncode == 0, ran.stderr[-20000:]
        return place

    return run


def measured(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "measured.pt", weights_only=True)
    return found


both = pytest.mark.parametrize("ranks", [1, 2])


@both
@pytest.mark.parametrize("name", SIZES)
def test_every_step_trains_the_candidates_that_the_filter_keeps_with_the_oracles_gradient(
    run: Callable[[int], Path], ranks: int, name: str, record: Callable[..., None]
) -> None:
    steps = measured(run(ranks))[name]
    assert [step["size"] for step in steps] == SIZES[name]
    bar = gradient_bar(*(step["floor"] for step in steps))
    for step in steps:
        assert step["planned"]
        assert step["tick"]
        assert step["generated"]
        assert step["error"] <= bar, step
        assert step["norm"] > 1e-2
    assert {rank for step in steps for rank in step["ranks"]} == set(range(ranks))
    worst = max(steps, key=lambda step: float(step["error"]))
    record(f"filtered fit, {name}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


@both
@pytest.mark.parametrize("name", SIZES)
def test_negative_control_the_first_candidates_kept_or_not_miss_the_bar_tenfold(
    run: Callable[[int], Path], ranks: int, name: str
) -> None:
    for step in measured(run(ranks))[name]:
        assert step["unfiltered"] > 10 * gradient_bar(step["floor"]), step


@both
def test_every_candidate_up_to_the_last_one_kept_is_offered_once_with_its_own_seeds(
    run: Callable[[int], Path], ranks: int
) -> None:
    folder = run(ranks)
    plan = plan_of(summary(folder / "own"))
    assert isinstance(plan, CandidatePlan)
    places = plan.total_rollouts * plan.prompts_per_rollout
    candidates = plan.candidates(0, 10 * plan.dataset_size)
    last = [number for number, prompt in enumerate(candidates) if passes(prompt)][places - 1]
    assert filled(plan)[:places] != list(candidates[:places])
    assert last >= plan.dataset_size, "the second epoch is reached"
    want = {
        (prompt, sample, seed + sample)
        for prompt, seed in zip(candidates[: last + 1], plan.candidate_seeds(0, last + 1), strict=True)
        for sample in range(plan.completions_per_prompt)
    }
    have = [tuple(row) for row in measured(folder)["seeds"]]
    assert set(have) == want
    assert len(have) == len(want)


@both
def test_the_report_says_what_the_run_decides(run: Callable[[int], Path], ranks: int) -> None:
    assert "decided while it runs: rollout.group_filter = custom: rewards" in measured(run(ranks))["undecided"]


@both
@pytest.mark.parametrize("name", TAMPERED)
def test_a_rollout_that_is_not_what_the_filter_keeps_is_not_trained(
    run: Callable[[int], Path], ranks: int, name: str
) -> None:
    text, applied = measured(run(ranks))["tampered"][name]
    step = APPLIED.get(name, 0)
    assert text.startswith(f"BatchDrift: optimizer step {step} departs from the plan in its membership"), text
    assert applied == step


@both
def test_a_filter_that_keeps_no_prompt_of_the_dataset_ends_the_run(run: Callable[[int], Path], ranks: int) -> None:
    text, applied = measured(run(ranks))["tampered"]["no group can be kept"]
    assert (
        "rollout 0 cannot be filled: of candidates 0 to 15, among them every prompt of the dataset, none has a mean"
        in text
    )
    assert applied == 0


@both
def test_a_resumed_run_goes_on_with_the_next_candidates_bit_for_bit(run: Callable[[int], Path], ranks: int) -> None:
    assert measured(run(ranks))["resumed"] == {"steps": [4, 5], "equal": True}


@both
def test_micro_batches_do_not_change_a_filtered_run(run: Callable[[int], Path], ranks: int) -> None:
    found = measured(run(ranks))
    case = f"openrlhf, sgd, filtered: micro-batches of 1 and 3, ranks: {ranks}"
    assert_same_end(case, found["start"], found["ends"]["threes"], found["ends"]["own"])


def test_ranks_do_not_change_a_filtered_run(run: Callable[[int], Path], record: Callable[..., None]) -> None:
    one, two = measured(run(1)), measured(run(2))
    compared = diff(run(1) / "own", run(2) / "own", rtol=1e-4)
    assert compared.equal, compared.text()
    case = "openrlhf, sgd, filtered: one rank and two"
    apart = assert_same_end(case, one["start"], one["ends"]["own"], two["ends"]["own"])
    record("filtered fit, one rank and two", moved=apart.moved, apart=apart.said)


def test_negative_control_unwrapped_the_filter_trains_other_steps_and_ends_with_the_dataset(
    run: Callable[[int], Path],
) -> None:
    folder = run(1)
    found = measured(folder)["observed"]
    assert all(passes(prompt) for step in found for prompt in step)
    assert len(found) < len(SIZES["own"])
    assert not diff(folder / "own", folder / "observed", rtol=1e-4).equal

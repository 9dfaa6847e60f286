"""The driver: OpenRLHF's real `PPOTrainer.fit`, wrapped, on one rank and without Ray's processes; see `fits.py`.

Three rollouts of two optimizer steps, answers that arrive in another order, ragged lengths, a completion whose loss
mask is all zero. Each step is compared with the oracle's gradient at the weights that the step started from.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version

from batchbridge.contract import plugins
from batchbridge.diagnosis import doctor
from batchbridge.kit import Row, token_weights
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read
from batchbridge.testing.oracle import gradient_bar
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.trajectories import FAULTS, Fault, assert_other_end, assert_same_end, reference_run, sgd

LEARNING_RATE = 6e-2
GROUP = 3
WHOLE = {
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": GROUP,
    "train.batch_size": 12,
    "train.micro_batch_size": 12,
    "actor.num_gpus_per_node": 1,
    "algo.advantage.estimator": "group_norm",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run left what it measured, and its ledgers."""
    made = tmp_path_factory.mktemp("fits")
    script = Path(__file__).parent / "logged_fits.py"
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, str(script), str(made)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    return made


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize(("run", "sizes"), [("own", [6] * 6), ("passes", [5, 5, 2] * 6)])
def test_every_step_trains_the_plans_completions_with_the_oracles_gradient(
    measured: dict[str, Any], run: str, sizes: list[int], record: Callable[..., None]
) -> None:
    steps = measured[run]
    worst = max(steps, key=lambda step: float(step["error"]))
    record(f"fit, {run}", error=worst["error"], float32=worst["floor"])
    assert [step["size"] for step in steps] == sizes
    bar = gradient_bar(*(step["floor"] for step in steps))
    for step in steps:
        assert step["planned"]
        assert step["tick"]
        assert step["advantages"]
        assert step["error"] <= bar, step
        assert step["norm"] > 1e-2
        assert step["logged_norm"] == pytest.approx(step["norm"], rel=1e-4)


def test_the_learning_rate_ticks_once_per_rollout_where_the_spec_says_so(measured: dict[str, Any]) -> None:
    rates = [LEARNING_RATE * (3 - rollout) / 3 for rollout in range(3) for _ in range(6)]
    assert measured["rates"] == pytest.approx(rates)


def test_micro_batches_do_not_change_the_trajectory(measured: dict[str, Any], record: Callable[..., None]) -> None:
    start, ends = measured["start"], measured["ends"]
    found = assert_same_end("openrlhf, sgd: micro-batches of 1 and 3", start, ends["micro"], ends["own"])
    record("fit, other micro-batches", moved=found.moved, apart=found.said)


def led(folder: Path, fault: Fault | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the plan of the run leads in plain torch."""
    header = read_headers(folder / "own")[0]
    plan = Plan(Spec.from_dict(header["spec"]), header["dataset_size"])
    return reference_run(plan, sgd(LEARNING_RATE), fault=fault)


def test_the_run_ends_where_its_plan_leads_in_plain_torch(measured: dict[str, Any], folder: Path) -> None:
    start, end = led(folder)
    assert_same_end("openrlhf, sgd: plain torch", start, measured["ends"]["own"], end)


@pytest.mark.parametrize("fault", FAULTS)
def test_negative_control_with_one_fault_the_plan_leads_elsewhere(
    measured: dict[str, Any], folder: Path, fault: Fault
) -> None:
    start, end = led(folder, fault)
    assert_other_end(f"openrlhf, sgd: plain torch, {fault}", start, measured["ends"]["own"], end)


def test_budgets_of_a_spec_cut_training_and_scoring_of_a_run_with_fixed_micro_batches(
    measured: dict[str, Any], folder: Path
) -> None:
    found = measured["budget"]
    for trains, budget, alone in ((True, 60, 36), (False, 100, 36)):
        passes = [(rows, width) for training, rows, width in found["passes"] if training is trains]
        assert all(rows * width <= budget or rows == 1 for rows, width in passes), passes
        assert max(rows for rows, _ in passes) > 2
        assert len(passes) < alone / 2, "fixed micro-batches have one completion, of scoring two"
    assert diff(folder / "own", folder / "budget", rtol=1e-4).equal
    assert_same_end("openrlhf, sgd: token budgets and fixed", measured["start"], found["end"], measured["ends"]["own"])


def test_negative_control_the_unwrapped_run_ends_elsewhere(
    measured: dict[str, Any], record: Callable[..., None]
) -> None:
    ends = measured["ends"]
    found = assert_other_end("openrlhf, unwrapped", measured["start"], ends["observed"], ends["own"])
    record("fit, unwrapped", apart=found.said)


@pytest.mark.parametrize(("run", "rollouts_at_once"), [("logged_enforced", 2), ("logged_observed", 1)])
def test_openrlhfs_own_logger_gets_the_ledgers_numbers(folder: Path, run: str, rollouts_at_once: int) -> None:
    term = Spec.from_dict(read_headers(folder / run)[0]["spec"]).loss.policy
    steps, expected = list(read_steps(folder / run)), []
    for first in range(0, len(steps) - 2 * rollouts_at_once + 1, 2 * rollouts_at_once):
        part, drifts = steps[first : first + 2 * rollouts_at_once], []
        for step in part:
            groups = zip(step["rollout"], step["prompt"], strict=True)
            rows = zip(step["response_tokens"], groups, strict=True)
            planned = token_weights(term, [Row(tokens=count, group=group) for count, group in rows])
            pairs = [(seen, want) for seen, want in zip(step["weights"], planned, strict=True) if want and seen]
            drifts += [abs(float(Fraction(seen) / want - 1)) for seen, want in pairs]
        expected.append((len(part), part, max(drifts)))
    said = torch.load(folder / "logged.pt", weights_only=True)[run]
    assert [rollout for rollout, _ in said] == list(range(rollouts_at_once, 4, rollouts_at_once))
    for (_, numbers), (count, part, drift) in zip(said, expected, strict=True):
        assert numbers["batchbridge/completions"] == sum(len(step["prompt"]) for step in part) / count
        assert numbers["batchbridge/response_tokens"] == sum(sum(step["response_tokens"]) for step in part) / count
        assert numbers["batchbridge/drift"] == pytest.approx(drift, abs=1e-12)
        assert "batchbridge/padding_saved" not in numbers
        assert numbers["losses"] > 0, "OpenRLHF's own stay"
        assert 0 < numbers["batchbridge/drift"] < 1e-5


@pytest.mark.smoke
def test_a_resumed_run_continues_the_plan_exactly(measured: dict[str, Any], folder: Path) -> None:
    assert measured["resumed"] == {"steps": [4, 5], "equal": True}
    whole = list(read_steps(folder / "own"))
    for mine, theirs in zip(read_steps(folder / "resumed"), whole[4:], strict=True):
        assert mine["completion_fingerprint"] == theirs["completion_fingerprint"]
        assert mine["old_logprobs"] == theirs["old_logprobs"]
        assert mine["gradient_norm"] == theirs["gradient_norm"]


def test_a_missing_completion_another_plan_and_a_missing_receipt_end_the_run(measured: dict[str, Any]) -> None:
    short, plan, receipts, ledger = measured["refusals"]
    assert short.startswith("optimizer step 0 departs from the plan in its membership: 2 completions of prompt")
    assert "belongs to another run" in plan
    assert "order.seed: " in plan
    assert "of 2 training workers those answered that have the ranks [0, 0]" in receipts
    assert ledger == "False"


def test_alone_a_micro_batch_without_a_token_ends_the_run_and_doctor_knows_why(measured: dict[str, Any]) -> None:
    assert measured["alone"].rstrip().endswith("ZeroDivisionError: float division by zero")
    assert [found.text.name for found in doctor(measured["alone"])] == ["openrlhf-no-token"]


def test_a_stock_run_in_mode_verify_ends_well_and_its_ledger_is_right_by_itself(folder: Path) -> None:
    """The order of prompts and the engines' order of arrival are open; weights and membership by rollout are held."""
    found = verify(folder / "verified")
    assert (found.departed, found.decided, found.stop) == (0, True, 6)


def test_a_tampered_stock_run_in_mode_verify_stops(measured: dict[str, Any]) -> None:
    for said in measured["verify"]:
        assert said.startswith("optimizer step ")
        assert "departs from the plan in its membership: " in said


SENT = r"prompt \d+ sample \d is not what the trainer's process sent"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("advantages", f"inputs: advantages of {SENT}"),
        ("old log-probabilities", f"inputs: action_log_probs of {SENT}"),
        ("setting", "settings: rollout.temperature was 1.0 when the trainer was wrapped, and is 1.3"),
    ],
)
def test_an_input_of_a_stock_run_that_is_touched_stops_it_in_mode_verify(
    measured: dict[str, Any], name: str, said: str
) -> None:
    assert re.search(f"departs from the plan in its {said}", measured["touched"][name]), measured["touched"][name]


def test_the_observed_run_trains_every_completion_once_and_other_steps_than_the_plan(folder: Path) -> None:
    observed = list(read_steps(folder / "observed"))
    assert len(observed) == 6
    for rollout in range(3):
        steps = [step for step in observed if step["rollout"][0] == rollout]
        trained = [row for step in steps for row in zip(step["prompt"], step["sample"], strict=True)]
        assert len(trained) == len(set(trained)) == 12
        prompts = {prompt for prompt, _ in trained}
        assert set(trained) == {(prompt, sample) for prompt in prompts for sample in range(GROUP)}
    assert not diff(folder / "own", folder / "observed", rtol=1e-4).equal


def test_an_episodes_last_prompts_are_trained_where_the_reading_says_so(folder: Path) -> None:
    """Ten prompts in rollouts of four: 2 + 2 optimizer steps, and one more."""
    trained = len(list(read_steps(folder / "tail")))
    last = read_headers(folder / "tail")[0]["spec"]["order"]["last_rollout"]
    assert (last, trained) == (("short", 5) if Version(version("openrlhf")) >= Version("0.11") else ("drop", 4))


def test_what_is_decided_of_an_unwrapped_run_is_predicted_completion_by_completion(folder: Path) -> None:
    """L1: the adapter's prediction against the recorded step."""
    (step,) = read_steps(folder / "whole")
    reading = read(WHOLE, framework="openrlhf", version=version("openrlhf"), dataset_size=4)
    script = ScriptedRollouts()
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(4) for sample in range(GROUP)
    }
    (native,) = plugins.adapters()["openrlhf"].native_steps(reading, 4, lengths)
    want: dict[tuple[Any, ...], float] = {
        (row.rollout, row.pass_index, row.prompt, row.sample, row.rank): float(row.weight or 0) for row in native.rows
    }
    columns = ("rollout", "pass", "prompt", "sample", "rank", "weights", "advantage")
    have = {tuple(told[:5]): told[5:] for told in zip(*(step[name] for name in columns), strict=True)}
    assert have.keys() == want.keys()
    for row, (weight, advantage) in have.items():
        if advantage == 0:
            assert weight is None, row  # no gradient shows it
        else:
            assert weight == pytest.approx(want[row], rel=1e-6), row

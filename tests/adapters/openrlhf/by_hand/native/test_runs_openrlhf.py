"""L1, L3, faults and resume: `python -m openrlhf.cli.train_ppo_ray` through `batchbridge run`.

CPU, gloo, scripted rollouts that arrive out of order; three rollouts of two optimizer steps. Every run is a process of
its own with a Ray of its own, started once. Minutes each, so by hand: `nox -s openrlhf_runs`. BATCHBRIDGE_RECORD=1
keeps figures, and the steps of unwrapped runs; see `orl_proofs`.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

import orl_proofs as proofs
import pytest
import torch
from orl_proofs import ROLLOUTS, WHOLE, keep, keep_unwrapped, summary
from orl_runs import Run, prepared, run

from batchbridge.ledger import diff, read_steps
from batchbridge.reading.read import read
from batchbridge_on_cpu.figures import rounded
from batchbridge_on_cpu.half_saved import half_saved_beside_latest
from batchbridge_on_cpu.openrlhf.scripted import command
from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_OPENRLHF_RUNS`: a folder that keeps finished
    runs, for work on a single test."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return tmp_path_factory.mktemp("o") if kept is None else Path(kept)


@pytest.fixture(scope="module")
def two_ranks(place: Path) -> Run:
    """ZeRO-2, micro-batches of one completion."""
    env = {"BATCHBRIDGE_JITTER_SEED": "1", "BATCHBRIDGE_SEEDS": str(place / "a" / "seeds")}
    return run(place / "a", 2, env=env, ckpt__save_steps="1")


@pytest.fixture(scope="module")
def one_rank(place: Path) -> Run:
    """ZeRO-1, other micro-batches, another order of arrival."""
    changes = {"ds__zero_stage": "1", "train__micro_batch_size": "2"}
    return run(place / "b", 1, env={"BATCHBRIDGE_JITTER_SEED": "2"}, **changes)


@pytest.fixture(scope="module")
def zero_3(place: Path) -> Run:
    """Forward micro-batches that the ranks do not share evenly."""
    changes = {"ds__zero_stage": "3", "rollout__micro_batch_size": "4"}
    return run(place / "c", 2, env={"BATCHBRIDGE_JITTER_SEED": "3"}, **changes)


@pytest.fixture(scope="module")
def killed(place: Path) -> Run:
    """Rank 1 dies after optimizer step 4, the first of the third rollout."""
    return run(place / "d", 2, ckpt__save_steps="1", env={"BATCHBRIDGE_KILL": "1/4"})


@pytest.fixture(scope="module")
def resumed(place: Path, killed: Run) -> Run:
    """It goes on beside a checkpoint that would have been the killed run's next, and is half written."""
    assert killed.code != 0
    half_saved_beside_latest(place / "d")
    return run(place / "d", 2, "--ckpt.load_enable", ckpt__save_steps="1")


def test_the_ledger_of_a_run_on_two_ranks_is_the_plan(two_ranks: Run) -> None:
    assert two_ranks.code == 0, two_ranks.text[-20000:]
    found = two_ranks.summary()
    assert len(found["steps"]) == 2 * ROLLOUTS
    proofs.check_plan(found, ranks=2)


def test_every_request_has_the_plans_sampling_seed(place: Path, two_ranks: Run) -> None:
    plan = proofs.plan_of(summary(two_ranks.ledger))
    seeds = {
        (prompt, sample, first + sample)
        for rollout in range(ROLLOUTS)
        for prompt, first in zip(plan.rollout(rollout).prompts, plan.sampling_seeds(rollout), strict=True)
        for sample in range(plan.completions_per_prompt)
    }
    lines = (place / "a" / "seeds").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(seeds)
    assert {tuple(map(int, line.split())) for line in lines} == seeds


@pytest.mark.parametrize(("other", "ranks"), [("one_rank", 1), ("zero_3", 2)])
def test_ranks_micro_batches_and_zero_stages_do_not_change_the_run(
    two_ranks: Run, other: str, ranks: int, request: pytest.FixtureRequest
) -> None:
    found: Run = request.getfixturevalue(other)
    assert found.code == 0, found.text[-20000:]
    compared = diff(two_ranks.ledger, found.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    proofs.check_plan(found.summary(), ranks=ranks)
    case = f"openrlhf, sgd: the stock entry on two ranks and {other}"
    apart = assert_same_end(case, two_ranks.weights("policy"), found.weights(), two_ranks.weights())
    keep("runs", "moved", value=rounded(apart.moved))
    keep("runs", f"apart: {other.replace('_', ' ')}", value=rounded(apart.said))


def test_negative_control_the_same_run_unwrapped_trains_other_steps_and_ends_elsewhere(
    two_ranks: Run, place: Path
) -> None:
    observed = run(place / "n", 2, options=("--mode", "observe"))
    assert observed.code == 0, observed.text[-20000:]
    native = observed.summary()
    assert native["mode"] == "observe"
    assert proofs.differing_steps(two_ranks.summary(), native)
    proofs.check_once(native)
    keep_unwrapped("unwrapped", native)
    case = "openrlhf, the stock entry unwrapped"
    apart = assert_other_end(case, two_ranks.weights("policy"), observed.weights(), two_ranks.weights())
    keep("runs", "apart: unwrapped", value=rounded(apart.said))


def test_what_is_decided_of_an_unwrapped_run_is_predicted_completion_by_completion(place: Path) -> None:
    """L1: the adapter's prediction against the recorded steps."""
    changes = {name.replace(".", "__"): str(value) for name, value in WHOLE.items()}
    observed = run(place / "l", 1, options=("--mode", "observe"), prompts=4, **changes)
    assert observed.code == 0, observed.text[-20000:]
    keep_unwrapped("predicted", observed.summary())
    proofs.check_prediction(observed.summary(), command(Path("x"), 1, **changes)[1:])


def test_a_filtered_run_trains_the_plans_candidates_in_their_order(place: Path) -> None:
    bounds = ["--algo.dynamic_filtering_range", *map(str, proofs.BOUNDS)]
    env = {"BATCHBRIDGE_SCORES": "1", "BATCHBRIDGE_JITTER_SEED": "5"}
    filtered = run(place / "p", 2, "--algo.dynamic_filtering_enable", *bounds, env=env)
    assert filtered.code == 0, filtered.text[-20000:]
    assert "decided while it runs: rollout.group_filter = custom" in filtered.text
    found = filtered.summary()
    assert len(found["steps"]) == 2 * ROLLOUTS
    proofs.check_plan(found, ranks=2)


def test_a_killed_process_ends_the_run_and_leaves_a_readable_ledger(killed: Run) -> None:
    # Whichever is first: Ray, who misses the worker, or the other rank, which waits for it.
    endings = ("The actor died unexpectedly before finishing this task", "Connection closed by peer")
    killed.says(next((text for text in endings if text in killed.text), endings[0]))
    steps = read_steps(killed.ledger)
    numbers = [step["step"] for step in steps]
    assert numbers == [0, 1, 2, 3, *([] if steps.incomplete else [4])]
    proofs.check_steps(killed.summary(), ranks=2)


def test_the_resumed_run_continues_the_plan_exactly(two_ranks: Run, resumed: Run) -> None:
    assert resumed.code == 0, resumed.text[-20000:]
    compared = diff(two_ranks.ledger, resumed.ledger, exact=True)
    assert compared.equal, compared.text()
    proofs.check_identical(two_ranks.summary(), resumed.summary())
    for name, value in two_ranks.weights().items():
        assert torch.equal(value, resumed.weights()[name]), name


def test_another_number_of_ranks_cannot_resume(place: Path, resumed: Run) -> None:
    other = run(place / "d", 1, "--ckpt.load_enable")
    other.says("written by 2 ranks, this run has 1: start as many")
    assert "Train epoch" not in other.text


def test_a_missing_completion_ends_the_run_before_the_step(place: Path, two_ranks: Run) -> None:
    prompt = proofs.plan_of(summary(two_ranks.ledger)).rollout(0).prompts[0]
    failed = run(place / "e", 1, env={"BATCHBRIDGE_SHORT": str(prompt)})
    failed.says(f"2 completions of prompt {prompt} arrived, not 3")
    assert not failed.ledger.exists()


def test_a_plan_that_divides_nothing_is_followed_in_two_passes(place: Path) -> None:
    """Rollouts of 4, 4 and 3 prompts of 3 completions, steps of 5: 5 + 5 + 2 and 5 + 4, each twice."""
    folder = place / "u"
    prepared(folder, 11)
    changes = {"train__max_epochs": "2"}
    reading = read(
        command(folder, 2, **changes)[1:], framework="openrlhf", version=version("openrlhf"), dataset_size=11
    )
    assert reading.spec is not None
    spec = reading.spec.replace(
        **{
            "order.seed": 3,
            "optimizer_step.completions_per_step": 5,
            "optimizer_step.step_may_span": "none",
            "order.last_optimizer_step": "short",
        }
    )
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    clipped, options = folder / "clipped.jsonl", ("--spec", str(folder / "spec.json"))
    found = run(folder, 2, options=options, prompts=11, env={"BATCHBRIDGE_CLIPPED": str(clipped)}, **changes)
    assert found.code == 0, found.text[-20000:]
    made = found.summary(clipped=clipped)
    assert [len(step["prompt"]) for step in made["steps"]] == [5, 5, 2] * 4 + [5, 4] * 2
    proofs.check_plan(made, ranks=2)


def test_what_cannot_be_followed_is_refused_before_any_training_process_has_a_model(place: Path) -> None:
    refused = run(place / "f", 1, "--train.enable_ema")
    refused.says("ema: train.enable_ema moves its average")
    assert "Train epoch" not in refused.text

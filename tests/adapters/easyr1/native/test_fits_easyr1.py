"""L1, L3, faults and resume: EasyR1's real `RayPPOTrainer.fit`, real data loader, real workers and FSDP, without Ray.

The processes run `fits.py`; `proofs.py` says what is asked. The stock entry with Ray: test_runs_easyr1.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import proofs
import pytest
import started
import torch
from started import fit_failed, fit_run, parameters

from batchbridge.ledger import diff
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge_on_cpu.trajectories import (
    FAULTS,
    Fault,
    adamw,
    assert_other_end,
    assert_same_end,
    reference_run,
    sgd,
)

Fit = Callable[..., Path]
ON_ONE = ("predicted", "enforced", "seq", "sgd", "like", "orderly", "verified")
ON_TWO = ("enforced", "observed", "seq", "sgd", "like")


@pytest.fixture(scope="module")
def fit(place: Path, checkout: Path) -> Fit:
    """Runs scenarios on so many ranks, once; returns their folder."""
    return lambda ranks, *names, **env: started.fit(place, checkout, ranks, *names, **env)


@pytest.fixture(scope="module")
def two(fit: Fit) -> Path:
    return fit(2, *ON_TWO)


@pytest.fixture(scope="module")
def one(fit: Fit) -> Path:
    return fit(1, *ON_ONE)


@pytest.fixture(scope="module")
def killed(fit: Fit) -> Path:
    """The folder in which rank 1 died after optimizer step 4, the first of the third rollout."""
    return fit(2, "killed", BATCHBRIDGE_KILL=proofs.KILL)


@pytest.fixture(scope="module")
def resumed(fit: Fit, killed: Path) -> Path:
    """Both go on beside a checkpoint that a killed run left half written."""
    started.left_by_the_kill(killed)
    return fit(2, "resumed", proofs.OTHER_SETTINGS)


def start(folder: Path) -> torch.Tensor:
    return parameters(folder / "enforced-weights" / "first.pt")


def end(folder: Path, name: str) -> torch.Tensor:
    return parameters(folder / f"{name}-weights" / "last.pt")


def test_the_unwrapped_run_on_one_device_is_as_predicted(one: Path) -> None:
    run = fit_run(one, "predicted", 1)
    proofs.check_prediction(run, run["argv"])


@pytest.mark.parametrize("name", ["enforced", "seq", "sgd", "like"])
def test_the_ledger_on_two_ranks_is_the_plan(two: Path, name: str) -> None:
    proofs.check_plan(fit_run(two, name, 2), ranks=2)
    proofs.check_whole_groups(fit_run(two, name, 2))


@pytest.mark.parametrize("name", ["enforced", "seq", "sgd", "like"])
def test_every_request_has_the_plans_sampling_seed(two: Path, name: str) -> None:
    run = fit_run(two, name, 2)
    lines = (two / f"{name}-seeds").read_text(encoding="utf-8").splitlines()
    assert sorted(map(proofs.seed_of, lines)) == proofs.planned_seeds(run)


@pytest.mark.parametrize("name", ["enforced", "seq", "sgd", "like"])
def test_ranks_do_not_change_the_run(one: Path, two: Path, name: str) -> None:
    proofs.check_plan(fit_run(one, name, 1), ranks=1)
    proofs.check_same(fit_run(one, name, 1), fit_run(two, name, 2))
    assert_same_end(f"easyr1, {name}: one rank and two", start(two), end(one, name), end(two, name))


def plain_torch(folder: Path, name: str, ranks: int, fault: Fault | None = None) -> torch.Tensor:
    """Where the plan of a run leads in plain torch, float64, at the rates that the ledger says: 0.3.2 warms up for one
    rollout, whatever it is told."""
    run = fit_run(folder, name, ranks)
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    rate, norm = plan.spec.carried.learning_rate, plan.spec.carried.max_gradient_norm
    assert rate is not None
    rates = [step["learning_rate"] for step in run["steps"]]
    return reference_run(plan, (sgd if name == "sgd" else adamw)(rate), max_norm=norm, rates=rates, fault=fault)[1]


@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two ranks"])
@pytest.mark.parametrize("name", ["enforced", "seq", "sgd", "like"])
def test_a_run_ends_where_its_plan_leads_in_plain_torch(fit: Fit, name: str, ranks: int) -> None:
    folder = fit(ranks, *(ON_ONE if ranks == 1 else ON_TWO))
    case = f"easyr1, {'sgd' if name == 'sgd' else 'adamw'}, {name}, ranks {ranks}: plain torch"
    assert_same_end(case, start(folder), end(folder, name), plain_torch(folder, name, ranks))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["enforced", "sgd"])
def test_negative_control_with_one_fault_the_plan_leads_elsewhere(one: Path, name: str, fault: Fault) -> None:
    case = f"easyr1, {'sgd' if name == 'sgd' else 'adamw'}, {name}: plain torch, {fault}"
    assert_other_end(case, start(one), end(one, name), plain_torch(one, name, 1, fault))


def test_negative_control_the_unwrapped_run_trains_other_steps_and_ends_elsewhere(two: Path) -> None:
    assert proofs.differing_steps(fit_run(two, "enforced", 2), fit_run(two, "observed", 2)) == 6
    assert_other_end("easyr1, unwrapped", start(two), end(two, "observed"), end(two, "enforced"))


def test_verifying_leaves_a_native_run_alone_in_easyr1s_own_order(one: Path) -> None:
    """Its rollouts have other prompts than the plan's, and those that `behaviour` predicts."""
    verified = fit_run(one, "verified", 1)
    assert proofs.differing_steps(fit_run(one, "enforced", 1), verified) == 6


def test_verifying_leaves_a_native_run_alone_that_keeps_to_the_plan(one: Path) -> None:
    proofs.check_members(fit_run(one, "orderly", 1))


@pytest.mark.smoke
def test_verifying_ends_a_run_that_is_tampered_with_in_step_3_before_its_update(fit: Fit) -> None:
    proofs.check_tampered_with(fit_failed(fit(1, proofs.TAMPERED_WITH), proofs.TAMPERED_WITH))


def test_a_killed_worker_ends_the_run_and_leaves_a_readable_ledger(killed: Path) -> None:
    proofs.check_killed(fit_failed(killed, "killed"))


def test_the_resumed_run_continues_the_plan_exactly(two: Path, resumed: Path) -> None:
    proofs.check_plan(fit_run(resumed, "resumed", 2), ranks=2)
    compared = diff(two / "enforced", resumed / "killed", exact=True)
    assert compared.equal, compared.text()
    assert torch.equal(*(parameters(two / f"{name}-weights" / "last.pt") for name in ("enforced", "resumed")))


def test_resumed_with_a_token_budget_it_goes_on_and_ends_within_the_bar(two: Path, resumed: Path) -> None:
    proofs.check_same(fit_run(resumed, proofs.OTHER_SETTINGS, 2), fit_run(two, "enforced", 2))
    said = "easyr1, resumed with a token budget"
    assert_same_end(said, start(two), end(resumed, proofs.OTHER_SETTINGS), end(two, "enforced"))


def logged(folder: Path, job: tuple[str, ...], name: str, ranks: int) -> list[dict[str, str]]:
    """What EasyR1 logged of the actor after each of a scenario's three rollouts; every rank logs here."""
    _, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    steps = re.findall(r"Step [1-9]\nactor:\n((?:  .*\n)+)", text)
    first, size = job.index(name) * 3 * ranks, 3 * ranks
    return [dict(line.split(": ") for line in one.split("\n")[:-1]) for one in steps[first : first + size : ranks]]


@pytest.mark.parametrize("name", ["enforced", "seq", "sgd", "like"])
def test_gradient_norm_and_learning_rate_are_logged_whatever_ranks(one: Path, two: Path, name: str) -> None:
    """The rest of what EasyR1 logs of the actor are means over micro-batches, as natively: it depends on the cut."""
    mine, theirs = logged(one, ON_ONE, name, 1), logged(two, ON_TWO, name, 2)
    assert len(mine) == len(theirs) == 3
    for key in ("  grad_norm", "  lr"):
        assert [step[key] for step in mine] == [step[key] for step in theirs]
    assert [step["  pg_loss"] for step in mine] != [step["  pg_loss"] for step in theirs]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_is_evaluated_between_its_rollouts(one: Path, two: Path, ranks: int) -> None:
    """Killed and resumed without evaluations, the same run ends bit-equal."""
    proofs.check_evaluated(fit_run(one if ranks == 1 else two, "enforced", ranks))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_filtered_run_trains_the_plans_candidates_in_their_order(fit: Fit, ranks: int) -> None:
    run = fit_run(fit(ranks, "filtered"), "filtered", ranks)
    proofs.check_candidates(run, ranks=ranks)
    proofs.check_whole_groups(run)


def test_ranks_do_not_change_a_filtered_run(fit: Fit) -> None:
    one, two = fit(1, "filtered"), fit(2, "filtered")
    proofs.check_same(fit_run(one, "filtered", 1), fit_run(two, "filtered", 2))
    first = parameters(two / "filtered-weights" / "first.pt")
    assert_same_end("easyr1, filtered: one rank and two", first, end(one, "filtered"), end(two, "filtered"))


@pytest.mark.smoke
def test_a_filtered_run_that_is_resumed_offers_the_next_candidates(fit: Fit) -> None:
    uninterrupted = fit(2, "filtered")
    assert fit_failed(fit(2, "filtered, killed", BATCHBRIDGE_KILL=proofs.KILL), "filtered, killed")["code"] != 0
    resumed = fit(2, "filtered, resumed")
    proofs.check_candidates(fit_run(resumed, "filtered, resumed", 2), ranks=2)
    compared = diff(uninterrupted / "filtered", resumed / "filtered, killed", exact=True)
    assert compared.equal, compared.text()


def test_observing_a_filtered_run_writes_what_the_filter_kept(fit: Fit) -> None:
    run = fit_run(fit(1, "filtered, observed"), "filtered, observed", 1)
    assert len(run["steps"]) == 6
    prompts = {prompt for step in run["steps"] for prompt in step["prompt"]}
    assert all(map(proofs.passes, prompts))
    with pytest.raises(AssertionError):
        proofs.check_candidates({**run, "mode": "enforce"}, ranks=1)


def test_another_number_of_ranks_cannot_resume(fit: Fit, place: Path, resumed: Path) -> None:
    checkpoints = place / "fits-1" / "killed-checkpoints"
    if not checkpoints.exists():
        checkpoints.parent.mkdir(parents=True, exist_ok=True)
        checkpoints.symlink_to(resumed / "killed-checkpoints")
    outcome = fit_failed(fit(1, "resumed"), "resumed")
    proofs.check_refused(outcome, "was written by 2 ranks, this run has 1: start as many")


def test_other_code_under_the_same_version_is_refused_before_a_step(fit: Fit) -> None:
    outcome = fit_failed(fit(1, proofs.OTHER_CODE), proofs.OTHER_CODE)
    proofs.check_refused(outcome, proofs.REFUSED_CODE)


def test_another_loss_that_weighs_as_before_goes_on_and_is_called_measured(fit: Fit, one: Path) -> None:
    run = fit_run(fit(1, proofs.OTHER_LOSS), proofs.OTHER_LOSS, 1)
    proofs.check_plan(run, ranks=1)
    assert (run["grade"], fit_run(one, "enforced", 1)["grade"]) == ("measured", "proven")


# ---- ranks that share the tokens of their rows (Ulysses)


@pytest.fixture(scope="module")
def sharing(fit: Fit) -> Path:
    return fit(2, *proofs.SHARED_ROWS, "observed, ulysses")


@pytest.mark.parametrize("name", proofs.SHARED_ROWS)
def test_ranks_that_share_rows_train_the_plan_and_end_where_others_do(two: Path, sharing: Path, name: str) -> None:
    run, other = fit_run(sharing, name, 2), name.partition(",")[0]
    proofs.check_plan(run, ranks=1)
    proofs.check_whole_groups(run)
    proofs.check_same(run, fit_run(two, other, 2))
    assert_same_end(f"easyr1, {name}: as {other}", start(two), end(sharing, name), end(two, other))


def test_two_replicas_of_two_ranks_train_the_plan_and_end_there_too(fit: Fit, two: Path) -> None:
    four = fit(4, "enforced, ulysses")
    run = fit_run(four, "enforced, ulysses", 4)
    proofs.check_plan(run, ranks=2)
    proofs.check_same(run, fit_run(two, "enforced", 2))
    assert_same_end(
        "easyr1, two replicas of two ranks", start(two), end(four, "enforced, ulysses"), end(two, "enforced")
    )


def test_negative_control_ranks_that_share_rows_train_other_steps_unwrapped(two: Path, sharing: Path) -> None:
    observed = fit_run(sharing, "observed, ulysses", 2)
    assert {step["ranks"] for step in observed["steps"]} == {1}
    assert proofs.differing_steps(fit_run(sharing, "enforced, ulysses", 2), observed) == 6
    ends = end(sharing, "observed, ulysses"), end(sharing, "enforced, ulysses")
    assert_other_end("easyr1, ulysses, unwrapped", start(two), *ends)


def test_ranks_that_share_rows_are_killed_and_resume_exactly(fit: Fit, sharing: Path) -> None:
    killed = fit(2, "killed, ulysses", BATCHBRIDGE_KILL=proofs.FIRST_KILL)
    proofs.check_killed(fit_failed(killed, "killed, ulysses"))
    resumed = fit(2, "resumed, ulysses")
    proofs.check_identical(fit_run(resumed, "resumed, ulysses", 2), fit_run(sharing, "enforced, ulysses", 2))
    assert torch.equal(end(resumed, "resumed, ulysses"), end(sharing, "enforced, ulysses"))

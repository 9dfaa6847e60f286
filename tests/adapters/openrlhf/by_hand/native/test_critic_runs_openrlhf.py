"""L1 and L3 with a critic: `python -m openrlhf.cli.train_ppo_ray` with gae, through `batchbridge run`.

As `test_runs_openrlhf`: CPU, gloo, scripted rollouts that arrive out of order; policy and critic are trained in
processes of their own under Ray. Minutes each, so by hand: `nox -s openrlhf_runs`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orl_proofs as proofs
import pytest
import torch
from orl_proofs import summary
from orl_runs import Run, prepared, run

from batchbridge.ledger import diff
from batchbridge.testing.equivalence import TRAJECTORY_BAR
from batchbridge_on_cpu.openrlhf.scripted import environment
from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end

FLAGS = ("--critic.save_value_network",)


def options(ranks: int, **changes: str) -> dict[str, str]:
    """Those of a critic on so many ranks."""
    return {
        "algo__advantage__estimator": "gae",
        "algo__advantage__lambd": "0.9",
        "critic__num_gpus_per_node": str(ranks),
        "critic__adam__lr": "2e-2",
        "critic__lr_scheduler": "constant",
        "critic__lr_warmup_ratio": "0",
        "critic__max_norm": "0",
        **changes,
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_OPENRLHF_RUNS`: as in `test_runs_openrlhf`."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return tmp_path_factory.mktemp("c") if kept is None else Path(kept)


def with_critic(folder: Path) -> str:
    """A folder with the policy, and a critic whose value head is saved: OpenRLHF draws a new one otherwise, which
    nothing seeds across ranks and runs."""
    prepared(folder)
    script = (
        "import sys; from pathlib import Path; from batchbridge_on_cpu.openrlhf.workers import save_critic; "
        "save_critic(Path(sys.argv[1]) / 'policy', Path(sys.argv[1]) / 'critic')"
    )
    if not (folder / "critic").exists():
        command = [sys.executable, "-c", script, str(folder)]
        subprocess.run(command, env=environment(folder, 1), check=True, capture_output=True)
    return str(folder / "critic")


def started(
    folder: Path, ranks: int, *, seed: str, critics: int = 2, mode: tuple[str, ...] = (), **changes: str
) -> Run:
    given = options(critics, critic__model_name_or_path=with_critic(folder), **changes)
    return run(folder, ranks, *FLAGS, options=mode, env={"BATCHBRIDGE_JITTER_SEED": seed}, **given)


@pytest.fixture(scope="module")
def two_ranks(place: Path) -> Run:
    """ZeRO-2 on two ranks of each model."""
    return started(place / "a", 2, seed="1")


@pytest.fixture(scope="module")
def one_of_critic(place: Path) -> Run:
    """ZeRO-1 on one rank of the critic and two of the policy, other micro-batches, another order of arrival."""
    return started(place / "b", 2, critics=1, seed="2", ds__zero_stage="1", train__micro_batch_size="3")


def told(found: Run) -> dict[str, Any]:
    """The ledger of a run that ended well."""
    assert found.code == 0, found.text[-20000:]
    return summary(found.ledger)


def critic_of(found: Run, name: str = "trained_critic") -> torch.Tensor:
    weights = found.weights(name)
    return torch.cat([weights[key].double().flatten() for key in sorted(weights)])


def test_the_ledger_of_a_run_with_a_critic_is_the_plan(two_ranks: Run, one_of_critic: Run) -> None:
    for found in (two_ranks, one_of_critic):
        proofs.check_critic(told(found), ranks=2)
    compared = diff(two_ranks.ledger, one_of_critic.ledger, rtol=1e-4)
    assert compared.equal, compared.text()


def test_ranks_and_micro_batches_do_not_change_where_either_model_ends(two_ranks: Run, one_of_critic: Run) -> None:
    case = "openrlhf, gae: the stock entry on two ranks of the critic and one"
    assert_same_end(case, two_ranks.weights("policy"), one_of_critic.weights(), two_ranks.weights())
    start, ends = critic_of(two_ranks, "critic"), [critic_of(each) for each in (one_of_critic, two_ranks)]
    of_critic = float((ends[0] - ends[1]).norm() / (ends[1] - start).norm())
    assert of_critic <= TRAJECTORY_BAR


def test_negative_control_unwrapped_both_models_end_elsewhere(two_ranks: Run, place: Path) -> None:
    observed = started(place / "n", 2, seed="3", mode=("--mode", "observe"))
    assert proofs.differing_steps(told(two_ranks), told(observed))
    assert_other_end("openrlhf, gae: unwrapped", two_ranks.weights("policy"), observed.weights(), two_ranks.weights())
    start, end = critic_of(two_ranks, "critic"), critic_of(two_ranks)
    of_critic = float((critic_of(observed) - end).norm() / (end - start).norm())
    assert of_critic > 10 * TRAJECTORY_BAR


def test_in_a_warm_up_the_stock_entry_trains_the_critic_alone(place: Path) -> None:
    found = started(place / "w", 2, seed="1", critic__freezing_steps="0")
    policy, critic = told(found), summary(found.ledger / "critic")
    proofs.check_critic(policy, ranks=2)
    rollouts = [{rollout for step in each["steps"] for rollout in step["rollout"]} for each in (policy, critic)]
    assert rollouts == [{1, 2}, {0, 1, 2}]

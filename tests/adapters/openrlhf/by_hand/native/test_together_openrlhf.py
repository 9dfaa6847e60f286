"""Agents and ring attention in the stock entry, `python -m openrlhf.cli.train_ppo_ray` through `batchbridge run` under
Ray: what the published train_reinforce_baseline_hybrid_engine.sh has, on CPUs.

An agent's conversations on one rank with fixed micro-batches, and on one ring of two ranks with ZeRO-3, packed samples
and dynamic batches: one plan, one ledger, one policy. Scripted: vLLM's engine behind OpenRLHF's `RolloutRayActor` and
its agents, and the attention kernel of a ring (`batchbridge_on_cpu.openrlhf.ring`). Minutes, so by hand; see
`test_runs_openrlhf`.
"""

from __future__ import annotations

import dataclasses
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orl_proofs as proofs
import pytest
from orl_proofs import GROUP, ROLLOUTS, rows_of
from test_runs_openrlhf import Run, prepared, run

from batchbridge.ledger import diff, fingerprint, read_steps
from batchbridge.reading.read import read
from batchbridge_on_cpu.openrlhf import agent
from batchbridge_on_cpu.openrlhf.conversations import Conversations
from batchbridge_on_cpu.openrlhf.scripted import command
from batchbridge_on_cpu.trajectories import assert_same_end

SETTINGS = {
    "train__agent_func_path": str(agent.__file__),
    "algo__advantage__estimator": "reinforce_baseline",
    "algo__kl__init_coef": "0.01",
    "algo__kl__estimator": "k2",
    "actor__entropy_coef": "0.0",
}
ENVIRONMENT = {"BATCHBRIDGE_GROUP": str(GROUP)}
SCRIPT = Conversations(empty=frozenset())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, and kept where the environment says so; see `test_runs_openrlhf`."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return tmp_path_factory.mktemp("o") if kept is None else Path(kept)


@pytest.fixture(scope="module")
def one_rank(place: Path, ring: Run) -> Run:
    """ZeRO-2, micro-batches of one completion, padded. By a specification: alone, OpenRLHF shuffles such a rollout, and
    does not shuffle a ring's."""
    folder = place / "a"
    prepared(folder)
    words = command(folder, 1, "--algo.kl.use_loss", **SETTINGS)[1:]
    own = read(words, framework="openrlhf", version=version("openrlhf"), dataset_size=proofs.PROMPTS).spec
    of_ring = proofs.plan_of(proofs.summary(ring.ledger)).spec
    assert own is not None
    spec = dataclasses.replace(own, optimizer_step=of_ring.optimizer_step, order=of_ring.order)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    options = ("--spec", str(folder / "spec.json"))
    return run(folder, 1, "--algo.kl.use_loss", options=options, env=ENVIRONMENT, **SETTINGS)


@pytest.fixture(scope="module")
def ring(place: Path) -> Run:
    """One ring of two ranks."""
    flags = ("--algo.kl.use_loss", "--ds.packing_samples", "--train.dynamic_batch_enable")
    sizes = {"ds__ring_attn_size": "2", "ds__zero_stage": "3", "train__max_tokens_per_gpu": "40"}
    return run(place / "b", 2, *flags, env={**ENVIRONMENT, "BATCHBRIDGE_RING": "1"}, **SETTINGS, **sizes)


@pytest.mark.parametrize("name", ["one_rank", "ring"])
def test_a_run_with_an_agent_is_the_plan(name: str, request: pytest.FixtureRequest) -> None:
    found: Run = request.getfixturevalue(name)
    assert found.code == 0, found.text[-20000:]
    said: dict[str, Any] = proofs.summary(found.ledger)
    said["fingerprints"] = [
        rows_of(step, "prompt", "sample", "completion_fingerprint") for step in read_steps(found.ledger)
    ]
    assert len(said["steps"]) == 2 * ROLLOUTS
    check_conversations(said)


def check_conversations(run: dict[str, Any]) -> None:
    """The ledger is the plan: members, weights, clock; completions have the environment's words, which are not counted.
    A ring is one rank of the ledger."""
    plan = proofs.plan_of(run)
    assert run["mode"] == "enforce"
    for step, fingerprints in zip(run["steps"], run["fingerprints"], strict=True):
        assert sorted(rows_of(step, *proofs.MEMBERS)) == proofs.members_of(plan, step["step"])
        assert step["ranks"] == 1
        proofs.check_weights(step, plan.spec)
        for prompt, sample, tokens in rows_of(step, "prompt", "sample", "response_tokens"):
            assert tokens == sum(SCRIPT.loss_mask(prompt, sample))
        for prompt, sample, seen in fingerprints:
            assert seen == fingerprint(SCRIPT.completion(prompt, sample))
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == plan.step(step["step"]).lr_tick


def test_a_ring_of_two_ranks_trains_what_one_rank_does(one_rank: Run, ring: Run) -> None:
    compared = diff(one_rank.ledger, ring.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    case = "openrlhf, sgd: the stock entry with an agent on one rank and on a ring of two"
    assert_same_end(case, one_rank.weights("policy"), ring.weights(), one_rank.weights())

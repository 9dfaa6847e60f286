"""Which weights generated what is trained: `python -m openrlhf.cli.train_ppo_ray --train.async_enable` through
`batchbridge run --mode observe`.

OpenRLHF's own asynchronous trainer under Ray on CPU, as in `test_runs_openrlhf`; engines are OpenRLHF's own actors with
a scripted vLLM, and know by content which weights they have. Minutes each, so by hand: `nox -s openrlhf_runs`.
"""

from __future__ import annotations

import os
from pathlib import Path

import orl_versions as asked
import pytest
from orl_proofs import check_once
from orl_runs import Run, run

from batchbridge.ledger import read_steps

OBSERVE = ("--mode", "observe")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_OPENRLHF_RUNS`: as in `test_runs_openrlhf`."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return tmp_path_factory.mktemp("y") if kept is None else Path(kept)


def started(folder: Path, ranks: int, *flags: str, env: dict[str, str] | None = None, **changes: str) -> Run:
    truth = folder / "truth"
    truth.mkdir(parents=True, exist_ok=True)
    env = {"BATCHBRIDGE_AHEAD": str(truth), "BATCHBRIDGE_JITTER": "0.2", **(env or {})}
    changes = {
        "train__micro_batch_size": "3",
        **changes,
    }  # one alone may have no token, which OpenRLHF does not survive
    return run(folder, ranks, "--train.async_enable", *flags, options=OBSERVE, env=env, **changes)


def test_every_completion_has_the_version_of_the_weights_that_its_engine_had(place: Path) -> None:
    """Two ranks, two engines, a queue of two rollouts; six rollouts of two steps over two episodes."""
    changes = {"train__num_episodes": "2", "vllm__num_engines": "2", "train__async_queue_size": "2"}
    found = started(place / "ya", 2, **changes)
    assert found.code == 0, found.text[-20000:]
    said = asked.told(found.ledger, place / "ya" / "truth")
    asked.check_truth(said)
    assert 0 < asked.oldest(said) <= 2 * asked.STEPS


def test_a_skipped_broadcast_shows_as_an_older_version_and_a_claimed_one_is_not_believed(place: Path) -> None:
    """The third rollout is generated when the second one is taken, behind the first broadcast, which does not happen;
    every answer claims version 99. The queue has one rollout, and the ledger shows that its bound is broken."""
    found = started(place / "yb", 1, env={"BATCHBRIDGE_SKIPS": "0", "BATCHBRIDGE_CLAIMS": "99"})
    assert found.code == 0, found.text[-20000:]
    said = asked.told(found.ledger, place / "yb" / "truth")
    check_once(said)
    asked.check_truth(said)
    assert asked.versions(said) == {0: {0}, 1: {0}, 2: {0}}
    assert asked.oldest(said) == 2 * asked.STEPS


def test_a_version_that_is_rewritten_on_its_way_ends_the_run_before_it_is_trained(place: Path) -> None:
    found = started(place / "yc", 1, env={"BATCHBRIDGE_REWRITES": "2"})
    found.says("weights_version: a completion's version of the weights", "its engine sealed")
    assert not list(read_steps(found.ledger)), "its header alone, and why the run ended"


def test_weights_that_come_while_completions_are_generated_end_the_run(place: Path) -> None:
    """OpenRLHF's lock does not hold; the first rollout is sound."""
    found = started(place / "yd", 1, env={"BATCHBRIDGE_UNLOCKED": "1"})
    found.says("weights_version: weights came while a completion was generated")


def test_partial_rollouts_are_refused_before_anything_is_generated(place: Path) -> None:
    found = started(place / "ye", 1, "--train.partial_rollout_enable")
    found.says("asynchronous: train.async_enable trains on", "without train.partial_rollout_enable")
    assert not (place / "ye" / "truth" / "made").exists()

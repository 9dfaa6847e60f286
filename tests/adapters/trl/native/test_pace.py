"""Steps that are cut by the times that ranks took, on two processes (torchrun, gloo); the processes run `pace_run.py`.

What a slow rank shows on a GPU, whose clock is made of events, was not run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import wrap
from batchbridge.kit import StepCost
from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.checkpoints import FOLDER
from batchbridge_trl.pace import Clock
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors

SCRIPT = Path(__file__).parent / "pace_run.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pace")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*command, str(made)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    return made


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def completions(share: list[list[int | None]]) -> int:
    return sum(item is not None for batch in share for item in batch)


def test_shares_follow_the_fitted_cost_and_gradients_stay_at_the_bar(ranks: list[dict[str, Any]]) -> None:
    found = ranks[0]["fitted"]
    assert len(found["errors"]) == 4
    for each in found["errors"]:
        assert each["error"] <= each["bar"], each
    slowness = found["costs"][-1]["slowness"]
    assert slowness[1] > 1.5 * slowness[0], slowness
    first, last = found["shares"][0], found["shares"][-1]
    assert abs(completions(first[0]) - completions(first[1])) <= 8, "nothing was known yet"
    assert completions(last[1]) < completions(last[0]), "the slow rank gets less"
    assert completions(last[0]) + completions(last[1]) == 32


def test_every_rank_has_the_same_model_and_the_same_cuts(ranks: list[dict[str, Any]]) -> None:
    for case in ("fitted", "own_fit", "resumed", "steady"):
        assert ranks[0][case]["costs"] == ranks[1][case]["costs"]
        assert ranks[0][case]["shares"] == ranks[1][case]["shares"]


def test_a_rank_that_would_fit_another_model_gets_rank_0s(ranks: list[dict[str, Any]]) -> None:
    wrong = [9.0, 1.0]
    assert all(list(cost["slowness"]) != wrong for rank in ranks for cost in rank["own_fit"]["costs"])
    assert ranks[1]["own_fit"]["costs"][-1]["token"] < 0.1, "seconds, and not the assumed units"


def test_ranks_that_cut_a_step_each_in_its_own_way_train_nothing(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "optimizer step 0" in rank["own_cut"]["raised"], rank["own_cut"]
        assert rank["own_cut"]["untouched"]


def test_a_rank_that_is_made_slow_is_named_in_the_ledger(folder: Path, ranks: list[dict[str, Any]]) -> None:
    found = summarise(Ledger(folder / "steady"))
    assert found.straggler is not None
    assert (found.straggler[0], found.straggler[1].slowest, found.timed) == (1, 3, 3)
    assert found.ratios / found.timed > 1.2
    for step in read_steps(folder / "steady"):
        fast, slow = step["compute_seconds"]
        assert slow > 1.5 * fast > 0.0, "the fast rank's clock stood still while it waited"


def test_a_run_that_is_to_be_the_same_every_time_is_cut_by_what_is_assumed(ranks: list[dict[str, Any]]) -> None:
    costs = ranks[0]["steady"]["costs"]
    assert all(cost == costs[0] for cost in costs)
    assert costs[0]["micro_batch"] == StepCost.assumed(32).micro_batch


def test_two_ranks_resume_with_the_cuts_and_the_model_of_their_checkpoint(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["resumed"]
        whole, again = found["shares"][:6], found["shares"][6:]
        assert again == whole[3:]
        assert found["costs"][6:] == found["costs"][3:6]
        assert found["costs"][0] != found["costs"][3], "fitted right before the checkpoint"
        assert found["equal"]


# ---- one process

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_iterations": 4,
    "prompts": 8,
    "max_steps": 8,
    "save_strategy": "steps",
    "save_steps": 3,
}


def test_a_model_of_any_shape_leaves_the_gradient_at_the_bar(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every step another one, from micro-batches of one completion to the fullest."""
    costs = iter([StepCost(0.0, 1.0), StepCost(1e9, 1.0), StepCost(1.0, 1e-9, 1.0), StepCost(3.0, 1.0, 0.0, 7.0)] * 3)
    monkeypatch.setattr("batchbridge_trl.pace.fit_cost", lambda *_, **__: next(costs))
    monkeypatch.setattr("batchbridge_trl.pace.Pace._due", property(lambda pace: True))
    built = wrap(trainer(**RUN | {"num_iterations": 1, "max_steps": 4, "save_strategy": "no"}), tokens_per_device=90)
    captured = Captured(built.model)
    built.add_callback(captured)
    turns: list[int] = []
    pace = built.training_step.__self__._shares.pace
    native = pace.step_done

    def counted(**options: Any) -> None:
        turns.append(len(pace._clocks))
        native(**options)

    monkeypatch.setattr(pace, "step_done", counted)
    built.train()
    plan = built.batchbridge.plan
    for found in gradient_errors(captured, plan.spec, plan=plan, steps=4):
        assert found.error <= found.bar, found
    assert len(set(turns)) > 1, "the splits differ"


def test_a_resumed_run_goes_on_with_the_cuts_and_the_model_of_its_checkpoint(
    trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchbridge_trl.pace.Pace._due", property(lambda pace: pace._steps == 2))
    whole = wrap(trainer("whole", **RUN), tokens_per_device=90)
    whole.train()
    pace = whole.training_step.__self__._shares.pace
    assert pace.cost != StepCost.assumed(32), "fitted"
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    saved = torch.load(checkpoint / FOLDER / "rank-00000.pt", weights_only=True)["shares"]
    assert StepCost(**saved["pace"]["cost"]) == pace.cost
    assert set(saved["steps"]) == {3}, "the rollout's last pass"
    again = wrap(trainer("again", **RUN), tokens_per_device=90)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.training_step.__self__._shares.pace.cost == pace.cost
    assert torch.equal(flat_parameters(whole.model), flat_parameters(again.model)), "bit-equal: nothing was fitted anew"


def test_a_checkpoint_from_before_shares_were_saved_resumes(trainer: Callable[..., Any], tmp_path: Path) -> None:
    whole = wrap(trainer("whole", **RUN), tokens_per_device=90)
    whole.train()
    file = tmp_path / "whole" / "checkpoint-3" / FOLDER / "rank-00000.pt"
    older = torch.load(file, weights_only=True)
    del older["shares"]
    torch.save(older, file)
    again = wrap(trainer("again", **RUN), tokens_per_device=90)
    again.train(resume_from_checkpoint=str(file.parent.parent))
    start, end = flat_parameters(tiny_policy()), flat_parameters(whole.model)
    assert (flat_parameters(again.model) - end).norm() <= 1e-5 * (end - start).norm()


def test_on_a_gpu_a_moment_is_an_event_of_the_stream_and_none_is_waited_for_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mock of torch's events: that they are used so. What a GPU makes of them was not run."""
    waited: list[int] = []

    class Event:
        count = 0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.count += 1
            self.at = 1000 * Event.count  # milliseconds

        def synchronize(self) -> None:
            waited.append(self.at)

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Clock(torch.device("cuda"))
    clock.go()
    clock.standing(lambda: None)()
    clock.stop()
    assert waited == []
    assert clock.seconds() == 2.0
    assert waited == [2000, 4000]


def test_a_clock_stands_still_while_a_collective_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(Clock, "moment", staticmethod(lambda: now[0]))
    clock = Clock(torch.device("cpu"))

    def passes(seconds: float) -> float:
        now[0] += seconds
        return seconds

    clock.go()
    passes(1.0)
    assert clock.standing(passes)(10.0) == 10.0
    passes(2.0)
    clock.look(None)
    passes(4.0)  # DDP waits behind the last gradient
    clock.stop()
    assert clock.seconds() == 3.0

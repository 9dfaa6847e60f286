"""What `test_pace` runs under torchrun, one process per rank: real trainers whose times decide how steps are cut.

    torchrun --nproc_per_node 2 pace_run.py FOLDER

Each rank leaves what it saw in FOLDER, `rank-R.json`; the comparing process asserts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

import transformers
from two_ranks import errors_of

import batchbridge_trl.pace
from batchbridge import BatchDrift, wrap
from batchbridge.kit import StepCost
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.pace import Clock, Pace
from batchbridge_trl.shares import Shares
from batchbridge_trl.testing import flat_parameters, scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

RANK = int(os.environ.get("RANK", "0"))
SECONDS_PER_POSITION = 2e-3
"""What slows rank 1 down: many times what the tiny policy takes, on a busy machine too."""
SAID_PER_POSITION = (1e-3, 3e-3)
SAID_PER_MICRO_BATCH = 1e-2
"""Seconds by rank that `said_clock` says; within what the fitted model can tell of a rank, a fourfold difference."""
ARGUMENTS: dict[str, Any] = {
    "prompts": 8,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_iterations": 2,
    "beta": 0.1,
    "max_steps": 9,
}
BUDGET = 120


def build(folder: Path, *, slow: bool = False, **arguments: Any) -> Any:
    """A trainer of 32 completions in a step, and two passes; slow: rank 1 sleeps in the forward passes of training."""
    trainer = scripted_trainer(folder, reference=tiny_policy(seed=1), **ARGUMENTS | arguments)
    if slow and RANK == 1:
        trainer.model.register_forward_pre_hook(_sleep, with_kwargs=True)
    return trainer


def _sleep(module: Any, arguments: Any, keywords: Any) -> None:
    if torch.is_grad_enabled():
        time.sleep(SECONDS_PER_POSITION * keywords["input_ids"].numel())


def said_clock(model: Any) -> None:
    """A clock that goes by what the model is given, and so alike on every machine: what follows from times, and not
    how they are taken. Real seconds are `steady`'s."""
    now = [0.0]
    Clock.moment = staticmethod(lambda: now[0])

    def passes(module: Any, arguments: Any, keywords: Any) -> None:
        if torch.is_grad_enabled():
            positions = keywords["input_ids"].numel()
            now[0] += SAID_PER_POSITION[RANK] * (positions + SAID_PER_MICRO_BATCH / SAID_PER_POSITION[0])

    model.register_forward_pre_hook(passes, with_kwargs=True)


class Cuts:
    """Every rank's micro-batches of each step that a run took, and the cost that each step was cut by."""

    def __init__(self) -> None:
        self.shares: list[Any] = []
        self.costs: list[StepCost] = []
        forget = Shares.forget

        def forgotten(shares: Shares, step: Any) -> None:
            self.shares.append(shares.of(step))
            forget(shares, step)
            self.costs.append(shares.pace.cost)

        Shares.forget = forgotten


def fitted(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """A run with a slow rank, by a clock that says so: the gradients, and what the ranks know of each other."""
    trainer, moment = build(folder / "out"), Clock.moment
    said_clock(trainer.model)
    try:
        errors = errors_of(wrap(trainer, ledger=folder / "ledger", tokens_per_device=BUDGET), tiny_policy(seed=1))
    finally:
        Clock.moment = staticmethod(moment)
    return {"errors": errors, "shares": cuts.shares, "costs": [vars(cost) for cost in cuts.costs]}


def own_fit(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """Rank 1 would fit another model."""
    if RANK == 1:
        batchbridge_trl.pace.fit_cost = lambda *_, **__: StepCost(micro_batch=1.0, slowness=(9.0, 1.0))
    wrap(build(folder / "out", max_steps=3), tokens_per_device=BUDGET).train()
    return {"costs": [vars(cost) for cost in cuts.costs], "shares": cuts.shares}


def own_cut(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """Rank 1 takes the share of rank 0 for its own."""
    cut = Shares._cut
    if RANK == 1:
        Shares._cut = lambda shares, step, lengths: cut(shares, step, lengths)[::-1]
    built = wrap(build(folder / "out"), tokens_per_device=BUDGET)
    before = flat_parameters(built.model)
    try:
        built.train()
        raised = ""
    except BatchDrift as error:
        raised = str(error)
    finally:
        Shares._cut = cut
    return {"raised": raised, "untouched": bool(torch.equal(before, flat_parameters(built.model)))}


def resumed(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """A run, and another that goes on from inside of a rollout, right after the model was fitted: the rollout's second
    pass is cut as before the fit, or ranks would lack rows."""
    due, Pace._due = Pace._due, property(lambda pace: pace._steps == 3)
    more = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    ends = []
    for name, checkpoint in (("whole", None), ("again", str(folder / "whole" / "checkpoint-3"))):
        built = wrap(build(folder / name, slow=True, **more), tokens_per_device=BUDGET)
        built.train(resume_from_checkpoint=checkpoint)
        ends.append(flat_parameters(built.model))
    Pace._due = due
    return {
        "equal": bool(torch.equal(*ends)),
        "shares": cuts.shares,
        "costs": [vars(cost) for cost in cuts.costs],
    }


def steady(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """A run that is to be the same every time, with a slow rank."""
    built = build(folder / "out", slow=True, max_steps=3, full_determinism=True)
    wrap(built, ledger=folder / "steady", tokens_per_device=BUDGET).train()
    torch.use_deterministic_algorithms(False)
    return {"costs": [vars(cost) for cost in cuts.costs], "shares": cuts.shares}


def main(folder: Path) -> None:
    found, forget, fit = {}, Shares.forget, batchbridge_trl.pace.fit_cost
    for case in (fitted, own_fit, own_cut, resumed, steady):
        Shares.forget, batchbridge_trl.pace.fit_cost = forget, fit
        found[case.__name__] = case(folder, Cuts())
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()

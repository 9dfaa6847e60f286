"""What `test_shares` runs under torchrun, one process per rank: real trainers, of which one rank may be slow.

    torchrun --nproc_per_node 2 shares_run.py FOLDER

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

from batchbridge import BatchDrift, wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.shares import StepShares
from batchbridge_trl.testing import flat_parameters, scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

RANK = int(os.environ.get("RANK", "0"))
SECONDS_PER_POSITION = 2e-3
"""What slows rank 1 down: many times what the tiny policy takes, on a busy machine too."""
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


class Cuts:
    """Every rank's micro-batches of each step that a run took."""

    def __init__(self) -> None:
        self.shares: list[Any] = []
        forget = StepShares.forget

        def forgotten(shares: StepShares, step: Any) -> None:
            self.shares.append(shares.of(step))
            forget(shares, step)

        StepShares.forget = forgotten


def own_cut(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """Rank 1 takes the share of rank 0 for its own."""
    cut = StepShares._cut
    if RANK == 1:
        StepShares._cut = lambda shares, step, lengths: cut(shares, step, lengths)[::-1]
    built = wrap(build(folder / "out"), tokens_per_device=BUDGET)
    before = flat_parameters(built.model)
    try:
        built.train()
        raised = ""
    except BatchDrift as error:
        raised = str(error)
    finally:
        StepShares._cut = cut
    return {"raised": raised, "untouched": bool(torch.equal(before, flat_parameters(built.model)))}


def resumed(folder: Path, cuts: Cuts) -> dict[str, Any]:
    """A run with a slow rank, and another that goes on from inside of a rollout."""
    more = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    ends = []
    for name, checkpoint in (("whole", None), ("again", str(folder / "whole" / "checkpoint-3"))):
        built = wrap(
            build(folder / name, slow=True, **more), ledger=folder / f"{name}-ledger", tokens_per_device=BUDGET
        )
        built.train(resume_from_checkpoint=checkpoint)
        ends.append(flat_parameters(built.model))
    return {"equal": bool(torch.equal(*ends)), "shares": cuts.shares}


def main(folder: Path) -> None:
    found, forget = {}, StepShares.forget
    for case in (own_cut, resumed):
        StepShares.forget = forget
        found[case.__name__] = case(folder, Cuts())
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()

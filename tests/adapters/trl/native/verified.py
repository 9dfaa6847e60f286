"""Stock runs in mode verify: the cases, and what becomes of each.

    torchrun --nproc_per_node 2 verified.py FOLDER

Rank 0 leaves `said.json` in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.update(ACCELERATE_USE_CPU="true", TRL_EXPERIMENTAL_SILENCE="1")

import torch
import transformers
from representative import once

from batchbridge import BatchDrift, wrap
from batchbridge.kit.workers import WAYS_ON
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.releases import has_loss
from batchbridge_trl.testing import scripted_trainer, undivided

LOSSES = tuple(filter(has_loss, ("dapo", "bnpo", "grpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")))
CUTS: dict[str, dict[str, Any]] = {
    # All shuffle prompts, as TRL does by default, over two epochs.
    "one step a rollout": {"gradient_accumulation_steps": 2},
    "two steps a rollout": {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "prompts": 8},
    "two rollouts a step": {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
    "steps straddle rollouts": {"gradient_accumulation_steps": 3, "steps_per_generation": 4, "prompts": 13},
    "one micro-batch a step": {"gradient_accumulation_steps": 1},
}
CASES = {
    f"{loss}, {cut}, {passes} passes": {"loss_type": loss, "num_iterations": passes, **CUTS[cut]}
    for loss, cut, passes in once(LOSSES, CUTS, (1, 2))
}
ROLLOUTS_TOKENS = ("dapo", "cispo", "vespo")
"""Loss types that divide by the tokens of the rollout; see docs/measured.md, "Stock runs in mode verify"."""


def build(folder: Path, **arguments: Any) -> Any:
    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05, **arguments}
    return undivided(scripted_trainer(folder, **settings))


def departs_in(settings: dict[str, Any], world_size: int) -> str | None:
    """What docs/measured.md lists for a configuration."""
    window, passes = settings["gradient_accumulation_steps"], settings["num_iterations"]
    steps = settings.get("steps_per_generation", window)
    if settings["loss_type"] == "bnpo" and window * world_size > 1:
        return "weights"
    one_rollout = steps == window or (steps == 1 and passes == window)  # a step of all passes over one rollout
    return "weights" if settings["loss_type"] in ROLLOUTS_TOKENS and not one_rollout else None


def outcome(folder: Path, settings: dict[str, Any], tamper: Callable[[Any], None] = lambda built: None) -> str | None:
    """The aspect in which a run departs; None: it has ended well, and every step of its ledger is right by itself."""
    torch.manual_seed(0)
    built = build(folder, **settings)
    wrap(built, mode="verify", ledger=folder / "ledger")
    tamper(built)
    try:
        built.train()
    except BatchDrift as drift:
        return drift.aspect if drift.detail.endswith(WAYS_ON) else f"{drift.aspect}, without a way on"
    assert built.state.global_step == built.state.max_steps > 1
    return None


def main(folder: Path) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    said = {name: outcome(folder / name.replace(" ", "_"), settings) for name, settings in CASES.items()}
    rank = int(os.environ["RANK"])

    def louder(built: Any) -> None:
        native = built.compute_loss
        built.compute_loss = lambda *args, **kwargs: native(*args, **kwargs) * (1.01 if rank else 1.0)

    grpo = {"loss_type": "grpo", **CUTS["two steps a rollout"]}
    said["tampered on the second rank"] = outcome(folder / "tampered", grpo, louder)
    if not rank:
        (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

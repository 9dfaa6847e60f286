"""What `test_two_ranks` runs under torchrun, one process per rank: real trainers, scripted rollouts, gloo.

    torchrun --nproc_per_node 2 two_ranks.py gradients FOLDER
    torchrun --nproc_per_node 2 two_ranks.py crash FOLDER
    torchrun --nproc_per_node 2 two_ranks.py resume FOLDER

Rank 0 leaves what it measured in FOLDER; the comparing process asserts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

import transformers
from transformers import TrainerCallback

from batchbridge import wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has, has_loss
from batchbridge_trl.settings import NEWEST
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# transformers 4 loads an optimizer's state to the rank's device, "cpu:0" here, which torch.load does not know: no run
# of several CPU ranks resumes there, wrapped or not. It is the same memory.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)

ON_EVERY_RELEASE = ("1x3, steps straddle rollouts, seven prompts", "24 tokens, two passes, kl")
"""Cases that are not of the newest release alone."""
GRADIENTS: dict[str, dict[str, Any]] = {
    f"{loss_type}, {name}": {"loss_type": loss_type, "num_train_epochs": 2, **arguments}
    for loss_type in ("dapo", "bnpo", "grpo", "luspo", "dr_grpo")
    if has_loss(loss_type)
    for name, arguments in {
        "4x1": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
        "2x2, kl": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "beta": 0.1},
        "1x4": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
        "1x4, generation below accumulation": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "steps_per_generation": 2,
        },
        "1x2, generation above accumulation, two passes, kl": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "beta": 0.1,
        },
        "1x3, steps straddle rollouts, seven prompts": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 3,
            "steps_per_generation": 4,
            "prompts": 7,
        },
        "24 tokens, two passes, kl": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "beta": 0.1,
            "tokens_per_device": 24,
        },
    }.items()
    if has(f">={NEWEST}") or name in ON_EVERY_RELEASE
}
TRAJECTORIES: dict[str, dict[str, Any]] = {
    optimizer: {
        "loss_type": "bnpo",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "generation_batch_size": 16,
        "prompts": 9,
        "max_steps": 10,
        "optim": optimizer,
        "learning_rate": learning_rate,
        "beta": 0.04,
    }
    for optimizer, learning_rate in (("sgd", 0.05), ("adamw_torch", 3e-3))
}
SHORT = {"rollout.prompts_per_rollout": 3, "rollout.completions_per_prompt": 3, "order.last_rollout": "short"}
"""Rollouts of 9 completions, then of 3, on 2 ranks: nothing divides."""
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 2,
    "beta": 0.1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "save_strategy": "steps",
    "save_steps": 17,
}


def build(folder: Path, **arguments: Any) -> Any:
    return scripted_trainer(folder, reference=tiny_policy(seed=1) if arguments.get("beta") else None, **arguments)


def measured(folder: Path, arguments: dict[str, Any], changes: dict[str, Any] | None = None) -> list[Any]:
    """Gradient errors of the first steps, on rank 0."""
    arguments = dict(arguments)
    budget = arguments.pop("tokens_per_device", None)
    built = build(folder, **arguments)
    if changes:
        spec = wrap(built, mode="observe").batchbridge.request.spec
        wrap(built, like=spec.replace(**changes))
    else:
        wrap(built, tokens_per_device=budget)
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    found = []
    if built.accelerator.is_main_process:
        reference = tiny_policy(seed=1) if arguments.get("beta") else None
        found = gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4)
    built.accelerator.wait_for_everyone()
    return [
        {
            "step": each.step,
            "error": each.error,
            "bar": each.bar,
            "steps": [built.state.global_step, plan.total_optimizer_steps],
        }
        for each in found
    ]


def gradients(folder: Path) -> None:
    results: dict[str, Any] = {name: measured(folder / "out", case) for name, case in GRADIENTS.items()}
    uneven = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "prompts": 7, "num_train_epochs": 2}
    results["nothing divides"] = measured(folder / "out", uneven, {**SHORT, "optimizer_step.completions_per_step": 5})
    ends = {}
    for name, arguments in TRAJECTORIES.items():
        built = wrap(build(folder / "out", **arguments), ledger=folder / f"{name}_ledger")
        start = flat_parameters(built.model)
        built.train()
        ends[name] = flat_parameters(built.model) - start
    whole = wrap(build(folder / "whole", **RUN), ledger=folder / "whole_ledger")
    whole.train()
    if whole.accelerator.is_main_process:
        torch.save({"errors": results, "ends": ends, "whole": flat_parameters(whole.model)}, folder / "measured.pt")


class Crash(TrainerCallback):
    """Rank 1 dies after step 20; torchrun ends the other."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 20 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def crash(folder: Path) -> None:
    built = wrap(build(folder / "killed", **RUN), ledger=folder / "killed_ledger")
    built.add_callback(Crash())
    built.train()


def resume(folder: Path) -> None:
    built = wrap(build(folder / "killed", **RUN), ledger=folder / "killed_ledger")
    built.train(resume_from_checkpoint=str(folder / "killed" / "checkpoint-17"))
    if built.accelerator.is_main_process:
        torch.save(flat_parameters(built.model), folder / "resumed.pt")


if __name__ == "__main__":
    {"gradients": gradients, "crash": crash, "resume": resume}[sys.argv[1]](Path(sys.argv[2]))
    # Together and in order: a rank that leaves while gloo's threads still serve the other can abort at exit.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

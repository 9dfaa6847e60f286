"""What `test_ddp_hooks` runs under torchrun: DDP's communication hooks, set in Accelerate as a user does.

    torchrun --nproc_per_node 2 ddp_hooks_run.py FOLDER

Rank 0 leaves `said.json` in FOLDER: by hook and by what is done to a gradient, the aspect and the words of what stopped
the run, or the names of the hooks of one that has ended well.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(ACCELERATE_USE_CPU="true", TRL_EXPERIMENTAL_SILENCE="1")

import torch
import transformers
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.testing import scripted_trainer

# torch lets bfloat16 be exchanged by NCCL alone; gloo can, too. Nothing but its check is left out.
torch.nn.parallel.DistributedDataParallel._check_comm_hook = lambda *_: None

RUN = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 5,
    "learning_rate": 0.05,
    "max_grad_norm": 0.5,
}
OPTIONS = {"power_sgd": {"start_powerSGD_iter": 2, "matrix_approximation_rank": 1, "min_compression_rate": 0.1}}


def said(folder: Path, hook: str, factor: float = 1.0, **asked: Any) -> Any:
    """What becomes of a run with this hook, one matrix' gradient multiplied on all ranks before the update."""
    torch.manual_seed(0)
    built = scripted_trainer(folder, **RUN)
    options = OPTIONS.get(hook, {})
    built.accelerator.ddp_handler = DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType(hook), comm_state_option=options
    )

    class Own(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3 and factor != 1:
                built.model.model.layers[1].mlp.down_proj.weight.grad.mul_(factor)

    built.add_callback(Own())
    try:
        wrap(built, **asked).train()
    except CannotAttach as refused:
        return ["refused", *refused.reasons]
    except BatchDrift as drift:
        return [drift.step, drift.aspect, drift.detail]
    return [one.__name__ for one, _ in getattr(built.model_wrapped, "_comm_hooks", [])]


def main(folder: Path) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    found = {}
    for hook in ("no", "fp16", "bf16"):
        for mode in ("enforce", "verify"):
            found[f"{hook}, {mode}"] = said(folder / hook / mode, hook, mode=mode)
        found[f"{hook}, tampered"] = said(folder / hook / "tampered", hook, 1.05)
    hook = "power_sgd"
    found["power_sgd"] = said(folder / hook, hook)
    found["power_sgd, verify"] = said(folder / hook / "verify", hook, mode="verify")
    found["power_sgd, allowed"] = said(folder / hook / "allowed", hook, allow=("gradient_transform",))
    if not int(os.environ["RANK"]):
        (folder / "said.json").write_text(json.dumps(found), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

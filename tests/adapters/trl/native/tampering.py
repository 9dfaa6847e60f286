"""Ways to make a wrapped run train something else than its plan, from one optimizer step on. Each returns its trainer.

torchrun --nproc_per_node 2 tampering.py FOLDER     every way, on the second of two ranks alone
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from transformers import TrainerCallback

STEP = 3
"""The optimizer step that is tampered with first; the ones before it are sound."""


def _from_step(trainer: Any) -> bool:
    return bool(trainer.state.global_step >= STEP)


def altered_loss(trainer: Any) -> Any:
    """The loss is multiplied by 7."""
    native = trainer._compute_loss

    def sevenfold(model: Any, inputs: Any) -> Any:
        return native(model, inputs) * (7 if _from_step(trainer) and trainer.model.training else 1)

    trainer._compute_loss = sevenfold
    return trainer


def altered_value(trainer: Any) -> Any:
    """The loss is returned with 1.001 times its value, and its own gradient."""
    native = trainer._compute_loss

    def another(model: Any, inputs: Any) -> Any:
        loss = native(model, inputs)
        return loss + (0.001 * loss.detach() if _from_step(trainer) and trainer.model.training else 0.0)

    trainer._compute_loss = another
    return trainer


def constant_term(trainer: Any) -> Any:
    """A constant is added to the loss."""
    native = trainer._compute_loss

    def more(model: Any, inputs: Any) -> Any:
        return native(model, inputs) + (0.1 if _from_step(trainer) and trainer.model.training else 0.0)

    trainer._compute_loss = more
    return trainer


def altered_backward(trainer: Any) -> Any:
    """The loss is multiplied by 9 on its way into backward."""
    native = trainer.accelerator.backward

    def ninefold(loss: Any, **options: Any) -> None:
        native(loss * (9 if _from_step(trainer) else 1), **options)

    trainer.accelerator.backward = ninefold
    return trainer


def altered_mask(trainer: Any) -> Any:
    """The last token of every completion is taken out of the loss mask, in place."""
    native = trainer._compute_loss

    def shortened(model: Any, inputs: Any) -> Any:
        if _from_step(trainer) and trainer.model.training:
            inputs["completion_mask"][:, -1] = 0
        return native(model, inputs)

    trainer._compute_loss = shortened
    return trainer


def altered_advantages(trainer: Any) -> Any:
    """Advantages are scaled by 1 %, in place."""
    native = trainer._compute_loss

    def scaled(model: Any, inputs: Any) -> Any:
        if _from_step(trainer) and trainer.model.training:
            inputs["advantages"] *= 1.01
        return native(model, inputs)

    trainer._compute_loss = scaled
    return trainer


def lost_backward(trainer: Any) -> Any:
    """The first micro-batch of a step is never differentiated."""
    native, done = trainer.accelerator.backward, set()

    def forgetful(loss: Any, **options: Any) -> None:
        step = trainer.state.global_step
        if _from_step(trainer) and step not in done:
            done.add(step)
            return
        native(loss, **options)

    trainer.accelerator.backward = forgetful
    return trainer


def lost_gradient(trainer: Any) -> Any:
    """The first micro-batch's gradients are cleared after its backward pass."""
    native, done = trainer.accelerator.backward, set()

    def clearing(loss: Any, **options: Any) -> None:
        native(loss, **options)
        step = trainer.state.global_step
        if _from_step(trainer) and step not in done:
            done.add(step)
            for parameter in trainer.model.parameters():
                parameter.grad = None

    trainer.accelerator.backward = clearing
    return trainer


def scaled_gradient(trainer: Any) -> Any:
    """A callback multiplies all gradients by 3, after clipping and after every other callback."""

    class Threefold(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            if _from_step(trainer):
                for parameter in trainer.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(3)

    trainer.add_callback(Threefold())
    return trainer


def late_hook(trainer: Any) -> Any:
    """A hook of the optimizer's, which is registered when training has begun, multiplies all gradients by 3."""

    class Late(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            if state.global_step == STEP:
                getattr(optimizer, "optimizer", optimizer).register_step_pre_hook(threefold)

    def threefold(*_: Any) -> None:
        for parameter in trainer.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(3)

    trainer.add_callback(Late())
    return trainer


WAYS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    # name: (what tampers, the aspect of the `BatchDrift` that stops it)
    "loss": (altered_loss, "weights"),
    "value of the loss": (altered_value, "loss"),
    "constant in the loss": (constant_term, "loss"),
    "backward": (altered_backward, "weights"),
    "mask": (altered_mask, "weights"),
    "advantages": (altered_advantages, "weights"),
    "backward of a micro-batch": (lost_backward, "gradient"),
    "gradient of a micro-batch": (lost_gradient, "gradient"),
    "gradient after backward": (scaled_gradient, "gradient"),
    "gradient in a later hook": (late_hook, "gradient"),
}
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "prompts": 6,
    "learning_rate": 0.05,
    "max_grad_norm": 0.5,
}


def stopped(trainer: Any) -> dict[str, Any]:
    """Trains to the drift, and says where it stopped; "changed": whether the step's update was applied anyway."""
    from batchbridge import BatchDrift
    from batchbridge_trl.testing import flat_parameters

    states: list[Any] = []

    class Keeping(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            states.append(flat_parameters(trainer.model))

    trainer.add_callback(Keeping())
    try:
        trainer.train()
    except BatchDrift as drift:
        changed = not bool((states[-1] == flat_parameters(trainer.model)).all())
        return {"step": drift.step, "aspect": drift.aspect, "detail": drift.detail, "changed": changed}
    return {"step": None, "aspect": "", "detail": "trained to its end", "changed": True}


def main(folder: Path) -> None:
    """On every rank: what it raised, for each way, with the tampering on rank 1 alone."""
    from batchbridge import wrap
    from batchbridge_trl.testing import scripted_trainer

    found = {}
    for number, (name, (tamper, _)) in enumerate(WAYS.items()):
        trainer = wrap(scripted_trainer(folder / str(number), **RUN))
        if trainer.accelerator.process_index == 1:
            tamper(trainer)
        elif tamper in (scaled_gradient, late_hook):
            trainer.add_callback(TrainerCallback())  # as many callbacks on every rank
        found[name] = stopped(trainer)
    rank = trainer.accelerator.process_index
    (folder / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    os.environ["ACCELERATE_USE_CPU"] = "true"
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    main(Path(sys.argv[1]))
    from batchbridge_on_cpu.leaving import leave

    leave()

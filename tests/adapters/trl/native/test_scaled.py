"""fp16 in the modes verify and observe: gradients that are scaled up, and updates that the gradient scaler leaves out.

Accelerate has a scaler on a GPU alone. Here torch's own one for a CPU stands in its place, in Accelerate's own code;
the model computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tampering
import torch
from transformers import TrainerCallback

from batchbridge import BatchDrift, wrap
from batchbridge.ledger import read_steps

STEPS = 8
OVERFLOWS = {1, 4}
"""The optimizer steps, counted from 0, in which one gradient overflows."""


@pytest.fixture
def scaled(trainer: Callable[..., Any]) -> Callable[..., Any]:
    def make(name: str = "run", **settings: Any) -> Any:
        run = {**tampering.RUN, "max_grad_norm": 0.5, "max_steps": STEPS, "lr_scheduler_type": "linear", **settings}
        built = trainer(name, **run)
        built.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        return built

    return make


def overflow(built: Any, steps: set[int] = OVERFLOWS) -> Any:
    """Lets one matrix' gradient overflow in some steps, as a product in fp16 does."""

    def infinite(gradient: torch.Tensor) -> torch.Tensor:
        asked = built.state.global_step in steps
        return torch.full_like(gradient, torch.inf) if asked else gradient

    class Overflowing(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
        @staticmethod
        def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view_as(tensor)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return infinite(gradient)

    built.model.model.norm.register_forward_hook(lambda module, inputs, output: Overflowing.apply(output))
    return built


@pytest.mark.parametrize("more", [{}, {"num_iterations": 2}], ids=["one pass", "two passes"])
@pytest.mark.parametrize("mode", ["verify", "observe"])
def test_a_run_whose_scaler_leaves_updates_out_goes_to_its_end(
    scaled: Callable[..., Any], tmp_path: Path, mode: Any, more: dict[str, Any]
) -> None:
    built = wrap(overflow(scaled(**more)), mode=mode, ledger=tmp_path / "ledger")
    built.train()
    steps = list(read_steps(tmp_path / "ledger"))
    assert {step["step"] for step in steps if step["skipped"]} == OVERFLOWS
    assert {step["step"] for step in steps if not step["lr_tick"]} == OVERFLOWS
    rates = [step["learning_rate"] for step in steps]
    for step in range(1, STEPS):
        assert (rates[step] == rates[step - 1]) is (step - 1 in OVERFLOWS), "no schedule advances in a skipped step"
    for step in steps:
        weights = [weight for weight, tokens in zip(step["weights"], step["response_tokens"], strict=True) if tokens]
        if step["skipped"]:
            assert set(weights) == {None}, "nothing was applied"
        else:
            known = [weight for weight in weights if weight is not None]
            assert known == pytest.approx([known[0]] * len(known), rel=1e-5)


def test_a_loss_that_is_changed_after_a_skipped_update_is_found(scaled: Callable[..., Any]) -> None:
    built = wrap(overflow(scaled()), mode="verify")
    native = built.compute_loss

    def louder(*args: Any, **kwargs: Any) -> Any:
        return native(*args, **kwargs) * (1.01 if built.state.global_step == 5 else 1.0)

    built.compute_loss = louder
    with pytest.raises(BatchDrift, match=r"1\.01 times") as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (5, "weights")


def test_a_gradient_that_is_changed_after_it_was_unscaled_is_found(scaled: Callable[..., Any]) -> None:
    built = scaled()

    class Own(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                built.model.lm_head.weight.grad.mul_(1.01)

    built.add_callback(Own())
    with pytest.raises(BatchDrift, match=r"lm_head.weight \(1.01") as drift:
        wrap(overflow(built), mode="verify").train()
    assert (drift.value.step, drift.value.aspect) == (3, "gradient")

"""Every parameter's gradient of a GRPOTrainer's step: what a callback, a hook or a step of one's own changes in any of
them stops the run before the update, and what nobody changed never does."""

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

RUN = {**tampering.RUN, "max_grad_norm": 0.5}


def between(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """What tampers in a callback, after clipping."""

    def put(trainer: Any) -> None:
        class Own(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step >= tampering.STEP:
                    change(trainer.model)

        trainer.add_callback(Own())

    return put


def matrix(model: Any) -> torch.Tensor:
    gradient: torch.Tensor = model.model.layers[1].mlp.down_proj.weight.grad
    return gradient


def all_but_norms(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.grad.mul_(3)


def rows_exchanged(model: Any) -> None:
    gradient = matrix(model)
    gradient[[0, 1]] = gradient[[1, 0]]


def smaller(gradient: torch.Tensor) -> torch.Tensor:
    return 0.1 * gradient


def hooked_head(trainer: Any) -> None:
    trainer.model.lm_head.weight.register_hook(smaller)


def hooked_everywhere(trainer: Any) -> None:
    for parameter in trainer.model.parameters():
        parameter.register_hook(smaller)


def hooked_later(trainer: Any) -> None:
    class Late(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == tampering.STEP:
                hooked_everywhere(trainer)

    trainer.add_callback(Late())


WAYS: dict[str, tuple[Callable[[Any], None], str]] = {
    # name: (what tampers, a parameter that the message names)
    "one matrix, by 5 %": (
        between(lambda model: matrix(model).mul_(1.05)),
        "model.layers.1.mlp.down_proj.weight (1.05",
    ),
    "one matrix, to zero": (
        between(lambda model: matrix(model).zero_()),
        "model.layers.1.mlp.down_proj.weight (0 times)",
    ),
    "one matrix, threefold": (between(lambda model: matrix(model).mul_(3)), "model.layers.1.mlp.down_proj.weight (3"),
    "two rows exchanged": (between(rows_exchanged), "model.layers.1.mlp.down_proj.weight (another direction)"),
    "all but the norms": (between(all_but_norms), "of 16 of 21 parameters"),
    "a hook on the head": (hooked_head, "test_every_gradient.smaller"),
    "a hook on all": (hooked_everywhere, "test_every_gradient.smaller"),
    "a hook on all, in the run": (hooked_later, "test_every_gradient.smaller"),
}


@pytest.mark.parametrize("before", [True, False], ids=["before wrap", "after wrap"])
@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_somebody_changed_is_not_applied(trainer: Callable[..., Any], way: str, before: bool) -> None:
    tamper, told = WAYS[way]
    built = trainer(**RUN)
    if before:
        tamper(built)
    built = wrap(built)
    if not before:
        tamper(built)
    found = tampering.stopped(built)
    assert (found["aspect"], found["changed"]) == ("gradient", False), found
    assert found["step"] == (0 if way in ("a hook on the head", "a hook on all") else tampering.STEP)
    assert told in found["detail"]
    assert 'allow=("gradient_transform",)' in found["detail"]


def test_a_change_that_is_allowed_is_applied_and_its_ratio_recorded(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    ratios = {}
    for name in ("plain", "halved"):
        built = wrap(trainer(name, **RUN), allow=("gradient_transform",), ledger=tmp_path / name / "ledger")
        if name == "halved":

            def halve(model: Any) -> None:
                for parameter in model.parameters():
                    parameter.grad.mul_(0.5)

            between(halve)(built)
        built.train()
        ratios[name] = [step["gradient_ratio"] for step in read_steps(tmp_path / name / "ledger")]
    assert ratios["plain"] == pytest.approx([1.0] * len(ratios["plain"]), rel=1e-5)
    want = [0.5 if step >= tampering.STEP else 1.0 for step in range(len(ratios["plain"]))]
    assert ratios["halved"] == pytest.approx(want, rel=1e-5)


def test_with_a_change_allowed_what_arrived_is_still_held(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(**RUN), allow=("gradient_transform",))
    found = tampering.stopped(tampering.altered_loss(built))
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, "weights", False), found


def test_a_ledger_has_no_ratio_where_nobody_may_change_a_gradient(trainer: Callable[..., Any], tmp_path: Path) -> None:
    wrap(trainer(**RUN), ledger=tmp_path / "ledger").train()
    assert {step["gradient_ratio"] for step in read_steps(tmp_path / "ledger")} == {None}
    assert b"gradient_ratio" not in (tmp_path / "ledger" / "rank-00000.jsonl").read_bytes()


def used_twice(model: Any) -> None:
    model.model.layers[1].mlp.down_proj.weight = model.model.layers[0].mlp.down_proj.weight


def tied(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def frozen(model: Any) -> None:
    model.model.embed_tokens.requires_grad_(False)


def unused(model: Any) -> None:
    model.register_parameter("spare", torch.nn.Parameter(torch.ones(3, 4)))


def half(model: Any) -> None:
    model.to(torch.bfloat16)


def logged(model: Any) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: None)


@pytest.mark.parametrize("change", [used_twice, tied, frozen, unused, half, logged])
@pytest.mark.parametrize(
    "more", [{}, {"gradient_checkpointing": True}, {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}]
)
def test_a_sound_run_of_any_model_goes_to_its_end(
    trainer: Callable[..., Any], change: Callable[[Any], None], more: dict[str, Any]
) -> None:
    built = trainer(**RUN | more)
    change(built.model)
    built.create_optimizer()
    assert tampering.stopped(wrap(built))["detail"] == "trained to its end"


def test_weights_that_thaw_in_the_run_are_trained(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(**RUN))
    built.model.lm_head.requires_grad_(False)

    class Thawing(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            built.model.lm_head.requires_grad_(state.global_step >= tampering.STEP)

    built.add_callback(Thawing())
    found = tampering.stopped(built)
    assert found["detail"] == "trained to its end", found


def test_a_run_of_bf16_weights_tells_one_matrix_by_five_percent(trainer: Callable[..., Any]) -> None:
    built = trainer(**RUN)
    built.model.to(torch.bfloat16)
    between(lambda model: matrix(model).mul_(1.05))(built)
    with pytest.raises(BatchDrift, match=r"down_proj.weight \(1.0\d* times\)"):
        wrap(built).train()

"""A term of a user's own in a GRPOTrainer's loss: refused by its name, or kept at its native size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import trl

from batchbridge import CannotAttach, read, wrap
from batchbridge_trl.releases import has
from batchbridge_trl.testing import Captured, scripted_trainer

NATIVE = trl.GRPOTrainer
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 1}


class Regularised(trl.GRPOTrainer):
    """A trainer that keeps its weights small."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs) + penalty(model)


class UsingAllParameters(trl.GRPOTrainer):
    """A trainer whose loss touches every parameter and gives none a gradient, as for a DDP without unused ones."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs) + 0.0 * penalty(model)


def penalty(model: Any) -> torch.Tensor:
    return 5e-4 * torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def built(kind: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    monkeypatch.setattr(trl, "GRPOTrainer", kind)
    arguments = {**SPLIT, **more}
    if has(">=0.22"):
        arguments["shuffle_dataset"] = False
    return scripted_trainer(folder, **arguments)


def gradient_of(trainer: Any) -> torch.Tensor:
    captured = Captured(trainer.model)
    trainer.add_callback(captured)
    trainer.train()
    (gradient,) = captured.gradients
    return gradient


def test_a_term_of_ones_own_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = built(Regularised, tmp_path, monkeypatch)
    with pytest.raises(CannotAttach) as caught:
        wrap(trainer)
    assert set(caught.value.reasons) == {"own_term"}
    assert 'allow=("own_term",)' in caught.value.reasons["own_term"]
    assert "embed_tokens.weight" in caught.value.reasons["own_term"]
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_term_that_gives_nothing_a_gradient_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = wrap(built(NATIVE, tmp_path / "plain", monkeypatch))
    touched = wrap(built(UsingAllParameters, tmp_path / "touched", monkeypatch))
    assert all(parameter.grad is None for parameter in touched.model.parameters())
    assert torch.equal(gradient_of(touched), gradient_of(plain))


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("split", [2, 1])
def test_an_allowed_term_has_its_native_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, split: int
) -> None:
    """Natively a step has the term once for each micro-batch; cut into others, it has as much of it."""
    if not has(">=0.20"):
        loss = "bnpo" if loss == "dapo" else loss

    def made(kind: Any, name: str) -> Any:
        return built(kind, tmp_path / name, monkeypatch, loss_type=loss)

    native = gradient_of(made(Regularised, "a")) - gradient_of(made(NATIVE, "b"))
    ours = []
    for name, kind in {"c": Regularised, "d": NATIVE}.items():
        trainer = made(kind, name)
        like = None
        if split != 2:
            spec = read(trainer, framework="trl").spec
            like = replace(spec, micro_batch=replace(spec.micro_batch, completions_per_device=split))
        ours.append(gradient_of(wrap(trainer, like=like, allow=("own_term",))))
    term = ours[0] - ours[1]
    size = float((term @ native) / (native @ native))
    assert size == pytest.approx(1.0, rel=1e-4)
    assert float((term - native).norm() / native.norm()) < 1e-4

"""A method of a subclass's own: the report says what an enforced run does with it, and one that it would leave out is
refused by its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import SequentialSampler
from trl import GRPOTrainer

from batchbridge import CannotAttach, wrap

RUN = {"max_steps": 2}


class Curriculum(GRPOTrainer):  # type: ignore[misc]  # trl is untyped here
    """A trainer that orders its prompts itself."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


class OwnLoader(GRPOTrainer):  # type: ignore[misc]
    """A trainer that drops every second batch of its loader."""

    def get_train_dataloader(self) -> Any:
        """Every second batch."""
        return [batch for number, batch in enumerate(super().get_train_dataloader()) if number % 2]


class OwnInputs(GRPOTrainer):  # type: ignore[misc]
    """A trainer that changes what a micro-batch takes of a rollout."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        given = super()._prepare_inputs(inputs)
        return {**given, "advantages": given["advantages"].clamp(-1, 1)}


class Used(GRPOTrainer):  # type: ignore[misc]
    """A trainer whose own methods are called."""

    called = 0

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """Counted."""
        self.called += 1
        return super().training_step(*arguments, **options)

    def _calculate_rewards(self, *arguments: Any) -> Any:
        self.rewards = super()._calculate_rewards(*arguments)
        return self.rewards


LEFT_OUT = {
    "train_sampler": (Curriculum, "_get_train_sampler", "your sampler is not used: the plan orders prompts"),
    "train_dataloader": (OwnLoader, "get_train_dataloader", "your loader is not used"),
    "prepare_inputs": (OwnInputs, "_prepare_inputs", "your method sees evaluation alone"),
}


def made(trainer: Callable[..., Any], cls: type, name: str = "own") -> Any:
    """A trainer of a class, as the fixture builds it."""
    built = trainer(name, **RUN)
    built.__class__ = cls
    return built


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_would_be_left_out_is_refused_by_its_own_name(trainer: Callable[..., Any], name: str) -> None:
    """With the name of code that is not known, and behind it; modes that change nothing leave it in its place."""
    cls, method, _ = LEFT_OUT[name]
    with pytest.raises(CannotAttach) as refused:
        wrap(made(trainer, cls))
    assert list(refused.value.reasons) == ["unproven_code", name]
    with pytest.raises(CannotAttach) as refused:
        wrap(made(trainer, cls, "again"), allow=["unproven_code"])
    assert list(refused.value.reasons) == [name]
    assert method in refused.value.reasons[name]
    assert f'allow=("{name}",)' in refused.value.reasons[name]
    assert wrap(made(trainer, cls, "observed"), mode="observe", allow=["unproven_code"]).batchbridge.mode == "observe"


@pytest.mark.parametrize("name", LEFT_OUT)
def test_where_it_is_allowed_the_report_says_that_it_is_left_out(trainer: Callable[..., Any], name: str) -> None:
    cls, method, said = LEFT_OUT[name]
    built = wrap(made(trainer, cls), allow=["unproven_code", name])
    (note,) = [note for note in built.batchbridge.notes if method in note]
    assert said in note
    assert said in built.batchbridge.report()
    built.train()
    assert built.state.global_step == 2


def test_the_report_says_of_every_own_method_what_becomes_of_it(trainer: Callable[..., Any]) -> None:
    stock = wrap(trainer("stock", **RUN)).batchbridge
    assert not [note for note in stock.notes if "it is called" in note]
    built = wrap(made(trainer, Used), allow=["unproven_code"])
    notes = built.batchbridge.notes
    assert [note for note in notes if "Used.training_step (overrides): it is called for each micro-batch" in note]
    assert [note for note in notes if "Used._calculate_rewards (overrides): " in note and "its rewards decide" in note]
    probed = built.called
    built.train()
    assert built.called - probed == 2


def test_a_method_that_was_set_on_the_object_is_told_and_ours_is_not(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(**RUN))
    wrap(built)  # over our own patches
    assert not [note for note in built.batchbridge.notes if "set on the object" in note]
    other = trainer("other", **RUN)
    other._get_train_sampler = lambda dataset=None: SequentialSampler(other.train_dataset)
    with pytest.raises(CannotAttach) as refused:
        wrap(other, allow=["unproven_code"])
    assert list(refused.value.reasons) == ["train_sampler"]
    assert "set on the object" in refused.value.reasons["train_sampler"]


class Logged(GRPOTrainer):  # type: ignore[misc]
    """A trainer whose methods only hand on, and log a number."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Logged."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        print(f"loss {loss.detach().item():.2f}")
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return super()._prepare_inputs(generation_batch)


class LoggedAndUsed(Logged, Used):
    """A trainer whose method hands on to another of the user's own, which counts."""

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """Handed on."""
        return super().training_step(*arguments, **options)


def test_methods_that_only_hand_on_need_no_allow(
    trainer: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    built = wrap(made(trainer, Logged))
    built.train()
    assert built.state.global_step == 2
    assert "loss " in capsys.readouterr().out
    assert not [note for note in built.batchbridge.notes if "Logged." in note]


def test_what_stands_behind_a_method_that_hands_on_is_still_named(trainer: Callable[..., Any]) -> None:
    with pytest.raises(CannotAttach, match=r"Used\.training_step \(overrides\)") as refused:
        wrap(made(trainer, LoggedAndUsed))
    assert list(refused.value.reasons) == ["unproven_code"]
    assert "Logged.training_step" not in refused.value.reasons["unproven_code"]

"""Methods of a derived trainer's own that are taken without a word of `allow`, since what they do is held; and what
each could do beside, which ends the run before an update."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from derived import Does, derived
from transformers import TrainerCallback
from trl import GRPOTrainer

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge_trl import own_methods
from batchbridge_trl.releases import HAS_CALCULATE_REWARDS, has
from batchbridge_trl.testing import Captured, flat_parameters

RUN = {"max_steps": 2, "learning_rate": 0.02}
SCORES = pytest.mark.skipif(not has(HAS_CALCULATE_REWARDS), reason="this TRL has no such method")


def made(trainer: Callable[..., Any], name: str = "own", **does: Any) -> Any:
    """A derived trainer whose methods do something more."""
    return derived(trainer(name, **RUN), **does)


@SCORES
def test_a_derived_trainers_own_methods_need_no_allow_and_the_report_has_them(trainer: Callable[..., Any]) -> None:
    built = wrap(made(trainer, rewarded=lambda trainer, words, rewards: 2 * rewards))
    code = built.batchbridge.evidence
    assert (code.grade, code.control) == ("measured", ())
    assert [name.rpartition(".")[2] for name in code.by_effect] == [
        "_calculate_rewards (overrides)",
        "create_accelerator_and_postprocess (overrides)",
        "create_scheduler (overrides)",
    ]
    said = built.batchbridge.report()
    assert "your own, held by what they do: " in said
    assert "create_scheduler: held by what it does (a method of your own)" in said
    assert "set on the object" not in said
    built.train()
    assert built.state.global_step == 2
    assert built.scored


def test_a_run_with_a_schedule_of_its_own_trains_by_the_plan_and_by_that_schedule(trainer: Callable[..., Any]) -> None:
    """Two updates of plain descent at rates of 0.01 and 0.005, of the gradients that a trainer of TRL's own has."""
    own, stock = wrap(made(trainer)), wrap(trainer("stock", **RUN))
    start, seen = flat_parameters(own.model).clone(), []
    for built in (own, stock):
        seen.append(Captured(built.model))
        built.add_callback(seen[-1])
        built.train()
    assert torch.equal(seen[0].gradients[0], seen[1].gradients[0])
    first, second = seen[0].gradients
    assert torch.allclose(flat_parameters(own.model), start - 0.01 * first - 0.005 * second, atol=1e-7)


class Another(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """A callback that does nothing."""


def _twice(trainer: Any) -> None:
    step = trainer.optimizer.step

    def both(self: Any, closure: Any = None) -> Any:
        step()
        return step()

    trainer.optimizer.step = types.MethodType(both, trainer.optimizer)


def _half_the_weights(trainer: Any) -> None:
    with torch.no_grad():
        next(trainer.model.parameters()).mul_(0.5)


def _other_loss(trainer: Any) -> None:
    trainer.compute_loss = lambda *words, **options: None


def _other_args(trainer: Any) -> None:
    trainer.args.gradient_accumulation_steps = 7


def _other_decay(trainer: Any) -> None:
    trainer.optimizer.param_groups[0]["weight_decay"] = 0.3


def _other_prompts(trainer: Any) -> None:
    trainer.train_dataset = trainer.train_dataset.select(range(len(trainer.train_dataset)))


CHANGES: dict[str, tuple[Does, str]] = {
    "a loss": (_other_loss, "compute_loss"),
    "a setting": (_other_args, r"args\.gradient_accumulation_steps"),
    "prompts": (_other_prompts, "train_dataset"),
    "weights": (_half_the_weights, "parameter 0 of the model"),
    "a group's decay": (_other_decay, "weight_decay of optimizer group 0"),
    "updates": (_twice, r"\w+\.step"),
    "a callback": (lambda trainer: trainer.add_callback(Another), "callbacks"),
    "the accelerator": (lambda trainer: setattr(trainer.accelerator, "backward", print), r"accelerator\.backward"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_own_schedule_changes_beside_ends_the_run_before_an_update(
    trainer: Callable[..., Any], change: str
) -> None:
    does, said = CHANGES[change]
    built = wrap(made(trainer, after=does))
    with pytest.raises(BatchDrift, match="create_scheduler") as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (0, "settings")
    assert re.search(f" changed {said}", drift.value.detail)
    assert 'allow=("unproven_code",)' in drift.value.detail


def test_a_class_that_an_own_schedule_patches_ends_the_run(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = GRPOTrainer._compute_loss

    def patch(built: Any) -> None:
        monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda *words: 2 * loss(*words))

    with pytest.raises(BatchDrift, match=r"changed trl\.trainer\.grpo_trainer\.GRPOTrainer\._compute_loss"):
        wrap(made(trainer, after=patch)).train()


def test_a_schedule_that_tells_no_rates_ends_the_run(trainer: Callable[..., Any]) -> None:
    def silent(built: Any) -> None:
        built.lr_scheduler.get_last_lr = list

    with pytest.raises(BatchDrift, match="does not tell the learning rate of each of the optimizer's 2 groups"):
        wrap(made(trainer, after=silent)).train()


def test_a_schedule_that_stops_telling_its_rates_ends_the_run(trainer: Callable[..., Any]) -> None:
    """At its second step: what it then writes into the groups would be compared with nothing."""

    def falls_silent(built: Any) -> None:
        schedule, step = built.lr_scheduler, built.lr_scheduler.step

        def last(*words: Any) -> None:
            step(*words)
            schedule.get_last_lr = list
            built.optimizer.param_groups[0]["lr"] = 7.0

        schedule.step = last

    built = wrap(made(trainer, after=falls_silent))
    with pytest.raises(BatchDrift, match="does not tell the learning rate") as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (1, "learning_rate")


def test_an_attribute_that_no_framework_reads_may_change(trainer: Callable[..., Any]) -> None:
    built = wrap(made(trainer, after=lambda trainer: setattr(trainer, "my_schedules", 1)))
    built.train()
    assert built.my_schedules == 1


def test_with_the_name_of_unproven_code_nothing_is_held(trainer: Callable[..., Any]) -> None:
    built = wrap(made(trainer, after=lambda trainer: trainer.add_callback(Another)), allow=["unproven_code"])
    built.train()
    assert built.state.global_step == 2


def _ids(trainer: Any, words: Any, rewards: Any) -> Any:
    words[3][0].append(5)
    return rewards


def _order(trainer: Any, words: Any, rewards: Any) -> Any:
    words[0].reverse()
    return rewards


def _group(trainer: Any, words: Any, rewards: Any) -> Any:
    trainer.num_generations = 2
    return rewards


SCORED: dict[str, tuple[Callable[..., Any], str]] = {
    "tokens": (_ids, "changed the completions or prompts"),
    "the order of rows": (_order, "changed the completions or prompts"),
    "the group": (_group, "changed num_generations"),
    "fewer rows": (lambda trainer, words, rewards: rewards[:2], r"gave \(2, 1\), and a rollout needs"),
    "numbers": (lambda trainer, words, rewards: rewards.tolist(), "gave list, and a rollout needs"),
}


@SCORES
@pytest.mark.parametrize("change", SCORED)
def test_what_own_rewards_change_beside_ends_the_run_before_an_update(trainer: Callable[..., Any], change: str) -> None:
    does, said = SCORED[change]
    built = wrap(made(trainer, rewarded=does))
    before = flat_parameters(built.model).clone()
    with pytest.raises(BatchDrift, match=said) as drift:
        built.train()
    assert drift.value.step == 0
    assert torch.equal(flat_parameters(built.model), before)


class OwnAccelerator(Accelerator):  # type: ignore[misc]  # accelerate is untyped here
    """An accelerator of somebody's own."""


def test_an_accelerator_that_is_not_accelerates_own_is_refused(trainer: Callable[..., Any]) -> None:
    built = made(trainer)
    built.accelerator.__class__ = OwnAccelerator
    with pytest.raises(CannotAttach, match="the accelerator is a OwnAccelerator") as refused:
        wrap(built)
    assert "own_setup" in refused.value.reasons
    assert "own_setup" not in _reasons(built, allow=["unproven_code"])


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("accelerator", "reduce", lambda *words: None, "methods were set on the accelerator: reduce"),
        ("", "is_fsdp_enabled", True, "use of FSDP is False, by the trainer and its arguments True"),
        ("", "is_deepspeed_enabled", True, "use of DeepSpeed is False, by the trainer and its arguments True"),
    ],
)
def test_what_an_own_setup_left_behind_is_refused(
    trainer: Callable[..., Any], part: str, name: str, value: Any, said: str
) -> None:
    built = made(trainer)
    setattr(getattr(built, part) if part else built, name, value)
    assert said in _reasons(built)["own_setup"]


def test_a_schedule_that_is_made_without_the_trainer_is_refused(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_methods, "deepspeed_configuration", lambda trainer: {"scheduler": {"type": "WarmupLR"}})
    assert "makes an optimizer or schedule of DeepSpeed's configuration" in _reasons(made(trainer))["own_setup"]


def _reasons(built: Any, **options: Any) -> dict[str, str]:
    try:
        wrap(built, **options)
    except CannotAttach as refused:
        return dict(refused.reasons)
    return {}

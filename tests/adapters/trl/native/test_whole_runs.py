"""A wrapped trainer over its life: logs, evaluation, a second `train()`, early stopping, later changes, `unwrap`."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from batchbridge import CannotAttach, LedgerError, unwrap, wrap
from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_trl import releases
from batchbridge_trl.rows import TrlRolloutRows, assemble
from batchbridge_trl.testing import flat_parameters, scripted_trainer

STEP = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
LOGGED = {"logging_strategy": "steps", "logging_steps": 1}
CLIPPED = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_train_epochs": 2,
    "learning_rate": 0.3,
    "beta": 0.1,
    "delta": 3.0,
}


KNOWN = {field.name for field in dataclasses.fields(GRPOConfig)}


def prompts(count: int) -> Dataset:
    return Dataset.from_dict({"prompt": [ScriptedRollouts().prompt(index) for index in range(count)]})


def steps_logged(trainer: Any) -> list[dict[str, Any]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


# ---- what is logged


@pytest.mark.parametrize(
    "level",
    [
        {},
        pytest.param(
            {"importance_sampling_level": "sequence"},
            marks=pytest.mark.skipif("importance_sampling_level" not in KNOWN, reason="this TRL has tokens' only"),
        ),
    ],
)
@pytest.mark.parametrize("cut", [{"tokens_per_device": 30}, {"per_device_train_batch_size": 2}])
def test_logged_numbers_do_not_depend_on_how_a_step_is_cut(
    trainer: Callable[..., Any], cut: dict[str, int], level: dict[str, str]
) -> None:
    """Natively each is the mean over micro-batches of equal size; a step in one micro-batch is what all should say."""
    logs = []
    for name, arguments, budget in (
        ("whole", {}, None),
        ("cut", {key: value for key, value in cut.items() if key != "tokens_per_device"}, cut.get("tokens_per_device")),
    ):
        torch.manual_seed(0)
        arguments = {**CLIPPED, **LOGGED, **level, **arguments}
        if "per_device_train_batch_size" in cut and name == "cut":
            arguments |= {"gradient_accumulation_steps": 4, "steps_per_generation": 8}
        built = wrap(trainer(name, reference=tiny_policy(seed=1), **arguments), tokens_per_device=budget)
        built.train()
        logs.append(steps_logged(built))
    whole, parts = logs
    assert_logged_alike(
        whole, parts, "kl", "entropy", "clip_ratio/region_mean", "clip_ratio/low_min", "clip_ratio/high_max"
    )
    assert any(entry["clip_ratio/region_mean"] > 0.05 for entry in whole), "the term under test must carry weight"


NUMBERS = ("kl", "entropy", "clip_ratio", "loss", "grad_norm", "learning_rate", "reward")


def assert_logged_alike(one: list[dict[str, Any]], other: list[dict[str, Any]], *needed: str) -> None:
    assert len(one) == len(other) > 3
    later = {"entropy"} if releases.has("<0.20") else set()
    assert {"loss", "learning_rate", *needed} - later <= set(one[0])
    assert "grad_norm" in one[0] or transformers.__version__ < "5", "transformers 4 logs it where gradients are clipped"
    for a, b in zip(one, other, strict=True):
        names = {name for name in {**a, **b} if name.startswith(NUMBERS)}  # rewards: once for every rollout
        for name in names:
            assert float(b[name]) == pytest.approx(float(a[name]), rel=2e-3, abs=2e-5), name


def test_logged_numbers_are_trls_own_where_a_step_is_one_micro_batch(trainer: Callable[..., Any]) -> None:
    """What nothing cuts, natively or wrapped, is the same step; wrapped it is cut by tokens."""
    aligned = {**CLIPPED, **LOGGED, "steps_per_generation": 1, "shuffle_dataset": False}
    logs = []
    for name in ("native", "wrapped"):
        built = trainer(name, reference=tiny_policy(seed=1), **aligned)
        if name == "wrapped":
            wrap(built, tokens_per_device=30)
        built.train()
        logs.append(steps_logged(built))
    assert_logged_alike(*logs, "kl", "entropy", "clip_ratio/region_mean", "reward")
    assert any(entry["clip_ratio/region_mean"] > 0.05 for entry in logs[0]), "the term under test must carry weight"


def test_logged_numbers_do_not_count_filler_rows(trainer: Callable[..., Any]) -> None:
    """Steps of 5 completions: a last micro-batch of 2 has one row that is trained nowhere. By tokens there is none."""
    uneven = {**CLIPPED, **LOGGED, "num_iterations": 1, "prompts": 7, "per_device_train_batch_size": 2}
    uneven |= {"gradient_accumulation_steps": 2, "steps_per_generation": 4}
    changes = {
        "rollout.prompts_per_rollout": 3,
        "rollout.completions_per_prompt": 3,
        "order.last_rollout": "short",
        "optimizer_step.completions_per_step": 5,
    }
    logs = []
    for name, budget in (("tokens", 10_000), ("fixed", None)):
        built = trainer(name, reference=tiny_policy(seed=1), **uneven)
        spec = wrap(built, mode="observe").batchbridge.request.spec.replace(**changes)
        wrap(built, like=spec, tokens_per_device=budget)
        built.train()
        logs.append(steps_logged(built))
    assert_logged_alike(*logs, "kl", "entropy")


@pytest.mark.skipif(not releases.has(releases.TIMES_STEPS), reason="this TRL logs none")
def test_the_logged_step_time_has_the_rollout_in_it_whatever_the_cut(trainer: Callable[..., Any]) -> None:
    pause = 0.15
    for name, budget in (("fixed", None), ("tokens", 24)):
        built = trainer(name, num_train_epochs=1, **STEP, **LOGGED)
        owner, called = (built, "rollout_func") if getattr(built, "rollout_func", None) else (built.model, "generate")
        play = getattr(owner, called)

        def slow(*asked: Any, play: Any = play, **options: Any) -> Any:
            time.sleep(pause)
            return play(*asked, **options)

        setattr(owner, called, slow)
        wrap(built, tokens_per_device=budget).train()
        times = [float(entry["step_time"]) for entry in steps_logged(built)]
        assert len(times) == built.state.global_step
        assert all(pause <= seconds < pause + 2 for seconds in times), times


def test_samples_per_second_count_prompts_as_trl_does(trainer: Callable[..., Any]) -> None:
    counted = []
    for name in ("native", "wrapped"):
        built = trainer(name, num_train_epochs=2, **STEP)
        if name == "wrapped":
            wrap(built)
        result = built.train().metrics
        counted.append(float(result["train_samples_per_second"]) * float(result["train_runtime"]))
    assert counted[1] == pytest.approx(counted[0], rel=0.05)


# ---- what happens inside and between runs


def test_evaluation_in_the_middle_changes_nothing_of_the_run(trainer: Callable[..., Any], tmp_path: Path) -> None:
    ends = []
    for name in ("plain", "evaluated"):
        built = trainer(
            name,
            num_train_epochs=2,
            num_iterations=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            per_device_eval_batch_size=4,
        )
        if name == "evaluated":
            built.eval_dataset, built.args.eval_strategy, built.args.eval_steps = prompts(4), "steps", 1
        wrap(built, ledger=tmp_path / name / "ledger").train()
        ends.append(flat_parameters(built.model))
        evaluated = [entry for entry in built.state.log_history if "eval_loss" in entry]
        assert len(evaluated) == (built.state.global_step if name == "evaluated" else 0)
    assert torch.equal(*ends)


def test_a_second_training_run_begins_anew(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(num_train_epochs=1, **STEP))
    built.train()
    first = flat_parameters(built.model)
    built.train()
    assert built.state.global_step == 3
    again = wrap(trainer("again", policy=built_policy(first), num_train_epochs=1, **STEP))
    again.train()
    assert torch.allclose(flat_parameters(built.model), flat_parameters(again.model), atol=1e-7)


def test_a_ledger_that_a_second_run_cannot_begin_ends_it_before_a_rollout(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    built = wrap(trainer(num_train_epochs=1, **STEP), ledger=tmp_path / "ledger")
    built.train()
    shutil.rmtree(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("a file in its place")
    built._generate_and_score_completions = None
    with pytest.raises(LedgerError, match="ledger"):
        built.train()


def built_policy(parameters: torch.Tensor) -> Any:
    policy = tiny_policy()
    start = 0
    for parameter in policy.parameters():
        parameter.data.copy_(parameters[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()
    return policy


def test_a_run_that_is_stopped_early_ends_in_order(trainer: Callable[..., Any], tmp_path: Path) -> None:
    class Stopping(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 2

    built = wrap(trainer(num_train_epochs=2, **STEP), ledger=tmp_path / "ledger")
    built.add_callback(Stopping())
    built.train()
    assert built.state.global_step == 2
    assert [record["step"] for record in read_steps(tmp_path / "ledger")] == [0, 1]
    assert not any(parameter._backward_hooks for parameter in built.model.parameters()), "no hook stays behind"


def test_a_callback_that_asks_for_the_loader_disturbs_nothing(trainer: Callable[..., Any]) -> None:
    """For its length, as a bar of progress does: the rollouts in use were forgotten then, and generated anew."""

    lengths = []

    class Asks(TrainerCallback):  # type: ignore[misc]
        """A bar of progress."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            lengths.append(len(asked.get_train_dataloader()))

    several = {**STEP, "num_iterations": 2, "steps_per_generation": 4, "num_train_epochs": 1, "learning_rate": 0.1}
    plain, asked = wrap(trainer("plain", **several)), wrap(trainer("asked", **several))
    asked.add_callback(Asks())
    plain.train()
    asked.train()
    assert len(lengths) == asked.state.global_step > 2
    assert torch.equal(flat_parameters(plain.model), flat_parameters(asked.model))


# ---- changes after `wrap`


@pytest.mark.parametrize("count", [3, 12])
def test_another_dataset_after_wrap_is_noticed_before_a_step_is_trained(
    trainer: Callable[..., Any], count: int
) -> None:
    built = wrap(trainer(num_train_epochs=1, prompts=6, **STEP))
    built.train_dataset = prompts(count)
    with pytest.raises(CannotAttach, match=rf"the trainer has {count} prompts, and had 6 when it was wrapped"):
        built.train()
    wrap(built)
    assert built.batchbridge.plan.dataset_size == count
    built.train()
    assert built.state.global_step == built.batchbridge.plan.total_optimizer_steps


def test_settings_that_change_after_wrap_are_noticed_by_name(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(num_train_epochs=1, **STEP))
    built.args.gradient_accumulation_steps = 1
    with pytest.raises(CannotAttach, match=r"optimizer_step\.completions_per_step 8 to 4"):
        built.train()
    wrap(built)
    assert built.batchbridge.plan.completions_per_step == 4
    built.train()
    assert built.state.global_step == built.batchbridge.plan.total_optimizer_steps == 6


# ---- unwrap


def test_unwrap_after_training_leaves_a_trainer_that_generates_as_ever(trainer: Callable[..., Any]) -> None:
    """TRL generates where its count of micro-batches says so: a wrapped step has another number of them."""
    counts = []
    for name in ("native", "wrapped"):
        built = trainer(name, num_train_epochs=1, prompts=6, **STEP)
        if name == "wrapped":
            unwrap_after = wrap(built, tokens_per_device=20)
            unwrap_after.train()
            unwrap(built)
        else:
            built.train()
        generated = []
        native = built._generate_and_score_completions

        def counting(inputs: Any, native: Any = native, generated: Any = generated) -> Any:
            generated.append(len(inputs))
            return native(inputs)

        built._generate_and_score_completions = counting
        built.train()
        counts.append(generated)
    assert counts[0] == counts[1] == [8, 8, 8]


def test_unwrap_gives_back_the_users_own_scheduler(trainer: Callable[..., Any]) -> None:
    built = trainer(num_train_epochs=1, num_iterations=2, **STEP)
    optimizer = torch.optim.SGD(built.model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    built.optimizer, built.lr_scheduler = optimizer, schedule
    spec = wrap(built, mode="observe").batchbridge.request.spec
    wrap(built, like=spec.replace(**{"horizon.lr_tick": "rollout"})).train()
    unwrap(built)
    assert built.lr_scheduler is schedule or getattr(built.lr_scheduler, "scheduler", None) is schedule


# ---- rows


@pytest.mark.parametrize("widths", [(1, 5), (5, 1), (1, 1)])
def test_a_step_over_rollouts_of_any_completion_widths_is_assembled(widths: tuple[int, int]) -> None:
    """A collapsed policy answers with a single token: the first rollout's width says nothing of the others'."""
    rollouts = []
    for width in widths:
        tensors = {
            "prompt_ids": torch.ones(2, 3, dtype=torch.long),
            "prompt_mask": torch.ones(2, 3, dtype=torch.long),
            "completion_ids": torch.full((2, width), 7),
            "completion_mask": torch.ones(2, width, dtype=torch.long),
            "old_per_token_logps": torch.full((2, width), -1.0),
            "importance_sampling_ratio": torch.full((2, 1), 0.5),
            "advantages": torch.ones(2),
        }
        rollouts.append(TrlRolloutRows(0, tensors, {0: 0, 1: 1}, [width] * 2, [3] * 2, [width] * 2, {0: {}, 1: {}}))
    made = assemble([(rollouts[0], 0), (rollouts[1], 1), None], (rollouts[0], 0), 0, None)
    assert made["completion_ids"].shape == made["old_per_token_logps"].shape == (3, max(widths))
    assert made["completion_mask"].sum(1).tolist() == [*widths, 0]
    assert made["importance_sampling_ratio"].shape == (3, 1)


@pytest.mark.parametrize(("max_steps", "steps", "moves"), [(0, 1, False), (-1, 6, True)])
def test_max_steps_of_0_is_one_step_without_a_learning_rate(
    tmp_path: Path, max_steps: int, steps: int, moves: bool
) -> None:
    # TRL alone: what rule BB-TRL-094 says, and the same configuration without it.
    sizes = {"max_steps": max_steps, "num_train_epochs": 1, "lr_scheduler_type": "linear"}
    trainer = scripted_trainer(tmp_path, per_device_train_batch_size=4, **sizes)
    before = flat_parameters(trainer.model)
    trainer.train()
    assert trainer.state.global_step == steps
    assert bool((flat_parameters(trainer.model) != before).any()) is moves

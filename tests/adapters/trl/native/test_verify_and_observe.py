"""Modes that change nothing: what they record of a real, unpatched run, and when they object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from batchbridge import BatchDrift, Plan, hookimpl, wrap
from batchbridge.contract import plugins
from batchbridge.ledger import read_headers, read_steps
from batchbridge_trl.releases import has
from batchbridge_trl.testing import TAKES_ROLLOUTS, flat_parameters, undivided

SEVERAL_STEPS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 2,
}
ONE_STEP = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "shuffle_dataset": False,
}


def test_observe_leaves_parameters_bit_equal(trainer: Callable[..., Any], tmp_path: Path) -> None:
    plain = trainer("plain", **SEVERAL_STEPS)  # the constructor seeds the global random state: one after the other
    plain.train()
    observed = trainer("observed", **SEVERAL_STEPS)
    wrap(observed, mode="observe", ledger=tmp_path / "ledger")
    observed.train()
    assert torch.equal(flat_parameters(plain.model), flat_parameters(observed.model))
    assert len(list(read_steps(tmp_path / "ledger"))) == plain.state.global_step


def test_observe_identifies_every_completion_that_was_trained(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = trainer(**SEVERAL_STEPS)
    wrap(built, mode="observe", ledger=tmp_path / "ledger")
    built.train()
    seen: Counter[tuple[int, int, int]] = Counter()
    for record in read_steps(tmp_path / "ledger"):
        seen.update(zip(record["pass"], record["prompt"], record["sample"], strict=True))
    # 6 prompts, 2 per rollout: 3 rollouts an epoch, each trained in 2 passes, over 2 epochs
    assert set(seen.values()) == {2}
    assert len(seen) == 2 * 6 * 4


def test_verify_accepts_a_native_run_that_happens_to_follow_the_plan(trainer: Callable[..., Any]) -> None:
    built = wrap(undivided(trainer(loss_type="grpo", **ONE_STEP)), mode="verify")
    built.train()
    assert built.state.global_step == 6


def test_verify_accepts_a_second_training_run_that_follows_the_plan_again(trainer: Callable[..., Any]) -> None:
    built = wrap(undivided(trainer(loss_type="grpo", **ONE_STEP)), mode="verify")
    for _ in range(2):
        built.train()
        assert built.state.global_step == 6


def test_a_loader_that_somebody_else_asks_for_is_not_taken_for_the_runs(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    built = wrap(undivided(trainer(loss_type="grpo", **ONE_STEP)), mode="verify", ledger=tmp_path / "ledger")

    class Looking(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            next(iter(built.get_train_dataloader()))

    built.add_callback(Looking())
    built.train()
    assert len(list(read_steps(tmp_path / "ledger"))) == built.state.global_step == 6


@pytest.mark.parametrize("before", ["verify", None])
def test_completions_from_before_the_run_are_not_recorded_as_its_own(
    trainer: Callable[..., Any], tmp_path: Path, before: Any
) -> None:
    """TRL goes on with the buffered rollout of a run that was interrupted in the middle of it."""
    built = undivided(trainer(loss_type="grpo", num_iterations=2, **ONE_STEP))
    interrupted = []

    class Interrupting(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not interrupted:
                interrupted.append(state.global_step)
                raise KeyboardInterrupt

    built.add_callback(Interrupting())
    if before is not None:
        wrap(built, mode=before)
    with pytest.raises(KeyboardInterrupt):
        built.train()
    wrap(built, mode="observe", ledger=tmp_path / "ledger").train()
    first, second, *_ = read_steps(tmp_path / "ledger")
    assert (first["prompt"], second["rollout"]) == ([], [0] * 8)


def test_verify_sees_what_accelerate_divides_once_more(trainer: Callable[..., Any]) -> None:
    """transformers 5.2 to 5.4 have it divide by gradient_accumulation_steps, and gradients are that much too small."""
    built = trainer(loss_type="grpo", **ONE_STEP)
    built.accelerator.gradient_accumulation_steps = 2
    with pytest.raises(BatchDrift, match=r"0\.5 times what the plan says"):
        wrap(built, mode="verify").train()


@pytest.mark.parametrize(
    ("aspect", "arguments", "asked"),
    [
        # Another seed is asked for than the trainer's: what is held is the plan, and not TRL's own order.
        ("order", {**ONE_STEP, "shuffle_dataset": True}, {"order.seed": 5}),
        ("membership", ONE_STEP, {"optimizer_step.completions_per_step": 4, "horizon.optimizer_steps": 6}),
        ("weights", {**ONE_STEP, "loss_type": "bnpo"}, {}),
    ],
)
def test_verify_raises_at_the_first_departing_step(
    trainer: Callable[..., Any], aspect: str, arguments: dict[str, Any], asked: dict[str, Any]
) -> None:
    built = trainer(**arguments)
    spec = wrap(built, mode="observe").batchbridge.request.spec
    wrap(built, like=spec.replace(**asked), mode="verify")
    before = flat_parameters(built.model)
    with pytest.raises(BatchDrift, match=aspect) as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (0, aspect)
    assert torch.equal(before, flat_parameters(built.model)), "the departing step must not be applied"


# ---- samples of one group change their places between the rollout and the loss


def exchanging(built: Any, *names: str) -> Any:
    """The first two samples of every group exchange these columns, or all with "rows", behind what is observed."""
    native, group = built._generate_and_score_completions, built.num_generations

    def exchanged(inputs: Any) -> Any:
        output = native(inputs)
        order = torch.arange(len(inputs))
        order[0::group], order[1::group] = order[1::group].clone(), order[0::group].clone()
        whole = {name for name, value in output.items() if isinstance(value, torch.Tensor) and value.dim()}
        return {**output, **{name: output[name][order] for name in (whole if names == ("rows",) else names)}}

    built._generate_and_score_completions = exchanged
    return built


COMPLETIONS = ("completion_ids", "completion_mask")


@pytest.mark.parametrize("names", [("advantages",), COMPLETIONS], ids=["advantages", "completions"])
def test_verify_stops_where_samples_of_a_group_exchange_their_advantages(
    trainer: Callable[..., Any], names: tuple[str, ...]
) -> None:
    built = exchanging(wrap(undivided(trainer(loss_type="grpo", **ONE_STEP)), mode="verify"), *names)
    before = flat_parameters(built.model)
    with pytest.raises(
        BatchDrift, match="takes another completion or advantage than was generated for sample"
    ) as drift:
        built.train()
    assert (drift.value.step, torch.equal(before, flat_parameters(built.model))) == (0, True)


def test_the_ledger_of_an_observed_run_has_the_advantage_that_a_sample_was_trained_with(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    rows = {}
    for name in ("native", "advantages", "completions", "rows"):
        built = wrap(trainer(name, loss_type="grpo", **ONE_STEP), mode="observe", ledger=tmp_path / name / "ledger")
        if name != "native":
            exchanging(built, *(COMPLETIONS if name == "completions" else (name,)))
        built.train()
        (first, *_) = read_steps(tmp_path / name / "ledger")
        columns = ("prompt", "sample", "completion_fingerprint", "advantage")
        rows[name] = {each[:2]: each[2:] for each in zip(*(first[column] for column in columns), strict=True)}
    assert rows["rows"] == rows["native"], "which sample comes first changes nothing"
    for (prompt, sample), (completion, advantage) in rows["native"].items():
        other = rows["native"][prompt, {0: 1, 1: 0}.get(sample, sample)]
        assert rows["advantages"][prompt, sample] == (completion, other[1])
        assert rows["completions"][prompt, sample] == (other[0], advantage)
    assert rows["advantages"] != rows["native"] != rows["completions"]


def test_verify_accepts_samples_of_a_group_in_another_order(trainer: Callable[..., Any]) -> None:
    built = exchanging(wrap(undivided(trainer(loss_type="grpo", **ONE_STEP)), mode="verify"), "rows")
    built.train()
    assert built.state.global_step == 6


def test_verify_raises_when_the_clock_departs(trainer: Callable[..., Any]) -> None:
    built = trainer(loss_type="grpo", **ONE_STEP)
    spec = wrap(built, mode="observe").batchbridge.request.spec
    wrap(built, like=spec.replace(**{"horizon.epochs": 3.0}), mode="verify")
    with pytest.raises(BatchDrift, match="6 optimizer steps, the plan has 9"):
        built.train()


def test_enforced_run_trains_exactly_the_plan(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = wrap(trainer(**SEVERAL_STEPS), ledger=tmp_path / "ledger")
    built.train()
    plan = Plan(built.batchbridge.request.spec, 6)
    records = list(read_steps(tmp_path / "ledger"))
    assert len(records) == plan.total_optimizer_steps
    for record, step in zip(records, plan.steps(), strict=True):
        keys = zip(record["rollout"], record["pass"], record["prompt"], record["sample"], strict=True)
        assert sorted(keys) == sorted(map(tuple, step.members))
        assert record["normaliser"]["tokens"] == sum(record["response_tokens"])
        assert record["normaliser"]["completions"] == len(step.members)


def test_the_ledger_says_what_was_applied(trainer: Callable[..., Any], tmp_path: Path) -> None:
    # Clipping at no norm that occurs: before transformers 5.3 a norm is only known where gradients are clipped.
    built = trainer(lr_scheduler_type="linear", num_train_epochs=1, max_grad_norm=1e6)
    wrap(built, ledger=tmp_path / "ledger")
    built.train()
    (header,) = read_headers(tmp_path / "ledger")
    assert (header["framework"], header["mode"], header["world_size"]) == ("trl", "enforce", 1)
    records = list(read_steps(tmp_path / "ledger"))
    assert [record["step"] for record in records] == list(range(len(records)))
    rates = [record["learning_rate"] for record in records]
    assert rates == pytest.approx([1e-2 * (1 - k / len(rates)) for k in range(len(rates))])
    assert all(record["gradient_norm"] > 0 and not record["skipped"] for record in records)


def test_watchers_see_every_optimizer_step(trainer: Callable[..., Any]) -> None:
    class Watcher:
        seen: list[int] = []  # noqa: RUF012  # one test, one class

        @hookimpl
        def batchbridge_optimizer_step(self, record: dict[str, Any]) -> None:
            self.seen.append(record["step"])

    watcher = Watcher()
    plugins.manager().register(watcher, "watcher")
    try:
        built = wrap(trainer(num_train_epochs=1))
        built.train()
    finally:
        plugins.manager().unregister(watcher)
    assert watcher.seen == list(range(built.state.global_step))


@pytest.mark.skipif(not has(TAKES_ROLLOUTS), reason="scripted completions have no loss masks on this TRL")
def test_a_step_without_tokens_leaves_the_optimizer_alone(trainer: Callable[..., Any], tmp_path: Path) -> None:
    from batchbridge.testing.tiny import ScriptedRollouts

    mute = ScriptedRollouts(empty=frozenset((prompt, sample) for prompt in range(6) for sample in range(4)))
    built = wrap(
        trainer(script=mute, optim="adamw_torch", weight_decay=0.5, num_train_epochs=1), ledger=tmp_path / "ledger"
    )
    before = flat_parameters(built.model)
    built.train()
    assert torch.equal(before, flat_parameters(built.model)), "not even weight decay"
    assert all(record["skipped"] for record in read_steps(tmp_path / "ledger"))

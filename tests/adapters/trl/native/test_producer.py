"""What a step gets from generation: advantages that the rewards give, and settings as they were at `wrap`; a producer's
own advantages only where they are allowed, and then they are what is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.ledger import read_steps
from batchbridge_trl.advantages import TrlAdvantages
from batchbridge_trl.releases import lacks
from batchbridge_trl.testing import flat_parameters

RUN = {"max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "shuffle_dataset": False}
ALIGNED = {**RUN, "loss_type": "grpo", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
"""A run that keeps to its plan natively, so that `verify` goes through."""
OWN = "unproven_code", "advantages"


class Doubled(GRPOTrainer):  # type: ignore[misc]  # trl is untyped here
    """A trainer whose own method doubles every advantage, as its text says."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"] * 2
        return output


def _clamp(output: dict[str, Any]) -> dict[str, Any]:
    name = "advantages"
    return {**output, name: output[name].clamp(-0.5, 0.5)}


class Clamped(GRPOTrainer):  # type: ignore[misc]
    """A trainer whose own method clamps advantages, in a function that its text does not show."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return _clamp(super()._generate_and_score_completions(inputs))


class ByToken(GRPOTrainer):  # type: ignore[misc]
    """A trainer whose own method gives one advantage per token."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        return _by_token(output)


def _by_token(output: dict[str, Any]) -> dict[str, Any]:
    name, width = "advantages", output["completion_ids"].shape[1]
    return {**output, name: output[name][:, None] * torch.linspace(1, 2, width)}


def made(trainer: Callable[..., Any], cls: type, name: str = "own", **more: Any) -> Any:
    """A trainer of a class, as the fixture builds it."""
    built = trainer(name, **{**RUN, **more})
    built.__class__ = cls
    return built


def test_advantages_of_ones_own_are_refused_by_name_before_anything_is_generated(trainer: Callable[..., Any]) -> None:
    with pytest.raises(CannotAttach) as refused:
        wrap(made(trainer, Doubled), allow=["unproven_code"])
    assert list(refused.value.reasons) == ["advantages"]
    assert "Doubled" in refused.value.reasons["advantages"]
    assert 'allow=("advantages",)' in refused.value.reasons["advantages"]


@pytest.mark.parametrize(("cls", "mode"), [(Clamped, "enforce"), (Clamped, "verify"), (Doubled, "verify")])
def test_those_that_no_text_shows_end_the_run_before_its_first_update(
    trainer: Callable[..., Any], cls: type, mode: Any
) -> None:
    built = made(trainer, cls, **ALIGNED)
    with pytest.raises(BatchDrift, match=r"in its advantages: .*its rewards give .*allow=\(\"advantages\",\)") as drift:
        wrap(built, mode=mode, allow=["unproven_code"]).train()
    assert (drift.value.step, drift.value.aspect, built.state.global_step) == (0, "advantages", 0)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_those_that_are_allowed_are_what_is_trained(trainer: Callable[..., Any], tmp_path: Any, scale: str) -> None:
    """They were left out where scale_rewards is not "group": the ledger, and the weights, have the plan's instead."""
    ends, advantages = {}, {}
    for name, cls, allow in (("stock", GRPOTrainer, ()), ("own", Doubled, OWN), ("hidden", Clamped, OWN)):
        built = wrap(made(trainer, cls, name, scale_rewards=scale), allow=allow, ledger=tmp_path / name)
        said = [note for note in built.batchbridge.notes if "carried, not recomputed" in note]
        assert len(said) == (name != "stock")
        built.train()
        ends[name] = flat_parameters(built.model)
        advantages[name] = [one for step in read_steps(tmp_path / name) for one in step["advantage"]]
    first = slice(0, 8)
    assert advantages["own"][first] == pytest.approx([2 * one for one in advantages["stock"][first]])
    assert advantages["hidden"][first] == pytest.approx(
        [max(-0.5, min(0.5, one)) for one in advantages["stock"][first]]
    )
    assert not torch.equal(ends["stock"], ends["own"])
    assert not torch.equal(ends["stock"], ends["hidden"])


def test_another_rule_is_left_different_where_the_trainers_own_are_allowed(trainer: Callable[..., Any]) -> None:
    spec = wrap(trainer("plain", **RUN), mode="observe").batchbridge.request.spec
    asked = spec.replace(**{"advantage.baseline": "leave_one_out"})
    plain = wrap(trainer("asked", **RUN), like=asked).batchbridge
    assert "advantage.baseline" not in plain.left_different
    allowed = wrap(made(trainer, Doubled, "own"), like=asked, allow=OWN).batchbridge
    assert "advantage.baseline" in allowed.left_different


@pytest.mark.parametrize("allow", [("unproven_code",), OWN])
@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_one_advantage_per_token_is_refused_at_the_first_rollout(
    trainer: Callable[..., Any], mode: Any, allow: tuple[str, ...]
) -> None:
    """They ended in torch's own error of shapes."""
    with pytest.raises(BatchDrift, match="one number per token") as drift:
        wrap(made(trainer, ByToken, **ALIGNED), mode=mode, allow=allow).train()
    assert (drift.value.step, drift.value.aspect) == (0, "advantages")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_generations", 2),
        ("scale_rewards", "none"),
        ("off_policy_mask_threshold", 0.1),
        ("reward_weights", torch.tensor([0.5])),
        ("temperature", 0.5),
    ],
)
def test_a_setting_that_is_changed_in_the_run_ends_it_before_the_next_rollout(
    trainer: Callable[..., Any], name: str, value: Any
) -> None:
    class Changes(TrainerCallback):  # type: ignore[misc]
        """A curriculum that sets a trainer's attribute."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Sets it in the second step."""
            if state.global_step == 1:
                setattr(built, name, value)

    built = wrap(trainer(**RUN))
    built.add_callback(Changes())
    with pytest.raises(BatchDrift, match=f"in its settings: {name} was .* when the trainer was wrapped") as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect, built.state.global_step) == (1, "settings", 1)


def rewards() -> Iterator[tuple[str, torch.Tensor]]:
    """Rewards by function of three groups of four, as tasks give them."""
    generator = torch.Generator().manual_seed(7)
    yield "right or wrong", torch.randint(0, 2, (12, 1), generator=generator).float()
    yield "all equal", torch.full((12, 1), 0.1)
    yield "large and close", 1e4 + torch.rand(12, 1, generator=generator)
    yield "a tenth, but for one", torch.full((12, 1), 0.1).index_fill(0, torch.tensor([5]), 0.1000001)
    yield "several", torch.rand(12, 3, generator=generator) * torch.tensor([1.0, 100.0, 0.01])
    yield "not scored", torch.rand(12, 2, generator=generator).index_fill(0, torch.tensor([1, 6]), torch.nan)


def as_trl(per_function: torch.Tensor, scale: str, together: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and advantages in float32, in TRL's order of operations, written once more."""

    def deviation(values: torch.Tensor, dim: int) -> torch.Tensor:
        mean = torch.nanmean(values, dim=dim, keepdim=True)
        known = (~values.isnan()).sum(dim=dim, keepdim=True)
        return (torch.nansum((values - mean) ** 2, dim=dim, keepdim=True) / (known - 1)).sqrt()

    unscored = per_function.isnan().all(dim=1)
    rewards = per_function.nansum(dim=1).masked_fill(unscored, torch.nan)
    if together == "normalize_then_sum":
        grouped = per_function.view(-1, 4, per_function.shape[1])
        normal = (grouped - torch.nanmean(grouped, dim=1, keepdim=True)) / (deviation(grouped, 1) + 1e-4)
        sums = normal.view(len(rewards), -1).nansum(dim=1).masked_fill(unscored, torch.nan)
        advantages = (sums - torch.nanmean(sums)) / (deviation(sums, 0) + 1e-4)
        return rewards, advantages.nan_to_num(nan=0.0)
    groups = rewards.view(-1, 4)
    advantages = groups - torch.nanmean(groups, dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (deviation(groups, 1) + 1e-4)
    if scale == "batch":
        advantages = advantages / (deviation(rewards, 0) + 1e-4)
    return rewards, advantages.flatten().nan_to_num(nan=0.0)


@pytest.mark.parametrize(("kind", "per_function"), list(rewards()), ids=[kind for kind, _ in rewards()])
@pytest.mark.parametrize(
    ("scale", "together"),
    [*((scale, "sum_then_normalize") for scale in ("group", "none", "batch")), ("group", "normalize_then_sum")],
)
def test_rounding_is_no_departure_and_a_twentieth_is(
    trainer: Callable[..., Any], kind: str, per_function: torch.Tensor, scale: str, together: str
) -> None:
    if lacks("multi_objective_aggregation") and together != "sum_then_normalize":
        pytest.skip("this TRL only sums rewards before it normalises")
    spec = wrap(trainer(**RUN, scale_rewards=scale), mode="observe").batchbridge.request.spec
    weights = torch.ones(per_function.shape[1])
    stand_in = SimpleNamespace(multi_objective_aggregation=together, reward_weights=weights)
    held = TrlAdvantages(stand_in, spec.advantage, 4, ())
    summed, given = as_trl(per_function, scale, together)
    assert held.objection(given, 0, per_function, summed) is None
    assert held.objection(given[4:8], 4, per_function, summed) is None, "a rank's part"
    if kind not in ("all equal", "large and close", "a tenth, but for one"):
        assert held.objection(1.05 * given, 0, per_function, summed) is not None
        assert held.objection(given.roll(1), 0, per_function, summed) is not None

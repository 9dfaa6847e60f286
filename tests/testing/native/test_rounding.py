"""The allowance of each token's gradient for rounding: sound losses of any order of operations are within it, near ones
and far ones, and what is beyond it is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer

from batchbridge.kit.measuring import Measured, Tap
from batchbridge.kit.objectives import Surrogate, policy_losses
from batchbridge.kit.rounding import TOLERANCE, Rows
from batchbridge.meaning.spec import Objective
from batchbridge_trl.watching import rows_of, surrogates

PPO = Objective(surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.28)
SETTINGS = SimpleNamespace(
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vespo_k_pos=2.0,
    vespo_k_neg=3.0,
    vespo_lambda_pos=3.0,
    vespo_lambda_neg=2.0,
)
OWN = surrogates(SimpleNamespace(args=SETTINGS))
OBJECTIVES: dict[str, tuple[Objective, Surrogate | None]] = {
    "ppo": (PPO, None),
    "gspo": (dataclasses.replace(PPO, surrogate="gspo", ratio_level="sequence"), None),
    "cispo": (dataclasses.replace(PPO, surrogate="cispo", clip_low=None, clip_high=4.0), None),
    "sapo": (dataclasses.replace(PPO, surrogate="sapo", clip_low=None, clip_high=None), OWN["sapo"]),
    "vespo": (dataclasses.replace(PPO, surrogate="vespo", clip_low=None, clip_high=None), OWN["vespo"]),
}
WEIGHTS = (1 / 189, 1 / 40, 1 / 7)


def rows(seed: int, tokens: int, far: float, kind: torch.dtype = torch.float32) -> tuple[torch.Tensor, Rows]:
    """Log-probabilities of three completions whose ratios are about exp(far)."""
    drawn = torch.Generator().manual_seed(seed)
    new = -3 * torch.rand((len(WEIGHTS), tokens), generator=drawn)
    old = new - far * torch.randn(new.shape, generator=drawn)
    mask = (torch.rand(new.shape, generator=drawn) < 0.9).long().index_fill(1, torch.tensor([0]), 1)
    advantages = torch.tensor([[0.9], [-1.3], [0.2]])
    return new.to(kind), Rows(mask=mask, advantages=advantages.to(kind), old=old.to(kind))


def measured(
    name: str,
    new: torch.Tensor,
    planned: Rows,
    *,
    weights: tuple[float, ...] = WEIGHTS,
    order: torch.Tensor | None = None,
    beside: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[Measured]:
    """What a tap sees of a loss that takes tokens in another order, in the type of its log-probabilities."""
    objective, surrogate = OBJECTIVES[name]
    tap = Tap(objective, surrogate=surrogate)
    leaf = tap.leaf(new, planned)
    order = torch.arange(new.shape[1]) if order is None else order
    assert planned.old is not None
    turned = leaf[:, order], planned.old[:, order], planned.mask[:, order].to(new.dtype)
    each = policy_losses(objective, *turned, planned.advantages, surrogate)
    loss = (each * turned[2] * torch.tensor(weights, dtype=new.dtype)[:, None]).sum()
    (loss if beside is None else loss + beside(leaf)).backward()
    (found,) = tap.take()
    return found


def off(found: list[Measured], weights: tuple[float, ...] = WEIGHTS) -> list[str]:
    """What would stop a run."""
    said = [
        f"row {place} departs by {row.departure}" for place, row in enumerate(found) if row.departure > row.tolerance
    ]
    for place, (row, weight) in enumerate(zip(found, weights, strict=True)):
        if row.weight is not None and abs(row.weight / weight - 1) > row.tolerance:
            said.append(f"row {place} weighs {row.weight / weight} times, of {row.tolerance}")
    return said


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_sound_loss_never_departs_however_far_its_ratios_are(name: str, kind: torch.dtype) -> None:
    for seed in range(60):
        tokens, far = (3, 12, 400)[seed % 3], (0.02, 0.3, 1.0, 4.0)[seed % 4]
        new, planned = rows(seed, tokens, far, kind)
        order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
        assert not off(measured(name, new, planned, order=order)), (seed, tokens, far)


def test_one_bar_for_all_tokens_would_stop_a_sound_run_of_vespo() -> None:
    """Sums of log ratios in another order: 400 tokens, ratios of the sequence of some hundredths to some tens."""
    beyond = 0.0
    for seed in range(40):
        new, planned = rows(seed, 400, 0.08)
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        for row, weight in zip(measured("vespo", new, planned, order=order), WEIGHTS, strict=True):
            if row.weight is not None:
                beyond = max(beyond, abs(row.weight / weight - 1))
    assert beyond > TOLERANCE[torch.float32]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_near_completion_has_the_plain_bar_and_a_thousandth_is_found(name: str) -> None:
    new, planned = rows(1, 12, 0.02)
    assert [row.tolerance for row in measured(name, new, planned)] == [TOLERANCE[torch.float32]] * 3
    for place in range(3):
        weights = tuple(weight * (1.001 if other == place else 1) for other, weight in enumerate(WEIGHTS))
        assert [text.split()[1] for text in off(measured(name, new, planned, weights=weights))] == [str(place)]


def test_a_far_completion_is_found_where_it_is_off_by_more_than_its_allowance() -> None:
    """One token of log ratio 2: VESPO's factor has an exponent of 3 + 4 - 22."""
    new, planned = rows(2, 12, 0.0)
    assert planned.old is not None
    planned.old[0, 3] -= 2
    planned.mask[0, 3] = 1
    plain = measured("vespo", new, planned)
    assert not off(plain)
    wide = plain[0].tolerance
    assert TOLERANCE[torch.float32] < wide < 1e-4
    assert plain[1].tolerance == TOLERANCE[torch.float32]
    weights = (WEIGHTS[0] * (1 + 2 * wide), *WEIGHTS[1:])
    assert [text.split()[1] for text in off(measured("vespo", new, planned, weights=weights))] == ["0"]


@pytest.mark.parametrize("corrected", [False, True], ids=["", "towards a sampler"])
def test_the_factor_of_vespo_is_that_of_trl_for_tokens_beyond_its_bound_too(corrected: bool) -> None:
    """A token whose log ratio is 27, which TRL takes as 20, beside others that bring the sequence back."""
    new, planned = rows(6, 6, 0.0)
    assert planned.old is not None
    planned.old[0, :2] = new[0, :2] - torch.tensor([27.0, -19.5])
    planned.mask[0] = 1
    advantages = planned.advantages[:, 0]
    inputs = {"completion_mask": planned.mask, "advantages": advantages, "old_per_token_logps": planned.old}
    ratios = None
    if corrected:
        ratios = inputs["importance_sampling_ratio"] = torch.ones_like(new)
        ratios[1:, 0] = torch.tensor([0.8, 1.4])
    trainer = SimpleNamespace(loss_type="vespo", use_vllm=corrected, beta=0.0, args=SETTINGS)
    theirs = GRPOTrainer.get_gamma_weights(planned.advantages, new - planned.old, planned.mask, ratios)
    expected = rows_of(trainer, inputs)
    assert expected.old is not None
    assert expected.multiplier is None
    ours = OWN["vespo"](new, expected.old, expected.advantages, expected.mask) / (-planned.advantages * new)
    assert torch.allclose(ours, theirs.expand_as(ours), rtol=1e-5)
    assert 0.1 < float(theirs[0]) < 3, "the bound decides the first"


@pytest.mark.parametrize("alone", [False, True])
def test_a_gradient_below_the_smallest_normal_number_shows_no_weight(alone: bool) -> None:
    """A sequence whose ratio is 33: VESPO's factor is 5e-41, and float32 has three digits of it."""
    new, planned = rows(3, 12, 0.0)
    assert planned.old is not None
    planned.old[0, 5] -= 3.51
    planned.mask[0, 5] = 1
    weights = WEIGHTS
    if alone:
        new, weights = new[:1], WEIGHTS[:1]
        planned = Rows(mask=planned.mask[:1], advantages=planned.advantages[:1], old=planned.old[:1])
    found = measured("vespo", new, planned, weights=weights)
    assert found[0].weight is None
    assert not off(found, weights)
    if not alone:
        assert [row.weight is None for row in found] == [True, False, False]
        spoilt = measured("vespo", new, planned, beside=lambda leaf: 1e-4 * leaf[0, 5])
        assert [text.split()[1] for text in off(spoilt)] == ["0"], "what should be nothing is held to be"


def test_a_gate_that_is_nearly_one_hides_no_change_of_a_token_beside_it() -> None:
    """SAPO's gate of a ratio of 12 is 1 but for 2e-5, of which float32 has three digits; its neighbours are near."""
    new, planned = rows(4, 12, 0.01)
    assert planned.old is not None
    planned.old[0, 5] -= 2.5
    planned.mask[0] = 1
    assert not off(measured("sapo", new, planned, order=torch.arange(12).flip(0)))
    changed = measured("sapo", new, planned, beside=lambda leaf: 1e-6 * leaf[0, 2])
    assert [text.split()[1] for text in off(changed)][:1] == ["0"]


def test_a_half_types_gate_that_rounds_to_one_is_allowed_for() -> None:
    """In bfloat16 the gate of a ratio of 6 is 1 but for 0.0067, of which there are one or two digits."""
    new, planned = rows(5, 6, 0.0, torch.bfloat16)
    planned = dataclasses.replace(planned, old=new - 1.8, mask=torch.ones_like(planned.mask))
    assert not off(measured("sapo", new, planned))

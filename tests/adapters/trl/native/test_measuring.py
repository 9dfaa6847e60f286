"""`batchbridge.kit.measuring` on losses that are written down here: what it reads off, and what it must not
overlook."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from batchbridge.errors import CannotAttach, LostGradient
from batchbridge.kit.measuring import Rows, Tap, Witness
from batchbridge.kit.objectives import kl_losses, policy_losses
from batchbridge.kit.probing import CUT, batches, normaliser, verdict
from batchbridge.meaning.spec import LossTerm, Objective
from batchbridge.meaning.weights import Normaliser

PPO = Objective(surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.28, dual_clip=3.0)
KL = dataclasses.replace(PPO, kl_placement="loss", kl_coefficient=0.1, kl_estimator="k3")
LENGTHS = (1, 3, 0, 5)


def rows(objective: Objective, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[torch.Tensor, Rows]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    mask = torch.tensor([[1] * count + [0] * (shape[1] - count) for count in LENGTHS])
    logprobs = -torch.rand(shape, generator=generator, dtype=torch.float64)
    old, reference = (logprobs + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    advantages = torch.tensor([[0.5], [-1.25], [0.0], [2.0]], dtype=torch.float64)
    penalised = objective.kl_placement == "loss"
    planned = Rows(
        mask=mask,
        advantages=advantages.to(dtype),
        old=old.to(dtype),
        reference=reference.to(dtype) if penalised else None,
    )
    return logprobs.to(dtype), planned


def loss_of(objective: Objective, leaf: torch.Tensor, planned: Rows, weights: torch.Tensor) -> torch.Tensor:
    assert planned.old is not None
    each = policy_losses(objective, leaf, planned.old, planned.mask, planned.advantages)
    penalty = kl_losses(objective, leaf, planned.old, planned.reference, planned.mask)
    each = each if penalty is None else each + penalty
    return (each * planned.mask * weights[:, None].to(each.dtype)).sum()


SURROGATES = [
    PPO,
    KL,
    dataclasses.replace(PPO, surrogate="gspo", ratio_level="sequence", dual_clip=None),
    dataclasses.replace(PPO, surrogate="cispo", dual_clip=None),
    *(dataclasses.replace(KL, kl_estimator=name) for name in ("k1", "k2", "k1_times_ratio", "k3_times_ratio", "abs")),
]


@pytest.mark.parametrize(
    "objective", SURROGATES, ids=lambda objective: f"{objective.surrogate}-{objective.kl_estimator}"
)
def test_every_rows_own_weight_is_read_off(objective: Objective) -> None:
    weights = torch.tensor([0.25, 0.01, 7.0, 0.125])
    logprobs, planned = rows(objective)
    tap = Tap(objective)
    loss_of(objective, tap.leaf(logprobs, planned), planned, weights).backward()
    (found,) = tap.take()
    for row, tokens, weight in zip(found, LENGTHS, weights.tolist(), strict=True):
        assert row.departure <= row.tolerance
        if tokens:
            assert row.weight == pytest.approx(weight, rel=row.tolerance)
        else:
            assert row.weight is None


def test_a_row_of_no_advantage_and_no_kl_term_shows_no_weight() -> None:
    logprobs, planned = rows(PPO)
    planned.advantages[1] = 0
    tap = Tap(PPO)
    loss_of(PPO, tap.leaf(logprobs, planned), planned, torch.ones(4)).backward()
    (found,) = tap.take()
    assert [row.weight is None for row in found] == [False, True, True, False]
    assert max(row.departure for row in found) == 0


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_a_gradient_where_nothing_is_trained_is_noticed_in_every_row(row: int) -> None:
    logprobs, planned = rows(PPO)
    planned.advantages[1] = 0
    tap = Tap(PPO)
    leaf = tap.leaf(logprobs, planned)
    (loss_of(PPO, leaf, planned, torch.ones(4)) + 1e-3 * leaf[row, -1]).backward()
    (found,) = tap.take()
    assert [seen.departure > seen.tolerance for seen in found] == [other == row for other in range(len(LENGTHS))]


@pytest.mark.parametrize(("dtype", "seen"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_rounding_is_allowed_for_and_what_is_larger_is_not(dtype: torch.dtype, seen: float) -> None:
    for seed in range(20):
        logprobs, planned = rows(KL, dtype=dtype, seed=seed)
        for change, noticed in ((0.0, False), (seen, True)):
            tap = Tap(KL)
            leaf = tap.leaf(logprobs, planned)
            loss = loss_of(KL, leaf, planned, torch.full((4,), 1 / 9))
            (loss - change * planned.advantages[3, 0] * leaf[3, 0] / 9).backward()
            (found,) = tap.take()
            assert any(row.departure > row.tolerance for row in found) is noticed, (seed, change, found)


def test_a_term_that_the_objective_lacks_is_a_departure() -> None:
    logprobs, planned = rows(KL)
    tap = Tap(KL)
    loss_of(PPO, tap.leaf(logprobs, planned), planned, torch.ones(4)).backward()  # the KL term is left out
    (found,) = tap.take()
    assert max(row.departure for row in found) > 1e-3


def value_of(tap: Tap, weights: torch.Tensor) -> tuple[float, float, float]:
    """The value that a tap saw of its one loss, what its rows' losses give by these weights, and what rounding explains
    of the distance."""
    (found,), (value,) = tap.take(), tap.values
    assert value is not None
    expected = sum(float(weight) * row.loss for weight, row in zip(weights, found, strict=True))
    size = sum(float(weight) * row.loss_size for weight, row in zip(weights, found, strict=True))
    return value, expected, max(row.tolerance for row in found) * size


@pytest.mark.parametrize(
    "objective", SURROGATES, ids=lambda objective: f"{objective.surrogate}-{objective.kl_estimator}"
)
def test_the_value_of_a_loss_is_that_of_its_tokens_whatever_divides_it_later(objective: Objective) -> None:
    weights = torch.tensor([0.25, 0.01, 7.0, 0.125])
    for seed in range(10):
        logprobs, planned = rows(objective, seed=seed)
        for more, sound in ((0.0, True), (0.01, False)):
            tap = Tap(objective)
            loss = loss_of(objective, tap.leaf(logprobs, planned), planned, weights) + more
            tap.returned(loss)
            (loss / 4 * 2048).backward()
            value, expected, room = value_of(tap, weights * 512)
            assert (abs(value - expected) <= room) is sound, (seed, more, value, expected, room)


def test_a_factor_on_the_value_alone_is_seen_and_terms_of_a_name_are_left_out() -> None:
    logprobs, planned = rows(KL)
    weights = torch.full((4,), 1 / 9)
    for factor, bonus, sound in ((1.0, 0.0, True), (1.001, 0.0, False), (1.0, 0.25, True)):
        tap = Tap(KL)
        loss = loss_of(KL, tap.leaf(logprobs, planned), planned, weights)
        loss = loss + (factor - 1) * loss.detach() + bonus
        tap.returned(loss, beside=torch.tensor(bonus))
        loss.backward()
        value, expected, room = value_of(tap, weights)
        assert (abs(value - expected) <= room) is sound


def test_a_loss_that_is_weighed_below_it_has_the_value_so_weighed() -> None:
    logprobs, planned = rows(PPO)
    tap, weights = Tap(PPO), torch.full((4,), 1 / 9)
    made = logprobs.clone().requires_grad_()
    made.register_hook(lambda gradient: gradient * 3)
    tap.watch(made, planned)
    loss = loss_of(PPO, made, planned, weights)
    tap.returned(loss, times=3.0)
    loss.backward()
    value, expected, room = value_of(tap, weights * 3)
    assert abs(value - expected) <= room


def test_a_straight_through_estimate_has_the_value_that_it_says() -> None:
    through = dataclasses.replace(KL, kl_estimator="k3+")
    logprobs, planned = rows(KL)
    assert planned.reference is not None
    weights = torch.full((4,), 1 / 9)
    for valued, sound in ((KL, True), (None, False)):
        tap = Tap(through, valued=valued)
        leaf = tap.leaf(logprobs, planned)
        loss = loss_of(through, leaf, planned, weights)
        loss = loss - loss.detach() + loss_of(KL, leaf.detach(), planned, weights)
        tap.returned(loss)
        loss.backward()
        value, expected, room = value_of(tap, weights)
        assert (abs(value - expected) <= room) is sound


def test_what_is_differentiated_where_nobody_can_reach_it_is_the_loss() -> None:
    logprobs, planned = rows(PPO)
    tap, weights = Tap(PPO), torch.full((4,), 1 / 9)
    native = torch.autograd.backward
    with tap.differentiating():
        (loss_of(PPO, tap.leaf(logprobs, planned), planned, weights) * 7).backward()
    assert torch.autograd.backward is native
    value, expected, room = value_of(tap, weights * 7)
    assert abs(value - expected) <= room


def test_nobody_knows_the_loss_of_a_token_that_is_far_off_and_of_a_loss_that_nobody_said() -> None:
    logprobs, planned = rows(PPO)
    assert planned.old is not None
    planned.old[3, 0] = logprobs[3, 0] - 25
    tap = Tap(PPO)
    loss_of(PPO, tap.leaf(logprobs, planned), planned, torch.ones(4)).backward()
    (found,) = tap.take()
    assert [math.isinf(row.loss_size) for row in found] == [False, False, False, True]
    assert tap.values == [None]


def test_a_loss_that_was_not_the_one_that_was_differentiated_is_no_number() -> None:
    logprobs, planned = rows(PPO)
    tap = Tap(PPO)
    leaf = tap.leaf(logprobs, planned)
    tap.returned(loss_of(PPO, leaf, planned, torch.ones(4)))
    loss_of(PPO, leaf, planned, torch.ones(4)).backward()
    tap.take()
    (value,) = tap.values
    assert value is not None
    assert math.isnan(value)


def test_a_micro_batch_without_backward_is_lost() -> None:
    logprobs, planned = rows(PPO)
    tap = Tap(PPO)
    loss_of(PPO, tap.leaf(logprobs, planned), planned, torch.ones(4)).backward()
    tap.leaf(logprobs, planned)
    with pytest.raises(LostGradient, match="micro-batch 1 of 2"):
        tap.take()


def test_the_witness_sees_what_the_optimizer_finds() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    witness = Witness(weight)

    def step(*scales: float) -> None:
        weight.grad = None
        for scale in scales:
            (weight * torch.tensor([scale, 1.0, -scale])).sum().backward()

    step(1.0, 2.0)
    assert witness.compare(weight.grad).objection(1.0) is None
    step(1.0, 2.0)
    weight.grad.mul_(0.5)
    assert witness.compare(weight.grad).objection(0.5) is None
    step(1.0, 2.0)
    assert "2 times" in str(witness.compare(weight.grad.mul_(2)).objection(1.0))
    step(1.0)
    weight.grad = None
    (weight * 3).sum().backward()  # the first gradient is lost
    assert "was lost" in str(witness.compare(weight.grad).objection(1.0))
    step()
    assert witness.compare(None).objection(1.0) is None
    assert "backward gave none" in str(witness.compare(torch.ones(3)).objection(1.0))
    witness.remove()
    step(1.0)
    assert "backward gave none" in str(witness.compare(weight.grad).objection(1.0))


@pytest.mark.parametrize(
    ("kept", "shares"),
    [((1, 1, 1), [1, 1, 1]), ((0, 0, 1), [0, 0, 1]), ((1, 0.5, 1), [1, 0.5, 1]), ((2, 2, 2), [2, 2, 2])],
    ids=["all", "the last one", "one halved", "all doubled"],
)
def test_a_witness_that_keeps_passes_apart_tells_what_was_lost(kept: tuple[float, ...], shares: list[float]) -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    witness = Witness(weight, lambda total: total.mul_(2), apart=True)  # another rank, that does the same
    passes = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    for gradient in passes:
        (weight * gradient).sum().backward()
    found = witness.compare(torch.tensor(kept, dtype=torch.float32) @ passes)
    assert found.applied(0.5, 3) == pytest.approx(shares, rel=found.tolerance)
    assert (found.objection(0.5) is None) is (kept == (1, 1, 1))


def test_what_was_lost_is_not_told_where_a_witness_has_fewer_values_than_there_were_passes() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    witness = Witness(weight, apart=True)
    for scale in (1.0, 2.0, 4.0):
        (weight * torch.tensor([scale, 1.0])).sum().backward()
    found = witness.compare(torch.tensor([4.0, 1.0]))
    assert "was lost" in str(found.objection(1.0))
    assert all(math.isnan(share) for share in found.applied(1.0, 3))


def test_half_precision_of_the_watched_weight_is_allowed_for_whatever_the_optimizer_keeps() -> None:
    for kind, allowed in ((torch.bfloat16, True), (torch.float32, False)):
        weight = torch.nn.Parameter(torch.ones(4, dtype=kind))
        witness = Witness(weight)
        (weight * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=kind)).sum().backward()
        rounded = torch.tensor([1.0, 2.0, 3.0, 4.01])
        assert (witness.compare(rounded).objection(1.0) is None) is allowed


def test_the_smallest_weight_that_is_trained_is_the_witness() -> None:
    named = {
        "a.weight": (8, 8),
        "norm.weight": (8,),
        "norm.bias": (8,),
        "lora_A.weight": (2, 8),
        "lora_B.weight": (8, 4),
    }
    parameters = [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in named.items()]
    assert Witness.choose(parameters)[0] == "norm.weight"
    parameters[1][1].requires_grad = False
    assert Witness.choose(parameters)[0] == "lora_B.weight"
    assert Witness.choose(parameters[2:4])[0] == "norm.bias", "better one that may have no gradient than none"
    assert Witness.choose([]) is None
    shards = [("a.weight", torch.nn.Parameter(torch.ones(0))), ("b.weight", torch.nn.Parameter(torch.ones(0)))]
    assert Witness.choose(shards) is None
    assert Witness.choose(shards, size=lambda one: 3 if one is shards[1][1] else 5)[0] == "b.weight"


TERMS = [LossTerm(aggregation=name) for name in ("token_mean", "sequence_mean", "sequence_sum", "token_sum")]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.aggregation)
@pytest.mark.parametrize("objective", [PPO, KL, SURROGATES[2]], ids=["policy", "kl", "sequences"])
def test_the_probe_accepts_an_aggregation_and_no_other(term: LossTerm, objective: Objective) -> None:
    def probed(applied: LossTerm) -> list[Tap]:
        taps, step = [], normaliser(applied)
        for off_policy in (False, True):
            tap = Tap(objective)
            for made in batches(objective, off_policy=off_policy):
                leaf = tap.leaf(made.logprobs, made.rows)
                lengths = torch.tensor(made.lengths).clamp(min=1)
                each = torch.full((len(lengths),), step.step_factor())
                each = each / lengths if applied.aggregation == "sequence_mean" else each
                planned = dataclasses.replace(made.rows, old=leaf.detach() if made.old is None else made.old)
                loss_of(objective, leaf, planned, each).backward()
            taps.append(tap)
        return taps

    for other in TERMS:
        if other == term:
            verdict(probed(other), term, remedy="")
        else:
            with pytest.raises(Exception, match="weight_probe"):
                verdict(probed(other), term, remedy="")


@pytest.mark.parametrize(
    "applied",
    [
        dataclasses.replace(KL, kl_coefficient=0.2),
        dataclasses.replace(KL, kl_coefficient=0.0),
        dataclasses.replace(KL, kl_estimator="k1"),
    ],
    ids=["twice the KL term", "none", "another estimator"],
)
def test_the_probe_refuses_a_loss_whose_kl_term_alone_is_another(applied: Objective) -> None:
    def taps(of: Objective) -> list[Tap]:
        found = []
        for off_policy in (False, True):
            tap = Tap(KL)
            for made in batches(KL, off_policy=off_policy):
                leaf = tap.leaf(made.logprobs, made.rows)
                planned = dataclasses.replace(made.rows, old=leaf.detach() if made.old is None else made.old)
                factor = torch.full((len(made.lengths),), normaliser(TERMS[0]).step_factor())
                loss_of(of, leaf, planned, factor).backward()
            found.append(tap)
        return found

    verdict(taps(KL), TERMS[0], remedy="")
    with pytest.raises(CannotAttach, match="weight_probe"):
        verdict(taps(applied), TERMS[0], remedy="")


def test_the_probe_refuses_a_loss_that_leaves_a_completion_out() -> None:
    taps = []
    for off_policy in (False, True):
        tap = Tap(PPO)
        for made in batches(PPO, off_policy=off_policy):
            made.advantages[-1] = 0  # nothing is expected of it, and nothing comes
            leaf = tap.leaf(made.logprobs, made.rows)
            planned = dataclasses.replace(made.rows, old=leaf.detach() if made.old is None else made.old)
            loss_of(PPO, leaf, planned, torch.full((len(made.lengths),), normaliser(TERMS[0]).step_factor())).backward()
        taps.append(tap)
    with pytest.raises(CannotAttach, match="gives a completion of 2 tokens no gradient"):
        verdict(taps, TERMS[0], remedy="")


def test_the_probe_is_ragged_and_has_a_filler() -> None:
    assert isinstance(normaliser(TERMS[0]), Normaliser)
    assert len({len(part) for part in CUT} | {sum(part) for part in CUT}) > 2
    assert sum(tokens == 0 for part in CUT for tokens in part) == 1

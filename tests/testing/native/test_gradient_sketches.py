"""Every parameter's gradient against what the optimizer finds: what is changed on the way shows, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from batchbridge.kit.gradient_origins import PIECES, TURNS, Part
from batchbridge.kit.gradient_sketches import NOISE, ChangedGradient, Sketches, foreign_hooks, sketches_of, updated_by


class Small(torch.nn.Module):
    """A model with a table, a matrix that is used twice, a vector, a filter and a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(12, 8)
        self.twice = torch.nn.Linear(8, 8)
        self.filter = torch.nn.Conv1d(8, 8, 3, padding=1)
        self.unused = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.twice(self.frozen(self.twice(self.table(ids)).tanh()))
        return self.filter(hidden.transpose(1, 2)).square().mean()


def small(kind: torch.dtype = torch.float32) -> Small:
    torch.manual_seed(3)
    return Small().to(kind)


def passes(model: Small, count: int = 4) -> None:
    for seed in range(count):
        drawn = torch.randint(12, (3, 5), generator=torch.Generator().manual_seed(seed))
        (model(drawn) * (-1) ** seed).backward()


def of(model: torch.nn.Module) -> Sketches:
    made = sketches_of(model)
    assert made is not None
    return made


def scaled(weight: torch.Tensor) -> None:
    weight.mul_(1.05)


def tripled(weight: torch.Tensor) -> None:
    weight.mul_(3)


def zeroed(weight: torch.Tensor) -> None:
    weight.zero_()


def rows_exchanged(weight: torch.Tensor) -> None:
    weight[[0, 1]] = weight[[1, 0]]


def elements_exchanged(weight: torch.Tensor) -> None:
    weight[0, [0, 1]] = weight[0, [1, 0]]


def transposed(weight: torch.Tensor) -> None:
    weight.copy_(weight.T.clone())


def with_noise(weight: torch.Tensor) -> None:
    weight.add_(0.1 * weight.abs().mean() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_a_step_that_nobody_touched_is_sound(kind: torch.dtype) -> None:
    model = small(kind)
    sketches = of(model)
    for _ in range(2):
        model.zero_grad()
        passes(model)
        assert sketches.compare(1.0) == []
        assert sketches.ratio == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        *((change, torch.float32) for change in (scaled, tripled, zeroed, rows_exchanged, transposed, with_noise)),
        *((change, torch.bfloat16) for change in (scaled, tripled, zeroed, rows_exchanged, transposed)),
        (elements_exchanged, torch.float32),  # in bf16 rounding of four passes is as large
    ],
)
def test_one_changed_matrix_is_told_by_its_name(change: Callable[[torch.Tensor], None], kind: torch.dtype) -> None:
    model = small(kind)
    sketches = of(model)
    passes(model, 4 if kind == torch.float32 else 1)  # which cancel: bf16 rounds at the size of each
    assert model.twice.weight.grad is not None
    change(model.twice.weight.grad)
    (said,) = sketches.compare(1.0)
    assert isinstance(said, ChangedGradient)
    assert said.aspect == "gradient"
    assert "of 1 of 7 parameters" in said
    assert "twice.weight" in said
    assert 'allow=("gradient_transform",)' in said


def test_the_factor_of_the_step_is_no_change_and_another_one_is() -> None:
    model = small()
    sketches = of(model)
    passes(model)
    for one in model.parameters():
        if one.grad is not None:
            one.grad.mul_(0.25)
    assert sketches.compare(0.25) == []
    model.zero_grad()
    passes(model)
    (said,) = sketches.compare(0.5)
    assert "(2 times)" in said
    assert sketches.ratio == pytest.approx(2.0)


def test_a_lost_micro_batch_is_told() -> None:
    model = small()
    sketches = of(model)
    passes(model, 1)
    model.zero_grad()
    passes(model, 2)
    assert "another direction" in sketches.compare(1.0)[0]


@pytest.mark.parametrize("late", [False, True])
def test_a_users_hook_is_a_change_and_named_whenever_it_was_registered(late: bool) -> None:
    model = small()

    def smaller(gradient: torch.Tensor) -> torch.Tensor:
        return 0.1 * gradient

    def registered() -> None:
        for one in model.parameters():
            if one.requires_grad:
                one.register_hook(smaller)

    if not late:
        registered()
    sketches = of(model)
    if late:
        registered()
    passes(model)
    (said,) = sketches.compare(1.0)
    assert "(0.1 times)" in said
    assert "smaller" in said
    sketches.remove()


def test_a_hook_that_only_looks_changes_nothing() -> None:
    model = small()
    seen: list[torch.Tensor] = []
    model.twice.weight.register_hook(seen.append)
    sketches = of(model)
    passes(model)
    assert sketches.compare(1.0) == []
    assert len(seen) == 4


def test_a_hook_of_the_framework_is_not_foreign() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_hook(torch.nn.functional.relu)
    assert list(foreign_hooks(weight)) == []
    weight.register_hook(scaled)
    assert [name.rpartition(".")[2] for name in foreign_hooks(weight)] == ["scaled"]


def test_what_is_hooked_is_taken_off() -> None:
    model = small()
    of(model).remove()
    assert not any(one._backward_hooks for one in model.parameters())  # type: ignore[attr-defined]


def test_a_parameter_that_is_frozen_or_trained_later_is_followed() -> None:
    model = small()
    sketches = of(model)
    model.frozen.requires_grad_(True)
    passes(model)
    assert sketches.compare(1.0) == []  # it was not looked at yet
    assert "frozen.weight" in sketches.names
    model.zero_grad()
    passes(model)
    assert model.frozen.weight.grad is not None
    model.frozen.weight.grad.mul_(2)
    assert "frozen.weight (2 times)" in sketches.compare(1.0)[0]


def test_a_parameter_that_the_optimizer_does_not_have_is_left_out() -> None:
    model = small()
    sketches, optimizer = of(model), torch.optim.SGD(model.twice.parameters(), lr=0.1)
    passes(model)
    assert model.table.weight.grad is not None
    model.table.weight.grad.mul_(2)  # it grows from step to step: nobody sets it to zero
    assert sketches.compare(1.0, updated_by(optimizer)) == []


def test_a_gradient_that_is_not_finite_is_the_losss_own() -> None:
    model = small()
    sketches = of(model)
    (model(torch.zeros(1, 2, dtype=torch.long)) * float("nan")).backward()
    assert sketches.compare(1.0) == []
    assert not sketches.finite
    model.zero_grad()
    passes(model)
    assert sketches.compare(1.0) == []
    assert sketches.finite


def test_a_hook_that_makes_a_gradient_infinite_is_a_change() -> None:
    model = small()
    sketches = of(model)
    model.twice.weight.register_hook(lambda gradient: gradient / 0)
    passes(model)
    assert "twice.weight (not finite)" in sketches.compare(1.0)[0]


def test_recomputed_activations_are_no_second_gradient() -> None:
    model = small()
    sketches = of(model)
    for reentrant in (True, False):
        hidden = model.table(torch.zeros(1, 3, dtype=torch.long))
        made: Any = torch.utils.checkpoint.checkpoint(model.twice, hidden, use_reentrant=reentrant)
        made.sum().backward()
    assert sketches.compare(1.0) == []


class Large(torch.nn.Module):
    """A matrix of which a step looks at each seventh piece, with turns that have one less; and a long vector."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(515, 16, generator=torch.Generator().manual_seed(0)))
        self.vector = torch.nn.Parameter(torch.ones(5001))


def turns(change: Callable[[torch.Tensor], None], name: str = "matrix") -> list[int]:
    """The steps of seven in which a change of each one is told."""
    model = Large()
    sketches, told = of(model), []
    for step in range(TURNS):
        model.zero_grad()
        for part in (1.0, 2.0):
            (part * (model.matrix.square().sum() + model.vector.square().sum())).backward()
        change(getattr(model, name).grad)
        if said := sketches.compare(1.0):
            assert f"of 1 of 2 parameters are not what the micro-batches gave: {name} " in said[0]
            told.append(step)
    return told


@pytest.mark.parametrize("name", ["matrix", "vector"])
def test_a_change_of_a_whole_large_parameter_is_told_in_every_step(name: str) -> None:
    assert turns(scaled, name) == list(range(TURNS))


@pytest.mark.parametrize("row", [0, 63, 514])
def test_a_change_of_one_row_of_a_large_parameter_is_told_in_every_step(row: int) -> None:
    """Of the eight pieces of a row, each step looks at one or two."""
    assert turns(lambda weight: scaled(weight[row])) == list(range(TURNS))


@pytest.mark.parametrize(("name", "row", "piece"), [("matrix", 0, 3), ("matrix", 514, 7), ("vector", 4999, 0)])
def test_a_change_of_one_piece_of_a_large_parameter_is_told_in_one_step_of_seven(
    name: str, row: int, piece: int
) -> None:
    def change(weight: torch.Tensor) -> None:
        scaled(weight[row, 2 * piece : 2 * piece + 2] if name == "matrix" else weight[row : row + 1])

    assert turns(change, name) == [(row * PIECES + piece if name == "matrix" else row) % TURNS]


def test_rows_that_are_multiples_of_one_another_are_no_change() -> None:
    """The gradient that one token gives. Of one number a row, all rows would be small together where the token's vector
    is across the signs, and the rounding of a second pass as large as a change."""
    noise = [noise_of_one_token(seed) for seed in range(200)]
    assert max(noise) < NOISE[torch.float32]


def noise_of_one_token(seed: int) -> float:
    """The noise of a step in which two passes give one matrix multiples of one row, across the signs as far as that
    goes: the smallest of many."""
    drawn = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.zeros(64, 32))
    model = torch.nn.ParameterDict({"weight": weight})
    sketches = of(model)
    (one,) = sketches._all
    signs = sketches._signs_of(one, weight)
    rows = torch.randn(256, 32, generator=drawn)
    across = rows[(rows.view(-1, 32 // len(signs), len(signs)) @ signs).square().sum(dim=-1).argmin()]
    for size in (1.0, 0.3):
        by = size * torch.randn(64, 1, generator=drawn)
        (weight * by * across).sum().backward()
    assert sketches.compare(1.0) == []
    return sketches.noise


def test_nothing_is_told_of_a_large_parameter_that_nobody_touched() -> None:
    assert turns(lambda _: None) == []


@pytest.mark.parametrize("turn", range(TURNS))
@pytest.mark.parametrize("cuts", [(0, 100, 515 * 16), (0, 1, 15, 17, 16 * 70 + 3, 515 * 16)])
def test_a_part_that_begins_anywhere_has_its_share_of_the_sketch(turn: int, cuts: tuple[int, ...]) -> None:
    model = Large()
    sketches = of(model)
    for _ in range(turn):
        sketches.compare(1.0)
    one = next(one for one in sketches._all if one.name == "matrix")
    values = torch.randn(515, 16, generator=torch.Generator().manual_seed(turn))
    whole, parts = torch.zeros(one.rows), torch.zeros(one.rows)
    sketches._sketch(one, Part(values), whole)
    for begin, end in itertools.pairwise(cuts):
        sketches._sketch(one, Part(values.flatten()[begin:end], begin), parts)
    torch.testing.assert_close(parts, whole)
    assert int((whole != 0).sum()) == len(range(turn, 515 * PIECES, TURNS))

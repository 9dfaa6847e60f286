"""`wrap(trainer, tokens_per_device=N)`: any token budget trains the same gradient, at the bar of every other split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from representative import cells

from batchbridge import wrap
from batchbridge.meaning.spec import MicroBatch
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has_loss
from batchbridge_trl.testing import Captured, gradient_errors

BUDGETS = {"one completion each": 1, "below the longest": 8, "a few": 40, "the whole step": 100_000}
TWO_PASSES = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
}


def train(built: Any) -> Captured:
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    return captured


@contextmanager
def forward_shapes(model: Any) -> Iterator[list[tuple[bool, int, int]]]:
    """(with gradients, rows, width) of every forward pass of `model`."""
    shapes: list[tuple[bool, int, int]] = []

    def look(module: Any, arguments: Any, keywords: Any) -> None:
        ids = keywords.get("input_ids", arguments[0] if arguments else None)
        shapes.append((torch.is_grad_enabled(), *ids.shape))

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield shapes
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("loss_type", "name", "beta"),
    cells(filter(has_loss, ["bnpo", "dapo", "grpo", "luspo", "dr_grpo", "cispo"]), BUDGETS, [0.0, 0.1]),
)
def test_every_step_has_the_oracles_gradient(
    trainer: Callable[..., Any], loss_type: str, name: str, beta: float
) -> None:
    reference = tiny_policy(seed=1) if beta else None
    built = trainer(loss_type=loss_type, beta=beta, reference=reference, num_train_epochs=2, **TWO_PASSES)
    built = wrap(built, tokens_per_device=BUDGETS[name])
    captured = train(built)
    plan = built.batchbridge.plan
    assert len(captured.gradients) == plan.total_optimizer_steps
    for found in gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4):
        assert found.error <= found.bar, found
        assert captured.gradients[found.step].norm() > 1e-3


@pytest.mark.parametrize("budget", [24, 64])
def test_no_pass_reads_more_than_the_budget(trainer: Callable[..., Any], budget: int) -> None:
    reference = tiny_policy(seed=1)
    built = trainer(loss_type="bnpo", beta=0.1, reference=reference, num_train_epochs=1, **TWO_PASSES)
    built = wrap(built, tokens_per_device=budget)
    with forward_shapes(built.model) as shapes:
        train(built)
    for with_gradients in (True, False):
        seen = [(rows, width) for gradients, rows, width in shapes if gradients == with_gradients]
        assert seen, "training and scoring both run"
        assert all(rows * width <= budget or rows == 1 for rows, width in seen), seen
        assert any(rows > 1 for rows, _ in seen), "the budget holds several short completions"


@pytest.mark.parametrize("micro", [{"tokens_per_device": 64}, {}], ids=["both", "scoring alone"])
def test_a_specs_own_budgets_cut_training_and_scoring_each_by_its_own(
    trainer: Callable[..., Any], micro: dict[str, int]
) -> None:
    reference = tiny_policy(seed=1)
    built = trainer(loss_type="bnpo", beta=0.1, reference=reference, num_train_epochs=1, **TWO_PASSES)
    own = wrap(built, mode="observe").batchbridge.request.spec
    budgets = MicroBatch(forward_tokens_per_device=100, cap="soft", **micro)
    built = wrap(built, own.replace(micro_batch=budgets))
    with forward_shapes(built.model) as shapes:
        captured = train(built)
    scored = [rows * width for gradients, rows, width in shapes if not gradients and rows > 1]
    assert 64 < max(scored) <= 100
    trained = [(rows, width) for gradients, rows, width in shapes if gradients]
    if micro:
        assert all(rows * width <= 64 or rows == 1 for rows, width in trained)
    else:
        assert {rows for rows, _ in trained} <= {1, 2}, "the trainer's own micro-batches have two completions"
    plan = built.batchbridge.plan
    for found in gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4):
        assert found.error <= found.bar, found


def test_less_is_computed_than_natively(trainer: Callable[..., Any]) -> None:
    def tokens(budget: int | None) -> int:
        built = trainer(loss_type="bnpo", num_train_epochs=1, **TWO_PASSES)
        if budget is not None:
            built = wrap(built, tokens_per_device=budget)
        with forward_shapes(built.model) as shapes:
            train(built)
        return sum(rows * width for _, rows, width in shapes)

    assert tokens(64) < 0.9 * tokens(None)


def test_a_budget_is_of_the_enforced_run_only(trainer: Callable[..., Any]) -> None:
    for mode, budget in (("verify", 64), ("observe", 64), ("enforce", 0)):
        with pytest.raises(ValueError, match="tokens_per_device"):
            wrap(trainer(), mode=mode, tokens_per_device=budget)

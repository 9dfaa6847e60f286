"""L2: the raw gradient of each optimizer step of the real GRPOTrainer against the float64 oracle, one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from representative import WHOLE, cells

from batchbridge import unwrap, wrap
from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has, has_loss, lacks
from batchbridge_trl.testing import Captured, gradient_errors, undivided

LOSSES = {
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "grpo": "sequence_mean",
    "luspo": "sequence_sum",
    "dr_grpo": "sequence_sum_over_constant",
    "cispo": "token_mean",
}
LOSSES = {name: aggregation for name, aggregation in LOSSES.items() if has_loss(name)}
SPLITS = {
    # name: (micro, accumulation, steps_per_generation, num_iterations)
    "8x1": (8, 1, 1, 1),
    "4x2": (4, 2, 2, 1),
    "2x4": (2, 4, 4, 1),
    "1x8": (1, 8, 8, 1),
    "2x4, generation below accumulation": (2, 4, 2, 1),
    "2x2, generation above accumulation": (2, 2, 4, 1),
    "2x4, steps straddle rollouts": (2, 4, 6, 1),
    "2x2, generation above accumulation, two passes": (2, 2, 4, 2),
    "4x2, two passes": (4, 2, 2, 2),
}


def arguments(split: str) -> dict[str, int]:
    micro, accumulation, generation, iterations = SPLITS[split]
    return {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": generation,
        "num_iterations": iterations,
    }


def train(built: Any) -> Captured:
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    return captured


@pytest.mark.parametrize(
    ("loss_type", "split", "beta"),
    [
        pytest.param(*cell, marks=[pytest.mark.smoke] * (cell[0] in ("grpo", "bnpo")))
        for cell in cells(LOSSES, SPLITS, [0.0, 0.1])
    ],
)
def test_every_step_has_the_oracles_gradient(
    trainer: Callable[..., Any], loss_type: str, split: str, beta: float
) -> None:
    reference = tiny_policy(seed=1) if beta else None
    built = wrap(trainer(loss_type=loss_type, beta=beta, reference=reference, num_train_epochs=2, **arguments(split)))
    assert built.batchbridge.request.spec.loss.policy.aggregation == LOSSES[loss_type]
    captured = train(built)
    plan = built.batchbridge.plan
    assert built.state.global_step == plan.total_optimizer_steps == len(captured.gradients)
    for found in gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4):
        assert found.error <= found.bar, found
        assert captured.gradients[found.step].norm() > 1e-3


def test_old_logprobs_are_those_of_the_rollouts_start_and_clipping_is_unchanged(trainer: Callable[..., Any]) -> None:
    built = wrap(
        trainer(
            loss_type="bnpo",
            num_train_epochs=2,
            learning_rate=0.3,
            **arguments("2x2, generation above accumulation, two passes"),
        )
    )
    captured = train(built)
    found = gradient_errors(captured, built.batchbridge.plan.spec, plan=built.batchbridge.plan, steps=4)
    assert max(each.clipped for each in found) >= 0.05, "the term under test must carry weight"
    assert all(each.error <= each.bar for each in found), found


@pytest.mark.skipif(lacks("importance_sampling_level"), reason="this TRL has ratios of tokens only")
def test_a_sequence_level_ratio_survives_the_split(trainer: Callable[..., Any]) -> None:
    built = wrap(
        trainer(
            loss_type="grpo",
            importance_sampling_level="sequence",
            num_train_epochs=1,
            **arguments("2x2, generation above accumulation, two passes"),
        )
    )
    captured = train(built)
    found = gradient_errors(captured, built.batchbridge.plan.spec, plan=built.batchbridge.plan, steps=4)
    assert all(each.error <= each.bar for each in found), found


def test_what_accelerate_divides_by_changes_nothing(trainer: Callable[..., Any]) -> None:
    """transformers 5.2 to 5.4 have it divide by gradient_accumulation_steps, once more than TRL does."""
    built = trainer(num_train_epochs=1, **arguments("2x4"))
    built.accelerator.gradient_accumulation_steps = 4
    captured = train(wrap(built))
    assert built.accelerator.gradient_accumulation_steps == 4
    found = gradient_errors(captured, built.batchbridge.plan.spec, plan=built.batchbridge.plan)
    assert all(each.error <= each.bar for each in found), found


def test_gradient_checkpointing_is_proven(trainer: Callable[..., Any]) -> None:
    with_it, without = (
        wrap(trainer(folder, gradient_checkpointing=on, num_train_epochs=1, **arguments("2x4")))
        for folder, on in (("on", True), ("off", False))
    )
    errors = [
        gradient_errors(train(built), built.batchbridge.plan.spec, plan=built.batchbridge.plan)
        for built in (with_it, without)
    ]
    assert with_it.model.is_gradient_checkpointing
    assert not without.model.is_gradient_checkpointing
    assert all(each.error <= each.bar for found in errors for each in found), errors


@pytest.fixture
def environment() -> Iterator[None]:
    """As it was before: transformers puts torch_compile, and before 5 bf16, into it, and Accelerate would take both for
    the next run's."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
@pytest.mark.filterwarnings("ignore:`torch.cpu.amp:FutureWarning")  # accelerate 1.4.0
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_peft_is_proven_with_the_adapters_off_as_reference(trainer: Callable[..., Any], precision: torch.dtype) -> None:
    def config() -> LoraConfig:
        return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian", task_type="CAUSAL_LM")

    built = wrap(
        trainer(
            peft_config=config(),
            beta=0.1,
            num_train_epochs=2,
            learning_rate=0.1,
            bf16=precision is torch.bfloat16,
            **arguments("2x2, generation above accumulation"),
        )
    )
    captured = train(built)

    def policy() -> Any:
        from peft import get_peft_model

        return get_peft_model(tiny_policy(), config())

    found = gradient_errors(
        captured,
        built.batchbridge.plan.spec,
        plan=built.batchbridge.plan,
        policy=policy,
        reference=tiny_policy(),
        steps=4,
        precision=precision,
    )
    assert all(each.error <= each.bar for each in found), found


def native_errors(built: Any, folder: Path) -> list[float]:
    """Gradient errors over the bar of an unwrapped run, on the completions that it trained itself."""
    wrap(built, mode="observe", ledger=folder)
    spec = built.batchbridge.request.spec
    captured = train(built)
    unwrap(built)
    found = gradient_errors(captured, spec, records=read_steps(folder), steps=3)
    return [each.error / each.bar for each in found]


def test_negative_control_unwrapped_bnpo_misses_the_bar_tenfold(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = trainer(loss_type="bnpo", num_train_epochs=1, **arguments("2x4"))
    assert min(native_errors(built, tmp_path / "ledger")) > 10


@pytest.mark.skipif(not has_loss("dapo"), reason="this TRL has no dapo")
def test_negative_control_unwrapped_misaligned_dapo_misses_the_bar_tenfold(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    built = trainer(loss_type="dapo", num_train_epochs=1, **arguments("2x4, generation below accumulation"))
    assert min(native_errors(built, tmp_path / "ledger")) > 10


def test_positive_control_an_unwrapped_aligned_run_meets_the_bar(trainer: Callable[..., Any], tmp_path: Path) -> None:
    loss_type = "dapo" if has_loss("dapo") else "grpo"
    built = undivided(trainer(loss_type=loss_type, num_train_epochs=1, **arguments("2x4")))
    assert max(native_errors(built, tmp_path / "ledger")) <= 1


@pytest.mark.usefixtures("environment")
@pytest.mark.skipif(not has(">=1.10"), reason="tried on later releases")
@pytest.mark.filterwarnings("ignore")  # what torch's compiler does with torch's own functions
def test_a_compiled_model_has_the_oracles_gradient(trainer: Callable[..., Any]) -> None:
    backend = "inductor" if WHOLE else "aot_eager"  # what inductor compiles takes a minute
    compiled = {"torch_compile": True, "torch_compile_backend": backend, "max_steps": 3}
    built = wrap(trainer(**compiled, **arguments("2x2, generation above accumulation, two passes")))
    captured = train(built)
    assert type(built.model_wrapped).__name__ == "OptimizedModule"
    plan = built.batchbridge.plan
    for each in gradient_errors(captured, plan.spec, plan=plan):
        assert each.error <= each.bar

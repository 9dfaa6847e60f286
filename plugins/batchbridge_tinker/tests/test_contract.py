"""The contract that every adapter keeps, with meanings that were written down by hand."""

from __future__ import annotations

from typing import Any, ClassVar

from batchbridge import Source, Spec
from batchbridge.kit import (
    Advantage,
    Carried,
    Context,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_tinker.config import TinkerAdapter
from batchbridge_tinker.settings import AGGREGATIONS

CONTEXT = Context(framework_version="0.38.0", world_size=1, dataset_size=64)
VALUES: dict[str, Any] = {
    "base_model": "Qwen/Qwen3-8B",
    "lora_rank": 16,
    "rollout": {"prompts_per_rollout": 8, "completions_per_prompt": 4},
    "optimizer_step": {"completions_per_step": 16, "passes_per_rollout": 2, "rollout_shuffle": "completions"},
    "loss": {"policy": {"aggregation": "token_mean"}},
    "horizon": {"epochs": 2},
    "micro_batch": {"completions_per_device": 8},
    "advantage": {"scale": "group", "epsilon": 1e-4, "ddof": 1},
    "order": {"seed": 42},
    "objective": {"clip_low": 0.2, "clip_high": 0.28, "old_logprobs": "rollout_start"},
    "carried": {
        "learning_rate": 2e-5,
        "lr_schedule": "linear",
        "warmup_steps": 10,
        "beta2": 0.99,
        "max_gradient_norm": 1.0,
        "max_completion_tokens": 512,
    },
}
MEANING = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=16, passes_per_rollout=2, rollout_shuffle="completions"),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2.0),
    micro_batch=MicroBatch(completions_per_device=8),
    advantage=Advantage(baseline="group_mean", scale="group", epsilon=1e-4, ddof=1),
    order=Order(seed=42),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.28,
        old_logprobs="rollout_start",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
    ),
    carried=Carried(
        learning_rate=2e-5,
        lr_schedule="linear",
        warmup_steps=10.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.99,
        optimizer_epsilon=1e-12,
        weight_decay=0.0,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        max_completion_tokens=512,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
    ),
)
LEAST = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=8),
    optimizer_step=OptimizerStep(completions_per_step=64),
    loss=Loss(policy=LossTerm(aggregation="token_sum")),
    horizon=Horizon(rollouts=1),
    advantage=Advantage(baseline="group_mean", scale="none"),
    order=Order(seed=0),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        old_logprobs="sampler",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
    ),
    carried=Carried(
        learning_rate=1e-4,
        lr_schedule="constant",
        optimizer="adamw",
        beta1=0.9,
        beta2=0.95,
        optimizer_epsilon=1e-12,
        weight_decay=0.0,
        weight_decay_excludes="nothing",
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
    ),
)
"""What the SDK's own arguments say, and a plain sum."""
WORDS = {
    "rollout.truncated_completions": ("mask",),
    "optimizer_step.rollout_shuffle": ("none", "groups"),
    "optimizer_step.step_may_span": ("rollout", "epoch", "run"),
    "loss.policy.aggregation": tuple(word for word in AGGREGATIONS if word not in ("token_mean", AGGREGATIONS[4])),
    "horizon.lr_tick": ("rollout",),
    "advantage.baseline": ("leave_one_out", "none"),
    "advantage.scale": ("none", "batch", "group_others"),
    "order.prompt_shuffle": ("none",),
    "order.last_rollout": ("short", "pad", "wrap", "error"),
    "order.last_optimizer_step": ("drop", "pad", "error"),
    "objective.surrogate": ("cispo",),
    "objective.old_logprobs": ("sampler", "detached"),
}


def changed(**fields: Any) -> Source:
    """The case's values with others, dotted names with `__`."""
    return Source(values={**VALUES, **{name.replace("__", "."): value for name, value in fields.items()}})


class TestTinkerAdapter(AdapterContract):
    adapter_class = TinkerAdapter
    framework_modules = ("tinker", "torch")
    unknown_version = "0.1"
    written_version = "0.38.0"
    valid = (
        ValidCase(
            name="values", source=Source(values=VALUES), context=CONTEXT, spec=MEANING, source_has_world_size=True
        ),
        ValidCase(
            name="least",
            source=Source(values={"horizon": {"rollouts": 1}, "lora_rank": 8}),
            context=CONTEXT,
            spec=LEAST,
            source_has_world_size=True,
        ),
    )
    meanings = (
        *(({path: word}, {path: word}) for path, words in WORDS.items() for word in words),
        (
            {"loss.policy.aggregation": AGGREGATIONS[4], "loss.policy.constant": 512},
            {"loss.policy.aggregation": AGGREGATIONS[4], "loss.policy.constant": 512},
        ),
    )
    invalid = (
        InvalidCase(name="key", source=changed(rank=8), context=CONTEXT, codes=("BB-TINKER-004",)),
        InvalidCase(name="kind", source=changed(lora_rank="8"), context=CONTEXT, codes=("BB-TINKER-005",)),
        InvalidCase(
            name="one bound",
            source=changed(objective={"clip_low": 0.2}),
            context=CONTEXT,
            codes=("BB-TINKER-010",),
        ),
        InvalidCase(
            name="schedule",
            source=changed(carried={"lr_schedule": "polynomial"}),
            context=CONTEXT,
            codes=("BB-TINKER-011",),
        ),
    )
    foreign = (  # ms-swift's and Open-Instruct's names
        Source(values={"rlhf_type": "grpo", "model": "m", "lora_rank": 8, "num_generations": 8}),
        Source(values={"model_name_or_path": "m", "lora_rank": 64, "num_samples_per_prompt_rollout": 8}),
    )
    unreadable_forms: ClassVar[tuple[str, ...]] = ("python",)  # read as a file in test_program.py
    unwritable = (
        MEANING.replace(**{"objective.kl_placement": "loss", "objective.kl_coefficient": 0.04}),
        MEANING.replace(**{"carried.temperature": 0.7}),
        MEANING.replace(**{"objective.dual_clip": 3.0}),
        MEANING.replace(**{"loss.policy.denominator_scope": "rollout"}),
        MEANING.replace(**{"order.seed": None}),
    )

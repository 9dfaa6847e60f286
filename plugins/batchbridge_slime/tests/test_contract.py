"""The contract that every adapter keeps, with meanings that were written down by hand from slime's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

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
from batchbridge_slime.config import SlimeAdapter
from batchbridge_slime.settings import ESTIMATORS, FILTER, ICEPOP

CONTEXT = Context(framework_version="0.3.1", world_size=8, dataset_size=64)
VALUES: dict[str, Any] = {
    "actor-num-nodes": 1,
    "actor-num-gpus-per-node": 8,
    "tensor-model-parallel-size": 2,
    "rollout-batch-size": 32,
    "n-samples-per-prompt": 8,
    "global-batch-size": 128,
    "num-rollout": 3000,
    "rollout-shuffle": True,
    "use-dynamic-batch-size": True,
    "max-tokens-per-gpu": 9216,
    "eps-clip": 0.2,
    "eps-clip-high": 0.28,
    "lr-decay-style": "constant",
    "weight-decay": 0.1,
    "adam-beta2": 0.98,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
    "rollout-max-response-len": 8192,
}
MEANING = Spec(
    topology=Topology(world_size=8, tensor_parallel=2),
    rollout=Rollout(prompts_per_rollout=32, completions_per_prompt=8),
    optimizer_step=OptimizerStep(completions_per_step=128),
    loss=Loss(policy=LossTerm(aggregation="sequence_mean")),
    horizon=Horizon(rollouts=3000),
    micro_batch=MicroBatch(tokens_per_device=9216, cap="soft"),
    advantage=Advantage(baseline="group_mean", scale="group", epsilon=1e-6, ddof=1),
    order=Order(seed=42, prompt_shuffle="epoch_permutation", last_rollout="wrap", last_optimizer_step="drop"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.28,
        old_logprobs="rollout_start",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="error",
    ),
    carried=Carried(
        learning_rate=1e-6,
        lr_schedule="constant",
        warmup_steps=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.98,
        optimizer_epsilon=1e-8,
        weight_decay=0.1,
        weight_decay_excludes="biases_and_norms",
        max_gradient_norm=1.0,
        dropout="off",
        max_completion_tokens=8192,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
KL = {"use-kl-loss": True, "kl-loss-coef": 0.01}
KL_MEANING = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.01}
NO_SCALE = {"advantage.scale": "none", "advantage.epsilon": None, "advantage.ddof": None}
BROKEN: dict[int, dict[str, Any]] = {
    4: {"no-such-option": 1},
    5: {"num-rollout": "many"},
    10: {"rollout-batch-size": None},
    11: {"rollout-temperature": 0.0},
    12: {"kl-coef": 0.1, "kl-loss-coef": 0.1},
    13: {"use-rollout-logprobs": True, "use-tis": True},
    14: {"max-tokens-per-gpu": None},
    15: {"balance-by-flops": True, "use-dynamic-batch-size": None, "max-tokens-per-gpu": None},
    16: {"num-rollout": None},
    17: {"num-steps-per-rollout": 4},
    18: {"over-sampling-batch-size": 8},
    19: {"tensor-model-parallel-size": 3},
    20: {"global-batch-size": 130},
    21: {"global-batch-size": 512},
    22: {"eps-clip-c": 0.5},
    23: {"program": "train_async.py", "colocate": True},
    24: {"advantage-estimator": "reinforce_plus_plus"},
    25: {"lr-warmup-fraction": 0.1, "lr-warmup-iters": 5},
    26: {"lr-warmup-iters": 6000},
    27: {"min-lr": 1e-5},
    28: {"get-mismatch-metrics": True},
    29: {"disable-rollout-global-dataset": True},
    30: {"rollout-max-context-len": 512, "rollout-max-prompt-len": 512},
    42: {"n-samples-per-prompt": 1, "global-batch-size": 32, "dynamic-sampling-filter-path": FILTER},
}
SILENT: dict[int, dict[str, Any]] = {
    31: {"num-steps-per-rollout": 100, "global-batch-size": None, "tensor-model-parallel-size": 8},
    32: {"global-batch-size": 96},
    34: {"global-batch-size": None},
    35: {"n-samples-per-prompt": 1, "global-batch-size": 32},
    36: {"kl-coef": 0.1, "global-batch-size": 32},
    37: {"kl-loss-coef": 0.1},
    38: {"hidden-dropout": None},
    39: {"num-epoch": 1},
    40: {"log-probs-max-tokens-per-gpu": 8},
    41: {"over-sampling-batch-size": 64},
    43: {"advantage-estimator": "cispo", "eps-clip": 1.0, "eps-clip-c": 3.0},
    44: {**KL},
    45: {"custom-tis-function-path": ICEPOP},
    46: {"custom-tis-function-path": ICEPOP, "get-mismatch-metrics": True, "global-batch-size": 32},
    47: {"advantage-estimator": "cispo"},
}
OPEN: dict[int, dict[str, Any]] = {
    50: {"custom-reward-post-process-path": "mine.normalise"},
    51: {"advantage-estimator": "ppo"},
    52: {"normalize-advantages": True},
    54: {"num-rollout": None, "num-epoch": 2},
    55: {"program": "train_async.py", "update-weights-interval": 2},
    56: {"optimizer": "muon"},
    57: {"custom-config-path": "mine.yaml"},
    58: {"loss-type": "custom_loss"},
    60: {"loss-type": "sft_loss"},
}


def source(settings: dict[str, Any]) -> Source:
    values = {**VALUES, **settings}
    return Source(values={key: value for key, value in values.items() if value is not None})


class TestSlimeAdapter(AdapterContract):
    adapter_class = SlimeAdapter
    framework_modules = ("slime", "megatron", "sglang", "torch")
    unknown_version = "0.0"
    written_version = "0.3.1"
    valid = (
        ValidCase(
            name="values", source=Source(values=VALUES), context=CONTEXT, spec=MEANING, source_has_world_size=True
        ),
        *(
            ValidCase(name=f"rule {code}", source=source(said), context=CONTEXT, source_has_world_size=True)
            for code, said in SILENT.items()
        ),
    )
    meanings = (
        ({"program": "train_async.py"}, {"staleness.mode": "lookahead", "staleness.maximum": 1}),
        ({"calculate-per-token-loss": True}, {"loss.policy.aggregation": "token_mean"}),
        ({"rollout-shuffle": None}, {"order.prompt_shuffle": "none"}),
        ({"advantage-estimator": "gspo"}, {"objective.ratio_level": "sequence"}),
        ({"advantage-estimator": "cispo"}, {"objective.surrogate": "cispo"}),
        ({"use-rollout-logprobs": True}, {"objective.old_logprobs": "sampler"}),
        (
            {"global-batch-size": 256},
            {"optimizer_step.completions_per_step": 256, "objective.old_logprobs": "detached"},
        ),
        (
            {"global-batch-size": 256, "advantage-estimator": "gspo"},
            {"optimizer_step.completions_per_step": 256, "objective.ratio_level": "sequence"},
        ),
        ({"eps-clip-c": 3.0}, {"objective.dual_clip": 3.0}),
        ({"no-check-for-nan-in-loss-and-grad": True}, {"objective.nonfinite_step": "skip"}),
        ({"optimizer": "sgd"}, {"carried.optimizer": "sgd"}),
        ({"lr-decay-style": None}, {"carried.lr_schedule": "linear"}),
        ({"lr-decay-style": "linear", "min-lr": 1e-7}, {"carried.lr_schedule": 'linear {"min_lr_rate": 0.1}'}),
        ({"lr-decay-style": "cosine"}, {"carried.lr_schedule": "cosine"}),
        (
            {"lr-decay-style": "cosine", "min-lr": 1e-7},
            {"carried.lr_schedule": 'cosine_with_min_lr {"min_lr_rate": 0.1}'},
        ),
        (
            {"lr-decay-style": "cosine", "lr-decay-iters": 100},
            {"carried.lr_schedule": 'cosine {"decay_ticks": 100}'},
        ),
        ({"lr-decay-style": "inverse-square-root"}, {"carried.lr_schedule": "inverse-square-root"}),
        ({"lr-warmup-init": 5e-7}, {"carried.lr_schedule": 'constant {"warmup_start_rate": 0.5}'}),
        # 256 completions of a rollout are 2 steps of 96; Megatron's schedule has 3000 x 256 // 96 steps.
        (
            {"lr-decay-style": "linear", "global-batch-size": 96},
            {"carried.lr_schedule": 'linear {"decay_ticks": 8000}', "optimizer_step.completions_per_step": 96},
        ),
        ({"lr-warmup-fraction": 0.1}, {"carried.warmup_steps": None, "carried.warmup_ratio": 0.1}),
        (
            {"lr-warmup-fraction": 0.1, "lr-decay-iters": 100},
            {"carried.warmup_steps": 10.0},
        ),
        ({"lr-warmup-iters": 7}, {"carried.warmup_steps": 7.0}),
        ({"fp16": True}, {"carried.precision": "fp16"}),
        (
            {**KL, "kl-loss-type": "low_var_kl"},
            {**KL_MEANING, "objective.kl_estimator": "k3", "objective.kl_clamp": 10.0},
        ),
        ({**KL, "kl-loss-type": "k2"}, {**KL_MEANING, "objective.kl_estimator": "k2"}),
        (
            {**KL, "kl-loss-type": "k3", "use-unbiased-kl": True},
            {**KL_MEANING, "objective.kl_estimator": "k3_times_ratio"},
        ),
        (KL, {**KL_MEANING, "objective.kl_estimator": "k1"}),
        ({"use-tis": True}, {"objective.sampler_correction": "token_truncate [-, 2.0]"}),
        (
            {"use-tis": True, "custom-tis-function-path": ICEPOP, "tis-clip": 5.0, "tis-clip-low": 0.5},
            {"objective.sampler_correction": "token_mask [0.5, 5.0]"},
        ),
        ({"disable-grpo-std-normalization": True}, NO_SCALE),
        ({"disable-rewards-normalization": True}, {"advantage.baseline": "none", **NO_SCALE}),
        ({"use-opsm": True}, {"open_terms": ("objective: use-opsm 0.0001",)}),
        (
            {"enable-mtp-training": True, "mtp-loss-scaling-factor": 0.3, "moe-z-loss-coeff": 0.001},
            {"open_terms": ("carried: moe-z-loss-coeff 0.001", "objective: enable-mtp-training 0.3")},
        ),
        ({"moe-aux-loss-coeff": 0.01}, {"carried.router_loss_coefficient": 0.01}),
        (
            {"moe-aux-loss-coeff": 0.01, "moe-router-load-balancing-type": "none"},
            {"carried.router_loss_coefficient": None},
        ),
        ({"ref-update-interval": 3}, {"carried.reference_sync_steps": 6}),
        (
            {"dynamic-sampling-filter-path": FILTER, "over-sampling-batch-size": 64},
            {"rollout.group_filter": "replace_zero_variance", "rollout.prompts_per_generation_batch": 64},
        ),
        (
            {"partial-rollout": True, "over-sampling-batch-size": 64},
            {
                "staleness.mode": "unbounded",
                "staleness.maximum": None,
                "rollout.prompts_per_generation_batch": 64,
            },
        ),
        ({"partial-rollout": True}, {}),
        ({"custom-generate-function-path": "mine.generate"}, {"rollout.sample_unit": "trajectory"}),
        ({"rollout-max-context-len": 1024}, {"carried.max_total_tokens": 1024, "carried.max_prompt_tokens": 1023}),
        (
            {"num-rollout": None, "num-epoch": 1},
            {"horizon.rollouts": None, "horizon.epochs": 1.0, "order.last_rollout": "drop"},
        ),
        ({"num-steps-per-rollout": 4, "global-batch-size": None}, {"optimizer_step.completions_per_step": 64}),
        (
            {"use-dynamic-batch-size": None, "max-tokens-per-gpu": None, "micro-batch-size": 2},
            {
                "micro_batch.tokens_per_device": None,
                "micro_batch.cap": "hard",
                "micro_batch.completions_per_device": 2,
            },
        ),
        # Nothing that has a default is said: Megatron makes steps of one micro-batch of every replica.
        (
            {**dict.fromkeys(VALUES), "rollout-batch-size": 32, "num-rollout": 3000},
            {
                "topology.tensor_parallel": 1,
                "rollout.completions_per_prompt": 1,
                "optimizer_step.completions_per_step": 8,
                "micro_batch.tokens_per_device": None,
                "micro_batch.cap": "hard",
                "micro_batch.completions_per_device": 1,
                **NO_SCALE,
                "order.prompt_shuffle": "none",
                "objective.clip_high": 0.2,
                "carried.lr_schedule": "linear",
                "carried.weight_decay": 0.01,
                "carried.beta2": 0.999,
                "carried.dropout": "on",
                "carried.max_completion_tokens": None,
            },
        ),
    )
    excused: ClassVar[dict[str, str]] = {
        **dict.fromkeys((f"advantage-estimator = {kind!r}" for kind in ESTIMATORS[3:]), "left open"),
        "lr-decay-style = 'WSD'": "left open",
        "global-batch-size": "a rollout of one step is scored in it, unless an option of another purpose is there",
    }
    idle: ClassVar[dict[str, str]] = dict.fromkeys(
        ("use-routing-replay", "use-rollout-routing-replay"),
        "they decide who scores a rollout of one step, which is not written back; see below",
    )
    invalid = (
        *InvalidCase.each({f"BB-SLIME-{code:03}": source(said) for code, said in BROKEN.items()}, CONTEXT),
        *InvalidCase.each(
            {f"BB-SLIME-{code:03}": source(said) for code, said in OPEN.items()}, CONTEXT, verdict="undecided"
        ),
    )
    corpus = Path(__file__).with_name("commands")


@pytest.mark.parametrize(
    ("options", "scored"),
    [
        ((), "detached"),
        (("use-routing-replay",), "rollout_start"),
        (("use-routing-replay", "use-rollout-routing-replay"), "detached"),
    ],
)
def test_who_scores_a_rollout_of_one_step(options: tuple[str, ...], scored: str) -> None:
    said = {**VALUES, "global-batch-size": 256, **dict.fromkeys(options, True)}
    spec = SlimeAdapter().read(Source(values=said), CONTEXT).spec
    assert spec is not None
    assert spec.objective.old_logprobs == scored

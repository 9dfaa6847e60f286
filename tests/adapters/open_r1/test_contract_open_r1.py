"""Open-R1's adapter keeps the contract that every adapter keeps; see `batchbridge.testing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from batchbridge.contract.reading import Context, Source
from batchbridge.meaning.spec import (
    Advantage,
    Carried,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_open_r1.config import OpenR1Adapter
from batchbridge_trl.refusals import REFUSALS

RECIPE = {
    "dataset_prompt_column": "problem",
    "system_prompt": "You think.",
    "reward_funcs": ["accuracy", "format", "tag_count"],
    "reward_weights": [1.0, 1.0, 1.0],
    "bf16": True,
    "use_vllm": True,
    "do_eval": False,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "max_completion_length": 2048,
    "max_steps": -1,
    "num_generations": 16,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 16,
    "temperature": 0.7,
    "warmup_steps": 0.1,
}
"""The settings of the distilled model's GRPO recipe (huggingface/open-r1 at 8d139cb), in the words of TRL 1.16."""
OF_0_18 = {key: value for key, value in RECIPE.items() if key != "warmup_steps"} | {
    "warmup_ratio": 0.1,
    "max_prompt_length": 512,
    "overwrite_output_dir": True,
    "torch_dtype": "bfloat16",
}
"""The same recipe as published, in the words of the pinned TRL 0.18."""
CODE_OF_0_18 = {**OF_0_18, "num_generations": 14, "code_language": "python"}
CODE = {**RECIPE, "num_generations": 14, "code_language": "python", "code_eval_test_batch_size": -1}


def context(*, version="1.16.0", world_size=8, dataset_size=64):
    return Context(framework_version=version, world_size=world_size, dataset_size=dataset_size)


_SPEC = OpenR1Adapter().read(Source(values=RECIPE), context()).spec


MEANING = Spec(
    topology=Topology(world_size=8),
    rollout=Rollout(prompts_per_rollout=32, completions_per_prompt=16),
    optimizer_step=OptimizerStep(completions_per_step=512, rollout_shuffle="completions", step_may_span="epoch"),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
    micro_batch=MicroBatch(completions_per_device=16),
    advantage=Advantage(epsilon=0.0001, ddof=1),
    order=Order(seed=42),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        sampler_correction="sequence_mask [-, 3.0]",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="apply",
    ),
    carried=Carried(
        learning_rate=1e-06,
        lr_schedule='cosine_with_min_lr {"min_lr_rate": 0.1}',
        warmup_ratio=0.1,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-08,
        weight_decay=0.0,
        weight_decay_excludes="biases_and_norms",
        max_gradient_norm=1.0,
        dropout="on",
        max_completion_tokens=2048,
        temperature=0.7,
        top_p=1.0,
        top_k=0,
        precision="bf16",
    ),
)
"""`distilled model`, every field written down, from the framework's documented defaults."""


REFUSED_CASES = {
    "deepspeed_engine": ValidCase(
        name="deepspeed_engine",
        source=Source(values={**RECIPE, "deepspeed": {"compile": {"deepcompile": True}}}),
        context=context(),
    ),
    "top_entropy_quantile": ValidCase(
        name="quantile",
        source=Source(values={**RECIPE, "top_entropy_quantile": 0.5, "use_vllm": False}),
        context=context(),
    ),
}


IDLE = json.loads((Path(__file__).parents[1] / "idle_settings.json").read_text(encoding="utf-8"))
"""Adapter -> reason -> settings that upstream declares, and of which no case shows that they decide anything."""


class TestOpenR1(AdapterContract):
    adapter_class = OpenR1Adapter
    framework_modules = ("accelerate", "datasets", "open_r1", "torch", "transformers", "trl")
    unknown_version = "0.13.0"
    written_version = "1.16.0"
    idle: ClassVar = {key: why for why, keys in IDLE["open_r1"].items() for key in keys}
    codes_without_a_case = ("BB-TRL-054",)  # a configuration object alone meets it
    unreadable_forms = ("python",)
    launchers_key = "num_processes"
    meanings = (
        (
            dict.fromkeys(RECIPE.keys() - {"use_vllm"}),
            {
                "rollout.prompts_per_rollout": 8,
                "rollout.completions_per_prompt": 8,
                "optimizer_step.completions_per_step": 64,
                "micro_batch.completions_per_device": 8,
                "horizon.epochs": 3.0,
                "carried.lr_schedule": "linear",
                "carried.warmup_ratio": None,
                "carried.warmup_steps": 0.0,
                "carried.max_completion_tokens": 512,
                "carried.temperature": 1.0,
            },
        ),
        ({"use_vllm": None}, {"objective.old_logprobs": "detached", "objective.sampler_correction": None}),
        ({"loss_type": "grpo"}, {"loss.policy.aggregation": "sequence_mean"}),
        (
            {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"},
            {
                "objective.surrogate": "vespo",
                "objective.clip_low": None,
                "objective.clip_high": None,
                "objective.sampler_correction": "token_mask [-, 3.0]",
            },
        ),
        (
            {"loss_type": "cispo", "epsilon_high": 5.0},
            {"objective.surrogate": "cispo", "objective.clip_low": None, "objective.clip_high": 4.0},
        ),
    )
    refused = REFUSED_CASES
    refused_otherwise = tuple({one.name: one for one in REFUSALS}.keys() - REFUSED_CASES.keys())
    """Of TRL's table, whose own contract has a configuration of each."""
    valid = (
        ValidCase(name="distilled model", source=Source(values=RECIPE), context=context(), spec=MEANING),
        ValidCase(name="code on 7 devices", source=Source(values=CODE), context=context(world_size=7)),
        ValidCase(name="oldest enforced TRL", source=Source(values=RECIPE), context=context(version="1.9.1")),
        ValidCase(name="the pinned TRL", source=Source(values=OF_0_18), context=context(version="0.18.0")),
        ValidCase(
            name="the pinned TRL, code",
            source=Source(values=CODE_OF_0_18),
            context=context(version="0.18.0", world_size=7),
        ),
        ValidCase(
            name="two passes with KL",
            source=Source(values={**RECIPE, "env": {"NCCL_DEBUG": "WARN"}, "beta": 0.04, "num_iterations": 2}),
            context=context(),
        ),
    )
    invalid = (
        InvalidCase(name="code on 8 devices", source=Source(values=CODE), context=context(), codes=("BB-TRL-021",)),
        InvalidCase(
            name="keys that TRL has dropped",
            source=Source(values={**RECIPE, "max_prompt_length": 512, "torch_dtype": "bfloat16"}),
            context=context(),
            codes=("BB-TRL-003",),
        ),
        InvalidCase(
            name="dataset too small",
            source=Source(values=RECIPE),
            context=context(dataset_size=31),
            codes=("BB-TRL-050",),
        ),
        InvalidCase(
            name="absurd accumulation",
            source=Source(values={**RECIPE, "gradient_accumulation_steps": 10**40}),
            context=context(),
            codes=("BB-TRL-007",),
        ),
        InvalidCase(
            name="a share in warmup_steps under the pinned TRL",
            source=Source(values=RECIPE),
            context=context(version="0.18.0"),
            codes=("BB-TRL-004",),
        ),
        InvalidCase(
            name="code on 8 devices under the pinned TRL",
            source=Source(values=CODE_OF_0_18),
            context=context(version="0.18.0"),
            codes=("BB-TRL-021",),
        ),
    )
    foreign = (
        Source(values={"data.train_batch_size": 256, "actor_rollout_ref.rollout.n": 8}),
        Source(values={"per_device_train_batch_size": 4, "num_generations": 8, "steps_per_generation": 2}),
    )
    unwritable = (_SPEC.replace(**{"order.last_rollout": "pad"}), _SPEC.replace(horizon=Horizon(rollouts=4)))

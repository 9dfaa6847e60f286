"""TRL's adapter keeps the contract that every adapter keeps; see `batchbridge.testing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

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
from batchbridge_trl.config import TrlAdapter

VERSION = "1.16.0"
SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 6}
MEANING = Spec(
    topology=Topology(world_size=3),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=6),
    optimizer_step=OptimizerStep(completions_per_step=24, rollout_shuffle="completions", step_may_span="epoch"),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2.0),
    micro_batch=MicroBatch(completions_per_device=4),
    advantage=Advantage(scale="group", epsilon=1e-4, ddof=1),
    order=Order(seed=42),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="detached",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="apply",
    ),
    carried=Carried(
        learning_rate=1e-6,
        lr_schedule="linear",
        warmup_steps=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-8,
        weight_decay=0.0,
        weight_decay_excludes="biases_and_norms",
        max_gradient_norm=1.0,
        dropout="on",
        max_completion_tokens=512,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        precision="bf16",
    ),
)
"""`SIZES` on 3 devices for 2 epochs, every field written out by hand."""


OF_0_15 = {
    "optimizer_step.rollout_shuffle": "none",
    "order.last_rollout": "short",
    "loss.policy.aggregation": "sequence_mean",
    "objective.clip_low": None,
    "objective.clip_high": None,
    "objective.kl_placement": "loss",
    "objective.kl_estimator": "k3",
    "objective.kl_coefficient": 0.04,
    "carried.max_prompt_tokens": 512,
    "carried.max_completion_tokens": 256,
    "carried.temperature": 0.9,
    "carried.top_k": 50,
    "carried.precision": "fp32",
}
OF_0_16 = {
    **OF_0_15,
    "order.last_rollout": "drop",
    "loss.policy.aggregation": "token_mean",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.2,
}
OF_0_18 = {
    **OF_0_16,
    "optimizer_step.rollout_shuffle": "completions",
    "carried.temperature": 1.0,
    "carried.top_k": 0,
}
OF_0_19 = {
    **OF_0_18,
    "objective.kl_placement": "none",
    "objective.kl_estimator": None,
    "objective.kl_coefficient": 0.0,
    "carried.precision": "bf16",
}
OF_0_26 = {"carried.max_completion_tokens": 256}
OF_1_7 = {**OF_0_26, "carried.router_loss_coefficient": 0.001}
DEFAULTS = {
    **dict.fromkeys(("0.15.0", "0.15.2"), OF_0_15),
    **dict.fromkeys(("0.16.1", "0.17.0"), OF_0_16),
    **dict.fromkeys(("0.18.0", "0.18.2"), OF_0_18),
    **dict.fromkeys(("0.19.1", "0.21.0", "0.22.2", "0.24.0", "0.25.1"), OF_0_19),
    "0.22.0": {**OF_0_19, "advantage.scale": "none"},
    **dict.fromkeys(("0.26.0", "0.27.2", "0.28.0", "0.29.1", "1.0.0", "1.4.0", "1.6.0"), OF_0_26),
    **dict.fromkeys(("1.7.0", "1.9.0"), OF_1_7),
}
"""Version -> how the meaning of `SIZES` and nothing else differs there from `MEANING`, from the wheels' defaults."""


RECORDED_VERSIONS = {
    *("0.15.2", "0.16.1", "0.17.0", "0.18.0", "0.19.1", "0.22.0", "0.22.2", "0.24.0", "0.29.1", "1.0.0", "1.4.0"),
    "1.9.0",
}
"""The versions that go through the whole contract; the meaning alone is tested in all of `DEFAULTS`."""


@pytest.mark.parametrize("version", DEFAULTS)
def test_the_defaults_of_a_version_mean_what_its_wheel_says(version):
    source = Source(values={**SIZES, "num_train_epochs": 2})
    assert TrlAdapter().read(source, context(version=version)).spec == MEANING.replace(**DEFAULTS[version])


def context(*, version=VERSION, world_size=3, dataset_size=64):
    return Context(framework_version=version, world_size=world_size, dataset_size=dataset_size)


def valid(name, values, *, spec=None, **said):
    return ValidCase(name=name, source=Source(values={**SIZES, **values}), context=context(**said), spec=spec)


def invalid(name, values, *codes, verdict="invalid", **said):
    source = Source(values={**SIZES, **values})
    return InvalidCase(name=name, source=source, context=context(**said), codes=codes, verdict=verdict)


MODEL = {"model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct"}
REFUSED = {
    "iterable_dataset": {"dataset_streaming": True, "max_steps": 7},
    "top_entropy_quantile": {"top_entropy_quantile": 0.5},
    "updates_in_backward": {"optim": "lomo"},
    "sapo_of_sequences": {"loss_type": "sapo", "importance_sampling_level": "sequence"},
    "batch_scale_over_rollouts": {"scale_rewards": "batch", "steps_per_generation": 3},
    "deepspeed_engine": {"deepspeed": {"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}},
    "not_sharded": {"fsdp": "full_shard", "use_cpu": True},
    "fsdp_xla": {"fsdp": "full_shard", "fsdp_config": {"xla": True}},
    "router_loss": {"model_name_or_path": "Qwen/Qwen3-30B-A3B"},
    "fp16": {"fp16": True},
    "absolute_positions": {"model_name_or_path": "gpt2"},
    "tensor_parallel": {"parallelism_config": {"tp_size": 3}},
    "context_parallel": {"parallelism_config": {"cp_size": 3}},
}
"""Refusal to settings whose trainer is refused by it, or may be."""


def of_script(name):
    words = ("python", str(Path(__file__).parent / "scripts" / f"{name}.py"))
    return ValidCase(name=name, source=Source(values={**SIZES, **MODEL}, argv=words), context=context())


REFUSED_CASES = {
    **{name: valid(name, {**MODEL, **values}) for name, values in REFUSED.items()},
    "no_step": valid("no_step", MODEL, dataset_size=1),
    "entropy_bonus": valid("entropy_bonus", {**MODEL, "entropy_coef": 0.1}, version="1.9.1"),
    "images": valid("images", {"model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"}, version="1.15.0"),
    "liger": valid("liger", {**MODEL, "use_liger_kernel": True}, version="1.13.0"),
    "trainer": of_script("own_trainer"),
}


IDLE = json.loads((Path(__file__).parents[1] / "idle_settings.json").read_text(encoding="utf-8"))
"""Adapter -> reason -> settings that upstream declares, and of which no case shows that they decide anything."""


class TestTrl(AdapterContract):
    adapter_class = TrlAdapter
    framework_modules = ("accelerate", "datasets", "torch", "transformers", "trl")
    unknown_version = "0.13.0"
    written_version = VERSION
    idle: ClassVar = {key: why for why, keys in IDLE["trl"].items() for key in keys}
    meanings = (
        (
            {"gradient_accumulation_steps": None},
            {"rollout.prompts_per_rollout": 2, "optimizer_step.completions_per_step": 12},
        ),
        ({"num_generations": None}, {"rollout.prompts_per_rollout": 3, "rollout.completions_per_prompt": 8}),
        (
            {"per_device_train_batch_size": None},
            {
                "rollout.prompts_per_rollout": 8,
                "optimizer_step.completions_per_step": 48,
                "micro_batch.completions_per_device": 8,
            },
        ),
    )
    codes_without_a_case = ("BB-TRL-054",)  # a configuration object alone meets it
    unreadable_forms = ("python",)
    refused = REFUSED_CASES
    refused_otherwise = (
        *("normalize_then_sum", "deepspeed_schedule", "lone_head", "expert_parallel", "ms_swift"),
        *("unsloth", "unsloth_settings"),  # of its trainer alone: tests/adapters/unsloth
        *("data_collator", "advantages", "train_sampler", "train_dataloader", "prepare_inputs"),
        *("kl_without_reference", "kl_in_reward", "kl_estimator", "padding_free"),
        *("loss_per_term", "aggregation", "missing_setting", "denominator_scope", "value_baseline", "sampler_logprobs"),
        "own_setup",  # methods of a class of one's own
        "communication_hook",  # a call of DDP's, in no configuration: native/test_ddp_hooks.py
        "found_budget",  # tokens_per_device="auto" is asked of `wrap`: native/test_found_budget.py
    )
    valid = (
        valid("4 x 2 x 3 x 6", {"num_train_epochs": 2}, spec=MEANING, dataset_size=8000),
        valid(
            "dr_grpo with max_steps",
            {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 1024, "max_steps": 7},
            spec=MEANING.replace(
                **{
                    "loss.policy": LossTerm(aggregation="sequence_sum_over_constant", constant=1024),
                    "advantage.scale": "none",
                    "horizon": Horizon(optimizer_steps=7),
                    "carried.max_completion_tokens": 1024,
                }
            ),
        ),
        valid(
            "KL with dual clipping",
            {"beta": 0.04, "delta": 4.0, "epsilon_high": 0.28, "loss_type": "grpo", "num_train_epochs": 2},
            spec=MEANING.replace(
                **{
                    "loss.policy.aggregation": "sequence_mean",
                    "objective.kl_placement": "loss",
                    "objective.kl_estimator": "k3_times_ratio",
                    "objective.kl_coefficient": 0.04,
                    "objective.dual_clip": 4.0,
                    "objective.clip_high": 0.28,
                }
            ),
        ),
        valid(
            "rollouts of two optimizer steps",
            {"loss_type": "grpo", "steps_per_generation": 4, "num_train_epochs": 2},
            spec=MEANING.replace(
                **{
                    "loss.policy.aggregation": "sequence_mean",
                    "rollout.prompts_per_rollout": 8,
                    "objective.old_logprobs": "rollout_start",
                }
            ),
        ),
        valid(
            "two passes",
            {"num_iterations": 2, "num_train_epochs": 2},
            spec=MEANING.replace(**{"optimizer_step.passes_per_rollout": 2, "objective.old_logprobs": "rollout_start"}),
        ),
        valid("reference synchronised", {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 64}),
        valid("cispo over vLLM", {"loss_type": "cispo", "epsilon_high": 5.0, "use_vllm": True, "entropy_coef": 0.01}),
        valid("the oldest enforced one", {"router_aux_loss_coef": None, "max_completion_length": 256}, version="1.9.1"),
        *(
            valid(version, {"num_train_epochs": 2}, version=version, spec=MEANING.replace(**there))
            for version, there in DEFAULTS.items()
            if version in RECORDED_VERSIONS
        ),
        valid(
            "0.15 with vLLM, rewards unweighted, a share of warm-up",
            {"use_vllm": True, "warmup_ratio": 0.1, "max_prompt_length": None, "vllm_max_model_len": 1024},
            version="0.15.2",
        ),
        valid("two passes over a window", {"num_iterations": 3, "scale_rewards": False}, version="0.16.1"),
        valid("no scale", {"loss_type": "dr_grpo", "scale_rewards": False, "epsilon_high": 0.28}, version="0.17.0"),
        valid("half a window per rollout", {"steps_per_generation": 1, "delta": 3.0}, version="0.18.2"),
        valid("two windows per rollout", {"generation_batch_size": 48, "warmup_steps": 10}, version="0.19.1"),
        valid("per sequence", {"importance_sampling_level": "sequence", "loss_type": "grpo"}, version="0.20.0"),
        valid("over the batch", {"scale_rewards": "batch", "beta": 0.1}, version="0.22.2"),
        valid("truncated importance", {"use_vllm": True, "vllm_importance_sampling_cap": 2.5}, version="0.24.0"),
        valid("sapo", {"loss_type": "sapo", "use_vllm": True, "top_k": 20}, version="0.26.2"),
        valid("luspo", {"loss_type": "luspo", "importance_sampling_level": "sequence"}, version="0.28.0"),
        valid("vespo", {"loss_type": "vespo", "use_bias_correction_kl": True, "beta": 0.01}, version="1.0.0"),
        valid("two bounds", {"use_vllm": True, "vllm_importance_sampling_clip_min": 0.5}, version="1.6.0"),
        valid("rescaled dapo", {"steps_per_generation": 4, "entropy_coef": 0.01}, version="1.9.0"),
        ValidCase(
            name="the world size in the recipe",
            source=Source(values={**SIZES, "num_processes": 3}),
            context=context(world_size=None),
            source_has_world_size=True,
        ),
        ValidCase(
            name="nested and dotted keys",
            source=Source(
                values={
                    **SIZES,
                    "accelerator_config": {"even_batches": True},
                    "lr_scheduler_type": "cosine_with_min_lr",
                    "lr_scheduler_kwargs.min_lr_rate": 0.1,
                }
            ),
            context=context(),
        ),
    )
    invalid = (
        invalid("groups are not whole", {"num_generations": 7}, "BB-TRL-021"),
        invalid("groups of one", {"num_generations": 1}, "BB-TRL-022"),
        invalid("both exclusive settings", {"generation_batch_size": 24, "steps_per_generation": 2}, "BB-TRL-017"),
        invalid("rollouts are not whole", {"generation_batch_size": 30}, "BB-TRL-019"),
        invalid("evaluation", {"eval_strategy": "steps", "per_device_eval_batch_size": 5}, "BB-TRL-020"),
        invalid("no device", {}, "BB-TRL-030", world_size=0),
        invalid("no pass", {"num_iterations": 0}, "BB-TRL-051"),
        invalid("dataset too small", {}, "BB-TRL-050", dataset_size=3),
        invalid("absurd micro-batch", {"per_device_train_batch_size": 10**40}, "BB-TRL-007"),
        invalid("absurd world", {}, "BB-TRL-007", world_size=10**40),
        invalid("unknown loss", {"loss_type": "gspo"}, "BB-TRL-038"),
        invalid("misspelt key", {"num_generation": 6}, "BB-TRL-003"),
        invalid("removed key", {"max_prompt_length": 512}, "BB-TRL-003"),
        invalid("wrong kind", {"num_generations": "six"}, "BB-TRL-004"),
        invalid("unknown version", {}, "BB-TRL-002", verdict="undecided", version="0.13.0"),
        invalid("whole micro-batches, 0.15", {"num_generations": 8}, "BB-TRL-021", version="0.15.2"),
        invalid("whole micro-batches, 0.16", {"num_generations": 8}, "BB-TRL-021", version="0.16.1"),
        invalid("whole windows, 0.17", {"num_generations": 7}, "BB-TRL-021", version="0.17.0"),
        invalid(
            "torn groups, 0.18", {"generation_batch_size": 28, "num_generations": 7}, "BB-TRL-055", version="0.18.0"
        ),
        invalid("mended, 0.19.1", {"generation_batch_size": 28, "num_generations": 7}, "BB-TRL-019", version="0.19.1"),
        invalid("a key of later versions", {"steps_per_generation": 2}, "BB-TRL-003", version="0.17.0"),
        invalid("no loss_type yet", {"loss_type": "grpo"}, "BB-TRL-003", version="0.16.1"),
        invalid("no dapo yet", {"loss_type": "dapo"}, "BB-TRL-038", version="0.21.0"),
        invalid("removed key, 0.28", {"max_prompt_length": 512}, "BB-TRL-003", version="0.28.0"),
    )
    foreign = (
        Source(values={"data.train_batch_size": 256, "actor_rollout_ref.rollout.n": 8}),
        Source(values={"train_batch_size": 128, "micro_train_batch_size": 4, "n_samples_per_prompt": 8}),
        Source(values={"learning_rate": 1e-5, "per_device_train_batch_size": 4, "max_seq_length": 512}),
    )
    unwritable = (
        MEANING.replace(**{"rollout.group_filter": "drop_zero_variance"}),
        MEANING.replace(**{"optimizer_step.completions_per_step": 25}),
        MEANING.replace(**{"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1}),
        MEANING.replace(horizon=Horizon(rollouts=10)),
        MEANING.replace(**{"topology.tensor_parallel": 3}),
        MEANING.replace(**{"order.seed": None}),
    )

"""The contract that every adapter keeps. What the cases mean was written down from NeMo-RL's own code."""

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
    load_source,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_nemo_rl.config import NemoAdapter
from batchbridge_nemo_rl.rules import RULES

CONTEXT = Context(framework_version="0.7.0", world_size=8, dataset_size=2048)
EIGHT = {"cluster.gpus_per_node": 8, "grpo.seed": 42, "loss_fn.ratio_clip_min": 0.2}
LOSS, TIS = "loss_fn.", "loss_fn.truncated_importance_sampling_"
COLOCATED = "policy.generation.colocated."
DEFAULTS = Spec(
    topology=Topology(world_size=8),
    rollout=Rollout(prompts_per_rollout=32, completions_per_prompt=16),
    optimizer_step=OptimizerStep(completions_per_step=512),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0, lr_tick="rollout"),
    micro_batch=MicroBatch(tokens_per_device=2048),
    advantage=Advantage(baseline="leave_one_out", scale="group_others", epsilon=1e-6, ddof=1),
    order=Order(seed=42, last_optimizer_step="error"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        kl_placement="loss",
        kl_estimator="k3+",
        kl_coefficient=0.01,
        kl_log_ratio_clamp=20.0,
        kl_clamp=10.0,
        entropy_coefficient=0.0,
        nonfinite_step="apply",
    ),
    carried=Carried(
        learning_rate=5e-6,
        lr_schedule='constant {"warmup_start_rate": 0.1}',
        warmup_steps=50.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-8,
        weight_decay=0.01,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        max_completion_tokens=512,
        max_total_tokens=512,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
"""grpo_math_1B.yaml on eight devices: its numbers, and grpo.py, loss_functions.py, utils.py for what they mean."""
DAPO = DEFAULTS.replace(
    **{
        "rollout.group_filter": "replace_zero_variance",
        "rollout.prompts_per_generation_batch": 96,
        "rollout.truncated_completions": "mask",
        "optimizer_step.completions_per_step": 128,
        "horizon.rollouts": 500,
        "horizon.epochs": 10.0,
        "micro_batch.tokens_per_device": 4096,
        "micro_batch.tokens_counted": "padded",
        "advantage.baseline": "group_mean",
        "advantage.scale": "group",
        "advantage.minimum": -5.0,
        "advantage.maximum": 10.0,
        "objective.clip_high": 0.28,
        "objective.dual_clip": 10.0,
        "objective.sampler_correction": "token_truncate [-, 2.0]",
        "objective.kl_placement": "none",
        "objective.kl_estimator": None,
        "objective.kl_coefficient": 0.0,
        "objective.kl_log_ratio_clamp": None,
        "objective.kl_clamp": None,
        "open_terms": (
            "rollout: grpo.reward_shaping.enabled true",
            "rollout: grpo.reward_shaping.max_response_length 512",
        ),
    }
)
GSPO = DEFAULTS.replace(
    **{
        "loss.policy": LossTerm(aggregation="sequence_mean", count_empty=False),
        "micro_batch.tokens_per_device": None,
        "micro_batch.completions_per_device": 4,
        "objective.ratio_level": "sequence",
        "objective.clip_low": 0.0003,
        "objective.clip_high": 0.0004,
        "objective.kl_estimator": "k1_with_score",
        "staleness.mode": "bounded",
        "staleness.maximum": 3,
        "staleness.unit": "weight_versions",
        "horizon.rollouts": 100,
        "horizon.epochs": None,
        "objective.sampler_correction": "sequence_truncate [-, -]",
    }
)
ESTIMATOR = "grpo.adv_estimator."
UNSCALED: dict[str, Any] = {"advantage.scale": "none", "advantage.epsilon": None, "advantage.ddof": None}
PLAIN = {**UNSCALED, "advantage.baseline": "group_mean"}
GROUP = {"advantage.baseline": "group_mean", "advantage.scale": "group"}
OVER_ALL = {"advantage.scale": "batch", "advantage.epsilon": None, "advantage.ddof": 0}
ASYNC: dict[str, Any] = {
    "cluster.gpus_per_node": 12,
    f"{COLOCATED}enabled": False,
    f"{COLOCATED}resources.gpus_per_node": 4,
    "policy.generation.vllm_cfg.async_engine": True,
    "grpo.async_grpo.enabled": True,
    "grpo.async_grpo.max_trajectory_age_steps": 3,
    f"{LOSS}use_importance_sampling_correction": True,
}
MODEL = {"env.reward_model.resources": {"gpus_per_node": 1, "num_nodes": 1}}
SCORED: dict[str, Any] = {"data.default.env_name": "reward_model", **MODEL}
MEGATRON: dict[str, Any] = {
    "policy.megatron_cfg.enabled": True,
    "policy.dtensor_cfg.enabled": False,
    "policy.megatron_cfg.tensor_model_parallel_size": 2,
    "policy.megatron_cfg.pipeline_model_parallel_size": 2,
}


def _valid(name: str, values: dict[str, Any], spec: Spec | None = None) -> ValidCase:
    return ValidCase(
        name=name, source=Source(values={**EIGHT, **values}), context=CONTEXT, spec=spec, source_has_world_size=True
    )


def _invalid(name: str, code: int, values: dict[str, Any]) -> InvalidCase:
    source = Source(values={**EIGHT, **values})
    return InvalidCase(name=name, source=source, context=CONTEXT, codes=(f"BB-NEMO-{code:03}",))


class TestNemoAdapter(AdapterContract):
    adapter_class = NemoAdapter
    framework_modules = ("torch", "nemo_rl", "omegaconf", "hydra", "ray")
    unknown_version = "0.5.0"
    written_version = "0.7.0"
    rules = RULES
    inherits = "defaults"
    corpus = Path(__file__).parent / "recipes"
    meanings = (
        ({"data.shuffle": False}, {"order.prompt_shuffle": "none"}),
        ({"policy.precision": "float16"}, {"carried.precision": "fp16"}),
        ({"policy.precision": "float32"}, {"carried.precision": "fp32"}),
        ({f"{ESTIMATOR}normalize_rewards": False}, UNSCALED),
        ({f"{ESTIMATOR}normalize_rewards": False, f"{ESTIMATOR}use_leave_one_out_baseline": False}, PLAIN),
        *(
            ({f"{ESTIMATOR}name": "gdpo", **settings}, {**fields, "open_terms": ("advantage: gdpo",)})
            for settings, fields in (
                ({}, {}),
                ({f"{ESTIMATOR}use_leave_one_out_baseline": False}, GROUP),
                ({f"{ESTIMATOR}normalize_rewards": False}, UNSCALED),
                ({f"{ESTIMATOR}normalize_rewards": False, f"{ESTIMATOR}use_leave_one_out_baseline": False}, PLAIN),
            )
        ),
        (
            {f"{ESTIMATOR}name": "reinforce_plus_plus"},
            {**OVER_ALL, "advantage.baseline": "group_mean", "open_terms": ("advantage: reinforce_plus_plus",)},
        ),
        (
            {f"{ESTIMATOR}name": "reinforce_plus_plus", f"{ESTIMATOR}minus_baseline": False},
            {**OVER_ALL, "advantage.baseline": "none", "open_terms": ("advantage: reinforce_plus_plus",)},
        ),
        ({f"{ESTIMATOR}name": "opd"}, {**UNSCALED, "advantage.baseline": "none", "open_terms": ("advantage: opd",)}),
        ({f"{LOSS}reference_policy_kl_type": "k2"}, {"objective.kl_estimator": "k2_with_score"}),
        *(
            (
                {
                    f"{LOSS}use_importance_sampling_correction": True,
                    f"{TIS}type": kind,
                    f"{TIS}ratio": most,
                    f"{TIS}ratio_min": least,
                },
                {"objective.sampler_correction": f"token_truncate [-, -]; {mask} [{least}, {most}]"},
            )
            for kind, mask, least, most in (
                ("icepop", "token_mask", 0.5, 5.0),
                ("seq-mask-tis", "sequence_geometric_mask", 0.999, 1.002),
            )
        ),
        ({"grpo.seed": None}, {}),
        (
            {"grpo.reward_scaling": {"enabled": True, "target_min": -1.0}},
            {
                "open_terms": (
                    "rollout: grpo.reward_scaling.enabled true",
                    "rollout: grpo.reward_scaling.target_min -1.0",
                )
            },
        ),
        ({"loss_fn.ratio_clip_min": None}, {}),
    )
    excused: ClassVar[dict[str, str]] = {
        "no_such_setting_of_anybody": "NeMo-RL passes over groups that it does not have",
        "cluster.gpus_per_node": "one device by default, and the case has groups that eight share",
    }
    valid = (
        _valid("defaults", {}, DEFAULTS),
        _valid(
            "dapo",
            {
                "grpo": {
                    "use_dynamic_sampling": True,
                    "batch_multiplier": 3,
                    "overlong_filtering": True,
                    "max_num_steps": 500,
                    "max_num_epochs": 10,
                    "use_leave_one_out_baseline": False,
                    "advantage_clip_low": -5,
                    "advantage_clip_high": 10,
                    "reward_shaping": {"enabled": True},
                },
                "policy.train_global_batch_size": 128,
                "policy.dynamic_batching": {"enabled": True, "train_mb_tokens": 4096, "logprob_mb_tokens": 4096},
                "policy.sequence_packing.enabled": False,
                "loss_fn": {
                    "ratio_clip_max": 0.28,
                    "ratio_clip_c": 10,
                    "reference_policy_kl_penalty": 0,
                    "use_importance_sampling_correction": True,
                    "truncated_importance_sampling_type": "tis",
                    "truncated_importance_sampling_ratio": 2,
                },
            },
            DAPO,
        ),
        _valid(
            "gspo, asynchronous",
            {
                **ASYNC,
                "grpo.max_num_steps": 100,
                "policy.sequence_packing.enabled": False,
                f"{LOSS}token_level_loss": False,
                f"{LOSS}sequence_level_importance_ratios": True,
                f"{LOSS}ratio_clip_min": 0.0003,
                f"{LOSS}ratio_clip_max": 0.0004,
                f"{LOSS}reference_policy_kl_type": "k1",
            },
            GSPO,
        ),
        _valid(
            "experts that are balanced",
            {
                **MEGATRON,
                "policy.megatron_cfg.moe_router_load_balancing_type": "aux_loss",
                "policy.megatron_cfg.moe_aux_loss_coeff": 0.01,
            },
        ),
        _valid("megatron", {**MEGATRON, "policy.megatron_cfg.scheduler.lr_decay_style": "cosine"}),
        _valid(
            "cispo, icepop",
            {
                f"{LOSS}use_cispo": True,
                f"{LOSS}use_importance_sampling_correction": True,
                f"{TIS}type": "icepop",
                f"{TIS}ratio": 5.0,
                f"{TIS}ratio_min": 0.5,
            },
        ),
        _valid("forced", {f"{LOSS}force_on_policy_ratio": True, f"{LOSS}kl_input_clamp_value": None}),
        _valid("gdpo", {"grpo.adv_estimator.name": "gdpo", f"{LOSS}positive_example_nll_weight": 0.1}),
        _valid("reinforce++", {"grpo.adv_estimator.name": "reinforce_plus_plus", f"{LOSS}use_kl_in_reward": True}),
        _valid("nodes of NeMo-Gym, beside the cluster", {"env.nemo_gym.num_gpu_nodes": 5}, DEFAULTS),
        _valid(
            "a reward model in validation",
            {"data.validation.env_name": "reward_model", "cluster.num_nodes": 2, **MODEL},
        ),
        _valid("a reward model on the node", {**SCORED, "cluster.gpus_per_node": 9}, DEFAULTS),
        _valid("a reward model on its own node", {**SCORED, "cluster.num_nodes": 2}, DEFAULTS),
        _valid(
            "megatron without what only DTensor reads",
            {**MEGATRON, "policy.optimizer": None, "policy.max_grad_norm": 0},
        ),
        _valid(
            "in order, and no version ahead",
            {
                **{key: value for key, value in ASYNC.items() if key.startswith(("cluster", "policy"))},
                "async_rl.sampler": {"name": "in_order", "max_lookahead_versions": 0},
            },
            DEFAULTS.replace(
                **{
                    "open_terms": ('staleness: async_rl.sampler.name "in_order"',),
                    "horizon.epochs": None,
                    "horizon.rollouts": 1_000_000,
                }
            ),
        ),
        _valid("empty groups", {"grpo.async_grpo": None, "policy.generation": {}, "data.train": [{}]}, DEFAULTS),
        _valid("no deviation", {"grpo.normalize_rewards": False, "policy.scheduler": None}),
    )
    invalid = (
        _invalid("two devices asked", 3, {"cluster.gpus_per_node": 2, "cluster.num_nodes": 2}),
        _invalid("a stranger", 4, {"grpo.num_prompt_per_step": 3}),
        _invalid("no number", 5, {"policy.train_global_batch_size": "x"}),
        _invalid("a group that is a word", 5, {"policy": {"optimizer": "adamw"}}),
        _invalid("a group that is a number", 5, {"grpo": 5}),
        _invalid("a group that is a list", 5, {"policy": [1]}),
        _invalid("a multiplier without a filter", 10, {"grpo.batch_multiplier": 2}),
        _invalid("loaders", 11, {"data.use_multiple_dataloader": True, "data.num_prompts_per_dataloader": 5}),
        _invalid("a token-level gspo", 12, {f"{LOSS}sequence_level_importance_ratios": True}),
        _invalid("cispo without a ratio", 13, {f"{LOSS}use_cispo": True, f"{LOSS}disable_ppo_ratio": True}),
        _invalid("cispo, forced", 13, {f"{LOSS}use_cispo": True, f"{LOSS}force_on_policy_ratio": True}),
        _invalid("cispo, dual", 13, {f"{LOSS}use_cispo": True, f"{LOSS}ratio_clip_c": 3.0}),
        _invalid("cispo of sequences", 13, {f"{LOSS}use_cispo": True, f"{LOSS}token_level_loss": False}),
        _invalid("truncation without correction", 14, {f"{TIS}type": "tis", f"{TIS}ratio": 2.0}),
        _invalid(
            "icepop without a floor",
            15,
            {f"{TIS}type": "icepop", f"{TIS}ratio": 2.0, f"{LOSS}use_importance_sampling_correction": True},
        ),
        _invalid("tis without a bound", 16, {f"{TIS}type": "tis", f"{LOSS}use_importance_sampling_correction": True}),
        _invalid(
            "seq-mask-tis of sequences",
            17,
            {
                f"{TIS}type": "seq-mask-tis",
                f"{TIS}ratio": 1.002,
                f"{TIS}ratio_min": 0.999,
                f"{LOSS}use_importance_sampling_correction": True,
                f"{LOSS}sequence_level_importance_ratios": True,
                f"{LOSS}token_level_loss": False,
            },
        ),
        _invalid(
            "forced, two steps", 18, {f"{LOSS}force_on_policy_ratio": True, "policy.train_global_batch_size": 256}
        ),
        _invalid("no reference", 19, {"grpo.skip_reference_policy_logprobs_calculation": True}),
        _invalid("no devices to generate", 20, {f"{COLOCATED}enabled": False}),
        InvalidCase(
            name="a reward model and generation leave none to train",
            source=Source(
                values={**EIGHT, **SCORED, f"{COLOCATED}enabled": False, f"{COLOCATED}resources.gpus_per_node": 7}
            ),
            context=Context(framework_version="0.7.0"),
            codes=("BB-NEMO-020",),
        ),
        _invalid("two engines", 21, {"policy.megatron_cfg.enabled": True}),
        _invalid("tp accuracy", 22, {"policy.dtensor_cfg.tensor_parallel_size": 4, "policy.logprob_batch_size": 2}),
        _invalid("devices of a replica", 23, {"policy.dtensor_cfg.tensor_parallel_size": 3}),
        _invalid("packing and batching", 24, {"policy.dynamic_batching.enabled": True}),
        _invalid(
            "batching of stages",
            25,
            {**MEGATRON, "policy.dynamic_batching.enabled": True, "policy.sequence_packing.enabled": False},
        ),
        _invalid("uneven steps", 26, {"policy.train_global_batch_size": 96}),
        _invalid("uneven ranks", 27, {"policy.train_global_batch_size": 4}),
        _invalid(
            "uneven micro-batches", 28, {"policy.train_micro_batch_size": 3, "policy.sequence_packing.enabled": False}
        ),
        _invalid("a dual clip below 1", 29, {f"{LOSS}ratio_clip_c": 0.5}),
        _invalid("async without correction", 30, {**ASYNC, f"{LOSS}use_importance_sampling_correction": False}),
        _invalid("async on the same devices", 31, {**ASYNC, "cluster.gpus_per_node": 8, f"{COLOCATED}enabled": True}),
        _invalid("async without its engine", 32, {**ASYNC, "policy.generation.vllm_cfg.async_engine": False}),
        _invalid("no engine", 33, {"policy.dtensor_cfg.enabled": False}),
        _invalid("a file of Megatron's, trained by DTensor", 34, {"policy": {"optimizer": None}}),
        _invalid("gradients of nothing", 35, {"policy.max_grad_norm": 0}),
    )
    foreign = (Source(values={"per_device_train_batch_size": 4, "num_generations": 8}),)
    unwritable = (
        DEFAULTS.replace(**{"order.last_rollout": "pad"}),
        DEFAULTS.replace(open_terms=("objective: unheard_of",)),
    )


def test_an_editor_takes_recipes_and_refuses_what_a_reading_refuses() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked by the jsonschema package")
    schema = jsonschema.Draft7Validator(NemoAdapter().file_schema("0.7.0"))
    for file in (Path(__file__).parent / "recipes").glob("*.yaml"):
        assert list(schema.iter_errors(dict(load_source(file).values))) == []
    assert schema.is_valid({"policy": {"anything": 1, "dtensor_cfg": None}, "defaults": "base.yaml"})
    for wrong in (
        {"grpo": {"num_prompts_per_step": "many"}},
        {"grpo": {"num_promts_per_step": 8}},
        {"grpo": {"seed": "???"}},
    ):
        assert not schema.is_valid(wrong)

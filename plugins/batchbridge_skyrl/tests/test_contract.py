"""The contract that every adapter keeps. What the cases mean was written down from SkyRL's own code."""

from __future__ import annotations

from dataclasses import replace
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
from batchbridge.meaning.critic import Critic
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_skyrl.config import SkyRLAdapter
from batchbridge_skyrl.rules import RULES

CONTEXT = Context(framework_version="0.3.0", world_size=4, dataset_size=2048)
FOUR = {
    "trainer.placement.policy_num_gpus_per_node": 4,
    "trainer.placement.ref_num_gpus_per_node": 4,
    "trainer.placement.critic_num_gpus_per_node": 4,
    "generator.inference_engine.num_engines": 4,
    "trainer.seed": 42,
}
ALGORITHM, ASYNC = "trainer.algorithm.", "trainer.fully_async."
CORRECTION = f"{ALGORITHM}off_policy_correction."
SYNC_FREE = {
    **FOUR,
    "trainer.placement.colocate_all": False,
    f"{ASYNC}enabled": True,
    f"{ASYNC}num_parallel_generation_workers": 512,
    "trainer.train_batch_size": 256,
    f"{ALGORITHM}policy_loss_type": "rollout_is",
}
"""Fully asynchronous training."""
CARRIED = Carried(
    learning_rate=1e-6,
    lr_schedule="constant",
    warmup_steps=0.0,
    optimizer="adamw",
    beta1=0.9,
    beta2=0.999,
    optimizer_epsilon=1e-8,
    weight_decay=0.01,
    weight_decay_excludes="nothing",
    max_gradient_norm=1.0,
    dropout="on",
    max_prompt_tokens=512,
    max_completion_tokens=1024,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    precision="bf16",
)
DEFAULTS = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=1024, completions_per_prompt=5),
    optimizer_step=OptimizerStep(completions_per_step=1280),
    loss=Loss(policy=LossTerm(aggregation="token_mean"), kl=LossTerm(aggregation="sequence_mean")),
    horizon=Horizon(epochs=1.0),
    micro_batch=MicroBatch(completions_per_device=1),
    advantage=Advantage(baseline="group_mean", scale="group", epsilon=1e-6, ddof=1),
    order=Order(seed=42, last_optimizer_step="error"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        kl_placement="loss",
        kl_estimator="k3",
        kl_coefficient=0.001,
        kl_log_ratio_clamp=20.0,
        kl_clamp=10.0,
        entropy_coefficient=0.0,
        nonfinite_step="skip",
    ),
    carried=CARRIED,
)
"""SkyRL's defaults on four devices: every number from config.py, ppo_utils.py, worker.py and fsdp_strategy.py."""
DAPO = DEFAULTS.replace(
    **{
        "rollout.group_filter": "replace_zero_variance",
        "rollout.truncated_completions": "mask",
        "optimizer_step.passes_per_rollout": 2,
        "loss.policy": LossTerm(aggregation="token_mean", denominator_scope="micro_batch"),
        "loss.kl": None,
        "micro_batch.completions_per_device": 8,
        "micro_batch.forward_completions_per_device": 16,
        "horizon.epochs": 20.0,
        "horizon.rollouts": 100,
        "objective.clip_high": 0.28,
        "objective.dual_clip": 10.0,
        "objective.kl_placement": "none",
        "objective.kl_estimator": None,
        "objective.kl_coefficient": 0.0,
        "objective.kl_log_ratio_clamp": None,
        "objective.kl_clamp": None,
        "objective.sampler_correction": "token_truncate [-, 2.0]",
        "carried.warmup_steps": 160.0,
        "carried.weight_decay": 0.1,
        "open_terms": ("rollout: overlong_punishment",),
    }
)
DR_GRPO = DEFAULTS.replace(
    **{
        "loss.policy": LossTerm(aggregation="sequence_sum_over_constant", constant=1536),
        "loss.kl": None,
        "loss.entropy": LossTerm(aggregation="token_mean", denominator_scope="micro_batch"),
        "micro_batch.completions_per_device": None,
        "micro_batch.tokens_per_device": 8192,
        "micro_batch.cap": "soft",
        "advantage.scale": "none",
        "advantage.epsilon": None,
        "advantage.ddof": None,
        "objective.kl_placement": "reward",
        "objective.kl_estimator": "k1",
        "objective.kl_log_ratio_clamp": None,
        "objective.kl_clamp": None,
        "objective.entropy_coefficient": 0.01,
    }
)
ASYNCHRONOUS = DEFAULTS.replace(
    **{
        "rollout.prompts_per_rollout": 256,
        "rollout.group_filter": "replace_zero_variance",
        "staleness.mode": "bounded",
        "staleness.maximum": 4,
        "objective.surrogate": "rollout_is",
        "objective.old_logprobs": "sampler",
    }
)

UNSCALED: dict[str, Any] = {"advantage.scale": "none", "advantage.epsilon": None, "advantage.ddof": None}
UNCLIPPED: dict[str, Any] = {"objective.clip_low": None, "objective.clip_high": None}


PPO = DEFAULTS.replace(
    **{
        "advantage": Advantage(baseline="value", scale="batch", ddof=1),
        "critic": Critic(
            completions_per_step=640,
            aggregation="sequence_mean",
            passes_per_rollout=2,
            value_clip=0.1,
            gae_lambda=0.95,
            learning_rate=5e-6,
            max_gradient_norm=1.0,
            completions_per_device=1,
        ),
        "optimizer_step.passes_per_rollout": 2,
    }
)
"""worker.CriticWorkerBase and ppo_critic_loss: half the mean over completions of the mean over their tokens."""


def _valid(name: str, values: dict[str, Any], spec: Spec | None = None) -> ValidCase:
    return ValidCase(
        name=name, source=Source(values={**FOUR, **values}), context=CONTEXT, spec=spec, source_has_world_size=True
    )


def _invalid(name: str, code: int, values: dict[str, Any]) -> InvalidCase:
    source = Source(values={**FOUR, **values})
    return InvalidCase(name=name, source=source, context=CONTEXT, codes=(f"BB-SKYRL-{code:03}",))


LATER = Context(framework_version="0.4.0", world_size=4, dataset_size=2048)
CAPTURED = {
    "generator.inference_engine.enable_return_sample_support_set": True,
    "generator.sampling_params.top_k": 20,
}
"""Settings of 0.4.0 with which the engine returns the tokens that sampling chose from."""
ANCHORED = {f"{ALGORITHM}policy_loss_type": "cispo", f"{ALGORITHM}cispo.cispo_anchor": "rollout"}


class TestSkyRLAdapter(AdapterContract):
    adapter_class = SkyRLAdapter
    framework_modules = ("skyrl", "torch", "ray", "omegaconf")
    unknown_version = "0.2.0"
    written_version = "0.3.0"
    rules = RULES
    meanings = (
        ({"trainer.strategy": "fsdp2"}, {}),
        (
            {"trainer.strategy": "megatron"},
            {"carried.weight_decay_excludes": "biases_and_norms", "objective.nonfinite_step": None},
        ),
        (
            {f"{ALGORITHM}loss_reduction": "sequence_mean"},
            {"loss.policy.aggregation": "sequence_mean", "loss.kl": None},  # KL is averaged with the policy's term
        ),
        ({f"{ALGORITHM}loss_reduction": "prompt_mean"}, {"loss.policy.aggregation": "prompt_mean"}),
        ({f"{ALGORITHM}advantage_estimator": "rloo"}, {**UNSCALED, "advantage.baseline": "leave_one_out"}),
        (
            {f"{ALGORITHM}advantage_estimator": "reinforce++"},
            {"advantage.baseline": "none", "advantage.scale": "batch", "advantage.epsilon": None},
        ),
        ({f"{ALGORITHM}policy_loss_type": "gspo"}, {"objective.ratio_level": "sequence"}),
        (
            {f"{ALGORITHM}policy_loss_type": "cispo"},
            {"objective.surrogate": "cispo", "objective.clip_low": 0.0, "objective.clip_high": 5.0},
        ),
        ({f"{ALGORITHM}policy_loss_type": "clip_cov"}, {"objective.surrogate": "clip_cov"}),
        *(
            ({f"{ALGORITHM}policy_loss_type": name}, {**UNCLIPPED, "objective.surrogate": name})
            for name in ("sapo", "kl_cov", "importance_sampling")
        ),
        *(
            (
                {f"{ALGORITHM}policy_loss_type": "dppo", f"{ALGORITHM}dppo.dppo_type": f"binary_{kind}"},
                {"objective.surrogate": f"dppo_{kind}", "objective.old_logprobs": "sampler"},
            )
            for kind in ("tv", "kl")
        ),
        (
            {f"{ALGORITHM}policy_loss_type": "cross_entropy"},
            {
                **UNCLIPPED,
                "objective.surrogate": "cross_entropy",
                "objective.ratio_level": None,
                "objective.old_logprobs": None,
            },
        ),
        ({f"{ALGORITHM}kl_ctrl.type": "adaptive"}, {}),  # of a penalty in the reward alone
        *(
            (
                {f"{ALGORITHM}kl_estimator_type": name},
                {"objective.kl_estimator": name, "objective.kl_log_ratio_clamp": None, "objective.kl_clamp": None},
            )
            for name in ("k2", "abs")
        ),
        *(
            ({f"{CORRECTION}{key}": word}, {"objective.sampler_correction": text})
            for key, word, text in (
                ("sequence_mask_metric", "product", "sequence_mask [0.5, 2.0]"),
                ("sequence_mask_metric", "geometric", "sequence_geometric_mask [0.99, 1.01]"),
                ("tis_ratio_type", "sequence", "sequence_truncate [-, 5.0]"),
            )
        ),
        ({"trainer.seed": None}, {}),
    )
    excused: ClassVar[dict[str, str]] = {
        "entrypoint": "a program brings estimators and terms of its own",
        "trainer.placement.policy_num_gpus_per_node": "one device by default, and the case asks for four",
        f"{ALGORITHM}advantage_estimator = 'gae'": "needs a critic, as the case ppo has one",
        f"{ALGORITHM}dynamic_sampling.type = 'replace'": "an error: two groups have one uid",
        f"{ALGORITHM}use_tis": "its bound is -1 where nobody says one",
        f"{ALGORITHM}advantage_estimator": "remax is an open term, and reinforce++ wants more of a group than one",
    }
    valid = (
        _valid("defaults", {}, DEFAULTS),
        replace(_valid("limited tokens", {**CAPTURED, f"{CORRECTION}tis_ratio_type": "token"}), context=LATER),
        _valid(
            "dapo",
            {
                "entrypoint": "examples.train.algorithms.dapo.main_dapo",
                f"{ALGORITHM}policy_loss_type": "dual_clip",
                f"{ALGORITHM}eps_clip_high": 0.28,
                f"{ALGORITHM}clip_ratio_c": 10.0,
                f"{ALGORITHM}dynamic_sampling": {"type": "filter", "max_sample_batches": 30},
                f"{ALGORITHM}loss_reduction": "token_mean_legacy",
                f"{ALGORITHM}use_kl_loss": False,
                f"{CORRECTION}tis_ratio_type": "token",
                "generator.apply_overlong_filtering": True,
                "trainer.micro_train_batch_size_per_gpu": 8,
                "trainer.micro_forward_batch_size_per_gpu": 16,
                "trainer.update_epochs_per_batch": 2,
                "trainer.epochs": 20,
                "trainer.max_training_steps": 100,
                "trainer.policy.optimizer_config": {"num_warmup_steps": 160, "weight_decay": 0.1},
            },
            DAPO,
        ),
        _valid(
            "dr. grpo",
            {
                f"{ALGORITHM}grpo_norm_by_std": False,
                f"{ALGORITHM}loss_reduction": "seq_mean_token_sum_norm",
                f"{ALGORITHM}max_seq_len": 1536,
                f"{ALGORITHM}use_kl_loss": False,
                f"{ALGORITHM}use_kl_in_reward": True,
                f"{ALGORITHM}kl_estimator_type": "k1",
                f"{ALGORITHM}use_entropy_loss": True,
                "trainer.max_tokens_per_microbatch": 8192,
            },
            DR_GRPO,
        ),
        _valid(
            "fully asynchronous",
            {
                **SYNC_FREE,
                "entrypoint": "examples.train.fully_async.main_fully_async",
                f"{ALGORITHM}zero_variance_filter": True,
                f"{ASYNC}sample_full_batch": True,
            },
            ASYNCHRONOUS,
        ),
        _valid(
            "megatron, gspo, several turns",
            {
                "trainer.strategy": "megatron",
                "trainer.policy.megatron_config.tensor_model_parallel_size": 2,
                "trainer.ref.megatron_config.tensor_model_parallel_size": 2,
                "trainer.policy.megatron_config.moe_router_load_balancing_type": "aux_loss",
                "trainer.policy.megatron_config.moe_aux_loss_coeff": 0.01,
                f"{ALGORITHM}policy_loss_type": "gspo",
                f"{ALGORITHM}loss_reduction": "sequence_mean",
                f"{CORRECTION}sequence_mask_metric": "geometric",
                f"{CORRECTION}outlier_token_is_threshold_high": 100.0,
                f"{ALGORITHM}advantage_estimator": "rloo",
                "generator.max_turns": 4,
                "generator.max_input_length": 8192,
            },
        ),
        _valid(
            "what the schema has no word for",
            {
                f"{ALGORITHM}advantage_estimator": "maxrl",
                f"{ALGORITHM}policy_loss_type": "sapo",
                f"{ALGORITHM}sapo": {"tau_pos": 1.1},
                f"{ALGORITHM}temperature": 0.9,
                "generator.sampling_params": {"min_p": 0.1, "top_k": 20},
                "generator.zero_reward_on_non_stop": True,
                "trainer.update_ref_every_epoch": True,
            },
        ),
        _valid(
            "ppo's critic",
            {
                f"{ALGORITHM}advantage_estimator": "gae",
                f"{ALGORITHM}lambd": 0.95,
                f"{ALGORITHM}value_clip": 0.1,
                "trainer.critic.model.path": "some/model",
                "trainer.critic_mini_batch_size": 128,
                "trainer.update_epochs_per_batch": 2,
            },
            PPO,
        ),
        _valid(
            "an estimator that a program registers",
            {
                "entrypoint": "examples.train.algorithms.custom_advantage_estimator.main_custom_adv_est",
                f"{ALGORITHM}advantage_estimator": "simple_baseline",
            },
        ),
        _valid(
            "distillation, whose estimator its program registers",
            {
                "entrypoint": "examples.train.on_policy_distillation.main_on_policy_distill",
                f"{ALGORITHM}advantage_estimator": "no_op",
                f"{ALGORITHM}policy_loss_type": "importance_sampling",
            },
        ),
        _valid(
            "warned of",
            {
                **SYNC_FREE,
                "entrypoint": "skyrl.train.entrypoints.main_base",
                f"{ALGORITHM}advantage_batch_normalize": True,
                f"{CORRECTION}token_mask_is_threshold_high": 2.0,
            },
        ),
        _valid(
            "ppo",
            {
                f"{ALGORITHM}advantage_estimator": "gae",
                f"{ALGORITHM}lambd": 0.95,
                "trainer.critic.model.path": "some/model",
                f"{ALGORITHM}loss_reduction": "prompt_mean",
                f"{ALGORITHM}policy_loss_type": "dppo",
                f"{ALGORITHM}dppo": {"dppo_type": "binary_kl", "delta_low": 0.05},
                f"{ALGORITHM}kl_estimator_type": "abs",
            },
        ),
        _valid(
            "one step ahead", {"entrypoint": "examples.train.async.main_async", "trainer.placement.colocate_all": False}
        ),
        _valid("empty groups", {"generator.sampling_params": {}, "trainer.algorithm": None}, DEFAULTS),
        _valid("groups of one", {"generator.n_samples_per_prompt": 1, f"{ALGORITHM}policy_loss_type": "cispo"}),
    )
    invalid = (
        _invalid("a stranger", 4, {"trainer.trian_batch_size": 8}),
        _invalid("no number", 5, {"trainer.epochs": "many"}),
        _invalid("a group that is a list", 5, {"trainer.algorithm": ["grpo"]}),
        _invalid("three betas", 10, {"trainer.policy.optimizer_config.adam_betas": [0.9, 0.99, 0.999]}),
        _invalid("input", 11, {"generator.max_input_length": 1024}),
        _invalid("log-probabilities", 12, {"generator.sampling_params.logprobs": 5}),
        _invalid(
            "megatron",
            13,
            {"trainer.strategy": "megatron", "trainer.policy.sequence_parallel_size": 2},
        ),
        _invalid("gae", 14, {f"{ALGORITHM}advantage_estimator": "gae"}),
        _invalid("kl twice", 15, {f"{ALGORITHM}use_kl_in_reward": True}),
        _invalid("replicas", 16, {"trainer.policy.sequence_parallel_size": 3}),
        _invalid("mini-batch", 17, {"trainer.policy_mini_batch_size": 300}),
        _invalid("micro-batch", 17, {"trainer.micro_train_batch_size_per_gpu": 7}),
        _invalid("critic", 18, {"trainer.critic.model.path": "a/b", "trainer.critic_mini_batch_size": 300}),
        _invalid(
            "the critic's devices",
            18,
            {
                "trainer.critic.model.path": "a/b",
                "trainer.placement.colocate_all": False,
                "trainer.placement.critic_num_nodes": 3,
            },
        ),
        _invalid(
            "the critic's sequences",
            18,
            {
                "trainer.critic.model.path": "a/b",
                "trainer.placement.colocate_all": False,
                "trainer.placement.critic_num_gpus_per_node": 3,
            },
        ),
        _invalid(
            "padding",
            13,
            {
                "trainer.strategy": "megatron",
                "trainer.policy.megatron_config.context_parallel_size": 2,
                "trainer.remove_microbatch_padding": False,
            },
        ),
        _invalid("checkpoints", 19, {"trainer.max_ckpts_to_keep": 0}),
        _invalid("loss", 20, {f"{ALGORITHM}policy_loss_type": "ppo"}),
        _invalid("estimator", 20, {f"{ALGORITHM}advantage_estimator": "remax"}),
        _invalid("reduction", 20, {f"{ALGORITHM}loss_reduction": "token_sum"}),
        _invalid(
            "turns", 21, {"generator.step_wise_trajectories": True, f"{ALGORITHM}advantage_estimator": "reinforce++"}
        ),
        _invalid("merged turns", 21, {"generator.merge_stepwise_output": True}),
        _invalid("constant", 22, {f"{ALGORITHM}loss_reduction": "seq_mean_token_sum_norm"}),
        _invalid("corrected", 23, {f"{ALGORITHM}policy_loss_type": "kl_cov", f"{CORRECTION}tis_ratio_type": "token"}),
        _invalid("shared", 24, {"generator.inference_engine.num_engines": 2}),
        _invalid(
            "reference", 24, {"trainer.placement.colocate_all": False, "trainer.placement.ref_num_gpus_per_node": 2}
        ),
        _invalid("schedule", 25, {"trainer.policy.optimizer_config.scheduler": "cosine_with_min_lr"}),
        _invalid(
            "megatron's schedule",
            25,
            {"trainer.strategy": "megatron", "trainer.policy.optimizer_config.scheduler": "cosine"},
        ),
        _invalid("asynchronous, several steps", 26, {**SYNC_FREE, "trainer.train_batch_size": 512}),
        _invalid("asynchronous, workers", 26, {**SYNC_FREE, f"{ASYNC}num_parallel_generation_workers": 8}),
        _invalid("asynchronous, loss", 26, {**SYNC_FREE, f"{ALGORITHM}policy_loss_type": "regular"}),
        _invalid(
            "tail",
            27,
            {"trainer.train_batch_size": 6, "trainer.policy_mini_batch_size": 6, "generator.n_samples_per_prompt": 1},
        ),
        _invalid("a weight below 0", 46, {f"{ALGORITHM}use_tis": True}),
        *(
            replace(_invalid(name, code, values), context=LATER)
            for name, code, values in (
                ("two corrections", 29, {**ANCHORED, f"{CORRECTION}tis_ratio_type": "token"}),
                ("captured without top_k", 30, {**CAPTURED, "generator.sampling_params.top_k": -1}),
                ("replayed without capture", 31, {f"{ALGORITHM}enable_sample_support_replay": True}),
                ("limited sequences", 48, {**CAPTURED, f"{CORRECTION}tis_ratio_type": "sequence"}),
            )
        ),
        _invalid("replace", 28, {f"{ALGORITHM}dynamic_sampling.type": "replace"}),
    )
    foreign = (
        Source(values={"per_device_train_batch_size": 4, "num_generations": 8}),
        Source(values={"trainer.logger": "console", "actor_rollout_ref.rollout.n": 8, "data.train_batch_size": 4}),
    )
    unwritable = (
        DEFAULTS.replace(**{"order.last_rollout": "pad"}),
        DEFAULTS.replace(**{"optimizer_step.completions_per_step": 1281}),
        DEFAULTS.replace(open_terms=("advantage: gdpo",)),
    )

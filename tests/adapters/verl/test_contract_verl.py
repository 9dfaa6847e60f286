"""verl's adapter keeps the contract that every adapter keeps; see `batchbridge.testing`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from batchbridge.contract.reading import Context, Source
from batchbridge.meaning.spec import (
    Advantage,
    Carried,
    Critic,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Staleness,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_verl.config import VerlAdapter

VERSION = "0.9.1"
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
SAMPLER = "trainer.v1.sampler."
DROPS = "replace_zero_variance"
FILTER = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"}
AHEAD = {"trainer.v1.trainer_mode": "colocate_async"}
RUN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}ppo_mini_batch_size": 16,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
    "data.seed": 7,
    "trainer.total_epochs": 2,
}
MEANING = Spec(
    topology=Topology(world_size=8),
    rollout=Rollout(prompts_per_rollout=64, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=64),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2.0, lr_tick="rollout"),
    micro_batch=MicroBatch(completions_per_device=2),
    advantage=Advantage(epsilon=1e-6, ddof=1),
    order=Order(seed=7, last_optimizer_step="pad"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        old_logprobs="rollout_start",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="skip",
    ),
    carried=Carried(
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
        max_completion_tokens=512,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
"""`RUN` on one node of 8 GPUs, every field written out by hand."""


def context(version=VERSION, dataset_size=256, world_size=8):
    return Context(framework_version=version, world_size=world_size, dataset_size=dataset_size)


def valid(name, values=(), *, spec=None, **said):
    source = Source(values={**RUN, **dict(values)})
    return ValidCase(name=name, source=source, context=context(**said), spec=spec, source_has_world_size=True)


def invalid(name, values, *codes, **said):
    return InvalidCase(name=name, source=Source(values={**RUN, **values}), context=context(**said), codes=codes)


WORDS = ("python3", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in RUN.items()))


CORRECTION, REFERENCE = "algorithm.rollout_correction.", {"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2}
UNSCORED = {"actor_rollout_ref.rollout.calculate_log_probs": False}
REFUSED = {
    "critic": {"critic.enable": True, "critic.ppo_micro_batch_size_per_gpu": 2},
    "critic_engine": {
        "algorithm.adv_estimator": "gae",
        "critic.ppo_micro_batch_size_per_gpu": 2,
        "critic.fsdp.ulysses_sequence_parallel_size": 2,
    },
    "critic_correction": {
        "algorithm.adv_estimator": "gae",
        "critic.ppo_micro_batch_size_per_gpu": 2,
        f"{CORRECTION}rollout_is": "token",
        "actor_rollout_ref.rollout.calculate_log_probs": True,
    },
    "value_baseline": {"algorithm.adv_estimator": "gae", "critic.enable": False},
    "distillation": {"distillation.enabled": True},
    "custom_sampler": {**FILTER, f"{SAMPLER}custom_sampler.path": "mine.py"},
    "sync_refill_failed_groups": {f"{SAMPLER}sync_refill_failed_groups": True},
    "critic_warmup": {"trainer.critic_warmup": 5},
    "surrogate": {f"{ACTOR}policy_loss.loss_mode": "geo_mean"},
    "dro_beta": {f"{ACTOR}policy_loss.loss_mode": "dro"},
    "bypass_mode": {f"{CORRECTION}bypass_mode": True, f"{CORRECTION}rollout_is": "token"},
    "rejection": {f"{CORRECTION}rollout_rs": "token", **UNSCORED},
    "sampler_correction": {f"{CORRECTION}rollout_is": "token", **UNSCORED},
    "kl_estimator": {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "full", **REFERENCE},
    "unproven_engine": {f"{ACTOR}strategy": "megatron"},
}
"""Refusal to settings whose trainer is refused by it."""


ENGINE_WORKERS = {"trainer.use_legacy_worker_impl": "disable"}
REFUSED_CASES = {
    **{name: valid(name, values) for name, values in REFUSED.items()},
    "release": valid("release", FILTER, version="0.9.0"),
    "legacy_workers": valid("legacy_workers", {f"{ACTOR}use_prefix_grouper": True}, version="0.7.1"),
    "padded_rows": valid(
        "padded_rows", {**ENGINE_WORKERS, "actor_rollout_ref.model.use_remove_padding": False}, version="0.7.1"
    ),
    "earlier_release": valid(
        "earlier_release",
        {**ENGINE_WORKERS, "algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 2},
        version="0.7.1",
    ),
    "no_step": valid("no_step", dataset_size=3),
    "main_ppo_sync": ValidCase(
        name="main_ppo_sync",
        source=Source(argv=("python3", "-m", "verl.trainer.main_ppo_sync", *WORDS[3:])),
        context=context(version="0.8.0"),
    ),
    "own_program": ValidCase(
        name="own_program", source=Source(argv=("python3", "-m", "mine.train", *WORDS[3:])), context=context()
    ),
    "fully_async": ValidCase(
        name="fully_async",
        source=Source(
            argv=(
                *("python3", "-m", "verl.experimental.fully_async_policy.fully_async_main", *WORDS[3:]),
                *("data.train_batch_size=0", "actor_rollout_ref.hybrid_engine=False"),
            )
        ),
        context=context(),
    ),
    "one_step_off": ValidCase(
        name="one_step_off",
        source=Source(argv=("python3", "-m", "verl.experimental.one_step_off_policy.main_ppo", *WORDS[3:])),
        context=context(),
    ),
}


IDLE = json.loads((Path(__file__).parents[1] / "idle_settings.json").read_text(encoding="utf-8"))
"""Adapter -> reason -> settings that upstream declares, and of which no case shows that they decide anything."""


class TestVerl(AdapterContract):
    adapter_class = VerlAdapter
    framework_modules = ("hydra", "omegaconf", "ray", "torch", "transformers", "verl")
    unknown_version = "0.3.0"
    written_version = VERSION
    meanings = (
        (
            {f"{ROLLOUT}n": None, "trainer.total_epochs": None, "data.seed": None},
            {
                "rollout.completions_per_prompt": 1,
                "optimizer_step.completions_per_step": 16,
                "horizon.epochs": 30.0,
                "order.seed": 67280421310721,  # torch's own
            },
        ),
        (
            {"data.train_batch_size": 512, f"{ACTOR}ppo_mini_batch_size": None},
            {"rollout.prompts_per_rollout": 512, "optimizer_step.completions_per_step": 1024},
        ),
        (
            {
                "model_engine": "torchtitan",
                f"{ACTOR}optim.name": "AdamW",
                f"{ACTOR}optim.eps": 1e-6,
                f"{ACTOR}optim.decay_type": "constant",
                f"{ACTOR}optim.lr_scheduler_type": None,
            },
            {"carried.optimizer_epsilon": 1e-6},
        ),
        (
            {
                "algorithm.adv_estimator": "gae",
                "critic.ppo_micro_batch_size_per_gpu": 4,
                "algorithm.use_pf_ppo": True,
            },
            {
                "advantage.baseline": "value",
                "advantage.scale": "batch",
                "advantage.epsilon": None,
                "critic": Critic(
                    completions_per_step=64,
                    aggregation="token_mean",
                    passes_per_rollout=1,
                    rollout_shuffle="none",
                    warmup_rollouts=0,
                    denominator_scope="optimizer_step",
                    count_empty=True,
                    value_clip=0.5,
                    gamma=1.0,
                    gae_lambda=1.0,
                    learning_rate=1e-5,
                    max_gradient_norm=1.0,
                ),
                "open_terms": ("rollout: algorithm.use_pf_ppo true",),
            },
        ),
    )
    idle: ClassVar = {key: why for why, keys in IDLE["verl"].items() for key in keys}
    excused: ClassVar = {
        "algorithm.adv_estimator": "gae: the default has a critic, whose settings have tests of their own",
        f"{ACTOR}ppo_micro_batch_size_per_gpu": "null, which only token budgets leave",
    }
    refused = REFUSED_CASES
    refused_otherwise = (
        "advantages",  # of a live function
        *(
            "batch_scale",
            "critic_settings",
            "tokens_per_device",
            "asynchronous",
            "initialised",
            "group_filter",
            "staleness",
            "aggregation",
            "sampler_logprobs",
            "train_sampler",
        ),
        *("denominator_scope", "loss_per_term", "kl_without_reference", "kl_in_reward", "truncated_completions"),
        *("step_crosses_rollouts", "group_size", "fp16", "padding_free"),
    )
    valid = (
        valid("64 prompts x 4 in steps of 16 prompts", spec=MEANING),
        valid(
            "the deprecated trainer, unbalanced",
            {"trainer.use_v1": False, "trainer.balance_batch": False},
            spec=MEANING.replace(**{"order.last_optimizer_step": "error"}),
        ),
        valid(
            "token budget with sequence parallelism",
            {f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ulysses_sequence_parallel_size": 2},
            spec=MEANING.replace(
                **{
                    "topology.context_parallel": 2,
                    "micro_batch": MicroBatch(tokens_per_device=16384),
                }
            ),
        ),
        valid(
            "a constant denominator",
            {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 2048},
            spec=MEANING.replace(**{"loss.policy": LossTerm(aggregation="sequence_sum_over_constant", constant=2048)}),
        ),
        valid(
            "KL in the loss",
            {
                f"{ACTOR}use_kl_loss": True,
                f"{ACTOR}kl_loss_coef": 0.01,
                "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
            },
            spec=MEANING.replace(
                **{
                    "objective.kl_placement": "loss",
                    "objective.kl_estimator": "k3",
                    "objective.kl_coefficient": 0.01,
                    "objective.kl_clamp": 10.0,
                }
            ),
        ),
        valid(
            "Megatron",
            {
                "model_engine": "megatron",
                f"{ACTOR}megatron.tensor_model_parallel_size": 2,
                f"{ACTOR}megatron.pipeline_model_parallel_size": 2,
            },
        ),
        valid("sapo", {f"{ACTOR}policy_loss.loss_mode": "sapo"}),
        valid("gspo for 10 rollouts", {f"{ACTOR}policy_loss.loss_mode": "gspo", "trainer.total_training_steps": 10}),
        valid("rloo", {"algorithm.adv_estimator": "rloo"}),
        valid(
            "reinforce++ with KL in the reward",
            {
                "algorithm.adv_estimator": "reinforce_plus_plus",
                "algorithm.use_kl_in_reward": True,
                "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
            },
        ),
        valid(
            "cosine with a floor",
            {
                f"{ACTOR}optim.lr_scheduler_type": "cosine",
                f"{ACTOR}optim.min_lr_ratio": 0.1,
                f"{ACTOR}optim.lr_warmup_steps_ratio": 0.05,
            },
        ),
        valid(
            "fp32",
            {
                f"{ACTOR}fsdp_config.mixed_precision": {
                    "param_dtype": "fp32",
                    "reduce_dtype": "fp32",
                    "buffer_dtype": "fp32",
                }
            },
        ),
        valid("groups filtered by their rewards", FILTER, spec=MEANING.replace(**{"rollout.group_filter": DROPS})),
        valid(
            "generation that runs ahead", AHEAD, spec=MEANING.replace(staleness=Staleness(mode="bounded", maximum=7))
        ),
        valid(
            "generation that runs ahead of everything",
            {**AHEAD, f"{SAMPLER}max_off_policy_strategy": "wait"},
            spec=MEANING.replace(staleness=Staleness(mode="unbounded", maximum=None)),
        ),
        valid(
            "an optimal baseline of each token",
            {
                "trainer.use_v1": False,
                "algorithm.adv_estimator": "optimal_token_baseline",
                f"{ACTOR}calculate_sum_pi_squared": True,
            },
        ),
        valid("importance weights of the sampler", {"algorithm.rollout_correction.rollout_is": "token"}),
        ValidCase(
            name="a launch command",
            source=Source(argv=WORDS),
            context=context(),
            spec=MEANING,
            source_has_world_size=True,
        ),
        ValidCase(
            name="nested keys on 16 devices",
            source=Source(
                values={
                    "algorithm": {"adv_estimator": "grpo"},
                    "data": {"train_batch_size": 64, "seed": 7},
                    "actor_rollout_ref": {
                        "actor": {"ppo_mini_batch_size": 16, "ppo_micro_batch_size_per_gpu": 2},
                        "rollout": {"name": "vllm", "n": 4, "log_prob_micro_batch_size_per_gpu": 2},
                    },
                    "trainer": {"nnodes": 2, "total_epochs": 2},
                }
            ),
            context=context(world_size=None),
            spec=MEANING.replace(**{"topology.world_size": 16}),
            source_has_world_size=True,
        ),
    )
    invalid = (
        invalid("a rollout that the devices do not share", {"data.train_batch_size": 63}, "BB-VERL-004"),
        invalid("fewer prompts than a step", {"data.train_batch_size": 8}, "BB-VERL-012"),
        invalid("no micro-batch", {f"{ACTOR}ppo_micro_batch_size_per_gpu": None}, "BB-VERL-013"),
        invalid(
            "a step that the replicas do not share",
            {f"{ACTOR}ppo_mini_batch_size": 17, "trainer.use_v1": False},
            "BB-VERL-020",
            "BB-VERL-022",
        ),
        invalid("micro-batches that do not fit", {f"{ACTOR}ppo_micro_batch_size_per_gpu": 3}, "BB-VERL-021"),
        invalid(
            "three devices share a sequence",
            {
                "data.train_batch_size": 48,
                f"{ACTOR}ppo_mini_batch_size": 12,
                f"{ACTOR}ulysses_sequence_parallel_size": 3,
            },
            "BB-VERL-017",
        ),
        invalid("an unknown aggregation", {f"{ACTOR}loss_agg_mode": "token_mean"}, "BB-VERL-024"),
        invalid("no prompt", {"data.train_batch_size": 0}, "BB-VERL-010"),
        invalid("a misspelt key", {"data.train_batchsize": 64}, "BB-VERL-003"),
        invalid("text for a number", {f"{ACTOR}ppo_mini_batch_size": "sixteen"}, "BB-VERL-006"),
        invalid("an engine of nobody", {"model_engine": "deepspeed"}, "BB-VERL-007"),
        invalid("no rollout engine", {f"{ROLLOUT}name": "???"}, "BB-VERL-035"),
        invalid("a dataset smaller than a rollout", {}, "BB-VERL-049", dataset_size=10),
    )
    foreign = (
        Source(values={"per_device_train_batch_size": 4, "num_generations": 6}),
        Source(values={"data": {"rollout_batch_size": 512}, "worker": {"actor": {"global_batch_size": 128}}}),
        Source(argv=("python3", "-m", "verl.trainer.main", "config=examples/config.yaml")),
    )
    unwritable = (
        MEANING.replace(**{"optimizer_step.completions_per_step": 30}),
        MEANING.replace(horizon=Horizon(optimizer_steps=10, lr_tick="rollout")),
        MEANING.replace(**{"horizon.lr_tick": "optimizer_step"}),
        MEANING.replace(staleness=Staleness(mode="lookahead", maximum=1)),
        MEANING.replace(staleness=Staleness(mode="bounded", maximum=8, unit="optimizer_steps")),
        MEANING.replace(staleness=Staleness(mode="bounded", maximum=None)),
        MEANING.replace(**{"staleness.mode": "unbounded", "order.last_optimizer_step": "error"}),
    )

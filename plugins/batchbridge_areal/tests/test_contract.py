"""The contract that every adapter keeps, with meanings that were written down by hand from AReaL's code."""

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
from batchbridge.meaning.spec import Staleness
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_areal.config import ArealAdapter
from batchbridge_areal.settings import MANDATORY

CONTEXT = Context(framework_version="1.0.4", world_size=4, dataset_size=512)
NORM = {"mean_level": "group", "std_level": "group", "group_size": 4}
VALUES: dict[str, Any] = {
    **MANDATORY,
    "total_train_epochs": 10,
    "train_dataset.batch_size": 256,
    "train_dataset.max_length": 1024,
    "rollout.consumer_batch_size": 256,
    "rollout.max_head_offpolicyness": 2,
    "gconfig.n_samples": 4,
    "gconfig.max_new_tokens": 1024,
    "actor.backend": "fsdp:d4p1t1",
    "actor.disable_dropout": True,
    "actor.mb_spec.max_tokens_per_mb": 10240,
    "actor.optimizer.lr": 1.7e-5,
    "actor.eps_clip": 0.4,
    "actor.kl_ctl": 0.0,
    "actor.ppo_n_minibatches": 2,
    "actor.use_decoupled_loss": True,
    "actor.rejection_sampling": {"metric": "ratio", "upper": 5.0},
    "actor.reward_norm": NORM,
}
MEANING = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=256, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=512),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=10.0, lr_tick="rollout"),
    micro_batch=MicroBatch(tokens_per_device=10240),
    advantage=Advantage(baseline="group_mean", scale="group", epsilon=1e-5, ddof=1),
    order=Order(seed=None, prompt_shuffle="epoch_permutation", last_rollout="drop"),
    staleness=Staleness(mode="bounded", maximum=2, unit="weight_versions"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.4,
        clip_high=0.4,
        old_logprobs="rollout_start",
        sampler_correction="token_mask [-, 5.0]",
        kl_placement="none",
        kl_coefficient=0.0,
        reward_clip=20.0,
        entropy_coefficient=0.0,
        nonfinite_step="skip",
    ),
    carried=Carried(
        learning_rate=1.7e-5,
        lr_schedule="constant",
        warmup_ratio=0.001,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-8,
        weight_decay=0.01,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        dropout="off",
        max_prompt_tokens=1024,
        max_completion_tokens=1024,
        max_total_tokens=32768,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
REJECTION, ADV = "actor.rejection_sampling", "actor.adv_norm"
SOFT = {"actor.use_decoupled_loss": False, REJECTION: None, "actor.use_sapo_loss": True}
BROKEN: dict[int, dict[str, Any]] = {
    4: {"actor.behave_imp_weight_cap": 5.0},
    5: {"actor.ppo_n_minibatches": "many"},
    10: {"actor.backend": "ddp:d4"},
    11: {"actor.backend": "fsdp:d2p2"},
    12: {"actor.backend": "archon:d4e8"},
    13: {"total_train_epochs": 0},
    14: {**SOFT, "actor.sapo_tau_neg": 0.0},
    15: {REJECTION: {"upper": 1.0}},
    16: {"actor.use_sapo_loss": True},
    17: {"rollout.queue_size": 128},
    18: {"rollout.consumer_batch_size": 1},
    19: {"train_dataset.batch_size": 254, "rollout.consumer_batch_size": 254},
    20: {"actor.ppo_n_minibatches": 512},
    21: {"actor.c_clip": 1.0},
    22: {"rollout.backend": None},
    30: {"actor.reward_norm": {**NORM, "group_size": 1}},
    31: {"actor.optimizer.gradient_clipping": 0.0},
    32: {"actor.use_decoupled_loss": False, REJECTION: {"lower": 1.5}},
}
SILENT: dict[int, dict[str, Any]] = {
    33: {"actor.kl_ctl": None},
    34: {"gconfig.n_samples": 1, "actor.reward_norm": {**NORM, "group_size": 1}},
    35: {"rollout.consumer_batch_size": 512},
    36: {"actor.use_decoupled_loss": False},
    37: {"gconfig.temperature": 0.6},
    38: {"actor.mask_no_eos_with_zero": True},
    39: {"actor.optimizer.min_lr_ratio": 0.1},
    40: {"dynamic_bs": True},
    41: {**SOFT, "actor.c_clip": 3.0},
    42: {"rollout.consumer_batch_size": 255},
}
OPEN: dict[int, dict[str, Any]] = {
    50: {"critic": {"path": "x"}},
    51: {"teacher": {"path": "x"}},
    52: {"train_dataset.drop_last": False},
    53: {"rollout.agent": {"mode": "online"}},
    60: {"train_dataset.type": "sft"},
}
NO_SCALE = {"advantage.scale": "none", "advantage.epsilon": None, "advantage.ddof": None}
NO_CORRECTION = {"objective.sampler_correction": None}
NORMS = (
    '{"eps": 1e-05, "group_size": %s, "mean_leave1out": false, "mean_level": %s, "std_level": %s, "std_unbiased": true}'
)


def source(settings: dict[str, Any]) -> Source:
    values = {**VALUES, **settings}
    return Source(values={key: value for key, value in values.items() if value is not None})


class TestArealAdapter(AdapterContract):
    adapter_class = ArealAdapter
    framework_modules = ("areal", "torch", "hydra", "omegaconf", "megatron")
    unknown_version = "0.3"
    written_version = "1.0.4"
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
        (
            {"actor.backend": "megatron:d2t2"},
            {
                "topology.tensor_parallel": 2,
                "carried.weight_decay_excludes": "biases_and_norms",
                "objective.nonfinite_step": None,
            },
        ),
        (
            {"actor.backend": "megatron:d1p4"},
            {
                "topology.pipeline_parallel": 4,
                "carried.weight_decay_excludes": "biases_and_norms",
                "objective.nonfinite_step": None,
            },
        ),
        ({"actor.backend": "fsdp:d2c2"}, {"topology.context_parallel": 2, "micro_batch.tokens_per_device": 5120}),
        (
            {"actor.ppo_n_minibatches": 3},
            {
                "optimizer_step.completions_per_step": None,
                "optimizer_step.parts_per_rollout": 3,
            },
        ),
        ({"actor.mb_spec.max_tokens_per_mb": None}, {"micro_batch.tokens_per_device": None}),
        (
            {"total_train_steps": 7, "actor.optimizer.warmup_steps_proportion": 0.0},
            {
                "horizon.rollouts": 7,
                "carried.warmup_ratio": None,
            },
        ),
        (
            {"total_train_steps": 7},
            {
                "horizon.rollouts": 7,
                "carried.warmup_ratio": None,
                "open_terms": ("carried: schedule over all epochs, warm-up 0.001",),
            },
        ),
        (
            {"rollout.max_head_offpolicyness": 0},
            {
                "staleness.mode": "sync",
                "staleness.maximum": 0,
                "staleness.unit": "rollouts",
            },
        ),
        ({"rollout.agent": {"export_style": "concat"}}, {"rollout.sample_unit": "trajectory"}),
        (
            {"rollout.agent": {"export_style": "individual"}},
            {
                "rollout.sample_unit": "turn",
                "optimizer_step.completions_per_step": None,
                "optimizer_step.parts_per_rollout": 2,
            },
        ),
        ({"train_dataset.shuffle": False}, {"order.prompt_shuffle": "none"}),
        (
            {"train_dataset.drop_last": False, "total_train_epochs": 1},
            {
                "order.last_rollout": "wrap",
                "horizon.epochs": 1.0,
            },
        ),
        ({"actor.reward_norm": {**NORM, "std_level": None}}, NO_SCALE),
        ({"actor.reward_norm": None}, {"advantage.baseline": "none", **NO_SCALE}),
        (
            {"actor.reward_norm": {**NORM, "mean_leave1out": True, "std_level": None}},
            {
                "advantage.baseline": "leave_one_out",
                **NO_SCALE,
            },
        ),
        (
            {"actor.reward_norm": {**NORM, "std_unbiased": False, "eps": 0.5}},
            {
                "advantage.ddof": 0,
                "advantage.epsilon": 0.5,
            },
        ),
        (
            {"actor.reward_norm": {**NORM, "std_level": "batch"}},
            {
                "advantage.baseline": "open",
                **NO_SCALE,
                "open_terms": ("advantage: reward_norm " + NORMS % (4, '"group"', '"batch"'),),
            },
        ),
        ({ADV: {}}, {"open_terms": ("advantage: adv_norm " + NORMS % (1, '"batch"', '"batch"'),)}),
        (
            {"actor.discount": 0.5, "actor.gae_lambda": 0.9},
            {
                "open_terms": ("advantage: discount 0.5", "advantage: gae_lambda 0.9"),
            },
        ),
        ({"actor.eps_clip_higher": 0.28}, {"objective.clip_high": 0.28}),
        ({"actor.c_clip": 3.0}, {"objective.dual_clip": 3.0}),
        ({"actor.importance_sampling_level": "sequence"}, {"objective.ratio_level": "sequence"}),
        (
            SOFT,
            {
                "objective.surrogate": "sapo",
                "objective.clip_low": None,
                "objective.clip_high": None,
                "objective.old_logprobs": "sampler",
                **NO_CORRECTION,
            },
        ),
        (
            {**SOFT, "actor.sapo_tau_neg": 2.0},
            {
                "objective.surrogate": "sapo",
                "objective.clip_low": None,
                "objective.clip_high": None,
                "objective.old_logprobs": "sampler",
                **NO_CORRECTION,
                "open_terms": ("objective: sapo_tau_neg 2.0",),
            },
        ),
        ({"actor.use_decoupled_loss": None, REJECTION: None}, {"objective.old_logprobs": "sampler", **NO_CORRECTION}),
        ({"actor.use_decoupled_loss": None, REJECTION: None, "actor.recompute_logprob": True}, NO_CORRECTION),
        (
            {REJECTION: {"action": "clamp", "lower": 0.5, "upper": 2.0}},
            {
                "objective.sampler_correction": "token_truncate [0.5, 2.0]",
            },
        ),
        (
            {REJECTION: {"metric": "kl_k2", "upper": 0.5}},
            {
                "objective.sampler_correction": "token_kl_k2_mask [-, 0.5]",
            },
        ),
        (
            {REJECTION: {"level": "sequence", "upper": 2.0}},
            {
                "objective.sampler_correction": "sequence_geometric_weight_mask [-, 2.0]",
            },
        ),
        (
            {REJECTION: {"level": "sequence", "metric": "kl_k1", "agg": "max", "upper": 2.0}},
            {
                "objective.sampler_correction": "sequence_kl_k1_max_mask [-, 2.0]",
            },
        ),
        (
            {"actor.prox_logp_method": "loglinear"},
            {
                "objective.old_logprobs": None,
                "open_terms": ("objective: prox_logp_method loglinear",),
            },
        ),
        (
            {"actor.mb_spec.n_mbs": 2, "actor.mb_spec.max_tokens_per_mb": None},
            {"micro_batch.completions_per_device": 64, "micro_batch.tokens_per_device": None},
        ),
        (  # parts of 43 and 42
            {"actor.mb_spec.n_mbs": 3, "actor.mb_spec.max_tokens_per_mb": None},
            {"micro_batch.tokens_per_device": None},
        ),
        ({"actor.m2_threshold": 0.04}, {"open_terms": ("objective: m2_threshold 0.04",)}),
        (
            {"actor.kl_ctl": 0.01, "actor.kl_estimator": "k2", "ref": {"path": "x"}},
            {
                "objective.kl_placement": "reward",
                "objective.kl_coefficient": 0.01,
                "objective.kl_estimator": "k2",
                "objective.kl_clamp": 10.0,
            },
        ),
        ({"actor.kl_ctl": 0.01}, {"open_terms": ("objective: kl_ctl 0.01 without a reference, k1",)}),
        ({"actor.optimizer.type": "sgd"}, {"carried.optimizer": "sgd"}),
        ({"actor.optimizer.type": "adam_bf16"}, {"open_terms": ("carried: optimizer.type adam_bf16",)}),
        ({"actor.optimizer.lr_scheduler_type": "linear"}, {"carried.lr_schedule": "linear"}),
        ({"actor.optimizer.lr_scheduler_type": "cosine"}, {"carried.lr_schedule": "cosine"}),
        (
            {"actor.optimizer.lr_scheduler_type": "cosine", "actor.optimizer.min_lr_ratio": 0.1},
            {
                "carried.lr_schedule": 'cosine_with_min_lr {"min_lr_rate": 0.1, "warmup_start_rate": 0.1}',
            },
        ),
        ({"actor.dtype": "float32"}, {"carried.precision": "fp32"}),
        ({"gconfig.greedy": True}, {"carried.temperature": 0.0}),
        ({"gconfig.top_k": 20}, {"carried.top_k": 20}),
        ({"actor.enable_tree_training": True}, {"open_terms": ("loss: enable_tree_training true",)}),
        ({"actor.disable_dropout": None}, {"carried.dropout": "on"}),
        ({"actor.dtype": "float16"}, {"carried.precision": "fp16"}),
        ({"actor.prox_logp_method": "metrics"}, {}),
        (
            {"actor.kl_ctl": 0.01, "actor.kl_estimator": "k3", "ref": {"path": "x"}},
            {
                "objective.kl_placement": "reward",
                "objective.kl_coefficient": 0.01,
                "objective.kl_estimator": "k3",
                "objective.kl_clamp": 10.0,
            },
        ),
        # Next to nothing is said: log-probabilities are held back, and four steps are a rollout.
        (
            {
                **dict.fromkeys(VALUES),
                **MANDATORY,
                "actor.backend": "fsdp:d4",
                "gconfig.n_samples": 4,
                "train_dataset.batch_size": 4,
                "rollout.consumer_batch_size": 4,
            },
            {
                "rollout.prompts_per_rollout": 4,
                "optimizer_step.completions_per_step": 4,
                "horizon.epochs": 1.0,
                "micro_batch.tokens_per_device": None,
                "advantage.baseline": "none",
                **NO_SCALE,
                "staleness.mode": "sync",
                "staleness.maximum": 0,
                "staleness.unit": "rollouts",
                "objective.clip_low": 0.2,
                "objective.clip_high": 0.2,
                "objective.old_logprobs": "sampler",
                **NO_CORRECTION,
                "carried.learning_rate": 1e-3,
                "carried.dropout": "on",
                "carried.max_prompt_tokens": None,
                "carried.max_completion_tokens": 16384,
                "open_terms": ("objective: kl_ctl 0.1 without a reference, k1",),
            },
        ),
    )
    excused: ClassVar[dict[str, str]] = {
        "no_such_setting_of_anybody": "the configuration may be a class of the program's own, with more in it",
    }
    invalid = (
        *InvalidCase.each({f"BB-AREAL-{code:03}": source(said) for code, said in BROKEN.items()}, CONTEXT),
        *InvalidCase.each(
            {f"BB-AREAL-{code:03}": source(said) for code, said in OPEN.items()}, CONTEXT, verdict="undecided"
        ),
        InvalidCase(
            name="devices as the launcher takes them",
            source=source({"actor.backend": None, "allocation_mode": "sglang:d1+d4"}),
            context=CONTEXT,
            codes=("BB-AREAL-010",),
        ),
    )

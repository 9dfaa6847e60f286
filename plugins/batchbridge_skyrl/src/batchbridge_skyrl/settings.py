"""Every setting of SkyRL: those that BatchBridge knows the meaning of as rows, all others from `settings.json`.

`settings.json` has the dotted fields of SkyRLTrainConfig with their defaults; a field whose default is a path of the
user's home, or follows another setting, has null.
Source: skyrl 0.3.0 train/config/config.py, commit f5bc3b78d.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.kit.key_table import Key, Unsayable
from batchbridge.kit.kinds import anything, count, flag, natural, one_of, optional, real, text, whole
from batchbridge.kit.schedules import schedule_text

PROMPTS, MINI, GROUP = "trainer.train_batch_size", "trainer.policy_mini_batch_size", "generator.n_samples_per_prompt"
MICRO, FORWARD = "trainer.micro_train_batch_size_per_gpu", "trainer.micro_forward_batch_size_per_gpu"
BUDGET, PASSES = "trainer.max_tokens_per_microbatch", "trainer.update_epochs_per_batch"
NODES, GPUS = "trainer.placement.policy_num_nodes", "trainer.placement.policy_num_gpus_per_node"
STRATEGY, ULYSSES = "trainer.strategy", "trainer.policy.sequence_parallel_size"
MEGATRON = "trainer.policy.megatron_config"
TENSOR, PIPELINE = (f"{MEGATRON}.{name}_model_parallel_size" for name in ("tensor", "pipeline"))
CONTEXT = f"{MEGATRON}.context_parallel_size"
ALGORITHM = "trainer.algorithm"
ESTIMATOR, BY_STD = f"{ALGORITHM}.advantage_estimator", f"{ALGORITHM}.grpo_norm_by_std"
LOSS, REDUCTION, MAX_SEQ = (f"{ALGORITHM}.{name}" for name in ("policy_loss_type", "loss_reduction", "max_seq_len"))
KL_LOSS, KL_REWARD, KL = (f"{ALGORITHM}.{name}" for name in ("use_kl_loss", "use_kl_in_reward", "kl_estimator_type"))
KL_COEF, ENTROPY, ENTROPY_COEF = (
    f"{ALGORITHM}.{name}" for name in ("kl_loss_coef", "use_entropy_loss", "entropy_loss_coef")
)
SAMPLING, MASKED = f"{ALGORITHM}.dynamic_sampling.type", f"{ALGORITHM}.zero_variance_filter"
CORRECTION, ASYNC = f"{ALGORITHM}.off_policy_correction", "trainer.fully_async"
OPTIMIZER = "trainer.policy.optimizer_config"
SCHEDULER, WARMUP, BETAS = (f"{OPTIMIZER}.{name}" for name in ("scheduler", "num_warmup_steps", "adam_betas"))
SAMPLES = "generator.sampling_params"
TURNS, STEPWISE = "generator.max_turns", "generator.step_wise_trajectories"
PROMPT_TOKENS, INPUT_TOKENS, NEW_TOKENS = (
    "trainer.max_prompt_length",
    "generator.max_input_length",
    f"{SAMPLES}.max_generate_length",
)
EPOCHS, STEPS = "trainer.epochs", "trainer.max_training_steps"
ENTRY = "entrypoint"
"""The module that a command runs. No setting of SkyRL's, but it decides which trainer reads them."""

ENDLESS = 1_000_000
"""Epochs that no run reaches: how a run that only `max_training_steps` ends is written."""
SCHEDULES = (
    "constant",
    "constant_with_warmup",
    "cosine",
    "cosine_with_restarts",
    "inverse_sqrt",
    "linear",
    "polynomial",
)
"""transformers' schedules that need no argument of their own: FSDPStrategy hands none on.
Source: transformers 4.57 get_scheduler."""


def _ticks(canonical: Any) -> Any:
    if canonical is not None and canonical % 1:
        raise Unsayable("it is a whole number of optimizer steps")
    return 0 if canonical is None else int(canonical)


def _epochs(canonical: Any) -> Any:
    if canonical is not None and (canonical % 1 or canonical >= ENDLESS):
        raise Unsayable(f"it is a whole number of epochs below {ENDLESS:,}")
    return ENDLESS if canonical is None else int(canonical)


def _scheduler(canonical: Any) -> Any:
    known = {schedule_text(name): name for name in reversed(SCHEDULES) if name != "constant"}
    if canonical is not None and canonical not in known:
        raise Unsayable(f"it hands no arguments to a schedule; known: {', '.join(known)}")
    return known.get(canonical, "constant_with_warmup")


KEYS = (
    Key(PROMPTS, natural, 1024, "rollout.prompts_per_rollout", unit="prompts"),
    Key(GROUP, natural, 5, "rollout.completions_per_prompt", unit="completions"),
    Key(MINI, natural, 256, unit="prompts per optimizer step"),
    Key("trainer.critic_mini_batch_size", natural, 256, unit="prompts per optimizer step"),
    Key(PASSES, count, 1, "optimizer_step.passes_per_rollout", unit="passes"),
    Key(MICRO, natural, 1, unit="completions per device"),
    Key(FORWARD, natural, 1, unit="completions per device"),
    Key(BUDGET, whole(-1), -1, unit="tokens per device; -1: off"),
    Key(NODES, natural, 1, "topology.world_size", unit="nodes"),
    Key(GPUS, natural, 1, "topology.world_size", unit="devices per node"),
    *(
        Key(f"trainer.placement.{model}_num_{what}", natural, 1)
        for model in ("ref", "critic")
        for what in ("nodes", "gpus_per_node")
    ),
    Key(STRATEGY, one_of("fsdp", "fsdp2", "megatron"), "fsdp"),
    *(Key(key, natural, 1, unit="devices") for key in (ULYSSES, TENSOR, PIPELINE, CONTEXT)),
    *(Key(key.replace("policy", "ref"), natural, 1) for key in (ULYSSES, TENSOR, PIPELINE, CONTEXT)),
    Key("trainer.critic.sequence_parallel_size", natural, 1),
    Key(ESTIMATOR, text, "grpo"),
    Key(BY_STD, flag, True),
    *(Key(f"{ALGORITHM}.{name}", flag, False) for name in ("advantage_batch_normalize", "use_tis")),
    *(Key(f"{ALGORITHM}.{name}", real(0), 1.0) for name in ("gamma", "lambd")),
    Key(LOSS, text, "regular"),
    Key(REDUCTION, text, "token_mean"),
    Key(MAX_SEQ, optional(natural), unit="tokens"),
    *(Key(f"{ALGORITHM}.eps_clip_{side}", real(0), 0.2) for side in ("low", "high")),
    Key(f"{ALGORITHM}.cispo.cispo_eps_clip_low", real(0), 0.0),
    Key(f"{ALGORITHM}.cispo.cispo_eps_clip_high", real(0), 5.0),
    *(Key(f"{ALGORITHM}.dppo.delta_{side}", real(0), 0.2) for side in ("low", "high")),
    Key(f"{ALGORITHM}.dppo.dppo_type", one_of("binary_tv", "binary_kl"), "binary_tv"),
    Key(f"{ALGORITHM}.clip_ratio_c", real(1), 3.0),
    Key(KL_LOSS, flag, True),
    Key(KL_REWARD, flag, False),
    Key(KL, one_of("k1", "k2", "k3", "abs"), "k3"),
    Key(KL_COEF, real(0), 0.001),
    Key(f"{ALGORITHM}.kl_ctrl.type", one_of("fixed", "adaptive"), "fixed"),
    Key(ENTROPY, flag, False),
    Key(ENTROPY_COEF, real(), 0.01),
    Key(SAMPLING, optional(one_of("filter", "replace")), None),
    Key(MASKED, flag, False),
    Key(f"{CORRECTION}.tis_ratio_type", optional(one_of("token", "sequence"))),
    Key(f"{CORRECTION}.sequence_mask_metric", optional(one_of("product", "geometric"))),
    *(
        Key(f"{CORRECTION}.{name}", optional(real(0)), default)
        for name, default in (
            ("token_tis_ratio_clip_high", 2.0),
            ("sequence_tis_ratio_clip_high", 5.0),
            ("geo_mask_low", 0.99),
            ("geo_mask_high", 1.01),
            ("product_mask_low", 0.5),
            ("product_mask_high", 2.0),
            ("outlier_token_is_threshold_low", None),
            ("outlier_token_is_threshold_high", None),
            ("token_mask_is_threshold_low", None),
            ("token_mask_is_threshold_high", None),
        )
    ),
    Key(f"{ALGORITHM}.tis_imp_ratio_cap", real(), -1.0),
    Key(f"{ALGORITHM}.temperature", optional(real(0))),
    Key(f"{ASYNC}.enabled", flag, False),
    Key(f"{ASYNC}.max_staleness_steps", count, 4, unit="rollouts"),
    Key(f"{ASYNC}.num_parallel_generation_workers", natural, 768, unit="groups"),
    Key(f"{ASYNC}.sample_full_batch", flag, False),
    Key(f"{OPTIMIZER}.lr", real(0), 1e-6, "carried.learning_rate"),
    Key(f"{OPTIMIZER}.weight_decay", real(0), 1e-2, "carried.weight_decay"),
    Key(f"{OPTIMIZER}.max_grad_norm", real(0), 1.0, "carried.max_gradient_norm"),
    Key(SCHEDULER, text, "constant_with_warmup", "carried.lr_schedule", (schedule_text, _scheduler)),
    Key(WARMUP, count, 0, "carried.warmup_steps", (float, _ticks), unit="optimizer steps"),
    Key(BETAS, anything, [0.9, 0.999]),
    Key("trainer.seed", whole(), 42, "order.seed"),
    Key(EPOCHS, natural, 1, "horizon.epochs", (lambda n: None if n >= ENDLESS else float(n), _epochs)),
    Key(STEPS, optional(natural), None, "horizon.rollouts", unit="rollouts"),
    Key(PROMPT_TOKENS, natural, 512, "carried.max_prompt_tokens", unit="tokens"),
    Key(INPUT_TOKENS, optional(natural), unit="tokens"),
    Key(NEW_TOKENS, natural, 1024, unit="tokens per turn"),
    Key(TURNS, natural, 1),
    Key(STEPWISE, flag, False),
    Key(f"{SAMPLES}.temperature", real(0), 1.0, "carried.temperature"),
    Key(f"{SAMPLES}.top_p", real(0, 1), 1.0, "carried.top_p"),
    Key(f"{SAMPLES}.top_k", whole(-1), -1, "carried.top_k"),
    Key(f"{SAMPLES}.min_p", real(0, 1), 0.0),
    Key(f"{SAMPLES}.repetition_penalty", real(0), 1.0),
    Key(f"{SAMPLES}.logprobs", optional(whole()), 1),
    Key(
        "generator.apply_overlong_filtering",
        flag,
        False,
        "rollout.truncated_completions",
        {False: "keep", True: "mask"},
    ),
    Key("generator.zero_reward_on_non_stop", flag, False),
    Key("generator.merge_stepwise_output", flag, False),
    Key("generator.batched", flag, False),
    *(Key(f"trainer.placement.colocate_{which}", flag, True) for which in ("all", "policy_ref")),
    *(Key(f"generator.inference_engine.{name}", natural, 1) for name in ("num_engines", "tensor_parallel_size")),
    *(Key(f"generator.inference_engine.{kind}_parallel_size", natural, 1) for kind in ("pipeline", "data")),
    Key(f"{MEGATRON}.moe_router_load_balancing_type", text, "none"),
    Key(f"{MEGATRON}.moe_aux_loss_coeff", real(), 0.0),
    Key("trainer.update_ref_every_epoch", flag, False),
    Key("trainer.remove_microbatch_padding", flag, True),
    Key("trainer.max_ckpts_to_keep", whole(), -1),
    Key(ENTRY, optional(text), meaning="the module that is run"),
)
"""Source: skyrl 0.3.0 train/config/config.py; meanings: see `meaning`."""


def _others() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
    return found


ALL = (*(Key(key, anything, default) for key, default in _others().items()), *KEYS)
"""Every setting; of two rows for one key the later counts."""

"""TRL's settings by version: every key that its parser knows, its kind, its default, and keys that are gone.

Knowledge only. A further version is further rows: a setting whose default changed has one row per range of versions; a
key that existed only in a range says so; a key that was removed or renamed stands in `GONE`.
"""

from __future__ import annotations

from batchbridge.kit.versions import holds as holds
from batchbridge_trl.settings_transformers import TRAINING_ARGUMENTS as TRAINING_ARGUMENTS
from batchbridge_trl.settings_transformers import TRANSFORMERS as TRANSFORMERS
from batchbridge_trl.tables import Gone, Group, Setting

VERSIONS = ">=0.15"
"""Versions that are read. The rows are complete, wheel by wheel, for every release from 0.15.0 to `NEWEST`; a newer one
is read as that."""
OLDEST_ENFORCED = "0.18.0"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "1.16.0"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""


def is_known(version: str) -> bool:
    """Whether the rows are complete for `version`. Development and pre-releases of an unknown version are not known."""
    try:
        return holds(VERSIONS, version)
    except ValueError:
        return False


def transformers_of(version: str) -> str:
    """The transformers release that is assumed beside TRL `version`."""
    return next(release for versions, release in TRANSFORMERS if holds(versions, version))


_GRPO_CONFIG = (
    Setting("learning_rate", "float", 1e-06),
    Setting("model_init_kwargs", "dict?", None),
    Setting("trust_remote_code", "bool", False, ">=1.7"),
    Setting("router_aux_loss_coef", "float?", None, "<1.7", fixed=True),
    Setting("router_aux_loss_coef", "float?", 0.001, ">=1.7,<1.14"),
    Setting("router_aux_loss_coef", "float?", None, ">=1.14"),
    Setting("disable_dropout", "bool", False, "<0.17", fixed=True),
    Setting("disable_dropout", "bool", False, ">=0.17"),
    Setting("cast_lm_head_to_fp32", "bool", False, ">=0.25"),
    Setting("remove_unused_columns", "bool?", False),
    Setting("max_prompt_length", "int?", 512, "<0.26"),
    Setting("max_prompt_length", "int?", None, ">=0.26,<0.28"),
    Setting("num_generations", "int", 8),
    Setting("num_generations_eval", "int?", None, "<0.26", fixed=True),
    Setting("num_generations_eval", "int?", None, ">=0.26"),
    Setting("max_completion_length", "int?", 256, "<1.10"),
    Setting("max_completion_length", "int?", 512, ">=1.10"),
    Setting("ds3_gather_for_generation", "bool", True),
    Setting("shuffle_dataset", "bool?", True, "<0.17", fixed=True),
    Setting("shuffle_dataset", "bool?", True, ">=0.17"),
    Setting("pad_to_multiple_of", "any", None, ">=1.0,<1.16"),
    Setting("pad_to_multiple_of", "any", "auto", ">=1.16"),
    Setting("generation_batch_size", "int?", None, "<0.18", fixed=True),
    Setting("generation_batch_size", "int?", None, ">=0.18"),
    Setting("steps_per_generation", "int?", None, "<0.18", fixed=True),
    Setting("steps_per_generation", "int?", None, ">=0.18"),
    Setting("temperature", "float", 0.9, "<0.18"),
    Setting("temperature", "float", 1.0, ">=0.18"),
    Setting("top_p", "float", 1.0, "<0.16", fixed=True),
    Setting("top_p", "float", 1.0, ">=0.16"),
    Setting("top_k", "int?", 50, "<0.16", fixed=True),
    Setting("top_k", "int?", 50, ">=0.16,<0.18"),
    Setting("top_k", "int?", None, ">=0.18,<0.27"),
    Setting("top_k", "int?", 0, ">=0.27,<0.28"),
    Setting("top_k", "int", 0, ">=0.28"),
    Setting("min_p", "float?", None, ">=0.16"),
    Setting("generation_kwargs", "dict?", None, ">=0.19"),
    Setting("chat_template_kwargs", "dict?", None, ">=0.25"),
    Setting("repetition_penalty", "float", 1.0, ">=0.16"),
    Setting("cache_implementation", "str?", None, ">=0.16"),
    Setting("use_vllm", "bool", False),
    Setting("vllm_mode", "str", "server", "<0.18", fixed=True),
    Setting("vllm_mode", "str", "server", ">=0.18,<1.0"),
    Setting("vllm_mode", "str", "colocate", ">=1.0"),
    Setting("vllm_device", "str?", "auto", "<0.16"),
    Setting("vllm_device", "str?", None, ">=0.16,<0.18"),
    Setting("vllm_dtype", "str?", "auto", "<0.16"),
    Setting("vllm_dtype", "str?", None, ">=0.16,<0.18"),
    Setting("vllm_enable_prefix_caching", "bool?", None, ">=0.16,<0.18"),
    Setting("vllm_model_impl", "str", "vllm", ">=0.21"),
    Setting("vllm_enable_sleep_mode", "bool", False, ">=0.23"),
    Setting("vllm_guided_decoding_regex", "str?", None, ">=0.16,<0.28"),
    Setting("vllm_structured_outputs_regex", "str?", None, ">=0.27"),
    Setting("vllm_server_base_url", "str?", None, ">=0.18"),
    Setting("vllm_server_host", "str", "0.0.0.0", ">=0.16"),
    Setting("vllm_server_port", "int", 8000, ">=0.16"),
    Setting("vllm_server_timeout", "float", 120.0, ">=0.16,<0.17"),
    Setting("vllm_server_timeout", "float", 240.0, ">=0.17"),
    Setting("vllm_group_port", "int", 51216, ">=0.27"),
    Setting("vllm_gpu_memory_utilization", "float", 0.9, "<0.16"),
    Setting("vllm_gpu_memory_utilization", "float?", None, ">=0.16,<0.18"),
    Setting("vllm_gpu_memory_utilization", "float", 0.3, ">=0.18"),
    Setting("vllm_max_model_len", "int?", None, "<0.18"),
    Setting("vllm_max_model_length", "int?", None, ">=0.26"),
    Setting("vllm_tensor_parallel_size", "int", 1, "<0.18", fixed=True),
    Setting("vllm_tensor_parallel_size", "int", 1, ">=0.18"),
    Setting("beta", "float", 0.04, "<0.19"),
    Setting("beta", "float", 0.0, ">=0.19"),
    Setting("num_iterations", "int", 1, "<0.16", fixed=True),
    Setting("num_iterations", "int", 1, ">=0.16"),
    Setting("epsilon", "float?", None, "<0.16", fixed=True),
    Setting("epsilon", "float", 0.2, ">=0.16"),
    Setting("delta", "float?", None, "<0.18", fixed=True),
    Setting("delta", "float?", None, ">=0.18"),
    Setting("epsilon_high", "float?", None, "<0.16", fixed=True),
    Setting("epsilon_high", "float?", None, ">=0.16"),
    Setting("sapo_temperature_neg", "float", 1.05, ">=0.26"),
    Setting("sapo_temperature_pos", "float", 1.0, ">=0.26"),
    Setting("vespo_k_pos", "float", 2.0, ">=1.0"),
    Setting("vespo_lambda_pos", "float", 3.0, ">=1.0"),
    Setting("vespo_k_neg", "float", 3.0, ">=1.0"),
    Setting("vespo_lambda_neg", "float", 2.0, ">=1.0"),
    Setting("importance_sampling_level", "str", "token", "<0.20", fixed=True),
    Setting("importance_sampling_level", "str", "token", ">=0.20"),
    Setting("reward_weights", "list?", None),
    Setting("multi_objective_aggregation", "str", "sum_then_normalize", "<0.27", fixed=True),
    Setting("multi_objective_aggregation", "str", "sum_then_normalize", ">=0.27"),
    Setting("scale_rewards", "bool", True, "<0.16", fixed=True),
    Setting("scale_rewards", "bool", True, ">=0.16,<0.22"),
    Setting("scale_rewards", "scale", "group", ">=0.22"),
    Setting("loss_type", "str", "grpo", "<0.16", fixed=True),
    Setting("loss_type", "str", "bnpo", ">=0.16,<0.17", fixed=True),
    Setting("loss_type", "str", "bnpo", ">=0.17,<0.22"),
    Setting("loss_type", "str", "dapo", ">=0.22"),
    Setting("mask_truncated_completions", "bool", False, "<0.17", fixed=True),
    Setting("mask_truncated_completions", "bool", False, ">=0.17"),
    Setting("sync_ref_model", "bool", False),
    Setting("ref_model_mixup_alpha", "float", 0.9, "<0.16"),
    Setting("ref_model_mixup_alpha", "float", 0.6, ">=0.16"),
    Setting("ref_model_sync_steps", "int", 64, "<0.16"),
    Setting("ref_model_sync_steps", "int", 512, ">=0.16"),
    Setting("top_entropy_quantile", "float", 1.0, "<0.20", fixed=True),
    Setting("top_entropy_quantile", "float", 1.0, ">=0.20"),
    Setting("entropy_coef", "float", 0.0, "<1.8", fixed=True),
    Setting("entropy_coef", "float", 0.0, ">=1.8"),
    Setting("use_adaptive_entropy", "bool", False, "<1.8", fixed=True),
    Setting("use_adaptive_entropy", "bool", False, ">=1.8"),
    Setting("entropy_coef_min", "float", 0.0, ">=1.8"),
    Setting("entropy_coef_max", "float", 1.0, ">=1.8"),
    Setting("entropy_coef_delta", "float", 0.005, ">=1.8"),
    Setting("entropy_target", "float", 0.2, ">=1.8"),
    Setting("max_tool_calling_iterations", "int?", None, ">=0.27"),
    Setting("vllm_importance_sampling_correction", "bool", False, "<0.23", fixed=True),
    Setting("vllm_importance_sampling_correction", "bool", True, ">=0.23"),
    Setting("vllm_importance_sampling_mode", "str", "token_truncate", "<0.26", fixed=True),
    Setting("vllm_importance_sampling_mode", "str", "sequence_mask", ">=0.26"),
    Setting("vllm_importance_sampling_clip_max", "float?", None, "<1.6", fixed=True),
    Setting("vllm_importance_sampling_clip_max", "float?", 3.0, ">=1.6"),
    Setting("vllm_importance_sampling_clip_min", "float?", None, "<1.6", fixed=True),
    Setting("vllm_importance_sampling_clip_min", "float?", None, ">=1.6"),
    Setting("vllm_importance_sampling_cap", "float?", None, "<0.23", fixed=True),
    Setting("vllm_importance_sampling_cap", "float", 2.0, ">=0.23,<0.26"),
    Setting("vllm_importance_sampling_cap", "float", 3.0, ">=0.26,<1.6"),
    Setting("vllm_importance_sampling_cap", "float?", None, ">=1.6"),
    Setting("off_policy_mask_threshold", "float?", None, ">=0.27"),
    Setting("use_bias_correction_kl", "bool", False, "<0.26", fixed=True),
    Setting("use_bias_correction_kl", "bool", False, ">=0.26,<1.10"),
    Setting("use_bias_correction_kl", "bool", True, ">=1.10"),
    Setting("log_completions", "bool", False),
    Setting("log_multimodal", "bool", True, ">=1.9"),
    Setting("num_completions_to_print", "int?", None, ">=0.17"),
    Setting("log_unique_prompts", "bool", False, ">=0.26"),
    Setting("wandb_log_unique_prompts", "bool?", False, ">=0.17,<0.26"),
    Setting("wandb_log_unique_prompts", "bool?", None, ">=0.26,<0.27"),
    Setting("log_completions_hub_repo", "str?", None, "<0.28", fixed=True),
    Setting("log_completions_hub_repo", "str?", None, ">=0.28"),
    Setting("use_transformers_continuous_batching", "bool", False, ">=1.7"),
    Setting("transformers_continuous_batching_config", "dict?", None, ">=1.7"),
    Setting("use_transformers_paged", "bool", False, ">=0.20"),
    Setting("logging_steps", "float", 500, "<0.19"),
    Setting("logging_steps", "float", 10, ">=0.19"),
    Setting("gradient_checkpointing", "bool", False, "<0.22"),
    Setting("gradient_checkpointing", "bool", True, ">=0.22"),
    Setting("bf16", "bool?", False, "<0.19"),
    Setting("bf16", "bool?", None, ">=0.19"),
    Setting("lr_scheduler_kwargs", "json?", None),
    Setting("use_liger_loss", "bool", False, ">=0.17,<0.25"),
    Setting("use_liger_loss", "bool?", None, ">=0.25,<0.28"),
    Setting("use_liger_kernel", "bool", False),
    Setting("torch_empty_cache_steps", "int?", None),
)


_SCRIPT_ARGUMENTS = (
    Setting("dataset_name", "str?", None),
    Setting("dataset_config", "str?", None),
    Setting("dataset_train_split", "str", "train"),
    Setting("dataset_test_split", "str", "test"),
    Setting("dataset_streaming", "bool", False, ">=0.19"),
    Setting("gradient_checkpointing_use_reentrant", "bool", False, "<0.27"),
    Setting("ignore_bias_buffers", "bool", False),
)
_GRPO_SCRIPT_ARGUMENTS = (
    Setting("reward_model_name_or_path", "str?", None),
    Setting("reward_funcs", "list?", None, ">=0.18"),
)
_MODEL_CONFIG = (
    Setting("model_name_or_path", "str?", None),
    Setting("model_revision", "str", "main"),
    Setting("torch_dtype", "str?", None, "<0.27"),
    Setting("dtype", "str?", None, ">=0.23,<0.27"),
    Setting("dtype", "str?", "float32", ">=0.27"),
    Setting("trust_remote_code", "bool", False, "<1.7"),
    Setting("attn_implementation", "str?", None),
    Setting("use_peft", "bool", False),
    Setting("lora_r", "int", 16),
    Setting("lora_alpha", "int", 32),
    Setting("lora_dropout", "float", 0.05),
    Setting("lora_target_modules", "list?", None),
    Setting("lora_target_parameters", "list?", None, ">=0.21"),
    Setting("lora_modules_to_save", "list?", None),
    Setting("lora_task_type", "str", "CAUSAL_LM"),
    Setting("use_rslora", "bool", False),
    Setting("use_dora", "bool", False, ">=0.16"),
    Setting("load_in_8bit", "bool", False),
    Setting("load_in_4bit", "bool", False),
    Setting("bnb_4bit_quant_type", "str", "nf4"),
    Setting("use_bnb_nested_quant", "bool", False),
    Setting("bnb_4bit_quant_storage", "str?", None, ">=0.26"),
)
_DATASET_MIXTURE = (
    Setting("datasets", "list?", None, ">=0.22"),
    Setting("streaming", "bool", False, ">=0.22"),
    Setting("test_split_size", "float?", None, ">=0.22"),
)
_LAUNCH = (
    Setting("accelerate_config", "str?", None),
    Setting("config_file", "str?", None),
    Setting("num_processes", "int?", None),
    Setting("num_machines", "int?", None),
    Setting("machine_rank", "int?", None),
    Setting("main_process_ip", "str?", None),
    Setting("main_process_port", "int?", None),
    Setting("mixed_precision", "str?", None),
    Setting("gpu_ids", "any", None),
)

GRPO_CONFIG = Group("GRPOConfig", "trl GRPOConfig and _BaseConfig, 0.15.0 to 1.16.0", _GRPO_CONFIG)
SCRIPT_ARGUMENTS = Group("ScriptArguments", "trl.scripts.utils ScriptArguments, 0.15.0 to 1.16.0", _SCRIPT_ARGUMENTS)
GRPO_SCRIPT_ARGUMENTS = Group(
    "GRPOScriptArguments", "trl.scripts.grpo GRPOScriptArguments, 0.15.0 to 1.16.0", _GRPO_SCRIPT_ARGUMENTS
)
MODEL_CONFIG = Group("ModelConfig", "trl ModelConfig, 0.15.0 to 1.16.0", _MODEL_CONFIG)
DATASET_MIXTURE = Group("DatasetMixtureConfig", "trl.scripts.utils, 0.15.0 to 1.16.0", _DATASET_MIXTURE)
LAUNCH = Group("accelerate launch", "trl.cli.commands.training: unknown keys go to accelerate's launcher", _LAUNCH)
ENVIRONMENT = Group(
    "env", "trl TrlParser.parse_args_and_config: the key `env` sets variables", (Setting("env", "dict?", None),)
)

TRAINER_GROUPS = (GRPO_CONFIG, TRAINING_ARGUMENTS)
"""What a `GRPOConfig` holds."""
TRL_GROUPS = (
    *TRAINER_GROUPS,
    SCRIPT_ARGUMENTS,
    GRPO_SCRIPT_ARGUMENTS,
    MODEL_CONFIG,
    DATASET_MIXTURE,
    LAUNCH,
    ENVIRONMENT,
)
"""What a recipe of `trl grpo` may hold."""

_OLD_TRAINING_ARGUMENTS = "transformers TrainingArguments: in 4.57.6, not in 5.23.0"
GONE = (
    Gone("max_prompt_length", "trl 0.28.0", None, "trl GRPOConfig 0.28.0; prompts are not cut since 0.26.0"),
    Gone("torch_dtype", "trl 0.27.0", "dtype", "trl ModelConfig 0.27.0"),
    Gone("wandb_log_unique_prompts", "trl 0.27.0", "log_unique_prompts", "trl GRPOConfig 0.27.0"),
    Gone("use_liger_loss", "trl 0.28.0", "use_liger_kernel", "trl GRPOConfig 0.28.0"),
    Gone("vllm_device", "trl 0.18.0", None, "trl GRPOConfig 0.18.0; vllm_mode says where generation runs"),
    Gone(
        "vllm_max_model_len", "trl 0.18.0", "vllm_max_model_length", "trl GRPOConfig 0.18.0; the new key came in 0.26"
    ),
    Gone("vllm_dtype", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    Gone("vllm_enable_prefix_caching", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    Gone("vllm_guided_decoding_regex", "trl 0.28.0", "vllm_structured_outputs_regex", "trl GRPOConfig 0.28.0"),
    Gone("gradient_checkpointing_use_reentrant", "trl 0.27.0", None, "trl ScriptArguments 0.27.0"),
    Gone("warmup_ratio", "transformers 5", "warmup_steps (below 1 it is a share)", _OLD_TRAINING_ARGUMENTS),
    Gone("overwrite_output_dir", "transformers 5", None, _OLD_TRAINING_ARGUMENTS),
    Gone("evaluation_strategy", "transformers 4.46", "eval_strategy", "transformers TrainingArguments 4.56.2"),
    Gone("per_gpu_train_batch_size", "transformers 5", "per_device_train_batch_size", _OLD_TRAINING_ARGUMENTS),
    Gone("per_gpu_eval_batch_size", "transformers 5", "per_device_eval_batch_size", _OLD_TRAINING_ARGUMENTS),
    Gone("no_cuda", "transformers 5", "use_cpu", _OLD_TRAINING_ARGUMENTS),
    Gone("adafactor", "transformers 5", "optim", _OLD_TRAINING_ARGUMENTS),
    Gone("group_by_length", "transformers 5", "train_sampling_strategy", _OLD_TRAINING_ARGUMENTS),
    Gone("logging_dir", "transformers 5", None, _OLD_TRAINING_ARGUMENTS),
    Gone("save_safetensors", "transformers 5", None, _OLD_TRAINING_ARGUMENTS),
    Gone("push_to_hub_model_id", "transformers 5", "hub_model_id", _OLD_TRAINING_ARGUMENTS),
    Gone("push_to_hub_token", "transformers 5", "hub_token", _OLD_TRAINING_ARGUMENTS),
    Gone("include_tokens_per_second", "transformers 5", None, _OLD_TRAINING_ARGUMENTS),
    Gone("half_precision_backend", "transformers 5", None, _OLD_TRAINING_ARGUMENTS),
    Gone("torchdynamo", "transformers 5", "torch_compile_backend", _OLD_TRAINING_ARGUMENTS),
)
"""Keys that published recipes still hold and that newer versions do not take: looked up where a version has no row."""

CHOICES: dict[str, tuple[tuple[str, ...], str]] = {
    "lr_scheduler_type": (
        (
            "linear",
            "cosine",
            "cosine_with_restarts",
            "polynomial",
            "constant",
            "constant_with_warmup",
            "inverse_sqrt",
            "reduce_lr_on_plateau",
            "cosine_with_min_lr",
            "cosine_warmup_with_min_lr",
            "warmup_stable_decay",
            "greedy",
        ),
        "transformers SchedulerType 5.23.0",
    ),
    "optim": (
        (
            *("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adafactor"),
            *("adamw_anyprecision", "adamw_torch_4bit", "adamw_torch_8bit", "ademamix", "sgd", "adagrad"),
            *("adamw_bnb_8bit", "adamw_8bit", "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit"),
            *("paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit"),
            *("rmsprop", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "galore_adamw", "galore_adamw_8bit"),
            *("galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise"),
            *("galore_adafactor_layerwise", "lomo", "adalomo", "grokadamw", "schedule_free_radam"),
            *("schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise", "stable_adamw"),
        ),
        "transformers OptimizerNames 5.23.0",
    ),
    "eval_strategy": (("no", "steps", "epoch"), "transformers IntervalStrategy 5.23.0"),
}
"""Keys whose value is an enumeration natively: a wrong one fails while the config is constructed."""

PACKAGED_ACCELERATE_CONFIGS = {
    **dict.fromkeys(("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3"), 8),
    "single_gpu": 1,  # it says num_processes 8 as well, and distributed_type NO, which runs one process
}
"""`accelerate_config` by name -> processes. Source: trl/accelerate_configs, 1.9.1 and 1.16.0."""

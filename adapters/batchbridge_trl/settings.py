"""TRL's settings by version: every key that its parser knows, its kind, its default, and keys that are gone.

Knowledge only. A further version is further rows: a setting whose default changed has one row per range of versions; a
key that existed only in a range says so; a key that was removed or renamed stands in `GONE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.parser_kinds import (
    ANY,
    BOOL,
    FLOAT,
    FLOATS,
    INT,
    MAPPING,
    OPTIONAL_BOOL,
    OPTIONAL_FLOAT,
    OPTIONAL_INT,
    OPTIONAL_TEXT,
    PLAIN_MAPPING,
    TEXT,
    TEXTS,
    WHOLE_TEXT,
    any_case,
    passes_unchecked,
)
from batchbridge.kit.versions import holds as holds
from batchbridge.kit.versions import includes
from batchbridge_trl.settings_transformers import TRAINING_ARGUMENTS as TRAINING_ARGUMENTS
from batchbridge_trl.settings_transformers import TRANSFORMERS as TRANSFORMERS
from batchbridge_trl.tables import RemovedKey, SettingGroup, fixed_before

VERSIONS = ">=0.15"
"""Versions that are read. The rows are complete, wheel by wheel, for every release from 0.15.0 to `NEWEST`; a newer one
is read as that."""
OLDEST_ENFORCED = "0.18.0"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "1.16.0"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""

RELEASES = (
    *("0.15.0", "0.15.1", "0.15.2", "0.16.0", "0.16.1", "0.17.0", "0.18.0", "0.18.1", "0.18.2", "0.19.0", "0.19.1"),
    *("0.20.0", "0.21.0", "0.22.0", "0.22.1", "0.22.2", "0.23.0", "0.23.1", "0.24.0", "0.25.0", "0.25.1", "0.26.0"),
    *("0.26.2", "0.27.0", "0.27.2", "0.28.0", "0.29.0", "0.29.1", "1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0"),
    *("1.5.1", "1.6.0", "1.7.0", "1.7.1", "1.8.0", "1.9.0", "1.9.1", "1.9.2", "1.10.0", "1.11.0", "1.12.0", "1.13.0"),
    *("1.14.0", "1.14.1", "1.14.2", "1.15.0", NEWEST),
)
"""Every release that the rows are complete for."""
OLD_CODE = ">=0.14,<0.15"
"""Versions of TRL that are read as the next release, with sizes of their own."""


def is_old_code(version: str | None) -> bool:
    """Whether a version is one whose trainer repeats rows itself; see `whose_trainer.REPEATS_ROWS`."""
    return version is not None and includes(OLD_CODE, version)


def transformers_of(version: str) -> str:
    """The transformers release that is assumed beside TRL `version`."""
    return next(release for versions, release in TRANSFORMERS if holds(versions, version))


def _scale(value: object) -> str | bool:
    if isinstance(value, (str, bool)):
        return value
    raise WrongValue("group, batch, none, true or false", passes_unchecked(value))


def _automatic(value: object) -> Any:
    if isinstance(value, str) and value.lower() in ("auto", "none", "null"):
        return value if value == "auto" else None
    try:
        return OPTIONAL_INT.convert(value)
    except WrongValue as wrong:
        native = "ValueError: invalid literal for int()" if isinstance(value, str) else wrong.native
        raise WrongValue("an integer, or auto", native) from None


def _variables(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise WrongValue("a mapping", "ValueError: `env` field should be a dict in the YAML file.")


AUTOMATIC = Kind(
    *("int or auto", "an integer, or auto", _automatic),
    {**OPTIONAL_INT.schema, "pattern": f"{WHOLE_TEXT}|^(auto|{any_case('none')}|{any_case('null')})$"},
)
VARIABLES = Kind("env", "a mapping", _variables, {"type": "object"})
SCALE = Kind("scale", "group, batch, none, true or false", _scale, {"type": ["string", "boolean"]})
SCALES = {True: "group", False: "none"}
NAMED_SCALES = {"group": "group", "batch": "batch", "none": "none", True: "group", False: "none"}
INVERTED_SCALES = {"group": "none", "none": "group", "batch": "group", True: "none", False: "group"}
"""The real effect of a value of `scale_rewards`. Booleans are mapped to group and none from 0.22 on. 0.22.0 and 0.22.1
test for the wrong names, so that "group", their default, leaves rewards unscaled. Source: trl
GRPOTrainer._generate_and_score_completions of each version. Of two that do the same, `write` takes the first."""
TRUNCATED = {False: "keep", True: "mask"}
SHUFFLES = {True: "epoch_permutation", False: "none", None: "none"}
DROPOUT = {False: "on", True: "off"}
TOP_K = (lambda native: native or 0, lambda canonical: canonical)
TOP_K_OR_NULL = (lambda native: native or 0, lambda canonical: canonical or None)

_GRPO_CONFIG = (
    Key("learning_rate", FLOAT, 1e-06, "carried.learning_rate"),
    Key("model_init_kwargs", MAPPING, None),
    Key("trust_remote_code", BOOL, False, versions=">=1.7"),
    Key("router_aux_loss_coef", OPTIONAL_FLOAT, None, "carried.router_loss_coefficient", versions="<1.7", fixed=True),
    Key("router_aux_loss_coef", OPTIONAL_FLOAT, 0.001, "carried.router_loss_coefficient", versions=">=1.7,<1.14"),
    Key("router_aux_loss_coef", OPTIONAL_FLOAT, None, "carried.router_loss_coefficient", versions=">=1.14"),
    *fixed_before(Key("disable_dropout", BOOL, False, "carried.dropout", DROPOUT, versions=">=0.17")),
    Key("cast_lm_head_to_fp32", BOOL, False, versions=">=0.25"),
    Key("remove_unused_columns", OPTIONAL_BOOL, False),
    Key("max_prompt_length", OPTIONAL_INT, 512, "carried.max_prompt_tokens", versions="<0.26"),
    Key("max_prompt_length", OPTIONAL_INT, None, versions=">=0.26,<0.28"),
    Key("num_generations", INT, 8, "rollout.completions_per_prompt"),
    *fixed_before(Key("num_generations_eval", OPTIONAL_INT, None, versions=">=0.26")),
    Key("max_completion_length", OPTIONAL_INT, 256, "carried.max_completion_tokens", versions="<1.10"),
    Key("max_completion_length", OPTIONAL_INT, 512, "carried.max_completion_tokens", versions=">=1.10"),
    Key("ds3_gather_for_generation", BOOL, True),
    *fixed_before(Key("shuffle_dataset", OPTIONAL_BOOL, True, "order.prompt_shuffle", SHUFFLES, versions=">=0.17")),
    Key("pad_to_multiple_of", OPTIONAL_INT, None, versions=">=1.0,<1.16"),
    Key("pad_to_multiple_of", AUTOMATIC, "auto", versions=">=1.16"),
    *fixed_before(Key("generation_batch_size", OPTIONAL_INT, None, versions=">=0.18")),
    *fixed_before(Key("steps_per_generation", OPTIONAL_INT, None, versions=">=0.18")),
    Key("temperature", FLOAT, 0.9, "carried.temperature", versions="<0.18"),
    Key("temperature", FLOAT, 1.0, "carried.temperature", versions=">=0.18"),
    *fixed_before(Key("top_p", FLOAT, 1.0, "carried.top_p", versions=">=0.16")),
    *fixed_before(Key("top_k", OPTIONAL_INT, 50, "carried.top_k", TOP_K, versions=">=0.16,<0.18")),
    Key("top_k", OPTIONAL_INT, None, "carried.top_k", TOP_K_OR_NULL, versions=">=0.18,<0.27"),
    Key("top_k", OPTIONAL_INT, 0, "carried.top_k", TOP_K, versions=">=0.27,<0.28"),
    # Declared as int, so that the parser takes no word for null, and yet null itself is.
    Key("top_k", OPTIONAL_INT._replace(name=INT.name), 0, "carried.top_k", TOP_K, versions=">=0.28"),
    Key("min_p", OPTIONAL_FLOAT, None, versions=">=0.16"),
    Key("generation_kwargs", MAPPING, None, versions=">=0.19"),
    Key("chat_template_kwargs", MAPPING, None, versions=">=0.25"),
    Key("repetition_penalty", FLOAT, 1.0, versions=">=0.16"),
    Key("cache_implementation", OPTIONAL_TEXT, None, versions=">=0.16"),
    Key("use_vllm", BOOL, False),
    *fixed_before(Key("vllm_mode", TEXT, "server", versions=">=0.18,<1.0")),
    Key("vllm_mode", TEXT, "colocate", versions=">=1.0"),
    Key("vllm_device", OPTIONAL_TEXT, "auto", versions="<0.16"),
    Key("vllm_device", OPTIONAL_TEXT, None, versions=">=0.16,<0.18"),
    Key("vllm_dtype", OPTIONAL_TEXT, "auto", versions="<0.16"),
    Key("vllm_dtype", OPTIONAL_TEXT, None, versions=">=0.16,<0.18"),
    Key("vllm_enable_prefix_caching", OPTIONAL_BOOL, None, versions=">=0.16,<0.18"),
    Key("vllm_model_impl", TEXT, "vllm", versions=">=0.21"),
    Key("vllm_enable_sleep_mode", BOOL, False, versions=">=0.23"),
    Key("vllm_guided_decoding_regex", OPTIONAL_TEXT, None, versions=">=0.16,<0.28"),
    Key("vllm_structured_outputs_regex", OPTIONAL_TEXT, None, versions=">=0.27"),
    Key("vllm_server_base_url", OPTIONAL_TEXT, None, versions=">=0.18"),
    Key("vllm_server_host", TEXT, "0.0.0.0", versions=">=0.16"),
    Key("vllm_server_port", INT, 8000, versions=">=0.16"),
    Key("vllm_server_timeout", FLOAT, 120.0, versions=">=0.16,<0.17"),
    Key("vllm_server_timeout", FLOAT, 240.0, versions=">=0.17"),
    Key("vllm_group_port", INT, 51216, versions=">=0.27"),
    Key("vllm_gpu_memory_utilization", FLOAT, 0.9, versions="<0.16"),
    Key("vllm_gpu_memory_utilization", OPTIONAL_FLOAT, None, versions=">=0.16,<0.18"),
    Key("vllm_gpu_memory_utilization", FLOAT, 0.3, versions=">=0.18"),
    Key("vllm_max_model_len", OPTIONAL_INT, None, versions="<0.18"),
    Key("vllm_max_model_length", OPTIONAL_INT, None, versions=">=0.26"),
    *fixed_before(Key("vllm_tensor_parallel_size", INT, 1, versions=">=0.18")),
    Key("beta", FLOAT, 0.04, "objective.kl_coefficient", versions="<0.19"),
    Key("beta", FLOAT, 0.0, "objective.kl_coefficient", versions=">=0.19"),
    *fixed_before(Key("num_iterations", INT, 1, "optimizer_step.passes_per_rollout", versions=">=0.16")),
    Key("epsilon", OPTIONAL_FLOAT, None, versions="<0.16", fixed=True),
    Key("epsilon", FLOAT, 0.2, versions=">=0.16"),
    *fixed_before(Key("delta", OPTIONAL_FLOAT, None, versions=">=0.18")),
    *fixed_before(Key("epsilon_high", OPTIONAL_FLOAT, None, versions=">=0.16")),
    Key("sapo_temperature_neg", FLOAT, 1.05, versions=">=0.26"),
    Key("sapo_temperature_pos", FLOAT, 1.0, versions=">=0.26"),
    Key("vespo_k_pos", FLOAT, 2.0, versions=">=1.0"),
    Key("vespo_lambda_pos", FLOAT, 3.0, versions=">=1.0"),
    Key("vespo_k_neg", FLOAT, 3.0, versions=">=1.0"),
    Key("vespo_lambda_neg", FLOAT, 2.0, versions=">=1.0"),
    *fixed_before(Key("importance_sampling_level", TEXT, "token", "objective.ratio_level", versions=">=0.20")),
    Key("reward_weights", FLOATS, None),
    *fixed_before(Key("multi_objective_aggregation", TEXT, "sum_then_normalize", versions=">=0.27")),
    *fixed_before(Key("scale_rewards", BOOL, True, "advantage.scale", SCALES, versions=">=0.16,<0.22")),
    Key("scale_rewards", SCALE, "group", "advantage.scale", INVERTED_SCALES, versions=">=0.22,<0.22.2"),
    Key("scale_rewards", SCALE, "group", "advantage.scale", NAMED_SCALES, versions=">=0.22.2"),
    Key("loss_type", TEXT, "grpo", versions="<0.16", fixed=True),
    Key("loss_type", TEXT, "bnpo", versions=">=0.16,<0.17", fixed=True),
    Key("loss_type", TEXT, "bnpo", versions=">=0.17,<0.22"),
    Key("loss_type", TEXT, "dapo", versions=">=0.22"),
    *fixed_before(
        Key("mask_truncated_completions", BOOL, False, "rollout.truncated_completions", TRUNCATED, versions=">=0.17")
    ),
    Key("sync_ref_model", BOOL, False),
    Key("ref_model_mixup_alpha", FLOAT, 0.9, versions="<0.16"),
    Key("ref_model_mixup_alpha", FLOAT, 0.6, versions=">=0.16"),
    Key("ref_model_sync_steps", INT, 64, versions="<0.16"),
    Key("ref_model_sync_steps", INT, 512, versions=">=0.16"),
    *fixed_before(Key("top_entropy_quantile", FLOAT, 1.0, versions=">=0.20")),
    *fixed_before(Key("entropy_coef", FLOAT, 0.0, "objective.entropy_coefficient", versions=">=1.8")),
    *fixed_before(Key("use_adaptive_entropy", BOOL, False, versions=">=1.8")),
    Key("entropy_coef_min", FLOAT, 0.0, versions=">=1.8"),
    Key("entropy_coef_max", FLOAT, 1.0, versions=">=1.8"),
    Key("entropy_coef_delta", FLOAT, 0.005, versions=">=1.8"),
    Key("entropy_target", FLOAT, 0.2, versions=">=1.8"),
    Key("max_tool_calling_iterations", OPTIONAL_INT, None, versions=">=0.27"),
    Key("vllm_importance_sampling_correction", BOOL, False, versions="<0.23", fixed=True),
    Key("vllm_importance_sampling_correction", BOOL, True, versions=">=0.23"),
    Key("vllm_importance_sampling_mode", TEXT, "token_truncate", versions="<0.26", fixed=True),
    Key("vllm_importance_sampling_mode", TEXT, "sequence_mask", versions=">=0.26"),
    Key("vllm_importance_sampling_clip_max", OPTIONAL_FLOAT, None, versions="<1.6", fixed=True),
    Key("vllm_importance_sampling_clip_max", OPTIONAL_FLOAT, 3.0, versions=">=1.6"),
    *fixed_before(Key("vllm_importance_sampling_clip_min", OPTIONAL_FLOAT, None, versions=">=1.6")),
    Key("vllm_importance_sampling_cap", OPTIONAL_FLOAT, None, versions="<0.23", fixed=True),
    Key("vllm_importance_sampling_cap", FLOAT, 2.0, versions=">=0.23,<0.26"),
    Key("vllm_importance_sampling_cap", FLOAT, 3.0, versions=">=0.26,<1.6"),
    Key("vllm_importance_sampling_cap", OPTIONAL_FLOAT, None, versions=">=1.6"),
    Key("off_policy_mask_threshold", OPTIONAL_FLOAT, None, versions=">=0.27"),
    *fixed_before(Key("use_bias_correction_kl", BOOL, False, versions=">=0.26,<1.10")),
    Key("use_bias_correction_kl", BOOL, True, versions=">=1.10"),
    Key("log_completions", BOOL, False),
    Key("log_multimodal", BOOL, True, versions=">=1.9"),
    Key("num_completions_to_print", OPTIONAL_INT, None, versions=">=0.17"),
    Key("log_unique_prompts", BOOL, False, versions=">=0.26"),
    Key("wandb_log_unique_prompts", OPTIONAL_BOOL, False, versions=">=0.17,<0.26"),
    Key("wandb_log_unique_prompts", OPTIONAL_BOOL, None, versions=">=0.26,<0.27"),
    *fixed_before(Key("log_completions_hub_repo", OPTIONAL_TEXT, None, versions=">=0.28")),
    Key("use_transformers_continuous_batching", BOOL, False, versions=">=1.7"),
    Key("transformers_continuous_batching_config", MAPPING, None, versions=">=1.7"),
    Key("use_transformers_paged", BOOL, False, versions=">=0.20"),
    Key("logging_steps", FLOAT, 500, versions="<0.19"),
    Key("logging_steps", FLOAT, 10, versions=">=0.19"),
    Key("gradient_checkpointing", BOOL, False, versions="<0.22"),
    Key("gradient_checkpointing", BOOL, True, versions=">=0.22"),
    Key("bf16", OPTIONAL_BOOL, False, versions="<0.19"),
    Key("bf16", OPTIONAL_BOOL, None, versions=">=0.19"),
    Key("lr_scheduler_kwargs", PLAIN_MAPPING, None),
    Key("use_liger_loss", BOOL, False, versions=">=0.17,<0.25"),
    Key("use_liger_loss", OPTIONAL_BOOL, None, versions=">=0.25,<0.28"),
    Key("use_liger_kernel", BOOL, False),
    Key("torch_empty_cache_steps", OPTIONAL_INT, None),
)


_SCRIPT_ARGUMENTS = (
    Key("dataset_name", OPTIONAL_TEXT, None),
    Key("dataset_config", OPTIONAL_TEXT, None),
    Key("dataset_train_split", TEXT, "train"),
    Key("dataset_test_split", TEXT, "test"),
    Key("dataset_streaming", BOOL, False, versions=">=0.19"),
    Key("gradient_checkpointing_use_reentrant", BOOL, False, versions="<0.27"),
    Key("ignore_bias_buffers", BOOL, False),
)
_GRPO_SCRIPT_ARGUMENTS = (
    Key("reward_model_name_or_path", OPTIONAL_TEXT, None),
    Key("reward_funcs", TEXTS, None, versions=">=0.18"),
)
_MODEL_CONFIG = (
    Key("model_name_or_path", OPTIONAL_TEXT, None),
    Key("model_revision", TEXT, "main"),
    Key("torch_dtype", OPTIONAL_TEXT, None, versions="<0.27"),
    Key("dtype", OPTIONAL_TEXT, None, versions=">=0.23,<0.27"),
    Key("dtype", OPTIONAL_TEXT, "float32", versions=">=0.27"),
    Key("trust_remote_code", BOOL, False, versions="<1.7"),
    Key("attn_implementation", OPTIONAL_TEXT, None),
    Key("use_peft", BOOL, False),
    Key("lora_r", INT, 16),
    Key("lora_alpha", INT, 32),
    Key("lora_dropout", FLOAT, 0.05),
    Key("lora_target_modules", TEXTS, None),
    Key("lora_target_parameters", TEXTS, None, versions=">=0.21"),
    Key("lora_modules_to_save", TEXTS, None),
    Key("lora_task_type", TEXT, "CAUSAL_LM"),
    Key("use_rslora", BOOL, False),
    Key("use_dora", BOOL, False, versions=">=0.16"),
    Key("load_in_8bit", BOOL, False),
    Key("load_in_4bit", BOOL, False),
    Key("bnb_4bit_quant_type", TEXT, "nf4"),
    Key("use_bnb_nested_quant", BOOL, False),
    Key("bnb_4bit_quant_storage", OPTIONAL_TEXT, None, versions=">=0.26"),
)
_DATASET_MIXTURE = (
    Key("datasets", TEXTS, None, versions=">=0.22"),
    Key("streaming", BOOL, False, versions=">=0.22"),
    Key("test_split_size", OPTIONAL_FLOAT, None, versions=">=0.22"),
)
_LAUNCH = (
    Key("accelerate_config", OPTIONAL_TEXT, None),
    Key("config_file", OPTIONAL_TEXT, None),
    Key("num_processes", OPTIONAL_INT, None),
    Key("num_machines", OPTIONAL_INT, None),
    Key("machine_rank", OPTIONAL_INT, None),
    Key("main_process_ip", OPTIONAL_TEXT, None),
    Key("main_process_port", OPTIONAL_INT, None),
    Key("mixed_precision", OPTIONAL_TEXT, None),
    Key("gpu_ids", ANY, None),
)

GRPO_CONFIG = SettingGroup("trl GRPOConfig and _BaseConfig, 0.15.0 to 1.16.0", _GRPO_CONFIG)
SCRIPT_ARGUMENTS = SettingGroup("trl.scripts.utils ScriptArguments, 0.15.0 to 1.16.0", _SCRIPT_ARGUMENTS)
GRPO_SCRIPT_ARGUMENTS = SettingGroup("trl.scripts.grpo GRPOScriptArguments, 0.15.0 to 1.16.0", _GRPO_SCRIPT_ARGUMENTS)
MODEL_CONFIG = SettingGroup("trl ModelConfig, 0.15.0 to 1.16.0", _MODEL_CONFIG)
DATASET_MIXTURE = SettingGroup("trl.scripts.utils DatasetMixtureConfig, 0.15.0 to 1.16.0", _DATASET_MIXTURE)
LAUNCH = SettingGroup("trl.cli.commands.training: unknown keys go to accelerate's launcher", _LAUNCH)
ENVIRONMENT = SettingGroup(
    "trl TrlParser.parse_args_and_config: the key `env` sets variables", (Key("env", VARIABLES),)
)

TRAINER_GROUPS = (GRPO_CONFIG, TRAINING_ARGUMENTS)
"""The groups of settings that a `GRPOConfig` holds."""
TRL_GROUPS = (
    *TRAINER_GROUPS,
    SCRIPT_ARGUMENTS,
    GRPO_SCRIPT_ARGUMENTS,
    MODEL_CONFIG,
    DATASET_MIXTURE,
    LAUNCH,
    ENVIRONMENT,
)
"""The groups of settings that a recipe of `trl grpo` may hold."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "ddp_backend": ("nccl", "gloo", "mpi", "hccl", "cncl", "mccl", "xccl", "ccl"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
    "bnb_4bit_quant_type": ("fp4", "nf4"),
    **dict.fromkeys(("dtype", "torch_dtype"), ("auto", "bfloat16", "float16", "float32")),
    **dict.fromkeys(("half_precision_backend", "fp16_backend"), ("auto", "apex", "cpu_amp")),
}
"""Settings of which argparse takes these words alone; a file's are not looked at. Source: `choices` in transformers
4.51.3, 4.57.6 and 5.23.0 TrainingArguments (which has xccl for ccl) and in trl 0.18.0 and 1.16.0 ModelConfig."""

_RENAMED = {
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "push_to_hub_token": "hub_token",
    "torchdynamo": "torch_compile_backend",
}
_REPLACED = {
    "adafactor": "optim",
    "group_by_length": "train_sampling_strategy",
    "push_to_hub_model_id": "hub_model_id",
    **dict.fromkeys(("save_safetensors", "include_tokens_per_second", "half_precision_backend")),
}
"""Settings of TrainingArguments that transformers 5 has under another name, and those that others replace, or none."""
_OLD_TRAINING_ARGUMENTS = "transformers TrainingArguments: in 4.57.6, not in 5.23.0"
_IN_5_14 = "transformers TrainingArguments: in 5.14.0, not in 5.15.0"
GONE = (
    RemovedKey("max_prompt_length", "trl 0.28.0", None, "trl GRPOConfig 0.28.0; prompts are not cut since 0.26.0"),
    RemovedKey("torch_dtype", "trl 0.27.0", "dtype", "trl ModelConfig 0.27.0", same="dtype"),
    RemovedKey(
        *("wandb_log_unique_prompts", "trl 0.27.0", "log_unique_prompts", "trl GRPOConfig 0.27.0"),
        same="log_unique_prompts",
    ),
    RemovedKey("use_liger_loss", "trl 0.28.0", "use_liger_kernel", "trl GRPOConfig 0.28.0"),
    RemovedKey("vllm_device", "trl 0.18.0", None, "trl GRPOConfig 0.18.0; vllm_mode says where generation runs"),
    RemovedKey(
        "vllm_max_model_len", "trl 0.18.0", "vllm_max_model_length", "trl GRPOConfig 0.18.0; the new key came in 0.26"
    ),
    RemovedKey("vllm_dtype", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    RemovedKey("vllm_enable_prefix_caching", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    RemovedKey(
        *("vllm_guided_decoding_regex", "trl 0.28.0", "vllm_structured_outputs_regex", "trl GRPOConfig 0.28.0"),
        same="vllm_structured_outputs_regex",
    ),
    RemovedKey("gradient_checkpointing_use_reentrant", "trl 0.27.0", None, "trl ScriptArguments 0.27.0"),
    RemovedKey(
        *("warmup_ratio", "transformers 5.15", "warmup_steps (below 1 it is a share)", _IN_5_14),
        same="warmup_steps",
    ),
    RemovedKey("overwrite_output_dir", "transformers 5", None, _OLD_TRAINING_ARGUMENTS, unread=True),
    RemovedKey(
        *("evaluation_strategy", "transformers 4.46", "eval_strategy", "transformers TrainingArguments 4.56.2"),
        same="eval_strategy",
    ),
    *(RemovedKey(key, "transformers 5", new, _OLD_TRAINING_ARGUMENTS, same=new) for key, new in _RENAMED.items()),
    *(RemovedKey(key, "transformers 5", new, _OLD_TRAINING_ARGUMENTS) for key, new in _REPLACED.items()),
    RemovedKey("logging_dir", "transformers 5.15", None, _IN_5_14),
)
"""Keys that published recipes still hold and that newer versions do not take: looked up where a version has no row.
`same`: transformers 4.57.6 TrainingArguments copies the old value to the new key; TRL's own keys a release renamed.
`unread`: no line of transformers 4.57.6 but the field's own names it."""

OF_LAUNCHER = (
    *("cpu", "multi_gpu", "quiet", "num_cpu_threads_per_process", "enable_cpu_affinity", "same_network", "tee"),
    *("log_dir", "role", "rdzv_backend", "rdzv_conf", "max_restarts", "monitor_interval", "main_training_function"),
    *("downcast_bf16", "use_deepspeed", "deepspeed_config_file", "zero_stage", "zero3_init_flag", "gradient_clipping"),
    *("zero3_save_16bit_model", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path"),
    *("offload_param_nvme_path", "use_fsdp", "use_parallelism_config", "mpirun_hostfile"),
    *(f"dynamo_{name}" for name in ("backend", "mode", "use_fullgraph", "use_dynamic", "use_regional_compilation")),
    *(f"deepspeed_{name}" for name in ("hostfile", "exclusion_filter", "inclusion_filter", "multinode_launcher")),
    *(f"fsdp_{name}" for name in ("version", "offload_params", "sharding_strategy", "reshard_after_forward")),
    *(f"fsdp_{name}" for name in ("auto_wrap_policy", "backward_prefetch", "forward_prefetch", "state_dict_type")),
    *(f"fsdp_{name}" for name in ("use_orig_params", "cpu_ram_efficient_loading", "sync_module_states")),
    *(f"fsdp_activation_checkpointing{name}" for name in ("", "_offload")),
    *(f"parallelism_config_{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")),
)
"""Further options of accelerate's launcher, but for those of TPUs, Megatron-LM, FP8 and AWS. Source: accelerate 1.15.0
commands/launch.py."""
PACKAGED_ACCELERATE_CONFIGS = {
    **dict.fromkeys(("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3"), 8),
    "single_gpu": 1,  # it says num_processes 8 as well, and distributed_type NO, which runs one process
}
"""`accelerate_config` by name -> processes. Source: trl/accelerate_configs, 1.9.1 and 1.16.0."""

"""The settings of transformers' TrainingArguments, which GRPOConfig inherits; see `settings`."""

from __future__ import annotations

from typing import Any

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.parser_kinds import (
    ANY,
    ANY_OR_ALONE,
    BOOL,
    FLOAT,
    INT,
    MAPPING,
    OPTIONAL_BOOL,
    OPTIONAL_FLOAT,
    OPTIONAL_INT,
    OPTIONAL_TEXT,
    TEXT,
    TEXTS,
    choice,
)
from batchbridge_trl.tables import SettingGroup

TRANSFORMERS = (("<0.17", "4.51.3"), (">=0.17,<0.29", "4.57.6"), (">=0.29", "5.23.0"))
"""TRL versions -> the transformers release that is assumed beside them; TRL pins a lower bound only. 4.51.3 is the last
one that 0.15 and 0.16 train with: later ones call `_get_train_sampler(dataset)`, which these take without an argument
(run: TypeError). Up to 0.28.0 the newest 4.x is assumed: these ask transformers' `_is_package_available`, whose answer
is a tuple since 5.3.0, so that everything counts as installed and the trainer's module cannot be imported (run: No
module named 'weave'); 0.29.0 has a function of its own. Open-R1 pins 4.52.3, which has the settings of 4.57.6 but for a
few that say nothing about batches."""

_4, _51, _57, _5 = "<0.29", *(versions for versions, _ in TRANSFORMERS)

LR_SCHEDULER_TYPE = choice(
    (
        *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
        *("reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
    ),
    "SchedulerType",
)
OPTIM = choice(
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
    "OptimizerNames",
)
ADAMW = ("adamw_torch_fused", "adamw_torch")
"""`optim` names of plain AdamW; the first is transformers' default."""
OPTIMIZERS = (
    lambda native: "adamw" if native in ADAMW else native,
    lambda canonical: ADAMW[0] if canonical == "adamw" else canonical,
)
STRATEGIES = ("no", "steps", "epoch")
INTERVAL_STRATEGY = choice(STRATEGIES, "IntervalStrategy")
SAVE_STRATEGY = choice((*STRATEGIES, "best"), "SaveStrategy")
HUB_STRATEGY = choice(("end", "every_save", "checkpoint", "all_checkpoints"), "HubStrategy")
"""Enumerations: a wrong value fails while the config is constructed. Source: transformers 4.51.3, 4.57.6, 5.23.0."""
LOG_LEVEL = choice(
    ("detail", "debug", "info", "warning", "error", "critical", "passive"),
    "log level",
    "it is taken without a check, and a KeyError while the trainer is constructed",
)


def _debugged(value: Any) -> Any:
    if isinstance(value, str) and not {*value.split()} <= {*DEBUG_OPTIONS}:
        raise WrongValue(f"words among {', '.join(DEBUG_OPTIONS)}", "ValueError: not a valid DebugOption")
    return value


def _counted(value: Any) -> Any:
    """The tokens that are counted: a flag, or a word that only a constructed config takes (see `values.convert`)."""
    return value if value in ("all", "non_padding") else BOOL.convert(value)


def _no_text(value: Any) -> Any:
    if isinstance(value, str):
        raise WrongValue("a mapping", f"argparse: argument --{{key}}: invalid value: {value!r}")
    return MAPPING.convert(value)


CALLED = MAPPING._replace(name="dict?", convert=_no_text, schema={**MAPPING.schema, "pattern": "(?!)"})
"""A mapping that no text stands for: argparse calls its class with it."""
DEBUG_OPTIONS = ("underflow_overflow", "tpu_metrics_debug")
DEBUG = TEXTS._replace(convert=_debugged, schema={"pattern": rf"^\s*(({'|'.join(DEBUG_OPTIONS)})(\s+|$))*$"})
COUNTED_TOKENS = Kind(ANY_OR_ALONE.name, "true or false", _counted, BOOL.schema)
FSDP = (
    *("full_shard", "shard_grad_op", "offload", "auto_wrap"),
    *("no_shard", "hybrid_shard", "hybrid_shard_zero2"),  # of FSDP 1 alone
)
ACCELERATOR_CONFIG = (
    *("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking"),
    *("gradient_accumulation_kwargs", "use_configured_state"),
)
"""Settings of an AcceleratorConfig. Source: transformers 4.51.3, 4.57.6 and 5.23.0 trainer_pt_utils.py."""

_TRAINING_ARGUMENTS = (
    Key("output_dir", OPTIONAL_TEXT, None),
    Key("per_device_train_batch_size", INT, 8, "micro_batch.completions_per_device"),
    Key("num_train_epochs", FLOAT, 3.0),
    Key("max_steps", INT, -1),
    Key("lr_scheduler_type", LR_SCHEDULER_TYPE, "linear"),
    Key("warmup_ratio", FLOAT, 0.0, versions=_4),
    Key("warmup_steps", INT, 0, versions=_4),
    Key("warmup_steps", FLOAT, 0, versions=_5),
    Key("optim", OPTIM, "adamw_torch_fused", "carried.optimizer", OPTIMIZERS),
    Key("optim_args", OPTIONAL_TEXT, None),
    Key("weight_decay", FLOAT, 0.0, "carried.weight_decay"),
    Key("adam_beta1", FLOAT, 0.9, "carried.beta1"),
    Key("adam_beta2", FLOAT, 0.999, "carried.beta2"),
    Key("adam_epsilon", FLOAT, 1e-08, "carried.optimizer_epsilon"),
    Key("optim_target_modules", ANY, None),
    Key("gradient_accumulation_steps", INT, 1),
    Key("average_tokens_across_devices", OPTIONAL_BOOL, False, versions=_51),
    Key("average_tokens_across_devices", BOOL, True, versions=">=0.17"),
    # Clipped where it is above 0. Source: transformers 4.51.3, 4.57.6 and 5.23.0 trainer.py.
    Key(
        *("max_grad_norm", FLOAT, 1.0, "carried.max_gradient_norm"),
        (lambda native: max(native, 0.0), lambda canonical: canonical),
    ),
    Key("label_smoothing_factor", FLOAT, 0.0),
    Key("fp16", BOOL, False),
    Key("bf16_full_eval", BOOL, False),
    Key("fp16_full_eval", BOOL, False),
    Key("tf32", OPTIONAL_BOOL, None),
    Key("activation_checkpointing", OPTIONAL_BOOL._replace(name="bool"), None, versions=_5),
    Key("activation_checkpointing_kwargs", MAPPING, None, versions=_5),
    Key("gradient_checkpointing_kwargs", MAPPING, None),
    Key("torch_compile", BOOL, False),
    Key("torch_compile_backend", OPTIONAL_TEXT, None),
    Key("torch_compile_mode", OPTIONAL_TEXT, None),
    Key("liger_kernel_config", CALLED, None, versions=">=0.17"),
    Key("use_cache", BOOL, False, versions=_5),
    Key("neftune_noise_alpha", OPTIONAL_FLOAT, None),
    Key("auto_find_batch_size", BOOL, False),
    Key("logging_strategy", INTERVAL_STRATEGY, "steps"),
    Key("logging_first_step", BOOL, False),
    Key("log_on_each_node", BOOL, True),
    Key("logging_nan_inf_filter", BOOL, True),
    Key("include_num_input_tokens_seen", COUNTED_TOKENS, False, versions=_4),
    Key("include_num_input_tokens_seen", COUNTED_TOKENS, "no", versions=_5),
    Key("log_level", LOG_LEVEL, "passive"),
    Key("log_level_replica", LOG_LEVEL, "warning"),
    Key("disable_tqdm", OPTIONAL_BOOL, None),
    Key("report_to", ANY, None, versions=_4),
    Key("report_to", ANY, "none", versions=_5),
    Key("run_name", OPTIONAL_TEXT, None),
    Key("project", TEXT, "huggingface", versions=">=0.17"),
    Key("trackio_space_id", OPTIONAL_TEXT, "trackio", versions=_57),
    Key("trackio_space_id", OPTIONAL_TEXT, None, versions=_5),
    Key("trackio_bucket_id", OPTIONAL_TEXT, None, versions=_5),
    Key("trackio_static_space_id", ANY, None, versions=_5),
    Key("eval_strategy", INTERVAL_STRATEGY, "no"),
    Key("eval_steps", OPTIONAL_FLOAT, None),
    Key("eval_delay", FLOAT, 0),
    Key("per_device_eval_batch_size", INT, 8),
    Key("prediction_loss_only", BOOL, False),
    Key("eval_on_start", BOOL, False),
    Key("eval_do_concat_batches", BOOL, True),
    Key("eval_use_gather_object", BOOL, False),
    Key("eval_accumulation_steps", OPTIONAL_INT, None),
    Key("include_for_metrics", TEXTS, None),
    Key("batch_eval_metrics", BOOL, False),
    Key("save_only_model", BOOL, False),
    Key("save_strategy", SAVE_STRATEGY, "steps"),
    Key("save_steps", FLOAT, 500),
    Key("save_on_each_node", BOOL, False),
    Key("save_total_limit", OPTIONAL_INT, None),
    Key("enable_jit_checkpoint", BOOL, False, versions=_5),
    Key("push_to_hub", BOOL, False),
    Key("hub_token", OPTIONAL_TEXT, None),
    Key("hub_private_repo", OPTIONAL_BOOL, None),
    Key("hub_model_id", OPTIONAL_TEXT, None),
    Key("hub_strategy", HUB_STRATEGY, "every_save"),
    Key("hub_always_push", BOOL, False),
    Key("hub_revision", OPTIONAL_TEXT, None, versions=">=0.17"),
    Key("load_best_model_at_end", BOOL, False),
    Key("metric_for_best_model", OPTIONAL_TEXT, None),
    Key("greater_is_better", OPTIONAL_BOOL, None),
    Key("ignore_data_skip", BOOL, False),
    Key("restore_callback_states_from_checkpoint", BOOL, False),
    Key("full_determinism", BOOL, False),
    Key("seed", INT, 42, "order.seed"),
    Key("data_seed", OPTIONAL_INT, None),
    Key("use_cpu", BOOL, False),
    Key("accelerator_config", MAPPING, None),
    Key("parallelism_config", CALLED, None, versions=">=0.17"),
    Key("dataloader_drop_last", BOOL, False),
    Key("dataloader_num_workers", INT, 0),
    Key("dataloader_pin_memory", BOOL, True),
    Key("dataloader_persistent_workers", BOOL, False),
    Key("dataloader_prefetch_factor", OPTIONAL_INT, None),
    Key("dataloader_multiprocessing_context", OPTIONAL_TEXT, None, versions=_5),
    Key("dataloader_in_order", BOOL, True, versions=_5),
    Key("label_names", TEXTS, None),
    Key("train_sampling_strategy", TEXT, "random", versions=_5),
    Key("length_column_name", TEXT, "length"),
    Key("ddp_find_unused_parameters", OPTIONAL_BOOL, None),
    Key("ddp_bucket_cap_mb", OPTIONAL_INT, None),
    Key("ddp_broadcast_buffers", OPTIONAL_BOOL, None),
    Key("ddp_static_graph", OPTIONAL_BOOL, None, versions=_5),
    Key("ddp_backend", OPTIONAL_TEXT, None),
    Key("ddp_timeout", INT, 1800),
    # Text, a list of texts, or true, which transformers sets itself in a constructed config from 5.10 on.
    Key("fsdp", ANY, None, versions=_4),
    Key("fsdp", ANY_OR_ALONE, None, versions=_5),
    Key("fsdp_config", MAPPING, None),
    Key("deepspeed", MAPPING, None),
    Key("debug", DEBUG, ""),
    Key("skip_memory_metrics", BOOL, True),
    Key("do_train", BOOL, False),
    Key("do_eval", BOOL, False),
    Key("do_predict", BOOL, False),
    Key("resume_from_checkpoint", OPTIONAL_TEXT, None),
    Key("local_rank", INT, -1),
    Key("overwrite_output_dir", BOOL, False, versions=_4),
    Key("no_cuda", BOOL, False, versions=_4),
    Key("use_mps_device", BOOL, False, versions=_4),
    Key("per_gpu_train_batch_size", OPTIONAL_INT, None, versions=_4),
    Key("per_gpu_eval_batch_size", OPTIONAL_INT, None, versions=_4),
    Key("adafactor", BOOL, False, versions=_4),
    Key("group_by_length", BOOL, False, versions=_4),
    Key("logging_dir", OPTIONAL_TEXT, None, versions=_4),
    Key("save_safetensors", BOOL, True, versions=_4),
    Key("jit_mode_eval", BOOL, False, versions=_4),
    Key("fp16_opt_level", TEXT, "O1", versions=_4),
    Key("half_precision_backend", TEXT, "auto", versions=_4),
    Key("fp16_backend", TEXT, "auto", versions=_4),
    Key("tpu_num_cores", OPTIONAL_INT, None, versions=_4),
    Key("tpu_metrics_debug", BOOL, False, versions=_4),
    Key("past_index", INT, -1, versions=_4),
    Key("fsdp_min_num_params", INT, 0, versions=_4),
    Key("fsdp_transformer_layer_cls_to_wrap", OPTIONAL_TEXT, None, versions=_4),
    Key("push_to_hub_model_id", OPTIONAL_TEXT, None, versions=_4),
    Key("push_to_hub_organization", OPTIONAL_TEXT, None, versions=_4),
    Key("push_to_hub_token", OPTIONAL_TEXT, None, versions=_4),
    Key("include_inputs_for_metrics", BOOL, False, versions=_4),
    Key("include_tokens_per_second", BOOL, False, versions=_4),
    Key("mp_parameters", TEXT, "", versions=_4),
    Key("torchdynamo", OPTIONAL_TEXT, None, versions=_4),
    Key("ray_scope", OPTIONAL_TEXT, "last", versions=_4),
    Key("use_legacy_prediction_loop", BOOL, False, versions=_4),
    Key("use_ipex", BOOL, False, versions=_51),
    Key("tp_size", OPTIONAL_INT, 0, versions=_51),
)


TRAINING_ARGUMENTS = SettingGroup("transformers TrainingArguments 4.51.3, 4.57.6 and 5.23.0", _TRAINING_ARGUMENTS)

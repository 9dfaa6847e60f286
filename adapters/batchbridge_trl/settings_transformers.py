"""The settings of transformers' TrainingArguments, which GRPOConfig inherits; see `settings`."""

from __future__ import annotations

from typing import Any

from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.parser_kinds import (
    ANY,
    ANY_OR_ALONE,
    BOOL,
    MAPPING,
    OPTIONAL_BOOL,
    PLAIN_MAPPING,
    TEXTS,
    choice,
)
from batchbridge.kit.shipped_settings import Meant

TRANSFORMERS = (("<0.17", "4.51.3"), (">=0.17,<0.29", "4.57.6"), (">=0.29", "5.23.0"))
"""TRL versions -> the transformers release that is assumed beside them; TRL pins a lower bound only. 4.51.3 is the last
one that 0.15 and 0.16 train with: later ones call `_get_train_sampler(dataset)`, which these take without an argument
(run: TypeError). Up to 0.28.0 the newest 4.x is assumed: these ask transformers' `_is_package_available`, whose answer
is a tuple since 5.3.0, so that everything counts as installed and the trainer's module cannot be imported (run: No
module named 'weave'); 0.29.0 has a function of its own. Open-R1 pins 4.52.3, which has the settings of 4.57.6 but for a
few that say nothing about batches."""
STARTS = ("", "0.17", "0.29")
"""The first version of TRL for each of these releases."""

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

MEANT_TRAINING_ARGUMENTS = (
    Meant("per_device_train_batch_size", "micro_batch.completions_per_device"),
    Meant("lr_scheduler_type", kind=LR_SCHEDULER_TYPE),
    Meant("lr_scheduler_kwargs", kind=PLAIN_MAPPING, default=None),
    Meant("optim", "carried.optimizer", OPTIMIZERS, OPTIM, ADAMW[0]),
    Meant("weight_decay", "carried.weight_decay"),
    Meant("adam_beta1", "carried.beta1"),
    Meant("adam_beta2", "carried.beta2"),
    Meant("adam_epsilon", "carried.optimizer_epsilon"),
    # Clipped where it is above 0. Source: transformers 4.51.3, 4.57.6 and 5.23.0 trainer.py.
    Meant("max_grad_norm", "carried.max_gradient_norm", (lambda native: max(native, 0.0), lambda canonical: canonical)),
    Meant("bf16", kind=OPTIONAL_BOOL),
    Meant("activation_checkpointing", kind=OPTIONAL_BOOL._replace(name="bool")),
    *(Meant(name, kind=CALLED) for name in ("liger_kernel_config", "parallelism_config")),
    *(Meant(name, kind=INTERVAL_STRATEGY) for name in ("logging_strategy", "eval_strategy")),
    Meant("include_num_input_tokens_seen", kind=COUNTED_TOKENS),
    *(Meant(name, kind=LOG_LEVEL) for name in ("log_level", "log_level_replica")),
    Meant("save_strategy", kind=SAVE_STRATEGY),
    Meant("hub_strategy", kind=HUB_STRATEGY),
    Meant("seed", "order.seed"),
    # Text, a list of texts, or true, which transformers sets itself in a constructed config from 5.10 on.
    Meant("fsdp", kind=ANY, default=None, until="5.23.0"),
    Meant("fsdp", kind=ANY_OR_ALONE, since="5.23.0"),
    Meant("debug", kind=DEBUG),
)
"""The meaning of settings of TrainingArguments, and what they take where their type does not say it."""

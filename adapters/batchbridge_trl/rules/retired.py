"""Rules that only repeated what `TrainingArguments` and `GRPOConfig` say themselves of settings that decide nothing of
what is trained: no check judges them any more, `doctor` knows their texts, and their codes are never used again."""

from __future__ import annotations

from batchbridge.kit.rule_table import retired
from batchbridge_trl.rules.facts import ARGUMENTS_CHECKED, POST_INIT

_OLDER = "transformers 4.51.3 and 4.57.6"

RETIRED = (
    retired(
        "BB-TRL-082",
        "torch_empty_cache_steps",
        native="ValueError: `torch_empty_cache_steps` must be an integer bigger than 0",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-083",
        *("eval_steps", "logging_steps", "eval_strategy"),
        native="ValueError: evaluation strategy ... requires either non-zero --eval_steps or --logging_steps",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-010",
        "logging_steps",
        native="ValueError: logging strategy ... requires non-zero --logging_steps",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-084",
        *("logging_steps", "eval_steps", "save_steps"),
        native="ValueError: ... must be an integer if bigger than 1",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-085",
        *("load_best_model_at_end", "eval_strategy", "save_strategy", "eval_steps", "logging_steps", "save_steps"),
        native="ValueError: --load_best_model_at_end requires the save and eval strategy to match",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-089",
        *("fp16_full_eval", "bf16_full_eval"),
        native="ValueError: At most one of fp16 and bf16 can be True for full eval, but not both",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-013",
        *("dataloader_prefetch_factor", "dataloader_num_workers"),
        native="ValueError: --dataloader_prefetch_factor can only be set when data is loaded in a different process",
        source=ARGUMENTS_CHECKED,
    ),
    retired(
        "BB-TRL-088",
        *("fsdp", "fsdp_config"),
        native="ValueError: ... is not a valid FSDPOption",
        source=f"{_OLDER} FSDPOption",
        versions="<0.29",
    ),
    retired(
        "BB-TRL-088",
        *("fsdp", "fsdp_config"),
        native="ValueError: Unknown `fsdp` option",
        source="transformers 5.23.0 _apply_legacy_fsdp_to_config",
        versions=">=0.29",
    ),
    retired(
        "BB-TRL-015",
        *("log_completions_hub_repo", "log_completions"),
        native="ValueError: log_completions_hub_repo is set, but log_completions is False",
        source=f"trl 0.28.0 to 1.16.0 {POST_INIT}",
        versions=">=0.28",
    ),
)

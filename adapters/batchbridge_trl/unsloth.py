"""Unsloth's GRPOConfig: importing unsloth puts it in place of TRL's, with other defaults and rewritten settings.

Source: unsloth 2026.10.9 models/rl.py:3309-3600 (defaults in `replacements`, rewrites in `extra_args`), read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge import Finding, Where
from batchbridge.kit.key_table import Key
from batchbridge.kit.versions import includes
from batchbridge_trl.sizes import ACCUMULATION, BATCH, GENERATIONS, MICRO, STEPS

VERSION = "2026.10.9"
"""The release of Unsloth whose defaults these are."""
_DEFAULTS: Mapping[str, Any] = {
    MICRO: 4,
    ACCUMULATION: 2,
    GENERATIONS: 8,
    "per_device_eval_batch_size": 4,
    "eval_accumulation_steps": 2,
    "weight_decay": 0.001,
    "seed": 3407,
    "optim": "adamw_8bit",
    "learning_rate": 5e-05,
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "torch_empty_cache_steps": 250,
    "bf16": False,
    "fp16": False,
    "report_to": "none",
    "vllm_mode": "colocate",
    "vllm_importance_sampling_correction": False,
    "router_aux_loss_coef": 0.0,
    "mask_truncated_completions": False,
}
OWN = frozenset(
    {
        *("vllm_sampling_params", "unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch"),
        *("max_seq_length", "context_parallel_size", "context_parallel_backend"),
    }
)
"""Settings of Unsloth's own that no batch depends on."""


def settings(given: Mapping[str, Any], rows: Mapping[str, Key], version: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings that Unsloth hands TRL, of those that the user gave, and the origin of each default that it fills
    in."""
    kept = {key: value for key, value in given.items() if key not in OWN}
    has = {key for key, row in rows.items() if not row.fixed}
    # transformers 5 takes a share of the steps as warmup_steps below 1, and loses warmup_ratio later.
    defaults = {**_DEFAULTS, "warmup_ratio" if "warmup_ratio" in has else "warmup_steps": 0.1}
    own = given.get("loss_type")
    loss = own or ("dapo" if includes(">=0.22", version) else "bnpo")
    defaults |= {"loss_type": loss, "beta": 0.0 if str(loss).lower() in ("dapo", "dr_grpo") else 0.001}
    if own is not None and str(own).lower() == "dapo":
        defaults |= {"mask_truncated_completions": True, "epsilon_high": 0.28}
    if own is not None and str(own).lower() == "cispo":
        defaults["epsilon_high"] = 5.0
    filled = {key: value for key, value in defaults.items() if key in has and kept.get(key) is None}
    return {**kept, **filled}, dict.fromkeys(filled, f"default of unsloth {VERSION}")


def rewritten(native: dict[str, Any], world_size: int | None, place: Where) -> Iterator[Finding]:
    """Changes the converted settings as Unsloth's constructor does, and says so."""
    micro, accumulation, group = native.get(MICRO), native.get(ACCUMULATION), native.get(GENERATIONS)
    sizes = [one for one in (micro, accumulation, world_size, group) if isinstance(one, int) and one > 0]
    derived = native.get(STEPS) is None and native.get(BATCH) is None
    if derived and len(sizes) == 4 and math.prod(sizes[:3]) % sizes[3]:
        product = f"{micro} x {accumulation} x {world_size} (completions per rollout)"
        message = (
            f"Unsloth changes {MICRO} = {micro} to {GENERATIONS} = {group}: {product} is not a multiple of {group}"
        )
        native[MICRO] = group
        yield Finding("BB-TRL-096", "warning", "construction", message, (place,), source=_SOURCE)
    if native.get("loss_type") == "dr_grpo" and native.get("scale_rewards") in (True, "group"):
        native["scale_rewards"] = "none" if isinstance(native["scale_rewards"], str) else False
        message = "Unsloth sets scale_rewards to False with loss_type = dr_grpo"
        yield Finding("BB-TRL-096", "warning", "construction", message, (place,), source=_SOURCE)


_SOURCE = f"unsloth {VERSION} models/rl.py"

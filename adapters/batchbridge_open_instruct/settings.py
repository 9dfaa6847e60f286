"""Open-Instruct's settings: which checkout has which, of what kind, with which default.

What each script's parser declares stands in `declared.json`, which tests/upstream/declare.py writes; the rows here are
those that mean something. Open-Instruct is used from a checkout, so a version is the date of the checkout's commit.
Only checkouts whose parsers have been read are known; the same flag has other defaults in the next.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key, keys_of
from batchbridge.kit.kinds import Kind, one_of, or_null
from batchbridge.kit.parser_kinds import BOOL, FLOAT, INT
from batchbridge.kit.shipped_settings import shipped
from batchbridge.kit.versions import holds, release_after
from batchbridge_open_instruct.values import ANY_INTEGER, COUNT, GIVEN, PER_NODE, POSITIVE, SEED, TEXT

CHECKOUTS: Mapping[str, str] = {
    "2024.11.20": "9c2d44bec, the release of Tülu 3: the PPO script",
    "2025.10.20": "fc22674da, the parent of 3a9a97e46: grpo_fast.py with the loss of before 0.1.0",
    "2025.11.3": "the parent of bac939310, which deletes the PPO script",
    "2026.1.26": "v0.1.0",
    "2026.3.1": "v0.2.0",
    "2026.6.10": "v0.3.0",
    "2026.8.20": "e6c3044aa",
}
ALIASES: Mapping[str, str] = {"0.1.0": "2026.1.26", "0.2.0": "2026.3.1", "0.3.0": "2026.6.10"}
"""Tags and the dates of their commits."""
VERSIONS = ">=2024.11.20"
"""Checkouts that are read: those of `CHECKOUTS`, and newer ones as the newest."""
NEWEST = "2026.8.20"
NEWEST_PPO = "2025.11.3"

GRPO_FAST, GRPO, PPO = "grpo_fast.py", "grpo.py", "ppo_vllm_thread_ray_gtrl.py"
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    PPO: ("2024.11.20", "2025.11.3"),
    GRPO_FAST: ("2025.10.20", "2026.1.26", "2026.3.1", "2026.6.10", "2026.8.20"),
    GRPO: ("2026.6.10", "2026.8.20"),
}
"""Script to the checkouts in which it is read."""
SCRIPT = "script"
"""A key of ours: which script, where no command line says it."""
PROMPTS, GROUP, NODES = "num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_learners_per_node"
"""Keys of the GRPO scripts, prompts and completions of a rollout and learners."""

BEFORE_1, FROM_1 = "<2026.1.26", ">=2026.1.26"
"""Checkouts of the GRPO scripts before the first release, and from it on."""
BEFORE_3, FROM_3 = "<2026.6.10", ">=2026.6.10"
ATTENTION = ("torch", "flash_2", "flash_3", "flash_4", "te")
"""Words of `attn_implementation` from v0.3.0 on. Source: AttentionBackendName of OLMo-core."""
SCALES = {"standard": "group", "centered": "none"}
TRUNCATED = {True: "drop", False: "keep"}
SURROGATES = (lambda name: "cispo" if name == "cispo" else "ppo", lambda name: "cispo" if name == "cispo" else "dapo")
"""Surrogates by `loss_fn`: what is neither is refused, in both directions, by others."""


def _later(row: Key) -> tuple[Key, Key]:
    """A setting since v0.1.0; before, the script's code fixes it."""
    return row._replace(versions=BEFORE_1, fixed=True), row._replace(versions=FROM_1)


def _changed(row: Key, default: object) -> tuple[Key, Key]:
    """A setting that has another default since v0.3.0."""
    return row._replace(versions=BEFORE_3), row._replace(versions=FROM_3, default=default)


BOUND = (lambda bound: 0.0 if bound is None else canonical_bound(bound), native_bound)
"""No command line says None, and to grpo.py a bound of 0 is not a bound that is off."""

GRPO_ROWS = (
    # what one key decides alone has its canonical field beside it, and the words for it
    # ---- data_loader.py, StreamingDataLoaderConfig and VLLMConfig
    Key(PROMPTS, COUNT, 16, "rollout.prompts_per_rollout"),
    Key(GROUP, COUNT, 4, "rollout.completions_per_prompt"),
    Key("pack_length", POSITIVE, 512),
    Key("max_prompt_token_length", POSITIVE, 256, "carried.max_prompt_tokens"),
    Key("response_length", POSITIVE, 256, "carried.max_completion_tokens"),
    *_changed(Key("async_steps", COUNT, 1, "staleness.maximum"), 8),
    *_later(Key("active_sampling", BOOL, False)),
    *_later(Key("filter_zero_std_samples", BOOL, True)),
    Key("mask_truncated_completions", BOOL, False, "rollout.truncated_completions", TRUNCATED),
    *_changed(Key("advantage_normalization_type", TEXT, "standard", "advantage.scale", SCALES), "centered"),
    Key("temperature", FLOAT, 0.7, "carried.temperature", versions="<2026.8.20"),
    Key("temperature", FLOAT, 1.0, "carried.temperature", versions=">=2026.8.20"),
    Key("vllm_top_p", FLOAT, 1.0, "carried.top_p"),
    # ---- the experiment: Args before 2026.6.10, GRPOExperimentConfig and TrainingConfig after; the scripts'
    # parser.set_defaults
    Key("total_episodes", COUNT, 100_000),
    Key("num_mini_batches", POSITIVE, 1),
    Key("num_epochs", POSITIVE, 1, "optimizer_step.passes_per_rollout"),
    Key("per_device_train_batch_size", POSITIVE, 1),
    Key("gradient_accumulation_steps", or_null(ANY_INTEGER), 1, versions=FROM_3),  # never read
    Key(NODES, PER_NODE, [1]),
    *_later(Key("sequence_parallel_size", POSITIVE, 1)),
    Key("deepspeed_stage", COUNT, 0),
    Key("fsdp_shard_degree", or_null(POSITIVE), None, versions=FROM_3),
    Key("fsdp_num_replicas", or_null(POSITIVE), None, versions=FROM_3),
    *_changed(Key("seed", SEED, 1, "order.seed"), 42),
    Key("beta", FLOAT, 0.05),
    Key("kl_estimator", TEXT, "kl3", versions=BEFORE_1),
    Key("kl_estimator", COUNT, 2, versions=FROM_1),
    Key("masked_mean_axis", or_null(ANY_INTEGER), None, versions=BEFORE_1),
    Key("masked_mean_denominator", or_null(FLOAT), None, versions=BEFORE_1),
    Key("fill_completions", BOOL, False, versions=BEFORE_1),
    Key("allow_world_padding", BOOL, False, versions=BEFORE_1),
    Key("clip_lower", FLOAT, 0.2, "objective.clip_low"),
    *_changed(Key("clip_higher", FLOAT, 0.2, "objective.clip_high"), 0.272),
    *_later(Key("loss_fn", TEXT, "dapo", "objective.surrogate", SURROGATES)),
    *_later(Key("loss_denominator", TEXT, "token")),
    *_later(Key("load_ref_policy", BOOL, True)),
    Key("ref_policy_update_freq", or_null(POSITIVE)),
    Key("alpha", FLOAT, 0.6),
    Key("use_vllm_logprobs", BOOL, False),
    Key("truncated_importance_sampling_ratio_cap", FLOAT, 0.0, versions=BEFORE_3),
    Key("use_rho_correction", BOOL, True, versions=FROM_3),
    Key("rho_clamp_lower_bound", FLOAT, 0.0, versions=FROM_3),
    Key("rho_clamp_upper_bound", FLOAT, 2.0, versions=FROM_3),
    Key("rho_mask_lower_bound", FLOAT, 0.0, versions=FROM_3),
    Key("rho_mask_upper_bound", FLOAT, 0.0, versions=FROM_3),
    Key("learning_rate", FLOAT, 2e-5, "carried.learning_rate"),
    Key("lr_scheduler_type", TEXT, "linear"),
    Key("warm_up_steps", COUNT, 0, versions=BEFORE_3),
    Key("warmup_ratio", FLOAT, 0.0),
    Key("weight_decay", FLOAT, 0.0),
    Key("set_weight_decay_on_bias_and_norm", BOOL, True),
    Key("max_grad_norm", FLOAT, 1.0, "carried.max_gradient_norm", versions=BEFORE_1, fixed=True),
    Key("max_grad_norm", FLOAT, 1.0, "carried.max_gradient_norm", versions=f"{FROM_1},{BEFORE_3}"),
    Key("max_grad_norm", or_null(FLOAT), 1.0, "carried.max_gradient_norm", BOUND, versions=FROM_3),
)
"""Settings of grpo_fast.py and grpo.py. Source of what 2025.10.20 has no setting for: grpo_fast.py,
data_preparation_thread and PolicyTrainerRayProcess; utils.py, get_train_ds_config; fc22674da."""
PPO_ROWS = (
    # ---- Args, and DatasetConfig in the first
    Key("local_rollout_batch_size", POSITIVE, 64),
    Key("number_samples_per_prompt", POSITIVE, 1, "rollout.completions_per_prompt"),
    Key("local_mini_batch_size", POSITIVE, 64),
    Key("per_device_train_batch_size", POSITIVE, 1, "micro_batch.completions_per_device"),
    Key("gradient_accumulation_steps", or_null(ANY_INTEGER)),  # overwritten by calculate_runtime_args
    Key("num_mini_batches", ANY_INTEGER, 1),
    Key("num_epochs", COUNT, 4, "optimizer_step.passes_per_rollout"),
    Key("total_episodes", COUNT, 100_000),
    Key("actor_num_gpus_per_node", PER_NODE, [1]),
    Key("deepspeed_stage", COUNT, 0),
    Key("seed", SEED, 1, "order.seed"),
    Key("async_mode", BOOL, True, "staleness.mode", {True: "lookahead", False: "sync"}),
    Key("beta", FLOAT, 0.05, "objective.kl_coefficient"),
    Key("kl_estimator", TEXT, "kl1"),
    Key("cliprange", FLOAT, 0.2, ("objective.clip_low", "objective.clip_high")),
    Key("vf_coef", FLOAT, 0.1),
    Key("cliprange_value", FLOAT, 0.2),
    Key("gamma", FLOAT, 1.0),
    Key("lam", FLOAT, 0.95),
    Key("whiten_rewards", BOOL, False),
    Key("max_prompt_token_length", or_null(POSITIVE), None, "carried.max_prompt_tokens", versions="<2025.11.3"),
    Key("max_prompt_token_length", POSITIVE, 256, "carried.max_prompt_tokens", versions=">=2025.11.3"),
    Key("response_length", POSITIVE, 53, "carried.max_completion_tokens"),
    Key("temperature", FLOAT, 0.7, "carried.temperature"),
    Key("learning_rate", FLOAT, 2e-5, "carried.learning_rate"),
    Key("lr_scheduler_type", TEXT, "linear"),
    Key("warm_up_steps", COUNT, 0),
    Key("warmup_ratio", FLOAT, 0.0),
)
"""Settings of the PPO script."""
REMOVED: Mapping[str, tuple[str, str]] = {
    # flag of grpo_fast.py -> the day it went, and the commit
    "eval_freq": ("2025-07-16", "ca5501003"),
    "async_mode": ("2025-07-28", "80d6566ed"),
    "cliprange": ("2025-06-02", "49d13e92b"),
    "local_eval_freq": ("2025-08-08", "3fd39f834"),
    "num_evals": ("2025-08-08", "3fd39f834"),
    "max_token_length": ("2025-10-20", "3a9a97e46, #1097"),
    "fill_completions": ("2025-11-09", "da87d77d8"),
    "inference_batch_size": ("2025-11-17", "f87c66771"),
    "use_fp8_kv_cache": ("2025-11-17", "1986faa38"),
    "masked_mean_axis": ("2025-12-01", "7708f0adf, #1161: loss_denominator instead"),
    "masked_mean_denominator": ("2025-12-01", "7708f0adf, #1161: loss_denominator instead"),
    "update_progress_every": ("2025-12-08", "bf071f2d3"),
    "torch_dtype": ("2025-12-17", "03776b15f"),
    "allow_world_padding": ("2025-12-25", "b22984caf, #1308"),
    "code_tool_api_endpoint": ("2026-01-14", "31a1ba87d, #1340"),
    "number_documents_to_search": ("2026-01-14", "31a1ba87d, #1340"),
    "search_api_endpoint": ("2026-01-14", "31a1ba87d, #1340"),
    "shuffle_eval_dataset": ("2026-02-19", "c6e4c004c"),
    "max_tool_calls": ("2026-02-22", "fac7d14fe"),
    "warm_up_steps": ("2026-04-02", "0b847cf32"),
    "wandb_project_name": ("2026-04-02", "0b847cf32"),
    "truncated_importance_sampling_ratio_cap": ("2026-05-07", "e87c0fa28"),
}
"""Settings of grpo_fast.py that are gone: date and commit. Source: the fields of the dataclasses of grpo_fast.py's
parser in each of its 381 commits to e6c3044aa."""
LEARNERS: Mapping[str, str] = {PPO: "actor_num_gpus_per_node", GRPO_FAST: NODES, GRPO: NODES}
"""Script to the key whose sum is the world size; vLLM's devices are not counted."""


def checkout_of(version: str | None) -> str | None:
    """The known checkout that `version` names (a date or a tag, or what comes before one); None: it is not known."""
    if version is None:
        return None
    tag = version.removeprefix("v")
    named = ALIASES.get(release_after(tag) or tag, version)
    parts = named.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        named = ".".join(str(int(part)) for part in parts)
    return named if named in CHECKOUTS else None


@functools.cache
def rows_of(checkout: str) -> Mapping[str, Key]:
    """Key to row, of one checkout; what it has no setting for is `fixed`."""
    return keys_of(PPO_ROWS if checkout in SCRIPTS[PPO] else GRPO_ROWS, checkout)


class ParsedSetting(NamedTuple):
    """A setting as `runtime` looks at it: the name of its kind, which ends with ? where it may be None."""

    kind: str


def settings_of(checkout: str) -> Mapping[str, ParsedSetting]:
    """Key to kind, of what the parser of one checkout takes: for `runtime`, whose code recorded runs are of."""
    return {key: ParsedSetting(row.kind.name) for key, row in rows_of(checkout).items() if not row.fixed}


def has_flag(checkout: str, key: str) -> bool:
    """Whether the parser of `checkout` knows `key`."""
    row = rows_of(checkout).get(key)
    return key in other_names(checkout) if row is None else not row.fixed


@functools.cache
def _others(checkout: str) -> Mapping[str, str]:
    """Known keys without a meaning here, with the words for their types."""
    table = shipped("batchbridge_open_instruct")[PPO if checkout in SCRIPTS[PPO] else GRPO_FAST]
    return {key: str(row[0]) for key, row in table.of(checkout).items() if key not in rows_of(checkout)}


def other_names(checkout: str) -> frozenset[str]:
    """Known keys without a meaning here."""
    return frozenset(_others(checkout))


@functools.cache
def other_rows(checkout: str) -> Mapping[str, Key]:
    """Rows, by key, of the settings whose names alone are known here: without a canonical field, and no default."""
    return {name: Key(name, or_null(_kind(name, words, checkout))) for name, words in _others(checkout).items()}


def _kind(name: str, words: str, checkout: str) -> Kind:
    if name == "attn_implementation" and holds(FROM_3, checkout):
        return one_of(*ATTENTION)
    if name == "max_steps":
        return POSITIVE
    if words.startswith("="):
        return one_of(*words.rstrip("?").replace("=", "").split("|"))
    return {"int": INT, "float": FLOAT, "bool": BOOL}.get(words.rstrip("?"), GIVEN)

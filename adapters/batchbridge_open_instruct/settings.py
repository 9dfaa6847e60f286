"""Open-Instruct's settings: which checkout has which, of what kind, with which default.

What each script's parser declares stands in `declared.json`, which tests/upstream/declare.py writes; the rows here are
those that mean something. Open-Instruct is used from a checkout, so a version is the date of the checkout's commit.
Only checkouts whose parsers have been read are known; the same flag has other defaults in the next.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key, keys_of
from batchbridge.kit.kinds import Kind, one_of, or_null
from batchbridge.kit.parser_kinds import BOOL, FLOAT, INT
from batchbridge.kit.shipped_settings import Meant, rows, shipped
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

FIRST, THIRD = "2026.1.26", "2026.6.10"
BEFORE_1, FROM_1 = f"<{FIRST}", f">={FIRST}"
"""Checkouts of the GRPO scripts before the first release, and from it on."""
BEFORE_3, FROM_3 = f"<{THIRD}", f">={THIRD}"
ATTENTION = ("torch", "flash_2", "flash_3", "flash_4", "te")
"""Words of `attn_implementation` from v0.3.0 on. Source: AttentionBackendName of OLMo-core."""
SCALES = {"standard": "group", "centered": "none"}
TRUNCATED = {True: "drop", False: "keep"}
SURROGATES = (lambda name: "cispo" if name == "cispo" else "ppo", lambda name: "cispo" if name == "cispo" else "dapo")
"""Surrogates by `loss_fn`: what is neither is refused, in both directions, by others."""


BOUND = (lambda bound: 0.0 if bound is None else canonical_bound(bound), native_bound)
"""No command line says None, and to grpo.py a bound of 0 is not a bound that is off."""

_GRPO = (
    # what one key decides alone has its canonical field beside it, and the words for it
    # ---- data_loader.py, StreamingDataLoaderConfig and VLLMConfig
    Meant(PROMPTS, "rollout.prompts_per_rollout", kind=COUNT),
    Meant(GROUP, "rollout.completions_per_prompt", kind=COUNT),
    Meant("pack_length", kind=POSITIVE),
    Meant("max_prompt_token_length", "carried.max_prompt_tokens", kind=POSITIVE),
    Meant("response_length", "carried.max_completion_tokens", kind=POSITIVE),
    Meant("async_steps", "staleness.maximum", kind=COUNT),
    *(Meant(name, before=True) for name in ("active_sampling", "filter_zero_std_samples")),
    Meant("mask_truncated_completions", "rollout.truncated_completions", TRUNCATED),
    Meant("advantage_normalization_type", "advantage.scale", SCALES, TEXT),
    Meant("temperature", "carried.temperature"),
    Meant("vllm_top_p", "carried.top_p"),
    # ---- the experiment: Args before 2026.6.10, GRPOExperimentConfig and TrainingConfig after; the scripts'
    # parser.set_defaults
    Meant("total_episodes", kind=COUNT),
    Meant("num_mini_batches", kind=POSITIVE),
    Meant("num_epochs", "optimizer_step.passes_per_rollout", kind=POSITIVE),
    Meant("per_device_train_batch_size", kind=POSITIVE, default=1),
    Meant("gradient_accumulation_steps", kind=or_null(ANY_INTEGER)),  # never read
    Meant(NODES, kind=PER_NODE),
    Meant("sequence_parallel_size", kind=POSITIVE, before=True),
    Meant("deepspeed_stage", kind=COUNT),
    *(Meant(name, kind=or_null(POSITIVE)) for name in ("fsdp_shard_degree", "fsdp_num_replicas")),
    Meant("seed", "order.seed", kind=SEED),
    Meant("beta"),
    Meant("kl_estimator", until=FIRST),
    Meant("kl_estimator", kind=COUNT, since=FIRST),
    Meant("masked_mean_axis", kind=or_null(ANY_INTEGER)),
    *(Meant(name) for name in ("masked_mean_denominator", "fill_completions", "allow_world_padding")),
    Meant("clip_lower", "objective.clip_low"),
    Meant("clip_higher", "objective.clip_high"),
    Meant("loss_fn", "objective.surrogate", SURROGATES, TEXT, "dapo", before=True),
    *(Meant(name, before=True) for name in ("loss_denominator", "load_ref_policy")),
    Meant("ref_policy_update_freq", kind=or_null(POSITIVE)),
    *(Meant(name) for name in ("alpha", "use_vllm_logprobs", "truncated_importance_sampling_ratio_cap")),
    Meant("use_rho_correction"),
    *(Meant(f"rho_{act}_{end}_bound") for act in ("clamp", "mask") for end in ("lower", "upper")),
    Meant("learning_rate", "carried.learning_rate"),
    Meant("lr_scheduler_type", kind=TEXT),
    Meant("warm_up_steps", kind=COUNT),
    Meant("warmup_ratio", default=0.0),
    *(Meant(name) for name in ("weight_decay", "set_weight_decay_on_bias_and_norm")),
    Meant("max_grad_norm", "carried.max_gradient_norm", until=THIRD, before=True),
    Meant("max_grad_norm", "carried.max_gradient_norm", BOUND, default=1.0, since=THIRD),
)
_PPO = (
    # ---- Args, and DatasetConfig in the first
    Meant("local_rollout_batch_size", kind=POSITIVE),
    Meant("number_samples_per_prompt", "rollout.completions_per_prompt", kind=POSITIVE),
    Meant("local_mini_batch_size", kind=POSITIVE),
    Meant("per_device_train_batch_size", "micro_batch.completions_per_device", kind=POSITIVE),
    Meant("gradient_accumulation_steps", kind=or_null(ANY_INTEGER)),  # overwritten by calculate_runtime_args
    Meant("num_mini_batches", kind=ANY_INTEGER),
    Meant("num_epochs", "optimizer_step.passes_per_rollout", kind=COUNT),
    Meant("total_episodes", kind=COUNT),
    Meant("actor_num_gpus_per_node", kind=PER_NODE),
    Meant("deepspeed_stage", kind=COUNT),
    Meant("seed", "order.seed", kind=SEED),
    Meant("async_mode", "staleness.mode", {True: "lookahead", False: "sync"}),
    Meant("beta", "objective.kl_coefficient"),
    Meant("kl_estimator", kind=TEXT),
    Meant("cliprange", ("objective.clip_low", "objective.clip_high")),
    *(Meant(name) for name in ("vf_coef", "cliprange_value")),
    Meant("gamma", default=1.0),
    *(Meant(name) for name in ("lam", "whiten_rewards")),
    Meant("max_prompt_token_length", "carried.max_prompt_tokens", kind=or_null(POSITIVE), until="2025.10.20"),
    Meant("max_prompt_token_length", "carried.max_prompt_tokens", kind=POSITIVE, since="2025.10.20"),
    Meant("response_length", "carried.max_completion_tokens", kind=POSITIVE),
    Meant("temperature", "carried.temperature"),
    Meant("learning_rate", "carried.learning_rate"),
    Meant("lr_scheduler_type", kind=TEXT),
    Meant("warm_up_steps", kind=COUNT),
    Meant("warmup_ratio"),
)


_KINDS = {"float": FLOAT, "float?": or_null(FLOAT), "bool": BOOL, "str": TEXT, "=kl1|=kl2|=kl3|=kl4": TEXT}
"""The kinds of settings above that have none beside them, by the words that `declared.json` has for types."""


def _rows(script: str, meant: Sequence[Meant]) -> tuple[Key, ...]:
    """The rows of what means something, in its order."""
    table = shipped("batchbridge_open_instruct")[script]
    return tuple(rows(table.only(one.key for one in meant), _KINDS, meant))


GRPO_ROWS = _rows(GRPO_FAST, _GRPO)
"""Settings of grpo_fast.py and grpo.py. Source of what 2025.10.20 has no setting for: grpo_fast.py,
data_preparation_thread and PolicyTrainerRayProcess; utils.py, get_train_ds_config; fc22674da."""
PPO_ROWS = _rows(PPO, _PPO)
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

"""Unsloth's GRPOConfig: importing unsloth puts it in place of TRL's, with other defaults and rewritten settings.

Source: models/rl.py (`replacements`, `extra_args`) and the requirements of 60 releases of unsloth, those on both sides
of each change among them, read; trl 0.15.0 to 0.17.0 have the text that `grpo_trainer_fix_batch_size` looks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit.key_table import Key
from batchbridge.kit.versions import includes
from batchbridge_trl.in_place import ELSEWHERE, ReleaseInPlace, release_in_place
from batchbridge_trl.sizes import ACCUMULATION, BATCH, GENERATIONS, MICRO, STEPS
from batchbridge_trl.world import KEY as WORLD

NEWEST = "2026.10.9"
KNOWN = f">=2025.2.15,<={NEWEST}"
REWRITES, UNKNOWN, TEMPERATURE = "BB-TRL-096", "BB-TRL-101", "BB-TRL-102"
SENTINELS = ">=2026.9.12"
"""Releases in which unset and default are told apart: what the user says of these settings is kept."""
_DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    ("", MICRO, 4),
    ("", ACCUMULATION, 2),
    (">=2025.5.8", GENERATIONS, 8),
    ("", "per_device_eval_batch_size", 4),
    ("", "eval_accumulation_steps", 2),
    ("<2026.5.7", "weight_decay", 0.01),
    (">=2026.5.7", "weight_decay", 0.001),
    ("", "seed", 3407),
    ("", "optim", "adamw_8bit"),
    ("", "learning_rate", 5e-05),
    ("", "logging_steps", 1),
    ("", "logging_nan_inf_filter", False),
    ("", "torch_empty_cache_steps", 250),
    (">=2025.6.5", "bf16", False),
    (">=2025.6.5", "fp16", False),
    (">=2025.12.6", "report_to", "none"),
    (">=2025.5.8", "vllm_mode", "colocate"),
    (">=2025.7.4,<2025.9.1", "auto_find_batch_size", True),
    (">=2025.9.3", "vllm_importance_sampling_correction", False),
    (">=2026.7.1", "router_aux_loss_coef", 0.0),
    (">=2025.9.1,<2026.9.12", "loss_type", "bnpo"),
    (">=2025.6.5,<2026.9.12", "beta", 0.001),
)
"""Releases, setting and the default that it has there, whatever TRL's is."""
_TAKES: tuple[tuple[str, str], ...] = (
    (">=2025.3.4,<2025.5.8", "<=0.15.2"),
    (">=2025.9.11,<2025.10.9", "<=0.23.0"),
    (">=2025.10.9,<2025.11.4", ">=0.18.2,<=0.23.0"),
    (">=2025.11.4,<2026.9.12", ">=0.18.2,<=0.24.0"),
    (">=2026.9.12,<2026.10.1", ">=0.20.0,<=0.24.0"),
    (">=2026.10.1,<2026.10.4", ">=0.20.0,<=1.13.0"),
    (">=2026.10.4", ">=0.20.0,<=1.15.0"),
)
"""Releases, and those of TRL that they take: their requirement, or where it is narrower what their trainer refuses (an
ImportError below 0.20.0, of what is in `SENTINELS`). The others require none that is newer than TRL's first tables."""
FILTERS = ">=2026.8.11"
"""Releases that drop, with a message, what TRL's class does not take, where that would refuse it."""
_RENAMED_LATE = "per_gpu_train_batch_size"
"""A setting that they read as the micro-batch, since 2026.9.1 and unless they have rewritten that before."""
_RENAMED: tuple[tuple[str, str, str], ...] = (
    (FILTERS, "use_liger_loss", "use_liger_kernel"),
    (FILTERS, "vllm_guided_decoding_regex", "vllm_structured_outputs_regex"),
    (FILTERS, "wandb_log_unique_prompts", "log_unique_prompts"),
    (">=2026.9.1", "warmup_ratio", "warmup_steps"),
    (">=2026.9.1", "push_to_hub_token", "hub_token"),
    (">=2026.9.1", "per_gpu_eval_batch_size", "per_device_eval_batch_size"),
)
"""Releases, a setting that TRL's class no longer takes, and the one that has its value then (rl_config_compat.py)."""
OWN = frozenset(
    {
        *("vllm_sampling_params", "unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch"),
        *("context_parallel_size", "context_parallel_backend"),
    }
)
"""Settings of Unsloth's own that no batch depends on."""


def release_of(source: Source) -> ReleaseInPlace:
    """The release that takes the place of the classes that a program constructs."""
    return release_in_place(source, "unsloth", "Unsloth", NEWEST)


def _source(unsloth: ReleaseInPlace) -> str:
    """The place where what it does was read."""
    return f"unsloth {unsloth.version} models/rl.py"


def unknown(unsloth: ReleaseInPlace, only_if: str, place: Where) -> Iterator[Finding]:
    """The finding that a release is none whose defaults are known, or that it is open whether it stands in TRL's
    place (only_if: the expression that decides); settings are then read as if it did."""
    if not unsloth.has(KNOWN):
        message = f"the defaults of Unsloth {unsloth.version:.40} are not known; known are those of {KNOWN}"
        fix = Fix(f"pin a release that is known: unsloth=={NEWEST}")
    elif only_if:
        message = f"whether Unsloth replaces trl's GRPOConfig depends on what only running would tell: {only_if}"
        fix = Fix("import unsloth on every way, or on none")
    else:
        return
    yield Finding(UNKNOWN, "error", "config", message, (place,), (fix,), undecided=True)


class Filled(NamedTuple):
    """The settings that a release of Unsloth hands TRL: those of the user, rewritten; the origin of each default that
    it fills in; sentences about what it changes; a setting to the older name that the user gave it by; what it leaves
    out of the user's."""

    release: ReleaseInPlace
    given: dict[str, Any]
    origins: dict[str, str]
    changed: tuple[str, ...]
    renamed: dict[str, str]
    dropped: frozenset[str]


def settings(
    given: Mapping[str, Any], rows: Mapping[str, Key], version: str, unsloth: ReleaseInPlace, *, parsed: bool = False
) -> Filled:
    """The settings that Unsloth's constructor hands TRL's, of those that the user gave. parsed: by TRL's own parser,
    which gives the constructor every setting, with TRL's defaults."""
    if parsed:
        defaults_of_trl = {key: row.default for key, row in rows.items() if not row.fixed}
        every = settings({**defaults_of_trl, **given}, rows, version, unsloth)
        told = {key: one for key, one in every.given.items() if key in given or one != defaults_of_trl.get(key)}
        origins = dict.fromkeys(told.keys() - given.keys(), f"set by unsloth {unsloth.version}")
        return every._replace(given=told, origins=origins)
    kept = {key: value for key, value in given.items() if key not in OWN}
    has = {key for key, row in rows.items() if not row.fixed}
    # With transformers 5 a share of the steps is warmup_steps below 1; it loses warmup_ratio later.
    warmup = "warmup_ratio" if "warmup_ratio" in has or not unsloth.has(">=2026.2.1") else "warmup_steps"
    defaults = {key: value for releases, key, value in _DEFAULTS if unsloth.has(releases)} | {warmup: 0.1}
    usual = {key: row.default for key, row in rows.items()} | defaults
    own = set(kept)
    moved, renamed = _moved(kept, usual, has, version, unsloth)
    filled = {key: value for key, value in defaults.items() if key in has and key not in kept}
    changed: dict[str, Any] = {}
    if unsloth.has(SENTINELS):
        filled |= _of_sentinels(kept, has, version)
    if unsloth.has(">=2025.5.8") and {"loss_type", "scale_rewards"} <= has:
        before = {key: row.default for key, row in rows.items()} | kept | filled
        changed = _of_the_loss(before, kept, unsloth)
    said = tuple(
        f"Unsloth changes {key} = {kept[key]} to {value} with loss_type = {kept.get('loss_type')}"
        for key, value in changed.items()
        if key in kept and key in has and kept[key] != value
    )
    filled |= {key: value for key, value in changed.items() if key not in kept and key in has}
    dropped = frozenset(own - kept.keys())
    settled = {**kept, **{key: value for key, value in changed.items() if key in kept}, **filled}
    origins = dict.fromkeys(filled, f"default of unsloth {unsloth.version}")
    return Filled(unsloth, settled, origins, (*moved, *said), renamed, dropped)


def _moved(
    kept: dict[str, Any], usual: Mapping[str, Any], has: set[str], version: str, unsloth: ReleaseInPlace
) -> tuple[list[str], dict[str, str]]:
    """Takes what TRL's class does not take out of the user's settings, as newer releases do: sentences that say so, and
    a setting to the older name whose value it has. usual: the defaults."""
    said: list[str] = []
    renamed: dict[str, str] = {}
    others = {old: new for releases, old, new in _RENAMED if unsloth.has(releases) and new in has}
    for key in [key for key in kept if key not in has] if unsloth.has(FILTERS) else ():
        value, new = kept.pop(key), others.get(key)
        if new is None:
            said.append(f"Unsloth drops {key} = {value}, which trl {version} does not take")
        elif new in kept and kept[new] != usual.get(new):
            said.append(f"Unsloth drops {key} = {value}, as {new} is given, too")
        elif value is not None or usual.get(new) is None:
            kept[new], renamed[new] = value, key
            said.append(f"Unsloth reads {key} = {value} as {new}")
    return said, renamed


def _of_sentinels(kept: Mapping[str, Any], has: set[str], version: str) -> dict[str, Any]:
    """The values that newer releases put where a setting is unset or None."""
    own = kept.get("loss_type")
    loss = str(own or ("dapo" if includes(">=0.22", version) else "bnpo")).lower()
    found: dict[str, Any] = {"beta": 0.0 if loss in ("dapo", "dr_grpo") else 0.001, "mask_truncated_completions": False}
    if own is None:
        found["loss_type"] = loss
    if own is not None and loss == "dapo":
        found |= {"mask_truncated_completions": True, "epsilon_high": 0.28}
    if loss == "cispo":
        found["epsilon_high"] = 5.0
    return {key: value for key, value in found.items() if key in has and kept.get(key) is None}


def _of_the_loss(before: Mapping[str, Any], kept: Mapping[str, Any], unsloth: ReleaseInPlace) -> dict[str, Any]:
    """The settings that the loss changes. before: the settings with defaults; kept: the user's alone."""
    found: dict[str, Any] = {}
    loss = str(before.get("loss_type")).lower()
    if loss in ("dr_grpo", "dapo") and loss != before.get("loss_type"):
        found["loss_type"] = loss
    scale = before.get("scale_rewards")
    if loss == "dr_grpo" and scale is None:
        found["scale_rewards"] = True
    elif loss == "dr_grpo" and (scale is True or (scale == "group" and unsloth.has(SENTINELS))):
        found["scale_rewards"] = False
    if loss == "dapo" and not unsloth.has(SENTINELS):
        found |= {"mask_truncated_completions": True, "epsilon_high": 0.28}
        if unsloth.has(">=2025.6.5,<2025.11.4"):
            found["beta"] = 0.0
        if unsloth.has(">=2025.6.5,<2025.10.12"):
            found["loss_type"] = "bnpo"
    return found


def changes(native: dict[str, Any], filled: Filled, version: str, place: Where) -> Iterator[Finding]:
    """Changes the sizes among the converted settings as Unsloth's constructor does, and says all that it does."""
    unsloth = filled.release
    takes = next((trl for releases, trl in _TAKES if unsloth.has(releases)), "")
    if not includes(takes, version):
        text = f"{unsloth.name} takes trl {takes.replace(',', ' and ')}, and not {version}"
        ways = (Fix(f"install a release of trl that it takes ({takes}), or name the release of Unsloth in a pin"),)
        yield Finding(ELSEWHERE, "error", "construction", text, (place,), ways, None, _source(unsloth), undecided=True)
    if unsloth.has(">=2026.9.1") and _RENAMED_LATE in filled.dropped:
        text = f"whether {_RENAMED_LATE} counts depends on what {unsloth.name} has rewritten before"
        ways = (Fix(f"write {MICRO}"),)
        yield Finding(UNKNOWN, "error", "construction", text, (place,), ways, None, _source(unsloth), undecided=True)
    for message in filled.changed:
        yield Finding(REWRITES, "warning", "construction", message, (place,), source=_source(unsloth))
    yield from _sizes_rewritten(native, version, unsloth, place)
    heat = native.get("temperature")
    if unsloth.has(">=2025.6.5") and isinstance(heat, (int, float)) and not 0 < heat < 10:
        text = f"temperature = {heat}: {unsloth.name} refuses one that is not between 0 and 10"
        ways = (Fix("give a temperature above 0 and below 10", {"temperature": 1.0}),)
        where = (Where("temperature", heat), place)
        yield Finding(TEMPERATURE, "error", "construction", text, where, ways, _HEAT, _source(unsloth))


_HEAT = "ValueError: Unsloth: Please set a positive non-zero temperature"


def _sizes_rewritten(native: dict[str, Any], version: str, unsloth: ReleaseInPlace, place: Where) -> Iterator[Finding]:
    micro, group = native.get(MICRO), native.get(GENERATIONS)
    numbers = micro, native.get(ACCUMULATION), native.get(WORLD)
    sizes = [one for one in (*numbers, group) if isinstance(one, int) and one > 0]
    if not isinstance(micro, int) or not isinstance(group, int) or micro < 1 or group < 1:
        return
    text = "`per_device_train_batch_size`"
    if includes("<0.18", version) or unsloth.has(">=2025.5.8,<2025.11.4"):
        if micro % group == 0:
            return
        why = f"it is not a multiple of {group}"
    elif unsloth.has(">=2025.11.4") and native.get(STEPS) is None and native.get(BATCH) is None and len(sizes) == 4:
        if math.prod(sizes[:3]) % group == 0:
            return
        why = f"{' x '.join(map(str, numbers))} (completions per rollout) is not a multiple of {group}"
        text += " * `gradient_accumulation_steps` * `world_size`"
    else:
        return
    message = f"Unsloth changes {MICRO} = {micro} to {GENERATIONS} = {group}: {why}"
    native[MICRO] = group
    said = f"Unsloth: We now expect {text} to be a multiple of `num_generations`."
    yield Finding(REWRITES, "warning", "construction", message, (place,), (), said, _source(unsloth))

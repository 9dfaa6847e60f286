"""ms-swift's own defaults of the settings that it shares with TRL, in a command that starts it. Nothing is imported.

Source: every release of ms-swift from 3.4.0 to 4.6.0: rlhf_args.py (RLHFArguments, _set_default, _init_grpo),
rlhf_arguments.py and args_mixin.py (GRPOArgumentsMixin, RolloutTrainerArgumentsMixin), trainers/arguments.py
(TrainArgumentsMixin), train_args.py and sft_args.py (learning_rate).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit.versions import includes
from batchbridge_trl.in_place import ELSEWHERE, ReleaseInPlace, release_in_place
from batchbridge_trl.ms_swift import AS_TRL
from batchbridge_trl.own_programs import SHOWN
from batchbridge_trl.recipe import OF_SWIFT
from batchbridge_trl.sizes import ACCUMULATION, GENERATIONS, MICRO
from batchbridge_trl.world import KEY as WORLD

NEWEST = "4.6.0"
KNOWN = f">=3.4,<={NEWEST}"
UNKNOWN = "BB-TRL-105"
_TUNERS = ("tuner_type", "train_type", "sft_type")
"""Its setting for what is trained, newest name first: "full" is all parameters."""
_LOSS = "loss_type"
"""The setting of TRL's for which ms-swift has values of its own."""
_LENGTH = ("response_length", "max_new_tokens")
"""Its other names of max_completion_length from 3.6 on, the first of which counts."""
_DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    ("", MICRO, 1),
    ("", "per_device_eval_batch_size", 1),
    ("", GENERATIONS, 8),
    (">=3.7", ACCUMULATION, 1),
    ("", "max_completion_length", 512),
    ("", "temperature", 0.9),
    ("<4.0.3", "top_p", 0.9),
    ("<4.0.3", "top_k", 50),
    ("", "beta", 0.04),
    ("", "loss_type", "grpo"),
    ("", "weight_decay", 0.1),
    ("", "adam_beta2", 0.95),
    ("", "lr_scheduler_type", "cosine"),
    (">=3.7.1", "router_aux_loss_coef", 0.0),
)
"""Releases, setting and the default that it has there, whatever TRL's is."""
_TAKES: tuple[tuple[str, str], ...] = (
    ("<3.5", ">=0.13,<0.18"),
    (">=3.5,<3.7", ">=0.15,<0.20"),
    (">=3.7,<3.9", ">=0.15,<0.21"),
    (">=3.9,<3.10", ">=0.15,<0.24"),
    (">=3.10,<4.0", ">=0.15,<0.25"),
    (">=4.0,<4.0.3", ">=0.15,<0.29"),
    (">=4.0.3,<4.2", ">=0.15,<0.30"),
    (">=4.2", ">=0.15,<1.0"),
)
"""Releases, and those of TRL that they require. Source: the metadata of each."""
_IDLE = frozenset(
    {"log_entropy", "log_rollout_offpolicy_metrics", "use_flash_ckpt", "resume_only_model", "deepspeed", "use_vllm"}
)
"""Settings of `ms_swift.AS_TRL` that change nothing of what is trained; a running trainer with them is refused."""
_TYPO = 0.95
"""Likeness of a word to a setting of TRL's from which on the word is taken for a slip."""
_TOGETHER = 16
"""The completions that one optimizer step has at least, before 3.7, where gradient_accumulation_steps is not given."""


class FilledCommand(NamedTuple):
    """The settings that ms-swift hands TRL's: the user's and its own defaults; the origin of each default; a setting to
    the other name that the user gave it by; the user's that TRL does not have, with their values."""

    release: ReleaseInPlace
    given: dict[str, Any]
    origins: dict[str, str]
    renamed: dict[str, str]
    own: dict[str, Any]


def defaults_of(release: ReleaseInPlace) -> dict[str, Any]:
    """The defaults of a release that do not depend on other settings."""
    return {key: value for releases, key, value in _DEFAULTS if release.has(releases)}


def filled(source: Source, given: Mapping[str, Any], has: Collection[str]) -> FilledCommand:
    """The settings of a command with what ms-swift's release fills in. has: TRL's settings. What is written almost like
    one of these is none of ms-swift's own."""
    release = release_in_place(source, "ms-swift", "ms-swift", NEWEST)
    own = {key: value for key, value in given.items() if key not in has and not get_close_matches(key, has, 1, _TYPO)}
    kept, renamed = {key: value for key, value in given.items() if key not in own}, dict[str, str]()
    named = next((name for name in _LENGTH if own.get(name) is not None), None)
    if named is not None and release.has(">=3.6"):
        kept["max_completion_length"], renamed["max_completion_length"] = own[named], named
    defaults = defaults_of(release)
    tuner = next((own[name] for name in _TUNERS if name in own), "lora")
    defaults["learning_rate"] = 1e-5 if tuner == "full" else 1e-4
    fills = {key: value for key, value in defaults.items() if key in has and key not in kept}
    origins = dict.fromkeys(fills, f"default of {release.name}")
    return FilledCommand(release, {**fills, **kept}, origins, renamed, own)


def findings(filled: FilledCommand, places: Mapping[str, Where], version: str) -> Iterator[Finding]:
    """The findings on a command: a release whose defaults are not known, or which takes no such TRL; settings of
    ms-swift's own that change what is trained, which nothing here reads; and the note of those that are not judged."""
    release = filled.release
    if not release.has(KNOWN):
        message = f"the defaults of ms-swift {release.version:.40} are not known; known are those of {KNOWN}"
        fix = Fix(f"pin a release that is known: ms-swift=={NEWEST}")
        yield Finding(UNKNOWN, "error", "config", message, tuple(places.values())[:1], (fix,), undecided=True)
    takes = next((trl for releases, trl in _TAKES if release.has(releases)), "")
    if not includes(takes, version):
        text = f"{release.name} takes trl {takes.replace(',', ' and ')}, and not {version}"
        ways = (Fix(f"install a release of trl that it takes ({takes}), or name the release of ms-swift in a pin"),)
        source = f"ms-swift {release.version} requirements"
        yield Finding(ELSEWHERE, "error", "construction", text, tuple(places.values())[:1], ways, None, source, True)
    told = {**filled.own, _LOSS: filled.given.get(_LOSS, filled.own.get(_LOSS))}
    for key in (one for one in AS_TRL if one in told and one in places and one not in _IDLE):
        given, values = told[key], AS_TRL[key]
        if given not in values:
            message = f"ms-swift's {key} = {given} changes what is trained, and what it does is not read"
            fix = Fix(f"leave out {key}")
            yield Finding(UNKNOWN, "error", "config", message, (places[key],), (fix,), undecided=True)
    if unjudged := [key for key in filled.own if key not in (*_LENGTH, *_TUNERS, *AS_TRL, OF_SWIFT)]:
        named = ", ".join(unjudged[:SHOWN])
        more = f" and {len(unjudged) - SHOWN} more" if len(unjudged) > SHOWN else ""
        count = f"{len(unjudged)} {'setting' if len(unjudged) == 1 else 'settings'}"
        message = f"{release.name}: {count} of its own, not judged: {named}{more}"
        yield Finding("BB038", "note", "config", message, tuple(places[key] for key in unjudged[:1]))


def opened(finding: Finding) -> Finding:
    """The finding that TRL's own parser would make of a value, left undecided: ms-swift's parser reads it."""
    return replace(finding, message=f"as TRL would: {finding.message}", undecided=True)


def fill_accumulation(native: dict[str, Any], filled: FilledCommand) -> None:
    """Puts the gradient_accumulation_steps of releases before 3.7 among the converted settings, where none is given:
    they count so many that an optimizer step has 16 completions."""
    micro, world = native.get(MICRO), native.get(WORLD)
    if ACCUMULATION in filled.given or filled.release.has(">=3.7") or not isinstance(micro, int) or micro < 1:
        return
    native[ACCUMULATION] = None if world is None else max(1, math.ceil(_TOGETHER / micro / world))

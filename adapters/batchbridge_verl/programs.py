"""verl's programs and configurations, and what of a user's keys they do not take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchbridge import Finding, Fix, Where
from batchbridge.kit.hydra_settings import HydraProgram, HydraSettings
from batchbridge.kit.key_table import Codes
from batchbridge.kit.omegaconf_settings import ValueFindings, as_given
from batchbridge.kit.suggested_keys import suggested_keys
from batchbridge_verl import CONFIGS, ENTRIES, OTHERS, UNREAD
from batchbridge_verl.composed import ComposedDefaults
from batchbridge_verl.fields import stranger
from batchbridge_verl.known_programs import taken_by_program
from batchbridge_verl.run import GPUS, GROUP, MINI, NODES, PROMPTS, TOTAL_EPOCHS
from batchbridge_verl.settings import BY_KEY, CRITIC, ENGINE, GONE, reads

CODES = Codes(*(f"BB-VERL-{number}" for number in ("001", "002", "009", "003", "006", "005")))
NATIVELY = ValueFindings(
    CODES,
    "it is passed on, and fails in a dataclass, an assertion or arithmetic",
    "verl 0.9.1 trainer/config and workers/config",
)
OPEN = ("hydra.", "ray_init.", "ray_kwargs.", "rollout.", "reward.", "distillation.", "custom_reward_function.")
"""Groups of other entry points, or whose keys users add freely, in a file. A command line needs `+` in these, too."""
NEEDED = frozenset((NODES, GPUS, PROMPTS, GROUP, MINI, "data.shuffle", TOTAL_EPOCHS))
"""Keys that every run reads from the configuration itself, so that it ends without them. Source: verl 0.9.1
main_ppo_v0.py:72, ray_trainer.py:1353 and 1465, v1/trainer_base.py:467 and 819, ppo/utils.py:158."""
_OVERRIDES = "hydra-core 1.3.2 ConfigLoaderImpl._apply_overrides_to_config"
_BELOW_A_SETTING = tuple(f"{key}." for key in BY_KEY if key.startswith(("distillation.", "reward.")))
"""Settings of such a group that are read have nothing below them."""
_CODES = ("BB-VERL-007", "BB-VERL-008", "BB-VERL-011", "BB-VERL-089", "BB-VERL-090")
PROGRAM = HydraProgram("verl", ENTRIES, OTHERS, UNREAD, CONFIGS, ENGINE, _CODES)


def unknown_keys(result: HydraSettings, version: str, engine: str, defaults: ComposedDefaults) -> list[Finding]:
    """Keys that the configuration with these defaults lacks, and `+` on keys that it has."""
    known, groups = defaults.values, {*defaults.groups, "hydra"}
    whose, own = defaults.whose or f"verl {version}", taken_by_program(result.own_program)
    found: list[Finding] = []
    unknown: dict[str, bool] = {}
    for key, place in result.places.items():
        if key in own:
            continue
        in_file = result.from_file or key in result.configured
        word = result.entry_from_words and not in_file  # a command line needs `+`
        # Programs that generate apart have `rollout.`; what is in it is known of some versions.
        apart = not word or result.own_program is not None or not (result.entry or "").startswith("main_ppo")
        free = ("hydra/", *(name for name in OPEN if name == "hydra." or (not word and name != "rollout.")))
        free += ("rollout.",) if apart and "rollout.nnodes" not in known else ()
        open_to_users = key.startswith((*free, *(f"{group}." for group in result.groups)))
        if key in (ENGINE, "defaults") or (open_to_users and not key.startswith(_BELOW_A_SETTING)):
            continue
        operation = result.operations[key]
        if operation == "delete":
            found += _taken_out(key, result, version, defaults)
            continue
        if operation == "add" and known.get(key) is not None:
            found.append(_there_already(key, place, whose))
        value = result.values[key]
        if key in groups and value == {}:
            continue  # merged with what is there
        if word and operation == "set" and key in groups and key != "hydra" and "." not in key and _is_option(value):
            found.append(_chosen(key, value, result))
            continue
        if (key in groups and not isinstance(value, Mapping)) or (known.get(key) == {} and isinstance(value, list)):
            native = "hydra: Could not override 'hydra'. No match in the defaults list." if key == "hydra" else ""
            found.append(NATIVELY.wrong(place, value, "a group of settings", native))
            continue
        composed = result.entry_from_words or result.config is not None
        if composed and isinstance(known.get(key), list) and value == {}:
            found.append(NATIVELY.wrong(place, value, "a list", "hydra: Cannot merge DictConfig with ListConfig"))
            continue
        appended = operation in ("add", "force")
        read = key in BY_KEY and reads(key, version, engine, known) and (appended or not word)
        # What is appended and no setting here may be read by the run's own code; a file says keys below empty groups.
        foreign = appended and key not in BY_KEY
        below = operation == "set" and not word and _below_empty(key, known)
        if key not in known and not read and not foreign and not below:
            unknown[key] = appended or in_file
    near = suggested_keys(unknown, known, 0.85, taken=result.places)
    for key, appended in unknown.items():
        found.append(_unknown(key, result.places[key], whose, engine, near.get(key, ()), appended, result.own_program))
    return found


def _is_option(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) is not None


def _chosen(key: str, value: str, result: HydraSettings) -> Finding:
    """A word that chooses a file for a group (`data=mine`): a folder of configurations of the user's own may have it,
    and what it says is not here."""
    why = f"it chooses {value} for the group, and no file {key}/{value}.yaml of a copy of verl is here"
    fix = Fix(
        "run the check where that folder of configurations lies, or on what a run composed of it (.hydra/config.yaml)"
    )
    return NATIVELY.left_open(key, why, result, (), (fix,))


def _taken_out(key: str, result: HydraSettings, version: str, defaults: ComposedDefaults) -> Iterator[Finding]:
    """The effect of `~key`: nothing to take out, or another value than the one named; or a setting that is missed."""
    known, place, named = defaults.values, result.places[key], result.values[key]
    whose = defaults.whose or f"verl {version}"
    there = known.get(key)
    if key not in (*defaults.groups, *result.configured) and (
        there is None or (named not in (None, there) and "${" not in str(there))
    ):
        what = "has no such key, or null there" if there is None else f"has {as_given(there)} there"
        text, native = (
            f"~{key}: {whose} {what}",
            "hydra: ConfigCompositionException: Could not delete from config",
        )
        yield Finding("BB-VERL-008", "error", "config", text, (place,), native=native, source=_OVERRIDES)
    elif key in NEEDED:
        text, native = f"~{key}: {whose} reads it in every run", "ConfigAttributeError: Missing key ..."
        yield Finding(CODES.wrong_value, "error", "construction", text, (place,), native=native, source=NATIVELY.source)
    elif any(f"{row}.".startswith(f"{key}.") and row in known for row in BY_KEY):
        why = f"~{key} takes it out, and what {whose} does without it is not known"
        yield NATIVELY.left_open(key, why, result, (), (Fix(f"leave out ~{key}"),))


def _there_already(key: str, place: Where, whose: str) -> Finding:
    text, fixes = f"+{key}: {whose} has this key already", (Fix(f"write {key}=... without +"),)
    native = "hydra: ConfigCompositionException: Could not append to config. An item is already at ..."
    return Finding("BB-VERL-008", "error", "config", text, (place,), fixes, native=native, source=_OVERRIDES)


def refused_fields(result: HydraSettings, version: str, defaults: ComposedDefaults, critic: bool) -> list[Finding]:
    """Keys that the dataclasses of the actor, and of the critic if there is one, do not have."""
    groups = {
        key: group
        for key in result.places
        if result.operations[key] != "delete" and (critic or not key.startswith(CRITIC))
        if (group := stranger(key, version, defaults)) is not None
    }
    near = suggested_keys(groups, defaults.values, 0.85, taken=result.places)
    found = []
    for key, group in groups.items():
        name, place = key[len(group) + 1 :].partition(".")[0], result.places[key]
        fixes = [Fix(f"write {other}", {key: None, other: place.value}) for other in near.get(key, ())]
        fixes.append(Fix(f"leave out {key}", {key: None}))
        text = f"{key}: {group} has no field {name} in verl {version}, and takes no others"
        native = f"hydra: InstantiationException: ... got an unexpected keyword argument '{name}'"
        source = "verl 0.6.0 to 0.9.1 utils/config.py omega_conf_to_dataclass in validate_config"
        finding = Finding("BB-VERL-080", "error", "config", text, (place,), tuple(fixes), native=native, source=source)
        found.append(finding)
    return found


def _below_empty(key: str, known: Mapping[str, Any]) -> bool:
    """Whether `key` stands below a group that is empty by default; a number that is null is not a group."""
    groups = (key[:at] for at, mark in enumerate(key) if mark == ".")
    return any(group in known and known[group] in (None, {}) and group not in BY_KEY for group in groups)


def _unknown(
    key: str, place: Where, whose: str, engine: str, near: Sequence[str], appended: bool, program: str | None
) -> Finding:
    """A key that the version lacks. appended: it comes into the configuration anyway, and verl reads it nowhere.
    program: of the user's, whose own configuration may have it, and which may read it."""
    _, newer, source = GONE.get(key, ("", None, f"composed configuration of {whose}"))
    fixes = [Fix(f"use {newer}", {key: None, newer: place.value})] if newer is not None else []
    fixes += [Fix(f"write {name}", {key: None, name: place.value}) for name in near]
    text = f"{whose} has no setting {key} with the {engine} engine"
    code = CODES.unknown_key
    if appended:
        unread = f"{text}: nothing reads it{'' if program is None else f', unless {program} does'}"
        return Finding(code, "warning", "never", unread, (place,), tuple(fixes), source=source)
    if program is not None:
        text += f": hydra ends the run, unless the configuration of {program} has it"
        return Finding(code, "warning", "config", text, (place,), tuple(fixes), source=source)
    fixes.append(Fix(f"write +{key}=... if something of yours reads it"))
    native = (
        f"hydra: Could not override '{key}'. To append to your config use +{key}=... Key '{key.rpartition('.')[2]}' is "
        "not in struct"
    )
    return Finding(code, "error", "config", text, (place,), tuple(fixes), native=native, source=source)

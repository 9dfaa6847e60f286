"""What the user said: native keys with values and places, from a command line, a file or a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit import load_source, omegaconf_said
from batchbridge.kit.hydra_overrides import NotRead, parse_override
from batchbridge.kit.key_table import Codes
from batchbridge.kit.near_names import near_names
from batchbridge.kit.omegaconf_said import place_of
from batchbridge.kit.values import shown
from batchbridge_verl.composed import Defaults
from batchbridge_verl.fields import stranger
from batchbridge_verl.settings import BY_KEY, CRITIC, ENGINE, GONE, reads

CODES = Codes(*(f"BB-VERL-{number}" for number in ("001", "002", "009", "003", "006", "005")))
NATIVELY = omegaconf_said.Natively(
    CODES,
    "it is passed on, and fails in a dataclass, an assertion or arithmetic",
    "verl 0.9.1 trainer/config and workers/config",
)
ENTRIES: Mapping[str, str] = {
    "verl.trainer.main_ppo": "main_ppo",
    "verl.trainer.main_ppo_sync": "main_ppo_sync",
    "verl.experimental.one_step_off_policy.main_ppo": "one_step_off",
    "recipe.one_step_off_policy.main_ppo": "one_step_off",
}
"""Modules that start the trainers read here. Source: verl 0.4.0 to 0.9.1."""

CONFIGS: Mapping[str, str | None] = {
    # shipped configuration -> its engine (None: the default one, or as model_engine says)
    "ppo_trainer": None,
    "ppo_megatron_trainer": "megatron",
    "one_step_off_ppo_trainer": None,
    "one_step_off_ppo_megatron_trainer": "megatron",
}
_OPEN = ("hydra.", "ray_init.", "ray_kwargs.", "rollout.", "reward.", "distillation.", "custom_reward_function.")
"""Groups of other entry points, or whose keys users add freely."""
_TAKES_VALUE = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name", "--config-dir": "path"}


@dataclass
class Said(omegaconf_said.Said):
    """What is said, the entry point, and the configuration that a command line names.

    from_file: a file was read. entry_from_words: the keys come from a command line, where Hydra wants `+` for keys that
    the configuration lacks.
    """

    entry: str | None = "main_ppo"
    config: str | None = None
    folder: str | None = None
    from_file: bool = False
    entry_from_words: bool = False


def said(source: Source) -> Said:
    """What `source` says."""
    if not source.argv:
        result = Said(from_file=source.path is not None, unknown=dict(source.unknown))
        _from_mapping(source.values, source.lines, source.path, result)
        return result
    result = Said(entry=None, entry_from_words=True)
    _from_words(source, result)
    result.put_on_top(source)
    result.unknown = {key.lstrip("+~"): tuple(names) for key, names in source.unknown.items()}
    return result


def words_after_entry(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The module or script that starts training, and the words after it; (None, all words) where there is none."""
    for index, word in enumerate(argv):
        module = word.removesuffix(".py").replace("/", ".").lstrip(".")
        if module.startswith(("verl.", "recipe.")) and "=" not in word:
            return module, list(argv[index + 1 :])
    return None, list(argv)


def _from_words(source: Source, result: Said) -> None:
    module, words = words_after_entry(source.argv)
    words_seen = set[str]()
    if module is None:
        result.entry = "main_ppo"
        words = [word for word in words if "=" in word or word.startswith("~")]
    else:
        result.entry = ENTRIES.get(module)
        if result.entry is None:
            text = f"{module} is none of the trainers that are read here: {', '.join(ENTRIES)}"
            result.findings.append(Finding("BB-VERL-007", "error", "config", text, (Where(module),), undecided=True))
    overrides: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flag, equals, value = word.partition("=")
        kind = _TAKES_VALUE.get(flag)
        if kind is None:
            continue
        value = value if equals else words.pop(0) if words else ""
        if kind == "name":
            result.config = value.removesuffix(".yaml")
        else:
            result.folder = value
    _base_file(result)
    for word in overrides:
        try:
            override = parse_override(word)
        except NotRead as error:
            text, native = f"this override is not read: {error}", "hydra: OverrideParseException, or a sweep"
            where, grammar = (Where(word[:60]),), "hydra-core 1.3.2 OverrideParser.g4"
            unread = Finding(
                "BB-VERL-008", "error", "config", text, where, native=native, source=grammar, undecided=True
            )
            result.findings.append(unread)
            continue
        key, value, line = override.key, override.value, source.lines.get(override.word.partition("=")[0])
        place = place_of(key, value, line, source.path)
        if key in words_seen and (before := result.values.get(key)) != value:
            text = f"{key} is given twice, as {shown(before)} and as {shown(value)}; the last one counts"
            result.findings.append(Finding("BB-VERL-011", "warning", "config", text, (place,)))
        words_seen.add(key)
        result.put(key, value, place, override.operation)


def _base_file(result: Said) -> None:
    """The configuration that `--config-path` and `--config-name` name, where it is not one of verl's own."""
    if result.config is None or result.config in CONFIGS:
        return
    file = Path(result.folder or ".") / f"{result.config}.yaml"
    loaded = load_source(file)
    if not loaded.values:
        text = f"the configuration {result.config} is none of verl's own and is not found as {file.name}"
        where, fixes = (
            (Where("--config-name", result.config),),
            (Fix("run the check where the file lies, or give its path"),),
        )
        result.findings.append(Finding("BB-VERL-007", "error", "config", text, where, fixes, undecided=True))
        return
    result.findings += loaded.problems
    _from_mapping(loaded.values, loaded.lines, loaded.path, result)


def _from_mapping(values: Mapping[str, Any], lines: Mapping[str, int], path: Path | None, result: Said) -> None:
    listed = values.get("defaults")
    if isinstance(listed, list):
        line = lines.get("defaults")
        for entry in listed:
            _default(entry, place_of("defaults", entry, line, path), result)
        values = {key: value for key, value in values.items() if key != "defaults"}
    result.put_mapping(values, lines, path)


def _default(entry: Any, place: Where, result: Said) -> None:
    """An entry of the defaults list."""
    override = f"override {ENGINE}"
    if isinstance(entry, str) and entry in CONFIGS:
        result.config = entry
    elif isinstance(entry, Mapping) and list(entry) == [override]:
        result.put(ENGINE, entry[override], Where(override, shown(entry[override]), place.file, place.line))
    elif entry != "_self_":
        text = f"the defaults list names {shown(entry)}, which is not followed; verl's own are {', '.join(CONFIGS)}"
        result.findings.append(Finding("BB-VERL-007", "error", "config", text, (place,), undecided=True))


def unknown_keys(result: Said, version: str, engine: str, defaults: Defaults) -> list[Finding]:
    """Keys that the configuration with these defaults lacks, and `+` on keys that it has."""
    known, groups = defaults.values, defaults.groups
    found: list[Finding] = []
    unknown: dict[str, bool] = {}
    word = result.entry_from_words and not result.from_file  # a command line needs `+`
    for key, place in result.places.items():
        if key in (ENGINE, "defaults", "hydra") or key.startswith(_OPEN):
            continue
        operation = result.operations[key]
        if operation == "add" and known.get(key) is not None:
            found.append(_there_already(key, place, version))
        if key in groups and not isinstance(result.values[key], Mapping):
            found.append(NATIVELY.wrong(place, "a group of settings"))
            continue
        appended = operation in ("add", "force")
        read = key in BY_KEY and reads(key, version, engine, known) and (appended or not word)
        # What is appended and no setting here may be read by the run's own code; a file says keys below empty groups.
        foreign = appended and key not in BY_KEY
        below = operation == "set" and not word and _below_empty(key, known)
        if key not in known and not read and not foreign and not below:
            unknown[key] = appended or result.from_file
    near = near_names(unknown, known, cutoff=0.85)
    for key, appended in unknown.items():
        found.append(_unknown(key, result.places[key], version, engine, near.get(key, ()), appended))
    return found


def _there_already(key: str, place: Where, version: str) -> Finding:
    return Finding(
        "BB-VERL-008",
        "error",
        "config",
        f"+{key}: verl {version} has this key already",
        (place,),
        (Fix(f"write {key}=... without +"),),
        native="hydra: ConfigCompositionException: Could not append to config. An item is already at ...",
        source="hydra-core 1.3.2 ConfigLoaderImpl._apply_overrides_to_config",
    )


def refused_fields(result: Said, version: str, defaults: Defaults, critic: bool) -> list[Finding]:
    """Keys that the dataclasses of the actor, and of the critic if there is one, do not have."""
    groups = {
        key: group
        for key in result.places
        if result.operations[key] != "delete" and (critic or not key.startswith(CRITIC))
        if (group := stranger(key, version, defaults)) is not None
    }
    near = near_names(groups, defaults.values, cutoff=0.85)
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
    """Whether `key` stands below a group that is empty by default."""
    groups = (key[:at] for at, mark in enumerate(key) if mark == ".")
    return any(group in known and known[group] in (None, {}) for group in groups)


def _unknown(key: str, place: Where, version: str, engine: str, near: Sequence[str], appended: bool) -> Finding:
    """A key that the version lacks. appended: it comes into the configuration all the same, and nothing reads it."""
    _, newer, source = GONE.get(key, ("", None, f"composed configuration of verl {version}"))
    fixes = [Fix(f"use {newer}", {key: None, newer: place.value})] if newer is not None else []
    fixes += [Fix(f"write {name}", {key: None, name: place.value}) for name in near]
    text = f"{key} is no setting of verl {version} with the {engine} engine"
    code = CODES.unknown_key
    if appended:
        unread = f"{text}: nothing reads it"
        return Finding(code, "warning", "never", unread, (place,), tuple(fixes), source=source)
    fixes.append(Fix(f"write +{key}=... if something of yours reads it"))
    native = (
        f"hydra: Could not override '{key}'. To append to your config use +{key}=... Key '{key.rpartition('.')[2]}' is "
        "not in struct"
    )
    return Finding(code, "error", "config", text, (place,), tuple(fixes), native=native, source=source)

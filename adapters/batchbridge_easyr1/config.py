"""Reading and writing EasyR1's configuration: config.yaml with dotted overrides, files and dicts, without EasyR1."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Finding, Fix, Reading, Source, Where
from batchbridge.kit import Context, NativeCheck, load_source, near_file, parse_scalar
from batchbridge.kit.config_texts import nested_yaml, shell_word
from batchbridge.kit.frame import PackagedAdapter, RunReading, origins
from batchbridge.kit.key_table import Codes
from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.omegaconf_settings import OmegaConfSettings, ValueFindings, place_of
from batchbridge.kit.suggested_keys import suggested_keys
from batchbridge.kit.values import shown, spec_of
from batchbridge_easyr1 import TELLS
from batchbridge_easyr1 import settings as tables
from batchbridge_easyr1.installed import installed_version
from batchbridge_easyr1.meaning import RENAMED, meaning
from batchbridge_easyr1.own_programs import ENTRY, condition_of, own_program
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import (
    EXAMPLE,
    EXAMPLE_NAME,
    FREE_GROUPS,
    GPUS,
    NODES,
    groups_of,
    kinds_of,
    settings_of,
)

if TYPE_CHECKING:
    from batchbridge.kit.own_copy import OwnCopy

CODES = Codes(*(f"BB-EZR1-{number}" for number in ("001", "002", "009", "003", "006", "005")))
NATIVELY = ValueFindings(
    CODES,
    "omegaconf.errors.ValidationError",
    "EasyR1 trainer/main.py: OmegaConf.merge into the structured PPOConfig",
)


class EasyR1Adapter(PackagedAdapter):
    """Framework `easyr1`: `python3 -m verl.trainer.main config=... key=value`."""

    home = "batchbridge_easyr1"
    tells = TELLS
    framework: ClassVar[str] = "easyr1"
    title = "EasyR1"
    resumes = "the same command, with trainer.find_last_checkpoint=true and a trainer.save_freq above 0 since its start"
    codes = CODES
    no_configuration = "BB-EZR1-007"
    distribution: ClassVar[str | None] = None  # its distribution is called verl, as verl's own
    checkout = ("verl/__init__.py", "examples/config.yaml", "verl/trainer/main.py")
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    releases = ("0.3.0", "0.3.1", "0.3.2", tables.NEWEST)
    enforced_versions: ClassVar[str] = f">={tables.OLDEST_ENFORCED}"
    runtime = "batchbridge_easyr1.runtime:RUNTIME"
    texts = "batchbridge_easyr1.texts:TEXTS"
    rule_table = "batchbridge_easyr1.rules:RULES"
    recorded_code = "batchbridge_easyr1.proven:CODE"
    enforced_fields = "batchbridge_easyr1.enforced:ENFORCED"
    outside = "batchbridge_easyr1.outside:OUTSIDE"
    fills_places: ClassVar[bool] = True

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of a source, see `FramedAdapter.read`."""
        said = _said(source, version)
        copy = context.copy if context.copy is not None and not context.copy.unread else None
        kinds, rows = kinds_of(version), settings_of(version)
        free: Sequence[str] = FREE_GROUPS
        if copy is not None:
            from batchbridge_easyr1.copies import free_groups_in, kinds_in, rows_in

            kinds, rows, free = kinds_in(copy), rows_in(copy), free_groups_in(copy)
        title = f"EasyR1 {version}" if copy is None else "your copy of EasyR1"
        program = own_program(source.argv)
        said.findings += _unknown_keys(said, kinds, title, free, program)
        native, unread = NATIVELY.values(rows.values(), said, {}, source.env)
        blocked = unread or any(one.code in (CODES.wrong_value, "BB-EZR1-007") for one in said.findings)
        said.findings += _wrong_types(said, {key: kind for key, kind in kinds.items() if key not in rows})
        world = 0 if blocked else NATIVELY.devices(native, NODES, GPUS, said, context)
        reading = dataclasses.replace(
            self.unread(version, [*found, *said.findings], context),
            native=native,
            given=said.places,
            condition=None if program is None else condition_of(source, program, native),
        )
        if blocked:
            return reading
        run = EasyR1Run(native, version, world, frozenset(said.places), context.dataset_size)
        told = meaning(run)
        if told is None:
            return dataclasses.replace(reading, run=run)
        from batchbridge_easyr1.behaviour import behaviour

        provenance = origins(told, native, said.places, f"default of {title}")
        return dataclasses.replace(
            reading, run=run, spec=spec_of(told), provenance=provenance, behaviour=behaviour(run)
        )

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The copy of EasyR1 beside a source, see `copies`."""
        from batchbridge_easyr1.copies import own_copy

        return own_copy(source)

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """config.yaml and a launch command."""
        header = f"# EasyR1 {version}\n"
        words = [f"python3 -m {ENTRY}", *(shell_word(f"{key}={_word(value)}") for key, value in values.items())]
        return {"arguments": header + " \\\n    ".join(words) + "\n", "yaml": header + nested_yaml(values)}

    def asked_version(self, context: Context) -> tuple[str | None, str]:
        """The version of the package `verl`, where that is EasyR1's."""
        return context.framework_version or installed_version(), ""

    def native_check(self, reading: Reading) -> NativeCheck:
        """The construction of the framework's own object, see `constructed`."""
        from batchbridge_easyr1 import constructed

        return constructed.question(reading)

    def hooks(self) -> Mapping[str, str]:
        """Ray, and the module that holds the trainer; see `batchbridge_easyr1.launched`."""
        return {
            "ray": "batchbridge.kit:reach_workers",
            "verl.trainer.ray_trainer": "batchbridge_easyr1.launched:trainer",
        }

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The trainer's `config`, and the length of its dataset."""
        self.require_own(trainer)
        from batchbridge_easyr1.runtime import source_of

        return source_of(trainer)


def _word(value: Any) -> str:
    """A value as OmegaConf reads it behind `key=`: a text without quotes where it is read as that text."""
    import json

    try:
        plain = isinstance(value, str) and re.fullmatch(r"[\w./@:-]+", value) and parse_scalar(value) == value
    except ValueError:
        plain = False
    return str(value) if plain else json.dumps(value)


def _said(source: Source, version: str) -> OmegaConfSettings:
    said = OmegaConfSettings(unknown=source.unknown)
    if not source.argv:
        values = {key: value for key, value in source.values.items() if key != "config"}
        _base(source.values.get("config"), source.path, version, said)
        said.put_mapping(values, source.lines, source.path)
        return said
    words = list(source.argv)
    words = words[words.index(ENTRY) + 1 :] if ENTRY in words else [word for word in words if "=" in word]
    pairs = [word.partition("=")[::2] for word in words]  # a word alone is a key with null to OmegaConf
    _base(next((text for key, text in pairs if key == "config"), None), source.path, version, said)
    for word, text in pairs:
        if word == "config":
            continue
        try:
            value = parse_scalar(text)
        except ValueError:
            value = text
        key = re.sub(r"\[([^][]*)\]", r".\1", word)  # data[seed] is data.seed
        said.put(key, value, place_of(key, value, source.lines.get(word), source.path))
    said.put_on_top(source)
    return said


def _base(name: Any, beside: Path | None, version: str, said: OmegaConfSettings) -> None:
    """The file that `config=` names; the published example's own values where only its name is known."""
    if not isinstance(name, str):
        return
    file = near_file(name, beside)
    loaded = Source() if file is None else load_source(file)
    if loaded.values:
        said.findings += loaded.problems
        said.put_mapping(loaded.values, loaded.lines, loaded.path)
        return
    if name.endswith(EXAMPLE_NAME):
        known = {key: value for key, value in EXAMPLE.items() if key in settings_of(version)}
        older = {tables.MICRO: 4, tables.FORWARD: 16} if tables.holds("<0.3.2", version) else {}
        said.put_mapping(known | older, {}, None)
        text, where = f"{name} is not here: EasyR1's published {EXAMPLE_NAME} is taken for it", (Where("config", name),)
        said.findings.append(Finding("BB-EZR1-008", "note", "config", text, where, source="EasyR1 b44b311"))
        return
    text, where = f"the configuration {shown(name)} cannot be read", (Where("config", shown(name)),)
    fixes = (Fix("run the check where the file lies"),)
    said.findings.append(Finding("BB-EZR1-007", "error", "config", text, where, fixes, undecided=True))


def _unknown_keys(
    said: OmegaConfSettings, known: Mapping[str, Kind], title: str, free_groups: Iterable[str], program: str | None
) -> list[Finding]:
    """Settings that the configuration lacks; a `program` of a user's own may have a configuration of its own."""
    groups = groups_of(known)
    found = [
        NATIVELY.wrong(place, said.values[key], "a group of settings")
        for key, place in said.places.items()
        if key in groups and not isinstance(said.values[key], Mapping)
    ]
    free = tuple(f"{group}." for group in free_groups)
    unknown = [key for key in said.places if key not in known and key not in groups and not key.startswith(free)]
    near = suggested_keys(unknown, known, 0.85, taken=said.places)
    for key in unknown:
        place, name = said.places[key], key.rpartition(".")[2]
        newer = next((new for new, old in RENAMED.items() if old == key and new in known), None)
        others = (other for other in near.get(key, ()) if other != newer)
        fixes = [Fix(f"write {other}", {key: None, other: place.value}) for other in others]
        if newer is not None:
            change = {key: None, newer: said.values[key]}
            fixes.insert(0, Fix(f"write {newer}, its new name", change, safe=newer not in said.places))
        text, native = f"{title} has no setting {key}", f"omegaconf: ConfigKeyError: Key '{name}' not in ..."
        text += "" if program is None else f"; whether {program} declares it is not seen"
        ways, source = (*fixes, Fix(f"remove {key}")), NATIVELY.source
        one = Finding(CODES.unknown_key, "error", "config", text, (place,), ways, native=native, source=source)
        found.append(one if program is None else dataclasses.replace(one, undecided=True))
    return found


def _wrong_types(said: OmegaConfSettings, kinds: Mapping[str, Kind]) -> Iterator[Finding]:
    """Values that the fields of settings without a row do not take, by what they take."""
    for key in [key for key in said.values if key in kinds and key not in said.unknown]:
        value = said.values[key]
        if (isinstance(value, str) and "${" in value) or _endless(kinds[key], value):
            continue
        try:
            kinds[key].convert(None if value == "???" else value)
        except WrongValue as error:
            yield NATIVELY.wrong(said.places[key], value, str(error))


def _endless(kind: Kind, value: Any) -> bool:
    """Whether a float is inf or nan: what decides nothing here may be."""
    return kind.name.startswith("float") and str(value).lower().strip("+-.") in ("inf", "nan")

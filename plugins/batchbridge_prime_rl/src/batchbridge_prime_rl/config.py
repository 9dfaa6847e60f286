"""prime-rl's adapter: its command, and what the tables do not say. Imports neither prime-rl nor torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from batchbridge import Behaviour, Finding, Source, Where
from batchbridge.kit import load_source, near_file, parse_arguments
from batchbridge.kit.config_texts import nested_toml
from batchbridge.kit.file_schema import changed
from batchbridge.kit.key_table import Codes, Key, settings_in
from batchbridge.kit.omegaconf import typed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge_prime_rl import settings
from batchbridge_prime_rl.meaning import derive
from batchbridge_prime_rl.rules import RULES
from batchbridge_prime_rl.writing import devices, restate


class PrimeRLAdapter(TableAdapter):
    """Framework `prime_rl`."""

    framework = "prime_rl"
    distribution = "prime-rl"
    versions = ">=0.8"
    newest_version = "0.8.0"
    keys = settings.KEYS
    declared = settings.DECLARED
    constants = settings.FACTS["constants"]
    follows: ClassVar[Mapping[str, Sequence[str]]] = {
        part: (key,) for key, parts in settings.SHARED.items() for part in parts
    }
    codes = Codes.of("BB-PRIME")
    outside = "batchbridge_prime_rl.outside:OUTSIDE"
    rules = RULES
    alone, derive, restate = staticmethod(devices), staticmethod(derive), staticmethod(restate)

    def detect(self, source: Source) -> float:
        """Certain of `rl @ FILE`; else the share of keys that are prime-rl's, of which one is of its orchestrator."""
        if "@" in source.argv and source.argv[0].rpartition("/")[2] == "rl":
            return 1.0
        said = [key for key, _ in settings_in(source.values)]
        ours = [key for key in said if key in settings.NAMES or key in settings.SECTIONS or key.startswith(_WHOLE)]
        return 0.95 * len(ours) / len(said) if any(key.startswith("orchestrator") for key in ours) else 0.0

    def settings_schema(self, version: str) -> dict[str, Any]:
        """Settings as the rows say, with "None" for null, and tables that are switched off or on as a whole."""
        switched = {"anyOf": [{"type": ["boolean", "null"]}, {"const": "None"}]}

        def table(schema: dict[str, Any]) -> dict[str, Any]:
            return {"anyOf": [schema, switched]}

        def setting(schema: dict[str, Any]) -> dict[str, Any]:
            if "null" not in schema.get("type", ()) and None not in schema.get("enum", ()):
                return schema
            said: dict[str, Any] = {name: schema[name] for name in ("description", "default") if name in schema}
            return {**said, "anyOf": [schema, {"const": "None"}]}

        return changed(super().settings_schema(version), table, setting)

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """The files of a command in their order under its options, and "None" as null."""
        if "@" in source.argv:
            source = _commanded(source)
        return replace(source, values=_plain(source.values, ""))

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Source: OrchestratorConfig.resolve_batching, MuonConfig."""
        filled: dict[str, Any] = {}
        if native[settings.BATCH] is None and native[settings.TOKENS] is None:
            filled[settings.BATCH] = 128
        filled["trainer.optim.betas2"] = 0.95 if native["trainer.optim.type"] == "muon" else 0.999
        if native[settings.DEPLOYED] == "multi_node" and native[settings.NODES]:
            filled[settings.TRAINING] = native[settings.NODES] * native[settings.PER_NODE]
        return filled

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        return Behaviour(
            order="tasks of a source in turn, from the first again after the last; sources drawn by random.Random(42)",
            membership="the first trajectories that arrived and were admitted; a group may end in the next step",
            denominator_scope="optimizer_step",
            denominator_formula="1 / trained tokens of the step on all ranks, without those whose advantage is 0",
            lr_tick="optimizer step",
            resume="weights, optimizer and the samplers' place; what was being generated is generated again",
            undecided=("which trajectories a step has: those that finish first",),
            source="prime-rl 0.8.0 orchestrator/train_sink.py, train_source.py, trainer/rl/train.py",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The file of `uv run rl @ rl.toml`."""
        return {"toml": nested_toml(values)}


_WHOLE = tuple(f"{key}." for key in settings.NAMES)


def _plain(values: Mapping[Any, Any], prefix: str) -> dict[Any, Any]:
    """Tables without those that are switched off or on as a whole; "None" is null. Source: pydantic_config."""
    found = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        value = None if value == "None" else value
        if path in settings.SECTIONS and isinstance(value, Mapping):
            value = _plain(value, f"{path}.")
        if path not in settings.SECTIONS or not isinstance(value, bool):
            found[key] = value
    return found


def _commanded(source: Source) -> Source:
    """`rl @ a.toml @ b.toml --trainer @ t.toml --a.b-c 1`: a file's settings count until a later word says other ones.

    Where several files are given, lines are those of the first. Source: pydantic_config.cli.
    """
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    rest: list[str] = []
    problems, path = list(source.problems), source.path
    for number, (section, name) in enumerate(list(_files(source.argv, rest))):
        loaded = load_source(near_file(name, source.path) or name)
        problems += loaded.problems
        flat = {f"{section}{key}": value for key, value in settings_in(loaded.values)}
        lines = {key: line for key, line in lines.items() if key not in flat}
        if not number:
            lines, path = {f"{section}{key}": line for key, line in loaded.lines.items()}, loaded.path
        values |= flat
    if "@" in rest and not problems:  # a launch script that leaves the file open says so itself
        text = "@ must be followed by a configuration file"
        problems.append(Finding(PrimeRLAdapter.codes.wrong_value, "error", "config", text, (Where("@"),)))
    for key, value in parse_arguments(rest).items():
        name = key.replace("-", "_")
        off = name.startswith("no_") or ".no_" in name
        name = name.replace("no_", "", 1) if off else name
        value = None if off and name in settings.SECTIONS else not off if value is True else typed(value)
        # A table has no JSON of its own; a mapping's does.
        values[name] = str(value) if isinstance(value, dict) and name in settings.SECTIONS else value
        lines.pop(name, None)
    unknown = {key.replace("-", "_"): names for key, names in source.unknown.items()}
    found = replace(source, values=values, lines=lines, path=path, argv=(), unknown=unknown)
    return replace(found, problems=tuple(problems))


def _files(words: tuple[str, ...], rest: list[str]) -> Iterator[tuple[str, str]]:
    """(section with its dot, file) of every `@ FILE`; the other words go to `rest`."""
    place = 1
    while place < len(words):
        if words[place] == "@" and place + 1 < len(words):
            section = ""
            if rest and rest[-1].startswith("--") and "=" not in rest[-1] and words[place - 1] == rest[-1]:
                section = rest.pop().lstrip("-").replace("-", "_") + "."
            yield section, words[place + 1]
            place += 2
        else:
            rest.append(words[place])
            place += 1

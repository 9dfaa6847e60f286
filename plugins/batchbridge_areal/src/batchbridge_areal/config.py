"""AReaL's adapter: its file and its command, and what the tables do not say. Imports neither AReaL, Hydra nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchbridge import Behaviour, Finding, Fix, Source, Where
from batchbridge.kit import Context, load_source, near_file, set_on_top
from batchbridge.kit.config_texts import nested_yaml
from batchbridge.kit.file_schema import changed
from batchbridge.kit.frame import RunReading
from batchbridge.kit.hydra_overrides import NotRead, parse_override
from batchbridge.kit.key_table import Codes, Key, gathered, settings_in
from batchbridge.kit.kinds import anything
from batchbridge.kit.omegaconf import Resolver
from batchbridge.kit.omegaconf_settings import followed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue
from batchbridge_areal import AREAL_TELLS, settings
from batchbridge_areal.meaning import areal_fields
from batchbridge_areal.rules import RULES
from batchbridge_areal.writing import NODE, settings_of_spec

NOT_RUNS = ("sft", "dpo", "rw", "rm")


class ArealAdapter(TableAdapter):
    """Framework `areal`: PPOTrainer, with GRPO and its relatives."""

    framework = "areal"
    distribution = "areal"
    tells = AREAL_TELLS
    checkout = ("areal/api/cli_args.py", "areal/trainer/ppo/actor.py")
    versions = ">=1.0"
    newest_version = "1.0.4"
    keys = settings.KEYS
    declared = settings.DECLARED
    constants = settings.FACTS["constants"]
    codes = Codes.of("BB-AREAL")
    outside = "batchbridge_areal.outside:OUTSIDE"
    rules = RULES
    no_run = ("BB-AREAL-060",)
    strict = settings.STRICT
    interpolates = True
    restate = staticmethod(settings_of_spec)

    def settings_schema(self, version: str) -> dict[str, Any]:
        """Settings as the rows say, of a class that may have more."""
        return changed(super().settings_schema(version), lambda group: group, lambda leaf: leaf)

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The devices are part of a text, so that they are looked for before anything is read."""
        rows = {row.key: row for row in (*self.declared, *self.keys)}
        world = context.world_size
        if source.values or source.argv:
            told = settings.devices(
                {"actor.backend": _text(self.settings_of(source, rows).values.get("actor.backend"))}
            )
            if None not in (told, world) and told != world:
                text = f"{world} devices were asked for, and actor.backend has {told}"
                place = (Where("actor.backend"),)
                found.append(
                    Finding(self.codes.devices, "error", "config", text, place, (Fix(f"--world-size {told}"),))
                )
            elif told is not None:
                context = replace(context, world_size=told)
            elif world is None:  # a rule says that nothing is said; what else is wrong is said, too
                context = replace(context, world_size=1)
        return super().read_settings(source, context, version, found)

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """A file, or that of a command with its overrides, interpolations followed."""
        source = self._command(source) if source.argv else source
        said = dict(settings_in(source.values, [key for key, row in rows.items() if row.kind.name == "anything"]))
        defaults = {key: row.default for key, row in rows.items()}
        free = [key for key in said if not _above(key, rows).fields and _above(key, rows).kind.takes("${}")]
        source = followed(
            source, said, Resolver({**defaults, **said}, source.env, source.unknown), self.codes.wrong_value, free
        )
        values = gathered(settings_in(source.values, rows), rows)
        kept = {key: value for key, value in source.values.items() if not isinstance(key, str)}
        problems, told = list(source.problems), set(_HEADS)
        for key, value in values.items():
            strange = key not in rows and not key.startswith(settings.STRICT)
            if not strange and (values.get("train_dataset.type") not in NOT_RUNS or key in rows):
                kept[key] = value
            elif strange and (head := key.partition(".")[0]) not in told:
                told.add(head)
                text = f"{head[:60]} is a setting of the program's own, whose code is not read"
                place = Where(head[:60], None, str(source.path or "") or None, source.lines.get(key))
                problems.append(Finding(self.codes.unknown_key, "warning", "config", text, (place,)))
        return replace(source, values=kept, problems=tuple(problems), argv=())

    def _command(self, source: Source) -> Source:
        """The file of --config with Hydra's overrides. Source: cli_args.parse_cli_args."""
        problems, unknown = list(source.problems), {key.lstrip("+~"): names for key, names in source.unknown.items()}
        given = str(source.values.get("config", ""))
        path = near_file(given, source.path) if given else None
        if path is None:
            text = f"--config {given} is not there" if given else "the command names no --config FILE"
            open_one = (bool(given) and "config" in source.unknown) or not given
            code = self.codes.undecided if open_one else self.codes.wrong_value
            place = (Where("config", given),)
            problems.append(Finding(code, "error", "config", text, place, (Fix("--config FILE"),), undecided=open_one))
            return replace(source, values={}, argv=(), problems=tuple(problems))
        loaded = load_source(path)
        values, lines = dict(settings_in(loaded.values)), dict(loaded.lines)
        problems += loaded.problems
        changes: list[tuple[str, Any]] = []
        for word in source.argv:
            if "=" in word and not word.startswith("-"):
                try:
                    override = parse_override(word)
                    changes += settings_in({override.key: override.value})
                except NotRead as error:
                    where = (Where(word.partition("=")[0][:60], word[:60]),)
                    problems.append(Finding(self.codes.wrong_value, "error", "config", str(error), where))
        for key, value in (*changes, *set_on_top(source.values, source.argv).items()):
            if key == "config":
                continue
            values = {old: kept for old, kept in values.items() if not f"{old}.".startswith(f"{key}.")} | {key: value}
            lines.pop(key, None)
        found = replace(source, values=values, lines=lines, path=path, argv=(), unknown=unknown)
        return replace(found, problems=tuple(problems))

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        return areal_fields(native)

    def alone(self, world: int) -> Mapping[str, Any]:
        """A rollout that every replica has a share of."""
        batch = 4 * world
        sizes = {"train_dataset.batch_size": batch, "rollout.consumer_batch_size": batch}
        return {**settings.MANDATORY, "actor.backend": f"fsdp:d{world}", **sizes, "actor.kl_ctl": 0.0}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        order = "torch's permutation by seed 0 + epoch" if native["train_dataset.shuffle"] else "as the dataset is"
        first = (
            ("which groups a rollout has: those that finish first",) if native["rollout.max_head_offpolicyness"] else ()
        )
        return Behaviour(
            order=f"{order}; the top-level seed has no part in it",
            membership="groups are dealt to replicas by length, a replica's completions to its parts, longest first",
            denominator_scope="optimizer_step",
            denominator_formula="1 / tokens of the step on all replicas; those that are rejected stay counted",
            lr_tick="rollout",
            resume="the place in the dataset, weights and optimizer, where recover says so",
            undecided=first,
            source="AReaL 1.0.4 trainer/ppo/actor.py, engine/fsdp_engine.py, utils/dataloader.py",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The file, with a cluster, which AReaL takes to have 32 nodes."""
        return {"yaml": nested_yaml({"cluster.n_nodes": 1, "cluster.n_gpus_per_node": NODE, **values})}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_HEADS = {row.key.partition(".")[0] for row in (*settings.DECLARED, *settings.KEYS)}
_FREE = Key("", anything)


def _above(key: str, rows: Mapping[str, Key]) -> Key:
    """The row of a setting, or of the group that it stands in; of a stranger, one that takes anything."""
    parts = key.split(".")
    above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((rows[name] for name in above if name in rows), _FREE)

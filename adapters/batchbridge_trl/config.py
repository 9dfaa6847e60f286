"""Reading and writing TRL's GRPO configuration: recipes, dicts and `GRPOConfig` objects, without importing TRL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Finding, Fix, Provenance, Reading, Source, Spec, Where
from batchbridge.kit import Context, NativeCheck, SharedSetting
from batchbridge.kit.command_line import NOT_USED, CommandLine, refusals, strays
from batchbridge.kit.frame import PackagedAdapter, RunReading, origins
from batchbridge.kit.key_table import Codes, Key, converted
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.values import spec_of
from batchbridge.kit.versions import holds, installed
from batchbridge_trl import SWIFT, TELLS
from batchbridge_trl import settings as tables
from batchbridge_trl.meaning import meaning
from batchbridge_trl.recipe import not_judged, programs_near, recipe_of, starts_swift
from batchbridge_trl.sizes import FIELDS, GENERATIONS, sizes_of
from batchbridge_trl.starting import start_of
from batchbridge_trl.tables import SettingGroup, settings_of, versions_of
from batchbridge_trl.user_settings import (
    handed_on,
    printable,
    program_of,
    script_of_ones_own,
    shown,
    user_settings,
    wrong_value,
)
from batchbridge_trl.values import TOO_LARGE, convert, too_large
from batchbridge_trl.world import KEY as WORLD
from batchbridge_trl.world import world_of, world_size

if TYPE_CHECKING:
    from batchbridge import Attachment
    from batchbridge.kit import Request
    from batchbridge.kit.own_copy import OwnCopy
    from batchbridge_trl.own_programs import OwnProgram


class TrlAdapter(PackagedAdapter):
    """Framework `trl`: GRPOTrainer and `trl grpo`."""

    home = "batchbridge_trl"
    framework: ClassVar[str] = "trl"
    title = "trl"
    codes = Codes("BB-TRL-001", "BB-TRL-002", "BB-TRL-005", "BB-TRL-003", "BB-TRL-004", "BB-TRL-006")
    no_configuration = "BB-TRL-006"
    no_run = ("BB-TRL-081",)
    distribution: ClassVar[str | None] = "trl"
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    releases = tables.RELEASES
    commits = tables.COMMITS
    enforced_versions: ClassVar[str] = f">={tables.OLDEST_ENFORCED}"
    runtime = "batchbridge_trl.runtime:RUNTIME"
    reports = "batchbridge_trl.reporting:report"
    resumes = "`trainer.train(resume_from_checkpoint=True)`, with the same output_dir"
    packs = True
    finds_budgets = True
    measures_passes = "batchbridge_trl.measured_passes:measure"
    elsewhere = ("BB-TRL-100",)
    texts = "batchbridge_trl.texts:TEXTS"
    tries = "batchbridge_trl.trying:TRIAL"
    rule_table = "batchbridge_trl.rules:RULES"
    recorded_code = "batchbridge_trl.proven:CODE"
    enforced_fields = "batchbridge_trl.enforced:ENFORCED"
    outside = "batchbridge_trl.outside:OUTSIDE"
    tells = TELLS
    groups: ClassVar[tuple[SettingGroup, ...]] = tables.TRL_GROUPS
    """Every key that the framework's own parser takes."""

    def native_check(self, reading: Reading) -> NativeCheck:
        """The construction of the framework's own object, see `constructed`."""
        from batchbridge_trl import constructed

        return constructed.question(reading)

    def hooks(self) -> Mapping[str, str]:
        """The module of the trainer, and that of the class which its copies are derived from; see `launched`."""
        return {
            "trl.trainer.grpo_trainer": "batchbridge_trl.launched:trainer",
            "transformers.trainer": "batchbridge_trl.launched:forks",
        }

    def is_configuration(self, native: object) -> bool:
        """A `GRPOConfig` of TRL, or of a subclass (Open-R1's, a test's)."""
        from batchbridge_trl.copied import CopySettings
        from batchbridge_trl.ms_swift import SwiftSettings

        return _is_a("GRPOConfig", native) or isinstance(native, (SwiftSettings, CopySettings))

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of a source. Strings convert as TRL's parser converts them; see `values`."""
        rows = settings_of(self.groups, version)
        if context.copy is not None:
            from batchbridge_trl.copies import rows_in

            rows = rows_in(context.copy, rows)
        program, mine = self._own_program(source), frozenset[str]()
        if program is not None:
            from batchbridge_trl.copies import with_declared

            mine = frozenset(program.declared.keys() - {key for key, row in rows.items() if not row.fixed})
            rows = with_declared(rows, program.declared)
            if source.trainers is None:
                source = dataclasses.replace(source, trainers=program.trainers)
        refused, bad, loose = [], set[str](), tuple[str, ...]()
        alone = source.path is not None and not source.argv and source.construction is None
        of_recipe = {key for key in source.values if isinstance(key, str)} if alone else set[str]()
        if source.native is not None:
            given, places = _from_object(source.native, rows)
        else:
            found += [_no_text(key) for key in source.values if not isinstance(key, str)]
            source, recipe, problem = recipe_of(source)
            found += [*([problem] if problem else []), *(recipe.problems if recipe else ())]
            loose = tuple(f"the recipe {where.value}" for where in (problem.where if problem else ()))
            defaults = user_settings(recipe, rows, version) if recipe else CommandLine()
            command = user_settings(source, rows, version)
            handed = handed_on(command, source.argv)
            source = dataclasses.replace(source, launcher={**handed, **source.launcher})
            given, places = {**defaults.values, **command.values}, {**defaults.places, **command.places}
            of_recipe |= defaults.values.keys() - command.values.keys()
            of_class = source.construction is not None  # a GRPOConfig, whatever it is given
            if not of_class and (unjudged := not_judged(source.argv, places)) is not None:
                return self.unread(version, [*found, unjudged], context)
            groups = ", ".join(group.source for group in self.groups[:2])
            refused = [*refusals(command, self.codes, groups), *strays(command, self.codes, groups, NOT_USED)]
            bad = {one.name for one in command.refused}
        if source.record is not None:
            from batchbridge_trl.held import without_derived

            known = source.record.world_size
            given = without_derived(given, known.value if known else world_of(given))
            bad |= {GENERATIONS} - given.keys() if source.record.partial else set()
        if built := source.construction:
            given = {key: value for key, value in given.items() if key in rows or key not in built.fields}
        declared = {key for key in given if key not in rows and key.replace("-", "_") in source.declared}
        own = [key for key in given if key in mine or key in declared]
        if program is not None and own:
            found.append(program.note(own))
        of_its_own = {key: given[key] for key in own}
        given = {key: value for key, value in given.items() if key not in own}
        default_of: dict[str, str] = {}
        filled = None
        if (stands := _unsloth_in(source)) is not None:  # importing it replaces TRL's classes
            from batchbridge_trl import unsloth

            release = unsloth.release_of(source)
            found += unsloth.unknown(release, *stands)
            if not release.has(unsloth.KNOWN):
                return self.unread(version, found, context)
            filled = unsloth.settings(given, rows, version, release, parsed=built is None)
            given, default_of = filled.given, filled.origins
            places |= {new: places[old] for new, old in filled.renamed.items() if old in places}
        of_swift = None
        if built is None and source.native is None and starts_swift(source.argv, given):
            from batchbridge_trl import swift_commands

            of_swift = swift_commands.filled(source, given, {key for key, row in rows.items() if not row.fixed})
            found += swift_commands.findings(of_swift, places, version)
            given, default_of = of_swift.given, of_swift.origins
            places |= {new: places[old] for new, old in of_swift.renamed.items()}
        beside = None
        if any(one.key in given and one.key not in rows for one in tables.GONE if one.of_transformers):
            from batchbridge_trl.beside_trl import pinned_transformers

            beside = pinned_transformers(source)
            kept = {} if beside is None else beside.spelled(given, rows)
            places |= {new: places[old] for old, new in kept.items() if new and old in places}
            given = {kept.get(key, key) or key: value for key, value in given.items() if kept.get(key, key) is not None}
        script = script_of_ones_own(source.argv)
        if built and not built.name.startswith(("trl.", "unsloth.")) and built.name != "GRPOConfig" and not built.bases:
            script = built.name  # a copy of TRL's class, say; what it takes besides is not known
        parsed = source.path is not None or bool(source.argv) or source.native is not None

        def unknown(key: str, near: Sequence[str]) -> Finding:
            if context.copy is not None and key not in context.copy.declared:
                return _not_in_the_copy(places[key], near, context.copy.place)
            finding = self._unknown_key(places[key], near, version, given)
            finding = finding if beside is None else beside.decided(finding, key)
            if script:
                return _perhaps_the_scripts(finding, script)
            if key not in of_recipe:
                return finding
            reader = "the script that reads the recipe may declare it" if alone else ""
            if alone and any(one.key == key for one in tables.GONE):
                from batchbridge_trl.own_programs import reader_of

                place = reader_of(source.path) if source.path is not None else None
                reader = "" if place is None else f"{place} names this file and reads it itself: check that program"
            return _of_a_recipe(finding, version, reader)

        def unchecked(key: str) -> bool:  # Python's constructor takes what a parser would refuse
            return built is not None and key not in _DECIDING and (given[key] is None or isinstance(given[key], bool))

        def wrong(key: str, error: WrongValue) -> Finding:
            finding = _wrong_value(places.get(key) or Where(key), given[key], error)
            return dataclasses.replace(finding, severity="warning") if unchecked(key) else finding

        taken = converted(given, rows, unknown, wrong, lambda row, value: convert(row, value, version, parsed=parsed))
        native, bad = taken.native, {key for key in taken.wrong if not unchecked(key)} | bad
        filtered = built is not None and built.filtered  # what the class does not take, the program leaves out
        told_by_trl = [*refused, *(one for one in taken.findings if not filtered or one.code != "BB-TRL-003")]
        if of_swift is not None:  # its own class takes a value, or does not
            told_by_trl = [swift_commands.opened(one) if one.code == "BB-TRL-004" else one for one in told_by_trl]
        found += told_by_trl
        world = world_size(source, context, native)
        native[WORLD] = world.size
        if world.provenance is None:
            found.append(_world_missing(world.reason))
        elif too_large(world.size):
            bad.add(WORLD)
            found.append(_wrong_value(Where(WORLD), world.size, TOO_LARGE))
            native[WORLD] = None
        else:
            places[WORLD] = Where(WORLD, world.size, world.provenance.file, world.provenance.line)
        if of_swift is not None:
            swift_commands.fill_accumulation(native, of_swift)
        if stands is not None and filled is not None:
            found += unsloth.changes(native, filled, version, stands[1])
        if source.trainers:
            from batchbridge_trl.given_arguments import refused_arguments

            takes = {key for key, row in settings_of(tables.TRAINER_GROUPS, version).items() if not row.fixed}
            found += refused_arguments(source.trainers, version, takes, context.copy)
        guessed = (places[WORLD],) if world.guessed and WORLD in places else ()
        reading = dataclasses.replace(
            self.unread(version, found, context), native=native, given=places, guessed=guessed, loose=loose
        )
        said = context.framework_version
        starts = program_of(source.argv) or (SWIFT if of_swift is not None and not source.argv else None)

        def on_condition() -> RunReading:
            if not (source.argv or built or starts or program is not None or tables.is_old_code(said)):
                return reading
            from batchbridge_trl import whose_trainer

            whose = starts or (program.place if program is not None and not source.argv else None)
            condition = whose_trainer.condition_of(source, whose, {**native, **of_its_own}, said)
            return dataclasses.replace(reading, condition=condition)

        if bad & _DECIDING or (sizes := sizes_of(native)) is None:
            return on_condition() if tables.is_old_code(said) else reading
        from batchbridge_trl.behaviour import behaviour
        from batchbridge_trl.rules import TrlFacts

        start = None if source.native is not None else start_of(source, native, str(source.path) if built else starts)
        if start is not None and stands is not None:
            start = start._replace(replaced=not stands[0])
        swifts = of_swift is not None or (source.native is not None and _is_swifts(source.native))
        facts = TrlFacts(native, sizes, sizes.resolve(), context.dataset_size, version, start, swifts)
        reading = dataclasses.replace(on_condition(), run=facts, behaviour=behaviour(facts))
        if bad or (told := meaning(native, sizes, version, facts.unplanned_end)) is None:
            return reading
        if source.native is not None or of_swift is not None:
            from batchbridge_trl import copied, ms_swift

            if isinstance(source.native, copied.CopySettings):
                told = copied.meaning(told, repeats=source.native.repeats)
            if facts.of_swift:
                told = ms_swift.meaning(told, clamps=of_swift is None or of_swift.release.has(">=4.0.4"))
        provenance = origins(told, {**native, **given}, places, f"default of trl {version}")
        for path, entry in told.items():
            key = entry.key or ""
            if key == WORLD and world.provenance is not None:
                provenance[path] = world.provenance
            elif key in default_of:
                provenance[path] = dataclasses.replace(provenance[path], origin="default", detail=default_of[key])
            elif key in rows and rows[key].fixed:
                why = f"derived: trl {version} has no {key}, and does this"
                provenance[path] = Provenance((key, *entry.others), entry.value, "derived", why)
            elif key in places and source.native is not None:
                said = f"{type(source.native).__name__}.{key}{entry.note}"
                provenance[path] = Provenance((key, *entry.others), given[key], "object", said)
        return dataclasses.replace(reading, spec=spec_of(told), provenance=provenance)

    def readable_version(self, source: Source, context: Context, found: list[Finding]) -> str | None:
        """The version whose tables are read: of 0.14, which repeats prompts on each device, the next one's."""
        old = tables.is_old_code(context.framework_version)
        return tables.RELEASES[0] if old else super().readable_version(source, context, found)

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The user's own copy of TRL, see `copies`."""
        from batchbridge_trl.copies import own_copy

        return own_copy(source, self.groups)

    def _own_program(self, source: Source) -> OwnProgram | None:
        """The program of the user's that reads a source, see `own_programs`."""
        if source.path is None or not (source.argv or any(programs_near(source.path))):
            return None
        from batchbridge_trl.own_programs import own_program

        return own_program(source)

    def settings_schema(self, version: str) -> dict[str, Any]:
        """The JSON Schema of a recipe, see `file_schema`."""
        from batchbridge_trl.file_schema import settings_schema

        return settings_schema(self.framework, self.groups, version, self.decides)

    def context_of(self, spec: Spec, version: str) -> Context:
        """With the world size, which is accelerate's."""
        return Context(framework_version=version, world_size=spec.topology.world_size)

    def forms(self, values: Mapping[str, Any], framework_version: str, world_size: int) -> Mapping[str, str]:
        """YAML for `trl grpo --config` and a Python call; the world size stands in a comment. See `Adapter.forms`."""
        from batchbridge_trl.forms import python_text, yaml_text

        said = values, framework_version, world_size
        return {"yaml": yaml_text(*said), "python": python_text(*said)}

    def difference(self, version: str) -> str:
        """The difference to the installed code, see `declared`."""
        from batchbridge_trl.declared import difference

        return difference() if installed("trl") == version else ""

    def shared_settings(self) -> Mapping[str, SharedSetting]:
        """Those that one of the groups has: TRL alone takes none of Open-R1's."""
        known = {row.key for group in self.groups for row in group.settings}
        return {key: row for key, row in super().shared_settings().items() if key in known}

    def owns(self, trainer: object) -> bool:
        """Whether `trainer` is a `GRPOTrainer` of TRL, of a subclass, of Unsloth's code over it, or a copy that is
        observed. Open-R1's adapter, which is built upon this one, has no trainers."""
        from batchbridge_trl.copied import is_followed
        from batchbridge_trl.forks import is_unsloths

        if not super().owns(trainer):
            return False
        return _is_a("GRPOTrainer", trainer) or is_unsloths(trainer) or is_followed(trainer)

    def refuses(self, trainer: object) -> Mapping[str, str]:
        """Copies and forks of `GRPOTrainer`, by name; see `forks`."""
        from batchbridge_trl.forks import COPY, fork_of

        fork = fork_of(trainer)
        if fork is None:
            return {}
        from batchbridge_trl import copied, ms_swift

        if copied.is_followed(trainer):
            return {}  # what is asked of it is looked at with the other refusals

        if ms_swift.is_swift(trainer) and ms_swift.unknown(trainer) is None:
            return {}  # its settings are looked at with the other refusals
        why = copied.unknown(trainer) if fork is COPY else None
        beside = "" if why is None else f" (here: {why})"
        return {fork.name: f"{type(trainer).__qualname__}: {fork.reason}{beside}"}

    def check_attach(self, trainer: object, request: Request) -> None:
        """The check of TRL's own trainers, or of copies; see `Adapter.check_attach`."""
        self._runtime_of(trainer).check(trainer, request)

    def attach(self, trainer: object, request: Request) -> Attachment:
        """The attachment to TRL's own trainers, or to copies; see `Adapter.attach`."""
        attachment: Attachment = self._runtime_of(trainer).attach(trainer, request)
        return attachment

    def _runtime_of(self, trainer: object) -> Any:
        from batchbridge_trl.copied import is_followed

        if not is_followed(trainer):
            return self._runtime()
        from batchbridge_trl.runtime import COPIES

        return COPIES

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The trainer's `args`, its processes, and the length of its dataset where it has one."""
        self.require_own(trainer)
        dataset = getattr(trainer, "train_dataset", None)
        context = Context(
            framework_version=installed(self.distribution),
            world_size=trainer.accelerator.num_processes,  # type: ignore[attr-defined]  # a GRPOTrainer has it
            dataset_size=len(dataset) if dataset is not None and hasattr(dataset, "__len__") else None,
        )
        args = trainer.args  # type: ignore[attr-defined]  # a GRPOTrainer has it
        from batchbridge_trl.copied import CopySettings, is_followed
        from batchbridge_trl.ms_swift import SwiftSettings, is_swift

        if is_followed(trainer):
            return Source(native=CopySettings(trainer)), context
        return Source(native=SwiftSettings(args) if is_swift(trainer) else args), context

    def _unknown_key(self, place: Where, near: Sequence[str], version: str, given: Mapping[str, Any]) -> Finding:
        key = place.key or ""
        gone = next((gone for gone in tables.GONE if gone.key == key), None)
        if gone is not None:
            message, source = gone.message, gone.source
            if gone.of_transformers:
                message += f"; trl {version} runs with an older one, too, and which is installed decides"
            fixes = [gone.fix(given[key], settings_of(self.groups, version), given)]
        else:
            message = f"trl {version} with transformers {tables.transformers_of(version)} has no setting {key}"
            if elsewhere := sorted(versions_of(self.groups, key)):
                message += f"; trl {' or '.join(elsewhere)} has it"
            fixes = [Fix(f"write {name}", {key: None, name: place.value}) for name in near]
            fixes.append(Fix(f"remove {key}", {key: None}))
            source = ", ".join(group.source for group in self.groups[:2])
        native = (
            "TrlParser: ValueError: Unknown arguments from config file; GRPOConfig(...): unexpected keyword argument"
        )
        open_to = gone is not None and gone.of_transformers
        return Finding(
            "BB-TRL-003", "error", "config", message, (place,), tuple(fixes), native, source, undecided=open_to
        )


def _unsloth_in(source: Source) -> tuple[str, Where] | None:
    """The expression on which it depends whether Unsloth stands in the place of TRL's classes (empty: it does), and
    where these are called; None: it does not."""
    built = source.construction
    calls = [(one.given.imported_first, one.place) for one in source.trainers or ()]
    if built is not None:
        calls = [(built.modules, built.place)]
    return next(((modules["unsloth"], place) for modules, place in calls if "unsloth" in modules), None)


def _not_in_the_copy(place: Where, near: Sequence[str], copy: str) -> Finding:
    key = str(place.key)
    fixes = [Fix(f"write {name}", {key: None, name: place.value}) for name in near]
    fixes.append(Fix(f"remove {key}", {key: None}))
    message = f"your copy of trl in {copy} has no setting {key}"
    return Finding("BB-TRL-003", "error", "config", message, (place,), tuple(fixes), source=copy, undecided=True)


_DECIDING = frozenset({*FIELDS.values(), "loss_type", "scale_rewards", "importance_sampling_level"})
"""Keys without which nothing about batches can be said."""


def _perhaps_the_scripts(unknown: Finding, script: str) -> Finding:
    """A setting that TRL has not, of a script that may."""
    return dataclasses.replace(
        unknown, severity="warning", message=f"{unknown.message}; {script} may take it itself", fixes=(), native=None
    )


def _of_a_recipe(unknown: Finding, version: str, reader: str) -> Finding:
    """A key of a recipe that TRL has not. TrlParser drops it before 0.19 (run with the wheels of 0.15.2 to 0.20.0).
    reader: what else may take it, in words; empty: nothing."""
    if holds("<0.19", version):
        message = f"{unknown.message}: TrlParser drops it without a word"
        return dataclasses.replace(unknown, severity="warning", phase="never", message=message, native=None)
    return dataclasses.replace(unknown, message=f"{unknown.message}; {reader}", undecided=True) if reader else unknown


def _is_a(name: str, thing: object) -> bool:
    """Whether something is of a class of TRL's with this name, or of a subclass."""
    return any(cls.__name__ == name and cls.__module__.startswith("trl.") for cls in type(thing).__mro__)


def _from_object(config: object, rows: Mapping[str, Key]) -> tuple[dict[str, Any], dict[str, Where]]:
    """The settings of a constructed config. Its post-init filled both generation_batch_size and steps_per_generation;
    the user gave at most one; see `held`."""
    given = {}
    for key, row in rows.items():
        if row.fixed or not hasattr(config, key):
            continue
        value = getattr(config, key)
        value = getattr(value, "value", value) if row.kind.name in ("choice", "any") else value
        given[key] = value
    world = getattr(config, "world_size", None)
    from batchbridge_trl.held import without_derived

    given = without_derived(given, world if isinstance(world, int) else None)
    return given, {key: Where(key, printable(value)) for key, value in given.items() if value != rows[key].default}


def _no_text(key: object) -> Finding:
    text = shown(key)
    message = f"the key {text} is not text, and every setting's name is"
    fix, native = Fix(f"remove {text}"), "TypeError: keywords must be strings"
    return Finding("BB-TRL-008", "error", "config", message, (Where(text),), (fix,), native)


def _wrong_value(place: Where, value: object, wrong: WrongValue) -> Finding:
    code = "BB-TRL-007" if wrong is TOO_LARGE else "BB-TRL-004"
    message, native = wrong_value(place.key or "", value, wrong)
    return Finding(
        code, "error", "config", message, (Where(place.key, shown(value), place.file, place.line),), native=native
    )


def _world_missing(reason: str) -> Finding:
    message = f"the world size is missing, and batches count completions over all devices: {reason}"
    ways = "say the world size (--world-size, or --nodes and --gpus)", f"put {WORLD} into an accelerate file"
    return Finding("BB-TRL-005", "warning", "config", message, (Where(WORLD),), tuple(map(Fix, ways)), undecided=True)


def _is_swifts(native: Any) -> bool:
    """Whether settings are those of ms-swift's trainer."""
    from batchbridge_trl.ms_swift import SwiftSettings  # of objects alone

    return isinstance(native, SwiftSettings)

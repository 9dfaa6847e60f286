"""Reading and writing verl's configuration: hydra overrides, YAML files and dicts, without importing verl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Finding, Fix, Reading, Source, Where
from batchbridge.kit import Context, NativeCheck
from batchbridge.kit.frame import PackagedAdapter, RunReading, origins
from batchbridge.kit.hydra_settings import HydraSettings
from batchbridge.kit.omegaconf_settings import as_given
from batchbridge.kit.values import spec_of
from batchbridge_verl import CONFIGS, TELLS, before
from batchbridge_verl import settings as tables
from batchbridge_verl.ahead import PROGRAM_OF, own_defaults
from batchbridge_verl.ahead import SETTINGS as AHEAD
from batchbridge_verl.composed import DIGESTS, ComposedDefaults, defaults_for, difference
from batchbridge_verl.known_programs import condition_of
from batchbridge_verl.meaning import meaning
from batchbridge_verl.programs import CODES, NATIVELY, PROGRAM, refused_fields, unknown_keys
from batchbridge_verl.run import FULLY_ASYNC, GPUS, MOST_PROMPTS, NODES, TOTAL_EPOCHS, VerlRun, left_open
from batchbridge_verl.settings import ACTOR, ENGINE, SETTINGS

if TYPE_CHECKING:
    from batchbridge.kit.own_copy import OwnCopy

_ASYNC = "verl.experimental.fully_async_policy.fully_async_main that could be started"


class VerlAdapter(PackagedAdapter):
    """Framework `verl`: `python -m verl.trainer.main_ppo`."""

    home = "batchbridge_verl"
    tells = TELLS
    framework: ClassVar[str] = "verl"
    resumes = "the same command, with trainer.resume_mode=auto and a trainer.save_freq above 0 since its start"
    packs = True
    title = "verl"
    codes = CODES
    undeclared = (CODES.unknown_key, "BB-VERL-080")
    no_configuration = "BB-VERL-007"
    no_run = ("BB-VERL-090",)
    distribution: ClassVar[str | None] = "verl"
    checkout = ("verl/version/version",)
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    releases = tuple(DIGESTS)
    enforced_versions: ClassVar[str] = f">={tables.OLDEST_ENFORCED}"
    runtime = "batchbridge_verl.attaching:RUNTIME"
    reports = "batchbridge_verl.reporting:report"
    texts = "batchbridge_verl.texts:TEXTS"
    tries = "batchbridge_verl.trying:TRIAL"
    rule_table = "batchbridge_verl.rules:RULES"
    recorded_code = "batchbridge_verl.proven:CODE"
    enforced_fields = "batchbridge.kit.enforced_fields:PLANNED_FIELDS"
    # What is taken over only where the configuration says it too is not there: a batch-wide scale of advantages, a KL
    # penalty in another place, a group size of the V0 trainer. Source: `PLANNED`, `SETTABLE`, `REFUSALS` of `runtime`.
    outside = "batchbridge_verl.outside:OUTSIDE"
    fills_places: ClassVar[bool] = True

    def never_wrapped(self, reading: Reading) -> bool:
        """Whether legacy workers train that no plan is proven on: see `Adapter.never_wrapped`."""
        run = reading.run if isinstance(reading, RunReading) else None
        if run is None or not run.legacy:
            return False
        return run.engine != "fsdp" or not tables.holds(self.enforced_versions, run.version)

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of a source, see `FramedAdapter.read`."""
        copy = context.copy
        if copy is not None and not copy.unread:
            from batchbridge_verl.copies import without_choices

            source = without_choices(source, copy)
        told_by_user = PROGRAM.settings_of(source, copy is not None and _names_its_own(source, copy))
        undecided = any(one.undecided and one.severity == "error" for one in told_by_user.findings)
        unreadable = any(one.code == "BB-VERL-008" for one in told_by_user.findings)
        engine = _engine(told_by_user, version, copied=copy is not None)
        if engine is None or told_by_user.entry is None or not told_by_user.config_is_read:
            return self.unread(version, [*found, *told_by_user.findings], context)
        program = PROGRAM_OF.get(told_by_user.config or "", told_by_user.entry)
        own = program == FULLY_ASYNC
        if own and tables.holds("<0.8.0", version):
            found.append(Finding("BB-VERL-007", "error", "config", f"verl {version} has no {_ASYNC}", undecided=True))
            return self.unread(version, [*found, *told_by_user.findings], context)
        defaults = defaults_for(version, engine, program)
        if copy is not None and not copy.unread:
            values = {**copy.declared, **own_defaults(program, version)}
            defaults = ComposedDefaults(values, f"default of {copy.place}", whose="your copy of verl")
        wrong_keys = unknown_keys(told_by_user, version, engine, defaults)
        told_by_user.findings += [*defaults.findings, *wrong_keys]
        native, unread = NATIVELY.values(
            (*SETTINGS, *AHEAD) if own else SETTINGS,
            told_by_user,
            defaults.values,
            source.env,
            reads=lambda key: tables.reads(key, version, engine, defaults.values),
        )
        native = before.as_run(native, defaults.values, version)
        world = 0 if {NODES, GPUS} & unread else NATIVELY.devices(native, NODES, GPUS, told_by_user, context)
        alone = source.path is not None and not source.argv and source.record is None
        found += [left_open(one) if alone and _is_null(one) else one for one in told_by_user.findings]
        said = {**defaults.values, **told_by_user.values}
        otherwise = before.shared_otherwise(said, told_by_user.places, world, version)
        found += otherwise
        reading = dataclasses.replace(self.unread(version, found, context), native=native, given=told_by_user.places)
        if unread or unreadable or any(one.code in (CODES.wrong_value, CODES.undecided) for one in wrong_keys):
            return reading
        run = VerlRun(
            native=native,
            version=version,
            engine=engine,
            entry=program,
            own_program=told_by_user.own_program,
            world=world,
            given_keys=frozenset(told_by_user.places),
            prompts_in_dataset=_at_most(native[MOST_PROMPTS], context.dataset_size),
            file_alone=alone,
        )
        reading = dataclasses.replace(reading, dataset_size=run.prompts_in_dataset)
        if isinstance(epochs := told_by_user.values.get(TOTAL_EPOCHS), float) and not run.v1:
            found.append(NATIVELY.wrong(told_by_user.places[TOTAL_EPOCHS], epochs, "an integer"))
            return dataclasses.replace(reading, findings=tuple(found))
        # The dataclasses of a copy are its own.
        refused = [] if copy is not None else refused_fields(told_by_user, version, defaults, run.critic)
        keys = {finding.where[0].key for finding in refused}
        # What is refused is not merely unread.
        kept = [one for one in found if one.code != "BB-VERL-003" or one.where[0].key not in keys]
        declared = {} if copy is None else copy.declared
        condition = condition_of(source, told_by_user.own_program, native, declared)
        reading = dataclasses.replace(reading, run=run, findings=(*kept, *refused), condition=condition)
        settings = None if undecided or otherwise else meaning(run)
        if settings is None:
            return reading
        provenance = origins(settings, native, told_by_user.places, defaults.detail)
        from batchbridge_verl.behaviour import behaviour

        return dataclasses.replace(reading, spec=spec_of(settings), provenance=provenance, behaviour=behaviour(run))

    def readable_version(self, source: Source, context: Context, found: list[Finding]) -> str | None:
        """The version whose tables are read: of a copy, also a release that only copies have."""
        release = None if context.copy is None else context.copy.release
        return release if before.is_read(release) else super().readable_version(source, context, found)

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The copy of verl beside a source, see `copies`."""
        from batchbridge_verl.copies import own_copy

        return own_copy(source)

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """Hydra overrides and YAML."""
        from batchbridge_verl.forms import hydra_text, yaml_text

        return {"hydra": hydra_text(values, version), "yaml": yaml_text(values, version)}

    def asked_version(self, context: Context) -> tuple[str | None, str]:
        """The version of the package `verl`, where that is not EasyR1's and no file speaks against it."""
        if context.framework_version is not None:
            return context.framework_version, ""
        from batchbridge_verl.installed import installed

        found = installed()
        if found is None or found.project != "verl":
            return None, "the installed package `verl` is EasyR1's" if found else ""
        return None if found.doubts else found.version, "; ".join(found.doubts)

    def difference(self, version: str) -> str:
        """A composed configuration, see `composed`."""
        return difference(version)

    def knows(self, version: str) -> bool:
        """The settings of a version, see `settings`."""
        return tables.is_known(version)

    def native_check(self, reading: Reading) -> NativeCheck | None:
        """The construction of the framework's own object, see `constructed`."""
        from batchbridge_verl import constructed

        return constructed.question(reading)

    def hooks(self) -> Mapping[str, str]:
        """Ray, and the modules that hold the trainers' base classes; see `batchbridge_verl.launched`."""
        return {
            "ray": "batchbridge.kit:reach_workers",
            "verl.trainer.ppo.v1.trainer_base": "batchbridge_verl.launched:v1",
            "verl.trainer.ppo.ray_trainer": "batchbridge_verl.launched:v0",
            "verl.experimental.one_step_off_policy.ray_trainer": "batchbridge_verl.launched:one_step_off",
            "verl.experimental.separation.ray_trainer": "batchbridge_verl.launched:fully_async",
            # Imported by main_ppo_sync of 0.8.0, which nobody imports; by the V1 trainer of later versions.
            "verl.trainer.ppo.padding_utils": "batchbridge_verl.launched:sync",
        }

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The trainer's `config`, resolved, and the length of its dataset. A V1 trainer that is not initialised loads
        its dataset first."""
        self.require_own(trainer)
        from batchbridge_verl import queued
        from batchbridge_verl.apart import as_started
        from batchbridge_verl.runtime import source_of

        if queued.is_fully_async(trainer):
            return queued.source_of(trainer)
        source, context = source_of(trainer)
        return as_started(trainer, source), context


def _is_null(finding: Finding) -> bool:
    """Whether a finding says that a setting that needs a value is null."""
    return finding.code == CODES.wrong_value and finding.where[0].value is None


def _at_most(limit: int, prompts: int | None) -> int | None:
    """The prompts of a dataset that are taken; a limit below 1 is none. Source: verl 0.6.1 to 0.9.1 RLHFDataset."""
    return prompts if prompts is None or limit <= 0 else min(limit, prompts)


def _engine(settings: HydraSettings, version: str, *, copied: bool) -> str | None:
    """The engine that trains (fsdp, megatron, veomni or torchtitan); None with a finding where the version does not
    know it, or is not told so in a way that it has. copied: a copy, which may have more engines than are read of it."""
    engine, key = _engine_asked_for(settings)
    known = tables.engines_of(version)
    if not isinstance(engine, str) or engine not in known:
        shown = str(engine)[:40].encode("utf-8", "replace").decode()
        text = f"the engine {shown} is not known for verl {version}; known are {', '.join(known)}"
        where, fixes = (Where(key, shown),), (Fix("model_engine=dp or model_engine=megatron"),)
        native = "hydra: MissingConfigException"
        wrong = Finding("BB-VERL-007", "error", "config", text, where, fixes, native=native)
        if copied:
            text = f"the engine {shown} is not read of your copy (like verl {version}); read are {', '.join(known)}"
            like = Fix("name a release that is like it with --framework-version")
            wrong = Finding("BB-VERL-007", "error", "config", text, where, (like,), undecided=True)
        settings.findings.append(wrong)
        return None
    strategy = settings.values.get(_STRATEGY)
    if _composes(settings) and key == _STRATEGY and isinstance(strategy, str) and strategy in tables.ENGINES[1:]:
        settings.findings.append(_other_strategy(strategy, settings, version))
        return None
    if not _is_composed(engine, settings, version):
        settings.findings.append(_other_strategy(engine, settings, version))
        return None
    return engine


_STRATEGY = f"{ACTOR}strategy"


def _engine_asked_for(settings: HydraSettings) -> tuple[object, str]:
    """The engine that is asked for, and the key or option that asks for it: model_engine; else the configuration's
    name; else the actor's strategy; else the only engine that has settings; else it is fsdp."""
    if (engine := settings.values.get(ENGINE)) is not None:
        return "fsdp" if engine == "dp" else engine, ENGINE
    if of_configuration := CONFIGS.get(settings.config or ""):
        return of_configuration, "--config-name"
    if _composes(settings):
        return "fsdp", _STRATEGY  # a command composes what it names, whatever the strategy says
    strategy = settings.values.get(_STRATEGY)
    if isinstance(strategy, str) and strategy in tables.ENGINES:
        return strategy, _STRATEGY
    with_settings = {name for name in tables.ENGINES if any(k.startswith(f"{ACTOR}{name}.") for k in settings.values)}
    return with_settings.pop() if len(with_settings) == 1 else "fsdp", ACTOR


def _composes(settings: HydraSettings) -> bool:
    """Whether the settings are a command's words alone, of which Hydra composes the configuration."""
    return settings.entry_from_words and not settings.from_file


def _is_composed(engine: str, settings: HydraSettings, version: str) -> bool:
    """Whether this version gets an engine in the way in which the settings ask for it.

    A command line or a defaults list asks Hydra, which must accept the word `model_engine=...`, and the version must
    have that word. A file of the whole configuration needs no Hydra.
    """
    model_engine = settings.values.get(ENGINE)
    in_defaults_list = ENGINE in settings.places and settings.places[ENGINE].key != ENGINE
    if in_defaults_list or (settings.entry_from_words and ENGINE not in settings.configured):
        # Hydra takes no + of a group, and no null; "force" is what was set on top of words.
        operation = settings.operations.get(ENGINE)
        if operation not in (None, "force") and not (operation == "set" and model_engine not in (None, "fsdp")):
            return False
    by_key = model_engine is not None and (in_defaults_list or settings.entry_from_words)
    return not by_key or tables.chosen_by_key(engine, version)


def _other_strategy(engine: str, settings: HydraSettings, version: str) -> Finding:
    """A command that asks for an engine in a way that its version does not have."""
    by_key = tables.chosen_by_key(engine, version)
    name, config = ("dp", "ppo") if engine == "fsdp" else (engine, f"ppo_{engine}")
    way = f"model_engine={name}" if by_key else f"--config-name={config}_trainer.yaml"
    key = ENGINE if ENGINE in settings.places else _STRATEGY
    said = {"add": "+", "delete": "~"}.get(settings.operations.get(key, ""), "") + key
    said += f" = {as_given(settings.values.get(key))}"
    text = f"{said} does not choose the configuration of verl {version} with that engine; {way} does"
    where, fixes = (settings.places.get(key) or Where(key, engine),), (Fix(way, {ENGINE: name} if by_key else {}),)
    native = "ConfigAttributeError: Key 'megatron' is not in struct; or hydra: MissingConfigException"
    source = "verl 0.4.0 to 0.9.1 trainer/config: model_engine/ since 0.7.1, with megatron since 0.8.0"
    return Finding("BB-VERL-007", "error", "config", text, where, fixes, native=native, source=source)


def _names_its_own(source: Source, copy: OwnCopy) -> bool:
    from batchbridge_verl.copies import names_its_own

    return names_its_own(source, copy)

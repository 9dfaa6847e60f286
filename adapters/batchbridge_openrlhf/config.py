"""Reading and writing OpenRLHF's PPO options: launch commands and mappings, without importing OpenRLHF."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Adapter, CannotWrite, Finding, Fix, Provenance, Reading, Source, Spec, Where, Written
from batchbridge.kit import Context, NativeStep, walk
from batchbridge.kit.near_names import near_names
from batchbridge.kit.values import Told, spec_of
from batchbridge.kit.versions import installed, newer_version, readable, unknown_version
from batchbridge.kit.writing import Problems, objections
from batchbridge_openrlhf import settings as tables
from batchbridge_openrlhf.given import (
    Given,
    Running,
    given_of,
    is_bare,
    names_in,
    other_program,
    program_of,
    wrong_value,
)
from batchbridge_openrlhf.meaning import inexpressible, meaning
from batchbridge_openrlhf.settings import is_idle
from batchbridge_openrlhf.sizes import FIELDS, Sizes, sizes_of
from batchbridge_openrlhf.values import WrongValue, convert, shown

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True, repr=False)
class OpenRlhfReading(Reading):
    """A reading that keeps the options by identity, the places where they were given, and the world that was asked
    for. `parsed`: OpenRLHF's parser takes every given value; `decided`: so do we. `whole`: it is a launch command, to
    which nothing will be added."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    asked_world: int | None = None
    parsed: bool = True
    decided: bool = True
    whole: bool = False


class OpenRlhfAdapter(Adapter):
    """Framework `openrlhf`: `openrlhf.cli.train_ppo_ray`."""

    framework: ClassVar[str] = "openrlhf"
    distribution: ClassVar[str | None] = "openrlhf"
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    enforced_versions: ClassVar[str] = f">={tables.OLDEST_ENFORCED}"
    runtime = "batchbridge_openrlhf.runtime:RUNTIME"
    texts = "batchbridge_openrlhf.texts:TEXTS"
    recorded_code = "batchbridge_openrlhf.proven:CODE"
    enforced_fields = "batchbridge_openrlhf.enforced:ENFORCED"
    restates: ClassVar[Mapping[str, str]] = {
        "BB-ORL-011": "BB127",
        "BB-ORL-012": "BB127",
        "BB-ORL-033": "BB102",
        "BB-ORL-034": "BB122",
        "BB-ORL-044": "BB123",
        "BB-ORL-046": "BB124",
        "BB-ORL-050": "BB121",
    }

    def detect(self, source: Source) -> float:
        """Certain for a command that starts the trainer; else by option names that are OpenRLHF's own."""
        if source.native is not None:
            return 0.0
        if source.argv and program_of(source.argv) is not None:
            return 1.0
        if source.argv and not is_bare(source.argv):
            return 0.9 if other_program(source.argv) else 0.0
        names = set(names_in(source))
        known = names & tables.spellings().keys()
        if not known:
            return 0.0
        own = {name for name in known if "." in name or name in _TELLING}
        return min(0.95, (0.4 * len(own) + 0.05 * len(known)) * (0.5 + 0.5 * len(known) / len(names)))

    def read(self, source: Source, context: Context) -> OpenRlhfReading:
        """See `Adapter.read`. Text converts as argparse converts it; see `values`."""
        findings = list(source.problems)
        asked = context.framework_version or installed("openrlhf")
        version = asked and readable(asked, tables.NEWEST)
        if version is None or not tables.is_known(version):
            findings.append(_version_finding(version, source))
            return self._reading(version, findings, context)
        if asked is not None and version != asked:
            findings.append(_newer(asked))
        running = isinstance(source.native, Running)
        if source.native is not None and not running:
            message = f"a {type(source.native).__name__} is no launch command and no mapping of options"
            findings.append(Finding("BB-ORL-006", "error", "config", message))
            return self._reading(version, findings, context)
        options = tables.options_of(version)
        given = given_of(source, options)
        if given.other or given.no_command:
            findings.append(_no_command(given, source))
            return self._reading(version, findings, context)
        # A script leaves it open, and nothing here depends on it.
        given.broken = [one for one in given.broken if one.name not in source.unknown or not is_idle(one.identity)]
        findings += _refused(given)
        settings = tables.defaults_of(version)
        places: dict[str, Where] = {}
        parsed = decided = not given.ambiguous and all(is_idle(refused.identity) for refused in given.broken)
        later = list(_strays(given))
        near = near_names((name for name in given.values if name not in options), options, cutoff=0.8)
        for name, value in given.values.items():
            option = options.get(name)
            if option is None:
                later.append(_unknown(name, given.places[name], near.get(name, ()), version))
                continue
            if name in source.unknown and is_idle(option.identity):
                continue
            places[option.identity] = given.places[name]
            try:
                settings[option.identity] = convert(option, value)
            except WrongValue as wrong:
                findings.append(_wrong_value(given.places[name], wrong))
                if wrong.phase != "config":
                    settings[option.identity] = wrong.held
                elif not is_idle(option.identity):
                    parsed = False
                decided = decided and is_idle(option.identity)
        findings += later  # argparse comes to what it does not know after it has converted the rest
        sizes = sizes_of(settings, version, context.world_size) if decided else None
        findings += _world_notes(sizes, places, tables.names_of(version))
        told = None
        if sizes is not None:
            findings += _inexpressible(settings, places, tables.names_of(version))
            told = meaning(settings, sizes)
            if running and told is not None:
                told = {**told, "order.seed": Told(settings["train.seed"], "train.seed", ORDERED)}
        spec = None if told is None else spec_of(told)
        reading = dataclasses.replace(
            self._reading(version, findings, context),
            spec=spec,
            provenance={} if spec is None else _provenances(spec, told or {}, settings, places, version, sizes, source),
            native={name: settings[option.identity] for name, option in options.items()},
            settings=settings,
            given=places,
            asked_world=context.world_size,
            decided=decided,
            parsed=parsed,
            whole=given.whole,
        )
        if not decided:
            return reading
        from batchbridge_openrlhf.behaviour import behaviour

        return dataclasses.replace(reading, behaviour=behaviour(reading))

    def check(self, reading: Reading) -> Sequence[Finding]:
        """OpenRLHF's own rules and known defects; see `rules`."""
        from batchbridge_openrlhf.rules import check

        return check(reading)

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        """The command, as `argv` (one word per line, quoted) and for a shell; for OpenRLHF `framework_version` (None:
        the newest known). Models, data, rewards and generation engines are the user's to add. Raises `CannotWrite`.
        """
        from batchbridge_openrlhf.writing import argv, native, settings_for, shell

        version = readable(framework_version or tables.NEWEST, tables.NEWEST)
        problems = Problems(self)
        if not problems.need(tables.is_known(version), f"openrlhf {version} is not known; known are {self.versions}"):
            raise CannotWrite(self.framework, problems)
        settings = settings_for(spec, version, problems)
        values = native(settings, version, problems)
        if not problems:
            problems.extend(objections(self, spec, values, Context(framework_version=version)))
        if problems:
            raise CannotWrite(self.framework, problems)
        return Written(
            values=values,
            framework_version=version,
            text={"shell": shell(values, version), "argv": "\n".join(map(shlex.quote, argv(values))) + "\n"},
        )

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """The unwrapped run, where the options decide it; see `behaviour.native_steps`."""
        from batchbridge_openrlhf.behaviour import native_steps

        return native_steps(reading, dataset_size, response_tokens)

    def hooks(self) -> Mapping[str, str]:
        """Ray, and the module of the trainers' base class; see `batchbridge_openrlhf.launched`."""
        return {
            "ray": "batchbridge.kit:reach_workers",
            "openrlhf.trainer.ppo_trainer": "batchbridge_openrlhf.launched:driver",
        }

    def owns(self, trainer: object) -> bool:
        """Whether `trainer` is a `PPOTrainer` (in its Ray actor) or an `ActorPPOTrainer`, or of a subclass."""
        return any((base.__module__, base.__name__) in TRAINERS for base in type(trainer).__mro__)

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The trainer's arguments; see `runtime.source_of`."""
        if not self.owns(trainer):
            raise NotImplementedError(f"{self.framework}: {type(trainer).__name__} is no trainer of OpenRLHF")
        from batchbridge_openrlhf.runtime import source_of

        return source_of(trainer)

    def _reading(self, version: str | None, findings: Sequence[Finding], context: Context) -> OpenRlhfReading:
        """A reading that could say nothing but its findings."""
        return OpenRlhfReading(
            framework=self.framework,
            framework_version=version,
            findings=tuple(findings),
            dataset_size=context.dataset_size,
        )


TRAINERS = frozenset(
    {
        ("openrlhf.trainer.ppo_trainer", "BasePPOTrainer"),
        ("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer"),
    }
)
"""Classes whose objects `attach` takes. Source: openrlhf 0.11.2."""
ORDERED = "openrlhf leaves the order open; a wrapped run is ordered by it"
_TELLING = frozenset(
    {
        *("rollout_batch_size", "micro_rollout_batch_size", "micro_train_batch_size", "n_samples_per_prompt"),
        *("num_episodes", "init_kl_coef", "actor_num_gpus_per_node", "advantage_estimator", "zero_stage"),
        *("vllm_num_engines", "colocate_all_models", "generate_max_len", "use_dynamic_batch", "remote_rm_url"),
    }
)
"""Flat names that say OpenRLHF by themselves; dotted ones do so anyway."""


def _newer(version: str) -> Finding:
    """The warning for a version without rows of its own, with what it declares otherwise where it is installed."""
    from batchbridge_openrlhf.declared import difference

    differs = difference() if installed("openrlhf") == version else ""
    return newer_version("openrlhf", shown(version), newest=tables.NEWEST, code="BB-ORL-002", difference=differs)


def _version_finding(version: str | None, source: Source) -> Finding:
    fitting = _fitting(source) if version is None else []
    return unknown_version(
        "openrlhf",
        None if version is None else shown(version),
        known=tables.VERSIONS,
        newest=fitting[-1] if fitting else tables.NEWEST,
        codes=("BB-ORL-001", "BB-ORL-002"),
        hint=f"; the options given exist in {fitting[0]} to {fitting[-1]}" if fitting else "",
    )


def _fitting(source: Source) -> list[str]:
    """The releases that know every option of `source`; empty where none does, or nothing is said."""
    names = set(names_in(source))
    return [version for version in tables.RELEASES if names and names <= tables.options_of(version).keys()]


def _no_command(given: Given, source: Source) -> Finding:
    if given.other:
        message = f"{given.other} is not read: only openrlhf.cli.train_ppo_ray trains by rollouts"
    else:
        message = f"no openrlhf.cli.train_ppo_ray in this command: {shlex.join(source.argv)[:120]!r}"
    return Finding(
        "BB-ORL-005",
        "error",
        "config",
        message,
        where=(Where("command", shown(given.other or " ".join(source.argv[:3]))),),
        fixes=(Fix("give the command that starts openrlhf.cli.train_ppo_ray"),),
    )


def _refused(given: Given) -> Iterator[Finding]:
    """What argparse refuses, in its order: ambiguous words while it sorts them, then values."""
    for word, longer in given.ambiguous.items():
        yield Finding(
            "BB-ORL-003",
            "error",
            "config",
            f"{word} could be short for {', '.join(longer[:6])}" + (" and others" if longer[6:] else ""),
            where=(Where(word[:60]),),
            fixes=tuple(Fix(f"write --{name}") for name in longer[:3]),
            native="argparse: error: ambiguous option",
            source=tables.SOURCE,
        )
    for refused in given.broken:
        yield Finding(
            "BB-ORL-004",
            "error",
            "config",
            refused.message,
            where=(refused.place,),
            native=refused.native,
            source=tables.SOURCE,
        )


def _strays(given: Given) -> Iterator[Finding]:
    if given.strays:
        words = " ".join(given.strays)[:120]
        yield Finding(
            "BB-ORL-003",
            "error",
            "config",
            f"no option takes {words!r}",
            where=(Where(given.strays[0][:60] or "''"),),
            fixes=(Fix(f"remove {words!r}"),),
            native="argparse: error: unrecognized arguments",
            source=tables.SOURCE,
        )
    for short, name in given.abbreviated.items():
        yield Finding(
            "BB-ORL-008",
            "note",
            "config",
            f"--{short} is short for --{name}; a further option of that beginning would make it ambiguous",
            where=(Where(name),),
            fixes=(Fix(f"write --{name}"),),
        )


def _unknown(name: str, place: Where, near: Sequence[str], version: str) -> Finding:
    here = tables.names_of(version)
    spelled = [here[identity] for identity in tables.spellings().get(name, ()) if identity in here]
    message = f"{name} is no option of openrlhf {version}"
    if spelled:
        message += f"; it is spelled {spelled[0]} there"
    elif elsewhere := tables.releases_with(name):
        message += f"; it exists in {elsewhere[0]} to {elsewhere[-1]}"
    return Finding(
        "BB-ORL-003",
        "error",
        "config",
        message,
        where=(place,),
        fixes=(
            *(Fix(f"write {known}", {name: None, known: place.value}) for known in spelled or near),
            Fix(f"remove {name}", {name: None}),
        ),
        native="argparse: error: unrecognized arguments",
        source=tables.SOURCE,
    )


def _wrong_value(place: Where, wrong: WrongValue) -> Finding:
    return Finding(
        "BB-ORL-004",
        "error",
        wrong.phase,
        wrong_value(str(place.key), place.value, wrong),
        where=(place,),
        native=wrong.native,
        source=tables.SOURCE,
    )


def _world_notes(sizes: Sizes | None, places: Mapping[str, Where], names: Mapping[str, str]) -> Iterator[Finding]:
    if sizes is None or not sizes.asked:
        return
    said = [places[FIELDS[part]] for part in ("nodes", "devices_per_node") if FIELDS[part] in places]
    configured = sizes.nodes * sizes.devices_per_node
    if said and configured != sizes.world:
        yield Finding(
            "BB-ORL-007",
            "note",
            "config",
            f"read for {sizes.world} devices, as asked; the options say {names[FIELDS['nodes']]} {sizes.nodes} x "
            f"{names[FIELDS['devices_per_node']]} {sizes.devices_per_node} = {configured}",
            where=tuple(said),
        )


def _inexpressible(
    settings: Mapping[str, Any], places: Mapping[str, Where], names: Mapping[str, str]
) -> Iterator[Finding]:
    for identity, why in inexpressible(settings).items():
        place = places.get(identity) or Where(names[identity], shown(settings[identity]))
        message = f"{why}: the schema has no word for it, and says nothing rather than something else"
        yield Finding("BB-ORL-009", "warning", "config", message, where=(place,), undecided=True)


def _provenances(
    spec: Spec,
    told: Mapping[str, Told],
    settings: Mapping[str, Any],
    places: Mapping[str, Where],
    version: str,
    sizes: Sizes | None,
    source: Source,
) -> dict[str, Provenance]:
    names = tables.names_of(version)
    found = {}
    for path, value, _ in walk(spec):
        entry = told.get(path)
        if entry is None:
            continue  # at the schema's default: openrlhf has nothing to say about it
        if path == "topology.world_size" and sizes is not None and sizes.asked:
            found[path] = Provenance((), value, "argument", "the world size that was asked for")
        else:
            found[path] = _provenance(entry, settings, places, version, names, source)
    return found


def _provenance(
    entry: Told,
    settings: Mapping[str, Any],
    places: Mapping[str, Where],
    version: str,
    names: Mapping[str, str],
    source: Source,
) -> Provenance:
    if entry.key is None:
        return dataclasses.replace(entry.derived(), keys=tuple(names.get(key, key) for key in entry.others))
    value = settings[entry.key]
    if entry.key not in names:
        absent = tables.ABSENT.get(entry.key)
        return Provenance((), entry.value, "default", absent[1] if absent else f"no such option in openrlhf {version}")
    name = names[entry.key]
    note = f" (derived: {entry.formula})" if entry.formula else ""
    said = f"{'--' if source.argv else ''}{name} {shown(value)}"
    place = places.get(entry.key)
    return Provenance.of(
        name,
        value,
        place,
        default=f"default of openrlhf {version}",
        said=said,
        note=note,
        others=tuple(names.get(key, key) for key in entry.others),
    )

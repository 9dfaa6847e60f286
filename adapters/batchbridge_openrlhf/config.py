"""OpenRLHF's PPO options, read and written: launch commands and mappings, without importing OpenRLHF."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Attachment, Finding, Fix, Provenance, Reading, Source, Spec, Where
from batchbridge.kit import Context, NativeCheck, Phase, Request
from batchbridge.kit.command_line import UNRECOGNIZED, CommandLine, refusals, strays
from batchbridge.kit.frame import PackagedAdapter, RunReading
from batchbridge.kit.key_table import Codes
from batchbridge.kit.suggested_keys import suggested_keys
from batchbridge.kit.values import FieldValue, spec_of
from batchbridge.kit.versions import installed
from batchbridge_openrlhf import TELLS
from batchbridge_openrlhf import settings as tables
from batchbridge_openrlhf.facts import OpenRlhfFacts
from batchbridge_openrlhf.meaning import TYPES, inexpressible, meaning
from batchbridge_openrlhf.settings import is_idle
from batchbridge_openrlhf.sizes import sizes_of
from batchbridge_openrlhf.user_options import (
    RunningArguments,
    as_option_value,
    names_in,
    other_program,
    user_options,
    wrong_value,
)
from batchbridge_openrlhf.values import WrongOptionValue, convert, shown

if TYPE_CHECKING:
    from batchbridge.kit.own_copy import OwnCopy
    from batchbridge.kit.writing import Problems


class OpenRlhfAdapter(PackagedAdapter):
    """Framework `openrlhf`: `openrlhf.cli.train_ppo_ray`."""

    home = "batchbridge_openrlhf"
    tells = TELLS
    framework: ClassVar[str] = "openrlhf"
    codes = Codes("BB-ORL-001", "BB-ORL-002", "BB-ORL-007", "BB-ORL-003", "BB-ORL-004", "BB-ORL-009")
    no_configuration = "BB-ORL-006"
    distribution: ClassVar[str | None] = "openrlhf"
    no_run = ("BB-ORL-005",)
    given_alone = ("train.agent_func_path", "agent_func_path", "reward.remote_url", "remote_rm_url")
    checkout = ("version.txt", "openrlhf/cli/train_ppo_ray.py")
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    releases = tables.RELEASES
    enforced_versions: ClassVar[str] = f">={tables.OLDEST_ENFORCED}"
    runtime = "batchbridge_openrlhf.runtime:RUNTIME"
    reports = "batchbridge_openrlhf.reporting:report"
    resumes = "the same command and --ckpt.load_enable, with a --ckpt.save_steps above 0 since its start"
    texts = "batchbridge_openrlhf.texts:TEXTS"
    tries = "batchbridge_openrlhf.trying:TRIAL"
    rule_table = "batchbridge_openrlhf.rules:RULES"
    recorded_code = "batchbridge_openrlhf.proven:CODE"
    no_file = "OpenRLHF has no configuration file of its own; its command line says everything"
    enforced_fields = "batchbridge_openrlhf.enforced:ENFORCED"
    outside = "batchbridge_openrlhf.outside:OUTSIDE"
    fills_places: ClassVar[bool] = True

    def is_configuration(self, native: object) -> bool:
        """A trainer's own arguments."""
        return isinstance(native, RunningArguments)

    def readable_version(self, source: Source, context: Context, found: list[Finding]) -> str | None:
        """The version whose tables are read: of a copy, also a release that only copies have."""
        release = None if context.copy is None else context.copy.release
        return release if release in tables.OLD_RELEASES else super().readable_version(source, context, found)

    def check(self, reading: Reading) -> Sequence[Finding]:
        """The rules that the reading breaks. They were read in 0.8.0 and newer: of a copy that is older, what they call
        an error is open."""
        found = super().check(reading)
        if reading.framework_version not in tables.OLD_RELEASES:
            return found
        return [
            dataclasses.replace(one, message=f"as 0.8.0 would: {one.message}", undecided=True)
            if one.severity == "error"
            else one
            for one in found
        ]

    def fitting(self, source: Source) -> Sequence[str]:
        """The releases that know every option of `source`."""
        names = set(names_in(source))
        return [version for version in tables.RELEASES if names and names <= tables.options_of(version).keys()]

    def difference(self, version: str) -> str:
        """The installed parser's declarations that differ."""
        from batchbridge_openrlhf.declared import difference

        return difference() if installed(self.distribution) == version else ""

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of OpenRLHF's options, for `PackagedAdapter.read`. Text converts as argparse converts it; see
        `values`."""
        options, names = tables.options_of(version), tables.names_of(version)
        copy = context.copy if context.copy is not None and not context.copy.unread else None
        if copy is not None:
            from batchbridge_openrlhf.copies import options_in

            options = options_in(copy)
            names = {**names, **{option.identity: name for name, option in options.items()}}
        given = user_options(source, options)
        if given is None:
            return self.unread(version, [*found, _no_command(source.argv)], context)
        idle = {name for name, option in options.items() if is_idle(option.identity)}
        if source.record is not None:  # what decides nothing is changed while the program runs; null is no value there
            given.values = {
                name: as_option_value(options[name], value) if name in options else value
                for name, value in given.values.items()
                if value is not None and name not in idle
            }
        # A script leaves it open, and nothing here depends on it.
        given.refused = [one for one in given.refused if one.name not in source.unknown or one.name not in idle]
        found += refusals(given, self.codes, tables.SOURCE)
        settings = tables.defaults_of(version)
        if copy is not None:
            from batchbridge_openrlhf.copies import defaults_in

            settings = defaults_in(copy, settings)
        title = f"openrlhf {version}" if copy is None else "your copy of openrlhf"
        places: dict[str, Where] = {}
        parsed = decided = not given.ambiguous and all(one.name in idle for one in given.refused)
        later = [*strays(given, self.codes, tables.SOURCE), *_abbreviated(given)]
        near = suggested_keys((name for name in given.values if name not in options), options, 0.8, taken=given.values)
        today = _correction_of_today(given.values) if tables.LEVEL in names else {}
        alone = source.path is not None and not source.argv and source.record is None
        for name, value in given.values.items():
            option, place = options.get(name), given.places[name]
            if option is None:
                now = today if name in today else {}
                unknown = _unknown(name, place, near.get(name, ()), names, title, now)
                later.append(_left_to_a_reader(unknown) if alone else unknown)
                continue
            if name in source.unknown and name in idle:
                continue
            places[option.identity] = place
            try:
                settings[option.identity] = convert(option, value)
            except WrongOptionValue as wrong:
                message = wrong_value(name, place.value, wrong)
                refused = _finding("BB-ORL-004", message, place, native=wrong.native, phase=wrong.phase)
                found.append(_left_to_a_reader(refused) if alone and "${" in str(value) else refused)
                if wrong.phase != "config":
                    settings[option.identity] = wrong.held
                elif name not in idle:
                    parsed = False
                decided = decided and name in idle
        found += later  # argparse comes to what it does not know after it has converted the rest
        if settings.get("use_kl_estimator_k3"):  # an option of copies alone
            settings["algo.kl.estimator"] = "k3"
        sizes = sizes_of(settings, version, context.world_size) if parsed else None
        facts = None
        if sizes is not None:
            prompts, whole = context.dataset_size, given.whole
            facts = OpenRlhfFacts(settings, sizes, prompts, version, names, whole, frozenset(places), decided)
            found += [*_world_notes(facts, places), *_inexpressible(facts, places)] if decided else []
        reading = dataclasses.replace(
            self.unread(version, found, context),
            native={name: settings[option.identity] for name, option in options.items()},
            given=places,
        )
        if facts is None:
            return reading
        told = meaning(settings, facts.sizes) if decided else None
        if told is not None:
            if source.native is not None:
                told["order.seed"] = FieldValue(settings["train.seed"], "train.seed", ORDERED)
            spec = spec_of(told)
            # What is at the schema's default, openrlhf has nothing to say about.
            origins = {path: _origin(path, told[path], facts, places, source) for path in spec.values if path in told}
            reading = dataclasses.replace(reading, spec=spec, provenance=origins)
        from batchbridge_openrlhf.behaviour import behaviour

        prompts = facts.trained_prompts or context.dataset_size
        return dataclasses.replace(
            reading, run=facts, dataset_size=prompts, behaviour=behaviour(facts) if decided else None
        )

    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        """Options that say `spec`: models, data, rewards and generation engines are the user's to add."""
        from batchbridge_openrlhf.writing import native, settings_for

        return native(settings_for(spec, version, problems), version, problems)

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The copy of OpenRLHF beside a source, see `copies`."""
        from batchbridge_openrlhf.copies import own_copy

        return own_copy(source)

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The command as `argv` (one word per line, quoted) and for a shell."""
        from batchbridge_openrlhf.writing import argv, shell

        return {"shell": shell(values, version), "argv": "\n".join(map(shlex.quote, argv(values))) + "\n"}

    def native_check(self, reading: Reading) -> NativeCheck:
        """The construction of the framework's own object, see `constructed`."""
        from batchbridge_openrlhf import constructed

        return constructed.question(reading)

    def hooks(self) -> Mapping[str, str]:
        """Ray, and the modules of the trainers' base class and of the asynchronous trainer; see
        `batchbridge_openrlhf.launched`."""
        return {
            "ray": "batchbridge.kit:reach_workers",
            "openrlhf.trainer.ppo_trainer": "batchbridge_openrlhf.launched:driver",
            "openrlhf.trainer.ppo_trainer_async": "batchbridge_openrlhf.launched:asynchronous",
        }

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The trainer's arguments; see `asynchronous.source_of`."""
        self.require_own(trainer)
        from batchbridge_openrlhf.asynchronous import source_of

        return source_of(trainer)

    def check_attach(self, trainer: object, request: Request) -> None:
        """The check of a trainer before it is attached to, by the runtime of `asynchronous.runtime_of`."""
        from batchbridge_openrlhf.asynchronous import runtime_of

        runtime_of(trainer, request).check(trainer, request)

    def attach(self, trainer: object, request: Request) -> Attachment:
        """The attachment to a trainer, by the same runtime as `check_attach`."""
        from batchbridge_openrlhf.asynchronous import runtime_of

        return runtime_of(trainer, request).attach(trainer, request)


ORDERED = "openrlhf leaves the order open; a wrapped run is ordered by it"


def _finding(
    code: str, message: str, place: Where, fixes: Sequence[Fix] = (), native: str = "", phase: Phase = "config"
) -> Finding:
    return Finding(code, "error", phase, message, (place,), tuple(fixes), native, source=tables.SOURCE)


def _left_to_a_reader(finding: Finding) -> Finding:
    """The finding about a setting in a file that a program of the user's own reads."""
    text = f"{finding.message}; openrlhf reads no file, and the program that reads this one may take it"
    return dataclasses.replace(finding, message=text, undecided=True)


def _no_command(argv: Sequence[str]) -> Finding:
    other = other_program(argv)
    message = f"{other} is not read: only openrlhf.cli.train_ppo_ray trains by rollouts"
    if other is None:
        message = f"no openrlhf.cli.train_ppo_ray in this command: {shlex.join(argv)[:120]!r}"
    place = Where("command", shown(other or " ".join(argv[:3])))
    fix = Fix("give the command that starts openrlhf.cli.train_ppo_ray")
    return Finding("BB-ORL-005", "error", "config", message, (place,), (fix,), undecided=other is not None)


def _abbreviated(given: CommandLine) -> Iterator[Finding]:
    for short, name in given.abbreviated.items():
        message = f"--{short} is short for --{name}; a further option of that beginning would make it ambiguous"
        yield Finding("BB-ORL-008", "note", "config", message, (Where(name),), (Fix(f"write --{name}"),))


def _unknown(
    name: str, place: Where, near: Sequence[str], here: Mapping[str, str], title: str, today: Mapping[str, Any]
) -> Finding:
    """The finding about an option that is none. near: options of similar names. here: identity to the version's name.
    today: the changes that say the same now, where it is known what it meant."""
    spelled = [here[identity] for identity in tables.spellings().get(name, ()) if identity in here]
    message = f"{title} has no option {name}"
    if spelled:
        message += f"; it is spelled {spelled[0]} there"
    elif elsewhere := tables.releases_with(name):
        message += f"; it exists in {elsewhere[0]} to {elsewhere[-1]}"
    fixes = [Fix(f"write {known}", {name: None, known: place.value}) for known in spelled or near]
    if today:
        words = " ".join(f"--{key} {value}" for key, value in today.items() if value is not None)
        fixes.append(Fix(f"write {words}", today))
    fixes.append(Fix(f"remove {name}", {name: None}))
    return _finding("BB-ORL-003", message, place, fixes, UNRECOGNIZED)


def _correction_of_today(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of 0.11.2 that mean the sampler's correction of the options of before, and None for each of these;
    empty where they turn none on, or one that no version knew."""
    old = {name: tables.spellings().get(name, frozenset()) & set(tables.CORRECTION_BEFORE) for name in given}
    said = {identity: given[name] for name, identities in old.items() for identity in identities}
    parts = TYPES.get(str(said.get(tables.CORRECTION_TYPE) or "tis"))
    if tables.CORRECTION not in said or parts is None:
        return {}
    today = zip((tables.LEVEL, tables.MODE, tables.GATING), parts, strict=True)
    return {name: None for name, identities in old.items() if identities} | dict(today)


def _world_notes(facts: OpenRlhfFacts, places: Mapping[str, Where]) -> Iterator[Finding]:
    sizes, names = facts.sizes, facts.names
    said = tuple(places[key] for key in (tables.NODES, tables.DEVICES) if key in places)
    configured = sizes.nodes * sizes.devices_per_node
    if sizes.asked and said and configured != sizes.world:
        message = (
            f"read for {sizes.world} devices, as asked; the options say {names[tables.NODES]} {sizes.nodes} x "
            f"{names[tables.DEVICES]} {sizes.devices_per_node} = {configured}, and start so many until they are changed"
        )
        yield Finding("BB-ORL-007", "warning", "config", message, said)


def _inexpressible(facts: OpenRlhfFacts, places: Mapping[str, Where]) -> Iterator[Finding]:
    for identity, why in inexpressible(facts.settings).items():
        place = places.get(identity) or Where(facts.name(identity), shown(facts[identity]))
        message = f"{why}: the schema has no word for it, and says nothing rather than something else"
        yield Finding("BB-ORL-009", "warning", "config", message, where=(place,), undecided=True)


def _origin(
    path: str, entry: FieldValue, facts: OpenRlhfFacts, places: Mapping[str, Where], source: Source
) -> Provenance:
    names, version = facts.names, facts.version
    others = tuple(names.get(key, key) for key in entry.others)
    if path == "topology.world_size" and facts.sizes.asked:
        return Provenance((), entry.value, "argument", "the world size that was asked for")
    if entry.key is None:
        return dataclasses.replace(entry.derived(), keys=others)
    if entry.key not in names:
        absent = tables.ABSENT.get(entry.key)
        return Provenance((), entry.value, "default", absent[1] if absent else f"no such option in openrlhf {version}")
    name, value = names[entry.key], facts[entry.key]
    default, said = f"default of openrlhf {version}", f"{'--' if source.argv else ''}{name} {shown(value)}"
    place = places.get(entry.key)
    return Provenance.of(name, value, place, default=default, said=said, note=entry.note, others=others)

"""Reading and writing the command lines of Open-Instruct's RL scripts, without importing any of them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import Finding, Fix, Reading, Source, Spec, Where, Written
from batchbridge.kit import Context, NativeStep, set_on_top, walk
from batchbridge.kit.command_line import NOT_USED, CommandLine, OptionArity, options_of, parse, refusals, strays
from batchbridge.kit.config_texts import option_words
from batchbridge.kit.frame import PackagedAdapter, RunReading, origins
from batchbridge.kit.key_table import Codes, converted
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.values import shown, spec_of
from batchbridge.kit.versions import newer_version, read_as_release, readable, release_after
from batchbridge_open_instruct import TELLS
from batchbridge_open_instruct import settings as tables
from batchbridge_open_instruct.meaning import learners, meaning
from batchbridge_open_instruct.settings import GRPO, GRPO_FAST, LEARNERS, PPO, SCRIPT, SCRIPTS
from batchbridge_open_instruct.settings_file import file_behind_script
from batchbridge_open_instruct.values import LARGEST

if TYPE_CHECKING:
    from batchbridge.kit.own_copy import OwnCopy
    from batchbridge.kit.writing import Problems


class OpenInstructAdapter(PackagedAdapter):
    """Framework `open_instruct`: grpo_fast.py, grpo.py, and the older ppo_vllm_thread_ray_gtrl.py."""

    home = "batchbridge_open_instruct"
    tells = TELLS
    framework: ClassVar[str] = "open_instruct"
    resumes = "the same command, with the --checkpoint_state_dir that it has had since its start"
    codes = Codes("BB-OI-001", "BB-OI-002", "BB-OI-005", "BB-OI-003", "BB-OI-004", "BB-OI-007")
    no_configuration = "BB-OI-006"
    versions: ClassVar[str] = tables.VERSIONS
    newest_version: ClassVar[str] = tables.NEWEST
    releases = tuple(tables.CHECKOUTS)
    enforced_versions: ClassVar[str] = f">={tables.NEWEST}"
    runtime = "batchbridge_open_instruct.runtime:RUNTIME"
    rule_table = "batchbridge_open_instruct.rules:RULES"
    recorded_code = "batchbridge_open_instruct.proven:CODE"
    no_file = "Open-Instruct has no configuration file of its own; the flags of its scripts say everything"
    enforced_fields = "batchbridge_open_instruct.enforced:ENFORCED"
    outside = "batchbridge_open_instruct.outside:OUTSIDE"
    fills_places: ClassVar[bool] = True
    counts_places: ClassVar[bool] = True

    def asked_version(self, context: Context) -> tuple[str | None, str]:
        """The checkout that is asked for, by its date."""
        asked = context.framework_version
        return asked and (tables.checkout_of(readable(asked, tables.NEWEST)) or asked), ""

    def readable_version(self, source: Source, context: Context, found: list[Finding]) -> str | None:
        """The checkout, where it is known and has the script that is started."""
        asked, script = context.framework_version, _script(source)
        if source.native is not None or script is None:
            found.append(_unreadable(f"{_named_script(source)} is not read" if source.native is None else "an object"))
            return None
        checkout = _checkout_at(source) if asked is None else tables.checkout_of(readable(asked, tables.NEWEST))
        if checkout is None or checkout not in SCRIPTS[script]:
            found.append(_version_finding(asked, checkout, script))
            return None
        if asked is not None and readable(asked, tables.NEWEST) != asked:
            found.append(newer_version("open-instruct", shown(asked), newest=checkout, code=self.codes.unknown_version))
        if asked is not None and (tag := release_after(asked.removeprefix("v"))):
            found.append(read_as_release("open-instruct", shown(asked), tag, self.codes.unknown_version))
        return checkout

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading, see `PackagedAdapter.read`. Strings convert as HfArgumentParser converts them."""
        script = _script(source)
        assert script is not None, "readable_version says what is not a script"
        rows, others = tables.rows_of(version), tables.other_rows(version)
        if context.copy is not None and not context.copy.unread:
            from batchbridge_open_instruct.copies import rows_in

            rows, others = rows_in(context.copy)
        behind = file_behind_script(source, _place(source.argv[:4]), script, context.copy)
        source = behind.source
        line = behind.under(_given(source, options_of(rows, others)))
        said, places = line.values, line.places
        ask = context.copy is None and _unknown(said, version)
        elsewhere = self._taking(source, context, script, said) if ask else []

        def unknown(key: str, near: Sequence[str]) -> Finding:
            fitting = [_SUCCESSORS[key]] if _SUCCESSORS.get(key) in rows else near
            return _unknown_key(places[key], fitting, version, script, elsewhere)

        def wrong(key: str, error: WrongValue) -> Finding:
            text = f"{key} = {places[key].value!r}: expected {error}"
            default = None if key in others else rows[key].default
            fix = Fix(f"remove {key}" if key in others else f"the default is {default}", {key: default})
            return Finding(self.codes.wrong_value, "error", "config", text, (places[key],), (fix,))

        taken = converted({key: value for key, value in said.items() if key not in others}, rows, unknown, wrong)
        known = {key: value for key, value in said.items() if key in others and key not in source.unknown}
        beside = converted(known, others, unknown, wrong)
        native, wrong_values = {SCRIPT: script, **taken.native}, bool(taken.wrong or line.refused)
        wrong_values = wrong_values or any(one.severity == "error" for one in behind.findings)
        found += [*behind.findings, *refusals(line, self.codes, ""), *taken.findings, *beside.findings]
        found += strays(line, self.codes, "", NOT_USED)
        world_key, asked = LEARNERS[script], context.world_size
        if asked is not None and asked != learners(native):
            if world_key in said or asked > LARGEST:
                wrong_values = True
                found.append(_other_world(places.get(world_key), world_key, learners(native), asked))
            else:
                native[world_key], places[world_key] = [asked], Where(world_key, asked)
        reading = dataclasses.replace(self.unread(version, found, context), native=native, given=places)
        if wrong_values:
            return reading
        from batchbridge_open_instruct.behaviour import behaviour
        from batchbridge_open_instruct.rules.row import OpenInstructFacts

        facts = OpenInstructFacts(native, places, context.dataset_size, version, beside.native)
        reading = dataclasses.replace(reading, run=facts)
        try:
            told = meaning(native, version)
        except ValueError as reason:
            if all(one.undecided for one in self.check(reading) if one.severity == "error"):
                found.append(_inexpressible(str(reason)))
            return dataclasses.replace(reading, findings=tuple(found))
        spec = spec_of(told)
        # What is at the schema's default, the script has nothing to say about.
        worth_saying = {path: told[path] for path, _, _ in walk(spec) if path in told}
        provenance = origins(worth_saying, native, places, f"default of {script}, {version}")
        return dataclasses.replace(reading, spec=spec, provenance=provenance, behaviour=behaviour(facts))

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The copy of Open-Instruct beside a source, see `copies`."""
        from batchbridge_open_instruct.copies import own_copy

        return own_copy(source, _script(source))

    def _taking(self, source: Source, context: Context, script: str, said: Mapping[str, Any]) -> list[str]:
        """The checkouts of a script that know and accept the whole of what was said."""
        fitting = (one for one in SCRIPTS[script] if not _unknown(said, one))
        readings = (self.read(source, dataclasses.replace(context, framework_version=one)) for one in fitting)
        return [
            str(reading.framework_version)
            for reading in readings
            if not any(found.severity == "error" for found in (*reading.findings, *self.check(reading)))
        ]

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        """Arguments and a shell line: of the PPO script where there is a value baseline, of a GRPO script otherwise;
        for the newest checkout that has the script where none is named. Raises `CannotWrite`.

        Dataset, model and engines are not a spec's business, and have to be added.
        """
        newest = tables.NEWEST_PPO if spec.advantage.baseline == "value" else tables.NEWEST
        return super().write(spec, self.asked_version(Context(framework_version=framework_version or newest))[0])

    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        """The native settings of a specification, see `writing.settings_for`."""
        from batchbridge_open_instruct.writing import settings_for

        checkout = tables.checkout_of(version)
        return {} if checkout is None else settings_for(spec, problems, checkout)  # reading it back says so

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The command as `argv` (one word per line) and for a shell."""
        program = ["python", f"open_instruct/{values[SCRIPT]}"]
        options = [option_words(key, value) for key, value in values.items() if key != SCRIPT]
        missing = "" if "model_name_or_path" in values else "dataset, model and "
        head = f"# open-instruct, checkout of {version}; {missing}engines are to be added\n"
        argv = [*program, *(word for words in options for word in words)]
        return {
            "argv": "\n".join(argv) + "\n",
            "shell": head + " \\\n    ".join(map(shlex.join, [program, *options])) + "\n",
        }

    def hooks(self) -> Mapping[str, str]:
        """Ray, and modules that the scripts import; see `batchbridge_open_instruct.launched`."""
        return {
            "ray": "batchbridge.kit:reach_workers",
            "open_instruct.utils": "batchbridge_open_instruct.launched:utilities",
            "open_instruct.data_loader": "batchbridge_open_instruct.launched:preparation",
            "open_instruct.grpo_olmo_core_actor": "batchbridge_open_instruct.launched:olmo_learners",
        }

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The source of a running trainer, see `runtime.source_of`."""
        from batchbridge_open_instruct import runtime

        return runtime.source_of(trainer)

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """Never decided by the settings."""
        if reading.native.get(SCRIPT) == PPO:
            raise ValueError("each rank permutes its completions with numpy's global random numbers")
        raise ValueError(
            "prompts join a rollout in the order in which vLLM finishes them, and rows are packed by length"
        )


_OLD_GRPO = "grpo_vllm_thread_ray_gtrl.py"
_PPO_ONLY = frozenset({"local_mini_batch_size", "local_rollout_batch_size", "cliprange"})


def _program(argv: Sequence[str]) -> Path | None:
    """The script that a command starts; `python -m open_instruct.grpo_fast` starts that file."""
    place = _place(argv)
    if place is None:
        return None
    word = argv[place]
    return Path(word if word.endswith(".py") else f"{word.replace('.', '/')}.py")


def _place(argv: Sequence[str]) -> int | None:
    named = (word.endswith(".py") or (word.startswith("open_instruct.") and word.count(".") == 1) for word in argv)
    return next((place for place, is_name in enumerate(named) if is_name), None)


def _named_script(source: Source) -> str:
    """The file name of the script that the command starts, or what `script` says, or ""."""
    if program := _program(source.argv):
        return program.name
    said = source.values.get(SCRIPT)
    return said if isinstance(said, str) else "" if said is None else f"{said!r:.40}"


def _checkout_at(source: Source) -> str | None:
    """The proven checkout whose GRPO script the command starts, if that stands where the command says."""
    from batchbridge_open_instruct.proven import checkout_of

    program = _program(source.argv)
    there = program is not None and program.name in (GRPO_FAST, GRPO) and program.is_file()
    return checkout_of(program.absolute().parent) if program is not None and there else None


def _given(source: Source, options: Mapping[str, OptionArity]) -> CommandLine:
    """The settings of a source: the words behind the script, and what was set on top of them."""
    place = _place(source.argv[:4])
    words = source.argv[0 if place is None else place + 1 :]
    bare = place is None and not any(word.startswith("-") for word in words)  # settings alone
    given = parse(() if bare else words, options, lambda name, words: None, _shown, source)
    file = None if source.path is None else str(source.path)
    for key, value in (source.values if bare else set_on_top(source.values, source.argv)).items():
        if key == SCRIPT:
            continue
        name, line = key if isinstance(key, str) else repr(key)[:60], source.lines.get(key)
        given.refused = [refused for refused in given.refused if refused.name != name]
        given.values[name], given.places[name] = value, Where(name, shown(value), file if line else None, line)
    return given


def _shown(words: Any) -> Any:
    return shown(words[0] if isinstance(words, list) and len(words) == 1 else words)


def _script(source: Source) -> str | None:
    """The script, by name or else by the keys that only the PPO script has; None: it is not one of those read."""
    if name := _named_script(source):
        return name if name in SCRIPTS else None
    return PPO if _PPO_ONLY & {key for key in source.values if isinstance(key, str)} else GRPO_FAST


def _unknown(said: Mapping[str, Any], checkout: str) -> bool:
    """Whether something was said that the parser of a checkout does not know."""
    return not all(tables.has_flag(checkout, key) for key in said)


# ---- findings


def _unreadable(what: str) -> Finding:
    read = ", ".join(SCRIPTS)
    text, fix = f"{what}; read are the command lines and settings of {read}", Fix(f"name one of {read}")
    return Finding("BB-OI-006", "error", "config", text, (Where(SCRIPT),), (fix,), undecided=True)


def _version_finding(version: str | None, checkout: str | None, script: str) -> Finding:
    known = ", ".join(f"{one} ({tables.CHECKOUTS[one]})" for one in SCRIPTS[script])
    option = f"--framework-version {SCRIPTS[script][-1]}"
    if version is None:
        message = f"which checkout of open-instruct? Defaults change from one to the next; {script} is read in {known}"
        fix = Fix(f"name the date of its commit: {option}")
        return Finding("BB-OI-001", "error", "config", message, (Where("framework version"),), (fix,), undecided=True)
    message = f"open-instruct {version} is not known here; {script} is read in {known}"
    if checkout is not None:
        message = f"{script} is not read in open-instruct {version}, only in {known}"
    fix = Fix(f"name a known checkout, if yours has the same defaults, for example {option}")
    return Finding(
        "BB-OI-002", "error", "config", message, (Where("framework version", shown(version)),), (fix,), undecided=True
    )


def _unknown_key(place: Where, near: Sequence[str], checkout: str, script: str, elsewhere: Sequence[str]) -> Finding:
    """elsewhere: the known checkouts of the script that have every flag that was given."""
    key = place.key or ""
    removed = tables.REMOVED.get(key) if script == GRPO_FAST else None
    message = f"open-instruct in {checkout} has no setting {key}"
    if removed is not None:
        message += f": {script} lost it on {removed[0]} ({removed[1]})"
    elif script != PPO and any(tables.has_flag(one, key.removeprefix("no_")) for one in SCRIPTS[PPO]):
        message += f": {PPO} had it, {script} never"
    alone = "" if elsewhere else ": no known checkout takes all that is given"
    fixes = (
        *(Fix(f"read it in the checkout that has it: --framework-version {one}") for one in elsewhere[-1:]),
        *(Fix(f"write {name}", {key: None, name: place.value}) for name in near),
        Fix(f"remove {key}{alone}", {key: None}),
    )
    native = "HfArgumentParser: ValueError: Some specified arguments are not used"
    source = None if removed is None else f"open-instruct {removed[1].partition(',')[0]}"
    return Finding("BB-OI-003", "error", "config", message, (place,), fixes, native=native, source=source)


_SUCCESSORS = {
    "actor_num_gpus_per_node": "num_learners_per_node",
    "number_samples_per_prompt": "num_samples_per_prompt_rollout",
}


def _other_world(place: Where | None, key: str, said: int, asked: int) -> Finding:
    message = f"{key} gives {said} learners, and {shown(asked)} devices were asked for"
    fixes = (Fix(f"--world-size {said}"), Fix(f"{key} {shown(asked)}", {key: [asked]}))
    return Finding("BB-OI-005", "error", "config", message, (place or Where(key, said),), fixes)


def _inexpressible(reason: str) -> Finding:
    message = f"the schema cannot say this run: {reason}"
    return Finding("BB-OI-007", "error", "config", message, (Where(reason.partition(" ")[0]),), undecided=True)

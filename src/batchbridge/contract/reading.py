"""The objects that travel between an adapter and everybody else: sources, readings, and what was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.findings import Finding, Verdict, Where, counts, verdict
from batchbridge.meaning.spec import DenominatorScope, Spec

if TYPE_CHECKING:
    from batchbridge.contract.own_copy import OwnCopy  # most runs are of an installed framework

Mode = Literal["observe", "verify", "enforce"]
ReportTo = Literal["trainer"]
Padding = Literal["padded", "free", "auto"]


@dataclass(frozen=True)
class Unreached:
    """A launcher behind which `batchbridge run` in front of the command does not reach the training.

    launcher: its name. reason: why. instead: the command to write, or where `batchbridge run` stands.
    """

    launcher: str
    reason: str
    instead: str


@dataclass(frozen=True)
class CountedSizes:
    """The sizes of a run as a program of somebody else's counts them.

    prompts: of a rollout. per_prompt: completions of each. trained: completions of a rollout that are trained on; None:
    not decided. step: completions of an optimizer step; None: not decided.
    """

    prompts: int
    per_prompt: int
    trained: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Condition:
    """A condition under which what is said of a run holds: that its trainer is the framework's.

    supposed: it, as the rest of a sentence that begins with "if": "train.py trains as TRL's GRPOTrainer does". whose:
    the framework's name in sentences. why: what is seen of the trainer, or known of it. places: where the user says so.
    otherwise: it is known that the program counts batches in another way, so that the framework's sizes are not its
    own. sizes: those that it counts itself, where they are known. silent: codes of rules about what it does otherwise.
    """

    supposed: str
    whose: str
    why: str
    places: tuple[Where, ...] = ()
    otherwise: bool = False
    sizes: CountedSizes | None = None
    silent: frozenset[str] = frozenset()

    @property
    def no_plan(self) -> str:
        """The reason, where `otherwise` holds, that the framework's plan and its other sizes are not the program's."""
        return f"the program counts batches itself: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types: supposed, why, otherwise, sizes."""
        sizes = None if self.sizes is None else dataclasses.asdict(self.sizes)
        return {"supposed": self.supposed, "why": self.why, "otherwise": self.otherwise, "sizes": sizes}


@dataclass(frozen=True, kw_only=True)
class GivenArguments:
    """The arguments that a call of a Python program gives.

    named: those by name, to their places. positional: how many stand before them. open: there may be others. changed:
    what is called may be another than its name says. only_if: what only running the program would tell, and whether the
    call is reached depends on. caught: the program goes on where the call fails. modules: packages that it imports.
    imported_first: those that it imports before it has the class, as `Construction.modules`.
    """

    named: Mapping[str, Where] = field(default_factory=dict)
    positional: int = 0
    open: bool = False
    changed: bool = False
    only_if: tuple[str, ...] = ()
    caught: bool = False
    modules: frozenset[str] = frozenset()
    imported_first: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltTrainer:
    """A trainer that a Python program builds: its class in full with its ancestors.

    methods: those that classes of the program give it. repeated_over: names of its attributes over whose range such a
    method repeats something (`[row for row in rows for _ in range(self.num_generations)]`). given: the arguments.
    """

    name: str
    place: Where
    bases: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    repeated_over: frozenset[str] = frozenset()
    given: GivenArguments = GivenArguments(open=True)


@dataclass(frozen=True, kw_only=True)
class Construction:
    """The call of a class in a Python program that a source's settings are the arguments of.

    name: the class in full, as the program imports it (`trl.GRPOConfig`). bases: classes that it is derived from.
    modules: packages that the program imports before it has the class, each with the expression that only running the
    program would tell and the import depends on (empty: on none). pins: distribution to the version that a notebook
    installs; ranges: to the range of versions. fields: settings that classes of the program declare themselves. files:
    native key to the file, or the notebook's cell, where it is not `Source.path`. filtered: the program itself leaves
    out what the class does not take.
    """

    name: str
    place: Where
    bases: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    fields: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    filtered: bool = False


@dataclass(frozen=True)
class RecordedNumber:
    """A number that the record of a run says, and the place that says it, for a person."""

    value: int
    place: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The record that a run left of itself: settings as its framework held them, which nothing will parse again.

    kind: what it is, for a person ("W&B's record of a run"). versions: distribution to its version and the place that
    says it. built: the full name of the class whose object it is of, where it says that. world_size: devices that
    trained the policy. dataset_size: prompts. steps: optimizer steps that the run planned. partial: it says some of the
    settings alone, so that the others need not be at their defaults. has_lines: the file is a text. told: further
    facts, for a person.
    """

    kind: str
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    built: str = ""
    world_size: RecordedNumber | None = None
    dataset_size: RecordedNumber | None = None
    steps: RecordedNumber | None = None
    partial: bool = False
    has_lines: bool = True
    told: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input that is to be read, in one of the forms that users have.

    values: native keys (nested or dotted) to values. lines: native key to line of `path`, where the input is a file.
    path: the file, for messages and for files beside it. argv: the arguments of a launch command. native: the
    framework's own config or trainer object. problems: what the loader already found (broken YAML, a duplicate key).
    launcher: what a launcher that `argv` no longer has was told, as written: "launcher" (`torchrun`), "num_processes",
    "nproc_per_node", "nnodes", ... (see `batchbridge.reading.launchers`); "visible_devices" of a Python program that
    none starts. unknown: native key to the names that its value depends on, where a script leaves it open; `values`
    then has the script's spelling, which `read` reports as
    the wrong value that it is: `batchbridge.read` makes BB011, undecided, of that. env: values of environment variables
    that the user gave. unreached: the launcher, if there is one, that keeps `batchbridge run` from the training.
    construction: the call that the values are the arguments of, of a Python program or a notebook. trainers: those that
    the program builds, of a construction those that are handed its object where there are such; None: no program was
    read. record: what else is left of a run that was started before, where the settings are a record of it: keys that
    are no settings are then no errors.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    path: Path | None = None
    argv: tuple[str, ...] = ()
    native: Any = None
    problems: tuple[Finding, ...] = ()
    launcher: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    unreached: Unreached | None = None
    construction: Construction | None = None
    trainers: tuple[BuiltTrainer, ...] | None = None
    declared: frozenset[str] = frozenset()
    loose: tuple[str, ...] = ()
    record: RunRecord | None = None

    def file_of(self, key: str) -> str | None:
        """The file, or the notebook's cell, that a native key stands in; None where there is no file."""
        own = None if self.path is None else str(self.path)
        return own if self.construction is None else self.construction.files.get(key, own)


@dataclass(frozen=True, kw_only=True)
class Context:
    """The facts that the user said beside the configuration. None: not said.

    world_size: devices that train the policy. dataset_size: prompts. copy: the framework's copy that lies beside the
    configuration, whose settings hold in place of the version's.
    """

    framework_version: str | None = None
    world_size: int | None = None
    dataset_size: int | None = None
    copy: OwnCopy | None = None


@dataclass(frozen=True)
class Provenance:
    """The origin of a canonical field's value: native keys, a value, and a place or a default's origin."""

    keys: tuple[str, ...]
    """The native keys that the value comes from: those of a formula all, none where no setting decides it."""
    value: Any
    """The native value of `key` (`dapo`, False), never what it means; without a `key` the canonical value."""
    origin: Literal["file", "argument", "object", "default", "derived"]
    detail: str
    """`recipe.yaml:12`, "default of trl 1.16.0", "mb x SPG x world / G": for a person."""
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keys, tuple):
            raise TypeError(f"Provenance: keys is a tuple of native keys, not {self.keys!r}")

    @property
    def key(self) -> str | None:
        """The native key that has `value`: the first of `keys`; None where the value was derived."""
        return self.keys[0] if self.keys and self.origin != "derived" else None

    @classmethod
    def of(
        cls,
        key: str,
        value: Any,
        place: Where | None,
        *,
        default: str,
        said: str | None = None,
        note: str = "",
        others: tuple[str, ...] = (),
    ) -> Provenance:
        """The provenance of a native key given at `place`: a line of a file, or else an argument, `said` so
        (`key=value`). Without a place it stands at its `default`. note: what was derived from it, and from the `others`
        beside it, as it stands behind the place: " (derived: nodes x gpus)"."""
        keys = tuple(dict.fromkeys((key, *others)))
        if place is None:
            return cls(keys, value, "default", f"{default}{note}")
        if place.file is None:
            return cls(keys, value, "argument", f"{said or f'{key}={place.value}'}{note}")
        detail = place.file if place.line is None else f"{place.file}:{place.line}"
        return cls(keys, value, "file", f"{detail}{note}", place.file, place.line)


@dataclass(frozen=True, kw_only=True)
class NativeRow:
    """One completion of a native optimizer step, as the framework itself would place and weigh it.

    rollout, pass_index: counted from 0 over the run, and over the passes of its rollout. rank: the data-parallel
    replica, not the device. micro_batch: counted from 0 over that rank's share of this step.
    """

    rollout: int
    pass_index: int
    prompt: int
    sample: int
    rank: int
    micro_batch: int
    weight: Fraction | None
    """Weight of one response token; None where the framework leaves it open."""


@dataclass(frozen=True, kw_only=True)
class NativeStep:
    """One optimizer step as the framework itself would train it."""

    index: int
    rows: tuple[NativeRow, ...]


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A known upstream defect of the read version, with its upstream reference."""

    code: str
    summary: str
    source: str
    numbers: tuple[float, ...] = ()
    """The numbers of its `summary`: what tells two runs with one defect apart."""

    def same_as(self, other: Defect) -> bool:
        """Whether both are one known defect with the same numbers, however versions word it."""
        return (self.code, self.numbers) == (other.code, other.numbers)


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The real behaviour of the framework with this configuration, in words and scopes; `Adapter.native_steps` in rows.

    order: how prompts are ordered. membership: how a step's completions are chosen. undecided: what of the two depends
    on timing or random state that the configuration does not fix. denominator_scope and formula: of the policy loss.
    lr_tick: after what the learning rate moves. resume: what of all this a resumed run has. defects: what is trained
    otherwise than the settings say. source: framework, version, file and symbol.
    """

    order: str
    membership: str
    denominator_scope: DenominatorScope
    denominator_formula: str
    lr_tick: str
    resume: str
    defects: tuple[Defect, ...] = ()
    undecided: tuple[str, ...] = ()
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


class RequiredVersions(NamedTuple):
    """A range of versions (PEP 440) that a repository asks for, and the places that do, for a person."""

    versions: str
    places: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Reading:
    """The meaning of one configuration as an adapter reads it: specification, provenance, findings.

    `spec` and `behaviour` are None when the findings leave them open (verdict "invalid" or "undecided"); whatever can
    be said is said. `native` holds every native setting that was read, defaults included, by native key; `given` the
    places of those that the user gave.
    """

    framework: str
    framework_version: str | None
    spec: Spec | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    """Provenance by canonical field. Every field of `spec` whose value is not the schema's default has one; a field at
    the schema's default may be left out, and is then shown as the schema's."""
    behaviour: Behaviour | None = None
    findings: tuple[Finding, ...] = ()
    native: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Where] = field(default_factory=dict)
    dataset_size: int | None = None
    guessed: tuple[Where, ...] = ()
    """Native settings that nobody said, with the place that they were guessed from: an accelerate file beside a recipe.
    An error about one leaves the verdict open."""
    unreached: Unreached | None = None
    """The launcher, if there is one, that keeps `batchbridge run` in front of the command from the training."""
    loose: tuple[str, ...] = ()
    """Words of the command that are not known and may be any settings, and files of settings that it names and that are
    not here: what they decide is open."""
    condition: Condition | None = None
    """The condition that the reading rests on, where it is not known that the framework's own trainer runs. `read`
    leaves errors about the run undecided then, with BB041."""

    required: RequiredVersions | None = None
    """The versions that the configuration's repository asks for, where nothing names one."""
    copy: OwnCopy | None = None
    """The user's own copy of the framework that it was read by; `framework_version` is then the release like it."""

    @property
    def places(self) -> dict[str, Where]:
        """`given`, by the keys of `native`: an adapter may know a setting by its name in later versions."""
        return {str(place.key) if place.key in self.native else key: place for key, place in self.given.items()}

    def where(self, *keys: str) -> tuple[Where, ...]:
        """The places of native `keys`, for a finding; one that was not given has its default and no file."""
        return tuple(self.given.get(key) or Where(key, self.native.get(key)) for key in keys)

    def keeping(self, keep: Callable[[Finding], bool] | None) -> Reading:
        """The reading with only the findings that `keep` is true of; None: all."""
        if keep is None:
            return self
        return dataclasses.replace(self, findings=tuple(finding for finding in self.findings if keep(finding)))

    @property
    def supposed(self) -> Reading:
        """The reading as it is where its condition holds; itself without one. What compares and converts goes on with
        it."""
        if self.condition is None:
            return self
        from batchbridge.meaning.conditional import unconditional

        kept = tuple(unconditional(self.findings, self.condition.supposed))
        return dataclasses.replace(self, findings=kept)

    def __repr__(self) -> str:
        version = f" {self.framework_version}" if self.framework_version else ""
        return brief(self, f"{self.framework}{version}", self.verdict, counts(self.findings))

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask
        from batchbridge.meaning.derived import UNITS
        from batchbridge.meaning.findings_in_notebooks import findings_table

        numbers = [
            (name, self.derived[name], unit) for name, unit in UNITS.items() if self.derived.get(name) is not None
        ]
        return notebook.fragment(
            repr(self),
            findings_table(self.findings),
            notebook.table(("number", "value", "unit"), numbers),
        )

    @property
    def verdict(self) -> Verdict:
        """ "valid", "invalid" or "undecided"."""
        return verdict(self.findings)

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that make it invalid or undecided."""
        return tuple(finding for finding in self.findings if finding.severity == "error" or finding.undecided)

    @property
    def counts_itself(self) -> bool:
        """Whether it is known that the program counts batches in another way than `spec` says, as `condition` has
        it."""
        return self.condition is not None and self.condition.otherwise

    @property
    def derived(self) -> Mapping[str, Any]:
        """The derived numbers of `batchbridge.meaning.derived`, JSON types; empty without a spec, and of a program that
        counts batches itself."""
        from batchbridge.meaning.derived import derive

        return {} if self.spec is None or self.counts_itself else derive(self.spec, self.dataset_size)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the command line: framework, framework_version, spec, derived, condition, behaviour, provenance,
        findings, verdict."""
        condition = self.condition
        return {
            "framework": self.framework,
            "framework_version": self.framework_version,
            "spec": None if self.spec is None else self.spec.to_dict(),
            "derived": dict(self.derived),
            "condition": None if condition is None else condition.to_dict(),
            "behaviour": None if self.behaviour is None else self.behaviour.to_dict(),
            "provenance": {path: dataclasses.asdict(origin) for path, origin in self.provenance.items()},
            "findings": [finding.to_dict() for finding in self.findings],
            "verdict": self.verdict,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Written:
    """A configuration in the framework's own form.

    values: by native key. text: by the name of the form. "yaml" and "json" are files, "argv" words, one a line,
    anything else a command in a shell script, or what the adapter's contract test names unreadable. With "yaml",
    `convert --into` edits the user's file.
    """

    values: Mapping[str, Any]
    text: Mapping[str, str]
    framework_version: str | None = None
    """The version that it is written for; None: not said, and whoever reads it back must name one."""

    def __repr__(self) -> str:
        return brief(self, self.framework_version or "no version", many(self.values, "key"), ", ".join(self.text))

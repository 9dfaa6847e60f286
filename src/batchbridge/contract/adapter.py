"""The contract between BatchBridge and a framework: `Adapter`, and the `Reading` that it makes of a configuration.

An adapter's module that reads configurations imports no framework; only its runtime part, imported by `attach`, may.
First-party adapters use this contract and nothing else; `batchbridge.testing.AdapterContract` tests it for everybody.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge.contract.outside import SharedSetting
from batchbridge.contract.reading import Context, NativeStep, Reading, Source, Written
from batchbridge.meaning.findings import Finding
from batchbridge.meaning.spec import Spec

if TYPE_CHECKING:
    from batchbridge.contract.attachment import Attachment, Request
    from batchbridge.contract.detection import DetectionFacts
    from batchbridge.contract.enforcement import Enforcement
    from batchbridge.contract.error_text import ErrorText, RuleRow, RuleTitle
    from batchbridge.contract.evidence import Code
    from batchbridge.contract.held import Held
    from batchbridge.contract.native_check import NativeCheck
    from batchbridge.contract.own_copy import OwnCopy
    from batchbridge.contract.trial import Trial


class Adapter(ABC):
    """Everything BatchBridge knows about one framework.

    Subclasses are registered by the hook `batchbridge_adapters` and instantiated without arguments.
    """

    framework: ClassVar[str]
    """The name everywhere: `trl`, `verl`, ..."""
    distribution: ClassVar[str | None] = None
    """The PyPI name whose installed version is the default `framework_version`; None if there is none."""
    checkout: ClassVar[tuple[str, ...]] = ()
    """Files by which a checkout of the framework is known, seen from its root. The first says the release that the
    checkout calls itself, the default for a configuration in it: text alone, or a line `__version__ = "1.2"`."""
    versions: ClassVar[str]
    """Versions whose configuration is read, as a PEP 440 specifier; others fail closed with a finding."""
    newest_version: ClassVar[str] = ""
    """The newest version with tables of its own: newer ones in `versions` are read as it, with a warning that names
    both. Empty: every version in `versions` has its own."""
    releases: ClassVar[tuple[str, ...]] = ()
    """Known releases, oldest first: what a configuration is judged under where nobody names a version."""
    enforced_versions: ClassVar[str] = ""
    """Versions whose running trainer may be patched; empty: none."""
    runtime: ClassVar[str] = ""
    """The place of its running trainers, `module:NAME` of a `batchbridge.kit.lifecycle.Runtime`; empty: it has none, or
    defines `attach` itself. The module is imported when a trainer is wrapped, and when a configuration is checked: only
    what it does to a trainer may import the framework."""
    texts: ClassVar[str] = ""
    """The place of the texts that the framework prints and no rule is about, `module:NAME`; see `error_texts`."""
    tries: ClassVar[str] = ""
    """The place of the run of its framework on a CPU, `module:NAME` of a `Trial`; see `trial`. Empty: there is none."""
    rule_table: ClassVar[str] = ""
    """The place of its rows of rules, `package:NAME`; see `rows`, `examples` and `titles`."""
    recorded_code: ClassVar[str] = ""
    """The place of the functions that `attach` depends on, `module:NAME` of a `Code`; see `code`."""
    enforced_fields: ClassVar[str] = ""
    """The place of the fields that `attach` brings about, `module:NAME` of a mapping from canonical field to whether a
    value of it is; see `enforces` and `batchbridge.kit.enforced_fields`."""
    no_run: ClassVar[tuple[str, ...]] = ()
    """Finding codes that say a file is not a run that anybody judges: fine-tuning, or another of the framework's
    programs. In a folder it is skipped."""
    undeclared: tuple[str, ...] = ()
    """Finding codes that say a key is none of the version's settings, whether the framework refuses or drops it: the
    release that declares the most of a file's keys is the one that it is shown under where nobody names one."""
    given_alone: tuple[str, ...] = ()
    """Keys of which nothing but whether they are given decides: a value that a script leaves open, and of which a part
    is written there, is one."""
    commits: ClassVar[Mapping[str, str]] = {}
    """Commits of git's that repositories pin, by their first twelve digits: the version that the code says there. They
    are read as that version is, between two releases."""
    elsewhere: tuple[str, ...] = ()
    """Finding codes that say a release cannot be the one that a program runs, for what else it imports: such releases
    are not judged where nobody names one."""
    mistyped: tuple[str, ...] = ()
    """Finding codes that say a value is none that its key takes."""
    fills_places: ClassVar[bool] = False
    """Whether `attach` enforces a `batchbridge.meaning.candidates.CandidatePlan`: offers candidates in its order and
    fills rollouts with those that rewards or timing keep. If not, such a spec is refused."""
    counts_places: ClassVar[bool] = False
    """Whether completions of an unwrapped run say their place in their rollout, so that mode "verify" takes such a
    spec, too: which prompts a rollout has is open there."""
    outside: ClassVar[str] = ""
    """The place of the table of what settings decide that no canonical field comes from, `module:NAME` of a mapping
    from a pattern of keys (`fnmatch`) to a text, or to a `SharedSetting` where other frameworks have such a one; see
    `decides` and `shared_settings`."""

    reports: ClassVar[str] = ""
    """The place of the function that reaches its trainers' own loggers, `module:NAME`; see `report`. Empty: they are
    not, and `wrap(report_to="trainer")` is refused."""

    packs: ClassVar[bool] = False
    """Whether `attach` can lay completions end to end, without padding; if not, `wrap(padding="free")` is refused."""

    finds_budgets: ClassVar[bool] = False
    """Whether `attach` can find a token budget while the run goes on; if not, `wrap(tokens_per_device="auto")` is
    refused."""

    measures_passes: ClassVar[str] = ""
    """The place of the function that measures the memory of a trainer's passes, `module:NAME`; see `measure_passes`.
    Empty: `batchbridge run --dry --memory` is refused."""

    resumes: ClassVar[str] = ""
    """The way in which the command of a run that died goes on from its newest checkpoint: what is added to it, or that
    it is the same. Empty: nobody says so to the user."""

    no_file: ClassVar[str] = ""
    """The reason why the framework has no configuration file of its own, as a sentence; see `file_schema`."""

    tells: ClassVar[DetectionFacts | None] = None
    """The facts by which its configurations are known; give the same to its `AdapterEntry`, so that the adapter need
    not be imported to detect them. None: `detect` is the adapter's own."""

    def detect(self, source: Source) -> float:
        """The certainty of the adapter that `source` is its framework's: 0 (no) to 1 (certain). Reads nothing else, but
        a file of settings that a command names. Default: what `tells` says."""
        assert self.tells is not None, "the loader takes no adapter that has neither"
        return self.tells.certainty(source)

    @abstractmethod
    def read(self, source: Source, context: Context) -> Reading:
        """Reads, without a framework import. Never raises for bad input: what is wrong is a finding."""

    def own_copy(self, source: Source) -> OwnCopy | None:
        """The copy of the framework that lies beside a source and is what it starts; imports nothing. Default: none is
        looked for."""
        return None

    @abstractmethod
    def check(self, reading: Reading) -> Sequence[Finding]:
        """The framework's own rules and known defects on this reading; `read` has not applied them yet."""

    @abstractmethod
    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        """The native configuration that says `spec`; `read` of it gives `spec` back. Raises `CannotWrite`.

        framework_version: what it is written for, one of `versions` (a caller sees to that); None: the newest that
        can say it. `Written.framework_version` says which it became.

        A spec that this adapter read comes back exactly. In any other, a None among `objective`, `carried` and
        `advantage` means unknown, and the framework's default may fill it in; every other field comes back as it is,
        None included, or is refused.
        """

    def enforces(self, path: str, value: object) -> bool:
        """Whether `attach` brings about `value` of the canonical field `path` where the configuration cannot say it.

        Conversions report such a field as patched instead of lost. Default: what `enforced_fields` names.
        """
        promises = _named(self.enforced_fields) if self.enforced_fields else {}
        return path in promises and bool(promises[path](value))

    def decides(self, key: str) -> str | None:
        """The part of a run that a native key decides where no canonical field comes from it: "the model", "the
        prompts"; "" where two runs that differ in it train alike; None: not known. Default: the first pattern of
        `outside` (`fnmatch`) that fits.
        """
        what = self._outside(key)
        return what.decides if isinstance(what, SharedSetting) else what

    def shared_settings(self) -> Mapping[str, SharedSetting]:
        """Settings outside the schema that `convert` carries over, by native key. Default: those of `outside`."""
        return {key: row for key, row in self._patterns().items() if isinstance(row, SharedSetting)}

    def unsaid_settings(self) -> Sequence[SharedSetting]:
        """Shared settings with a value that other frameworks have to be told where nobody gives them, see
        `SharedSetting.unsaid`; also those that the framework fixes without having the setting. Default: of
        `outside`."""
        shared = (row for row in self._patterns().values() if isinstance(row, SharedSetting))
        return [*{row.name: row for row in shared if row.unsaid is not None}.values()]

    def forms(self, values: Mapping[str, Any], framework_version: str, world_size: int) -> Mapping[str, str]:
        """Settings as text, as in `Written.text`, for a conversion that adds some to those of `write`. Default: none,
        and a conversion writes nothing but what the specification says."""
        return {}

    def _patterns(self) -> Mapping[str, str | SharedSetting]:
        patterns: Mapping[str, str | SharedSetting] = _named(self.outside) if self.outside else {}
        return patterns

    @cached_property
    def _outside(self) -> Callable[[str], str | SharedSetting | None]:
        """The first row of `outside` that fits a key; kept, since all versions of a file are asked for the same."""
        rows = tuple((_fitting(pattern), what) for pattern, what in self._patterns().items())

        @lru_cache(maxsize=4096)
        def first(key: str) -> str | SharedSetting | None:
            key = key.lstrip("+~")
            return next((what for fits, what in rows if fits(key)), None)

        return first

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """The unwrapped run's optimizer steps, predicted; `response_tokens[prompt, sample]` gives the lengths.

        Raises `ValueError` naming what the configuration leaves open. Default: consecutive completions in consecutive
        shares, where prompts are not shuffled.
        """
        from batchbridge.contract.native_steps import consecutive_steps

        if reading.spec is None:
            raise ValueError("the configuration leaves the run open")
        yield from consecutive_steps(reading.spec, dataset_size, response_tokens)

    def enforcement(self, reading: Reading) -> Enforcement:
        """Whether mode "enforce" would follow a run of this configuration, whose `reading.spec` is not None; from the
        reading alone, without an import of the framework. What `attach` refuses is never called enforced.

        Default: what the rows of the `runtime` say of a reading; without one, that nothing is followed.
        """
        if self.runtime:
            said: Enforcement = self._runtime().enforcement(
                reading, fills_places=self.fills_places, versions=self.enforced_versions
            )
            return said
        from batchbridge.contract.enforcement import without_runtime

        return without_runtime(self.framework, attaches=type(self).attach is not Adapter.attach)

    def never_wrapped(self, reading: Reading) -> bool:
        """Whether the run of a configuration is one whose trainer `wrap` takes in no mode, whatever is asked of it,
        although it takes others of that version: a conversion promises nothing of it.

        Default: False.
        """
        return False

    def started(self, reading: Reading) -> Reading:
        """The reading as mode "enforce" follows it, where a wrapped run fixes what the framework leaves to chance or to
        the next rollout; what a user asks for by `like` stays as it is.

        Default: what the `runtime` says; without one, `reading`.
        """
        if not self.runtime:
            return reading
        fixed: Reading = self._runtime().started(reading)
        return fixed

    def file_schema(self, version: str) -> Mapping[str, Any] | None:
        """JSON Schema (draft-07) of the framework's own configuration file in `version`, for editors: every key with
        what it takes, its default, unit and meaning. None: it has no such file (`no_file`), or no schema is made.

        It says no exactly where `read` finds a key that is not a setting, a value that is not of its key's kind, or a
        word that is not one of a setting's. Raises `ValueError` for a version that is not known. Default: None;
        `FramedAdapter` makes it of `settings_schema`, `TableAdapter` that of its rows.
        """
        return None

    def error_texts(self) -> Sequence[ErrorText]:
        """Texts that the framework prints and no rule is about, and what they mean, for `batchbridge doctor`; the text
        of a rule stands in its row. Default: what `texts` names."""
        found: Sequence[ErrorText] = _named(self.texts) if self.texts else ()
        return found

    def rows(self) -> Sequence[RuleRow]:
        """Rows of its rules: `batchbridge doctor` knows the messages that they quote. A row that names a rule of the
        core that it is an instance of (`core`) stands for it: the core's finding is left out of a reading that has the
        own one. No adapter can say that a rule of the core is wrong about its framework. Default: what `rule_table`
        names."""
        found: Sequence[RuleRow] = _named(self.rule_table) if self.rule_table else ()
        return found

    def native_check(self, reading: Reading) -> NativeCheck | None:
        """The construction of the framework's own configuration object of this reading, for `check --native`; it
        imports no framework itself. Default: None, there is none."""
        return None

    def trial(self) -> Trial | None:
        """The run of the framework itself on a CPU, for `batchbridge try`; imports no framework. Default: what `tries`
        names; None: there is none."""
        found: Trial | None = _named(self.tries) if self.tries else None
        return found

    def examples(self) -> Mapping[str, Mapping[str, Any]]:
        """The smallest configuration that breaks a rule, by code, for the rule's page: `values`, `argv` or the text of
        a `program`, `version`, and where they are needed `world_size` and `dataset_size`. Default: `examples.json`
        beside `rule_table`."""
        from importlib.resources import files

        if not self.rule_table:
            return {}
        file = files(self.rule_table.partition(":")[0]) / "examples.json"
        found: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        return found

    def titles(self) -> Mapping[str, RuleTitle]:
        """The titles of its rules, by code. Default: `titles.json` beside `rule_table`, or beside the adapter's own
        module where it has none."""
        from batchbridge.contract.error_text import titles_in

        return titles_in(self.rule_table.partition(":")[0] or type(self).__module__.rpartition(".")[0])

    def held(self) -> Held | None:
        """The framework's own functions that its meaning was compared with: `held.json` beside the adapter's module,
        which the tests of `batchbridge.testing.EvidenceContract` write. None: its author alone says what it means."""
        from pkgutil import get_data

        from batchbridge.contract.held import Held

        try:
            found = get_data(type(self).__module__.rpartition(".")[0], "held.json")
            return None if found is None else Held(**json.loads(found))
        except (OSError, TypeError, ValueError):
            return None

    def code(self) -> Code | None:
        """The framework's functions that `attach` depends on, with a record of their digests; see
        `batchbridge.kit.proven`. Imports no framework. Default: what `recorded_code` names."""
        found: Code | None = _named(self.recorded_code) if self.recorded_code else None
        return found

    def hooks(self) -> Mapping[str, str]:
        """The hooks of `batchbridge run` in each process of the framework's command: module ->
        `package.module:function`.

        The function is called with the module, right after it was imported, and an error of it is an error of the
        import. It reaches the place where the framework builds its trainer and calls
        `batchbridge.running.follow.follow` with the trainer. A module that is run with `python -m` is imported by
        nobody. Where workers are Ray's, name `{"ray": "batchbridge.kit:reach_workers"}`. Default: none,
        and the framework cannot be launched.
        """
        return {}

    def owns(self, trainer: object) -> bool:
        """Whether `trainer` is an object of this framework that `attach` takes. Imports nothing. Default: what `tells`
        says of its classes, and False where that says nothing."""
        return self.tells is not None and self.tells.trainers is not None and self.tells.may_own(trainer)

    def refuses(self, trainer: object) -> Mapping[str, str]:
        """The reasons why `attach` does not take a trainer that this framework knows by name and does not own, by the
        reason's name; empty: it is a stranger. Imports nothing. `wrap` asks where nobody owns the trainer."""
        return {}

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """The configuration of a constructed trainer, and its world and dataset sizes."""
        raise NotImplementedError(f"{self.framework}: no trainer objects")

    def check_attach(self, trainer: object, request: Request) -> None:
        """Refusal (`CannotAttach`) with every reason against `attach` that can be known without touching the trainer.

        `wrap` asks before it takes an earlier attachment off, and where there is no plan (`request.plan` is None in any
        mode), so that this hides no other reason. Without a `runtime` nothing is known beforehand.
        """
        if self.runtime:
            self._runtime().check(trainer, request)

    def allowable(self) -> Collection[str]:
        """The names of refusals that `allow` accepts. Default: those of the `runtime`."""
        names: Collection[str] = self._runtime().allowable if self.runtime else ()
        return names

    def gather(self, trainer: object, value: object) -> list[Any]:
        """Values of all processes whose trainers are wrapped together, in the order of their ranks; collective.
        `wrap` asks, so that what one process refuses, all do. Without a `runtime` this process is alone."""
        return self._runtime().gather(trainer, value) if self.runtime else [value]

    def attach(self, trainer: object, request: Request) -> Attachment:
        """Patches `trainer` as `request` says. See `batchbridge.running.wrap`."""
        if not self.runtime:
            raise NotImplementedError(f"{self.framework}: no trainer objects")
        attachment: Attachment = self._runtime().attach(trainer, request)
        return attachment

    def report(self, trainer: object, attachment: Attachment) -> Attachment:
        """The attachment of a trainer whose own loggers get the numbers of every optimizer step from now on, until it
        is detached; see `batchbridge.kit.reporting`. Only asked where `reports` is set, which names what does it.
        """
        reported: Attachment = _named(self.reports)(trainer, attachment)
        return reported

    def measure_passes(self, trainer: object) -> str:
        """The memory that forward and backward passes of a built trainer take, as lines for a person; the trainer is of
        no use afterwards. Only asked where `measures_passes` is set, which names what does it. Raises `CannotAttach`
        where this trainer's are not measured.
        """
        measured: str = _named(self.measures_passes)(trainer).text()
        return measured

    def _runtime(self) -> Any:
        """The `batchbridge.kit.lifecycle.Runtime` that `runtime` names."""
        return _named(self.runtime)


def _fitting(pattern: str) -> Callable[[str], bool]:
    """Whether a key fits: `fnmatchcase(key, pattern)`, which compiles a regular expression for every pattern."""
    head, star, tail = pattern.partition("*")
    if any(mark in head or mark in tail for mark in "*?["):
        middle = tail.removesuffix("*")
        if head or len(middle) + 1 != len(tail) or any(mark in middle for mark in "*?["):
            return lambda key: fnmatchcase(key, pattern)
        return lambda key: middle in key
    if not star:
        return pattern.__eq__
    return lambda key: len(key) >= len(head) + len(tail) and key.startswith(head) and key.endswith(tail)


def _named(place: str) -> Any:
    """The object that `module:NAME` names; the module is imported."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)

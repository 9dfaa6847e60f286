"""Tables of a framework's own rules: what a row is, and how rows become findings and known defects.

An adapter keeps a table in the order in which the framework itself comes to the rules, so that the first finding of
phase "config" is the error that a user would see. Nothing here knows what the tests look at; `F` stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from batchbridge.contract import plugins
from batchbridge.contract.error_text import ErrorText
from batchbridge.contract.reading import Defect
from batchbridge.frozen import dataclass
from batchbridge.kit.versions import holds
from batchbridge.meaning.findings import Finding, Fix, Phase, Severity, Where
from batchbridge.rules.nearest_numbers import Variable, neighbours

F = TypeVar("F")
PrintedTexts = ErrorText | tuple[ErrorText, ...] | None


@dataclass(frozen=True)
class Rule(Generic[F]):
    """One row. `test` gives the message where the rule is broken, else None; `retired` rows have none.

    `keys`: the settings to point at. `native`: what the framework says or does. `fixes`: ways out. `versions`: a range,
    see `batchbridge.kit.versions`; empty: all. `undecided`: the run cannot be told in the canonical schema. `standing`:
    it holds for every run of its kind, so that `explain` says it and `check` does not. `defect`: whether it is a defect
    of the framework; None: where the framework never reports it. `core`: the rule of the core that this one is an
    instance of, such as BB113: the core's finding is left out where this one is found. `text`: what `doctor` says where
    the framework printed `native`, beyond the row itself; several, where it prints several texts. `retired`: why the
    rule is judged no more; empty: it is.
    """

    code: str
    severity: Severity
    phase: Phase
    test: Callable[[F], str | None] | None
    keys: tuple[str, ...]
    native: str | Callable[[F], str] | None
    source: str
    fixes: Callable[[F], tuple[Fix, ...]] = lambda facts: ()
    versions: str = ""
    undecided: bool = False
    standing: bool = False
    defect: bool | None = None
    core: str = ""
    text: PrintedTexts = None
    retired: str = ""

    @property
    def is_defect(self) -> bool:
        """Whether something else is trained than one would think: `defect`, or that the framework never reports it."""
        if self.defect is not None or self.phase != "never":
            return bool(self.defect)
        return self.standing or self.severity == "warning" or (self.severity == "error" and not self.undecided)


class RuleKind(NamedTuple):
    """The properties that the rows of one kind have in common; called, it makes one.

    The framework stops: `IN_CONFIG`, `BUILDING` (the trainer), `STARTING` (its workers), `GENERATING`, `UPDATING`. It
    goes on: `SILENT`, and something else is trained than one would think; `WRONG`, which nobody can want; `NOTE`, worth
    knowing; `STANDING`, so in every run of its kind, which `explain` says and `check` does not; `OPEN`, and the
    canonical schema has no words for it.
    """

    severity: Severity
    phase: Phase
    undecided: bool = False
    standing: bool = False
    defect: bool | None = None
    versions: str = ""

    def __call__(
        self,
        code: str,
        test: Callable[[F], str | None],
        keys: tuple[str, ...],
        native: str | Callable[[F], str] | None,
        source: str,
        fixes: Callable[[F], tuple[Fix, ...]] = lambda facts: (),
        versions: str = "",
        core: str = "",
        text: PrintedTexts = None,
    ) -> Rule[F]:
        """A row; see `Rule`. versions: by default those of the kind."""
        return Rule(
            code,
            self.severity,
            self.phase,
            test,
            keys,
            native,
            source,
            fixes,
            versions or self.versions,
            self.undecided,
            self.standing,
            self.defect,
            core,
            text,
        )


IN_CONFIG = RuleKind("error", "config")
BUILDING = RuleKind("error", "construction")
STARTING = RuleKind("error", "worker_start")
GENERATING = RuleKind("error", "first_rollout")
UPDATING = RuleKind("error", "optimizer_step")
SILENT = RuleKind("warning", "never")
WRONG = RuleKind("error", "never")
NOTE = RuleKind("note", "never")
STANDING = RuleKind("note", "never", standing=True)
OPEN = RuleKind("error", "never", undecided=True)


@dataclass(frozen=True)
class SourcedTest(Generic[F]):
    """A test with what the framework says or does where it is broken, where that was read, and in which versions."""

    test: Callable[[F], str | None]
    native: str
    source: str
    versions: str


def says(native: str, source: str, versions: str = "") -> Callable[[Callable[[F], str | None]], SourcedTest[F]]:
    """The lower decorator of a test in `Rules`; see `Rule`."""
    return lambda test: SourcedTest(test, native, source, versions)


class Rules(list[Rule[F]]):
    """Rows in the order in which their tests are written, each row above its test.

        RULES = Rules[Facts]()

        @RULES.add(SILENT, "BB-TOY-020", "seed")
        @says("the generator is never seeded", "toy 2.0 train.py, main", ">=2")
        def _unread_seed(facts: Facts) -> str | None: ...

    A test may have several rows, for several ranges of versions: the lowest comes first.
    """

    def add(
        self,
        make: RuleKind,
        code: str,
        *keys: str,
        fixes: Callable[[F], tuple[Fix, ...]] = lambda facts: (),
        core: str = "",
        text: PrintedTexts = None,
    ) -> Callable[[SourcedTest[F]], Callable[[F], str | None]]:
        """The upper decorator of a test; see `Rule`."""

        def row(said: SourcedTest[F]) -> Callable[[F], str | None]:
            self.append(make(code, said.test, keys, said.native, said.source, fixes, said.versions, core, text))
            return said.test

        return row


CHECK_NATIVE = "the framework's own constructor says it: batchbridge check --native"
"""The way out of a retired rule, which only repeated what a constructor says of a setting that trains nothing."""


def retired(
    code: str,
    *keys: str,
    native: str,
    source: str,
    versions: str = "",
    phase: Phase = "config",
    reason: str = CHECK_NATIVE,
    text: PrintedTexts = None,
) -> Rule[Any]:
    """The row of a rule that is judged no more. Its code is never used again, and `doctor` still knows its `native`."""
    return Rule(code, "error", phase, None, keys, native, source, versions=versions, text=text, retired=reason)


def recorded_rules(table: Iterable[Mapping[str, Any]], code: str) -> Iterator[Rule[Mapping[str, Any]]]:
    """Rows from data such as a JSON file: settings whose values do not go together.

        {"code": 15, "phase": "config", "when": {"kl_loss": [true], "kl_reward": [true]}, "message": "not both",
         "native": "AssertionError", "source": "toy 1.0 check", "fix": {"kl_reward": false}}

    A row is broken where every setting of `when` has one of its values, or with {"not": [...]} none of them. What is
    reported never is a warning, all else an error, but where a row says its "severity". It may name the rule of the
    core that it is an instance of, as "core". code: the beginning of the codes.
    """
    for row in table:
        fixes = setting_fixes(row["fix"]) if row.get("fix") else ()
        make = RuleKind(row.get("severity", "warning" if row["phase"] == "never" else "error"), row["phase"])
        test, ways = partial(_recorded, row["when"], row["message"]), partial(_always, fixes)
        known = f"{code}-{row['code']:03}", test, tuple(row["when"]), row["native"], row["source"], ways
        yield make(*known, core=row.get("core", ""))


def meets(when: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether every setting of `when` has one of its values, or with {"not": [...]} none of them."""
    for key, values in when.items():
        wanted = not isinstance(values, Mapping)
        if (settings[key] in (values if wanted else values["not"])) != wanted:
            return False
    return True


def _recorded(when: Mapping[str, Any], message: str, settings: Mapping[str, Any]) -> str | None:
    return f"{', '.join(f'{key} = {settings[key]}' for key in when)}: {message}" if meets(when, settings) else None


def _always(fixes: tuple[Fix, ...], facts: Mapping[str, Any]) -> tuple[Fix, ...]:
    return fixes


def setting_fixes(*changes: Mapping[str, Any]) -> tuple[Fix, ...]:
    """Ways out, each of which changes the settings of one mapping."""
    return tuple(Fix(", ".join(f"{key} = {value}" for key, value in change.items()), change) for change in changes)


def nearest_fixes(
    native: Mapping[str, Any], keys: Sequence[str], legal: Callable[[Mapping[str, Any]], bool]
) -> tuple[Fix, ...]:
    """Ways out that change `keys` to the nearest legal integers; `legal` is asked about `native` with them changed."""
    sizes = [Variable(key, native[key]) for key in keys]
    return setting_fixes(*neighbours(sizes, lambda changed: legal({**native, **changed})))


def findings(
    table: Iterable[Rule[F]], facts: F, version: str, where: Callable[[tuple[str, ...]], tuple[Where, ...]]
) -> list[Finding]:
    """The rows of `table` that `facts` break under `version`, in its order; `where` gives the places of their keys."""
    found = []
    for rule, message in _broken((rule for rule in table if not rule.standing), facts, version):
        native = rule.native(facts) if callable(rule.native) else rule.native
        said = rule.code, rule.severity, rule.phase, message, where(rule.keys), rule.fixes(facts), native, rule.source
        found.append(Finding(*said, undecided=rule.undecided))
    return found


def checked(
    framework: str,
    table: Iterable[Rule[F]],
    facts: F,
    version: str,
    where: Callable[[tuple[str, ...]], tuple[Where, ...]],
) -> list[Finding]:
    """Findings of the table's rows and, behind them, of those that plugins add (`batchbridge_rules`)."""
    rows, failures = added(framework, version)
    return [*findings([*table, *rows], facts, version, where), *failures]


def added(framework: str, version: str) -> tuple[list[Rule[Any]], list[Finding]]:
    """The rows that plugins add about a version (`batchbridge_rules`), and a finding for each plugin that failed."""
    answers, failures = plugins.call("batchbridge_rules", framework=framework, version=version)
    return [row for _, rows in answers for row in rows], failures


def defects(table: Iterable[Rule[F]], facts: F, version: str) -> tuple[Defect, ...]:
    """The broken rows that are defects of the framework, for `Behaviour.defects`."""
    known = [rule for rule in table if rule.is_defect]
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source, numbers=numbers_of(message))
        for rule, message in _broken(known, facts, version)
    )


_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")


def numbers_of(message: str) -> tuple[float, ...]:
    """The numbers of a table row's message, for `Defect.numbers`; versions (`1.16.0`) and names (`beta1`) are none."""
    return tuple(float(text.replace(",", "")) for text in _NUMBER.findall(message))


def _broken(table: Iterable[Rule[F]], facts: F, version: str) -> Iterator[tuple[Rule[F], str]]:
    for rule in table:
        if rule.test is None or not holds(rule.versions, version):
            continue
        if (message := rule.test(facts)) is not None:
            yield rule, message

"""Cases, the author's attributes and ways of reading, which the laws of the contract share."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, get_args

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, NativeRow, Reading, Source, Written
from batchbridge.kit.rule_table import Rule
from batchbridge.meaning.findings import Finding, Phase, Severity
from batchbridge.meaning.spec import Spec
from batchbridge.testing.hostile import HOSTILE

CODE = re.compile(r"BB(-[A-Z][A-Z0-9_]*-)?\d{3}")
"""The form of a finding's code: BB101 for the core's, BB-NAME-003 for an adapter's."""

MOST_STEPS = 50
"""Native steps that are looked at."""


@dataclass(frozen=True, kw_only=True)
class ValidCase:
    """A configuration that the framework takes.

    context: gives version and world size unless the source does. spec: what it means; None: not checked.
    source_has_world_size: the source itself says the world size, so that leaving it out of the context changes nothing.
    """

    name: str
    source: Source
    context: Context
    spec: Spec | None = None
    source_has_world_size: bool = False


@dataclass(frozen=True, kw_only=True)
class InvalidCase:
    """A configuration that is an error. codes: findings that must be among those of `read` and `check`. verdict:
    `undecided` where what is wrong, a version that is not known, decides nothing about the settings."""

    name: str
    source: Source
    context: Context
    codes: tuple[str, ...]
    verdict: Literal["invalid", "undecided"] = "invalid"

    @classmethod
    def each(
        cls, breaking: Mapping[str, Source], context: Context, *, verdict: Literal["invalid", "undecided"] = "invalid"
    ) -> tuple[InvalidCase, ...]:
        """A case for each code, of the configuration that breaks its rule."""
        return tuple(
            cls(name=f"rule {code}", source=source, context=context, codes=(code,), verdict=verdict)
            for code, source in breaking.items()
        )


@dataclass(frozen=True, kw_only=True)
class UndecidedCase:
    """A configuration of which the adapter must say that it leaves the run open, and no more.

    codes: the findings that say so, all of them. reason: a text that stands in one of their messages. settled: the
    values of settings by which the run is no longer open, where there are such: what the findings name is then what was
    open.
    """

    name: str
    source: Source
    context: Context
    codes: tuple[str, ...]
    reason: str
    settled: Mapping[str, Any] = field(default_factory=dict)


Case = ValidCase | InvalidCase | UndecidedCase


class Laws:
    """The attributes that an author fills in, and what laws ask an adapter by; see `AdapterContract`."""

    adapter_class: ClassVar[type[Adapter]]
    framework_modules: ClassVar[tuple[str, ...]] = ()
    """Top-level modules of the framework: reading, checking and writing must not import them."""
    unknown_version: ClassVar[str]
    """A version that the adapter does not know."""
    written_version: ClassVar[str | None] = None
    """The version that `write` writes for when it is told none and names none; None if the framework has one only."""
    valid: ClassVar[Sequence[ValidCase]]
    invalid: ClassVar[Sequence[InvalidCase]]
    undecided: ClassVar[Sequence[UndecidedCase]] = ()
    """Configurations that leave the run open, such as those of rules that say so."""
    foreign: ClassVar[Sequence[Source]] = ()
    """Other frameworks' configurations, beside those of `batchbridge.testing.hostile.FOREIGN`: `detect` must be less
    sure of them than of every valid case."""
    unwritable: ClassVar[Sequence[Spec]] = ()
    """Specs that the framework cannot say."""
    refused: ClassVar[Mapping[str, ValidCase]] = {}
    """Name of a refusal of the `runtime` to a configuration whose trainer is refused by it, or may be."""
    refused_otherwise: ClassVar[Collection[str]] = ()
    """Refusals that no configuration leads to: of another specification that is asked for, or of what a trainer has
    become since it was built."""
    rules: ClassVar[Sequence[Rule[Any]]] = ()
    """Rows of `batchbridge.kit.rule_table` beside those of `Adapter.rows`: some case or example shows each code, and
    not every one does."""
    codes_without_a_case: ClassVar[Collection[str]] = ()
    """Codes of rules that other tests show."""
    meanings: ClassVar[Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]] = ()
    """Other settings for the first valid case with a `spec`, None where one is left out, and the canonical fields that
    they change in it, both written down: for words and defaults that no valid case has."""
    excused: ClassVar[Mapping[str, str]] = {}
    """Exceptions of the laws of single settings, and why: a word of a row ("grpo.kind = 'plain'"), or a setting of
    which no case shows the default, or of which other values are read and cannot be written."""
    idle: ClassVar[Mapping[str, str]] = {}
    """Settings that decide nothing in any case, and why they are rows all the same. One that a case shows to decide
    something, or that no case has, is an error here."""
    unreadable_forms: ClassVar[Collection[str]] = ()
    """Names of forms in `Written.text` that nobody reads as a file, such as a call in Python; never yaml, json, toml,
    argv."""
    inherits: ClassVar[str] = ""
    """The key by which a file of the framework's names one that it inherits; empty: no file does."""
    launchers_key: ClassVar[str | None] = None
    """The key by which fixes name the number of devices, where a launcher is told it and no configuration has it."""
    corpus: ClassVar[Path | None] = None
    """A folder with real configurations of the framework: none may raise, and what can be read can be written."""
    dataset_size: ClassVar[int] = 64
    """Prompts, where a case's context gives none and native steps are asked for."""

    def _judge(self, source: Source, context: Context) -> tuple[Reading, list[Finding]]:
        """The reading, and the findings of `read` and `check` together."""
        adapter = self.adapter_class()
        reading = adapter.read(source, context)
        assert isinstance(reading, Reading), f"read gave a {type(reading).__name__}"
        return reading, [*reading.findings, *adapter.check(reading)]

    def _valid(self, case: ValidCase) -> Reading:
        return self.adapter_class().read(case.source, case.context)

    def _read_hostile(self, case: ValidCase, path: tuple[str, ...], hostile: str) -> None:
        source = replace(case.source, values=with_value(case.source.values, path, HOSTILE[hostile]))
        try:
            certainty(self.adapter_class(), source)
            _, findings = self._judge(source, case.context)
        except Exception as error:
            raise AssertionError(f"{'.'.join(path)} = {hostile}: {type(error).__name__}: {error}") from error
        check_findings(findings)

    def _read_back(self, written: Written, spec: Spec, case: ValidCase) -> Spec:
        back = self.adapter_class().read(Source(values=written.values), self._context_of(written, spec, case))
        told = [f"{finding.code}: {finding.message}" for finding in back.findings]
        assert back.spec is not None, f"written as what cannot be read: {told}"
        return back.spec

    def _context_of(self, written: Written, spec: Spec, case: ValidCase) -> Context:
        return Context(
            framework_version=written.framework_version or self.written_version,
            world_size=spec.topology.world_size,
            dataset_size=case.context.dataset_size,
        )

    def _dataset_size(self, case: ValidCase) -> int:
        return case.context.dataset_size or self.dataset_size

    def _native_steps(self, case: ValidCase) -> list[Any]:
        """The first native steps. The law is skipped where the adapter says by `ValueError` what is left open."""
        size, group = self._dataset_size(case), spec_of(self._valid(case)).rollout.completions_per_prompt
        lengths = {(p, s): scripted_tokens(p, s) for p in range(size) for s in range(group)}
        try:
            steps = self.adapter_class().native_steps(self._valid(case), size, lengths)
            return list(itertools.islice(steps, MOST_STEPS))
        except ValueError as refused:
            reason = str(refused)
        assert reason.strip(), "native_steps refused without a reason"
        return vacuous(f"native_steps leaves the case open: {reason}")

    def _rows(self, case: ValidCase) -> list[NativeRow]:
        return [row for step in self._native_steps(case) for row in step.rows]


def vacuous(reason: str) -> NoReturn:
    """Leaves a law that would hold of anything here: pytest counts it, and `-rs` prints why."""
    import pytest

    pytest.skip(reason)


def scripted_tokens(prompt: int, sample: int) -> int:
    """Scripted response tokens: ragged, and some completions have none."""
    return (7 * prompt + 5 * sample) % 11


def certainty(adapter: Adapter, source: Source) -> float:
    sure = adapter.detect(source)
    inside = isinstance(sure, (int, float)) and 0 <= sure <= 1
    assert inside, f"detect gave {sure!r}, not 0 to 1"
    return float(sure)


def spec_of(reading: Reading) -> Spec:
    assert reading.spec is not None, f"no spec: {[f.message for f in reading.findings]}"
    return reading.spec


def contents(source: Source) -> Any:
    return copy.deepcopy((source.values, source.lines, source.argv, source.problems))


def is_mapping(source: Source) -> bool:
    """Whether a source is settings alone, as a file has them: no command and no object."""
    return bool(source.values) and not source.argv and source.native is None


def as_file(source: Source, path: Path = Path("recipe.yaml")) -> Source:
    """A mapping as a file in which every setting has a line of its own."""
    whole = list(keys_in(source.values))
    groups = {keys[:-1] for keys in whole}
    lines = {".".join(keys): line for line, keys in enumerate((keys for keys in whole if keys not in groups), 3)}
    return replace(source, path=path, lines=lines)


def keys_in(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a nested mapping, groups included."""
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from keys_in(value, (*prefix, key))


def check_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        assert isinstance(finding, Finding), f"{finding!r} is not a Finding"
        assert CODE.fullmatch(finding.code), f"code {finding.code!r} is not like BB101 or BB-NAME-003"
        assert finding.severity in get_args(Severity), f"{finding.code}: severity {finding.severity!r}"
        assert finding.phase in get_args(Phase), f"{finding.code}: phase {finding.phase!r}"
        assert finding.message.strip(), f"{finding.code}: no message"
        assert all(fix.text.strip() for fix in finding.fixes), f"{finding.code}: a fix without text"


def differences(wanted: Spec, got: Spec | None) -> str:
    if got is None:
        return "no spec at all"
    one, other = wanted.values, got.values
    paths = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    return "; ".join(f"{path}: wanted {one.get(path)!r}, got {other.get(path)!r}" for path in paths)


def with_value(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, rest = path[0], path[1:]
    return {**values, head: with_value(values[head], rest, value) if rest else value}


def other_values(value: Any) -> list[Any]:
    """Other values of a value's type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2, value + 1, 1, 0]
    if isinstance(value, float):
        return [2 * value, value / 2, 0.5, 0.0]
    return [1, 0.5, 64, True] if value is None else []


def distinct(values: list[Any], but: Any) -> list[Any]:
    """Values that are given at all, each once, without `but`."""
    found: list[Any] = []
    for value in values:
        if value is not None and value != but and value not in found:
            found.append(value)
    return found

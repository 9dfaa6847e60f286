"""The contract of `batchbridge.contract.adapter.Adapter` as tests that every adapter author runs.

    class TestMyAdapter(AdapterContract):
        adapter_class = MyAdapter
        framework_modules = ("my_framework",)
        unknown_version = "99.0"
        written_version = "2.1"
        valid = (ValidCase("recipe", Source(values={...}), Context(framework_version="2.1", world_size=8)),)
        invalid = (InvalidCase("odd split", Source(values={...}), Context(...), codes=("BB-MINE-003",)),)

pytest collects a few hundred checks from that. Nothing here imports pytest or hypothesis: hostile input is enumerated,
so a failure names its input and repeats.
"""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, get_args, get_origin, get_type_hints

from packaging.specifiers import SpecifierSet

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Behaviour, Context, NativeRow, Reading, Source, Written
from batchbridge.errors import CannotWrite
from batchbridge.kit.rule_table import Rule
from batchbridge.kit.writing import UNKNOWN
from batchbridge.meaning.findings import Finding, Phase, Severity, verdict
from batchbridge.meaning.spec import DenominatorScope, LossTerm, Spec, walk
from batchbridge.reading.arguments import argument_keys, parse_arguments
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source

if TYPE_CHECKING:
    import pytest

CODE = re.compile(r"BB(-[A-Z][A-Z0-9_]*-)?\d{3}")
"""How a finding's code looks: BB101 for the core's, BB-NAME-003 for an adapter's."""


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
    """A configuration that is an error. codes: findings that must be among those of `read` and `check`."""

    name: str
    source: Source
    context: Context
    codes: tuple[str, ...]


HOSTILE: Mapping[str, Any] = {
    "none": None,
    "empty text": "",
    "text": "not a number",
    "text with a number": "1e400",
    "control characters": "\x00\n\ud7ff",
    "long text": "9" * 5000,
    "interpolation": "${oc.env:HOME}",
    "true": True,
    "zero": 0,
    "negative": -1,
    "huge": 10**40,
    "float": 2.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "list": [1, [2, [3]]],
    "empty list": [],
    "mapping": {"a": {"b": None}, "": 1},
    "deep": None,  # filled below
    "object": object(),
    "bytes": b"\xff\xfe",
}
"""Values that no configuration should hold, by name."""

_deep: Any = 1
for _ in range(200):
    _deep = {"x": [_deep]}
HOSTILE = {**HOSTILE, "deep": _deep}

HOSTILE_SOURCES: Mapping[str, Source] = {
    "empty": Source(),
    "foreign object": Source(native=object()),
    "class": Source(native=int),
    "missing file": Source(path=Path("/nonexistent/recipe.yaml")),
    "odd arguments": Source(argv=("", "--", "=", "--=1", "--a", "--a=b=c", "a.b.c=", "\x00", "+x=1", "~y")),
    "keys that are no text": Source(values={1: 2, None: 3, ("a",): 4}),  # type: ignore[dict-item]  # hostile on purpose
    "odd keys": Source(values={"": 1, ".": 2, "..a": 3, "a.": 4, "a..b": 5, "é\n": 6}),
    "lines of other keys": Source(values={"x": 1}, lines={"y": 3}),
}
"""Whole inputs that are nobody's configuration, by name."""


_LATER = "9999.1.1"
"""A version that is newer than any."""


class AdapterContract:
    """Subclass it as `Test...`, fill the attributes, and pytest runs the contract; see the module."""

    adapter_class: ClassVar[type[Adapter]]
    framework_modules: ClassVar[tuple[str, ...]] = ()
    """Top-level modules of the framework: reading, checking and writing must not import them."""
    unknown_version: ClassVar[str]
    """A version that the adapter does not know."""
    written_version: ClassVar[str | None] = None
    """The version that `write` writes for when it is told none and names none; None if the framework has one only."""
    valid: ClassVar[Sequence[ValidCase]]
    invalid: ClassVar[Sequence[InvalidCase]]
    foreign: ClassVar[Sequence[Source]] = ()
    """Other frameworks' configurations: `detect` must be less sure of them than of every valid case."""
    unwritable: ClassVar[Sequence[Spec]] = ()
    """Specs that the framework cannot say."""
    rules: ClassVar[Sequence[Rule[Any]]] = ()
    """The adapter's rows of `batchbridge.kit.rule_table`: each code that is an error needs an invalid case."""
    codes_without_a_case: ClassVar[Collection[str]] = ()
    """Codes of `rules` that other tests show."""
    unreadable_forms: ClassVar[Collection[str]] = ()
    """Names of forms in `Written.text` that nobody reads as a file, such as a call in Python."""
    launchers_key: ClassVar[str | None] = None
    """The key by which fixes name the number of devices, where a launcher is told it and no configuration has it."""
    corpus: ClassVar[Path | None] = None
    """A folder with real configurations of the framework: none may raise, and what can be read can be written."""
    dataset_size: ClassVar[int] = 64
    """Prompts, where a case's context gives none and native steps are asked for."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest: one test per case, hostile value, field."""
        cases: list[ValidCase | InvalidCase] = [*self.valid, *self.invalid]
        tables: dict[str, tuple[Sequence[Any], Sequence[str]]] = {
            "valid_case": (self.valid, [case.name for case in self.valid]),
            "invalid_case": (self.invalid, [case.name for case in self.invalid]),
            "any_case": (cases, [case.name for case in cases]),
            "hostile": (list(HOSTILE), list(HOSTILE)),
            "hostile_source": (list(HOSTILE_SOURCES), list(HOSTILE_SOURCES)),
            "change": (_CHANGES, [f"{path}={_short(value)}" for path, value in _CHANGES]),
            "foreign_source": (self.foreign, [str(i) for i in range(len(self.foreign))]),
            "corpus_file": (files := _files_in(self.corpus), [file.name for file in files]),
            "unwritable_spec": (self.unwritable, [str(i) for i in range(len(self.unwritable))]),
        }
        for name, (values, ids) in tables.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values, ids=ids)

    # ---- the class

    def test_it_is_made_without_arguments(self) -> None:
        assert isinstance(self.adapter_class(), Adapter), "adapter_class is no Adapter"

    def test_its_framework_has_a_plain_name(self) -> None:
        plain = re.fullmatch(r"[a-z][a-z0-9_]*", self.adapter_class.framework)
        assert plain, "framework: lower case, digits, underscores"

    def test_its_versions_are_specifiers(self) -> None:
        SpecifierSet(self.adapter_class.versions)
        SpecifierSet(self.adapter_class.enforced_versions)

    def test_the_unknown_version_is_outside_its_versions(self) -> None:
        assert self.unknown_version not in SpecifierSet(self.adapter_class.versions), "unknown_version is a known one"

    def test_it_is_tested_with_valid_and_invalid_cases(self) -> None:
        assert len(self.valid) > 0, "valid: at least one case"
        assert len(self.invalid) > 0, "invalid: at least one case"
        assert any(case.spec is not None for case in self.valid), "valid: at least one case with its spec written down"

    def test_every_rule_has_a_case(self) -> None:
        if not self.rules:
            _vacuous("no `rules` are given, so that rules without a case are not found")
        shown = {code for case in self.invalid for code in case.codes} | set(self.codes_without_a_case)
        bare = sorted({rule.code for rule in self.rules if rule.severity == "error"} - shown)
        assert not bare, f"no invalid case shows {', '.join(bare)}"

    # ---- detect

    def test_detect_gives_a_share_of_certainty(self, any_case: ValidCase | InvalidCase) -> None:
        _sure(self.adapter_class(), any_case.source)

    def test_detect_recognises_its_own(self, valid_case: ValidCase) -> None:
        assert _sure(self.adapter_class(), valid_case.source) > 0, "detect is 0 for a valid case"

    def test_detect_says_the_same_twice_and_changes_nothing(self, any_case: ValidCase | InvalidCase) -> None:
        adapter, before = self.adapter_class(), _values(any_case.source)
        first = adapter.detect(any_case.source)
        assert adapter.detect(any_case.source) == first == self.adapter_class().detect(any_case.source), "detect varies"
        assert _values(any_case.source) == before, "detect changed its source"

    def test_detect_takes_any_input(self, hostile_source: str) -> None:
        _sure(self.adapter_class(), HOSTILE_SOURCES[hostile_source])

    def test_detect_is_less_sure_of_others(self, foreign_source: Source) -> None:
        adapter = self.adapter_class()
        least = min(adapter.detect(case.source) for case in self.valid)
        assert adapter.detect(foreign_source) < least, f"as sure of a foreign source as of an own one ({least})"

    # ---- read

    def test_a_valid_case_is_valid(self, valid_case: ValidCase) -> None:
        reading, findings = self._judge(valid_case.source, valid_case.context)
        errors = [f"{f.code}: {f.message}" for f in findings if f.severity == "error" or f.undecided]
        assert verdict(findings) == "valid", f"verdict {verdict(findings)}: {errors}"
        assert reading.spec is not None, "valid, but no spec"
        assert reading.behaviour is not None, "valid, but no behaviour"
        assert reading.native, "valid, but no native settings"

    def test_a_valid_case_means_its_spec(self, valid_case: ValidCase) -> None:
        spec = self._valid(valid_case).spec
        if valid_case.spec is not None:
            assert spec == valid_case.spec, _differences(valid_case.spec, spec)

    def test_a_reading_names_its_framework_and_version(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        assert reading.framework == self.adapter_class.framework, "reading.framework is another's"
        wanted = valid_case.context.framework_version
        assert wanted in (None, reading.framework_version), f"version {reading.framework_version}, asked {wanted}"
        assert reading.dataset_size == valid_case.context.dataset_size, "dataset_size is not the context's"

    def test_reading_twice_gives_the_same(self, any_case: ValidCase | InvalidCase) -> None:
        before = _values(any_case.source)
        first = self.adapter_class().read(any_case.source, any_case.context)
        adapter = self.adapter_class()
        adapter.read(any_case.source, any_case.context)
        assert adapter.read(any_case.source, any_case.context).to_dict() == first.to_dict(), "read varies"
        assert _values(any_case.source) == before, "read changed its source"

    def test_a_reading_is_json(self, any_case: ValidCase | InvalidCase) -> None:
        reading, findings = self._judge(any_case.source, any_case.context)
        json.dumps(replace(reading, findings=tuple(findings)).to_dict())

    def test_a_spec_survives_json(self, valid_case: ValidCase) -> None:
        spec = _spec(self._valid(valid_case))
        assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec, "a field has a type that JSON changes"

    def test_every_field_that_is_not_the_schemas_default_has_a_provenance(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        said = {path for path, value, _ in walk(_spec(reading)) if path not in _DEFAULTS or _DEFAULTS[path] != value}
        missing = sorted(said - set(reading.provenance))
        assert not missing, f"no provenance for {missing}"

    def test_a_provenance_has_the_native_value(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        for path, origin in reading.provenance.items():
            if origin.origin == "default" and origin.key is not None and origin.key in reading.native:
                native = reading.native[origin.key]
                assert origin.value == native, f"provenance of {path}: {origin.key} = {origin.value!r}, not {native!r}"

    def test_a_derived_provenance_names_the_keys_of_its_formula(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        for path, origin in reading.provenance.items():
            assert all(origin.keys), f"provenance of {path}: an empty native key"
            said = {key for key in reading.native if len(key) > 3 and _stands_in(key, origin.detail)}
            if origin.origin == "derived" and said and not origin.keys:
                raise AssertionError(
                    f"provenance of {path}: {origin.detail!r} speaks of {sorted(said)}, keys names none"
                )

    def test_a_provenance_names_file_and_line(self, valid_case: ValidCase) -> None:
        source, path = valid_case.source, Path("recipe.yaml")
        if source.argv or source.native is not None or not source.values:
            _vacuous("the case is no file")
        leaves = [
            ".".join(path) for path in _leaves(source.values) if not isinstance(_at(source.values, path), Mapping)
        ]
        lines = {key: line for line, key in enumerate(leaves, 3)}
        reading = self.adapter_class().read(replace(source, path=path, lines=lines), valid_case.context)
        placed = {of: o for of, o in reading.provenance.items() if o.key in lines and o.origin not in _WITHOUT_A_PLACE}
        assert placed, "no field comes from a line of the file"
        for field, origin in placed.items():
            where = f"provenance of {field}"
            assert origin.origin == "file", f"{where}: {origin.key} stands in a file, and its origin is {origin.origin}"
            wanted = (str(path), lines[origin.key or ""])
            assert (origin.file, origin.line) == wanted, f"{where}: {origin.file}:{origin.line}, not {wanted}"

    def test_a_value_that_a_script_leaves_open_leaves_what_comes_from_it_open(self, valid_case: ValidCase) -> None:
        if valid_case.source.argv or valid_case.source.native is not None:
            _vacuous("the case is no mapping")
        known = self._valid(valid_case).provenance
        keys = {key for origin in known.values() for key in origin.keys} & set(valid_case.source.values)
        if not keys:
            _vacuous("no field comes from a key at the top of the case")
        for key in sorted(keys):
            source = replace(valid_case.source, unknown={key: ("VARIABLE",)})
            reading = read_source(source, self.adapter_class(), valid_case.context)
            assert reading.verdict != "valid", f"{key} is open, and the reading is valid"

    def test_every_provenance_is_of_a_field(self, any_case: ValidCase | InvalidCase) -> None:
        reading = self.adapter_class().read(any_case.source, any_case.context)
        unknown = sorted(set(reading.provenance) - _PATHS)
        assert not unknown, f"provenance for what is no field: {unknown}"

    def test_every_provenance_says_where_from(self, any_case: ValidCase | InvalidCase) -> None:
        reading = self.adapter_class().read(any_case.source, any_case.context)
        for path, origin in reading.provenance.items():
            assert origin.detail.strip(), f"provenance of {path}: no detail"
            assert origin.origin in ("file", "argument", "object", "default", "derived"), f"provenance of {path}"
            assert origin.line is None or origin.file is not None, f"provenance of {path}: a line without a file"

    def test_a_behaviour_is_told_in_full(self, valid_case: ValidCase) -> None:
        behaviour = self._valid(valid_case).behaviour
        assert isinstance(behaviour, Behaviour)
        for name in ("order", "membership", "denominator_formula", "lr_tick", "resume", "source"):
            assert getattr(behaviour, name).strip(), f"behaviour.{name} is empty"
        assert behaviour.denominator_scope in get_args(DenominatorScope), "behaviour.denominator_scope"
        for defect in behaviour.defects:
            assert CODE.fullmatch(defect.code), f"defect code {defect.code}"
            assert defect.source.strip(), f"defect {defect.code} has no source"

    def test_an_unknown_version_fails_closed(self, valid_case: ValidCase) -> None:
        context = replace(valid_case.context, framework_version=self.unknown_version)
        reading, findings = self._judge(valid_case.source, context)
        assert verdict(findings) != "valid", "an unknown version is valid"
        assert reading.spec is None, "a spec from an unknown version: the same keys may mean other things"
        assert reading.behaviour is None, "a behaviour of an unknown version"
        told = [" ".join([finding.message, *map(str, finding.where)]) for finding in findings]
        assert any(self.unknown_version in text for text in told), f"no finding names version {self.unknown_version}"

    def test_a_version_newer_than_the_newest_is_read_as_it_with_one_warning(self, valid_case: ValidCase) -> None:
        newest = self.adapter_class.newest_version
        if not newest:
            _vacuous("the adapter has no `newest_version`: every version has its own tables")
        asked, later = ({**vars(valid_case.context), "framework_version": version} for version in (newest, _LATER))
        known, known_findings = self._judge(valid_case.source, Context(**asked))
        if known.spec is None:
            _vacuous("a case of older versions only")
        reading, findings = self._judge(valid_case.source, Context(**later))
        assert reading.framework_version == known.framework_version, "another table than the newest"
        assert (reading.spec, verdict(findings)) == (known.spec, verdict(known_findings)), "another meaning or verdict"
        more = [finding for finding in findings if finding not in known_findings]
        assert len(more) == 1, f"{len(more)} findings more than for the newest version"
        assert more[0].severity == "warning", "a newer version is a warning"
        assert newest in more[0].message, "the warning does not name the version that is read"
        assert _LATER in more[0].message, "the warning does not name the version that was asked for"

    def test_a_missing_world_size_leaves_it_undecided(self, valid_case: ValidCase) -> None:
        if valid_case.source_has_world_size:
            _vacuous("the source says the world size")
        reading, findings = self._judge(valid_case.source, replace(valid_case.context, world_size=None))
        assert verdict(findings) == "undecided", f"verdict {verdict(findings)} without a world size"
        assert reading.spec is None, "a spec without a world size"

    def test_what_the_loader_found_is_kept(self, valid_case: ValidCase) -> None:
        problem = Finding("BB999", "error", "config", "broken input")
        reading = self.adapter_class().read(replace(valid_case.source, problems=(problem,)), valid_case.context)
        assert problem in reading.findings, "source.problems are lost"

    # ---- hostile input

    def test_no_whole_input_makes_it_raise(self, hostile_source: str) -> None:
        context = Context(framework_version=self.written_version, world_size=8)
        _, findings = self._judge(HOSTILE_SOURCES[hostile_source], context)
        _check_findings(findings)

    def test_no_value_makes_it_raise(self, hostile: str) -> None:
        for case in self.valid:
            for path in _leaves(case.source.values):
                self._read_hostile(case, path, hostile)

    def test_no_value_of_an_unset_key_makes_it_raise(self, hostile: str) -> None:
        case = self.valid[0]
        keys = [key for key in self._valid(case).native if key not in case.source.values]
        step = max(len(HOSTILE) // 4, 1)  # every key meets a quarter of the values: there may be hundreds of keys
        for key in keys[list(HOSTILE).index(hostile) % step :: step]:
            self._read_hostile(case, (key,), hostile)

    def test_no_context_makes_it_raise(self, valid_case: ValidCase) -> None:
        for version in (None, "", "not a version", "0", self.unknown_version):
            for world_size in (None, -1, 0, 7, 10**12):
                for dataset_size in (None, -1, 0, 1, 10**18):
                    context = Context(framework_version=version, world_size=world_size, dataset_size=dataset_size)
                    _check_findings(self._judge(valid_case.source, context)[1])

    # ---- findings

    def test_an_invalid_case_is_invalid_with_its_codes(self, invalid_case: InvalidCase) -> None:
        _, findings = self._judge(invalid_case.source, invalid_case.context)
        codes = {finding.code for finding in findings}
        assert set(invalid_case.codes) <= codes, f"expected {invalid_case.codes}, found {sorted(codes)}"
        assert verdict(findings) == "invalid", f"verdict {verdict(findings)}"

    def test_findings_are_well_formed(self, any_case: ValidCase | InvalidCase) -> None:
        _check_findings(self._judge(any_case.source, any_case.context)[1])

    def test_errors_name_a_place_in_the_users_own_keys(self, invalid_case: InvalidCase) -> None:
        reading, findings = self._judge(invalid_case.source, invalid_case.context)
        for finding in _errors(findings):
            assert any(w.key or w.file for w in finding.where), f"{finding.code}: names no key and no file"
            ours = [w.key for w in finding.where if w.key in _PATHS and w.key not in reading.native]
            assert not ours, f"{finding.code}: {ours} are canonical fields, not the user's keys"

    def test_errors_offer_a_fix_or_what_the_framework_says(self, invalid_case: InvalidCase) -> None:
        for finding in _errors(self._judge(invalid_case.source, invalid_case.context)[1]):
            assert finding.fixes or finding.native, f"{finding.code}: neither a fix nor the native message"

    def test_a_fix_fixes(self, invalid_case: InvalidCase) -> None:
        findings = self._judge(invalid_case.source, invalid_case.context)[1]
        fixes = [(finding.code, fix) for finding in _errors(findings) for fix in finding.fixes if fix.changes]
        if not fixes:
            _vacuous("no fix of this case changes keys")
        for code, fix in fixes:
            changes = {key: value for key, value in fix.changes.items() if key != self.launchers_key}
            devices = fix.changes.get(self.launchers_key) if self.launchers_key else None
            changed = _changed(invalid_case.source, changes)
            # Where the fix changes the devices in the configuration, the context's number stands against it.
            contexts = (
                replace(invalid_case.context, world_size=devices or invalid_case.context.world_size),
                replace(invalid_case.context, world_size=None),
            )
            after = [self._judge(changed, context)[1] for context in contexts]
            told = f"{code}: {fix.text!r} ({dict(fix.changes)}) does not fix it"
            assert any(_mends(code, findings, found) for found in after), told

    def test_check_says_the_same_twice_and_changes_nothing(self, any_case: ValidCase | InvalidCase) -> None:
        adapter = self.adapter_class()
        reading = adapter.read(any_case.source, any_case.context)
        before = reading.to_dict()
        first = list(adapter.check(reading))
        assert list(adapter.check(reading)) == first == list(self.adapter_class().check(reading)), "check varies"
        assert reading.to_dict() == before, "check changed the reading"

    def test_read_leaves_the_rules_to_check(self, any_case: ValidCase | InvalidCase) -> None:
        adapter = self.adapter_class()
        reading = adapter.read(any_case.source, any_case.context)
        twice = [finding.code for finding in adapter.check(reading) if finding in reading.findings]
        assert not twice, f"reported by read and again by check: {twice}"

    # ---- write

    def test_what_was_read_can_be_written_and_read_again(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        spec, version = _spec(reading), reading.framework_version
        again = self._read_back(self.adapter_class().write(spec, version), spec, valid_case)
        assert again == spec, _differences(spec, again)

    def test_what_is_written_names_its_version(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        written = self.adapter_class().write(_spec(reading), reading.framework_version)
        assert written.framework_version in (None, reading.framework_version), "written for another version than asked"

    def test_writing_gives_text_and_native_values(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        written = self.adapter_class().write(_spec(reading), reading.framework_version)
        assert isinstance(written, Written)
        assert written.values, "no values"
        assert written.text, "no text"
        assert all(text.strip() for text in written.text.values()), "an empty text"

    def test_a_written_text_is_read_as_what_was_written(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        spec = _spec(reading)
        written = self.adapter_class().write(spec, reading.framework_version)
        forms = {form: text for form, text in written.text.items() if form not in self.unreadable_forms}
        if not forms:
            _vacuous("no form is read as a file")
        for form, text in forms.items():
            source = _source_of(form, text, self.adapter_class.framework)
            again = self.adapter_class().read(source, self._context_of(written, spec, valid_case))
            told = [f"{finding.code}: {finding.message}" for finding in again.findings]
            assert again.spec == spec, f"the {form} is read as something else: {_differences(spec, again.spec)} {told}"

    def test_a_real_configuration_is_read_and_written_back(self, corpus_file: Path) -> None:
        source = load_source(corpus_file, framework=self.adapter_class.framework)
        reading = read_source(
            source, self.adapter_class(), Context(framework_version=self.written_version, world_size=8)
        )
        _check_findings(reading.findings)
        json.dumps(reading.to_dict())
        if reading.spec is None or reading.verdict != "valid":
            _vacuous(f"{reading.verdict}: {'; '.join(finding.code for finding in reading.findings)}")
        try:
            written = self.adapter_class().write(_spec(reading), reading.framework_version)
        except CannotWrite as refused:
            raise AssertionError(f"its own configuration cannot be written: {refused}") from refused
        assert written.text, "no text"

    def test_a_changed_field_is_written_faithfully_or_refused(self, change: tuple[str, Any]) -> None:
        case = self.valid[0]
        reading = self._valid(case)
        spec = _spec(reading).replace(**{change[0]: change[1]})
        try:
            written = self.adapter_class().write(spec, reading.framework_version)
        except CannotWrite as refused:
            _check_refusal(refused, self.adapter_class.framework)
            return
        again = self._read_back(written, spec, case)
        filled = {path: value for path, value, _ in walk(again) if path.startswith(UNKNOWN)}
        known = {p: filled.get(p) for p, value, _ in walk(spec) if value is None and p.startswith(UNKNOWN)}
        assert again == spec.replace(**known), f"written as something else: {_differences(spec, again)}"

    def test_what_cannot_be_said_is_refused(self, unwritable_spec: Spec) -> None:
        try:
            self.adapter_class().write(unwritable_spec)
        except CannotWrite as refused:
            _check_refusal(refused, self.adapter_class.framework)
            return
        raise AssertionError("written, though listed as unwritable")

    # ---- native steps

    def test_native_steps_place_every_completion_once_per_pass(self, valid_case: ValidCase) -> None:
        counts = Counter((row.rollout, row.pass_index, row.prompt, row.sample) for row in self._rows(valid_case))
        twice = [key for key, count in counts.items() if count > 1]
        assert not twice, f"(rollout, pass, prompt, sample) trained more than once: {twice[:5]}"

    def test_native_steps_stay_inside_the_run(self, valid_case: ValidCase) -> None:
        spec, dataset_size = _spec(self._valid(valid_case)), self._dataset_size(valid_case)
        for row in self._rows(valid_case):
            assert 0 <= row.rank < spec.topology.world_size, f"rank outside the world: {row}"
            assert 0 <= row.prompt < dataset_size, f"prompt outside the dataset: {row}"
            assert 0 <= row.sample < spec.rollout.completions_per_prompt, f"sample outside its group: {row}"
            assert 0 <= row.pass_index < spec.optimizer_step.passes_per_rollout, f"pass outside the rollout: {row}"
            assert min(row.rollout, row.micro_batch) >= 0, f"negative: {row}"

    def test_native_weights_are_exact_or_left_open(self, valid_case: ValidCase) -> None:
        for row in self._rows(valid_case):
            exact = row.weight is None or (isinstance(row.weight, Fraction) and row.weight >= 0)
            assert exact, f"weight {row.weight!r} is neither a Fraction from 0 nor None: {row}"

    def test_a_completion_without_tokens_weighs_nothing(self, valid_case: ValidCase) -> None:
        for row in self._rows(valid_case):
            if _tokens(row.prompt, row.sample) == 0:
                assert not row.weight, f"no token, but a weight: {row}"

    def test_native_steps_are_counted_from_zero(self, valid_case: ValidCase) -> None:
        indices = [step.index for step in self._native_steps(valid_case)]
        assert indices == list(range(len(indices))), f"indices {indices[:10]}"

    def test_native_steps_are_the_same_twice(self, valid_case: ValidCase) -> None:
        assert self._native_steps(valid_case) == self._native_steps(valid_case), "native_steps varies"

    # ---- the running trainer, and imports

    def test_strangers_are_not_owned(self) -> None:
        for stranger in (None, 1, object(), type, Hostile()):
            assert self.adapter_class().owns(stranger) is False, f"owns {type(stranger).__name__}"

    def test_reading_imports_no_framework(self) -> None:
        cases: list[ValidCase | InvalidCase] = [*self.valid, *self.invalid]
        plain = [case for case in cases if case.source.native is None]
        name = self.adapter_class.__qualname__
        work = pickle.dumps((self.adapter_class.__module__, name, [(c.source, c.context) for c in plain]))
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS, json.dumps(sys.path)], input=work, capture_output=True, check=False
        )
        assert done.returncode == 0, f"reading in a process of its own failed:\n{done.stderr.decode()}"
        imported = sorted(set(json.loads(done.stdout)) & set(self.framework_modules))
        assert not imported, f"reading imported {imported}"

    # ---- helpers

    def _judge(self, source: Source, context: Context) -> tuple[Reading, list[Finding]]:
        """The reading, and the findings of `read` and `check` together."""
        adapter = self.adapter_class()
        reading = adapter.read(source, context)
        assert isinstance(reading, Reading), f"read gave a {type(reading).__name__}"
        return reading, [*reading.findings, *adapter.check(reading)]

    def _valid(self, case: ValidCase) -> Reading:
        return self.adapter_class().read(case.source, case.context)

    def _read_hostile(self, case: ValidCase, path: tuple[str, ...], hostile: str) -> None:
        source = replace(case.source, values=_with(case.source.values, path, HOSTILE[hostile]))
        try:
            _sure(self.adapter_class(), source)
            _, findings = self._judge(source, case.context)
        except Exception as error:
            raise AssertionError(f"{'.'.join(path)} = {hostile}: {type(error).__name__}: {error}") from error
        _check_findings(findings)

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
        """The first 50 native steps. The law is skipped where the adapter says by `ValueError` what is left open."""
        size, group = self._dataset_size(case), _spec(self._valid(case)).rollout.completions_per_prompt
        lengths = {(p, s): _tokens(p, s) for p in range(size) for s in range(group)}
        try:
            steps = self.adapter_class().native_steps(self._valid(case), size, lengths)
            return list(itertools.islice(steps, 50))
        except ValueError as refused:
            reason = str(refused)
        assert reason.strip(), "native_steps refused without a reason"
        return _vacuous(f"native_steps leaves the case open: {reason}")

    def _rows(self, case: ValidCase) -> list[NativeRow]:
        return [row for step in self._native_steps(case) for row in step.rows]


class Hostile:
    """An object of which every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"attribute {name}")


_IMPORTS = """
import json, pickle, sys
sys.path[:] = json.loads(sys.argv[1])
import importlib
module, name, cases = pickle.load(sys.stdin.buffer)
adapter = importlib.import_module(module)
for part in name.split("."):
    adapter = getattr(adapter, part)
adapter = adapter()
for source, context in cases:
    adapter.detect(source)
    reading = adapter.read(source, context)
    adapter.check(reading)
    if reading.spec is not None:
        try:
            adapter.write(reading.spec)
        except ValueError:
            pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


_WITHOUT_A_PLACE = ("default", "derived")
"""Origins of values that no file says."""
_SUFFIXES = {"yaml": ".yaml", "json": ".json"}
"""How a file of a form is called; any other is a command, which a shell script runs."""


def _vacuous(reason: str) -> NoReturn:
    """Leaves a law that would hold of anything here: pytest counts it, and `-rs` prints why."""
    import pytest

    pytest.skip(reason)


def _files_in(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    return sorted(file for file in folder.rglob("*") if file.suffix in (".yaml", ".yml", ".json", ".sh"))


def _source_of(form: str, text: str, framework: str) -> Source:
    """A written text as a user hands it over: words (the form `argv` has one a line), or a file."""
    if form == "argv":
        return load_source(text.splitlines(), framework=framework)
    with TemporaryDirectory() as folder:
        path = Path(folder, f"written{_SUFFIXES.get(form, '.sh')}")
        path.write_text(text, encoding="utf-8")
        return load_source(path, framework=framework)


def _mends(code: str, before: Sequence[Finding], after: Sequence[Finding]) -> bool:
    """Whether fewer findings have this code, and the run is no more open: what is not said is not mended."""
    was, now = (sum(finding.code == code for finding in findings) for findings in (before, after))
    left_open = [sum(finding.undecided for finding in findings) for findings in (before, after)]
    return now < was and left_open[1] <= left_open[0]


def _at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def _changed(source: Source, changes: Mapping[str, Any]) -> Source:
    """A source with the keys that a fix names: changed, added, or left out where it says None."""
    if not source.argv:
        values = dict(source.values)
        for key, value in changes.items():
            values = _changed_values(values, key, value)
        return replace(source, values=values)
    words, keys = list(source.argv), {key: index for key, _, index in argument_keys(source.argv)}
    dashes = any(word.startswith("--") for word in words)
    drop: set[int] = set()
    more: list[str] = []
    for key, value in changes.items():
        named = next((name for name in keys if name.lstrip("+~") == key), None)
        if named is not None:
            index = keys[named]
            drop |= {index} if "=" in words[index] or words[index].startswith("--") else {index - 1, index}
        if value is not None:
            more += (
                [f"--{key}", *map(str, value if isinstance(value, list) else [value])] if dashes else [f"{key}={value}"]
            )
    argv = tuple([word for index, word in enumerate(words) if index not in drop] + more)
    return replace(source, argv=argv, values=parse_arguments(argv))


def _changed_values(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with `key`, which may be dotted, where its mapping stands already."""
    head, dot, rest = key.partition(".")
    if key not in values and dot and isinstance(values.get(head), Mapping):
        return {**values, head: _changed_values(values[head], rest, value)}
    kept = {name: old for name, old in values.items() if name != key}
    return kept if value is None else {**kept, key: value}


def _tokens(prompt: int, sample: int) -> int:
    """Scripted response tokens: ragged, and some completions have none."""
    return (7 * prompt + 5 * sample) % 11


def _sure(adapter: Adapter, source: Source) -> float:
    sure = adapter.detect(source)
    inside = isinstance(sure, (int, float)) and 0 <= sure <= 1
    assert inside, f"detect gave {sure!r}, not 0 to 1"
    return float(sure)


def _spec(reading: Reading) -> Spec:
    assert reading.spec is not None, f"no spec: {[f.message for f in reading.findings]}"
    return reading.spec


def _values(source: Source) -> Any:
    return copy.deepcopy((source.values, source.lines, source.argv, source.problems))


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error" and not finding.undecided]


def _check_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        assert isinstance(finding, Finding), f"{finding!r} is no Finding"
        assert CODE.fullmatch(finding.code), f"code {finding.code!r} is not like BB101 or BB-NAME-003"
        assert finding.severity in get_args(Severity), f"{finding.code}: severity {finding.severity!r}"
        assert finding.phase in get_args(Phase), f"{finding.code}: phase {finding.phase!r}"
        assert finding.message.strip(), f"{finding.code}: no message"
        assert all(fix.text.strip() for fix in finding.fixes), f"{finding.code}: a fix without text"


def _stands_in(key: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]*\w)", text) is not None


def _check_refusal(refused: CannotWrite, framework: str) -> None:
    assert refused.problems, "CannotWrite without a problem"
    assert all(problem.reason.strip() for problem in refused.problems), "CannotWrite with an empty problem"
    strange = [path for problem in refused.problems for path in problem.fields if path not in _REFUSABLE]
    assert not strange, f"CannotWrite: {strange[0]!r} is no canonical field"
    mute = [problem.reason for problem in refused.problems if not problem.fields]
    assert not mute, f"CannotWrite: a problem without fields, so that no conversion can move them: {mute[0]}"
    assert framework in str(refused), f"CannotWrite does not name {framework}"


def _differences(wanted: Spec, got: Spec | None) -> str:
    if got is None:
        return "no spec at all"
    one, other = {p: v for p, v, _ in walk(wanted)}, {p: v for p, v, _ in walk(got)}
    paths = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    return "; ".join(f"{path}: wanted {one.get(path)!r}, got {other.get(path)!r}" for path in paths)


def _leaves(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a nested mapping, groups included."""
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, key))


def _with(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, rest = path[0], path[1:]
    return {**values, head: _with(values[head], rest, value) if rest else value}


def _short(value: Any) -> str:
    if isinstance(value, LossTerm):
        return ",".join(f"{name}={part}" for name, part in vars(value).items())
    return str(value)


def _alternatives(hint: Any) -> list[Any]:
    """A few values of a field's type."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = [inner] if get_origin(inner) is Literal or not get_args(inner) else list(get_args(inner))
    return [value for option in options for value in (get_args(option) or _SAMPLES[option])]


_SAMPLES: Mapping[Any, Sequence[Any]] = {
    int: (1, 2, 3, 48),
    float: (0.0, 0.5, 3.0),
    str: ("linear", "none of these"),
    bool: (False, True),
    type(None): (None,),
}


def _all_changes() -> Iterator[tuple[str, Any]]:
    for group in fields(Spec):
        group_type = get_type_hints(Spec)[group.name]
        for name, hint in get_type_hints(group_type, include_extras=True).items():
            if get_origin(hint) is Annotated:
                yield from ((f"{group.name}.{name}", value) for value in _alternatives(hint))
            else:  # a term of the loss
                for inner, inner_hint in get_type_hints(LossTerm, include_extras=True).items():
                    base = {"aggregation": "token_mean"}
                    for value in _alternatives(inner_hint):
                        yield f"{group.name}.{name}", LossTerm(**{**base, inner: value})


_CHANGES = list(_all_changes())


def _all_defaults() -> Iterator[tuple[str, Any]]:
    """(path, default) of every field that has one, those of all terms of the loss included."""
    for group in fields(Spec):
        group_type = get_type_hints(Spec)[group.name]
        for name in (f.name for f in fields(group_type)):
            if group.name == "loss":
                yield from ((f"loss.{name}.{f.name}", f.default) for f in fields(LossTerm) if f.default is not MISSING)
        yield from ((f"{group.name}.{f.name}", f.default) for f in fields(group_type) if f.default is not MISSING)


_DEFAULTS = dict(_all_defaults())


def _all_paths() -> Iterator[str]:
    for group in fields(Spec):
        for name, hint in get_type_hints(get_type_hints(Spec)[group.name], include_extras=True).items():
            yield f"{group.name}.{name}"
            if get_origin(hint) is not Annotated:
                yield from (f"{group.name}.{name}.{inner.name}" for inner in fields(LossTerm))


_PATHS = set(_all_paths())
_REFUSABLE = _PATHS | {"loss.kl", "loss.entropy"}
"""Fields of a refusal: a whole term of the loss is one, too."""

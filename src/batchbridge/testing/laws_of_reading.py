"""Laws of detecting and reading, whatever the input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from packaging.specifiers import SpecifierSet

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Behaviour, Context, Source
from batchbridge.meaning.findings import Finding, verdict
from batchbridge.meaning.spec import DenominatorScope, Spec
from batchbridge.reading.files import load_source
from batchbridge.testing.fields import DEFAULTS, PATHS
from batchbridge.testing.hostile import HOSTILE, HOSTILE_SOURCES
from batchbridge.testing.laws import (
    CODE,
    Case,
    Laws,
    ValidCase,
    as_file,
    certainty,
    check_findings,
    contents,
    differences,
    is_mapping,
    keys_in,
    spec_of,
    vacuous,
)


class ReadingLaws(Laws):
    """Laws of detecting and reading, whatever the input."""

    # ---- the class

    def test_it_is_made_without_arguments(self) -> None:
        assert isinstance(self.adapter_class(), Adapter), "adapter_class is not an Adapter"

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

    # ---- detect

    def test_detect_gives_a_share_of_certainty(self, any_case: Case) -> None:
        certainty(self.adapter_class(), any_case.source)

    def test_detect_recognises_its_own(self, valid_case: ValidCase) -> None:
        adapter, source = self.adapter_class(), valid_case.source
        assert certainty(adapter, source) > 0, "detect is 0 for a valid case"
        if is_mapping(source):
            assert certainty(adapter, as_file(source)) > 0, "detect is 0 for a valid case in a file"

    def test_detect_says_the_same_twice_and_changes_nothing(self, any_case: Case) -> None:
        adapter, before = self.adapter_class(), contents(any_case.source)
        first = adapter.detect(any_case.source)
        assert adapter.detect(any_case.source) == first == self.adapter_class().detect(any_case.source), "detect varies"
        assert contents(any_case.source) == before, "detect changed its source"

    def test_detect_takes_any_input(self, hostile_source: str) -> None:
        certainty(self.adapter_class(), HOSTILE_SOURCES[hostile_source])

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
            assert spec == valid_case.spec, differences(valid_case.spec, spec)

    def test_a_reading_names_its_framework_and_version(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        assert reading.framework == self.adapter_class.framework, "reading.framework is another's"
        wanted = valid_case.context.framework_version
        assert wanted in (None, reading.framework_version), f"version {reading.framework_version}, asked {wanted}"
        assert reading.dataset_size == valid_case.context.dataset_size, "dataset_size is not the context's"

    def test_reading_twice_gives_the_same(self, any_case: Case) -> None:
        before = contents(any_case.source)
        first = self.adapter_class().read(any_case.source, any_case.context)
        adapter = self.adapter_class()
        adapter.read(any_case.source, any_case.context)
        assert adapter.read(any_case.source, any_case.context).to_dict() == first.to_dict(), "read varies"
        assert contents(any_case.source) == before, "read changed its source"

    def test_a_reading_is_json(self, any_case: Case) -> None:
        reading, findings = self._judge(any_case.source, any_case.context)
        json.dumps(replace(reading, findings=tuple(findings)).to_dict())

    def test_a_spec_survives_json(self, valid_case: ValidCase) -> None:
        spec = spec_of(self._valid(valid_case))
        assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec, "a field has a type that JSON changes"

    def test_every_field_that_is_not_the_schemas_default_has_a_provenance(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        said = {
            path for path, value in spec_of(reading).values.items() if path not in DEFAULTS or DEFAULTS[path] != value
        }
        missing = sorted(said - set(reading.provenance))
        assert not missing, f"no provenance for {missing}"

    def test_a_provenance_has_the_native_value(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        for path, origin in reading.provenance.items():
            if origin.key is not None and origin.key in reading.native:
                native = reading.native[origin.key]
                assert origin.value == native, f"provenance of {path}: {origin.key} = {origin.value!r}, not {native!r}"

    def test_a_provenance_names_file_and_line(self, valid_case: ValidCase) -> None:
        source = as_file(valid_case.source)
        if not is_mapping(source):
            vacuous("the case is not a file")
        path, lines = source.path, source.lines
        reading = self.adapter_class().read(source, valid_case.context)
        placed = {of: o for of, o in reading.provenance.items() if o.key in lines and o.origin not in _WITHOUT_A_PLACE}
        assert placed, "no field comes from a line of the file"
        assert reading.given, "`given` has the place of no setting"
        for field, origin in placed.items():
            where = f"provenance of {field}"
            assert origin.origin == "file", f"{where}: {origin.key} stands in a file, and its origin is {origin.origin}"
            wanted = (str(path), lines[origin.key or ""])
            assert (origin.file, origin.line) == wanted, f"{where}: {origin.file}:{origin.line}, not {wanted}"

    def test_a_setting_that_is_inherited_names_its_own_file(self, valid_case: ValidCase) -> None:
        if not self.inherits or not is_mapping(valid_case.source):
            vacuous("no `inherits`: a configuration of the framework is one file")
        settings = list(valid_case.source.values.items())
        of_base, own = dict(settings[::2]), dict(settings[1::2])
        with TemporaryDirectory() as folder:
            base, recipe = Path(folder, "base.yaml"), Path(folder, "recipe.yaml")
            base.write_text(json.dumps(of_base, indent=1), encoding="utf-8")
            recipe.write_text(json.dumps({self.inherits: base.name, **own}, indent=1), encoding="utf-8")
            lines = {str(file): load_source(file).lines for file in (base, recipe)}
            reading = self.adapter_class().read(load_source(recipe), valid_case.context)
        assert reading.spec == self._valid(valid_case).spec, "files that inherit are read as something else"
        for field, origin in reading.provenance.items():
            if origin.origin == "file":
                said = lines[origin.file or ""].get(origin.key or "")
                assert origin.line == said, f"provenance of {field}: {origin.file}:{origin.line}, not its line {said}"

    def test_every_provenance_is_of_a_field(self, any_case: Case) -> None:
        reading = self.adapter_class().read(any_case.source, any_case.context)
        unknown = sorted(set(reading.provenance) - PATHS)
        assert not unknown, f"provenance for what is not a field: {unknown}"

    def test_every_provenance_says_where_from(self, any_case: Case) -> None:
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
            vacuous("the adapter has no `newest_version`: every version has its own tables")
        asked, later = ({**vars(valid_case.context), "framework_version": version} for version in (newest, _LATER))
        known, known_findings = self._judge(valid_case.source, Context(**asked))
        if known.spec is None:
            vacuous("a case of older versions only")
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
            vacuous("the source says the world size")
        reading, findings = self._judge(valid_case.source, replace(valid_case.context, world_size=None))
        assert verdict(findings) == "undecided", f"verdict {verdict(findings)} without a world size"
        assert reading.spec is None, "a spec without a world size"

    def test_what_the_loader_found_is_kept(self, valid_case: ValidCase) -> None:
        problems = (Finding("BB999", "error", "config", "broken"), Finding("BB998", "warning", "config", "odd"))
        reading = self.adapter_class().read(replace(valid_case.source, problems=problems), valid_case.context)
        assert set(map(id, problems)) <= set(map(id, reading.findings)), "source.problems are lost"

    # ---- hostile input

    def test_no_whole_input_makes_it_raise(self, hostile_source: str) -> None:
        context = Context(framework_version=self.written_version, world_size=8)
        _, findings = self._judge(HOSTILE_SOURCES[hostile_source], context)
        check_findings(findings)

    def test_no_value_makes_it_raise(self, hostile: str) -> None:
        for case in self.valid:
            for path in keys_in(case.source.values):
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
                    check_findings(self._judge(valid_case.source, context)[1])


_LATER = "9999.1.1"
"""A version that is newer than any."""


_WITHOUT_A_PLACE = ("default", "derived")
"""Origins of values that no file says."""

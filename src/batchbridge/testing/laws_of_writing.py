"""Laws of writing: what is written means what was asked for, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batchbridge.contract.reading import Context, Reading, Source, Written
from batchbridge.errors import CannotWrite
from batchbridge.kit.writing import UNKNOWN
from batchbridge.meaning.spec import Spec
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge.testing.fields import OPEN_TERM, PATHS
from batchbridge.testing.laws import Laws, ValidCase, check_findings, differences, spec_of, vacuous


class WritingLaws(Laws):
    """Laws of writing: what is written means what was asked for, or is refused."""

    # ---- write

    def test_what_was_read_can_be_written_and_read_again(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        spec, version = spec_of(reading), reading.framework_version
        again = self._read_back(self.adapter_class().write(spec, version), spec, valid_case)
        assert again == spec, differences(spec, again)

    def test_what_is_written_names_its_version(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        written = self.adapter_class().write(spec_of(reading), reading.framework_version)
        assert written.framework_version in (None, reading.framework_version), "written for another version than asked"

    def test_writing_gives_text_and_native_values(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        written = self.adapter_class().write(spec_of(reading), reading.framework_version)
        assert isinstance(written, Written)
        assert written.values, "no values"
        assert written.text, "no text"
        assert all(text.strip() for text in written.text.values()), "an empty text"

    def test_a_written_text_is_read_as_what_was_written(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        spec = spec_of(reading)
        if not self._texts_say(self.adapter_class().write(spec, reading.framework_version), spec, valid_case):
            vacuous("no form is read as a file")

    def test_the_folder_of_real_configurations_has_a_valid_one(self) -> None:
        if self.corpus is None:
            vacuous("no `corpus`: no real configuration is read")
        readings = [self._real(file)[1] for file in files_in(self.corpus)]
        assert any(reading.verdict == "valid" for reading in readings), f"{len(readings)} files, of which none is valid"

    def test_a_real_configuration_is_read_and_written_back(self, corpus_file: Path) -> None:
        case, reading = self._real(corpus_file)
        check_findings(reading.findings)
        json.dumps(reading.to_dict())
        if reading.spec is None or reading.verdict != "valid":
            vacuous(f"{reading.verdict}: {'; '.join(finding.code for finding in reading.findings)}")
        spec = spec_of(reading)
        try:
            written = self.adapter_class().write(spec, reading.framework_version)
        except CannotWrite as refused:
            raise AssertionError(f"its own configuration cannot be written: {refused}") from refused
        assert written.text, "no text"
        again = self._read_back(written, spec, case)
        assert again == spec, f"written as something else: {differences(spec, again)}"
        self._texts_say(written, spec, case)

    def _real(self, file: Path) -> tuple[ValidCase, Reading]:
        """A real configuration, on the devices that it says or else on eight."""
        source = load_source(file, framework=self.adapter_class.framework)
        context = Context(framework_version=self.written_version)
        reading = read_source(source, self.adapter_class(), context)
        if reading.spec is None:
            reading = read_source(source, self.adapter_class(), replace(context, world_size=8))
        return ValidCase(name=file.name, source=source, context=context), reading

    def _texts_say(self, written: Written, spec: Spec, case: ValidCase) -> bool:
        """Whether there are texts that are read as files; all of them have to say `spec`."""
        forms = {
            form: text for form, text in written.text.items() if form in _READ or form not in self.unreadable_forms
        }
        for form, text in forms.items():
            source = _source_of(form, text, self.adapter_class.framework)
            again = self.adapter_class().read(source, self._context_of(written, spec, case))
            told = [f"{finding.code}: {finding.message}" for finding in again.findings]
            assert again.spec == spec, f"the {form} is read as something else: {differences(spec, again.spec)} {told}"
        return bool(forms)

    def test_a_changed_field_is_written_faithfully_or_refused(self, change: tuple[str, Any]) -> None:
        case = self.valid[0]
        reading = self._valid(case)
        spec = spec_of(reading).replace(**{change[0]: change[1]})
        try:
            written = self.adapter_class().write(spec, reading.framework_version)
        except CannotWrite as refused:
            _check_refusal(refused, self.adapter_class.framework)
            return
        again = self._read_back(written, spec, case)
        filled = {path: value for path, value in again.values.items() if path.startswith(UNKNOWN)}
        known = {p: filled.get(p) for p, value in spec.values.items() if value is None and p.startswith(UNKNOWN)}
        assert again == spec.replace(**known), f"written as something else: {differences(spec, again)}"

    def test_a_term_that_it_has_no_name_for_is_refused_by_name(self, valid_case: ValidCase) -> None:
        reading = self._valid(valid_case)
        spec = spec_of(reading).replace(open_terms=tuple(sorted({*spec_of(reading).open_terms, OPEN_TERM})))
        try:
            self.adapter_class().write(spec, reading.framework_version)
        except CannotWrite as refused:
            named = [problem for problem in refused.problems if "open_terms" in problem.fields]
            assert any(OPEN_TERM in problem.reason for problem in named), f"refused without naming {OPEN_TERM!r}"
            return
        raise AssertionError(
            f"written without {OPEN_TERM!r}: a term that the schema has no word for is dropped silently"
        )

    def test_what_cannot_be_said_is_refused(self, unwritable_spec: Spec) -> None:
        try:
            self.adapter_class().write(unwritable_spec)
        except CannotWrite as refused:
            _check_refusal(refused, self.adapter_class.framework)
            return
        raise AssertionError("written, though listed as unwritable")


_SUFFIXES = {"yaml": ".yaml", "json": ".json", "toml": ".toml"}
"""The suffix of a form's file; any other form is a command, which a shell script runs."""
_READ = {*_SUFFIXES, "argv"}
"""Forms that are read whatever an author says."""


def files_in(folder: Path | None) -> list[Path]:
    """The configurations in a folder and below it."""
    suffixes = (*_SUFFIXES.values(), ".yml", ".sh")
    return [] if folder is None else sorted(file for file in folder.rglob("*") if file.suffix in suffixes)


def _source_of(form: str, text: str, framework: str) -> Source:
    """A written text as a user hands it over: words (the form `argv` has one a line), or a file."""
    if form == "argv":
        return load_source(text.splitlines(), framework=framework)
    with TemporaryDirectory() as folder:
        path = Path(folder, f"written{_SUFFIXES.get(form, '.sh')}")
        path.write_text(text, encoding="utf-8")
        return load_source(path, framework=framework)


def _check_refusal(refused: CannotWrite, framework: str) -> None:
    assert refused.problems, "CannotWrite without a problem"
    assert all(problem.reason.strip() for problem in refused.problems), "CannotWrite with an empty problem"
    strange = [path for problem in refused.problems for path in problem.fields if path not in PATHS]
    assert not strange, f"CannotWrite: {strange[0]!r} is not a canonical field"
    mute = [problem.reason for problem in refused.problems if not problem.fields]
    assert not mute, f"CannotWrite: a problem without fields, so that no conversion can move them: {mute[0]}"
    assert framework in str(refused), f"CannotWrite does not name {framework}"

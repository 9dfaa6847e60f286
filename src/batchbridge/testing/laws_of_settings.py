"""Laws of single settings: what another value changes, is named by the field's provenance, and is written back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotWrite
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.findings import verdict
from batchbridge.meaning.spec import Spec
from batchbridge.reading.arguments import changed_source
from batchbridge.reading.read import read_source
from batchbridge.testing.laws import Laws, ValidCase, differences, distinct, other_values, spec_of, vacuous

MOST = 3
"""Other values of a setting that are looked at in a case."""


class ChangedCase(NamedTuple):
    """A valid case with another value of one setting, which is valid, too. fields: those that it changes."""

    key: str
    value: Any
    reading: Reading
    fields: frozenset[str]


class SettingLaws(Laws):
    """The laws of this module."""

    def test_the_key_that_a_provenance_names_moves_its_field(self) -> None:
        asked: set[tuple[str, str]] = set()
        moved: set[tuple[str, str]] = set()
        for case in self.valid:
            named = {(field, origin.key) for field, origin in self._valid(case).provenance.items() if origin.key}
            for one in self._changed(case):
                asked |= {(field, key) for field, key in named if key == one.key}
                moved |= {(field, one.key) for field in one.fields}
        stuck = [f"{field}, by its provenance {key}" for field, key in sorted(asked - moved)]
        assert not stuck, f"stays as it is whatever its key says: {stuck}"

    def test_a_value_that_a_script_leaves_open_leaves_what_comes_from_it_open(self, valid_case: ValidCase) -> None:
        given = {key for key, _ in settings_in(valid_case.source.values, self._valid(valid_case).native)}
        keys = {key for origin in self._valid(valid_case).provenance.values() for key in origin.keys} & given
        keys |= {one.key for one in self._changed(valid_case) if one.fields} & given
        if valid_case.source.argv or valid_case.source.native is not None or not keys:
            vacuous("no field comes from a key of the case's mapping")
        for key in sorted(keys):
            source = replace(valid_case.source, unknown={key: ("VARIABLE",)})
            reading = read_source(source, self.adapter_class(), valid_case.context)
            assert reading.verdict != "valid", f"{key} is open, and the reading is valid"

    def test_what_another_value_means_is_written_back(self, valid_case: ValidCase) -> None:
        for one in self._changed(valid_case):
            if one.key in self.excused:
                continue
            spec, told = spec_of(one.reading), f"with {one.key} = {one.value!r}"
            try:
                written = self.adapter_class().write(spec, one.reading.framework_version)
            except CannotWrite as refused:
                raise AssertionError(f"{told} it is read, and cannot be written: {refused}") from refused
            again = self._read_back(written, spec, valid_case)
            assert again == spec, f"{told} it is written as something else: {differences(spec, again)}"

    def test_a_dotted_key_laid_over_its_group_wins(self, valid_case: ValidCase) -> None:
        values = valid_case.source.values
        for one in self._changed(valid_case):
            if "." in one.key and one.key not in values and isinstance(values.get(one.key.partition(".")[0]), Mapping):
                laid = replace(valid_case.source, values={**values, one.key: one.value})
                spec = self.adapter_class().read(laid, valid_case.context).spec
                assert spec == one.reading.spec, (
                    f"{one.key} beside its group: {differences(spec_of(one.reading), spec)}"
                )

    def test_a_key_that_is_no_setting_is_found(self, valid_case: ValidCase) -> None:
        if valid_case.source.argv or valid_case.source.native is not None or _STRANGER in self.excused:
            vacuous("the case is not a mapping, or the framework passes over groups that it does not have")
        source = replace(valid_case.source, values={**valid_case.source.values, _STRANGER: 1})
        _, findings = self._judge(source, valid_case.context)
        told = any(_STRANGER in " ".join([one.message, *map(str, one.where)]) for one in findings)
        said = told and verdict(findings) != "valid"
        assert said, f"{_STRANGER} is not a setting, and nothing says so"

    def test_a_world_size_against_the_settings_is_an_error(self, valid_case: ValidCase) -> None:
        if not valid_case.source_has_world_size:
            vacuous("the source does not say the world size")
        asked = spec_of(self._valid(valid_case)).topology.world_size * 2 + 1
        reading, findings = self._judge(valid_case.source, replace(valid_case.context, world_size=asked))
        follows = reading.spec is not None and reading.spec.topology.world_size == asked
        assert follows or verdict(findings) != "valid", f"{asked} devices were asked for, and another number is valid"

    # ---- what the author wrote down

    def test_other_settings_mean_what_is_written_down(self) -> None:
        case, spec = self._first_told()
        for settings, fields in self.meanings:
            reading = self.adapter_class().read(changed_source(case.source, settings), case.context)
            wanted = spec.replace(**fields)
            told = [f"{finding.code}: {finding.message}" for finding in reading.findings]
            assert reading.spec == wanted, f"{dict(settings)}: {differences(wanted, reading.spec)} {told}"
            again = self._read_back(self.adapter_class().write(wanted, reading.framework_version), wanted, case)
            assert again == wanted, f"{dict(settings)}, written: {differences(wanted, again)}"

    def test_every_word_of_a_row_has_a_case_with_its_spec(self) -> None:
        told = [reading.native for reading in self._told()]
        named = {key for reading in self._told() for origin in reading.provenance.values() for key in origin.keys}
        words = [word for word in self._words() if word.keys() & named]
        bare = [word for word in words if not any(_holds(word, native) for native in told)]
        names = [", ".join(f"{key} = {value!r}" for key, value in word.items()) for word in bare]
        left = [name for name in names if name not in self.excused]
        assert not left, f"no case with its spec written down has {'; '.join(left)}"

    def test_every_default_has_a_case_with_its_spec(self) -> None:
        told = self._told()
        named = {key for reading in told for origin in reading.provenance.values() for key in origin.keys}
        named -= {key for reading in told for key in reading.native if key not in reading.given}
        bare: list[str] = []
        for case in (case for case in self.valid if case.spec is not None):
            for key in sorted(named - set(self.excused) - set(bare)):
                reading, findings = self._judge(changed_source(case.source, {key: None}), case.context)
                if verdict(findings) == "valid" and key in reading.native and key not in reading.given:
                    bare.append(key)
        assert not bare, f"no case with its spec written down leaves {', '.join(bare)} at its default"

    def _first_told(self) -> tuple[ValidCase, Spec]:
        """The case that `meanings` change, and what it means."""
        for case in self.valid:
            if case.spec is not None:
                return case, case.spec
        return vacuous("no valid case has its spec written down")

    def _told(self) -> list[Reading]:
        """The readings whose meaning is written down."""
        case, _ = self._first_told()
        sources = [changed_source(case.source, settings) for settings, _ in self.meanings]
        readings = [self.adapter_class().read(source, case.context) for source in sources]
        return [*(self._valid(case) for case in self.valid if case.spec is not None), *readings]

    def _words(self) -> Iterator[dict[str, Any]]:
        """The settings of every word that the rows of the adapter's tables have; see `batchbridge.kit.key_table`."""
        for row in getattr(self.adapter_class, "keys", ()):
            words = row.values if isinstance(row.values, Mapping) else row.kind.schema.get("enum", ())
            yield from ({row.key: word} for word in words if word is not None)
        for several in getattr(self.adapter_class, "together", ()):
            for words in several.values:
                yield {key: word for key, word in zip(several.keys, words, strict=True) if word is not ...}

    def _changed(self, case: ValidCase) -> list[ChangedCase]:
        """Other values of the settings that the case gives or its provenances name, each by itself."""
        known = _CHANGED.setdefault(self.adapter_class, {})
        if case.name not in known:
            known[case.name] = list(self._changes_of(case))
        return known[case.name]

    def _changes_of(self, case: ValidCase) -> Iterator[ChangedCase]:
        old = self._valid(case)
        spec, said = spec_of(old), [self._valid(other).native for other in self.valid]
        keys = {origin.key for origin in old.provenance.values() if origin.key} | set(old.given)
        for key in sorted(keys & set(old.native)):
            words = [native[key] for native in (*said, *(settings for settings, _ in self.meanings)) if key in native]
            words += [word[key] for word in self._words() if key in word]
            found = 0
            for value in distinct([*other_values(old.native[key]), *words], old.native[key]):
                reading, findings = self._judge(changed_source(case.source, {key: value}), case.context)
                if reading.spec is None or verdict(findings) != "valid" or reading.native.get(key) == old.native[key]:
                    continue
                one, other = spec.values, reading.spec.values
                fields = frozenset(path for path in {**one, **other} if one.get(path) != other.get(path))
                yield ChangedCase(key, value, reading, fields)
                found += 1
                if found == MOST:
                    break


_CHANGED: dict[type[Adapter], dict[str, list[ChangedCase]]] = {}
_STRANGER = "no_such_setting_of_anybody"


def _holds(word: Mapping[str, Any], native: Mapping[str, Any]) -> bool:
    return all(key in native and native[key] == value for key, value in word.items())

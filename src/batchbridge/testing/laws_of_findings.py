"""Laws of findings: places, fixes that mend, and one voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.meaning.findings import Finding, verdict
from batchbridge.reading.arguments import argument_keys, parse_arguments
from batchbridge.testing.fields import PATHS
from batchbridge.testing.laws import InvalidCase, Laws, ValidCase, check_findings, vacuous


class FindingLaws(Laws):
    """Laws of findings: places, fixes that mend, and one voice."""

    # ---- findings

    def test_an_invalid_case_is_invalid_with_its_codes(self, invalid_case: InvalidCase) -> None:
        _, findings = self._judge(invalid_case.source, invalid_case.context)
        codes = {finding.code for finding in findings}
        assert set(invalid_case.codes) <= codes, f"expected {invalid_case.codes}, found {sorted(codes)}"
        assert verdict(findings) == "invalid", f"verdict {verdict(findings)}"

    def test_findings_are_well_formed(self, any_case: ValidCase | InvalidCase) -> None:
        check_findings(self._judge(any_case.source, any_case.context)[1])

    def test_errors_name_a_place_in_the_users_own_keys(self, invalid_case: InvalidCase) -> None:
        reading, findings = self._judge(invalid_case.source, invalid_case.context)
        for finding in _errors(findings):
            assert any(w.key or w.file for w in finding.where), f"{finding.code}: names no key and no file"
            ours = [w.key for w in finding.where if w.key in PATHS and w.key not in reading.native]
            assert not ours, f"{finding.code}: {ours} are canonical fields, not the user's keys"

    def test_errors_offer_a_fix_or_what_the_framework_says(self, invalid_case: InvalidCase) -> None:
        for finding in _errors(self._judge(invalid_case.source, invalid_case.context)[1]):
            assert finding.fixes or finding.native, f"{finding.code}: neither a fix nor the native message"

    def test_a_fix_fixes(self, invalid_case: InvalidCase) -> None:
        findings = self._judge(invalid_case.source, invalid_case.context)[1]
        fixes = [(finding.code, fix) for finding in _errors(findings) for fix in finding.fixes if fix.changes]
        if not fixes:
            vacuous("no fix of this case changes keys")
        for code, fix in fixes:
            changes = {key: value for key, value in fix.changes.items() if key != self.launchers_key}
            devices = fix.changes.get(self.launchers_key) if self.launchers_key else None
            changed = changed_source(invalid_case.source, changes)
            # Where the fix changes the devices in the configuration, the context's number stands against it.
            contexts = (
                replace(invalid_case.context, world_size=devices or invalid_case.context.world_size),
                replace(invalid_case.context, world_size=None),
            )
            after = [self._judge(changed, context)[1] for context in contexts]
            told = f"{code}: {fix.text!r} ({dict(fix.changes)}) does not fix it"
            assert any(mends(code, findings, found) for found in after), told

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


def mends(code: str, before: Sequence[Finding], after: Sequence[Finding]) -> bool:
    """Whether fewer findings have this code, and the run is no more open: what is not said is not mended."""
    was, now = (sum(finding.code == code for finding in findings) for findings in (before, after))
    left_open = [sum(finding.undecided for finding in findings) for findings in (before, after)]
    return now < was and left_open[1] <= left_open[0]


def changed_source(source: Source, changes: Mapping[str, Any]) -> Source:
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


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error" and not finding.undecided]

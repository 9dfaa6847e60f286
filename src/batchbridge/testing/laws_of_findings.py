"""Laws of findings: places, fixes that mend, and one voice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.findings import Finding, Fix, verdict
from batchbridge.reading.arguments import changed_source
from batchbridge.reading.read import as_read
from batchbridge.testing.fields import PATHS
from batchbridge.testing.laws import (
    Case,
    InvalidCase,
    Laws,
    UndecidedCase,
    as_file,
    check_findings,
    is_mapping,
    vacuous,
)


class FindingLaws(Laws):
    """Laws of findings: places, fixes that mend, and one voice."""

    # ---- findings

    def test_an_invalid_case_is_invalid_with_its_codes(self, invalid_case: InvalidCase) -> None:
        _, findings = self._judge(invalid_case.source, invalid_case.context)
        codes = {finding.code for finding in findings}
        assert set(invalid_case.codes) <= codes, f"expected {invalid_case.codes}, found {sorted(codes)}"
        assert verdict(findings) == invalid_case.verdict, f"verdict {verdict(findings)}"
        if is_mapping(invalid_case.source):
            in_a_file = {one.code for one in self._judge(as_file(invalid_case.source), invalid_case.context)[1]}
            assert in_a_file == codes, f"in a file {sorted(in_a_file)}, and else {sorted(codes)}"

    def test_an_undecided_case_is_undecided_for_its_reason(self, undecided_case: UndecidedCase) -> None:
        case = undecided_case
        _, findings = self._judge(case.source, case.context)
        assert verdict(findings) == "undecided", f"verdict {verdict(findings)}"
        told = [finding for finding in findings if finding.undecided]
        codes = {finding.code for finding in told}
        assert codes == set(case.codes), f"expected {sorted(case.codes)} to leave it open, found {sorted(codes)}"
        messages = [finding.message for finding in told]
        assert any(case.reason in message for message in messages), f"{case.reason!r} is in none of {messages}"
        if case.settled:
            values = {**case.source.values, **case.settled}
            after = self._judge(replace(case.source, values=values), case.context)[1]
            left = sorted({finding.code for finding in after if finding.undecided})
            assert verdict(after) == "valid", f"with {dict(case.settled)} it is {verdict(after)}: {', '.join(left)}"

    def test_findings_are_well_formed(self, any_case: Case) -> None:
        check_findings(self._judge(any_case.source, any_case.context)[1])

    def test_every_rule_has_a_case(self) -> None:
        rows = [row for row in (*self.adapter_class().rows(), *self.rules) if not getattr(row, "retired", "")]
        if not rows:
            vacuous("the adapter has no `rows` of rules, so that rules without a case are not found")
        told = list(self._told_of())
        bare = {row.code for row in rows} - set(self.codes_without_a_case).union(*told)
        assert not bare, f"no case shows {', '.join(sorted(bare))}"
        always = {row.code for row in rows if not getattr(row, "standing", False)}.intersection(*told)
        assert not always, f"every case shows {', '.join(sorted(always))}"

    def test_a_defect_that_is_checked_is_explained(self, any_case: Case) -> None:
        reading, findings = self._judge(any_case.source, any_case.context)
        defects = {row.code for row in self.adapter_class().rows() if getattr(row, "is_defect", False)}
        if reading.behaviour is not None:
            told = {finding.code for finding in findings} & defects
            left = told - {defect.code for defect in reading.behaviour.defects}
            assert not left, f"behaviour.defects leaves out {', '.join(sorted(left))}"

    def _told_of(self) -> Iterator[set[str]]:
        """Codes of what is found in each case and example, and of defects."""
        examples = map(as_read, self.adapter_class().examples().values())
        cases: list[Case] = [*self.valid, *self.invalid, *self.undecided]
        for source, context in (*((case.source, case.context) for case in cases), *examples):
            reading, findings = self._judge(source, context)
            defects = () if reading.behaviour is None else reading.behaviour.defects
            yield {finding.code for finding in findings} | {defect.code for defect in defects}

    def test_errors_name_a_place_in_the_users_own_keys(self, invalid_case: InvalidCase) -> None:
        reading, findings = self._judge(invalid_case.source, invalid_case.context)
        for finding in _errors(findings):
            assert any(w.key or w.file for w in finding.where), f"{finding.code}: names no key and no file"
            ours = [w.key for w in finding.where if w.key in PATHS and w.key not in reading.native]
            assert not ours, f"{finding.code}: {ours} are canonical fields, not the user's keys"

    def test_errors_offer_a_fix_or_what_the_framework_says(self, invalid_case: InvalidCase) -> None:
        for finding in _errors(self._judge(invalid_case.source, invalid_case.context)[1]):
            assert finding.fixes or finding.native, f"{finding.code}: neither a fix nor the native message"

    def test_a_fix_says_what_it_changes(self, any_case: Case) -> None:
        reading, findings = self._judge(any_case.source, any_case.context)
        for fix in (fix for finding in findings for fix in finding.fixes):
            key = fix.text.partition(" = ")[0]
            settings = fix.changes or key not in reading.native
            assert settings, f"{fix.text!r} names a setting, and `changes` does not"
            known = {*reading.native, *(key for key, _ in settings_in(any_case.source.values, reading.native))}
            strange = [key for key, value in fix.changes.items() if value is not None and key not in known]
            assert strange in ([], [self.launchers_key]), f"{fix.text!r} changes what is not a setting: {strange}"
            text = fix.text.lower().replace('"', "")
            for key, value in fix.changes.items():
                told = f"{key} = ".lower() not in text or f"{key} = {value}".lower() in text
                assert told, f"{fix.text!r} says something else than its changes, {dict(fix.changes)}"

    def test_a_fix_fixes(self, any_case: Case) -> None:
        findings = self._judge(any_case.source, any_case.context)[1]
        found = [one for one in findings if not one.undecided and any(fix.changes for fix in one.fixes)]
        if not found:
            vacuous("no fix of this case changes keys")
        errors = {one.code for one in _errors(findings)}
        for finding in found:
            clean = bool(errors) and finding.severity != "error"  # a warning's fix mends no other rule
            for fix in (fix for fix in finding.fixes if fix.changes):
                told = f"{finding.code}: {fix.text!r} ({dict(fix.changes)}) does not fix it"
                after = [one for one in self._after(any_case, fix) if mends(finding.code, findings, one)]
                assert after, told
                renames = None in fix.changes.values()  # the value was the user's own
                clean |= renames or any({one.code for one in _errors(left)} <= errors for left in after)
            assert clean, f"{finding.code}: each fix breaks another rule"

    def _after(self, case: Case, fix: Fix) -> Iterator[list[Finding]]:
        """Findings once a fix is made. Where it changes the devices in the configuration, the context's number
        stands against it."""
        changes = {key: value for key, value in fix.changes.items() if key != self.launchers_key}
        devices = fix.changes.get(self.launchers_key) if self.launchers_key else None
        for world_size in (devices or case.context.world_size, None):
            context = replace(case.context, world_size=world_size)
            yield self._judge(changed_source(case.source, changes), context)[1]

    def test_check_says_the_same_twice_and_changes_nothing(self, any_case: Case) -> None:
        adapter = self.adapter_class()
        reading = adapter.read(any_case.source, any_case.context)
        before = reading.to_dict()
        first = list(adapter.check(reading))
        assert list(adapter.check(reading)) == first == list(self.adapter_class().check(reading)), "check varies"
        assert reading.to_dict() == before, "check changed the reading"

    def test_read_leaves_the_rules_to_check(self, any_case: Case) -> None:
        adapter = self.adapter_class()
        reading = adapter.read(any_case.source, any_case.context)
        twice = [finding.code for finding in adapter.check(reading) if finding in reading.findings]
        assert not twice, f"reported by read and again by check: {twice}"


def mends(code: str, before: Sequence[Finding], after: Sequence[Finding]) -> bool:
    """Whether fewer findings have this code, and the run is no more open: what is not said is not mended."""
    was, now = (sum(finding.code == code for finding in findings) for findings in (before, after))
    left_open = [sum(finding.undecided for finding in findings) for findings in (before, after)]
    return now < was and left_open[1] <= left_open[0]


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error" and not finding.undecided]

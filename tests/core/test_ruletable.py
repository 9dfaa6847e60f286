"""Tables of a framework's rules: when a row speaks, as what, and which rows are known defects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from batchbridge.kit.rule_table import (
    BUILDING,
    NOTE,
    Rule,
    Rules,
    defects,
    findings,
    nearest_fixes,
    says,
    setting_fixes,
)
from batchbridge.meaning.findings import Fix, Phase, Where

Sizes = dict[str, int]


def odd(sizes: Sizes) -> str | None:
    return f"prompts = {sizes['prompts']} is odd" if sizes["prompts"] % 2 else None


ROW: Rule[Sizes] = Rule(
    "BB-TOY-010",
    "error",
    "construction",
    odd,
    ("prompts",),
    native="ValueError",
    source="toy 1.0 Trainer.__init__",
    fixes=lambda sizes: (Fix(f"prompts = {sizes['prompts'] + 1}", {"prompts": sizes["prompts"] + 1}),),
    versions=">=1",
)
SILENT = replace(ROW, code="BB-TOY-050", severity="warning", phase="never")


def where(sizes: Sizes) -> Callable[[tuple[str, ...]], tuple[Where, ...]]:
    return lambda keys: tuple(Where(key, sizes[key]) for key in keys)


def test_a_broken_row_is_a_finding_with_places_and_ways_out() -> None:
    sizes = {"prompts": 3}
    (finding,) = findings([ROW], sizes, "1.0", where(sizes))
    assert (finding.code, finding.message) == ("BB-TOY-010", "prompts = 3 is odd")
    assert finding.where == (Where("prompts", 3),)
    assert finding.fixes == (Fix("prompts = 4", {"prompts": 4}),)
    assert (finding.native, finding.source) == ("ValueError", "toy 1.0 Trainer.__init__")


@pytest.mark.parametrize(("prompts", "version"), [(4, "1.0"), (3, "0.9")], ids=["kept", "another version"])
def test_a_row_is_silent_where_it_is_kept_or_not_about_the_version(prompts: int, version: str) -> None:
    sizes = {"prompts": prompts}
    assert findings([ROW], sizes, version, where(sizes)) == []
    assert defects([SILENT], sizes, version) == ()


def test_a_test_with_its_rows_above_it_is_a_test_and_rows_in_the_order_from_the_lowest() -> None:
    table = Rules[Sizes]()

    @table.add(NOTE, "BB-TOY-051", "prompts", "seed")
    @says("nothing", "toy 2.0", ">=2")
    @table.add(BUILDING, "BB-TOY-010", "prompts", fixes=ROW.fixes)
    @says("ValueError", "toy 1.0 Trainer.__init__", ">=1")
    def odd_too(sizes: Sizes) -> str | None:
        return odd(sizes)

    assert odd_too({"prompts": 3}) == "prompts = 3 is odd"
    assert table[0] == replace(ROW, test=odd_too)
    assert [(row.code, row.severity, row.keys, row.versions, row.fixes({})) for row in table[1:]] == [
        ("BB-TOY-051", "note", ("prompts", "seed"), ">=2", ())
    ]


def test_findings_stand_in_the_order_of_the_table() -> None:
    sizes = {"prompts": 3}
    assert [found.code for found in findings([SILENT, ROW], sizes, "1.0", where(sizes))] == ["BB-TOY-050", "BB-TOY-010"]


@pytest.mark.parametrize(
    ("phase", "defect", "found"),
    [("never", None, 1), ("never", False, 0), ("first_rollout", None, 0), ("first_rollout", True, 1)],
)
def test_a_row_may_say_whether_it_is_a_defect(phase: Phase, defect: bool | None, found: int) -> None:
    sizes = {"prompts": 3}
    row = replace(SILENT, phase=phase, defect=defect)
    assert len(defects([row], sizes, "1.0")) == found
    assert len(findings([row], sizes, "1.0", where(sizes))) == 1


def test_a_framework_that_says_nothing_is_not_quoted() -> None:
    sizes = {"prompts": 3}
    assert [one.native for one in findings([replace(ROW, native=None)], sizes, "1.0", where(sizes))] == [None]


def test_what_the_framework_says_may_depend_on_the_facts() -> None:
    sizes = {"prompts": 3}
    row = replace(ROW, native=lambda sizes: f"ValueError: {sizes['prompts']}")
    assert findings([row], sizes, "1.0", where(sizes))[0].native == "ValueError: 3"


def test_a_standing_row_is_a_defect_and_no_finding() -> None:
    sizes, row = {"prompts": 3}, replace(SILENT, severity="note", standing=True)
    assert findings([row], sizes, "1.0", where(sizes)) == []
    assert [defect.code for defect in defects([row], sizes, "1.0")] == ["BB-TOY-050"]


@pytest.mark.parametrize(
    ("row", "is_defect"),
    [
        (SILENT, True),
        (replace(SILENT, severity="error"), True),
        (replace(SILENT, severity="note"), False),
        (replace(SILENT, severity="error", undecided=True), False),
        (replace(SILENT, phase="optimizer_step"), False),
        (ROW, False),
    ],
    ids=["warning", "error", "note", "beyond the schema", "noticed late", "noticed at once"],
)
def test_a_defect_is_what_the_framework_never_reports_and_trains_otherwise(row: Rule[Sizes], is_defect: bool) -> None:
    assert bool(defects([row], {"prompts": 3}, "1.0")) == is_defect


def test_ways_out_say_what_they_change() -> None:
    assert setting_fixes() == ()
    assert setting_fixes({"a": 1, "b": None}, {"c": 2}) == (
        Fix("a = 1, b = None", {"a": 1, "b": None}),
        Fix("c = 2", {"c": 2}),
    )


def test_the_nearest_ways_out_change_the_named_settings_and_keep_the_others() -> None:
    native = {"step": 6, "rollout": 16, "other": "kept"}
    found = nearest_fixes(native, ("step",), lambda now: now["rollout"] % now["step"] == 0 and now["other"] == "kept")
    assert found == (Fix("step = 4", {"step": 4}), Fix("step = 8", {"step": 8}))
    assert nearest_fixes(native, ("step",), lambda now: False) == ()

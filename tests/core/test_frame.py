"""The kit's frame of an adapter: rows of rules by kind, what was said in OmegaConf's way, steps that are dealt out, and
the patches of a worker."""

from __future__ import annotations

from fractions import Fraction

import pytest

from batchbridge import Source, Where
from batchbridge.kit import Context, parse_arguments, set_on_top
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.native_steps import dealt_steps, rollouts_of
from batchbridge.kit.omegaconf_kinds import BOOL, FLOAT, INT, OPTIONAL_INT, TEXT, structured
from batchbridge.kit.omegaconf_settings import OmegaConfSettings, ValueFindings
from batchbridge.kit.rule_table import BUILDING, NOTE, OPEN, SILENT, STANDING, WRONG, defects, findings
from batchbridge.kit.writing import Problems

NATIVELY = ValueFindings(Codes.of("BB-TOY"), "it fails", "toy 1.0")
ROWS = (
    Key("a.size", INT, 1),
    Key("a.rate", FLOAT, 0.5),
    Key("b", OPTIONAL_INT),
    Key("nodes", INT, 1),
    Key("gpus", INT, 8),
)


def test_the_kind_of_a_row_decides_who_speaks_of_it():
    rows = [kind(f"BB-TOY-{at}", lambda facts: "so it is", ("b",), "", "") for at, kind in enumerate(KINDS)]
    spoken = [found.code[-1] for found in findings(rows, None, "1.0", lambda keys: ())]
    assert (spoken, [defect.code[-1] for defect in defects(rows, None, "1.0")]) == (
        ["0", "1", "2", "3", "5"],
        ["1", "2", "4"],
    )
    assert [row.undecided for row in rows] == [False, False, False, False, False, True]


KINDS = (BUILDING, SILENT, WRONG, NOTE, STANDING, OPEN)


def test_what_is_said_lies_over_the_defaults_and_an_empty_group_says_nothing():
    said = OmegaConfSettings()
    said.put("a", {}, Where("a"))
    said.put("b", {}, Where("b"))
    said.put("c", None, Where("c"), "delete")
    assert said.merged({"a.size": 2, "b": 3, "c": 1, "d": 4}) == {"a.size": 2, "b": {}, "d": 4}


@pytest.mark.parametrize(
    ("given", "unknown", "code", "text"),
    [
        ({"a.size": "many"}, {}, "BB-TOY-005", "a.size = many: expected an integer"),
        ({"a.size": "${oc.env:SIZE}"}, {}, "BB-TOY-006", "a.size is left open"),
        ({"a.size": "???"}, {}, "BB-TOY-005", "??? means that it is missing"),
        (
            {},
            {"a.size": ("SIZE",)},
            "BB-TOY-006",
            "a.size is left open: it depends on SIZE, which the script does not say",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_a_finding_with_its_key(given, unknown, code, text):
    said = OmegaConfSettings(unknown=unknown)
    said.put_mapping(given, {}, None)
    native, unread = NATIVELY.values(ROWS, said, {}, {})
    (found,) = said.findings
    assert (unread, native["a.size"], native["a.rate"]) == ({"a.size"}, None, 0.5)
    assert found.code == code
    assert text in found.message


def test_interpolations_follow_defaults_and_what_nobody_reads_is_at_its_own():
    said = OmegaConfSettings()
    said.put_mapping({"a": {"size": "${b}"}, "a.rate": 2}, {}, None)
    native, unread = NATIVELY.values(ROWS, said, {"b": 7}, {}, reads=lambda key: key != "a.rate")
    assert (native["a.size"], native["a.rate"], unread) == (7, 0.5, set())


def test_other_devices_than_the_configurations_are_a_warning():
    said = OmegaConfSettings()
    said.put_mapping({"gpus": 4}, {}, None)
    native = {"nodes": 2, "gpus": 4}
    assert NATIVELY.devices(native, "nodes", "gpus", said, Context()) == 8
    assert NATIVELY.devices(native, "nodes", "gpus", said, Context(world_size=16)) == 16
    assert [found.severity for found in said.findings] == ["warning"]


def test_what_is_set_on_top_of_words_counts():
    said = OmegaConfSettings()
    said.put("b", 1, Where("b"))
    said.put_on_top(Source(values={"b": 2, "c": 3}, argv=("b=1", "c=3")))
    assert (said.values, said.operations) == ({"b": 2}, {"b": "force"})


@pytest.mark.parametrize("also", ["--set", "other words"])
def test_what_is_on_top_of_parsed_words_is_told_from_them(also: str) -> None:
    words = ("b=1", "c=3", "d=[1, 2]")
    values = parse_arguments(words)
    assert set_on_top(values, words) == {}
    assert set_on_top(dict(values), words) == {}
    changed = {**values, "c": 4, "e": 5} if also == "--set" else parse_arguments(("b=1", "c=4", "e=5"))
    assert set_on_top(changed, words) == {"c": 4, "e": 5}


def test_a_structured_configuration_takes_text_for_numbers_and_flags():
    taken = [(INT, " 8"), (FLOAT, "1e2"), (FLOAT, "3"), (BOOL, "Yes"), (TEXT, "8"), (INT, 8)]
    assert [structured(kind).convert(text) for kind, text in taken] == [8, 100.0, 3.0, True, "8", 8]
    for kind, text in (
        (INT, "8.0"),
        (FLOAT, "much"),
        (BOOL, "perhaps"),
        (BOOL, 1.0),
        (BOOL, "1.0"),
        (TEXT, []),
        (INT, True),
    ):
        with pytest.raises(WrongValue):
            structured(kind).convert(text)


def test_a_structured_configuration_takes_numbers_for_flags_and_scalars_for_text():
    flags = [0, 1, -3, "0", " 2 ", "y", "N", "off", True]
    taken = [False, True, True, False, True, True, False, False, True]
    assert [structured(BOOL).convert(one) for one in flags] == taken
    assert [structured(TEXT).convert(one) for one in (3, 0.5, True)] == ["3", "0.5", "True"]


def test_steps_are_dealt_out_rollout_by_rollout_and_pass_by_pass():
    rollouts = rollouts_of([[2, 0, 1], [1, 2, 0]], prompts=2, size=3, most=5)
    tokens = {(prompt, sample): prompt + 1 for prompt in range(3) for sample in range(2)}
    steps = list(
        dealt_steps(
            rollouts,
            tokens,
            group=2,
            passes=2,
            deal=lambda rows: [[(0, rows[:2]), (1, rows[2:])]],
            weight=lambda length, total, lengths: Fraction(length, total * len(lengths)),
        )
    )
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert [(row.prompt, row.sample, row.rank, row.weight) for row in steps[0].rows] == [
        (2, 0, 0, Fraction(3, 16)),
        (2, 1, 0, Fraction(3, 16)),
        (0, 0, 1, Fraction(1, 16)),
        (0, 1, 1, Fraction(1, 16)),
    ]
    assert [step.rows[0].pass_index for step in steps] == [0, 1, 0, 1]
    assert list(rollouts_of([[0]], prompts=2, size=1, most=1)) == []


def test_problems_say_what_is_open_not_whole_or_without_a_word():
    problems = Problems()
    assert problems.given(0, "order.seed")
    assert not problems.given(None, "order.seed")
    assert (problems.whole(2.0, "horizon.epochs", "epochs"), problems.whole(2.5, "horizon.epochs", "epochs")) == (2, 2)
    words = {"mean": "token_mean", "average": "token_mean"}
    assert problems.word("token_mean", "loss.policy.aggregation", words) == "mean"
    assert problems.word("none", "loss.policy.aggregation", words) is None
    assert [problem.reason for problem in problems] == [
        "order.seed is open: the framework needs it",
        "horizon.epochs = 2.5: the framework takes whole epochs",
        "loss.policy.aggregation = none: the framework has token_mean",
    ]

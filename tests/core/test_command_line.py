"""Command lines as argparse takes them, held against argparse."""

import argparse
from pathlib import Path

import pytest

from batchbridge import Source
from batchbridge.kit.command_line import OptionArity, options_of, parse, refusals, strays
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import anything
from batchbridge.kit.parser_kinds import BOOL, FLOATS, INT, OPTIONAL_BOOL

OPTIONS = {
    "batch.size": OptionArity(),
    "batch.seed": OptionArity(),
    "clip": OptionArity(2),
    "bounds": OptionArity(None, least=1),
    "modules": OptionArity(None),
    "fast": OptionArity(0, True),
    "no_fast": OptionArity(0, False),
}


def parser():
    made = argparse.ArgumentParser(exit_on_error=False)
    for name, takes in OPTIONS.items():
        if takes.number == 0:
            made.add_argument(f"--{name}", dest=name, action="store_const", const=takes.constant)
        else:
            count = {2: 2, 1: None}.get(takes.number, "+" if takes.least else "*")
            made.add_argument(f"--{name}", dest=name, nargs=count)
    return made


def said(*words):
    return parse(words, OPTIONS, lambda name, value: None, str, Source(argv=words))


@pytest.mark.parametrize(
    "line",
    [
        "--batch.size 8 --fast",
        "--batch.size=8 --no_fast --batch.size 16",
        "--clip 0.2 0.28 --modules --batch.si 4",
        "--bounds 1 2 3 --modules q k -1 --fas",
        "--batch.seed -1 --modules",
    ],
)
def test_what_argparse_takes_is_taken_as_it_takes_it(line):
    words = line.split()
    known = {name: value for name, value in vars(parser().parse_args(words)).items() if value is not None}
    found = said(*words)
    assert (found.values, found.refused, found.strays) == (known, [], [])


@pytest.mark.parametrize(
    "line", ["--batch.size", "--clip 1", "--bounds", "--fast=1", "--batch.s 3", "stray", "--other 1"]
)
def test_what_argparse_refuses_is_found(line):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser().parse_args(line.split())
    found = said(*line.split())
    assert found.refused or found.ambiguous or found.strays or set(found.values) - set(OPTIONS)


def test_every_refusal_is_found_not_the_first_alone():
    found = said("--clip", "1", "--batch.size", "--other=2", "--", "--fast")
    assert [refused.name for refused in found.refused] == ["clip", "batch.size"]
    assert (found.values, found.strays) == ({"other": "2"}, ["--", "--fast"])


FIELDS = {
    row.key: row
    for row in (
        Key("num_epochs", INT, 1),
        Key("num_nodes", INT, 1),
        Key("beta", INT, 1),
        Key("shuffle_data", BOOL, True),
        Key("verbose", BOOL, False),
        Key("debug_mode", OPTIONAL_BOOL, None),
        Key("group_weights", FLOATS, None),
        Key("gone", INT, 1, fixed=True),
    )
}


def of_fields(line, *, strict=True, **more):
    words = line.split()
    options = options_of(FIELDS, {"other_list": Key("other_list", anything)}, strict=strict)
    source = Source(argv=words, path=Path("run.sh"), lines={"num-epochs": 2})
    return parse(words, options, lambda name, value: None, str, source, **more)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--num-epochs 2 --num_nodes=3", {"num_epochs": "2", "num_nodes": "3"}),
        ("--num_e 2 --bet 1", {"num_epochs": "2", "beta": "1"}),
        ("--no_shuffle_data --verbose", {"shuffle_data": False, "verbose": True}),
        ("--no-shuffle-data --verbose no", {"shuffle_data": False, "verbose": "no"}),
        ("--no_s --shuffle-data", {"shuffle_data": True}),
        ("--group-weights 1 2 --debug_mode true", {"group_weights": ["1", "2"], "debug_mode": "true"}),
        ("--other_list a b --no_other_list --num_epochs 1", {"other_list": False, "num_epochs": "1"}),
    ],
)
def test_a_field_is_set_by_each_of_its_options(line, values):
    found = of_fields(line)
    assert (found.values, found.refused, found.strays, found.ambiguous) == (values, [], [], {})


@pytest.mark.parametrize(
    "line",
    [
        *("--num-epochs_now 2", "--num 2", "--shuffle 0", "--no_verbose", "--gone 1", "--no_o", "--group_weights"),
        *("--debug_mode", "--num_epochs", "--no_shuffle_data=1", "--shuffle_data no x", "-n 3", "--shuffle-data_ 1"),
    ],
)
def test_what_stands_for_no_field_or_has_not_its_words_is_found(line):
    found = of_fields(line)
    assert (
        found.refused
        or found.ambiguous
        or found.strays
        or set(found.values) - {key for key, row in FIELDS.items() if not row.fixed}
    )


def test_a_field_s_place_is_that_of_the_option_as_it_is_written():
    place = of_fields("--num-epochs 2").places["num_epochs"]
    assert (place.key, place.value, place.file, place.line) == ("num_epochs", "2", "run.sh", 2)


def test_of_a_parser_that_is_not_known_each_option_may_stand_alone():
    found = of_fields("--debug_mode --num_epochs --bet 1 --no_shuffle_data", strict=False, abbreviates=False)
    values = {"debug_mode": True, "num_epochs": True, "bet": "1", "shuffle_data": False}
    assert (found.values, found.refused, found.abbreviated) == (values, [], {})


def test_findings_say_what_argparse_refuses():
    codes, line = Codes.of("BB-X"), of_fields("stray more --num 2 --num_epochs")
    found = [*refusals(line, codes, "a parser"), *strays(line, codes, "a parser")]
    assert [(one.code, one.source) for one in found] == [
        (code, "a parser") for code in ("BB-X-004", "BB-X-005", "BB-X-004")
    ]
    assert "--num could be short for num_epochs, num-epochs" in found[0].message
    assert found[1].message == "--num_epochs needs a value; given: nothing"
    assert found[2].message == "no option takes 'stray more'"

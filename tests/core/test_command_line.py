"""Command lines as argparse takes them, held against argparse."""

import argparse
from pathlib import Path

import pytest

from batchbridge import Source
from batchbridge.kit.command_line import Takes, options_of, parse, spelled, words_by_name
from batchbridge.reading.arguments import parse_arguments

OPTIONS = {
    "batch.size": Takes(),
    "batch.seed": Takes(),
    "clip": Takes(2),
    "bounds": Takes(None, least=1),
    "modules": Takes(None),
    "fast": Takes(0, True),
    "no_fast": Takes(0, False),
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


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("num-epochs", 2, ("num_epochs", 2)),
        ("num_ep", 2, ("num_epochs", 2)),
        ("no_shuffle", True, ("shuffle", False)),
        ("no_verbose", True, ("no_verbose", True)),
        ("num", 2, ("num", 2)),
    ],
)
def test_a_field_is_found_by_what_stands_for_it(key, value, meant):
    assert spelled(key, value, ["num_epochs", "num_steps", "shuffle", "verbose"], {"shuffle"}) == meant


def test_words_are_grouped_by_their_option():
    assert words_by_name(["run.py", "--a", "1", "2", "--b=3", "--c", "--d", "x"]) == {
        "a": ["1", "2"],
        "b": "3",
        "c": True,
        "d": "x",
    }


def test_keys_of_a_source_stand_for_fields_and_lists_are_taken_from_its_words():
    argv = ("run.py", "--num-devices", "2", "4", "--no_shuffle", "--seed", "1")
    values = {**parse_arguments(argv), "seed": 7, 3: "x"}
    source = Source(values=values, argv=argv, path=Path("run.sh"), lines={"num-devices": 2})
    found, places = options_of(source, {"num_devices", "shuffle", "seed"}, {"shuffle"})
    assert found == {"num_devices": ["2", "4"], "shuffle": False, "seed": 7, "3": "x"}
    assert (places["num_devices"].file, places["num_devices"].line) == ("run.sh", 2)
    assert (places["seed"].value, places["seed"].file) == (7, None)

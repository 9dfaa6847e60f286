"""Hydra's overrides and OmegaConf's rules, read without either; where both are installed they are the oracle."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.kit.hydra_overrides import NoOverride, NotRead, parse_override, parse_value, primitive
from batchbridge.kit.omegaconf import Resolver, Unresolved, number
from batchbridge_verl.forms import hydra_value

COMMANDS = json.loads((Path(__file__).parent / "commands.json").read_text(encoding="utf-8"))
WORDS = sorted({word for command in COMMANDS.values() for word in command["argv"] if "=" in word and word[0] != "-"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("16", 16),
        ("1_000", 1000),
        ("-1", -1),
        ("True", True),
        ("null", None),
        ("", ""),
        ("seq-mean-token-mean", "seq-mean-token-mean"),
        ("./data/x.parquet", "./data/x.parquet"),
        ("'1e-6'", "1e-6"),
        ('"a, b"', "a, b"),
        ("[console,wandb]", ["console", "wandb"]),
        ("['a', \"b\"]", ["a", "b"]),
        ("[]", []),
        ("{a:1,b:[2,x]}", {"a": 1, "b": [2, "x"]}),
        ("${data.max_prompt_length}", "${data.max_prompt_length}"),
        ("a\\,b", "a,b"),
        ("01", "01"),
        ("1.", 1.0),
        ("a: ", "a: "),
        ("a\\ ", "a "),
        ("'\\\\a'", "\\\\a"),
        ("'a\\\\'", "a\\"),
        ("'it\\'s'", "it's"),
    ],
)
def test_a_value_is_what_hydra_makes_of_it(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    ["1,2", "choice(1,2)", "range(1,3)", "[1", "{a:1", "'open", "a=b", "a;b", "<x>", "[1]]", "${a", "[1] ", "'a' "],
)
def test_a_form_that_is_not_evaluated_is_refused_by_name(text):
    with pytest.raises(NotRead):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "refused"),
    [("a}", True), ("[1", True), ("'open", True), ("${a", True), ("1,2", False), ("range(1,3)", False)],
)
def test_what_hydra_refuses_too_is_told_from_what_is_not_followed(text, refused):
    with pytest.raises(NotRead) as caught:
        parse_value(text)
    assert isinstance(caught.value, NoOverride) == refused


@pytest.mark.parametrize(
    ("word", "operation", "key"),
    [
        ("a.b=1", "set", "a.b"),
        ("+a.b=1", "add", "a.b"),
        ("++a.b=1", "force", "a.b"),
        ("~a.b", "delete", "a.b"),
        ("~a.b=1", "delete", "a.b"),
    ],
)
def test_the_sign_says_what_an_override_does(word, operation, key):
    override = parse_override(word)
    assert (override.operation, override.key) == (operation, key)


@pytest.mark.parametrize("word", ["a", "=1", "a@b=c", "$a=1", "a b=1"])
def test_a_word_that_is_no_override_is_refused(word):
    with pytest.raises(NotRead):
        parse_override(word)


@pytest.mark.parametrize("word", WORDS)
def test_published_overrides_are_what_hydra_makes_of_them(word):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="hydra is not installed")
    theirs = parser.OverridesParser.create().parse_override(word)
    assert parse_override(word).value == theirs.value()


@given(st.text(alphabet="ab1.e-+_[]{}:,'\" \\$()=tnul", max_size=12))
def test_whatever_is_read_is_what_hydra_reads(text):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="hydra is not installed")
    try:
        ours = parse_value(text)
    except NoOverride:
        with pytest.raises(Exception):  # noqa: B017, PT011 - of Hydra's lexer, parser or evaluation
            parser.OverridesParser.create().parse_override(f"a={text}")
        return
    except NotRead:
        return
    theirs = parser.OverridesParser.create().parse_override(f"a={text}").value()
    assert repr(ours) == repr(str(theirs) if isinstance(theirs, str) else theirs)


plain = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=8)


@given(st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_a_written_value_is_read_again(value):
    assert parse_value(hydra_value(value)) == value


@given(st.text(max_size=30))
def test_no_text_makes_the_reader_fail_otherwise(text):
    with contextlib.suppress(NotRead):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-6", 1e-6), (".5", 0.5), ("1.5", 1.5), ("16", None), ("-.inf", -math.inf), ("x", None)]
)
def test_text_that_omegaconf_takes_for_a_float(text, value):
    assert number(text) == value


def test_not_a_number_is_a_float_too():
    assert math.isnan(number(".nan"))


@pytest.mark.parametrize(
    "text", ["1e-6", ".5", "1.5", "16", "-.inf", "1_0.5", "1e5", "+1.e3", ".5e-3", "0x1", "1e", "."]
)
def test_omegaconf_reads_the_same_floats(text):
    utils = pytest.importorskip("omegaconf", reason="omegaconf is not installed")
    theirs = utils.OmegaConf.create(f"a: {text}").a
    assert (theirs if isinstance(theirs, float) else None) == number(text)


VALUES = {
    "a.n": 3,
    "a.same": "${a.n}",
    "a.near": "${.n}",
    "a.picked": "${oc.select:a.n,7}",
    "a.missing": "${oc.select:b.n,7}",
    "a.text": "runs/${a.n}/x",
    "a.inner": "${oc.select:b.n,${a.n}}",
    "a.chain": "${a.same}",
    "c.up": "${..a.n}",
    "a.none": "${oc.select:b.n}",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a.same", 3),
        ("a.near", 3),
        ("a.picked", 3),
        ("a.missing", 7),
        ("a.text", "runs/3/x"),
        ("a.inner", 3),
        ("a.chain", 3),
        ("c.up", 3),
        ("a.none", None),
    ],
)
def test_an_interpolation_refers_to_a_value(key, value):
    assert Resolver(VALUES).get(key) == value


@pytest.mark.parametrize("key", VALUES)
def test_omegaconf_follows_the_same_interpolations(key):
    omegaconf = pytest.importorskip("omegaconf", reason="omegaconf is not installed")
    config = omegaconf.OmegaConf.create({})
    for name, value in VALUES.items():
        omegaconf.OmegaConf.update(config, name, value, force_add=True)
    assert omegaconf.OmegaConf.select(config, key) == Resolver(VALUES).get(key)


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${oc.env:HOME,8}", "${oc.${a.n}:HOME}", "${eval:1+1}"])
def test_a_resolver_is_not_run(text):
    with pytest.raises(Unresolved):
        Resolver({"a.n": 3, "x": text}).get("x")


def test_an_environment_variable_is_named_and_can_be_given():
    with pytest.raises(Unresolved) as caught:
        Resolver({"x": "${oc.env:NODES,1}"}).get("x")
    assert caught.value.variable == "NODES"
    assert Resolver({"x": "${oc.env:NODES,1}"}, {"NODES": "4"}).get("x") == "4"


def test_interpolations_in_a_circle_are_refused():
    with pytest.raises(Unresolved, match="leads back"):
        Resolver({"x": "${y}", "y": "${x}"}).get("x")


def test_numbers_too_long_to_be_sizes_stay_text():
    assert isinstance(primitive("9" * 5000), str)

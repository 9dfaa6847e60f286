"""Inputs become sources; whatever is wrong with a file is a finding with its line, and nothing in it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from batchbridge.contract.reading import Source
from batchbridge.reading import arguments, files, yaml_json


def load_text(folder: Path, text: str | bytes, name: str = "run.yaml") -> Source:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.load_source(path)


def codes(source: Source) -> list[str]:
    return [problem.code for problem in source.problems]


def test_a_yaml_file_gives_values_and_the_line_of_every_key(tmp_path: Path) -> None:
    source = load_text(tmp_path, "# recipe\nlr: 1\ntrainer:\n  nodes: 2\n\n  deep: {a: [1, 2]}\n")
    assert source.values == {"lr": 1, "trainer": {"nodes": 2, "deep": {"a": [1, 2]}}}
    assert source.lines == {"lr": 2, "trainer": 3, "trainer.nodes": 4, "trainer.deep": 6, "trainer.deep.a": 6}
    assert source.problems == ()


def test_scalars_stay_as_pyyaml_reads_them(tmp_path: Path) -> None:
    assert load_text(tmp_path, "a: 1e-6\nb: on\nc: 0o17\nd: 1_000\n").values == {
        "a": "1e-6",
        "b": True,
        "c": "0o17",
        "d": 1000,
    }


def test_keys_stay_as_the_user_wrote_them(tmp_path: Path) -> None:
    assert set(load_text(tmp_path, "on: 1\n007: 2\n~: 3\n").values) == {"on", "007", "~"}


def test_a_json_file_gives_values_and_the_line_of_every_key(tmp_path: Path) -> None:
    source = load_text(tmp_path, '{\n "lr": 1e-6,\n "a": {"b": [{"c": 1}, {"c": 2}]},\n "d": "{}:,"\n}', "run.json")
    assert source.values == {"lr": 1e-6, "a": {"b": [{"c": 1}, {"c": 2}]}, "d": "{}:,"}
    assert source.lines == {"lr": 2, "a": 3, "a.b": 3, "a.b[0].c": 3, "a.b[1].c": 3, "d": 4}


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.yaml", "a:\n  b: 1\n  c: 2\n  b: 3\n"), ("run.json", '{"a": {\n"b": 1,"c": 2,\n\n"b": 3}}')],
)
def test_a_duplicate_key_is_a_warning_that_names_both_lines_and_the_last_one_counts(
    tmp_path: Path, name: str, text: str
) -> None:
    source = load_text(tmp_path, text, name)
    (problem,) = source.problems
    assert (problem.code, problem.severity) == ("BB008", "warning")
    assert "a.b is set twice, in line 2 and in line 4" in problem.message
    assert source.values == {"a": {"b": 3, "c": 2}}


def test_merge_keys_yield_to_own_keys(tmp_path: Path) -> None:
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nrun:\n  <<: [*base, *other]\n  a: 9\n"
    assert load_text(tmp_path, text).values["run"] == yaml.safe_load(text)["run"] == {"a": 9, "b": 2, "c": 4}


BROKEN = {
    "no YAML": ("a: [1, 2\nb: }", "BB004", 2),
    "a key without a colon": ("a: 1\nb:2\nc: 3", "BB004", 2),
    "a tab as indentation": ("a:\n\tb: 1", "BB004", 2),
    "two documents": ("a: 1\n---\nb: 2", "BB004", 2),
    "an undefined alias": ("a: 1\nb: *x", "BB004", 2),
    "a merge of a number": ("a: 1\n<<: 2", "BB004", 2),
    "a control character": ("a: 1\nb: \x07", "BB004", 2),
    "a list": ("- 1\n- 2", "BB005", 1),
    "a word": ("word", "BB005", 1),
    "nothing": ("", "BB005", None),
    "a comment": ("# nothing", "BB005", None),
    "a list as key": ("a: 1\n[1]: 2", "BB005", 2),
    "a Python object": ("a: 1\nb: !!python/object/apply:os.system ['true']", "BB006", 2),
    "a Python name": ("a: !!python/name:os.system", "BB006", 1),
    "a tag of one's own": ("a: 1\nb: !env HOME", "BB006", 2),
    "a set": ("a: !!set {x, y}", "BB006", 1),
    "a mapping tag on a scalar": ("a: !!map x", "BB009", 1),
    "a text tag on a mapping": ("a: !!str {x: 1}", "BB006", 1),
    "a date that does not exist": ("a: 1\nb: 2026-99-99", "BB009", 2),
    "a number of 10,000 digits": ("a: " + "9" * 10_000, "BB009", 1),
    "a recursive alias": ("a: &a\n  b: *a", "BB007", 2),
    "deep flow nesting": ("a: " + "[" * 500 + "]" * 500, "BB007", 1),
    "deep block nesting": ("\n".join(" " * i + "a:" for i in range(200)), "BB007", 64),
    "a billion laughs": (
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 64)),
        "BB007",
        14,
    ),
    "a billion merged laughs": (
        "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 64)),
        "BB007",
        None,
    ),
    "a million values": ("a: [" + "1," * 200_000 + "]", "BB007", 1),
    "invalid UTF-8": (b"a: 1\nb: \xff\xfe", "BB003", 2),
    "NUL": (b"a: 1\nb: \x00", "BB003", 2),
    "a binary file": (bytes(range(256)), "BB003", None),
    "a shebang": ("#!/usr/bin/perl\nprint 1", "BB043", 1),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_one_finding_with_its_line(tmp_path: Path, kind: str) -> None:
    text, code, line = BROKEN[kind]
    source = load_text(tmp_path, text)
    assert codes(source) == [code]
    (where,) = source.problems[0].where
    assert where.file == str(tmp_path / "run.yaml")
    assert line is None or where.line == line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("passwd", "sesame:x:0:0:sesame:/:/bin/sh\nother:x:1"),
        ("a.yaml", "- sesame"),
        ("a.yaml", "!sesame x"),
        ("a.yaml", "!!int sesame"),
        ("a.yaml", "'sesame\n"),
        ("a.json", '"sesame"'),
        ("a.json", "sesame"),
        ("a.toml", "sesame"),
        ("a", "#!/bin/sesame\n"),
    ],
)
def test_a_file_that_is_no_mapping_is_named_and_not_quoted(tmp_path: Path, name: str, text: str) -> None:
    (problem,) = load_text(tmp_path, text, name).problems
    assert "sesame" not in str(problem)
    assert problem.where[0].file == str(tmp_path / name)


BROKEN_JSON = {
    "no JSON": ('{"a": 1,\n"b": }', "BB004", 2),
    "a list": ("[1]", "BB005", 1),
    "nothing": ("  ", "BB005", None),
    "deep nesting": ("[" * 100_000, "BB007", 1),
    "a number of 10,000 digits": ('{"a": ' + "9" * 10_000 + "}", "BB004", None),
    "a million values": ('{"a": [' + "1," * 200_000 + "1]}", "BB007", 1),
}


@pytest.mark.parametrize("kind", BROKEN_JSON)
def test_a_broken_json_file_is_one_finding(tmp_path: Path, kind: str) -> None:
    text, code, line = BROKEN_JSON[kind]
    source = load_text(tmp_path, text, "run.json")
    assert codes(source) == [code]
    assert line is None or source.problems[0].where[0].line == line


def test_a_huge_file_is_refused_by_its_size_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(1 << 30)
    started = time.process_time()
    assert codes(files.load_source(path)) == ["BB002"]
    assert time.process_time() - started < 0.5


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    assert files.load_source(tmp_path / "none.yaml").problems[0].message == "there is no such file"


def test_a_tab_in_yaml_is_answered_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n\tb: 1\n", encoding="utf-8")
    (found,) = files.load_source(tmp_path / "a.yaml").problems
    assert (found.code, found.fixes[0].text) == ("BB004", "indent with blanks: YAML takes no tabs")


def test_a_directory_is_a_finding(tmp_path: Path) -> None:
    assert "directory" in files.load_source(tmp_path).problems[0].message


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert codes(files.load_source(tmp_path / "pipe.yaml")) == ["BB001"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert codes(files.load_source(path)) == ["BB001"]


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, ""])
def test_a_path_that_no_system_has_is_a_finding(path: str) -> None:
    assert codes(files.load_source(path)) == ["BB001"]


def test_a_python_file_that_is_none_is_a_finding(tmp_path: Path) -> None:
    source = load_text(tmp_path, "trl grpo --config x.yaml", "train.py")
    assert codes(source) == ["BB010"]
    assert source.problems[0].message == "this file is not read: invalid syntax"


def test_a_tag_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    load_text(tmp_path, f"a: !!python/object/apply:pathlib.Path.touch [{witness}]")
    assert not witness.exists()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load_text(tmp_path, "a: 1".encode("utf-8-sig")).values == {"a": 1}
    assert load_text(tmp_path, "a: 1".encode("utf-16")).values == {"a": 1}


def test_the_worst_file_of_the_largest_size_costs_seconds(tmp_path: Path) -> None:
    started = time.process_time()
    load_text(tmp_path, "a: " + "x" * (files.MAX_BYTES - 3))
    load_text(tmp_path, "a: '" + "x\n\n" * (files.MAX_BYTES // 3 - 5) + "'")
    assert time.process_time() - started < 20


def test_an_override_wins_over_the_file_and_its_line_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("a:\n  b: 1\n  c: 2\nd: 3\n")
    source = files.load_source(path, overrides={"a.b": 9, "d": 8, "e.f": 7})
    assert source.values == {"a": {"b": 9, "c": 2}, "d": 8, "e.f": 7}
    assert source.lines == {"a": 1, "a.c": 3}


def test_an_override_does_not_change_the_callers_dict() -> None:
    values = {"a": {"b": 1}}
    files.load_source(values, overrides={"a.b": 2})
    assert values == {"a": {"b": 1}}


def test_arguments_give_values_in_the_frameworks_spelling() -> None:
    argv = ["python", "-m", "train", "--lr", "0.5", "--bf16", "--group=8", "data.size=32", "./x.py", "--name", "[a"]
    source = files.load_source(argv)
    assert source.values == {"lr": 0.5, "bf16": True, "group": 8, "data.size": 32, "name": "[a"}
    assert source.argv == tuple(argv)


def test_an_object_stays_an_object() -> None:
    thing = object()
    assert files.load_source(thing).native is thing


@pytest.mark.parametrize("wrong", [None, b"a: 1", 3, 2.5, True, {1, 2}, ["--a", 1]])
def test_a_source_of_a_wrong_type_raises(wrong: object) -> None:
    with pytest.raises(TypeError):
        files.load_source(wrong)


def test_a_dict_with_keys_that_are_no_strings_is_a_finding() -> None:
    assert codes(files.load_source({1: 2})) == ["BB005"]


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("", None), ("''", ""), ("[1, 2]", [1, 2]), ("a: b", {"a": "b"})]
)
def test_a_scalar_is_parsed_as_yaml(text: str, value: object) -> None:
    assert arguments.parse_scalar(text) == value


def test_a_scalar_that_is_no_yaml_raises_with_the_reason() -> None:
    with pytest.raises(ValueError, match="not YAML"):
        arguments.parse_scalar("[1")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=1), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), PLAIN, min_size=1))
def test_plain_documents_are_read_as_pyyaml_reads_them(values: dict[str, Any]) -> None:
    text = yaml.safe_dump(values)
    assert yaml_json.parse_yaml(text, "").value == yaml.safe_load(text)


_SCALARS = st.sampled_from([*"aZ_/.-019e~:#'[{\n+xé ", "true", "NULL", "On", "yes"])


@given(st.lists(_SCALARS, max_size=6).map("".join))
@example("0" * 20)
@example("9" * 19)
def test_a_scalar_that_needs_no_parser_is_what_the_parser_makes_of_it(text: str) -> None:
    document = yaml_json.parse_yaml(text, "")
    if any(found.severity == "error" for found in document.problems):
        with pytest.raises(ValueError, match=r"."):
            arguments.parse_scalar(text)
    else:
        value = arguments.parse_scalar(text)
        assert (type(value), value) == (type(document.value), document.value)

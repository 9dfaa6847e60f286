"""Edits of YAML texts: the asked values change, and not a byte beside them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from batchbridge.comparing.edit_yaml import REMOVED, edit, scalar
from batchbridge.errors import CannotEdit

TEXT = """\
# How we train.  Do not touch the seed!
data:
    train_batch_size: 512   # prompts
    'files': [a.parquet,   b.parquet]

    shuffle: yes
actor:  # the policy
    lr: 1e-6
    ratio: !!float 1
    micro: &micro 8
    # a comment before a nested group
    optim:
        name: "adam" # quoted
        betas: {first: 0.9,  second: 0.999}
ref:
    micro: *micro
note: |
    Plain   text,
      kept as it is.

empty:
# the end
"""


def lines_of(text: str) -> list[str]:
    return text.split("\n")


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        (
            {"data.train_batch_size": 64},
            "    train_batch_size: 512   # prompts",
            "    train_batch_size: 64   # prompts",
        ),
        ({"actor.lr": 2e-06}, "    lr: 1e-6", "    lr: 2.0e-06"),
        ({"data.shuffle": False}, "    shuffle: yes", "    shuffle: false"),
        ({"data.files": ["c"]}, "    'files': [a.parquet,   b.parquet]", "    'files': [c]"),
        ({"actor.optim.name": "sgd"}, '        name: "adam" # quoted', '        name: "sgd" # quoted'),
        ({"actor.ratio": 2.0}, "    ratio: !!float 1", "    ratio: 2.0"),
        (
            {"actor.optim.betas.second": 0.95},
            "        betas: {first: 0.9,  second: 0.999}",
            "        betas: {first: 0.9,  second: 0.95}",
        ),
        (
            {"actor.optim.betas.first": REMOVED},
            "        betas: {first: 0.9,  second: 0.999}",
            "        betas: {second: 0.999}",
        ),
        (
            {"actor.optim.betas.third": 1},
            "        betas: {first: 0.9,  second: 0.999}",
            "        betas: {first: 0.9,  second: 0.999, third: 1}",
        ),
        ({"ref.micro": 4}, "    micro: *micro", "    micro: 4"),
        ({"empty": None}, "empty:", "empty: null"),
    ],
)
def test_one_line_changes_and_no_other(changes: dict[str, Any], old: str, new: str) -> None:
    expected = [new if line == old else line for line in lines_of(TEXT)]
    assert lines_of(edit(TEXT, changes)) == expected


def test_a_new_key_comes_last_in_its_group() -> None:
    expected = TEXT.replace("    shuffle: yes\n", "    shuffle: yes\n    seed: 1\n")
    assert edit(TEXT, {"data.seed": 1}) == expected


def test_a_new_group_is_indented_as_the_others() -> None:
    assert edit(TEXT, {"trainer.sizes.nnodes": 2}) == TEXT.replace(
        "empty:\n", "empty:\ntrainer:\n    sizes:\n        nnodes: 2\n"
    )


def test_a_key_without_a_value_becomes_a_group() -> None:
    assert edit(TEXT, {"empty.full": 1}) == TEXT.replace("empty:\n", "empty:\n    full: 1\n")


def test_a_removed_key_takes_its_line_along_and_no_comment_above() -> None:
    assert edit(TEXT, {"data.train_batch_size": REMOVED}) == TEXT.replace("    train_batch_size: 512   # prompts\n", "")


def test_a_group_that_loses_its_last_key_goes() -> None:
    assert edit(TEXT, {"ref.micro": REMOVED}) == TEXT.replace("ref:\n    micro: *micro\n", "")


def test_a_block_of_text_is_replaced_whole() -> None:
    replaced = TEXT.replace("note: |\n    Plain   text,\n      kept as it is.\n", "note: short\n")
    assert edit(TEXT, {"note": "short"}) == replaced


def test_a_list_in_lines_becomes_a_list_in_one() -> None:
    assert edit("a:  # why\n  - 1\n  - 2\nb: 3\n", {"a": [4]}) == "a: [4]  # why\nb: 3\n"


def test_an_alias_keeps_the_old_value_of_an_anchor_that_changes() -> None:
    changed = TEXT.replace("&micro 8", "16").replace("*micro", "&micro 8")
    assert edit(TEXT, {"actor.micro": 16}) == changed


def test_an_alias_stays_where_it_is_to_change_as_its_anchor_does() -> None:
    assert edit(TEXT, {"actor.micro": 16, "ref.micro": 16}) == TEXT.replace("&micro 8", "&micro 16")


def test_an_anchor_that_goes_is_taken_over_by_its_alias() -> None:
    removed = TEXT.replace("    micro: &micro 8\n", "").replace("*micro", "&micro 8")
    assert edit(TEXT, {"actor.micro": REMOVED}) == removed


def test_a_merged_key_is_set_where_it_counts() -> None:
    text = "base: &base\n  x: 1\nown:\n  <<: *base\n  y: 2\n"
    assert edit(text, {"own.x": 3}) == text + "  x: 3\n"


@pytest.mark.parametrize("end", ["", "\n", "\n\n# tail", "\n...\n"])
def test_the_end_of_a_text_stays(end: str) -> None:
    assert edit(f"a: 1{end}", {"b": 2}) == f"a: 1\nb: 2{end}"


def test_all_keys_of_a_text_may_be_others_afterwards() -> None:
    assert edit("a: 1\nb: 2", {"a": REMOVED, "b": REMOVED, "c": 3}) == "c: 3"


@pytest.mark.parametrize("changes", [{"data.seed": 1, "x.y": 2}, {"actor.lr": 1.0}, {"actor.micro": REMOVED}])
def test_dos_line_ends_stay(changes: dict[str, Any]) -> None:
    assert edit(TEXT.replace("\n", "\r\n"), changes) == edit(TEXT, changes).replace("\n", "\r\n")


def test_other_scripts_and_pictures_stay() -> None:
    text = '名: "größe 🚀"\n名前: テスト # ∞ 😀\nn: 1\n'
    assert edit(text, {"n": 2, "名前": "ü"}) == '名: "größe 🚀"\n名前: "ü" # ∞ 😀\nn: 2\n'


@pytest.mark.parametrize(
    ("text", "changes", "why"),
    [
        ("a: 1\na: 2\n", {"a": 3}, "a is set twice"),
        ("a: 1\n---\nb: 2\n", {"a": 3}, "another document"),
        ("a: !!python/name:os.system\n", {"b": 1}, "tags are not followed"),
        ("a: [1\n", {"a": 3}, "not YAML"),
        ("a: &a [*a]\n", {"b": 3}, "alias"),
        ("- 1\n", {"a": 3}, "not a mapping"),
        ("a: text\n", {"a.b": 3}, "would have to be a group"),
        ("a: &x {b: 1}\nc: *x\n", {"c.b": 3}, "is an alias"),
        ("a: &x {b: 1}\nc: *x\n", {"a.b": 3}, "c.b would change too"),
        ("a: &x {b: 1}\nc: *x\n", {"a": REMOVED}, "used elsewhere"),
        ("a: &x\n  b: 1\nc:\n  <<: *x\n", {"a.b": 3}, "c.b would change too"),
        ("? [1]\n: 2\n", {"a": 3}, "a key is a list"),
        ("", {"a": 3}, "empty"),
        ("a: {b: 1}\n", {"a": 3, "a.b": 4}, "a, which holds it"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_name(text: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotEdit, match=why):
        edit(text, changes)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x7f"), max_size=12)
)


@given(value=VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3))
def test_a_written_value_is_the_value_that_is_read(value: Any) -> None:
    assert yaml.safe_load(f"a: {scalar(value)}") == {"a": value}


@pytest.mark.parametrize("word", ["no", "On", "null", "~", "1", "1e3", "0x1", "a: b", "#", "", "2020-01-01", "y", "-"])
def test_a_text_that_would_be_read_as_something_else_is_quoted(word: str) -> None:
    assert yaml.safe_load(scalar(word)) == word
    assert scalar(word).startswith('"')


KEYS = st.sampled_from(["a", "b", "c", "d"])
COMMENTS = st.sampled_from(["", "  # why", "   #x"])
SPELLED = st.sampled_from(
    ["1", "'t'", '"t"', "[1, 2]", "{x: 1,  y: 2}", "", "~", "1e-6", "&m 8", "|\n{in}text\n{in}  more"]
)


@st.composite
def texts(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Lines of a random mapping, with comments and blank lines."""
    lines: list[str] = []
    pad = " " * draw(st.sampled_from([2, 4])) * depth
    for key in draw(st.lists(KEYS, min_size=1, max_size=4, unique=True)):
        lines += draw(st.sampled_from([[], [f"{pad}# about {key}"], [""]]))
        if depth < 2 and draw(st.booleans()):
            lines += [f"{pad}{key}:{draw(COMMENTS)}", *draw(texts(depth=depth + 1))]
        else:
            spelled = draw(SPELLED).replace("{in}", pad + "  ")
            comment = "" if "|" in spelled else draw(COMMENTS)
            lines += f"{pad}{key}: {spelled}{comment}".split("\n")
    return lines


@given(
    lines=texts(),
    paths=st.lists(st.lists(KEYS, min_size=1, max_size=3).map(".".join), min_size=1, max_size=4, unique=True),
    value=st.integers(0, 9) | st.just("word"),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_comments_outlive_any_new_value(lines: list[str], paths: list[str], value: Any, newline: str) -> None:
    text = newline.join(line.replace("&m", f"&m{number}") for number, line in enumerate(lines)) + newline
    before = yaml.safe_load(text)
    assume(not any(one != other and other.startswith(f"{one}.") for one in paths for other in paths))
    assume(not any(isinstance(value_at(before, path), dict) for path in paths))
    changes = dict.fromkeys(paths, value)
    try:
        result = edit(text, changes)  # which reads the result, and compares every value
    except CannotEdit:
        assume(False)
    assert [line for line in result.split(newline) if line.strip().startswith("#")] == [
        line for line in lines if line.strip().startswith("#")
    ]
    assert all(value_at(yaml.safe_load(result), path) == value for path in paths)
    assert edit(result, changes) == result


def value_at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values

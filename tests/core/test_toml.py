"""TOML files: values as Python's parser has them, the line of every key, and what is wrong as findings."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchbridge.kit import load_source
from batchbridge.kit.config_texts import nested_toml
from batchbridge.reading.toml import parse_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPE = """\
max_steps = 20  # a comment with = and [
title = "a # no comment \\" = 1"
"quoted.key" = 1

[trainer.optim]
lr = 3e-6
betas.first = 0.9
text = '''
[no.table]
no = "key"
'''

[[source]]
name = "one"
gates = { zero = { type = "range", bounds = [0, 1] }, none = {} }
[source.env]
id = 1

[[source]]
name = "two"
list = [
  1,  # a comment ]
  { a = 1, b = [[2], [3, { c = 4 }]] },
]
[source.env]
id = 2
when = 1979-05-27T07:32:00Z
"""
LINES = {
    "max_steps": 1,
    "title": 2,
    "quoted.key": 3,
    "trainer.optim": 5,
    "trainer.optim.lr": 6,
    "trainer.optim.betas.first": 7,
    "trainer.optim.text": 8,
    "source": 13,
    "source[0]": 13,
    "source[0].name": 14,
    "source[0].gates": 15,
    "source[0].gates.zero": 15,
    "source[0].gates.zero.type": 15,
    "source[0].gates.zero.bounds": 15,
    "source[0].gates.none": 15,
    "source[0].env": 16,
    "source[0].env.id": 17,
    "source[1]": 19,
    "source[1].name": 20,
    "source[1].list": 21,
    "source[1].list[1].a": 23,
    "source[1].list[1].b": 23,
    "source[1].list[1].b[1][1].c": 23,
    "source[1].env": 25,
    "source[1].env.id": 26,
    "source[1].env.when": 27,
}
BROKEN = {
    "no value": ("a = 1\nb =\n", 2, "BB004"),
    "a table twice": ("[a]\nb = 1\n[a]\n", 3, "BB004"),
    "a key twice": ("a = 1\na = 2\n", 2, "BB004"),
    "an open text": ('a = "b\n', 1, "BB004"),
    "an open list": ("a = [1,\n2\n", 2, "BB004"),
    "brackets alone": ("]]}}[[\n", 1, "BB004"),
    "a number without end": ("a = " + "9" * 5000 + "\n", None, "BB004"),
    "nested lists": ("a = 1\nb = " + "[" * 5000 + "]" * 5000, 2, "BB007"),
    "nested tables": ("a = " + "{a = " * 5000 + "1" + "}" * 5000, 1, "BB007"),
    "a deep header": ("[" + ".".join("a" * 5000) + "]\n", 1, "BB007"),
    "a deep key": (".".join("a" * 5000) + " = 1\n", 1, "BB007"),
    "many values": ("a = [" + "1," * 250_000 + "]\n", 1, "BB007"),
    "empty": ("# nothing\n", None, "BB005"),
}


def _write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_bytes(text.encode())
    return path


def test_a_toml_file_gives_values_and_the_line_of_every_key(tmp_path: Path) -> None:
    source = load_source(_write(tmp_path, RECIPE))
    assert source.values == tomllib.loads(RECIPE)
    assert (source.problems, dict(source.lines)) == ((), LINES)


def test_windows_lines_are_lines(tmp_path: Path) -> None:
    source = load_source(_write(tmp_path, RECIPE.replace("\n", "\r\n")))
    assert (source.values, dict(source.lines)) == (tomllib.loads(RECIPE), LINES)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_one_finding_with_its_line(tmp_path: Path, kind: str) -> None:
    text, line, code = BROKEN[kind]
    (found,) = load_source(_write(tmp_path, text)).problems
    assert (found.code, found.severity) == (code, "error")
    assert code == "BB005" or (found.where[0].file or "").endswith("recipe.toml")
    assert line is None or found.where[0].line == line


def test_the_worst_file_of_the_largest_size_costs_seconds(tmp_path: Path) -> None:
    for piece in ('"""\\', "a.b.c = 1\n", "[a]\n", "[[a.b]]\n", "a={", "'", '"', "a\n", "[", "# \n"):
        started = time.perf_counter()
        parse_toml(piece * ((1 << 20) // len(piece)), "")
        assert time.perf_counter() - started < 10, piece


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{place}]") if isinstance(inner, (dict, list)) else ()
        yield path
    else:
        yield path


def test_whatever_is_in_a_file_it_is_read_as_python_reads_it_or_refused() -> None:
    """Mutations of a real file: the parser's verdict and values, never an exception, a line for every leaf."""
    chance, kept = random.Random(16), 0
    pieces = [
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\n",
        '"',
        "'",
        '"""',
        "'''",
        "#",
        "a",
        "1",
        " ",
        "\\",
        "[[a]]\n",
        "\0",
    ]
    for _ in range(3000):
        text = RECIPE
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(pieces) + text[at + chance.randint(0, 3) :]
        document = parse_toml(text, "")
        try:
            expected = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            assert [found.code for found in document.problems] == ["BB004"], text
            continue
        kept += 1
        assert (document.problems, document.value) == ([], expected), text
        missing = [leaf for leaf in _leaves(expected) if "[" not in leaf and leaf not in document.lines]
        assert not missing, (missing, text)
    assert kept > 200


def test_settings_written_as_toml_are_read_back() -> None:
    values = {
        "steps": 3,
        "a.b": 1e-06,
        "a.c.d e": [1, 2.5, True, 'x\x7f\n"é😀', {"k": {"j": []}, "n": {}}],
        "f": float("inf"),
        "a.g": False,
        "a.none": None,
    }
    text = nested_toml(values)
    tree = {
        "steps": 3,
        "f": float("inf"),
        "a": {"b": 1e-06, "g": False, "c": {"d e": values["a.c.d e"]}},
    }
    assert tomllib.loads(text) == tree
    assert text.startswith("steps = 3\nf = inf\n\n[a]\nb = 1e-06\ng = false\n")

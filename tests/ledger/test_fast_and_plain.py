"""With orjson and without it: the same lines read back, and the same answers of `diff`."""

from __future__ import annotations

import copy
import enum
import json
import math
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_ledger import header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import COLUMNS, Writer, diff, read_steps, speedups

LIBRARIES = {"plain": (), "orjson": ("orjson",)}
ORJSON = pytest.importorskip("orjson", reason="the extra `speed` is not installed: there is one path only")


@contextmanager
def libraries(*names: str) -> Iterator[None]:
    """Only these libraries are installed, as far as the ledger can tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "orjson", ORJSON if "orjson" in names else None)
        yield


# ---- writing

FLOATS = st.floats() | st.integers() | st.none() | st.booleans() | st.sampled_from([0.0, -0.0, 1e-6, 1e16, 5e-324])
INTS = st.integers() | st.booleans()
TEXTS = st.text(max_size=4) | st.text(alphabet="0123456789abcdef", min_size=16, max_size=16)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("rollout", "pass_index", "prompt", "sample", "response_tokens", "generated_at_step"), INTS),
    **dict.fromkeys(("prompt_fingerprint", "completion_fingerprint", "old_logprobs"), TEXTS | st.none()),
    **dict.fromkeys(("reward", "advantage", "weights"), FLOATS),
}


@st.composite
def columns(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Columns of any values that JSON has, many of them constant, and of any length."""
    rows = draw(st.integers(0, 5))
    return {
        name: draw(st.lists(values, min_size=rows, max_size=rows) | values.map(lambda value: [value] * rows))
        for name, values in VALUES.items()
    }


def spelled(value: Any) -> Any:
    """As `json` reads it back, in every bit."""
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else repr(repr(value))


@given(columns())
def test_a_line_reads_back_as_the_record_whichever_library_wrote_it(values: dict[str, list[Any]]) -> None:
    step = record(0, [], **values)
    plain = json.dumps(step.to_dict(), separators=(",", ":"), allow_nan=False).encode() + b"\n"
    with libraries():
        assert step.to_line() == plain
    with libraries("orjson"):
        line = step.to_line()
    assert line.count(b"\n") == 1
    assert repr(json.loads(line)) == repr(json.loads(plain))


@given(columns())
def test_the_record_s_dict_has_every_value_and_texts_for_floats_that_json_lacks(values: dict[str, list[Any]]) -> None:
    written = record(0, [], **values).to_dict()
    for name, column in values.items():
        shown = written["pass" if name == "pass_index" else name]
        assert [spelled(value) for value in column] == list(map(repr, shown))


@pytest.mark.parametrize("names", LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_a_negative_zero_keeps_its_sign(names: Sequence[str], values: list[float]) -> None:
    step = record(0, [], **{column: values if column == "advantage" else [1, 1] for column in VALUES})
    with libraries(*names):
        assert repr(json.loads(step.to_line())["advantage"]) == repr(values)


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("name", ["prompt", "old_logprobs", "reward"])
@pytest.mark.parametrize("value", [object(), uuid.UUID(int=1), Colour.RED, {1}, numpy.int64(1), numpy.float32(1.0)])
def test_what_json_cannot_write_is_refused_by_both(name: str, value: Any) -> None:
    step = record(0, [], **{column: [value if column == name else 1] for column in VALUES})
    for names in LIBRARIES.values():
        with libraries(*names), pytest.raises((TypeError, ValueError)):
            step.to_line()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_float_that_json_lacks_is_refused_where_no_float_belongs(value: float) -> None:
    step = record(0, [], **{column: [value if column == "prompt" else 1] for column in VALUES})
    for names in LIBRARIES.values():
        with libraries(*names), pytest.raises(ValueError, match="JSON compliant"):
            step.to_line()


@pytest.mark.parametrize(("first", "second"), [((), ("orjson",)), (("orjson",), ())])
def test_one_ledger_may_be_written_by_both_and_repaired_by_either(
    tmp_path: Path, first: Sequence[str], second: Sequence[str]
) -> None:
    with libraries(*first), Writer(tmp_path / "mixed", header()) as writer:
        for step in range(3):
            writer.append(record(step, rows_of(step), advantage=[1e-7, 1e22, math.nan, 0.1 + 0.2]))
    path = tmp_path / "mixed" / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with libraries(*second), Writer(tmp_path / "mixed", header(started="resumed", at_step=2)) as writer:
        writer.append(record(2, rows_of(2), advantage=[1e-7, 1e22, math.nan, 0.1 + 0.2]))
    with libraries(), Writer(tmp_path / "whole", header()) as writer:
        for step in range(3):
            writer.append(record(step, rows_of(step), advantage=[1e-7, 1e22, math.nan, 0.1 + 0.2]))
    for names in LIBRARIES.values():
        with libraries(*names):
            assert diff(tmp_path / "mixed", tmp_path / "whole", exact=True).equal
            assert repr(list(read_steps(tmp_path / "mixed"))) == repr(list(read_steps(tmp_path / "whole")))


# ---- comparing

Change = Callable[[random.Random, list[dict[str, Any]], dict[str, Any]], None]


def noise(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    for row in rows:
        row["advantage"] = row["advantage"] and row["advantage"] * (1 + chance.uniform(-2, 2) * 1e-8)
        row["weights"] *= 1 + chance.uniform(-2, 2) * 1e-8
        row["reward"], row["old_logprobs"] = chance.random(), f"{chance.getrandbits(64):016x}"


def coarse_noise(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    chance.choice(rows)["advantage"] = chance.choice([0.7, 0.7 * (1 + 9e-7), 0.7 * (1 + 3e-6), 1e-6, -0.0])


def other_value(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    name, values = chance.choice(
        [
            *((name, [0, 1, 7, 123456]) for name in ("rollout", "pass_index", "prompt", "sample")),
            *((name, ["0" * 16, "0" * 15, "]", "\u00e9"]) for name in ("prompt_fingerprint", "completion_fingerprint")),
            *((name, [0, 3, 30, 10**20]) for name in ("response_tokens", "generated_at_step")),
            *((name, [None, math.nan, math.inf, 0, 0.5, 10**30]) for name in ("reward", "advantage")),
            ("old_logprobs", [None, "0" * 16]),
            ("weights", [0.1, 0.2, 0, math.inf]),
        ]
    )
    chance.choice(rows)[name] = chance.choice(values)


def unknown_advantages(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    chance.choice(rows)["advantage"] = None


def no_weights(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    scalars["weights"] = None


def other_scalar(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    name, values = chance.choice(
        [("learning_rate", [2e-3, 1e-3 * (1 + 1e-9), None, math.nan]), ("skipped", [True]), ("gradient_norm", [0.6])]
    )
    scalars[name] = chance.choice(values)


def twice(chance: random.Random, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    rows[chance.randrange(len(rows))] = dict(chance.choice(rows))


CHANGES: list[Change] = [noise, coarse_noise, other_value, unknown_advantages, no_weights, other_scalar, twice]


def write(folder: Path, seed: int, world_size: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
    """One step, its rows dealt to the ranks by chance; each line is written with orjson or without it."""
    chance = random.Random(seed)
    shares: list[list[dict[str, Any]]] = [[] for _ in range(world_size)]
    for row in chance.sample(rows, len(rows)):
        chance.choice(shares).append(row)
    for rank, share in enumerate(shares):
        with libraries(*chance.choice([(), ("orjson",)])), Writer(folder, header(rank, world_size)) as writer:
            writer.append(record(0, share, **scalars))


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Rows and scalars of one step in two runs; the second is changed in up to two ways."""
    both: list[Any] = [rows_of(0) + [{**row, "prompt": row["prompt"] + 10} for row in rows_of(0)], {}]
    chance = random.Random(draw(st.integers(0, 2**32)))
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=1)):
        change(chance, *both)
    other = copy.deepcopy(both)
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
        change(chance, *other)
    return both, other


@given(runs(), st.integers(0, 2**32), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3]), st.booleans())
def test_the_answer_is_the_same_with_and_without_the_library(
    tmp_path_factory: pytest.TempPathFactory, both: Any, seed: int, ranks_a: int, ranks_b: int, exact: bool
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    for name, ranks, run in zip("ab", (ranks_a, ranks_b), both, strict=True):
        write(folder / name, seed + ranks, ranks, *run)
    answers = []
    for names in LIBRARIES.values():
        with libraries(*names):
            answers.append(answer(folder, exact=exact))
    assert answers[0] == answers[1]


def answer(folder: Path, *, exact: bool = False) -> str:
    """What comparing the ledgers a and b of a folder says, or why they cannot be compared."""
    try:
        found = diff(folder / "a", folder / "b", exact=exact)
        return f"{found.equal}, {found.step}, {found.aspect}, {sorted(found.also)}, {found.not_compared}"
    except LedgerError as error:
        return str(error)


NEARLY = {
    "an advantage within the tolerance of the largest": ("advantage", 0.25 + 0.6e-6, True),
    "an advantage beyond it": ("advantage", 0.25 + 0.8e-6, False),
    "a weight within its own tolerance": ("weights", 0.1 * (1 + 0.9e-6), True),
    "a weight beyond it": ("weights", 0.1 * (1 + 1.1e-6), False),
    "an advantage that is not a number": ("advantage", math.nan, False),
    "an infinite advantage": ("advantage", math.inf, False),
    "an infinite weight": ("weights", math.inf, False),
}


@pytest.mark.parametrize("shuffled", [False, True], ids=["same order", "other order"])
@pytest.mark.parametrize(("column", "value", "equal"), NEARLY.values(), ids=NEARLY)
def test_the_tolerance_holds_to_the_last_row(
    tmp_path: Path, shuffled: bool, column: str, value: float | None, equal: bool
) -> None:
    rows = [{**row, "weights": 0.1 + row["sample"]} for row in rows_of(0)]
    rows[-1] |= {"advantage": 0.25, "weights": 0.1}
    other = [*rows[:-1], {**rows[-1], column: value}]
    for folder, run in (("a", rows), ("b", [other[i] for i in (1, 0, 2, 3)] if shuffled else other)):
        with Writer(tmp_path / folder, header()) as writer:
            writer.append(record(0, run))
    assert diff(tmp_path / "a", tmp_path / "b").equal == equal
    assert diff(tmp_path / "b", tmp_path / "a").equal == equal


@pytest.mark.parametrize("column", ["completion_fingerprint", "response_tokens", "advantage", "weights"])
def test_columns_of_the_same_text_differ_where_the_rows_are_others(tmp_path: Path, column: str) -> None:
    rows = [{**rows_of(0)[0], "sample": sample} for sample in range(4)]
    for row, value in zip(rows, rows_of(0), strict=True):
        row[column] = value[column] if column != "weights" else 0.1 + row["sample"]
    swapped = [{**row, "sample": sample} for row, sample in zip(rows, (1, 0, 2, 3), strict=True)]
    for folder, run in (("a", rows), ("swapped", swapped), ("turned", rows[::-1])):
        with Writer(tmp_path / folder, header()) as writer:
            writer.append(record(0, run))
    assert not diff(tmp_path / "a", tmp_path / "swapped").equal
    assert diff(tmp_path / "a", tmp_path / "turned").equal


HIDDEN = {
    "another order of columns": (b'"reward":[1.0,0.0,0.25,0.5],"advantage":[0.7,-0.7,-0.5,0.5]',
                                 b'"advantage":[0.7,-0.7,-0.5,0.5],"reward":[1.0,0.0,0.25,0.5]'),
    "a second key in a column that is left out": (b'"reward":[1.0,', b'"reward":[9], "skipped":true,"x":[1.0,'),
    "another name of a column that is left out": (b'"reward":[', b'"regard":['),
    "a leading zero": (b'"sample":[0,1,', b'"sample":[00,1,'),
    "a float among ints": (b'"response_tokens":[3,', b'"response_tokens":[3.0,'),
    "true among floats": (b'"advantage":[0.7,', b'"advantage":[true,'),
    "a literal that JSON lacks": (b'"advantage":[0.7,', b'"advantage":[NaN,'),
    "a scalar behind the columns": (b'0.1]}', b'0.1],"skipped":true}'),
    "no column of weights": (b',"weights":[0.1,0.1,0.1,0.1]', b""),
    "weights in a list": (b'"weights":[0.1,', b'"weights":[[0.1],'),
    "a missing scalar": (b'"lr_tick":true,', b""),
    "a weight beyond floats": (b'"weights":[0.1,', b'"weights":[1e999,'),
    "an advantage beyond floats": (b'"advantage":[0.7,', b'"advantage":[1e999,'),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), HIDDEN.values(), ids=HIDDEN)
def test_a_line_that_is_not_as_it_is_written_never_passes_for_the_line(tmp_path: Path, old: bytes, new: bytes) -> None:
    """Only another order of columns and another file's spelling of a number mean the same."""
    for folder in "ab":
        with libraries(), Writer(tmp_path / folder, header()) as writer:
            writer.append(record(0, rows_of(0)))
    (path,) = (tmp_path / "b").iterdir()
    text = path.read_bytes()
    path.write_bytes(text.replace(old, new))
    assert path.read_bytes() != text
    answers = []
    for names in LIBRARIES.values():
        with libraries(*names):
            answers.append(answer(tmp_path))
    assert answers[0].startswith("True") == answers[1].startswith("True") == (new == HIDDEN[SAME][1])


SAME = "another order of columns"


def test_every_column_is_one_that_is_generated_here() -> None:
    assert {"pass" if name == "pass_index" else name for name in VALUES} == set(COLUMNS)

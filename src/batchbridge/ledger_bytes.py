"""Whether two optimizer steps are equal, found in the bytes of their lines: no record is decoded.

Columns are compared as text, rows that the runs placed on other ranks are paired first, and only floats that are
spelled differently are parsed. `surely_equal` says True only where `ledger_diff` would find nothing in the decoded
steps, and False where it does not know. NumPy and orjson, where installed, change how long it takes and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from operator import itemgetter, sub
from typing import Any

from batchbridge import speedups
from batchbridge.ledger import COLUMNS, FLOATS, KEY, SCALARS

ONLY_EXACT = ("gradient_norm", "old_logprobs", "reward")
"""What is compared with `exact` only."""

_PLACES = {name: place for place, name in enumerate(COLUMNS)}
_STARTS = {name: f',"{name}":['.encode() for name in COLUMNS}
_END = b"}\n"
_END_WITHOUT_WEIGHTS = b',"weights":null}\n'
_CUT_BYTES = 1 << 15  # cut at a time: the C library gives larger blocks back at once, and fetching pages costs more
_NOT_NUMBERS = (b'"', b"t", b"f", b"N", b"I", b"[", b"{")
"""One of them is in any value but a number and null: a text, true, false, NaN, Infinity, a list, an object."""
_EXACT_INTS = 2**53  # ints up to here are floats, too


def surely_equal(lines_a: Sequence[bytes], lines_b: Sequence[bytes], *, rtol: float, exact: bool) -> bool:
    """True only where decoding the ranks' lines of one step would show no difference; False says nothing."""
    if lines_a == lines_b:
        return True
    try:
        a, b = _RawStep(lines_a), _RawStep(lines_b)
        return _scalars_agree(a, b, rtol, exact) and _rows_agree(a, b, rtol, exact)
    except (ValueError, RecursionError):  # a line is not as `Writer` writes it
        return False


class _RawStep:
    """The lines of one step, cut behind every "]" into the scalars with the first column, the other columns, and the
    end. Raises `ValueError` where they are not as `Writer` writes them; that a piece is the column that stands at its
    place is not known before `column` looks at it.

    heads: the ranks' scalars, each JSON that lacks its end, without repetitions.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._pieces = _cut(lines)
        self._stride, odd = divmod(len(self._pieces), len(lines))
        self.has_weights = self._stride == len(COLUMNS) + 1
        if odd or self._stride not in (len(COLUMNS), len(COLUMNS) + 1):
            raise ValueError("columns are missing")
        end = _END if self.has_weights else _END_WITHOUT_WEIGHTS
        if set(self._pieces[self._stride - 1 :: self._stride]) != {end}:
            raise ValueError("there is more behind the columns")
        firsts, start = self.pieces(KEY[0]), _STARTS[KEY[0]]
        head = firsts[0].partition(start)[0]
        size = len(head)
        self.heads = [head]
        if {piece[:size] for piece in firsts} == {head}:
            firsts = [piece[size:] for piece in firsts]
        else:  # the ranks' scalars differ
            parted = [piece.partition(start) for piece in firsts]
            self.heads = list(dict.fromkeys(head for head, _, _ in parted))
            firsts = [found + values for _, found, values in parted]
        self._columns = {KEY[0]: _joined(firsts, start)}

    def pieces(self, name: str) -> list[bytes]:
        """What each rank wrote for a column, its name included."""
        return self._pieces[_PLACES[name] :: self._stride]

    def column(self, name: str) -> bytes:
        """The column's values, separated by commas, rank after rank."""
        if name not in self._columns:
            self._columns[name] = _joined(self.pieces(name), _STARTS[name])
        column = self._columns[name]
        if column is None:
            raise ValueError(f"{name} is not where it should be")
        return column


def _cut(lines: Sequence[bytes]) -> list[bytes]:
    """The lines, cut behind every "]", which becomes a line feed: nothing cuts faster than reading lines. `Writer`
    writes no brackets but those around columns."""
    together = max(_CUT_BYTES // len(lines[0]), 1)
    pieces: list[bytes] = []
    for first in range(0, len(lines), together):
        pieces += BytesIO(b"".join(lines[first : first + together]).replace(b"]", b"\n"))
    return pieces


def _joined(pieces: Sequence[bytes], start: bytes) -> bytes | None:
    """What stands behind `start` in the pieces, separated by commas; None if one does not begin with `start`. There is
    one line feed in a piece, at its end."""
    empty, *values = b"".join([b"\n", *pieces]).split(b"\n" + start)
    if empty or len(values) != len(pieces):
        return None
    values[-1] = values[-1].removesuffix(b"\n")
    return b",".join(filter(None, values) if b"" in values else values)  # a rank may have trained nothing


def _scalars_agree(raw_a: _RawStep, raw_b: _RawStep, rtol: float, exact: bool) -> bool:
    heads_a, heads_b = ([json.loads(head + b"}") for head in raw.heads] for raw in (raw_a, raw_b))
    a, b = heads_a[0], heads_b[0]
    if any(set(SCALARS) - set(head) for head in (*heads_a, *heads_b)):
        return False
    ranks_agree = all(
        head[name] == own[name]
        for own, heads in ((a, heads_a), (b, heads_b))
        for head in heads[1:]
        for name in SCALARS
        if name != "gradient_norm"
    )
    rates = a["learning_rate"], b["learning_rate"]
    return (
        ranks_agree
        and all(a[name] == b[name] for name in ("normaliser", "skipped", "lr_tick"))
        and (rates[0] == rates[1] or (all(isinstance(r, float) for r in rates) and math.isclose(*rates, rel_tol=rtol)))
        and (not exact or a["gradient_norm"] == b["gradient_norm"])
    )


def _rows_agree(a: _RawStep, b: _RawStep, rtol: float, exact: bool) -> bool:
    if a.has_weights != b.has_weights:
        return False
    rows = _count(a.column(KEY[0]))
    order = None if all(_same(a, b, name) for name in KEY) else _pairing(a, b, rows)
    if order is not None and len(order) == 0:
        return False
    for name in COLUMNS:
        if name in KEY or (name == "weights" and not a.has_weights):
            continue
        if name in ONLY_EXACT and not exact:
            # Equal pieces mean the same whatever they are; different ones must at least be what is left out.
            _ = a.pieces(name) == b.pieces(name) or (a.column(name), b.column(name))
            continue
        if order is None and _same(a, b, name):
            continue
        one, other = a.column(name), b.column(name)
        if one == other and _constant(one, rows):
            continue
        agree = _floats_agree(name, one, other, rows, order, rtol) if name in FLOATS else None
        if agree is None:
            agree = order is not None and _equal_texts(one, other, order)
        if not agree:
            return False
    return True


def _same(a: _RawStep, b: _RawStep, name: str) -> bool:
    """Whether a column is the same text, row by row."""
    return (name != KEY[0] and a.pieces(name) == b.pieces(name)) or a.column(name) == b.column(name)


# ---- pairing rows


def _pairing(a: _RawStep, b: _RawStep, rows: int) -> Any:
    """For each row of `b` the row of `a` with the same key, as a list or an array; empty if there is none, or if a
    completion is trained twice in the step and that is left to `ledger_diff`."""
    if rows < 2:
        return []
    pairs = [(a.column(name), b.column(name)) for name in KEY]
    varying = [(one, other) for one, other in pairs if not (one == other and _constant(one, rows))]
    numpy = speedups.numpy()
    order = None if numpy is None else _sorted_pairing(numpy, varying, rows)
    if order is not None:
        return order
    keys_a, keys_b = (
        list(zip(*(column.split(b",") for column in side), strict=True)) for side in zip(*varying, strict=True)
    )
    if len(keys_a) != rows:
        return []
    place = dict(zip(keys_a, range(rows), strict=True))
    try:
        order = [place[key] for key in keys_b]
    except KeyError:
        return []
    return order if len(place) == rows == len(set(order)) else []


def _sorted_pairing(np: Any, columns: Sequence[tuple[bytes, bytes]], rows: int) -> Any:
    """`_pairing`, an array, by sorting one integer per row; None where keys are no plain integers, or too large. Rows
    of one key pair in their order, as decoded ones with one fingerprint do."""
    keys_a = keys_b = np.zeros(rows, dtype=np.int64)
    span = 1
    for one, other in columns:
        values_a, values_b = _integers(np, one, rows), _integers(np, other, rows)
        if values_a is None or values_b is None:
            return None
        low = min(int(values_a.min()), int(values_b.min()))
        width = max(int(values_a.max()), int(values_b.max())) - low + 1
        span *= width
        if span >= 1 << 62:
            return None
        keys_a, keys_b = keys_a * width + (values_a - low), keys_b * width + (values_b - low)
    order_a, order_b = keys_a.argsort(kind="stable"), keys_b.argsort(kind="stable")
    if not (keys_a[order_a] == keys_b[order_b]).all():
        return []
    order = np.empty(rows, dtype=np.int64)
    order[order_b] = order_a
    return order


def _integers(np: Any, column: bytes, rows: int) -> Any:
    """The column as an int64 array; None unless every value is spelled as Python spells an int of 0 to 2**62."""
    try:
        values = np.fromstring(column, dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning):  # something else than ints
        return None
    if len(values) != rows or values.min() < 0:
        return None
    largest, digits, power = int(values.max()), rows, 10
    while power <= largest:
        digits += np.count_nonzero(values >= power)
        power *= 10
    # With a space, a leading zero, a number beyond 64 bits or anything behind the last number there is more text.
    return values if digits == len(column) - rows + 1 and largest < 1 << 62 else None


def _picked(values: Sequence[Any], order: Any) -> list[Any]:
    return list(itemgetter(*(order if isinstance(order, list) else order.tolist()))(values))


def _equal_texts(one: bytes, other: bytes, order: Any) -> bool:
    """Whether the values of `one`, in `order`, are spelled as those of `other`."""
    rows, numpy = len(order), speedups.numpy()
    if numpy is not None:
        fixed = _fixed_width(numpy, one, rows), _fixed_width(numpy, other, rows)
        if fixed[0] is not None and fixed[1] is not None and fixed[0].dtype == fixed[1].dtype:
            return bool(fixed[0][order].tobytes() == fixed[1].tobytes())
        ints = _integers(numpy, one, rows), _integers(numpy, other, rows)
        if ints[0] is not None and ints[1] is not None:
            return bool((ints[0][order] == ints[1]).all())
    texts_a, texts_b = one.split(b","), other.split(b",")
    return len(texts_a) == rows and _picked(texts_a, order) == texts_b


def _fixed_width(np: Any, column: bytes, rows: int) -> Any:
    """The column as an array of texts of equal length, as fingerprints are; None if they are not."""
    text = b"," + column
    width = len(text) // rows
    if len(text) != width * rows or text[::width] != b"," * rows:
        return None
    if np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord(",")) != rows:
        return None
    return np.frombuffer(text, dtype=f"V{width}")


# ---- columns


def _count(column: bytes) -> int:
    return column.count(b",") + 1 if column else 0


def _constant(column: bytes, rows: int) -> bool:
    first = column.partition(b",")[0]
    return (first + b",") * rows == column + b","


def _floats_agree(name: str, one: bytes, other: bytes, rows: int, order: Any, rtol: float) -> bool | None:
    """Whether the values of `one`, in `order`, are those of `other` within the tolerance; None where they are not all
    numbers or null. Weights agree relatively, each. Advantages are differences of rewards: relatively to the step's
    largest."""
    if _constant(one, rows) and _constant(other, rows):
        one, other, order = one.partition(b",")[0], other.partition(b",")[0], None
    a, b = _numbers(one), _numbers(other)
    if a is None or b is None or len(a) != len(b):
        return None
    if order is not None and len(order) != len(a):
        return None
    numpy = speedups.numpy()
    if numpy is not None and _arrays_agree(numpy, name, a, b, order, rtol):
        return True
    a = a if order is None else _picked(a, order)
    if a == b:
        return True
    if b"null" in one or b"null" in other:
        pairs = list(zip(a, b, strict=True))
        if any((x is None) != (y is None) for x, y in pairs):
            return False
        a, b = [x for x in a if x is not None], [y for y in b if y is not None]
    if name == "weights":
        return all(map(partial(math.isclose, rel_tol=rtol), a, b))
    largest = max(map(abs, a), default=0.0)
    slack = rtol * largest
    if largest < _EXACT_INTS and max(map(abs, map(sub, a, b)), default=0.0) <= slack:
        return True
    return all(map(partial(math.isclose, rel_tol=rtol, abs_tol=slack), a, b))


def _arrays_agree(np: Any, name: str, a: list[Any], b: list[Any], order: Any, rtol: float) -> bool:
    """True only where `_floats_agree` is; null becomes NaN here, which agrees with nothing."""
    x, y = np.array(a, dtype=np.float64), np.array(b, dtype=np.float64)
    if order is not None:
        x = x[order]
    largest, gaps = np.abs(x), np.abs(x - y)
    peak = largest.max(initial=0.0)
    if name == "weights":
        near = gaps <= rtol * np.maximum(largest, np.abs(y))
        return bool(near.all() and np.isfinite(gaps).all())
    return bool(peak < _EXACT_INTS and gaps.max(initial=0.0) <= rtol * peak)


def _numbers(column: bytes) -> list[Any] | None:
    """The column's floats, ints and nulls; None if there is anything else."""
    if any(mark in column for mark in _NOT_NUMBERS):
        return None
    text = b"[" + column + b"]"
    return list(json.loads(text) if speedups.orjson is None else speedups.orjson.loads(text))

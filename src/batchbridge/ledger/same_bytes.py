"""Optimizer steps that two ledgers with as many ranks hold in the same bytes: nothing of them is cut into lines.

One rank's two files are open at a time, whatever the world size, and a MiB of each is held.
"""

from __future__ import annotations

from pathlib import Path

from batchbridge.ledger.reading import Ledger

_BYTES = 1 << 20


def same_until(a: Ledger, b: Ledger, start: int) -> int:
    """The first step from `start` on that is not the same bytes on all ranks, or before which a start of either run
    ends; `start` itself where the two have other numbers of ranks, or one has it in the middle of a start."""
    one, other = a.span_at(start), b.span_at(start)
    if one is None or other is None or len(one.places) != len(other.places):
        return start
    steps = min(one.stop, other.stop) - start
    for place_a, place_b in zip(one.places, other.places, strict=True):
        if not steps:
            break
        steps = _same_lines(place_a, place_b, steps)
    return start + steps


def _same_lines(a: tuple[Path, int], b: tuple[Path, int], most: int) -> int:
    """How many lines two files have alike from their offsets on, `most` at most."""
    lines = 0
    with a[0].open("rb") as file_a, b[0].open("rb") as file_b:
        file_a.seek(a[1])
        file_b.seek(b[1])
        while lines < most:
            block_a, block_b = file_a.read(_BYTES), file_b.read(_BYTES)
            if block_a != block_b:
                return min(lines + block_a[: _same(block_a, block_b)].count(b"\n"), most)
            if not block_a:
                break
            lines += block_a.count(b"\n")
    return min(lines, most)


def _same(a: bytes, b: bytes) -> int:
    """Bytes that two blocks begin with alike."""
    least, most = 0, min(len(a), len(b))
    while least < most:
        middle = (least + most + 1) // 2
        if a[least:middle] == b[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least

"""A scan of one rank's file: which starts recorded which steps, where, and how many of them another ledger's file has.

Of a line only its kind and step are looked at. Lines that the other file has, too, are compared as bytes alone.
Memory does not grow with the file, and two files are open at most.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO, FileIO
from itertools import chain, count, islice, repeat
from operator import gt, lt
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge.errors import LedgerError
from batchbridge.ledger.records import ENDED, SCHEMA, STEP_PREFIX, is_json

_HEADER = {
    **dict.fromkeys(("world_size", "rank", "at_step", "dataset_size"), int),
    **dict.fromkeys(("framework", "framework_version", "mode", "spec_digest", "started"), str),
}
"""The fields of every header, and their types; `start_id` may be missing."""
_BLOCK_BYTES = 1 << 17  # larger blocks leave the processor's cache, and take fresh memory from the system each time
_NEAR_BYTES = 1 << 14  # less than this before a step, it is read on to
_HEADER_BYTES = 1 << 13  # a header, and few of the lines behind it
_HEADER_START = b'{"record":"header",'
_CHUNK = 1 << 10  # steps whose bounds are made together; those of 64 chunks are kept for the other ranks
_TIMED = b',"compute_seconds":'
_NUMBER = rb"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,17})?(?:e[+-]?[0-9]{1,3})?"
_TIME = re.compile(_TIMED + _NUMBER + rb"\}\n\Z")
_TIMES = re.compile(rb"(?:" + _NUMBER + rb"\}\n)*")


StartId = tuple[str | None, int, int]
"""The identity of a start: its id, its world size, its first step."""
SeenHeaders = dict[tuple[bytes, bytes], dict[str, Any]]
"""Headers by their line's text before and behind the rank."""


class StepStretch(NamedTuple):
    """The consecutive steps `first` to `stop` (exclusive) that one start wrote into one rank's file."""

    start: StartId
    """(start_id, world_size, at_step): what all ranks of one start share."""
    first: int
    stop: int
    offset: int
    number: int
    """Byte offset and line number of the first step."""
    size: int = 0
    """Bytes of all steps."""
    alike: tuple[int, int] | None = None
    """(offset of a stretch of the other ledger's file, first step that it does not have in the same line)."""


class ObservingEnd(NamedTuple):
    """The end of the observing in one start of one rank: the first step that nobody observed, and why."""

    step: int
    why: str


@dataclass(frozen=True)
class RankFile:
    """The result of scanning one rank's file. torn: the last line is not whole. ended: what ended the observing of its
    last start, and the first step that nobody observed; None where nothing did."""

    local: Path
    path: Path | str
    """The name of the file in messages: a URL, where `local` was fetched from one."""
    rank: int
    headers: list[dict[str, Any]]
    stretches: list[StepStretch]
    torn: bool
    ended: ObservingEnd | None = None


def scan(local: Path, rank: int, path: Path | str, known: SeenHeaders, beside: RankFile | None = None) -> RankFile:
    """Reads a file once. path: its name in messages. known: headers of other ranks, to which this one's are added.
    beside: what was found in another ledger's file of this rank."""
    headers: list[dict[str, Any]] = []
    stretches: list[StepStretch] = []
    ended: ObservingEnd | None = None
    torn, expected, number, offset = False, 0, 0, 0
    twins = iter(beside.stretches if beside else ())
    least, most = _bounds(0)
    with _opened(local, path) as file:
        blocks = _blocks(file, 0, at_a_time=_HEADER_BYTES)
        while block := next(blocks, None):
            lines, end = block
            in_turn = headers and lines[-1].endswith(b"\n") and all(map(gt, lines, least)) and all(map(lt, lines, most))
            if in_turn:  # nearly every block holds the next steps
                expected += len(lines)
                number += len(lines)
                offset = end
                continue
            for line in lines:
                number += 1
                if not line.endswith(b"\n") and not is_json(line):
                    torn = True
                    break
                if _ends_observing(line):
                    stretches[-1:] = _closed(stretches, expected, offset)
                    ended = _end_of_observing(parse(line, path, number), expected, path, number)
                    offset += len(line)
                    continue
                step = step_of(line, path, number)
                if step is None:
                    ended = None
                    stretches[-1:] = _closed(stretches, expected, offset)
                    headers.append(_header(line, rank, path, number, known))
                    start = start_of(headers[-1])
                    expected = start[-1]
                    offset += len(line)
                    own = StepStretch(start, expected, expected, offset, number + 1)
                    if beside and (twin := next((one for one in twins if one.first == expected), None)):
                        expected, passed = _alike(beside, twin, file, offset)
                        own = own._replace(alike=(twin.offset, expected))
                        number += expected - own.first
                        offset += passed
                    stretches.append(own)
                    blocks = _blocks(file, offset)  # so that the next blocks begin with steps
                    break
                if not headers:
                    raise LedgerError("a step before any header", path, number)
                if ended is not None:
                    raise LedgerError(f"step {step} behind the end of the observing", path, number)
                if step != expected:
                    raise LedgerError(f"step {step}, where step {expected} should follow", path, number)
                expected += 1
                offset += len(line)
            least, most = _bounds(expected)
    if ended is None:
        stretches[-1:] = _closed(stretches, expected, offset)
    return RankFile(local, path, rank, headers, [s for s in stretches if s.stop > s.first], torn, ended)


def start_of(header: Mapping[str, Any]) -> StartId:
    """The identity that all ranks of one start share; see `StepStretch.start`."""
    return header.get("start_id"), header["world_size"], header["at_step"]


def untimed(lines: Sequence[bytes]) -> list[bytes]:
    """Each line without the time that its step took, which stands at its end."""
    if not lines:
        return []
    heads, marks, times = zip(*[line.rpartition(_TIMED) for line in lines], strict=True)
    if all(marks) and _TIMES.fullmatch(b"".join(times)):
        return [head + b"}\n" for head in heads]
    return [_TIME.sub(b"}\n", line, count=1) if mark else line for line, mark in zip(lines, marks, strict=True)]


def step_of(line: bytes, path: Path | str, number: int) -> int | None:
    """The line's optimizer step; None for a header."""
    if line.startswith(STEP_PREFIX):
        digits = line[len(STEP_PREFIX) : line.find(b",", len(STEP_PREFIX))]
        if digits.isdigit() and len(digits) < 20:  # Python reads no number of thousands of digits
            return int(digits)
    if line.startswith(_HEADER_START):
        return None
    record = parse(line, path, number)  # a line that some other program wrote, spaced otherwise
    kind, step = record.get("record"), record.get("step")
    if kind == "header":
        return None
    if kind != "step":
        raise LedgerError(f"unknown record {kind!r}", path, number)
    if type(step) is not int or step < 0:
        raise LedgerError(f"step {step!r} is not an optimizer step", path, number)
    return step


def parse(line: bytes, file: Path | str, number: int) -> dict[str, Any]:
    """The JSON object of a line. Raises `LedgerError`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"not JSON: {error}", file, number) from None
    if not isinstance(record, dict):
        raise LedgerError("not a JSON object", file, number)
    return record


def cut(block: bytes) -> list[bytes]:
    """The lines of `block`, each with its line feed; only at one: JSON of other programs may hold other line ends."""
    return BytesIO(block).readlines()


def place_of(file: RankFile, stretch: StepStretch, step: int) -> tuple[int, int]:
    """(step, byte offset) of a line of the stretch not far before that of `step`, or that one: found by halving."""
    first, low, high = stretch.first, stretch.offset, stretch.offset + stretch.size
    with file.local.open("rb") as opened:
        while first < step and high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            opened.seek(middle)
            opened.readline()
            offset, line = opened.tell(), opened.readline()
            found = step_of(line, file.path, 0) if offset < high and line.endswith(b"\n") else None
            if found is None or found > step:
                high = middle
            else:
                first, low = found, offset
    return first, low


# ---- helpers


@contextmanager
def _opened(local: Path, path: Path | str) -> Iterator[FileIO]:
    """The file, open. path: its name in the `LedgerError` where it is none, or cannot be read."""
    try:
        with local.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise LedgerError(f"it cannot be read: {error.strerror}", path) from None


def _blocks(
    file: FileIO, offset: int, stop: int = sys.maxsize, at_a_time: int | None = None
) -> Iterator[tuple[list[bytes], int]]:
    """The lines from byte `offset` to byte `stop`, many at a time, each with its line feed, and where they end. A last
    line without line feed comes alone."""
    file.seek(offset)
    begun: list[bytes] = []
    while block := file.read(min(at_a_time or _BLOCK_BYTES, stop - offset)):
        offset += len(block)
        lines = cut(block)
        begun.append(lines[0])
        if lines[0].endswith(b"\n"):
            lines[0] = b"".join(begun)
            begun = [] if lines[-1].endswith(b"\n") else [lines.pop()]
            yield lines, offset - sum(map(len, begun))
    if begun:
        yield [b"".join(begun)], offset


def _bounds(step: int) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """The bounds between which the lines of this and the following steps are, as bytes are ordered: they begin with the
    prefix, the step and a comma. Two comparisons take less than half the time of `startswith`."""
    return _bounds_from(step, b","), _bounds_from(step, b"-")  # the byte after a comma


def _bounds_from(step: int, mark: bytes) -> Iterator[bytes]:
    chunks = map(_bounds_of, count(step // _CHUNK), repeat(mark))
    return islice(chain.from_iterable(chunks), step % _CHUNK, None)


@lru_cache(maxsize=128)
def _bounds_of(chunk: int, mark: bytes) -> list[bytes]:
    return [b"%s%d%s" % (STEP_PREFIX, step, mark) for step in range(chunk * _CHUNK, (chunk + 1) * _CHUNK)]


def _closed(stretches: Sequence[StepStretch], stop: int, offset: int) -> list[StepStretch]:
    """The last stretch, if there is one, that ends here."""
    return [last._replace(stop=stop, size=offset - last.offset) for last in stretches[-1:]]


def _alike(beside: RankFile, twin: StepStretch, file: FileIO, offset: int) -> tuple[int, int]:
    """The first step of `twin` whose line `file` does not have, too, from `offset` on; and the bytes of those before it
    in `file`. Times may differ."""
    with beside.local.open("rb", buffering=0) as other:
        done = _same_bytes(other, twin.offset, file, offset, twin.size)
        theirs = _blocks(other, twin.offset + done, twin.offset + twin.size)
        ours = _blocks(file, offset + done)
        a: list[bytes] = []
        b: list[bytes] = []
        end, same = offset + done, 1
        while same:
            if not a:
                a, _ = next(theirs, (a, 0))
            if a and not b:
                b, end = next(ours, (b, end))
            same = _same_lines(a, b)
            a, b = a[same:], b[same:]
    step = step_of(a[0], beside.path, 0) if a else twin.stop
    if step is None:
        raise LedgerError("the file changed while it was read", beside.path)
    return step, end - sum(map(len, b)) - offset


def _same_bytes(a: FileIO, start_a: int, b: FileIO, start_b: int, most: int) -> int:
    """The number of bytes, of `most` at most, that both files have alike from their offsets on, counted in blocks up to
    the last line feed: a difference behind it is for lines to find."""
    a.seek(start_a)
    b.seek(start_b)
    done = whole = 0
    while block := a.read(min(_BLOCK_BYTES, most - done)):
        if block != b.read(len(block)):
            break
        if b"\n" in block:
            whole = done + block.rfind(b"\n") + 1
        done += len(block)
    return whole


def _same_lines(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """The number of lines that two lists begin with alike, times left out."""
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    if a == b:
        return length
    a, b = untimed(a), untimed(b)
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other), length)


def _ends_observing(line: bytes) -> bool:
    """Whether a line is of that kind; of a step's or a header's, which begin otherwise, nothing more is looked at."""
    if line.startswith((STEP_PREFIX, _HEADER_START)) or ENDED.encode() not in line:
        return False
    record = json.loads(line) if is_json(line) else {}
    return isinstance(record, dict) and record.get("record") == ENDED


def _end_of_observing(record: Mapping[str, Any], expected: int, path: Path | str, number: int) -> ObservingEnd:
    step, why = record.get("step"), record.get("why")
    if type(step) is not int or step != expected or not isinstance(why, str):
        raise LedgerError(f"{ENDED}: step {step!r:.20} and why, where step {expected} should follow", path, number)
    return ObservingEnd(step, why)


def _header(line: bytes, rank: int, path: Path | str, number: int, known: SeenHeaders) -> dict[str, Any]:
    """The header of a line, checked. What is the same but for the rank is not decoded again, nor held twice."""
    before, own, after = line.partition(b'"rank":%d,' % rank)
    header = known.get((before, after))
    if header is not None and own and rank < header["world_size"]:
        return {**header, "rank": rank}
    header = _checked_header(parse(line, path, number), rank, path, number)
    if own and parse(b'%s"rank":-1,%s' % (before, after), path, number)["rank"] == -1:  # and not a rank inside of it
        known[before, after] = header
    return header


def _checked_header(header: dict[str, Any], rank: int, path: Path | str, number: int) -> dict[str, Any]:
    if header.get("schema") != SCHEMA:
        raise LedgerError(f"schema {header.get('schema')!r} is not {SCHEMA!r}", path, number)
    for name, kind in _HEADER.items():
        if type(header.get(name)) is not kind:
            raise LedgerError(f"header: {name} = {header.get(name)!r:.60} is no {kind.__name__}", path, number)
    if header["rank"] != rank:
        raise LedgerError(f"header: rank {header['rank']} in the file of rank {rank}", path, number)
    if not 0 <= rank < header["world_size"]:
        raise LedgerError(f"header: rank {rank} is not in a world of {header['world_size']}", path, number)
    return header

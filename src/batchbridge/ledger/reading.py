"""Reading a ledger: which records of which starts count, and the merging of ranks. `batchbridge.ledger` has the format.

A ledger is scanned once (each line's kind and step only), then streamed, one optimizer step at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge.errors import LedgerError
from batchbridge.ledger import remote, speedups
from batchbridge.ledger.records import COLUMNS, FLOATS, KEY, SCALARS, SCHEMA, STEP_PREFIX, TIMES, is_json

_ALLOWED: dict[str, set[type]] = {
    **{name: {int} for name in (*KEY, "response_tokens", "generated_at_step")},
    **{name: {str} for name in ("prompt_fingerprint", "completion_fingerprint")},
    "old_logprobs": {str, type(None)},
    **{name: {float, int, type(None)} for name in ("reward", "advantage")},
    "weights": {float, int, type(None)},
}
_HEADER = {
    **dict.fromkeys(("world_size", "rank", "at_step", "dataset_size"), int),
    **dict.fromkeys(("framework", "framework_version", "mode", "spec_digest", "started"), str),
}
"""What every header has, and its type; `start_id` may be missing."""
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_FILE_NAME = re.compile(r"rank-(\d{5,})\.jsonl")
_LISTED = 8  # ranks that a message names
_BLOCK_BYTES = 1 << 23  # read at a time, over all ranks together; files are closed in between, whatever the world size
_LEAST_BYTES = 1 << 14
_SCANNED_BYTES = 1 << 20
_STEP_START = STEP_PREFIX + b"%d,"
_HEADER_START = b'{"record":"header",'


Watch = Callable[[Iterable[Any], int], Iterable[Any]]
"""Hands on what is iterated over, so many things at most; somebody may count them."""


def unwatched(items: Iterable[Any], length: int) -> Iterable[Any]:
    """A `Watch` that counts nothing."""
    return items


class StepStream(Iterator[dict[str, Any]]):
    """What `read_steps` returns. incomplete: what the ledger lacks at its end, or None; known from the beginning."""

    def __init__(self, ledger: Ledger, start: int) -> None:
        self.incomplete = ledger.incomplete
        self._steps = (merge(step.parts()) for step in ledger.steps(start))

    def __next__(self) -> dict[str, Any]:
        return next(self._steps)


class Part(NamedTuple):
    """One rank's line of one optimizer step, and where it stands."""

    line: bytes
    rank: int
    file: Path | str
    number: int


class _Stretch(NamedTuple):
    """The consecutive steps `first` to `stop` (exclusive) that one start wrote into one rank's file."""

    start: tuple[str | None, int, int]
    """(start_id, world_size, at_step): what all ranks of one start share."""
    first: int
    stop: int
    offset: int
    number: int
    """Byte offset and line number of the first step."""


@dataclass(frozen=True)
class _RankFile:
    local: Path
    path: Path | str
    """What messages name: a URL, where `local` was fetched from one."""
    rank: int
    headers: list[dict[str, Any]]
    stretches: list[_Stretch]
    torn: bool


class StepLines(NamedTuple):
    """One optimizer step: each rank's line, and the stretches that they come from."""

    step: int
    lines: tuple[bytes, ...]
    sources: Sequence[tuple[_RankFile, _Stretch]]

    def parts(self) -> list[Part]:
        """The lines, each with its place; a stretch has one line per step."""
        return [
            Part(line, file.rank, file.path, stretch.number + self.step - stretch.first)
            for line, (file, stretch) in zip(self.lines, self.sources, strict=True)
        ]


class Span(NamedTuple):
    """Steps up to `stop` (exclusive) that one start recorded: file and byte offset of the first of them, by rank."""

    stop: int
    places: tuple[tuple[Path, int], ...]


class Ledger:
    """A ledger, a folder or a URL, scanned once: which starts recorded which steps, and which records count.

    first_step, stop_step: the steps that all ranks have. incomplete: what is missing at the end, or None. The scan
    keeps one entry per start and rank, nothing per step.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder: Path | str = str(folder) if remote.is_url(folder) else Path(folder)
        self._fetched = remote.Fetched(self.folder) if isinstance(self.folder, str) else None
        names: Mapping[Path, Path | str] = {} if self._fetched is None else self._fetched.names
        try:
            paths = list((Path(folder) if self._fetched is None else self._fetched.folder).glob("rank-*.jsonl"))
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            raise LedgerError(f"the folder cannot be read: {error.args[-1]}", self.folder) from None
        named = [(match, path) for path in paths if (match := _FILE_NAME.fullmatch(path.name))]
        if not named:
            raise LedgerError("no ledger: there is no rank-*.jsonl file", self.folder)
        scanned = (_scan(path, int(match[1]), names.get(path, path)) for match, path in named)
        self.files = sorted(scanned, key=lambda file: file.rank)
        self._by_rank = {file.rank: file for file in self.files}
        said: dict[int, Path | str] = {}  # world size -> the first file that says it
        for file in self.files:
            for header in file.headers:
                said.setdefault(header["world_size"], file.path)
        for world_size, path in said.items():  # what a broken header says may be far more than there are files
            absent = (rank for rank in range(world_size) if rank not in self._by_rank)
            if missing := list(itertools.islice(absent, _LISTED)):
                count = world_size - sum(rank < world_size for rank in self._by_rank)
                raise LedgerError(
                    f"world_size = {world_size}, but there is no file of rank {_list(missing, count)}", path
                )
        self._spans = self._choose()
        self.headers = [header for file in self.files[:1] for header in file.headers]
        at_step = self.headers[0]["at_step"] if self.headers else 0
        self.first_step: int = self._spans[0][0] if self._spans else at_step
        self.stop_step: int = self._spans[-1][1] if self._spans else at_step
        self.incomplete = self._missing_at_end()

    def steps(self, start: int) -> Iterator[StepLines]:
        """Each complete step from `start` on."""
        for first, stop, stretches in self._spans:
            first = max(first, start)
            if first >= stop:
                continue
            block = max(_BLOCK_BYTES // len(stretches), _LEAST_BYTES)
            sources = [(self._by_rank[rank], stretch) for rank, stretch in enumerate(stretches)]
            ranks = _lines_of_ranks([_blocks(file, stretch, first, block) for file, stretch in sources])
            for step, lines in zip(range(first, stop), ranks, strict=False):
                yield StepLines(step, lines, sources)

    def span_at(self, step: int) -> Span | None:
        """The steps from `step` on that one start recorded, and where they begin in each rank's file; None where the
        start's records begin before."""
        for first, stop, stretches in self._spans:
            if first == step and all(stretch.first == step for stretch in stretches):
                places = [(self._by_rank[rank].local, stretch.offset) for rank, stretch in enumerate(stretches)]
                return Span(stop, tuple(places))
        return None

    def _choose(self) -> list[tuple[int, int, tuple[_Stretch, ...]]]:
        """(first, stop, each rank's stretch): the last start that has the step on all of its ranks."""
        stretches = [stretch for file in self.files for stretch in file.stretches]
        edges = sorted({stretch.first for stretch in stretches} | {stretch.stop for stretch in stretches})
        spans: list[tuple[int, int, tuple[_Stretch, ...]]] = []
        for first, stop in itertools.pairwise(edges):
            chosen = self._last_complete(first)
            if chosen is None:
                continue
            if spans and spans[-1][1] == first and spans[-1][2] == chosen:
                spans[-1] = (spans[-1][0], stop, chosen)
            elif spans and spans[-1][1] != first:
                raise LedgerError(
                    f"steps {spans[-1][1]} to {first - 1} are not recorded by all ranks, but later ones are",
                    self._by_rank[0].path,
                    chosen[0].number,
                )
            else:
                spans.append((first, stop, chosen))
        return spans

    def _last_complete(self, step: int) -> tuple[_Stretch, ...] | None:
        for own in reversed(self._by_rank[0].stretches):
            if not own.first <= step < own.stop:
                continue
            found = [own]
            for rank in range(1, own.start[1]):
                of_rank = reversed(self._by_rank[rank].stretches)
                found += [s for s in of_rank if s.start == own.start and s.first <= step < s.stop][:1]
            if len(found) == own.start[1]:
                return tuple(found)
        return None

    def _missing_at_end(self) -> str | None:
        beyond = [file.rank for file in self.files if any(s.stop > self.stop_step for s in file.stretches)]
        notes = [f"{file.local.name} ends in a torn line, which is ignored" for file in self.files if file.torn]
        if beyond:
            notes.insert(0, f"step {self.stop_step} is recorded by rank {_list(beyond)} only, and not read")
        return "; ".join(notes) or None


def decode(part: Part) -> dict[str, Any]:
    """One rank's step record, checked, with floats for "nan", "inf", "-inf". Raises `LedgerError`."""
    if speedups.orjson is not None:
        # orjson refuses NaN and makes floats of integers beyond 64 bits: what then is wrong, the standard library says.
        with contextlib.suppress(ValueError, LedgerError):
            return _checked(speedups.orjson.loads(part.line), part)
    return _checked(_parse(part.line, part.file, part.number), part)


def _checked(record: Any, part: Part) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise LedgerError("not a JSON object", part.file, part.number)
    wanted = {"record", *SCALARS, *COLUMNS}
    if (named := set(record) - TIMES.keys()) != wanted:
        odd = sorted(wanted - named) or sorted(named - wanted)
        raise LedgerError(f"step record lacks or has too much: {', '.join(odd)}", part.file, part.number)
    rows = len(record["rollout"]) if isinstance(record["rollout"], list) else 0
    for name in COLUMNS:
        values = record[name]
        if name == "weights" and values is None:
            continue
        if not isinstance(values, list) or len(values) != rows:
            raise LedgerError(f"column {name} is no list of {rows} values", part.file, part.number)
        kinds = set(map(type, values))
        if str in kinds and name in FLOATS:
            values = record[name] = [_number(value) for value in values]
            kinds = set(map(type, values))
        if not kinds <= _ALLOWED[name]:
            raise LedgerError(f"column {name} holds a value that is not {COLUMNS[name]}", part.file, part.number)
    for name in ("learning_rate", "gradient_norm"):
        record[name] = _number(record[name])
    if not (record["normaliser"] is None or isinstance(record["normaliser"], dict)):
        raise LedgerError("normaliser is neither null nor an object", part.file, part.number)
    for name in TIMES.keys() & record.keys():
        if type(record[name]) not in (float, int) or not 0 <= record[name] < math.inf:
            raise LedgerError(f"{name} is no number of seconds", part.file, part.number)
    return record


def merge(parts: Sequence[Part]) -> dict[str, Any]:
    """One optimizer step of all ranks; see `read_steps`."""
    records = [decode(part) for part in parts]
    merged = {name: records[0][name] for name in SCALARS}
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        if name == "weights" and any(record[name] is None and record["rollout"] for record in records):
            if any(record[name] for record in records):
                raise LedgerError("some ranks of this step give weights, others do not", parts[0].file, parts[0].number)
            continue
        columns[name] = [value for record in records for value in record[name] or ()]
    columns["rank"] = [part.rank for part, record in zip(parts, records, strict=True) for _ in record["rollout"]]
    rows = list(zip(*(columns[name] for name in (*KEY, "completion_fingerprint")), strict=True))
    order = sorted(range(len(rows)), key=rows.__getitem__)
    merged |= dict.fromkeys(COLUMNS) | {name: [values[i] for i in order] for name, values in columns.items()}
    merged["ranks"] = len(records)
    for name in TIMES:
        seconds = [record.get(name) for record in records]
        merged[name] = None if all(one is None for one in seconds) else seconds
    merged["disagreeing"] = {
        name: [record[name] for record in records]
        for name in SCALARS
        if name != "gradient_norm" and any(_differs(record[name], records[0][name]) for record in records)
    }
    return merged


# ---- helpers


def _number(value: Any) -> Any:
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def _differs(a: Any, b: Any) -> bool:
    return bool(a != b) and not (a != a and b != b)  # two NaNs agree


def _list(numbers: Sequence[int], count: int | None = None) -> str:
    """The first few numbers, and how many more there are. count: of all of them, where `numbers` are the first."""
    more = (len(numbers) if count is None else count) - _LISTED
    return ", ".join(map(str, numbers[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _parse(line: bytes, file: Path | str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"not JSON: {error}", file, number) from None
    if not isinstance(record, dict):
        raise LedgerError("not a JSON object", file, number)
    return record


def _scan(local: Path, rank: int, path: Path | str) -> _RankFile:
    """Reads a file once, looking at each line's kind and step only. path: its name in messages."""
    headers: list[dict[str, Any]] = []
    stretches: list[_Stretch] = []
    torn, expected, number, offset = False, 0, 0, 0
    for lines in _blocks_of_lines(local):
        following = map(_STEP_START.__mod__, itertools.count(expected))
        if headers and lines[-1].endswith(b"\n") and all(map(bytes.startswith, lines, following)):
            expected += len(lines)  # nearly every block holds the next steps
            number += len(lines)
            offset += sum(map(len, lines))
            continue
        for line in lines:
            number += 1
            offset += len(line)
            if not line.endswith(b"\n") and not is_json(line):
                torn = True
                break
            step = _step_of(line, path, number)
            if step is None:
                stretches[-1:] = [last._replace(stop=expected) for last in stretches[-1:]]
                headers.append(_checked_header(_parse(line, path, number), rank, path, number))
                start = (headers[-1].get("start_id"), headers[-1]["world_size"], headers[-1]["at_step"])
                expected = start[-1]
                stretches.append(_Stretch(start, expected, expected, offset, number + 1))
                continue
            if not headers:
                raise LedgerError("a step before any header", path, number)
            if step != expected:
                raise LedgerError(f"step {step}, where step {expected} should follow", path, number)
            expected += 1
    stretches[-1:] = [last._replace(stop=expected) for last in stretches[-1:]]
    return _RankFile(local, path, rank, headers, [s for s in stretches if s.stop > s.first], torn)


def _step_of(line: bytes, path: Path | str, number: int) -> int | None:
    """The line's optimizer step; None for a header."""
    if line.startswith(STEP_PREFIX):
        digits = line[len(STEP_PREFIX) : line.find(b",", len(STEP_PREFIX))]
        if digits.isdigit() and len(digits) < 20:  # Python reads no number of thousands of digits
            return int(digits)
    if line.startswith(_HEADER_START):
        return None
    record = _parse(line, path, number)  # a line that some other program wrote, spaced otherwise
    kind, step = record.get("record"), record.get("step")
    if kind == "header":
        return None
    if kind != "step":
        raise LedgerError(f"unknown record {kind!r}", path, number)
    if type(step) is not int or step < 0:
        raise LedgerError(f"step {step!r} is no optimizer step", path, number)
    return step


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


def _blocks_of_lines(path: Path) -> Iterator[list[bytes]]:
    """The file's lines, each with its line feed: the first, which should be a header, then a list of many at a time."""
    with path.open("rb") as file:
        first = file.readline()
        if first:
            yield [first]
        torn = b""
        while block := file.read(_SCANNED_BYTES):
            lines = _cut(torn + block)
            torn = b"" if lines[-1].endswith(b"\n") else lines.pop()
            if lines:
                yield lines
        if torn:
            yield [torn]


def _cut(block: bytes) -> list[bytes]:
    """The lines of `block`, each with its line feed; only at one: JSON of other programs may hold other line ends."""
    return BytesIO(block).readlines()


def _lines_of_ranks(ranks: Sequence[Iterator[list[bytes]]]) -> Iterator[tuple[bytes, ...]]:
    """Each step's lines, one per rank, of lists that hold different numbers of steps. Ends with none of the ranks."""
    read: list[list[bytes]] = [[] for _ in ranks]
    while True:
        read = [lines or next(blocks) for lines, blocks in zip(read, ranks, strict=True)]
        yield from zip(*read, strict=False)
        steps = min(map(len, read))
        read = [lines[steps:] for lines in read]


def _blocks(file: _RankFile, stretch: _Stretch, first: int, block_bytes: int) -> Iterator[list[bytes]]:
    """The stretch's lines from step `first` on. Opens the file per block: a world may exceed the open-file limit."""
    step, offset, wanted = stretch.first, stretch.offset, block_bytes
    while True:
        with file.local.open("rb") as opened:
            opened.seek(offset)
            block = opened.read(wanted)
        if not block:
            number = stretch.number + step - stretch.first
            raise LedgerError(f"step {step} is gone: the file changed while it was read", file.path, number)
        lines = _cut(block)
        if len(block) == wanted and not lines[-1].endswith(b"\n"):  # the last line goes on
            lines.pop()
        # A line that is longer than a block is read with the next, larger one.
        wanted = block_bytes if lines else 2 * wanted
        offset += sum(map(len, lines))
        if kept := lines[max(first - step, 0) :]:
            yield kept
        step += len(lines)

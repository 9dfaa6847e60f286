"""The reading of a ledger: which records of which starts count, and the merging of ranks. `batchbridge.ledger` has the
format.

A ledger is scanned once (each line's kind and step only), then streamed, one optimizer step at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge.errors import LedgerError
from batchbridge.ledger import remote, speedups
from batchbridge.ledger.records import BESIDE, COLUMNS, EVENTS, FLOATS, KEY, SCALARS, TIMES
from batchbridge.ledger.scanning import RankFile, SeenHeaders, StepStretch, cut, parse, place_of, scan

_ALLOWED: dict[str, set[type]] = {
    **{name: {int} for name in (*KEY, "response_tokens", "generated_at_step")},
    **{name: {str} for name in ("prompt_fingerprint", "completion_fingerprint")},
    "old_logprobs": {str, type(None)},
    **{name: {float, type(None)} for name in FLOATS},
}
_SCALARS: dict[str, set[type]] = {
    "epoch": {int},
    **{name: {float, type(None)} for name in ("learning_rate", "gradient_norm")},
    **{name: {bool} for name in ("skipped", "lr_tick")},
}
_HALVED = [str, int, int]
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_FILE_NAME = re.compile(r"rank-([0-9]{5}|[1-9][0-9]{5,})\.jsonl")  # as it is written: a rank has one file
_LISTED = 8  # ranks that a message names
_BLOCK_BYTES = 1 << 23  # read at a time, over all ranks together; files are closed in between, whatever the world size
_LEAST_BYTES = 1 << 14


CountItems = Callable[[Iterable[Any], int], Iterable[Any]]
"""A function that hands on what is iterated over, so many things at most; someone may count them."""


def unwatched(items: Iterable[Any], length: int) -> Iterable[Any]:
    """A `CountItems` that counts nothing."""
    return items


class StepStream(Iterator[dict[str, Any]]):
    """The optimizer steps that `read_steps` returns. incomplete: what the ledger lacks at its end, or None; known from
    the beginning."""

    def __init__(self, ledger: Ledger, start: int) -> None:
        self.incomplete = ledger.incomplete
        self._steps = ledger.merged(start)

    def __next__(self) -> dict[str, Any]:
        return next(self._steps)


class RankLine(NamedTuple):
    """One rank's line of one optimizer step, and where it stands."""

    line: bytes
    rank: int
    file: Path | str
    number: int


class StepLines(NamedTuple):
    """One optimizer step: each rank's line, and the stretches that they come from."""

    step: int
    lines: tuple[bytes, ...]
    sources: Sequence[tuple[RankFile, StepStretch]]

    def parts(self) -> list[RankLine]:
        """The lines, each with its place; a stretch has one line per step."""
        return [
            RankLine(line, file.rank, file.path, stretch.number + self.step - stretch.first)
            for line, (file, stretch) in zip(self.lines, self.sources, strict=True)
        ]


class Ledger:
    """A ledger, a folder or a URL, scanned once: which starts recorded which steps, and which records count.

    first_step, stop_step: the steps that all ranks have. incomplete: what is missing at the end, or None. The scan
    keeps one entry per start and rank, nothing per step. beside: a ledger that this one is to be compared with.
    """

    def __init__(self, folder: Path | str, *, beside: Ledger | None = None) -> None:
        self.folder: Path | str = str(folder) if remote.is_url(folder) else Path(folder)
        self._fetched = remote.FetchedLedger(self.folder) if isinstance(self.folder, str) else None
        names: Mapping[Path, Path | str] = {} if self._fetched is None else self._fetched.names
        try:
            paths = list((Path(folder) if self._fetched is None else self._fetched.folder).glob("rank-*.jsonl"))
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            raise LedgerError(f"the folder cannot be read: {error.args[-1]}", self.folder) from None
        named = [(match, path) for path in paths if (match := _FILE_NAME.fullmatch(path.name))]
        if not named:
            raise LedgerError("no ledger: there is no rank-*.jsonl file", self.folder)
        self._beside = beside
        ranks = sorted((int(match[1]), path) for match, path in named)
        others: Mapping[int, RankFile] = {} if beside is None else beside._by_rank
        known: SeenHeaders = {}
        self.files = [scan(path, rank, names.get(path, path), known, others.get(rank)) for rank, path in ranks]
        self._by_rank: dict[int, RankFile] = {file.rank: file for file in self.files}
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
        self.unobserved_from = min((file.ended.step for file in self.files if file.ended is not None), default=None)
        """The first step of the last start that was not observed, since the observing had ended; None: all were."""
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

    def merged(self, start: int) -> Iterator[dict[str, Any]]:
        """The recorded steps, each decoded and its ranks merged; see `batchbridge.ledger.read_steps`."""
        return (merge(lines.parts()) for lines in self.steps(start))

    def whole(self, watch: CountItems) -> Iterable[dict[str, Any]]:
        """Every merged step, watched."""
        return watch(self.merged(self.first_step), self.stop_step - self.first_step)

    def alike_until(self, step: int) -> int:
        """The first step from `step` on of which a rank's line is not that of the ledger beside this one, times left
        out, or before which a start of either ends."""
        own, other = self._span_at(step), None if self._beside is None else self._beside._span_at(step)
        if own is None or other is None or len(own[1]) != len(other[1]):
            return step
        alike = (
            mine.alike[1] if mine.alike is not None and mine.alike[0] == its.offset else step
            for mine, its in zip(own[1], other[1], strict=True)
        )
        return max(step, min(own[0], other[0], *alike))

    def _span_at(self, step: int) -> tuple[int, tuple[StepStretch, ...]] | None:
        """(stop, each rank's stretch) of the steps in which `step` is."""
        spans = ((stop, stretches) for first, stop, stretches in self._spans if first <= step < stop)
        return next(spans, None)

    def _choose(self) -> list[tuple[int, int, tuple[StepStretch, ...]]]:
        """(first, stop, each rank's stretch): the last start that has the step on all of its ranks."""
        stretches = [stretch for file in self.files for stretch in file.stretches]
        edges = sorted({stretch.first for stretch in stretches} | {stretch.stop for stretch in stretches})
        spans: list[tuple[int, int, tuple[StepStretch, ...]]] = []
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

    def _last_complete(self, step: int) -> tuple[StepStretch, ...] | None:
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
        ends = [(file.rank, file.ended) for file in self.files if file.ended is not None]
        if ends and self.unobserved_from is not None:
            rank, (_, why) = next((one for one in ends if not one[1].why.startswith("on rank ")), ends[0])
            of = f" on rank {rank}" if len(self.files) > 1 and not why.startswith("on rank ") else ""
            step = self.unobserved_from
            notes.insert(0, f"nothing was observed from optimizer step {step} on, the run went on: {why}{of}")
        if beyond:
            notes.insert(0, f"step {self.stop_step} is recorded by rank {_list(beyond)} only, and not read")
        return "; ".join(notes) or None


def decode(part: RankLine) -> dict[str, Any]:
    """One rank's step record, checked, with floats for "nan", "inf", "-inf". Raises `LedgerError`."""
    if speedups.orjson is not None:
        # orjson refuses NaN and makes floats of integers beyond 64 bits: what then is wrong, the standard library says.
        with contextlib.suppress(ValueError, LedgerError):
            return _checked(speedups.orjson.loads(part.line), part)
    return _checked(parse(part.line, part.file, part.number), part)


def _checked(record: Any, part: RankLine) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise LedgerError("not a JSON object", part.file, part.number)
    wanted = {"record", *SCALARS, *COLUMNS}
    if (named := set(record) - TIMES.keys() - BESIDE.keys() - EVENTS.keys()) != wanted:
        odd = sorted(wanted - named) or sorted(named - wanted)
        raise LedgerError(f"step record lacks or has too much: {', '.join(odd)}", part.file, part.number)
    rows = len(record["rollout"]) if isinstance(record["rollout"], list) else 0
    for name in COLUMNS:
        values = record[name]
        if name == "weights" and values is None:
            continue
        if not isinstance(values, list) or len(values) != rows:
            raise LedgerError(f"column {name} is not a list of {rows} values", part.file, part.number)
        kinds = set(map(type, values))
        if name in FLOATS and not kinds <= _ALLOWED[name]:
            values = record[name] = [_number(value) for value in values]
            kinds = set(map(type, values))
        if not kinds <= _ALLOWED[name]:
            raise LedgerError(f"column {name} holds a value that is not {COLUMNS[name]}", part.file, part.number)
    for name in ("learning_rate", "gradient_norm"):
        record[name] = _number(record[name])
    for name, kinds in _SCALARS.items():
        if type(record[name]) not in kinds:
            raise LedgerError(f"{name} = {record[name]!r:.60} is not: {SCALARS[name]}", part.file, part.number)
    if not (record["normaliser"] is None or isinstance(record["normaliser"], dict)):
        raise LedgerError("normaliser is neither null nor an object", part.file, part.number)
    for name in BESIDE.keys() & record.keys():
        record[name] = _number(record[name])
        if type(record[name]) is not float:
            raise LedgerError(f"{name} = {record[name]!r:.60} is not: {BESIDE[name]}", part.file, part.number)
    for name in EVENTS.keys() & record.keys():
        told = record[name]
        if not (isinstance(told, list) and all(isinstance(one, list) and [*map(type, one)] == _HALVED for one in told)):
            raise LedgerError(f"{name} = {told!r:.60} is not: {EVENTS[name]}", part.file, part.number)
    for name in TIMES.keys() & record.keys():
        if type(record[name]) not in (float, int) or not 0 <= record[name] < math.inf:
            raise LedgerError(f"{name} is not a number of seconds", part.file, part.number)
    return record


def merge(parts: Sequence[RankLine]) -> dict[str, Any]:
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
    merged |= dict.fromkeys(COLUMNS)
    merged |= {name: [values[i] for i in order] for name, values in columns.items()}
    merged["ranks"] = len(records)
    for name in BESIDE:
        merged[name] = records[0].get(name)
    for name in (*EVENTS, *TIMES):  # by rank
        told = [record.get(name) for record in records]
        merged[name] = None if all(one is None for one in told) else told
    merged["disagreeing"] = {
        name: [record[name] for record in records]
        for name in SCALARS
        if name != "gradient_norm" and any(unlike(record[name], records[0][name]) for record in records)
    }
    return merged


# ---- helpers


def _number(value: Any) -> Any:
    """A float for a whole number, and for the texts of what JSON lacks; all else as it is."""
    if type(value) is int:
        with contextlib.suppress(OverflowError):
            return float(value)
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def unlike(a: Any, b: Any) -> bool:
    """Whether two values differ; two NaNs agree."""
    return bool(a != b) and not (a != a and b != b)


def _list(numbers: Sequence[int], count: int | None = None) -> str:
    """The first few numbers, and how many more there are. count: of all of them, where `numbers` are the first."""
    more = (len(numbers) if count is None else count) - _LISTED
    return ", ".join(map(str, numbers[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _lines_of_ranks(ranks: Sequence[Iterator[list[bytes]]]) -> Iterator[tuple[bytes, ...]]:
    """Each step's lines, one per rank, of lists that hold different numbers of steps. Ends with none of the ranks."""
    read: list[list[bytes]] = [[] for _ in ranks]
    while True:
        read = [lines or next(blocks) for lines, blocks in zip(read, ranks, strict=True)]
        yield from zip(*read, strict=False)
        steps = min(map(len, read))
        read = [lines[steps:] for lines in read]


def _blocks(file: RankFile, stretch: StepStretch, first: int, block_bytes: int) -> Iterator[list[bytes]]:
    """The stretch's lines from step `first` on. Opens the file per block: a world may exceed the open-file limit."""
    step, offset = place_of(file, stretch, first)
    wanted = block_bytes
    while True:
        with file.local.open("rb") as opened:
            opened.seek(offset)
            block = opened.read(wanted)
        if not block:
            number = stretch.number + step - stretch.first
            raise LedgerError(f"step {step} is gone: the file changed while it was read", file.path, number)
        lines = cut(block)
        if len(block) == wanted and not lines[-1].endswith(b"\n"):  # the last line goes on
            lines.pop()
        # A line that is longer than a block is read with the next, larger one.
        wanted = block_bytes if lines else 2 * wanted
        offset += sum(map(len, lines))
        if kept := lines[max(first - step, 0) :]:
            yield kept
        step += len(lines)

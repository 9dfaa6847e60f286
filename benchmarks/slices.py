"""Measurements in slices of minutes that resume each other: rows in processes with time limits, results as they come.

For a device that is lent for minutes. Rows of one group share a process, which begins anew behind a row that fails: an
import costs as much as some rows do, and a device's state after an error is nobody's. The standard library alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

DONE, FAILED, CUT_OFF, NOT_THERE = "done", "failed", "cut off", "not there"
BEGINS = "--- {}"
"""What a process prints before it measures a row."""
LEAST_SECONDS = 60.0
"""No row's time limit is below: the first one on a machine reads its imports from a cold disk."""
WRONG_PLACE = 3
"""Exit code of a process that must not measure here: nothing is recorded, and the slice ends."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement. seconds: expected on the device that the list was made for. needs: packages that it imports."""

    name: str
    group: str
    seconds: float
    needs: tuple[str, ...] = ()


class Results:
    """What was measured, in one JSON file that is rewritten as a whole, atomically, after every row."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """`where` the rows were measured, the `rows` by name, and the `slice_seconds` of every call, as of now."""
        if not self.path.exists():
            return {"where": None, "slice_seconds": [], "rows": {}}
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return found

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every record, by its row's name."""
        found: dict[str, dict[str, Any]] = self.read()["rows"]
        return found

    def put(self, name: str, record: Mapping[str, Any]) -> None:
        """Keeps a row's record in place of an earlier one."""
        self.change(lambda results: results["rows"].__setitem__(name, dict(record)))

    def refuse(self, where: Mapping[str, Any]) -> str | None:
        """Why nothing may be measured here: the rows were measured elsewhere. The first call says where."""
        if (kept := self.read()["where"]) is None:
            self.change(lambda results: results.__setitem__("where", dict(where)))
        elif kept != where:
            return f"{self.path.name} has results of {kept}, and this is {where}: name another folder by --out"
        return None

    def change(self, edit: Callable[[dict[str, Any]], object]) -> None:
        """Rewrites the file after `edit`; whoever reads or is stopped meanwhile has the file before or after it."""
        results = self.read()
        edit(results)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def absent(row: Row) -> list[str]:
    """Packages that the row needs and that are not there."""
    return [name for name in row.needs if find_spec(name) is None]


def missing(rows: Iterable[Row], records: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The rows that are neither done nor failed, and could be measured here."""
    ended = (DONE, FAILED)
    return [row for row in rows if records.get(row.name, {}).get("status") not in ended and not absent(row)]


def expected(row: Row, rows: Iterable[Row], records: Mapping[str, Mapping[str, Any]]) -> float:
    """Seconds that a row will take: as listed, times what the rows that are done took here of what is listed of them,
    half of it at least; of one that was cut off at least half as much again as it had."""
    done = [each for each in rows if records.get(each.name, {}).get("status") == DONE]
    pace = sum(records[each.name]["seconds"] for each in done) / sum(each.seconds for each in done) if done else 1.0
    earlier = records.get(row.name, {})
    return max(row.seconds * max(pace, 0.5), 1.5 * earlier["seconds"] if earlier.get("status") == CUT_OFF else 0.0)


@dataclass(kw_only=True)
class Slice:
    """One call: measures what is missing of `rows` until `ends` (seconds of `clock`).

    command: of row names and `ends`, a command that measures these rows one after the other, puts each into the
    results, and begins none that would not fit; a row that fails ends it. log: what such a process prints.
    """

    rows: Sequence[Row]
    results: Results
    command: Callable[[Sequence[str], float], Sequence[str]]
    ends: float
    log: Path
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.time
    _begins: int = 0

    def run(self) -> int:
        """Returns the exit code: 0 where the slice ended as it should, whatever its rows came to."""
        started = self.clock()
        for row in self.rows:
            if lacking := absent(row):
                self.results.put(row.name, {"status": NOT_THERE, "needs": lacking})
        try:
            for _, group in groupby(self.rows, key=lambda row: row.group):
                part, turns = list(group), set[str]()
                while fitting := [row for row in self._fitting(part) if row.name not in turns]:
                    turns.add(fitting[0].name)
                    if self._process(fitting) == WRONG_PLACE:
                        self.say(self._printed())
                        return 2
        finally:
            self.results.change(lambda found: found["slice_seconds"].append(round(self.clock() - started, 1)))
        records = self.results.rows()
        if left := missing(self.rows, records):
            seconds = sum(expected(row, self.rows, records) for row in left)
            self.say(f"left for the next call, {seconds:.0f} s: {', '.join(row.name for row in left)}")
        return 0

    def _fitting(self, part: Sequence[Row]) -> Iterator[Row]:
        """The group's missing rows that fit one behind the other into what is left of the slice."""
        records, left = self.results.rows(), self.ends - self.clock()
        for row in missing(part, records):
            if (seconds := expected(row, self.rows, records)) <= left:
                left -= seconds
                yield row

    def _process(self, rows: Sequence[Row]) -> int | None:
        """Lets a process measure the rows, and records one that fails. Returns its exit code; None: it was stopped."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._begins = log.tell()
            child = subprocess.Popen(
                self.command([row.name for row in rows], self.ends), stdout=log, stderr=subprocess.STDOUT
            )
            try:
                row, stopped, took = self._watch(child, rows)
            finally:
                child.kill()
                code = child.wait()
        if row is None or code == WRONG_PLACE:
            return code
        record: dict[str, Any] = {"status": FAILED, "seconds": round(took, 1), "error": self._printed()}
        if stopped:
            record["error"] = f"stopped after {took:.0f} s: {'; '.join(self._printed_of(row.name))}"
            record["status"] = CUT_OFF if stopped == CUT_OFF else FAILED
        elif code == 0:
            return code  # it stopped by itself before a row that would not fit any more
        self.results.put(row.name, record)
        self.say(f"{row.name}: {record['status']}: {record['error'].splitlines()[-1] if record['error'] else code}")
        return None if stopped else code

    def _watch(self, child: subprocess.Popen[bytes], rows: Sequence[Row]) -> tuple[Row | None, str, float]:
        """The row that was being measured when the process ended (None: all were), why it was stopped, if it was, and
        the seconds that it had."""
        before, begun = self.results.rows(), self.clock()
        row: Row | None = rows[0]
        told: set[str] = set()
        while True:
            over = child.poll() is not None
            records = self.results.rows()
            ready = [each for each in rows if records.get(each.name) != before.get(each.name)]
            for each in ready:
                if each.name not in told:
                    told.add(each.name)
                    begun = self.clock()
                    self.say(f"{each.name}: done, {records[each.name]['seconds']:.0f} s")
            row = next((each for each in rows if each not in ready), None)
            now = self.clock()
            if over or row is None:
                return row, "", now - begun
            limit = begun + max(LEAST_SECONDS, 3 * expected(row, self.rows, records))
            if now > min(limit, self.ends):
                return row, FAILED if now > limit else CUT_OFF, now - begun
            time.sleep(0.1)

    def _printed_of(self, name: str) -> list[str]:
        """The lines that the last process printed of a row, behind the one that names it."""
        lines = self._printed().splitlines()
        return lines[lines.index(BEGINS.format(name)) + 1 :] if BEGINS.format(name) in lines else lines

    def _printed(self) -> str:
        """The end of what the last process printed."""
        return self.log.read_bytes()[self._begins :].decode(errors="replace")[-1500:].strip()


def measure(names: Sequence[str], rows: Sequence[Row], results: Results, ends: float, of: Callable[[str], Any]) -> None:
    """A process's side: measures the named rows one after the other. of: what measures a row, of its name."""
    by_name, begun, parent = {row.name: row for row in rows}, time.time(), os.getppid()
    for place, name in enumerate(names):
        if place and time.time() + expected(by_name[name], rows, results.rows()) > ends:
            return
        if os.getppid() != parent:  # the slice was killed
            return
        found = of(name)
        results.put(name, {"status": DONE, "seconds": round(time.time() - begun, 1), **found})
        begun = time.time()

"""Feeds mutated inputs to every reader: `nox -s fuzz -- --inputs 1000000`, or `python tests/fuzz/run.py`.

No answer may be a traceback, and no reader may run, import, fetch, write or read anything that it has no business with,
take more than some seconds of CPU, take the machine's memory, or end the process. Inputs depend on the seed, the
reader's name and a number alone: `--reader NAME --number K` makes and reads one again. Exit code 1 where anything was
found.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import platform
import random
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import crash
import guard
import mutation

CPU_SECONDS = 10.0
"""Most CPU that one input may take; docs/cli.md promises "some seconds" for the worst script."""
PEAK_MEGABYTES = 256
"""Most that one input may allocate at a time (measured on a sample; the whole process is bounded too)."""
PROCESS_MEGABYTES = 1024
"""What the process may map beyond what it has when it begins."""
GROWTH_MEGABYTES = 300
"""What the process may keep after all inputs: readers remember nothing of what they read."""
SAMPLE = 500
"""Every so many inputs the peak of allocations is measured, which is slow."""
WARM = "warm"
"""The seed of the inputs that only make the readers import what they need."""


@dataclass
class Found:
    """One input that was answered wrongly."""

    reader: str
    number: int
    what: str
    shown: str


@dataclass
class Tally:
    """What one reader did."""

    inputs: int = 0
    understood: int = 0
    cpu_seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest_number: int = 0
    peak_megabytes: float = 0.0


@dataclass
class Run:
    """A run over readers; `found` is what it is for."""

    folder: Path
    seed: str
    watch: guard.Guard
    mark: crash.Mark = field(default_factory=crash.Mark)
    cpu_seconds: float = field(default_factory=lambda: CPU_SECONDS)
    peak_megabytes: float = PEAK_MEGABYTES
    found: list[Found] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)

    def one(self, reader: Any, number: int, measured: bool = False) -> None:
        """Makes input `number` of `reader`, reads it, and keeps what is wrong with the answer."""
        made = make(reader, self.seed, number)
        self.mark.put(crash.Input(self.seed, reader.name, number))
        tally = self.tallies.setdefault(reader.name, Tally())
        laid = reader.lay(self.folder, made)
        what = None
        if measured:
            tracemalloc.start()
        crash.ends_with_the_input(self.cpu_seconds)
        before = time.process_time()
        try:
            with self.watch.over(_text(made), self.cpu_seconds):
                tally.understood += reader.act(laid) is True
        except (Exception, guard.SideEffect, guard.TooSlow, SystemExit) as error:
            what = "".join(traceback.format_exception(error, limit=-5))
        seconds = time.process_time() - before
        crash.ends_with_the_input(0)
        if measured:
            peak = tracemalloc.get_traced_memory()[1] / guard.MEGABYTE
            tracemalloc.stop()
            tally.peak_megabytes = max(tally.peak_megabytes, peak)
            if peak > self.peak_megabytes:
                what = f"{peak:.0f} MiB at a time, more than {self.peak_megabytes}"
        elif seconds > tally.slowest_seconds:
            tally.slowest_seconds, tally.slowest_number = seconds, number
        if what is None and self.watch.violations:  # swallowed on its way up
            what = "; ".join(self.watch.violations)
        tally.inputs += 1
        tally.cpu_seconds += seconds
        if what is not None:
            self.found.append(Found(reader.name, number, what, repr(made)[:600]))
            print(_told(self.found[-1], self.seed), file=sys.stderr, flush=True)


def make(reader: Any, seed: str, number: int) -> Any:
    """Input `number` of a reader."""
    return reader.make(random.Random(f"{seed}/{reader.name}/{number}"))


def _text(made: Any) -> str:
    """The input as text, for the question whether it names a file."""
    if isinstance(made, (tuple, list)):
        return " ".join(map(_text, made))
    return made.decode("utf-8", "replace") if isinstance(made, bytes) else str(made)


def schedule(readers: Sequence[Any], inputs: int) -> Iterator[tuple[Any, int]]:
    """(reader, number) so that every reader gets its share, evenly over the run."""
    whole = sum(reader.share for reader in readers)
    counts = [max(round(reader.share / whole * inputs), 1) for reader in readers]
    done = [0] * len(readers)
    for place in range(1, 1001):
        for index, reader in enumerate(readers):
            while done[index] * 1000 < counts[index] * place:
                yield reader, done[index]
                done[index] += 1


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs over all readers together")
    parser.add_argument("--seed", default="1", help="any word")
    parser.add_argument("--reader", help="only this one (its name, or the beginning of names)")
    parser.add_argument("--number", type=int, help="only this input of --reader, shown whole")
    parser.add_argument("--most", type=int, default=20, help="end after so many wrong answers")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many, with fewer inputs")
    parser.add_argument("--write", type=Path, metavar="FILE", help="what was run and found, as a page")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None, readers: Sequence[Any] | None = None) -> int:
    """Runs, prints a table, and returns the exit code. readers: in place of the table's."""
    asked = arguments(sys.argv[1:] if words is None else words)
    faulthandler.enable()
    os.environ[mutation.CANARY_NAME] = mutation.CANARY
    memory = Path("/dev/shm")  # a file for each input: on a disk that others use, most of the time would go there
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        folder = Path(name)
        page = asked.write and asked.write.resolve()
        os.chdir(folder)
        if readers is None:
            import readers as table  # imports everything that reads: before the guard is armed

            readers = table.table()
        chosen = [reader for reader in readers if reader.name.startswith(asked.reader or "")]

        def crashed(one: crash.Input | None, what: str) -> None:
            known = [reader for reader in chosen if one and reader.name == one.reader]
            shown = repr(make(known[0], one.seed, one.number)) if known and one else "none yet"
            print(
                _told(Found(one.reader if one else "", one.number if one else 0, what, shown), one.seed if one else "")
            )

        try:
            return crash.survived(lambda mark: _all(asked, folder, chosen, mark, page), crashed)
        finally:
            os.chdir(Path(__file__).parent)


def _all(asked: argparse.Namespace, folder: Path, chosen: Sequence[Any], mark: crash.Mark, page: Path | None) -> int:
    """In a process of its own: every input, and the report."""
    # Its own files, Python's, and what lies in its own folder.
    roots = {folder, Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix), *map(Path, sys.path)}
    readable = tuple(path.resolve() for path in roots if path != Path())
    run = Run(folder, asked.seed, guard.Guard(readable), mark)
    if asked.number is not None:
        for reader in chosen:
            print(reader.name, repr(make(reader, asked.seed, asked.number)), flush=True)
            run.one(reader, asked.number, measured=True)
        return _report(run, 0.0, asked, None)
    for reader in chosen:  # what is imported on first use is imported here, and counts neither as time nor as growth
        for number in range(20):
            mark.put(crash.Input(WARM, reader.name, number))
            crash.ends_with_the_input(run.cpu_seconds)
            with suppress(Exception):
                reader.act(reader.lay(folder, make(reader, WARM, number)))
    guard.limit_memory(PROCESS_MEGABYTES)
    resident = guard.resident_megabytes()
    begin = time.monotonic()
    for count, (reader, number) in enumerate(schedule(chosen, asked.inputs), 1):
        run.one(reader, number, measured=count % SAMPLE == 0)
        if count % 10_000 == 0:
            rate = count / (time.monotonic() - begin)
            print(f"{count:,} inputs, {rate:,.0f} per second, {len(run.found)} found", file=sys.stderr, flush=True)
        if len(run.found) >= asked.most or time.monotonic() - begin > 60 * asked.minutes:
            break
    grown = guard.resident_megabytes() - resident
    if grown > GROWTH_MEGABYTES:
        run.found.append(Found("all", 0, f"the process grew by {grown:.0f} MiB", ""))
    print(f"memory kept after all inputs: {grown:.0f} MiB more than before")
    return _report(run, time.monotonic() - begin, asked, page, grown)


def _report(
    run: Run, seconds: float, asked: argparse.Namespace, page: Path | None, grown_megabytes: float = 0.0
) -> int:
    print(f"{'reader':<27}{'inputs':>9}{'with spec':>11}{'ms each':>9}{'slowest ms':>12}{'its number':>12}{'MiB':>8}")
    for name, tally in run.tallies.items():
        each = 1000 * tally.cpu_seconds / max(tally.inputs, 1)
        slowest = 1000 * tally.slowest_seconds
        print(
            f"{name:<27}{tally.inputs:>9,}{tally.understood:>11,}{each:>9.2f}{slowest:>12.0f}{tally.slowest_number:>12}"
            f"{tally.peak_megabytes:>8.1f}"
        )
    total, cpu = (sum(getattr(t, name) for t in run.tallies.values()) for name in ("inputs", "cpu_seconds"))
    print(f"{total:,} inputs in {seconds:.0f} s ({cpu:.0f} s of CPU), seed {run.seed}: {len(run.found)} wrong answers")
    for found in run.found:
        print(_told(found, run.seed))
    if page is not None:
        page.write_text(_page(run, asked, cpu, grown_megabytes), encoding="utf-8")
    return 1 if run.found else 0


def _page(run: Run, asked: argparse.Namespace, cpu_seconds: float, grown_megabytes: float) -> str:
    """What was run and found, for docs/fuzzing_run.md."""
    total = sum(tally.inputs for tally in run.tallies.values())
    minutes = "" if asked.minutes == float("inf") else f" --minutes {asked.minutes:g}"
    wrong = "no wrong answer" if not run.found else f"{len(run.found)} wrong answers"
    lines = [
        "# What the fuzzer last ran",
        "",
        f"Written by `python tests/fuzz/run.py --inputs {asked.inputs} --seed {run.seed}{minutes} --write FILE`:",
        f"{total:,} inputs, {cpu_seconds / 60:.0f} minutes of CPU, {wrong}; {max(grown_megabytes, 0):.0f} MiB kept",
        f"after all. Python {platform.python_version()}, {platform.machine()}. The last column: the most that was",
        f"allocated at a time, of one input in {SAMPLE}.",
        "",
        "| reader | inputs | with a spec | ms of CPU each | slowest, ms | its number | MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, tally in run.tallies.items():
        each, slowest = 1000 * tally.cpu_seconds / max(tally.inputs, 1), 1000 * tally.slowest_seconds
        lines.append(
            f"| {name} | {tally.inputs:,} | {tally.understood:,} | {each:.2f} | {slowest:.0f} | {tally.slowest_number} "
            f"| {tally.peak_megabytes:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _told(found: Found, seed: str) -> str:
    again = f"--seed {seed} --reader {found.reader} --number {found.number}"
    return f"\n{again}\n  input: {found.shown}\n  {found.what}"


if __name__ == "__main__":
    sys.exit(main())

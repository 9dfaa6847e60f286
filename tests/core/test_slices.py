"""benchmarks/slices.py: rows in slices that resume, whatever becomes of them. Processes are plain Python ones."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slices.py"
CHILD = """
    import os, sys, time
    sys.path.insert(0, {scripts!r})
    import slices
    ends, names = float(sys.argv[1]), sys.argv[2:]
    def of(name):
        print(slices.BEGINS.format(name), flush=True)
        print("begins", name, flush=True)
        if name == "fails":
            raise ValueError("of its own")
        if name == "dies":
            os._exit(9)
        if name == "hangs":
            time.sleep(60)
        return {{"figure": len(name), "process": os.getpid()}}
    rows = [slices.Row(name=name, group="", seconds=0.01) for name in names]
    slices.measure(names, rows, slices.Results(slices.Path({file!r})), ends, of)
"""


@pytest.fixture(scope="module")
def slices() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("slices", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slices"] = module  # where dataclasses look their annotations up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["slices"]


class Command:
    """A list of rows and its results, measured in slices of so many seconds."""

    def __init__(self, slices: Any, folder: Path, *rows: Any, child: str = CHILD) -> None:
        self.slices, self.rows = slices, rows
        self.said: list[str] = []
        self.results = slices.Results(folder / "figures.json")
        self._log, self._child = folder / "log", folder / "child.py"
        text = child.format(scripts=str(SCRIPT.parent), file=str(self.results.path))
        self._child.write_text(textwrap.dedent(text), encoding="utf-8")

    def run(self, seconds: float = 60.0) -> int:
        def command(names: list[str], ends: float) -> list[str]:
            return [sys.executable, str(self._child), str(ends), *names]

        made = self.slices.Slice(
            rows=self.rows,
            results=self.results,
            command=command,
            ends=self.slices.time.time() + seconds,
            log=self._log,
            say=self.said.append,
        )
        return int(made.run())

    @property
    def states(self) -> dict[str, str]:
        return {name: record["status"] for name, record in self.results.rows().items()}


def row(slices: Any, name: str, *needs: str, seconds: float = 0.1, group: str = "a") -> Any:
    return slices.Row(name=name, group=group, seconds=seconds, needs=needs)


def test_a_group_shares_a_process_and_is_measured_once(slices: Any, tmp_path: Path) -> None:
    names = {"one": "a", "two": "a", "three": "b"}
    command = Command(slices, tmp_path, *(row(slices, name, group=group) for name, group in names.items()))
    assert command.run() == 0
    assert command.states == dict.fromkeys(names, "done")
    kept = command.results.rows()
    processes = [kept[name]["process"] for name in names]
    assert processes[0] == processes[1] != processes[2]
    command.run()
    assert command.results.rows() == kept, "done is done"
    assert len(command.results.read()["slice_seconds"]) == 2


@pytest.mark.parametrize(("name", "why"), [("fails", "ValueError: of its own"), ("dies", "begins dies")])
def test_a_row_that_fails_is_recorded_and_stops_no_other(slices: Any, tmp_path: Path, name: str, why: str) -> None:
    command = Command(slices, tmp_path, *(row(slices, each) for each in ("before", name, "behind")))
    assert command.run() == 0
    assert command.states == {"before": "done", name: "failed", "behind": "done"}
    records = command.results.rows()
    assert records[name]["error"].endswith(why)
    assert records["before"]["process"] != records["behind"]["process"], "a device's state after an error is nobody's"
    command.run()
    assert command.results.rows() == records, "not tried again"


def test_what_does_not_fit_any_more_waits_for_the_next_slice(slices: Any, tmp_path: Path) -> None:
    rows = (row(slices, "long", seconds=50), row(slices, "longer", seconds=300), row(slices, "short", seconds=5))
    command = Command(slices, tmp_path, *rows)
    command.run(100)
    assert command.states == {"long": "done", "short": "done"}, "a shorter one fits yet"
    assert command.said[-1].startswith("left for the next call")
    assert command.said[-1].endswith("longer")
    command.run(1e4)
    assert command.states["longer"] == "done"


def test_a_process_ends_before_a_row_that_would_not_fit(slices: Any, tmp_path: Path) -> None:
    results = slices.Results(tmp_path / "figures.json")
    rows = [row(slices, "one", seconds=1), row(slices, "two", seconds=1)]
    slices.measure(["one", "two"], rows, results, slices.time.time(), lambda name: {})
    assert set(results.rows()) == {"one"}


def test_a_row_that_the_slices_end_cuts_off_waits_for_a_longer_one(slices: Any, tmp_path: Path) -> None:
    command = Command(slices, tmp_path, row(slices, "before"), row(slices, "hangs"))
    started = slices.time.time()
    command.run(4.0)
    assert slices.time.time() - started < 30
    assert command.states == {"before": "done", "hangs": "cut off"}
    records = command.results.rows()
    assert slices.expected(command.rows[1], command.rows, records) >= 1.5 * records["hangs"]["seconds"] > 0.1
    assert slices.missing(command.rows, records) == [command.rows[1]]
    error = records["hangs"]["error"]
    assert error.startswith("stopped after")
    assert error.endswith(" s: begins hangs"), "what it printed, and nothing of the row before"


def test_a_row_past_its_own_limit_has_failed(slices: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LEAST_SECONDS", 1.0)
    command = Command(slices, tmp_path, row(slices, "hangs", seconds=1.0), row(slices, "behind"))
    command.run()
    assert command.states == {"hangs": "failed", "behind": "done"}
    assert "stopped after" in command.results.rows()["hangs"]["error"]


def test_a_package_that_is_not_there_is_said_and_the_row_is_measured_once_it_is(slices: Any, tmp_path: Path) -> None:
    command = Command(slices, tmp_path, row(slices, "one", "json", "no_such_package"))
    command.run()
    assert command.results.rows() == {"one": {"status": "not there", "needs": ["no_such_package"]}}
    command.rows = (row(slices, "one", "json"),)
    command.run()
    assert command.states == {"one": "done"}


def test_a_process_that_must_not_measure_here_ends_the_slice(slices: Any, tmp_path: Path) -> None:
    child = "print('no device'); raise SystemExit(3)"
    command = Command(slices, tmp_path, row(slices, "one"), row(slices, "two", group="b"), child=child)
    assert command.run() == 2
    assert command.results.rows() == {}
    assert command.said == ["no device"]


def test_rows_of_another_place_are_not_mixed(slices: Any, tmp_path: Path) -> None:
    results = slices.Results(tmp_path / "figures.json")
    assert results.refuse({"machine": "one"}) is None
    assert results.refuse({"machine": "one"}) is None
    assert "name another folder by --out" in str(results.refuse({"machine": "two"}))
    assert results.read()["where"] == {"machine": "one"}


def test_what_rows_took_here_tells_what_others_will(slices: Any) -> None:
    rows = [row(slices, "one", seconds=10), row(slices, "two", seconds=20)]
    assert slices.expected(rows[1], rows, {}) == 20
    assert slices.expected(rows[1], rows, {"one": {"status": "done", "seconds": 15}}) == 30
    assert slices.expected(rows[1], rows, {"one": {"status": "done", "seconds": 1}}) == 10, "not less than half"
    assert slices.expected(rows[1], rows, {"one": {"status": "failed", "seconds": 15}}) == 20


def test_the_file_is_whole_at_any_time(slices: Any, tmp_path: Path) -> None:
    results = slices.Results(tmp_path / "figures.json")
    results.put("one", {"status": "done"})

    def fail(found: Any) -> None:
        found["rows"].clear()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.change(fail)
    assert json.loads(results.path.read_text(encoding="utf-8"))["rows"] == {"one": {"status": "done"}}
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_all_rows_of_a_gpu_take_no_more_than_its_minutes() -> None:
    """The list itself, as the command has it, which imports no framework for that."""
    code = (
        f"import sys, json; sys.path.insert(0, {str(SCRIPT.parent)!r}); import gpu; assert 'torch' not in sys.modules; "
    )
    code += "print(json.dumps([gpu.WHOLE_MINUTES, [[row.name, row.seconds] for row in gpu.ROWS]]))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    minutes, rows = json.loads(done.stdout)
    assert 20 <= len(rows) == len({name for name, _ in rows})
    assert sum(seconds for _, seconds in rows) <= 60 * minutes == 1500
    assert max(seconds for _, seconds in rows) <= 60 * 4, "a slice of nine minutes has room for each"

"""Steps that are the same bytes are skipped, and nothing that a comparison of lines finds is lost by it."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from batchbridge.ledger import comparing, diff, same_bytes
from batchbridge.ledger.reading import Ledger

RANKS, STEPS = 3, 6


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end inside of lines."""
    monkeypatch.setattr(same_bytes, "_BYTES", 97)


def by_lines(a: Path, b: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What is found where nothing is skipped."""
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "same_until", lambda a, b, start: start)
        return diff(a, b).to_dict()


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("what", ["a digit", "the spelling of a float", "cut off", "no line feed", "torn"])
def test_a_change_is_found_as_by_lines(ledger, monkeypatch, rank, step, what) -> None:
    a, b = (ledger(name, world_size=RANKS, steps=STEPS) for name in "ab")
    path = b / f"rank-{rank:05d}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[step + 1]
    if what == "a digit":
        lines[step + 1] = line.replace(b'"learning_rate":0.001', b'"learning_rate":0.002')
    elif what == "the spelling of a float":
        lines[step + 1] = line.replace(b'"learning_rate":0.001', b'"learning_rate":1e-3')
    elif what == "cut off":
        lines = lines[: step + 1]
    elif what == "no line feed":
        lines = [*lines[: step + 1], line[:-1]]
    else:
        lines = [*lines[: step + 1], line[:-9]]
    assert b"".join(lines) != path.read_bytes()
    path.write_bytes(b"".join(lines))
    for one, other in ((a, b), (b, a)):
        assert diff(one, other).to_dict() == by_lines(one, other, monkeypatch)
    assert diff(a, b).equal is (what == "the spelling of a float" or (what == "no line feed" and step == STEPS - 1))


def test_equal_runs_are_not_cut_into_lines(ledger, monkeypatch) -> None:
    a, b = (ledger(name, world_size=RANKS, steps=STEPS) for name in "ab")
    monkeypatch.setattr(Ledger, "steps", lambda self, start: iter(()))
    assert diff(a, b).steps_compared == STEPS


def test_runs_that_were_resumed_alike_are_skipped_start_by_start(ledger) -> None:
    for name in "ab":
        ledger(name, world_size=RANKS, steps=4)
        folder = ledger(name, world_size=2, at_step=3, steps=6, started="resumed")
    a, b = Ledger(folder.with_name("a")), Ledger(folder)
    assert [same_bytes.same_until(a, b, step) for step in (0, 1, 3, 6)] == [3, 1, 6, 6]
    assert diff(a.folder, b.folder).steps_compared == 6


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists a process's open files there")
def test_more_ranks_than_files_may_be_open_are_compared(ledger) -> None:
    import resource

    a, b = (ledger(name, world_size=200, steps=3) for name in "ab")
    changed = b / "rank-00150.jsonl"
    used = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    limit = next(itertools.islice((number for number in itertools.count() if number not in used), 8, None))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        with contextlib.ExitStack() as opened, pytest.raises(OSError, match="Too many open files"):
            _ = [opened.enter_context(path.open("rb")) for path in a.iterdir()]  # or this test would show nothing
        assert diff(a, b).steps_compared == 3
        changed.write_bytes(changed.read_bytes().replace(b'"learning_rate":0.001', b'"learning_rate":0.002'))
        found = diff(a, b)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.step, found.aspect) == (0, "clock")

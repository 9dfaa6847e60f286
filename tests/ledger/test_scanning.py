"""Steps whose lines two ledgers have alike are skipped, and nothing that a comparison of lines finds is lost by it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scripted_ledger import header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import comparing, diff, scanning
from batchbridge.ledger.comparing import compare
from batchbridge.ledger.reading import Ledger

RANKS, STEPS = 3, 6


@pytest.fixture(params=[97, 1 << 17], ids=["blocks end inside of lines", "blocks hold a file"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_BLOCK_BYTES", request.param)


def by_lines(a: Path, b: Path, exact: bool = False) -> dict[str, object]:
    """What is found where each ledger is scanned alone, and all lines are compared in step."""
    return compare(Ledger(a), Ledger(b), rtol=0.0 if exact else 1e-6, exact=exact).to_dict()


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(
    "what", ["a weight", "a member", "no line", "the spelling of a float", "cut off", "no line feed", "torn"]
)
def test_a_change_is_found_as_by_lines(ledger, rank, step, what) -> None:
    a, b = (ledger(name, world_size=RANKS, steps=STEPS) for name in "ab")
    path = b / f"rank-{rank:05d}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[step + 1]
    if what == "a weight":
        lines[step + 1] = line.replace(b'"weights":[0.1', b'"weights":[0.2')
    elif what == "a member":
        lines[step + 1] = line.replace(b'"sample":[%d' % (rank % 2), b'"sample":[7')
    elif what == "the spelling of a float":
        lines[step + 1] = line.replace(b'"learning_rate":0.001', b'"learning_rate":1e-3')
    elif what == "no line":
        del lines[step + 1]
    elif what == "cut off":
        lines = lines[: step + 1]
    elif what == "no line feed":
        lines = [*lines[: step + 1], line[:-1]]
    else:
        lines = [*lines[: step + 1], line[:-9]]
    assert b"".join(lines) != path.read_bytes()
    path.write_bytes(b"".join(lines))
    if what == "no line" and step < STEPS - 1:
        for one, other in ((a, b), (b, a)):
            with pytest.raises(LedgerError, match=rf"step {step + 1}, where step {step} should follow"):
                diff(one, other)
        return
    for one, other in ((a, b), (b, a)):
        assert diff(one, other).to_dict() == by_lines(one, other)
    harmless = what == "the spelling of a float" or (what == "no line feed" and step == STEPS - 1)
    harmless = harmless or (what == "a weight" and rank == 1)  # of a completion without tokens
    assert diff(a, b).equal is harmless
    assert harmless or diff(a, b).step == step + (what == "no line feed")


# ---- any two ledgers


@functools.cache
def run(starts: tuple[tuple[int, int, int], ...], timed: bool, start_id: str | None) -> dict[int, tuple[bytes, ...]]:
    """Each rank's lines of a run. starts: of each (world size, first step, steps)."""
    files: dict[int, list[bytes]] = {}
    for number, (world_size, at_step, steps) in enumerate(starts):
        for rank in range(world_size):
            own = header(
                rank, world_size, at_step=at_step, started="resumed" if number else "fresh",
                start_id=start_id and f"{start_id}{number}",
            )  # fmt: skip
            lines = files.setdefault(rank, [])
            lines.append(json.dumps(own.to_dict(), separators=(",", ":")).encode() + b"\n")
            for step in range(at_step, at_step + steps):
                took = rank + step / 7 if timed else None
                lines.append(record(step, rows_of(step)[rank::world_size], compute_seconds=took).to_line())
    return {rank: tuple(lines) for rank, lines in files.items()}


START = json.dumps(header(1, 2, at_step=2, started="resumed").to_dict()).encode()


def timed(took: bytes) -> Callable[[bytes], bytes]:
    return lambda line: line.partition(b',"compute_seconds"')[0].removesuffix(b"}\n") + took + b"}\n"


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a weight": lambda line: line.replace(b'"weights":[0.1', b'"weights":[0.2'),
    "a member": lambda line: line.replace(b'"sample":[', b'"sample":[3'),
    "a prompt": lambda line: line.replace(b'"prompt":[', b'"prompt":[3'),
    "the learning rate": lambda line: line.replace(b'"learning_rate":0.001', b'"learning_rate":0.002'),
    "the norm": lambda line: line.replace(b'"gradient_norm":0.5', b'"gradient_norm":0.25'),
    "a float's spelling": lambda line: line.replace(b'"learning_rate":0.001', b'"learning_rate":1e-3'),
    "blanks": lambda line: line.replace(b'"record":', b'"record": '),
    "another step": lambda line: line.replace(b'"step":', b'"step":1', 1),
    "a time": timed(b',"compute_seconds":123.456'),
    "no time": timed(b""),
    "no number": timed(b',"compute_seconds":1.5.5'),
    "a negative time": timed(b',"compute_seconds":-1.5'),
    "no JSON": lambda line: line[:-3] + b"\n",
    "no line feed": lambda line: line[:-1],
    "torn": lambda line: line[:-7],
    "missing": lambda line: b"",
    "twice": lambda line: line * 2,
    "more": lambda line: line + line[: len(line) // 2],
    "a start more": lambda line: line + START + b"\n",
}
STARTS = st.sampled_from(
    [
        ((1, 0, 6),), ((2, 0, 6),), ((2, 0, 5),), ((3, 0, 6),), ((2, 0, 4), (2, 3, 3)), ((2, 0, 4), (2, 2, 4)),
        ((2, 0, 0), (2, 0, 6)), ((2, 0, 4), (2, 3, 1), (2, 3, 3)), ((3, 0, 3), (1, 3, 3)), ((2, 2, 4),),
    ]
)  # fmt: skip
RUNS = st.tuples(STARTS, st.booleans(), st.sampled_from([None, "a", "b"]))
CHANGES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ab"]), st.integers(0, 2), st.integers(1, 8), st.sampled_from(sorted(EDITS))),
    max_size=3,
)


def outcome(function: Callable[[], dict[str, object]]) -> dict[str, object] | str:
    try:
        return function()
    except LedgerError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(
    run_a=RUNS,
    run_b=st.none() | RUNS,
    changes=CHANGES,
    block=st.sampled_from([1, 60, 500, 3000, 1 << 17]),
    chunk=st.sampled_from([1, 3, 1 << 10]),
    exact=st.booleans(),
)
def test_any_two_ledgers_compare_as_by_lines(run_a, run_b, changes, block, chunk, exact) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setattr(scanning, "_BLOCK_BYTES", block)
        patch.setattr(scanning, "_NEAR_BYTES", block)
        patch.setattr(scanning, "_CHUNK", chunk)
        scanning._bounds_of.cache_clear()
        folders = []
        for name, (starts, has_times, start_id) in (("a", run_a), ("b", run_b or run_a)):
            folders.append(folder := Path(place, name))
            folder.mkdir()
            files = {rank: list(lines) for rank, lines in run(starts, has_times, start_id).items()}
            for sides, rank, line, what in changes:
                if name in sides:
                    lines = files[rank % len(files)]
                    lines[line % len(lines)] = EDITS[what](lines[line % len(lines)])
            for rank, lines in files.items():
                (folder / f"rank-{rank:05d}.jsonl").write_bytes(b"".join(lines))
        one, other = folders
        found = outcome(lambda: diff(one, other, exact=exact).to_dict())
        event(
            "refused" if isinstance(found, str) else "equal" if found["equal"] else f"different, {len(changes)} changes"
        )
        assert found == outcome(lambda: by_lines(one, other, exact))
    scanning._bounds_of.cache_clear()


# ---- what is not done


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("has_times", [False, True])
def test_lines_alike_are_neither_compared_in_step_nor_decoded(tmp_path, monkeypatch, has_times) -> None:
    for name, start_id in (("a", "of a"), ("b", "of b")):
        (tmp_path / name).mkdir()
        for rank, lines in run(((2, 0, 4), (2, 3, 3)), has_times, start_id).items():
            other = timed(b',"compute_seconds":0.25')(lines[2]) if name == "b" else lines[2]
            (tmp_path / name / f"rank-{rank:05d}.jsonl").write_bytes(b"".join((*lines[:2], other, *lines[3:])))
    monkeypatch.setattr(Ledger, "steps", lambda self, start: iter(()))
    monkeypatch.setattr(comparing, "merge", pytest.fail)
    assert diff(tmp_path / "a", tmp_path / "b").steps_compared == 6


def test_runs_that_were_resumed_alike_are_skipped_start_by_start(ledger) -> None:
    for name in "ab":
        ledger(name, world_size=RANKS, steps=4)
        folder = ledger(name, world_size=2, at_step=3, steps=6, started="resumed")
    a = Ledger(folder.with_name("a"))
    assert [Ledger(folder, beside=a).alike_until(step) for step in (0, 1, 3, 6)] == [3, 3, 6, 6]
    assert [Ledger(folder).alike_until(step) for step in (0, 3)] == [0, 3]
    assert diff(a.folder, folder).steps_compared == 6


def test_lines_of_a_start_that_no_longer_counts_stand_for_no_others(ledger) -> None:
    def other_weights(step, rows, scalars):
        rows[0]["weights"] = 0.2

    a = ledger("a", world_size=2, steps=4)
    ledger("a", world_size=2, at_step=3, steps=4, started="resumed")
    ledger("a", world_size=2, at_step=3, steps=6, started="resumed", edit=other_weights)
    b = ledger("b", world_size=2, steps=4)
    ledger("b", world_size=2, at_step=3, steps=6, started="resumed")
    for one, other in ((a, b), (b, a)):
        assert diff(one, other).to_dict() == by_lines(one, other)
        assert (diff(one, other).step, diff(one, other).aspect) == (3, "weights")


def test_headers_of_ranks_are_held_once_and_each_has_its_own_rank(ledger) -> None:
    a = Ledger(ledger("a", world_size=RANKS))
    assert [header["rank"] for header in a.headers] == [0]
    headers = [header for file in a.files for header in file.headers]
    assert [header["rank"] for header in headers] == [0, 1, 2]
    assert all(header["spec"] is a.headers[0]["spec"] for header in headers)


@pytest.mark.parametrize(("own", "told"), [("{}", None), ("1", "rank 1 in the file of rank 2")])
def test_a_rank_inside_of_a_header_is_not_taken_for_the_headers_own(ledger, own, told) -> None:
    folder = ledger("a", world_size=3)
    for rank in (1, 2):
        path = folder / f"rank-{rank:05d}.jsonl"
        line = f'"more":{{"rank":{rank},"x":0}},"rank": {own.format(rank)},'
        path.write_bytes(path.read_bytes().replace(b'"rank":%d,' % rank, line.encode(), 1))
    with contextlib.nullcontext() if told is None else pytest.raises(LedgerError, match=told):
        assert [header["rank"] for file in Ledger(folder).files for header in file.headers] == [0, 1, 2]


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

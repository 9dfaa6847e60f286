"""What is written is read: merging, kills, resumes, and errors that name their place."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_ledger import header, record, rows_of

from batchbridge.errors import LedgerError
from batchbridge.ledger import COLUMNS, Writer, digest_floats, fingerprint, read_headers, read_steps, reading, scanning

OPEN_FILES = Path("/proc/self/fd")


def test_steps_of_two_ranks_are_merged_and_sorted_by_completion(ledger):
    steps = list(read_steps(ledger("run", world_size=2)))
    assert [(s["step"], s["prompt"], s["sample"], s["rank"]) for s in steps[:2]] == [
        (0, [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1]),
        (1, [2, 2, 3, 3], [0, 1, 0, 1], [0, 1, 0, 1]),
    ]


def test_every_column_of_a_merged_step_is_what_the_ranks_recorded(ledger):
    step = next(iter(read_steps(ledger("run", world_size=2))))
    rows = rows_of(0)
    assert {name: step[name] for name in COLUMNS} == {
        name: [row["pass_index" if name == "pass" else name] for row in rows] for name in COLUMNS
    }


@given(st.lists(st.floats(), min_size=4, max_size=4), st.floats())
def test_floats_survive_exactly_nan_and_infinity_included(tmp_path_factory, advantages, rate):
    folder = tmp_path_factory.mktemp("floats")
    with Writer(folder, header()) as writer:
        writer.append(record(0, rows_of(0), advantage=advantages, learning_rate=rate))
    step = next(iter(read_steps(folder)))
    assert list(map(repr, [*step["advantage"], step["learning_rate"]])) == list(map(repr, [*advantages, rate]))


def test_a_line_is_strict_json_even_with_nan(ledger):
    def edit(step, rows, scalars):
        rows[0]["reward"] = math.nan

    line = (ledger("run", edit=edit) / "rank-00000.jsonl").read_text().splitlines()[1]
    assert json.loads(line, parse_constant=pytest.fail)["reward"][0] == "nan"


def test_headers_carry_the_spec_and_its_digest(ledger):
    headers = read_headers(ledger("run", world_size=2))
    assert [(h["rank"], h["spec_digest"], h["started"]) for h in headers] == [
        (rank, header().spec.digest(), "fresh") for rank in range(2)
    ]


@pytest.mark.parametrize("torn", [b'{"record":"st', b'{"record":"step","step":2,"epoch":0,"normali', b"{"])
def test_a_torn_last_line_is_ignored_and_reported(ledger, torn):
    folder = ledger("run", steps=2)
    with (folder / "rank-00000.jsonl").open("ab") as file:
        file.write(torn)
    steps = read_steps(folder)
    assert ([s["step"] for s in steps], "torn" in (steps.incomplete or "")) == ([0, 1], True)


@pytest.mark.parametrize("cut_bytes", [1, 2, 40, 400])
def test_a_resumed_writer_repairs_the_torn_line_and_goes_on(ledger, cut_bytes):
    folder = ledger("run", steps=3)
    path = folder / "rank-00000.jsonl"
    os.truncate(path, path.stat().st_size - cut_bytes)
    ledger("run", at_step=2, steps=5, started="resumed")
    assert [s["step"] for s in read_steps(folder)] == [0, 1, 2, 3, 4]


def test_a_step_done_again_after_a_resume_counts_as_it_was_done_last(ledger):
    folder = ledger("run", steps=4)

    def other_rate(step, rows, scalars):
        scalars["learning_rate"] = 2e-3

    ledger("run", at_step=2, steps=3, started="resumed", edit=other_rate)
    assert [(s["step"], s["learning_rate"]) for s in read_steps(folder)] == [(0, 1e-3), (1, 1e-3), (2, 2e-3), (3, 1e-3)]


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_a_run_may_resume_with_another_world_size(ledger, before, after):
    folder = ledger("run", world_size=before, steps=3)
    ledger("run", world_size=after, at_step=2, steps=4, started="resumed")
    steps = list(read_steps(folder))
    assert [(s["step"], s["ranks"], len(s["prompt"])) for s in steps] == [
        (0, before, 4), (1, before, 4), (2, after, 4), (3, after, 4),
    ]  # fmt: skip


def test_ranks_of_different_starts_are_never_mixed_in_one_step(ledger):
    folder = ledger("run", world_size=2, steps=4, start_id="first")
    with Writer(folder, header(0, 2, started="resumed", at_step=2, start_id="second")) as writer:
        writer.append(record(2, rows_of(2)[0::2], learning_rate=9.0))
    assert [s["disagreeing"] for s in read_steps(folder)] == [{}] * 4


def test_a_run_killed_between_two_ranks_ends_before_the_step_that_only_one_has(ledger):
    folder = ledger("run", world_size=2, steps=3)
    path = folder / "rank-00001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    steps = read_steps(folder)
    assert ([s["step"] for s in steps], steps.incomplete) == (
        [0, 1], "step 2 is recorded by rank 0 only, and not read",
    )  # fmt: skip


def test_scalars_on_which_ranks_disagree_are_shown_with_each_ranks_value(tmp_path):
    for rank in range(2):
        with Writer(tmp_path, header(rank, 2)) as writer:
            writer.append(record(0, rows_of(0)[rank::2], skipped=bool(rank)))
    assert next(iter(read_steps(tmp_path)))["disagreeing"] == {"skipped": [False, True]}


def test_a_rank_without_completions_in_a_step_is_fine(tmp_path):
    for rank in range(2):
        with Writer(tmp_path, header(rank, 2)) as writer:
            writer.append(record(0, rows_of(0) if rank else [], weights=None))
    assert next(iter(read_steps(tmp_path)))["rank"] == [1, 1, 1, 1]


def test_a_missing_rank_is_an_error_that_names_it(ledger):
    folder = ledger("run", world_size=3)
    (folder / "rank-00001.jsonl").unlink()
    with pytest.raises(LedgerError, match=r"world_size = 3, but there is no file of rank 1"):
        read_steps(folder)


@pytest.mark.parametrize("name", ["nowhere", "9" * 400, "nul\0"])
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, name):
    with pytest.raises(LedgerError, match=r"no ledger|cannot be read"):
        read_steps(tmp_path / name)


@pytest.mark.parametrize(("name", "value"), [("dataset_size", None), ("mode", 3), ("world_size", 10**9)])
def test_a_header_that_says_too_little_or_too_much_is_an_error(ledger, name, value):
    path = ledger("run", steps=1) / "rank-00000.jsonl"
    header, *steps = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(header), name: value}) + "\n", *steps]))
    with pytest.raises(LedgerError, match=name):
        read_steps(path.parent)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"garbage\n", r"rank-00000\.jsonl:3: not JSON"),
        (b"[1]\n", r"rank-00000\.jsonl:3: not a JSON object"),
        (b'{"record":"note"}\n', r"rank-00000\.jsonl:3: unknown record 'note'"),
        (
            b'{"record":"step","step":' + b"9" * 5000 + b',"epoch":0}\n',
            r"rank-00000\.jsonl:3: not JSON: Exceeds the limit",
        ),
        (b'{"record":"step","step":7,"epoch":0}\n', r"rank-00000\.jsonl:3: step 7, where step 1 should follow"),
        (b'{"record":"header","schema":"other/2"}\n', r"rank-00000\.jsonl:3: schema 'other/2'"),
        (b'{"record":"step","step":1,"epoch":0}\n', r"rank-00000\.jsonl:3: step record lacks .*: advantage"),
        (b"\xff\xfe\n", r"rank-00000\.jsonl:3: not JSON"),
    ],
)
def test_a_bad_line_is_an_error_with_file_and_line(ledger, line, message):
    folder = ledger("run", steps=1)
    with (folder / "rank-00000.jsonl").open("ab") as file:
        file.write(line)
        file.write(b"" if line.startswith(b"{") and b"epoch" in line else line)
    with pytest.raises(LedgerError, match=message):
        list(read_steps(folder))


@pytest.mark.parametrize(
    ("column", "values"),
    [("prompt", [1, 2, 3]), ("prompt", [1, 2, 3, "4"]), ("advantage", None), ("response_tokens", [1.5, 1, 1, 1])],
)
def test_a_bad_column_is_an_error_with_file_and_line(ledger, column, values):
    path = ledger("run", steps=2) / "rank-00000.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), column: values})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=rf"rank-00000\.jsonl:3: column {column}"):
        list(read_steps(path.parent))


def test_a_folder_without_a_ledger_is_an_error(tmp_path):
    with pytest.raises(LedgerError, match="no ledger"):
        read_headers(tmp_path)


def test_a_fresh_start_never_touches_an_existing_ledger(ledger):
    folder = ledger("run")
    before = (folder / "rank-00000.jsonl").read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        Writer(folder, header())
    assert (folder / "rank-00000.jsonl").read_bytes() == before


def test_a_writer_refuses_a_gap(tmp_path):
    with Writer(tmp_path, header()) as writer, pytest.raises(ValueError, match="optimizer step 1 follows -1"):
        writer.append(record(1, rows_of(1)))


def test_a_writer_refuses_columns_of_different_length(tmp_path):
    with Writer(tmp_path, header()) as writer, pytest.raises(ValueError, match="columns differ in length"):
        writer.append(record(0, rows_of(0), reward=[1.0]))


def test_a_writer_killed_by_sigkill_leaves_every_appended_step(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from scripted_ledger import *\n"
        "writer = Writer(sys.argv[1], header())\n"
        "for step in range(3): writer.append(record(step, rows_of(step)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    assert (done.returncode, [s["step"] for s in read_steps(tmp_path)]) == (-signal.SIGKILL, [0, 1, 2])


SIZES = [
    (reading, "_BLOCK_BYTES"), (reading, "_LEAST_BYTES"), (scanning, "_BLOCK_BYTES"), (scanning, "_NEAR_BYTES"),
]  # fmt: skip


@pytest.mark.parametrize("bytes_at_a_time", [1, 700, 2500])
def test_how_much_is_read_at_a_time_changes_nothing(ledger, monkeypatch, bytes_at_a_time):
    def longer_lines(step, rows, scalars):
        scalars["epoch"] = 10**step

    folder = ledger("run", world_size=4, steps=9, edit=longer_lines)
    ledger("run", world_size=2, at_step=5, steps=9, started="resumed")
    with (folder / "rank-00001.jsonl").open("ab") as file:
        file.write(b"{")
    whole = read_steps(folder)
    expected = list(whole)
    for module, name in SIZES:
        monkeypatch.setattr(module, name, bytes_at_a_time)
    steps = read_steps(folder)
    assert [step["ranks"] for step in expected] == [4] * 5 + [2] * 4
    assert (list(steps), steps.incomplete) == (expected, whole.incomplete)
    for start in range(11):
        assert list(read_steps(folder, start=start)) == expected[start:]


@pytest.mark.parametrize("place", [1, 2, 7])
def test_a_step_that_is_missing_is_found_wherever_it_was(ledger, place):
    folder = ledger("run", steps=9)
    path = folder / "rank-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:place] + lines[place + 1 :]))
    with pytest.raises(LedgerError, match=rf":{place + 1}: step {place}, where step {place - 1} should follow"):
        read_steps(folder)


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="only Linux lists a process's open files there")
def test_reading_does_not_keep_a_file_open_per_rank(ledger):
    folder = ledger("run", world_size=4)
    steps = read_steps(folder)
    next(steps)
    assert not [path for path in OPEN_FILES.iterdir() if str(folder) in str(path.resolve())]


# ---- fingerprints


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], "e4a6a0577479b2b4"), ([1, 2, 3], None), ([0], None), ([-1, 2**31 - 1], None)],
)
def test_fingerprint_is_blake2b_of_little_endian_int32(ids, expected):
    import hashlib

    packed = b"".join(i.to_bytes(4, "little", signed=True) for i in ids)
    plain = hashlib.blake2b(packed, digest_size=8).hexdigest()
    assert fingerprint(ids) == plain == (expected or plain)


@pytest.mark.parametrize("ids", [(5, 6, 70), *(array(code, [5, 6, 70]) for code in "ihqHB"), bytes([5, 6, 70])])
def test_fingerprint_takes_any_sequence_or_integer_buffer(ids):
    assert fingerprint(ids) == fingerprint([5, 6, 70])


@pytest.mark.parametrize("ids", [[2**31], [1.5], ["a"], [None]])
def test_fingerprint_refuses_what_is_no_token_id(ids):
    with pytest.raises(ValueError, match="int32 token ids"):
        fingerprint(ids)


def test_digest_floats_sees_one_bit_of_float32_and_nothing_below():
    below, one_bit = [1.0 + 2**-30], [1.0 + 2**-23]
    digests = [digest_floats(values) for values in ([1.0], below, one_bit)]
    assert (digests[1] == digests[0], digests[2] == digests[0]) == (True, False)


def test_digest_floats_takes_a_float32_buffer():
    assert digest_floats(array("f", [0.1, -2.5])) == digest_floats([0.1, -2.5])


def test_importing_the_ledger_imports_neither_numpy_nor_torch():
    script = (
        "import sys, batchbridge.ledger, batchbridge.ledger.comparing\n"
        "print({'numpy', 'torch', 'pydantic'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", [1]), ("epoch", 1.5), ("learning_rate", "fast"), ("gradient_norm", [0.5]), ("learning_rate", -(10**310)),
     ("skipped", 0), ("skipped", "false"), ("lr_tick", None)],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_a_scalar_of_another_kind_is_an_error_with_file_and_line(ledger, name, value):
    path = ledger("run", steps=2) / "rank-00000.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), name: value})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match=rf"rank-00000\.jsonl:3: {name} = "):
        list(read_steps(path.parent))


@pytest.mark.parametrize("column", ["reward", "advantage", "weights"])
def test_a_whole_number_where_a_float_belongs_is_one(ledger, column):
    path = ledger("run", steps=1) / "rank-00000.jsonl"
    header_line, line = path.read_text().splitlines()
    path.write_text(f"{header_line}\n{json.dumps({**json.loads(line), column: [1, 0, None, 10**20]})}\n")
    (step,) = read_steps(path.parent)
    assert (step[column], {type(value) for value in step[column]}) == ([1.0, 0.0, None, 1e20], {float, type(None)})
    path.write_text(f"{header_line}\n{json.dumps({**json.loads(line), column: [1, 0, 0, 10**400]})}\n")
    with pytest.raises(LedgerError, match=f"column {column}|not JSON"):
        list(read_steps(path.parent))


def test_a_file_that_is_none_is_an_error_that_names_it(ledger):
    for name, made in (("a", lambda path: path.mkdir()), ("b", lambda path: path.symlink_to("nowhere"))):
        path = ledger(name) / "rank-00000.jsonl"
        path.unlink()
        made(path)
        with pytest.raises(LedgerError, match=r"rank-00000\.jsonl: it cannot be read"):
            read_steps(path.parent)


def test_a_rank_has_one_file(ledger):
    path = ledger("run") / "rank-00000.jsonl"
    (path.parent / "rank-000000.jsonl").write_text("a copy under a name that no writer gives")
    assert [step["step"] for step in read_steps(path.parent)] == [0, 1, 2, 3]

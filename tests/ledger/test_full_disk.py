"""A ledger that cannot be written: a `LedgerError` that names the place, on real files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchbridge.errors import LedgerError
from batchbridge.ledger import read_steps
from batchbridge.ledger.records import try_to_write

FULL = """
import resource, sys, weakref
from scripted_ledger import header, record, rows_of
from batchbridge.errors import LedgerError
from batchbridge.ledger.records import Writer

class Owner: ...

owner, writer = Owner(), Writer(sys.argv[1], header())
weakref.finalize(owner, writer.close)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
step = 0
try:
    while True:
        writer.append(record(step, rows_of(step)))
        step += 1
except LedgerError as error:
    print(step, error)
"""


@pytest.mark.parametrize("folder", ["/proc/nope/x", "/dev/null/x", "a\0b"])
def test_a_folder_that_cannot_be_written_is_named(folder: str) -> None:
    with pytest.raises(LedgerError, match="the ledger cannot be written") as error:
        try_to_write(folder)
    assert folder in str(error.value)


def test_a_folder_that_is_made_for_the_try_goes_again_and_one_that_is_there_stays(tmp_path: Path) -> None:
    try_to_write(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    try_to_write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_run_with_the_ledgers_error_alone(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), "9000"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "closing tried to write again"
    steps, _, text = ran.stdout.partition(" ")
    assert text.startswith(str(tmp_path / "rank-00000.jsonl"))
    assert "the ledger cannot be written: File too large" in text
    assert len(list(read_steps(tmp_path))) == int(steps) > 0

"""The loop of starts that SIGKILL ends: what a start holds at its end is not held for the next one. Real tqdm."""

from __future__ import annotations

import time

import tqdm

from batchbridge_on_cpu.killing import ended, forked


def test_what_a_killed_start_had_locked_does_not_block_the_next() -> None:
    def holds() -> None:
        with tqdm.tqdm.get_lock():
            time.sleep(60)

    def takes() -> None:
        with tqdm.tqdm.get_lock():
            pass

    tqdm.tqdm.set_lock(tqdm.std.TqdmDefaultWriteLock())  # as the first bar of a process does, which forks then share
    assert ended(forked([holds]), 0.5, 0) == [None]
    assert ended(forked([takes]), 20, 0) == [0]

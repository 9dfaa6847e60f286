"""`batchbridge try openrlhf` as a user types it: its table against a count of the script that needs no ledger."""

from __future__ import annotations

from batchbridge_on_cpu.tried import TriedFramework


class TestTry(TriedFramework):
    framework = "openrlhf"
    group, prompts, steps = 3, 12, 3

"""`batchbridge try trl` as a user types it: its table against a count of the script that needs no ledger."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from batchbridge_on_cpu.tried import TriedFramework, TriedRuns

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "docs"))

import make_outputs


class TestTry(TriedFramework):
    framework = "trl"
    group, prompts, steps = 4, 9, 5

    def test_wrapped_gradients_are_the_oracles_and_native_ones_are_not(self, runs: TriedRuns) -> None:
        error, bar = "gradient error, worst step", "bar (max of 1e-6 and 3 x float32 noise)"
        native, wrapped = runs.columns["native"], runs.columns["wrapped"]
        assert float(wrapped[error]) <= float(wrapped[bar])
        assert float(native[error]) > 1000 * float(native[bar])

    @pytest.mark.parametrize("name", ["README.md", "docs/newcomer.md"])
    def test_a_page_shows_what_it_prints(self, runs: TriedRuns, name: str) -> None:
        """BATCHBRIDGE_RECORD=1 writes the block anew, as `docs/make_outputs.py` does."""
        page = ROOT / name
        (block,) = [one for one in make_outputs.blocks(page) if one.said.endswith(Path(__file__).name)]
        ((command, expected),) = block.commands
        assert command == "batchbridge try trl"
        if not make_outputs.fits(expected, runs.text) and os.environ.get("BATCHBRIDGE_RECORD") == "1":
            text, (start, end) = page.read_text(encoding="utf-8"), block.span
            new = f"$ {command}\n{make_outputs.shortened(expected, runs.text)}"
            page.write_text(text[:start] + new + text[end:], encoding="utf-8")
            return
        assert make_outputs.fits(expected, runs.text), runs.text

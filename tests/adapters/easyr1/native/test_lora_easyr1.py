"""LoRA: EasyR1's real workers and `fit` against peft's own model, one completion at a time.

The processes run lora.py and lora_fits.py; lora_proofs.py says what is asked.
"""

from __future__ import annotations

from pathlib import Path

import lora_proofs
import lora_runs
import pytest


@pytest.fixture(autouse=True, scope="module")
def newer(checkout: Path) -> None:
    if '"0.3.2"' in (checkout / "verl" / "__init__.py").read_text(encoding="utf-8"):
        pytest.skip("0.3.2 has no LoRA")


@pytest.mark.parametrize(("name", "ranks"), lora_proofs.CASES)
def test_gradients_of_adapters_are_the_oracles_and_other_adapters_miss_it(
    place: Path, checkout: Path, name: str, ranks: int
) -> None:
    measured = lora_runs.gradients(place, checkout, ranks, name)
    lora_proofs.check_gradients(measured)
    lora_proofs.check_tampering(measured, ranks)


def test_runs_with_lora_are_the_plan_and_end_where_it_leads(place: Path, checkout: Path) -> None:
    lora_proofs.check_runs(lora_runs.everything(place, checkout))

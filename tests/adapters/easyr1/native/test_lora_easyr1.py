"""LoRA: the gradient of EasyR1's own `update_actor` against peft's model, one completion at a time."""

from __future__ import annotations

from pathlib import Path

import proofs
import pytest
from started import measured_by


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_of_adapters_are_the_oracles_and_other_adapters_miss_it(
    place: Path, checkout: Path, ranks: int
) -> None:
    if '"0.3.2"' in (checkout / "verl" / "__init__.py").read_text(encoding="utf-8"):
        pytest.skip("0.3.2 has no LoRA")
    script, folder = Path(__file__).with_name("lora.py"), place / f"lora-{ranks}"
    measured = measured_by(script, folder, checkout, ranks, leaves="lora.json")
    assert len(measured["wrapped"]) == 2 * 2 * 3 * 3  # objectives, aggregations, cuts, steps
    for result in measured["wrapped"]:
        assert result["error"] <= proofs.bar(result), result
        assert result["norm"] > 0.01
    assert measured["control"] > 10

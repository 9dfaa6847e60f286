"""Images: each layout that TRL splits, ragged numbers of them, against the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pictures import FAMILIES, picture_trainer, pictures_of

from batchbridge import wrap
from batchbridge.testing.tiny import Script
from batchbridge_trl.releases import has
from batchbridge_trl.testing import Captured, gradient_errors

pytestmark = pytest.mark.skipif(not has(">=1.16"), reason="images are followed from TRL 1.16 on")
SPLITS: dict[str, dict[str, Any]] = {
    "4x2": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "2x4, two passes": {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 8,
        "num_iterations": 2,
    },
}


@pytest.mark.parametrize("split", list(SPLITS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_layout_has_the_oracles_gradient(tmp_path: Path, name: str, split: str) -> None:
    family, script = FAMILIES[name], Script()
    built = wrap(picture_trainer(tmp_path, family, max_steps=3, **SPLITS[split]))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    known = {"plan": plan, "policy": family.model, "script": script, "tokenize": family.tokenize}
    for each in gradient_errors(captured, plan.spec, inputs=family.inputs, **known):
        assert each.error <= each.bar

    def swapped(prompt: int, completion: int) -> Any:
        return family.inputs(prompt, completion, [one + 3 for one in pictures_of(prompt)])

    missed = gradient_errors(captured, plan.spec, inputs=swapped, steps=1, **known)
    assert all(each.error > 10 * each.bar for each in missed), "negative control: other pictures"

"""Images: each layout that TRL splits, ragged numbers of them, against the oracle."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import FAMILIES, picture_trainer, pictures_of

from batchbridge import CannotAttach, wrap
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_trl.releases import has
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors

pytestmark = pytest.mark.skipif(not has(">=1.16"), reason="images are followed from TRL 1.16 on")
SPLITS: dict[str, dict[str, Any]] = {
    "4x2": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "2x6, two passes over all prompts": {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 6,
        "steps_per_generation": 12,
        "num_iterations": 2,
    },
}


@pytest.mark.parametrize("split", list(SPLITS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_layout_has_the_oracles_gradient(tmp_path: Path, name: str, split: str) -> None:
    family, script = FAMILIES[name], ScriptedRollouts()
    built = wrap(picture_trainer(tmp_path, family, max_steps=3, **SPLITS[split]))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    known = {"plan": plan, "policy": family.model, "script": script, "tokenize": family.tokenize}
    for each in gradient_errors(captured, plan.spec, inputs=family.inputs, **known):
        assert each.error <= each.bar

    def swapped(prompt: int, completion: int) -> Any:
        return family.inputs(prompt, completion, [one + 6 for one in pictures_of(prompt)])

    missed = gradient_errors(captured, plan.spec, inputs=swapped, steps=1, **known)
    assert all(each.error > 10 * each.bar for each in missed), "negative control: other pictures"


RESUMED = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 1,
    "save_strategy": "steps",
    "save_steps": 5,  # inside the second rollout
}


@pytest.mark.parametrize("budget", [None, 60])
def test_a_checkpoint_keeps_the_images_that_are_still_trained_on(tmp_path: Path, budget: int | None) -> None:
    """Also the weights, which transformers saves under other names than the model has."""
    family = next(iter(FAMILIES.values()))
    whole = wrap(picture_trainer(tmp_path / "run", family, **RESUMED))
    whole.train()
    again = wrap(picture_trainer(tmp_path / "run", family, **RESUMED), tokens_per_device=budget)
    with pytest.warns(UserWarning, match="resumed from") if budget else contextlib.nullcontext():
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    assert again.state.global_step == whole.state.global_step > 5
    ends = flat_parameters(whole.model), flat_parameters(again.model)
    assert torch.equal(*ends) if budget is None else torch.allclose(*ends, rtol=0, atol=1e-5)


def test_a_text_only_run_of_a_model_that_reads_images_is_one_like_any_other(tmp_path: Path) -> None:
    family = next(iter(FAMILIES.values()))
    built = wrap(picture_trainer(tmp_path, family, pictures=lambda prompt: [], max_steps=2, **SPLITS["4x2"]))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    known = {"plan": built.batchbridge.plan, "policy": family.model, "script": ScriptedRollouts()}
    for each in gradient_errors(captured, built.batchbridge.plan.spec, **known):
        assert each.error <= each.bar


def test_tools_beside_images_are_refused(tmp_path: Path) -> None:
    built = picture_trainer(tmp_path, next(iter(FAMILIES.values())), **SPLITS["4x2"])
    built.tools = [len]
    with pytest.raises(CannotAttach, match="no tools beside images"):
        wrap(built)

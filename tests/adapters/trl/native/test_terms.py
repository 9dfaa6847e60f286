"""Terms of TRL's loss beside the surrogate: held against the oracle, and tampered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_script import GROUP, SCRIPT, engine_trainer, multiplier
from representative import once

from batchbridge import BatchDrift, wrap
from batchbridge.testing.tiny import Script, tiny_policy
from batchbridge_trl.releases import has, lacks
from batchbridge_trl.testing import TAKES_ROLLOUTS, Captured, flat_parameters, gradient_errors, scripted_trainer

SPLITS: dict[str, dict[str, Any]] = {
    "4x2": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "1x8, two passes": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 8,
        "steps_per_generation": 16,
        "num_iterations": 2,
    },
    "4x3, straddling, kl": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 4,
        "beta": 0.1,
    },
}
LOSSES = ("dapo", "grpo", "dr_grpo")
MODES = {
    "token_truncate": (0.8, 1.2),
    "token_mask": (0.5, 1.5),
    "sequence_truncate": (0.5, 2.0),
    "sequence_mask": (0.25, 3.0),
}
needs_the_correction = pytest.mark.skipif(not has(">=1.6"), reason="this TRL corrects by one bound, or not at all")


def corrected(folder: Path, mode: str, split: str, **more: Any) -> Any:
    low, high = MODES[mode]
    bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    arguments = {**SPLITS[split], **bounds, "vllm_importance_sampling_mode": mode, "max_steps": 3, **more}
    reference = tiny_policy(seed=1) if arguments.get("beta") else None
    return engine_trainer(folder, reference=reference, **arguments)


@needs_the_correction
@pytest.mark.parametrize(
    ("mode", "split", "loss"), [(mode, split, loss) for mode, split, loss in once(MODES, SPLITS, LOSSES)]
)
def test_vllms_correction_has_the_oracles_gradient(tmp_path: Path, mode: str, split: str, loss: str) -> None:
    """Scripted generation, with a token whose probability vLLM did not say, and sequences beyond every bound."""
    built = wrap(corrected(tmp_path, mode, split, loss_type=loss))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan, reference = built.batchbridge.plan, tiny_policy(seed=1) if built.beta else None
    correction = multiplier(mode, *MODES[mode])
    known = {"plan": plan, "script": SCRIPT, "reference": reference}
    for each in gradient_errors(captured, plan.spec, multiplier=correction, **known):
        assert each.error <= each.bar
    without = gradient_errors(captured, plan.spec, steps=1, **known)
    assert all(each.error > 10 * each.bar for each in without), "negative control: the oracle without the correction"


@needs_the_correction
@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_correction_that_is_changed_is_noticed(tmp_path: Path, factor: float) -> None:
    """On its way into the loss, in place: by 1 %, and as if no completion were to train."""
    built = wrap(corrected(tmp_path, "token_truncate", "4x2"))
    native = built._compute_loss

    def changed(model: Any, inputs: Any) -> Any:
        inputs["importance_sampling_ratio"] *= factor
        return native(model, inputs)

    built._compute_loss = changed
    before = flat_parameters(built.model)
    with pytest.raises(BatchDrift, match="weights"):
        built.train()
    assert torch.equal(before, flat_parameters(built.model))


@needs_the_correction
def test_completions_have_seeds_of_their_own_but_from_a_server(tmp_path: Path) -> None:
    built = wrap(corrected(tmp_path, "token_truncate", "4x2", max_steps=1))
    built.train()
    plan = built.batchbridge.plan
    assert built.vllm_generation.seeds == [seed + sample for seed in plan.sampling_seeds(0) for sample in range(GROUP)]
    assert "seed of its own" not in built.batchbridge.report()
    served = wrap(corrected(tmp_path, "token_truncate", "4x2", max_steps=1, vllm_mode="server"))
    served.train()
    assert "a completion does not have a seed of its own" in served.batchbridge.report()


class Interrupted(Script):
    """A tool answers in the middle of every second completion, and writes one whole."""

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        mask = super().loss_mask(prompt, sample)
        if (prompt + sample) % 2:
            mask[1:4] = [0] * len(mask[1:4])
        return mask


@pytest.mark.skipif(not has(TAKES_ROLLOUTS), reason="this TRL takes no loss masks from rollouts")
def test_tokens_that_tools_wrote_train_nothing(tmp_path: Path) -> None:
    """Through `env_mask`, which TRL takes for the mask of its own tools' tokens: the same column from there on."""
    script = Interrupted()
    built = wrap(scripted_trainer(tmp_path, script=script, max_steps=3, **SPLITS["1x8, two passes"]))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    for each in gradient_errors(captured, plan.spec, plan=plan, script=script):
        assert each.error <= each.bar
    whole = gradient_errors(captured, plan.spec, plan=plan, steps=1)
    assert all(each.error > 10 * each.bar for each in whole), "negative control: every token trained"


@pytest.mark.skipif(lacks("tools"), reason="this TRL has no tools")
def test_a_run_with_tools_is_followed_and_told_that_it_is_not_replayed(tmp_path: Path) -> None:
    """Shows what the report says by the trainer's own attribute; no tool is called."""
    built = scripted_trainer(tmp_path)
    built.tools = [len]
    assert "tools and environments answer by themselves" in wrap(built).batchbridge.report()

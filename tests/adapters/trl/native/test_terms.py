"""Terms of TRL's loss beside the surrogate: held against the oracle, and tampered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_script import GROUP, SCRIPT, engine_trainer, multiplier
from representative import once
from router import COEFFICIENT, Routed, mixture, router_loss
from tools_script import Calling, calls, tokenize, tool_trainer
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
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
BUDGETS = {"1x8, two passes": 40}
"""Tokens per device, of the split that is cut by tokens where there is a choice."""
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


class Interrupted(ScriptedRollouts):
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


needs_a_bonus = pytest.mark.skipif(not has(">=1.10"), reason="this TRL's entropy bonus is refused, or not there")


@needs_a_bonus
@pytest.mark.parametrize(("split", "loss"), [pair[:2] for pair in once(SPLITS, LOSSES)])
def test_an_entropy_bonus_is_the_mean_over_the_steps_tokens(tmp_path: Path, split: str, loss: str) -> None:
    reference = tiny_policy(seed=1) if SPLITS[split].get("beta") else None
    arguments = {**SPLITS[split], "loss_type": loss, "entropy_coef": 0.05, "max_steps": 3}
    built = wrap(scripted_trainer(tmp_path, reference=reference, **arguments), tokens_per_device=BUDGETS.get(split))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    for each in gradient_errors(captured, plan.spec, plan=plan, reference=reference):
        assert each.error <= each.bar
    without = plan.spec.replace(**{"objective.entropy_coefficient": 0.0})
    missed = gradient_errors(captured, without, plan=plan, reference=reference, steps=1)
    assert all(each.error > 10 * each.bar for each in missed), "negative control: the oracle without the bonus"


ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef_delta": 0.03, "entropy_coef_max": 0.05, "entropy_target": 3.9}


@needs_a_bonus
def test_an_adaptive_bonus_follows_the_steps_entropy_however_it_is_split(tmp_path: Path) -> None:
    """From the second step on: in the first one TRL knows no entropy yet. What is logged does not hang on the split."""
    ends, logged = [], []
    for number, split in enumerate(("4x2", "1x8")):
        micro, accumulated = map(int, split.split("x"))
        sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulated}
        logs = {"logging_strategy": "steps", "logging_steps": 1}
        built = wrap(scripted_trainer(tmp_path / str(number), max_steps=4, **sizes, **logs, **ADAPTIVE))
        captured, applied = Captured(built.model), Applied(built)
        for callback in (captured, applied):
            built.add_callback(callback)
        built.train()
        plan = built.batchbridge.plan
        assert applied.coefficients[:3] == [0.0, 0.03, 0.05]
        for step, coefficient in enumerate(applied.coefficients):
            spec = plan.spec.replace(**{"objective.entropy_coefficient": coefficient})
            assert (found := gradient_errors(captured, spec, plan=plan)[step]).error <= found.bar
        ends.append(flat_parameters(built.model))
        names = ("loss", "policy_loss", "entropy", "entropy_coef")
        logged.append([[row[name] for name in names] for row in built.state.log_history if "loss" in row])
    assert torch.allclose(*ends, rtol=0, atol=1e-7)
    assert len(logged[0]) == 4
    assert torch.allclose(*map(torch.tensor, logged), rtol=1e-4, atol=2e-5)


class Applied(TrainerCallback):
    """The bonus's coefficient in each optimizer step, by TRL's own rule."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.coefficients: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        on = self._trainer._last_world_entropy <= args.entropy_target
        self.coefficients.append(self._trainer.entropy_coef if on else 0.0)


@needs_a_bonus
def test_an_adaptive_bonus_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **SPLITS["4x2"], **ADAPTIVE}
    whole = wrap(scripted_trainer(tmp_path / "run", **saved))
    whole.train()
    again = wrap(scripted_trainer(tmp_path / "run", **saved))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(again.model))
    assert whole.entropy_coef == again.entropy_coef > 0


@needs_a_bonus
@pytest.mark.parametrize("way", ["a larger coefficient", "left out", "entropies scaled"])
def test_a_bonus_that_is_changed_is_noticed(tmp_path: Path, way: str) -> None:
    built = wrap(scripted_trainer(tmp_path, entropy_coef=0.05, max_steps=2, **SPLITS["4x2"]))
    if way == "a larger coefficient":
        built.entropy_coef *= 1.01
    elif way == "left out":
        built._entropy_bonus_enabled = False
    else:
        native = built._get_per_token_logps_and_entropies

        def scaled(*arguments: Any, **options: Any) -> Any:
            logprobs, entropies, router_loss = native(*arguments, **options)
            return logprobs, entropies * 1.01, router_loss

        built._get_per_token_logps_and_entropies = scaled
    before = flat_parameters(built.model)
    with pytest.raises(BatchDrift, match="the entropy bonus"):
        built.train()
    assert torch.equal(before, flat_parameters(built.model))


@needs_a_bonus
def test_a_bonus_of_ones_own_is_refused(tmp_path: Path) -> None:
    built = scripted_trainer(tmp_path, entropy_coef=0.05, **SPLITS["4x2"])
    native = built._compute_loss

    def doubled(model: Any, inputs: Any) -> Any:
        built.entropy_coef *= 2
        try:
            return native(model, inputs)
        finally:
            built.entropy_coef /= 2

    built._compute_loss = doubled
    with pytest.raises(CannotAttach, match="the entropy bonus reached the gradient otherwise"):
        wrap(built)


@pytest.mark.skipif(lacks("aux_loss_enabled"), reason="this TRL has no router loss")
@pytest.mark.parametrize("split", list(SPLITS))
def test_a_routers_loss_is_the_mean_over_micro_batches_where_it_is_allowed(tmp_path: Path, split: str) -> None:
    arguments = {"router_aux_loss_coef": COEFFICIENT, "max_steps": 3, **SPLITS[split], "beta": 0.0}
    built = wrap(scripted_trainer(tmp_path, policy=mixture(), **arguments), allow=["router_loss"])
    assert "depends on how a step is split" in built.batchbridge.report()
    captured, routed = Captured(built.model), Routed(built)
    built.add_callback(captured)
    built.train()
    plan, given = built.batchbridge.plan, routed.gather()
    known = {"plan": plan, "policy": mixture}
    beside = {"beside": lambda step, policy: router_loss(given[step], policy)}
    for each in gradient_errors(captured, plan.spec, **known, **beside):
        assert each.error <= each.bar
    missed = gradient_errors(captured, plan.spec, steps=1, **known)
    assert all(each.error > 10 * each.bar for each in missed), "negative control: the oracle without the router's loss"


@pytest.mark.skipif(lacks("aux_loss_enabled"), reason="this TRL has no router loss")
def test_a_routers_loss_that_is_changed_is_noticed(tmp_path: Path) -> None:
    arguments = {"router_aux_loss_coef": COEFFICIENT, "max_steps": 2, **SPLITS["4x2"]}
    built = wrap(scripted_trainer(tmp_path, policy=mixture(), **arguments), allow=["router_loss"])
    built.router_aux_loss_coef *= 1.01
    with pytest.raises(BatchDrift, match="the router's loss"):
        built.train()


@pytest.mark.skipif(not has(">=1.16"), reason="how a tokenizer reads calls differs before")
@pytest.mark.parametrize("split", ["4x2", "1x8, two passes"])
def test_what_a_tool_says_trains_nothing_where_trl_calls_it(tmp_path: Path, split: str) -> None:
    """TRL calls the function, tells the model what it said, and asks again: the model's turns alone train."""
    script, before = Calling(empty=frozenset()), len(calls)
    built = wrap(tool_trainer(tmp_path, script, max_steps=3, **SPLITS[split]))
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    assert len(calls) > before, "the function was called"
    plan = built.batchbridge.plan
    known = {"plan": plan, "tokenize": tokenize}
    for each in gradient_errors(captured, plan.spec, script=script, **known):
        assert each.error <= each.bar
    whole = gradient_errors(captured, plan.spec, script=Whole(empty=frozenset()), steps=1, **known)
    assert all(each.error > 10 * each.bar for each in whole), "negative control: what the tool said is trained, too"


class Whole(Calling):
    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        return [1] * len(self.completion(prompt, sample))

"""Unsloth's trainer, wrapped, on a CPU: its own generated code over a plain model of transformers, whose rollouts are
scripted. Its kernels, its own models (`FastLanguageModel`), torch.compile and vLLM need a GPU, and ran in none of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import trl
from peft import LoraConfig, get_peft_model
from unsloth.models.vision import FastBaseModel

from batchbridge import CannotAttach, unwrap, wrap
from batchbridge.kit.fingerprints import digests
from batchbridge.ledger import diff
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.scripts import module_at
from batchbridge_trl import unsloth_code
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, scripted_trainer

tampering = module_at(Path(__file__).parents[2] / "trl" / "native" / "tampering.py", "trl_tampering")

GENERATED: Any = sys.modules[trl.GRPOTrainer.__module__]
"""The module that Unsloth wrote."""
ALLOW = ("unproven_code",)
SPLIT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4}


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds Unsloth's trainer in float32: on a CPU it would train in fp16 otherwise."""
    monkeypatch.setenv("UNSLOTH_FORCE_FLOAT32", "1")
    torch.manual_seed(0)

    def build(folder: str = "out", **arguments: Any) -> Any:
        defaults = {"loss_type": "dapo", "mask_truncated_completions": False, "seed": 42}
        built = scripted_trainer(tmp_path / folder, **defaults | arguments)
        for name in ("for_training", "for_inference"):  # what Unsloth's own loader gives its models
            setattr(built.model, name, functools.partial(getattr(FastBaseModel, name), built.model))
        return built

    return build


def errors_of(built: Any, **options: Any) -> list[float]:
    """Gradient errors of a wrapped run over their bar."""
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    assert built.state.global_step == plan.total_optimizer_steps == len(captured.gradients)
    return [one.error / one.bar for one in gradient_errors(captured, plan.spec, plan=plan, **options)]


ON_POLICY = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "prompts": 4}
TWO_PASSES = {**SPLIT, "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3, "prompts": 4}


@pytest.mark.parametrize(
    ("loss_type", "run"),
    [
        *(
            (loss_type, {**SPLIT, "num_train_epochs": 2, "prompts": 5})
            for loss_type in ("dapo", "bnpo", "grpo", "dr_grpo")
        ),
        *((loss_type, run) for loss_type in ("dapo", "grpo") for run in (ON_POLICY, TWO_PASSES)),
    ],
)
def test_every_step_has_the_oracles_gradient(trainer: Callable[..., Any], loss_type: str, run: dict[str, Any]) -> None:
    found = errors_of(wrap(trainer(loss_type=loss_type, learning_rate=0.05, **run), allow=ALLOW))
    assert max(found) <= 1, found


def test_so_it_has_without_its_packed_forward_pass(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSLOTH_GRPO_SEQ_PACKING", "0")
    found = errors_of(wrap(trainer(**SPLIT), allow=ALLOW))
    assert max(found) <= 1, found


def test_so_it_has_of_adapters_alone(trainer: Callable[..., Any]) -> None:
    def policy() -> Any:
        torch.manual_seed(1)
        targets = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        return get_peft_model(tiny_policy(), targets)

    built = wrap(trainer(policy=policy(), **SPLIT), allow=ALLOW)
    assert any(not parameter.requires_grad for parameter in built.model.parameters())
    found = errors_of(built, policy=policy)
    assert max(found) <= 1, found


def test_so_it_has_in_bf16(trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSLOTH_FORCE_FLOAT32")
    built = wrap(trainer(bf16=True, **SPLIT), allow=ALLOW)
    found = errors_of(built, precision=torch.bfloat16)
    assert max(found) <= 1, found


def test_negative_control_as_unsloth_starts_it_the_gradients_are_others(trainer: Callable[..., Any]) -> None:
    plan = wrap(trainer("wrapped", loss_type="bnpo", **SPLIT), allow=ALLOW).batchbridge.plan
    built = trainer(loss_type="bnpo", **SPLIT)
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    found = gradient_errors(captured, plan.spec, plan=plan)
    assert max(each.error for each in found) > 0.1, found


Options = dict[str, Any]
LOSSES: Mapping[str, tuple[Callable[[Options], None], Callable[[Any], Any], str]] = {
    # name: (what is done to what its loss is given, to the loss that it gives, the aspect of the drift). A factor is
    # told by the weights: it reaches the gradient, as it does not natively (test_loss.py).
    "loss": (lambda given: None, lambda loss: loss * 7, "weights"),
    "value of the loss": (lambda given: None, lambda loss: loss + 0.001 * loss.detach(), "loss"),
    "constant in the loss": (lambda given: None, lambda loss: loss + 0.1, "loss"),
    "mask": (lambda given: given["tool_mask"][:, 0].zero_(), lambda loss: loss, "weights"),
    "advantages": (lambda given: given["advantages"].mul_(1.01), lambda loss: loss, "weights"),
    "its denominator": (lambda given: given["num_items_in_batch"].mul_(2), lambda loss: loss, "weights"),
    "its loss type": (lambda given: given.update(loss_type="grpo"), lambda loss: loss, "weights"),
    "its clipping": (lambda given: given.update(epsilon_high=-0.1), lambda loss: loss, "weights"),
}
ELSEWHERE = ("backward", "backward of a micro-batch", "gradient of a micro-batch", "gradient after backward")


@pytest.mark.parametrize("way", LOSSES)
def test_a_step_whose_loss_is_tampered_with_is_not_applied(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    before, after, aspect = LOSSES[way]
    native = GENERATED.grpo_accumulated_loss
    built = wrap(trainer(**tampering.RUN), allow=ALLOW)

    def tampered(**given: Any) -> tuple[Any, ...]:
        if given["trainer"].state.global_step < tampering.STEP:
            result: tuple[Any, ...] = native(**given)
            return result
        before(given)
        loss, *others = native(**given)
        return (after(loss), *others)

    monkeypatch.setattr(GENERATED, "grpo_accumulated_loss", tampered)
    found = tampering.stopped(built)
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, aspect, False), found


@pytest.mark.parametrize("way", ELSEWHERE)
def test_a_step_that_is_tampered_with_elsewhere_is_not_applied(trainer: Callable[..., Any], way: str) -> None:
    tamper, aspect = tampering.WAYS[way]
    found = tampering.stopped(tamper(wrap(trainer(**tampering.RUN), allow=ALLOW)))
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, aspect, False), found


@pytest.mark.parametrize("mode", ["verify", "observe"])
def test_a_run_that_is_verified_or_observed_is_bit_equal_to_the_native_one(
    trainer: Callable[..., Any], tmp_path: Path, mode: Literal["verify", "observe"]
) -> None:
    run = {**ON_POLICY, "num_train_epochs": 2}
    native = trainer("native", **run)
    native.train()
    built = wrap(trainer("wrapped", **run), mode=mode, allow=ALLOW, ledger=tmp_path / "ledger")
    built.train()
    assert torch.equal(flat_parameters(native.model), flat_parameters(built.model))


def test_verify_stops_a_native_run_whose_weights_are_others_than_the_plans(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(loss_type="bnpo", **SPLIT), mode="verify", allow=ALLOW)
    found = tampering.stopped(built)
    assert (found["step"], found["aspect"], found["changed"]) == (0, "weights", False), found


def test_a_run_goes_on_from_a_checkpoint_inside_a_rollout_as_if_nothing_had_happened(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    run = {**SPLIT, "num_iterations": 2, "optim": "adamw_torch", "learning_rate": 3e-3, "prompts": 4}
    run |= {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 1}
    whole = wrap(trainer("whole", **run), allow=ALLOW, ledger=tmp_path / "whole_ledger")
    whole.train()
    resumed = wrap(trainer("resumed", **run), allow=ALLOW, ledger=tmp_path / "resumed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    compared = diff(tmp_path / "whole_ledger", tmp_path / "resumed_ledger", exact=True)
    assert compared.equal, compared.text()


def test_it_needs_allow(trainer: Callable[..., Any]) -> None:
    with pytest.raises(CannotAttach) as refused:
        wrap(trainer())
    assert list(refused.value.reasons) == ["unproven_code"]


def set_to(owner: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda built: setattr(functools.reduce(getattr, owner.split(), built), name, value)


SETTINGS: Mapping[str, Callable[[Any], None]] = {
    "use_vllm": set_to("", "use_vllm", True),
    "reads images": set_to("", "_is_vlm", True),
    "calls tools": set_to("", "tools", [len]),
    "KL term": set_to("", "beta", 0.04),
    "loss_type=sapo": set_to("args", "loss_type", "sapo"),
    "entropy_coef=0.1": set_to("args", "entropy_coef", 0.1),
    "off_policy_mask_threshold=0.5": set_to("args", "off_policy_mask_threshold", 0.5),
    "one token": lambda built: setattr(built.processing_class, "pad_token", built.processing_class.eos_token),
    "DeepSpeed or FSDP": set_to("", "is_fsdp_enabled", True),
}


@pytest.mark.parametrize("said", SETTINGS)
def test_a_setting_that_is_not_proven_is_refused_by_name(trainer: Callable[..., Any], said: str) -> None:
    built = trainer()
    SETTINGS[said](built)
    with pytest.raises(CannotAttach) as refused:
        wrap(built, allow=ALLOW, mode="verify")
    assert said in refused.value.reasons["unsloth_settings"]


def test_a_variable_that_changes_its_loss_is_refused(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSLOTH_GRPO_ROLLOUT_RS", "token_k3")
    with pytest.raises(CannotAttach, match="UNSLOTH_GRPO_ROLLOUT_RS=token_k3 is set: unset it") as refused:
        wrap(trainer(), allow=ALLOW)
    assert list(refused.value.reasons) == ["unsloth_settings"]


def test_the_code_of_these_releases_is_the_one_that_is_known(trainer: Callable[..., Any]) -> None:
    file = Path(GENERATED.__file__)
    found = digests(file.parent, {file.name: tuple(unsloth_code.KNOWN)})
    assert {name.partition(": ")[2]: digest for name, digest in found.items()} == unsloth_code.KNOWN
    assert list(unsloth_code.unknown(trainer())) == []


@pytest.mark.parametrize(
    ("what", "mode"),
    [("another text", "observe"), ("a function replaced", "verify"), ("a method replaced", "enforce")],
)
def test_code_that_is_not_known_is_refused_in_every_mode(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, what: str, mode: Literal["enforce", "verify"]
) -> None:
    built = trainer()
    if what == "another text":
        monkeypatch.setattr(unsloth_code, "KNOWN", {**unsloth_code.KNOWN, "grpo_compute_loss": "0" * 16})
    elif what == "a function replaced":
        native = GENERATED.left_pack_padding
        monkeypatch.setattr(GENERATED, "left_pack_padding", lambda *words: native(*words))
    else:
        monkeypatch.setattr(type(built), "compute_loss", lambda *words, **options: None)
    with pytest.raises(CannotAttach, match="that is known") as refused:
        wrap(built, allow=ALLOW, mode=mode)
    assert list(refused.value.reasons) == ["unsloth"]


def test_what_is_wrapped_is_as_it_was_afterwards(trainer: Callable[..., Any]) -> None:
    loss, built = GENERATED.UnslothEfficientGRPO, trainer(max_steps=1, **SPLIT)
    wrap(built, allow=ALLOW)
    built.train()
    assert GENERATED.UnslothEfficientGRPO is loss
    assert unwrap(built) is built
    assert "compute_loss" not in vars(built)

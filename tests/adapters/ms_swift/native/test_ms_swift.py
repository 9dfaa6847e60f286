"""ms-swift's `GRPOTrainer`, with its template and its engine's answers: wrapped and enforced without a word of `allow`.
By name: `nox -s ms_swift`; how it is known without ms-swift is in TRL's own tests (test_forks_trl.py)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from swift.arguments.rlhf_args import RLHFArguments
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, unwrap, wrap
from batchbridge.kit.proven import evidence_here, folder_of
from batchbridge.ledger import diff
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.scripts import module_at
from batchbridge_trl import ms_swift, swift_commands
from batchbridge_trl.in_place import ReleaseInPlace
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors

tampering = module_at(Path(__file__).parents[2] / "trl" / "native" / "tampering.py", "trl_tampering")
scripted = module_at(Path(__file__).with_name("scripted.py"), "ms_swift_scripted")

RELEASE = ReleaseInPlace("ms-swift", swift_commands.NEWEST, named=True)
SPLIT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
Build = Callable[..., Any]


@pytest.fixture
def trainer(tmp_path: Path) -> Build:
    """Builds ms-swift's trainer."""
    return lambda folder="out", **arguments: scripted.swift_trainer(tmp_path / folder, **arguments)


def errors(captured: Captured, plan: Any, **options: Any) -> list[Any]:
    return gradient_errors(captured, plan.spec, plan=plan, script=scripted.SCRIPT, steps=4, **options)


def trained(built: Any) -> Captured:
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    return captured


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo", "cispo"])
def test_every_step_has_the_oracles_gradient(trainer: Build, loss_type: str, beta: float) -> None:
    reference = scripted.near_policy()  # so near that no KL estimate is cut, of which the oracle knows nothing
    arguments = {"loss_type": loss_type, "beta": beta, "reference": reference, "num_train_epochs": 2, **SPLIT}
    if loss_type == "cispo":
        arguments["epsilon_high"] = 2.0
    built = wrap(trainer(**arguments))
    assert built.batchbridge.evidence.control == built.batchbridge.evidence.loss == ()
    captured, plan = trained(built), built.batchbridge.plan
    assert built.state.global_step == plan.total_optimizer_steps == len(captured.gradients)
    assert plan.spec.objective.kl_clamp == (10.0 if beta else None)
    for found in errors(captured, plan, reference=reference if beta else None):
        assert found.error <= found.bar, found


def test_steps_that_use_a_rollout_twice_have_the_oracles_gradient(trainer: Build) -> None:
    built = wrap(trainer(loss_type="dapo", num_iterations=2, num_train_epochs=1, learning_rate=0.05, **SPLIT))
    captured, plan = trained(built), built.batchbridge.plan
    found = errors(captured, plan)
    assert all(each.error <= each.bar for each in found), found
    assert any(each.clipped for each in found)  # the old log-probabilities are those of the rollout


def test_negative_control_as_ms_swift_starts_it_the_gradients_are_others(trainer: Build) -> None:
    plan = wrap(trainer("wrapped", loss_type="bnpo", num_train_epochs=2, **SPLIT)).batchbridge.plan
    captured = trained(trainer(loss_type="bnpo", num_train_epochs=2, **SPLIT))
    found = errors(captured, plan)
    assert max(each.error for each in found) > 0.1, found


def test_lora_is_trained_as_planned(trainer: Build) -> None:
    """The adapter alone, the reference is the policy without it; each step was held against the plan."""
    built = wrap(trainer(lora=True, beta=0.1, num_train_epochs=1, **SPLIT))
    before = flat_parameters(built.model)
    built.train()
    assert built.state.global_step == built.batchbridge.plan.total_optimizer_steps
    assert len(before) < 0.5 * sum(each.numel() for each in built.model.parameters())
    assert not torch.equal(before, flat_parameters(built.model))


# ---- tampering


def _in_the_loss(change: Callable[[Any], Any] = lambda batch: None, after: Any = lambda loss: loss) -> Any:
    def tamper(built: Any) -> Any:
        native = built._compute_loss_and_metrics

        def other(model: Any, inputs: Any, batch: Any) -> Any:
            acts = built.model.training and built.state.global_step >= tampering.STEP
            if acts:
                change(batch)
            loss, metrics = native(model, inputs, batch)
            return (after(loss) if acts else loss), metrics

        built._compute_loss_and_metrics = other
        return built

    return tamper


def _shorten(batch: Any) -> None:
    batch.completion_mask = batch.completion_mask.clone()
    batch.completion_mask[:, -1] = False


def _scale(batch: Any) -> None:
    batch.advantages = batch.advantages * 1.01


def _exchange(batch: Any) -> None:
    batch.advantages = batch.advantages.flip(0)


def _other_advantages(built: Any) -> Any:
    native = built._compute_advantages

    def doubled(*words: Any) -> Any:
        return native(*words) * (2 if built.state.global_step >= tampering.STEP else 1)

    built._compute_advantages = doubled
    return built


def _colder(built: Any) -> Any:
    class Colder(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == tampering.STEP:
                built.request_config.temperature = 0.5

    built.add_callback(Colder())
    return built


OF_TRL = {name: way for name, way in tampering.WAYS.items() if "backward" in name or "gradient" in name}
WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **OF_TRL,
    "loss": (_in_the_loss(after=lambda loss: 7 * loss), "weights"),
    "value of the loss": (_in_the_loss(after=lambda loss: loss + 0.001 * loss.detach()), "loss"),
    "constant in the loss": (_in_the_loss(after=lambda loss: loss + 0.1), "loss"),
    "mask": (_in_the_loss(_shorten), "weights"),
    "advantages": (_in_the_loss(_scale), "weights"),
    "exchanged advantages": (_in_the_loss(_exchange), "weights"),
    "advantages of a rollout": (_other_advantages, "advantages"),
    "temperature": (_colder, "settings"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_is_tampered_with_is_not_applied(trainer: Build, way: str) -> None:
    tamper, aspect = WAYS[way]
    found = tampering.stopped(tamper(wrap(trainer(**tampering.RUN))))
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, aspect, False), found


@pytest.mark.parametrize("clamp", [10.0, None])
def test_its_kl_estimate_is_cut_and_a_plan_without_that_ends_the_run(
    trainer: Build, monkeypatch: pytest.MonkeyPatch, clamp: float | None
) -> None:
    """The reference is far away: many tokens' estimates are above the bound."""
    monkeypatch.setattr(ms_swift, "_KL_CLAMP", clamp)
    built = wrap(trainer(beta=0.1, reference=tiny_policy(seed=1), max_steps=2, **SPLIT))
    if clamp is not None:
        built.train()
        assert built.state.global_step == 2
        return
    with pytest.raises(BatchDrift) as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (0, "weights")


# ---- resume, ranks


def test_a_run_goes_on_from_a_checkpoint_inside_a_rollout_as_if_nothing_had_happened(
    trainer: Build, tmp_path: Path
) -> None:
    run = {**SPLIT, "num_iterations": 2, "num_train_epochs": 1, "optim": "adamw_torch", "learning_rate": 3e-3}
    run |= {"save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "cosine"}
    whole = wrap(trainer("whole", **run), ledger=tmp_path / "whole_ledger")
    whole.train()
    resumed = wrap(trainer("resumed", **run), ledger=tmp_path / "resumed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    compared = diff(tmp_path / "whole_ledger", tmp_path / "resumed_ledger", exact=True)
    assert compared.equal, compared.text()


def test_two_ranks_under_ddp_have_the_oracles_gradient(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone")
    script = str(Path(__file__).with_name("two_ranks_run.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    ran = subprocess.run([*words, script, str(tmp_path)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["class"] == ["GRPOTrainer", "DistributedDataParallel"]
    assert found["steps"] == [6, 6, 6]  # of 48 completions, 8 in each
    assert max(found["errors"]) <= 1, found


# ---- what is refused


LOGGED = ("log_entropy",)
OTHERWISE: dict[str, Any] = {
    **dict.fromkeys(("use_vllm", "async_generate", "dynamic_sample", "overlong_filter", "kl_in_reward"), True),
    **dict.fromkeys(("log_entropy", "log_rollout_offpolicy_metrics", "use_liger_kernel", "use_gym_env"), True),
    **dict.fromkeys(("sync_ref_model", "use_flash_ckpt", "resume_only_model", "group_by_length"), True),
    **dict.fromkeys(("mask_truncated_completions", "use_bias_correction_kl", "cast_lm_head_to_fp32"), True),
    **dict.fromkeys(("sdar_loss_coef", "off_policy_sequence_mask_delta", "router_aux_loss_coef"), 0.1),
    **dict.fromkeys(("multi_turn_scheduler", "gym_env", "optimizer"), "other"),
    "deepspeed": {},
    "off_policy_mask_threshold": 0.5,
    "advantage_estimator": "rloo",
    "scale_rewards": "gdpo",
    "loss_type": "sapo",
    "importance_sampling_level": "sequence_token",
    "rollout_importance_sampling_mode": "token_truncate",
    "advantage_reweight": "rlsd",
    "multi_objective_aggregation": "normalize_then_sum",
}


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer that no test wraps."""
    return scripted.swift_trainer(tmp_path_factory.mktemp("out"), **SPLIT)


def said_of(built: Any, **asked: Any) -> str | None:
    """What the row `ms_swift` says of a trainer, whatever others say."""
    with pytest.raises(CannotAttach) as refused:
        wrap(built, **asked)
    return refused.value.reasons.get("ms_swift")


def test_every_setting_of_the_table_has_a_case_here() -> None:
    assert OTHERWISE.keys() == ms_swift.AS_TRL.keys()


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_setting_that_is_not_followed_is_refused_by_its_name(
    built_once: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert ms_swift.of_settings(built_once.args) is None
    monkeypatch.setattr(built_once.args, name, OTHERWISE[name], raising=False)
    assert name in str(ms_swift.of_settings(built_once.args))
    for mode in ("enforce", "verify", "observe"):
        if mode == "enforce" or name not in LOGGED:
            said = said_of(built_once, mode=mode)
            assert said is None or name in said  # the reading may have refused it before


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_a_setting_that_only_logs_is_refused_where_the_run_is_enforced_alone(
    built_once: Any, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr(built_once.args, "log_entropy", True)
    assert "log_entropy" in str(said_of(built_once))
    unwrap(wrap(built_once, mode=mode))
    monkeypatch.setattr(built_once.args, "dynamic_sample", True)
    assert "dynamic_sample" in str(said_of(built_once, mode=mode))


def test_a_column_for_a_teacher_is_refused(built_once: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_teacher = built_once.train_dataset.add_column("teacher_prompt", ["w1"] * len(built_once.train_dataset))
    monkeypatch.setattr(built_once, "train_dataset", with_teacher)
    assert "a teacher" in str(said_of(built_once))


def test_a_template_that_lays_rows_otherwise_is_refused(built_once: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, said in (("padding_free", True, "padding_free"), ("truncation_strategy", "raise", "too long")):
        with monkeypatch.context() as patch:
            patch.setattr(built_once.template, name, value)
            assert said in str(said_of(built_once))


@pytest.mark.parametrize("function", ["def _prepare_batch_inputs", "def _compute_loss_and_metrics"])
def test_another_release_is_refused_by_its_functions(
    built_once: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: str
) -> None:
    here = folder_of("swift")
    assert here is not None
    for file in ms_swift.MS_SWIFT.functions:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / file, tmp_path / file)
    monkeypatch.setattr(ms_swift, "evidence_here", lambda code: evidence_here(code, folders={"swift": tmp_path}))
    assert ms_swift.unknown(built_once) is None
    changed = tmp_path / "rlhf_trainers/grpo_trainer.py"
    text = changed.read_text(encoding="utf-8")
    head, tail = text.split(function, 1)
    place = tail.index("mode = ")
    changed.write_text(head + function + tail[:place] + "other = 1\n        " + tail[place:], encoding="utf-8")
    with pytest.raises(CannotAttach) as refused:
        wrap(built_once, allow=["unproven_code"])
    assert [*refused.value.reasons] == ["ms_swift"]


def test_the_defaults_that_commands_are_read_with_are_those_of_its_own_class() -> None:
    declared = {field.name: field.default for field in dataclasses.fields(RLHFArguments)}
    set_later = {"gradient_accumulation_steps", "beta", "loss_type"}  # by _set_default and _init_grpo, where None
    for key, value in swift_commands.defaults_of(RELEASE).items():
        assert declared[key] == (None if key in set_later else value), key
    assert dict.fromkeys(set_later) == {key: declared[key] for key in set_later}


def test_a_default_that_it_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift_commands, "_DEFAULTS", (("", "adam_beta2", 0.999),))
    with pytest.raises(AssertionError, match="adam_beta2"):
        test_the_defaults_that_commands_are_read_with_are_those_of_its_own_class()

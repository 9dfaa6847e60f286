"""Copies and forks of `GRPOTrainer` are recognised by name. The classes here are stand-ins that have nothing but the
names of the real ones: what is tested is the recogniser, not those projects' code."""

from __future__ import annotations

from typing import Any

import pytest

from batchbridge import CannotAttach, wrap
from batchbridge.contract import plugins
from batchbridge_trl.forks import COPY, FORKS, fork_of


def made(name: str, module: str, *bases: type) -> type:
    return type(name, bases, {"__module__": module})


TRANSFORMERS = made("Trainer", "transformers.trainer")
BASE = made("_BaseTrainer", "trl.trainer.base_trainer", TRANSFORMERS)
TRL = made("GRPOTrainer", "trl.trainer.grpo_trainer", BASE)
R1_V = made("Qwen2VLGRPOTrainer", "open_r1.trainer.grpo_trainer", TRANSFORMERS)
COPIED_BY_UNSLOTH = made("_UnslothGRPOTrainer", "UnslothGRPOTrainer", BASE)
STANDS_FOR: dict[str, tuple[type, str]] = {
    "R1-V and Video-R1": (R1_V, "trainer_copy"),
    "a class derived from R1-V's": (made("Qwen2VLGRPOTrainerV4", "mine", R1_V), "trainer_copy"),
    "R1-V with vLLM": (
        made("Qwen2VLGRPOVLLMTrainer", "open_r1.trainer.vllm_grpo_trainer", TRANSFORMERS),
        "trainer_copy",
    ),
    "VLM-R1": (made("VLMGRPOTrainer", "open_r1.trainer.grpo_trainer", TRANSFORMERS), "trainer_copy"),
    "TRL's asynchronous one": (made("AsyncGRPOTrainer", "trl.experimental.async_grpo", BASE), "trainer_copy"),
    "TRL's RLOO": (made("RLOOTrainer", "trl.trainer.rloo_trainer", BASE), "trainer_copy"),
    "Unsloth": (made("UnslothGRPOTrainer", "UnslothGRPOTrainer", COPIED_BY_UNSLOTH), "unsloth"),
    "Unsloth's fallback": (made("UnslothGRPOTrainer", "unsloth_compiled_cache.UnslothGRPOTrainer", TRL), "unsloth"),
    "ms-swift 4": (made("GRPOTrainer", "swift.rlhf_trainers.grpo_trainer", TRL), "ms_swift"),
    "ms-swift 3": (made("GRPOTrainer", "swift.trainers.rlhf_trainer.grpo_trainer", TRL), "ms_swift"),
}


@pytest.mark.parametrize("whose", STANDS_FOR)
def test_a_fork_is_known_by_its_name(whose: str) -> None:
    cls, name = STANDS_FOR[whose]
    fork = fork_of(cls())
    assert fork is not None
    assert fork.name == name


@pytest.mark.parametrize(
    "cls",
    [
        TRL,
        made("GRPOEnvTrainer", "verifiers.trainers", TRL),  # derived: the weight probe decides
        made("GMPOTrainer", "trl.experimental.gmpo.gmpo_trainer", TRL),
        made("SFTTrainer", "trl.trainer.sft_trainer", BASE),
        made("DPOTrainer", "swift.rlhf_trainers.dpo_trainer", TRANSFORMERS),
        made("GRPOTrainer", "mlx_rl.trainer"),  # no transformers in it
    ],
)
def test_what_is_trls_or_derived_from_it_or_something_else_is_none(cls: type) -> None:
    assert fork_of(cls()) is None


@pytest.mark.parametrize("name", ["GUIGRPOTrainer", "Grpo", "Qwen2VLGRPOTrainer"])
def test_a_copy_is_taken_under_whatever_name(name: str) -> None:
    """A mock of its form: which steps one trains is measured in native/test_copies.py."""
    has: dict[str, Any] = dict.fromkeys(
        ("reward_funcs", "num_generations", "generation_config", "args", "accelerator", "train_dataset", "model")
    )
    copy = type(name, (TRANSFORMERS,), {"__module__": "mine", "compute_loss": None, "_get_per_token_logps": None} | has)
    assert [one.framework for one in plugins.owners(copy())] == ["trl"]
    lacking = type(name, (TRANSFORMERS,), {"__module__": "mine", "compute_loss": None} | has)
    assert plugins.owners(lacking()) == []
    with pytest.raises(CannotAttach, match=r"trainer_copy: .*no method _get_per_token_logps of its own"):
        wrap(lacking())


def test_wrap_names_the_copy_the_reason_and_the_way_out() -> None:
    with pytest.raises(CannotAttach) as refused:
        wrap(R1_V())
    (name, reason) = next(iter(refused.value.reasons.items()))
    assert list(refused.value.reasons) == ["trainer_copy"] == [name]
    assert reason.startswith("Qwen2VLGRPOTrainer: ")
    assert "train with TRL's own GRPOTrainer" in reason


def test_unsloths_reason_is_the_gradient_that_its_loss_ignores() -> None:
    unsloth: Any = STANDS_FOR["Unsloth"][0]
    with pytest.raises(CannotAttach) as refused:
        wrap(unsloth())
    assert "ignores what is handed back to it (grad_output)" in refused.value.reasons["unsloth"]


def test_every_fork_says_what_to_do_instead() -> None:
    assert all("train with TRL's own GRPOTrainer" in fork.reason for fork in (*FORKS, COPY))


@pytest.mark.parametrize("whose", STANDS_FOR)
@pytest.mark.parametrize("mode", ["enforce", "verify", "observe"])
def test_a_fork_is_refused_by_its_name_before_anything_of_it_is_read(whose: str, mode: Any) -> None:
    cls, name = STANDS_FOR[whose]
    with pytest.raises(CannotAttach) as error:
        wrap(cls(), mode=mode)  # it has no args, no model, nothing that could be read
    assert [*error.value.reasons] == [name]

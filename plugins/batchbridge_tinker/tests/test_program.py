"""The written program: it is read as what it was written for, and what no loop can do is refused by name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from batchbridge import CannotWrite, Spec, convert, read
from batchbridge_tinker.config import NONE_OF_IT, TinkerAdapter
from batchbridge_tinker.run import TinkerRun

TRL: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_generations": 4,
    "steps_per_generation": 8,
    "num_train_epochs": 2,
    "learning_rate": 2e-5,
    "loss_type": "dapo",
    "max_completion_length": 64,
    "seed": 7,
    "output_dir": "out",
}
SIZES: dict[str, Any] = {"world_size": 2, "dataset_size": 64}
UNSAID = {"carried.dropout", "carried.precision", "objective.nonfinite_step"}
"""Fields that the service decides, and does not say."""


def converted(**settings: Any) -> Any:
    return convert({**TRL, **settings}, "tinker", framework="trl", version="1.16.0", **SIZES)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_a_run_of_trl_loses_what_the_service_does_not_say_and_nothing_else(loss_type: str) -> None:
    found = converted(loss_type=loss_type)
    assert {one.field for one in found.fields if one.status in ("approximate", "inexpressible")} == UNSAID
    assert {path for one in found.refused for path in one.fields} <= {*UNSAID, "carried.weight_decay_excludes"}
    assert {one.variable for one in found.variables} == {"MODEL"}


def test_the_file_is_read_as_what_it_was_written_for(tmp_path: Path) -> None:
    found = converted(model_name_or_path="Qwen/Qwen3-8B")
    text = found.written.text["python"]
    assert max(map(len, text.splitlines())) <= 120
    ast.parse(text)
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    again = read(file, version="0.38.0", **SIZES)
    assert (again.framework, again.verdict) == ("tinker", "valid")
    assert again.spec == found.back.spec
    alone = read(file, version="0.38.0")  # a loop has one device
    assert (alone.verdict, alone.spec.topology.world_size) == ("valid", 1)
    other = tmp_path / "other.py"
    other.write_text(text.replace('"completions_per_step": 16', '"completions_per_step": 8'), encoding="utf-8")
    assert read(other, version="0.38.0", **SIZES).spec.optimizer_step.completions_per_step == 8


def test_negative_control_another_loss_type_is_read_as_another_aggregation() -> None:
    kinds = ("dapo", "grpo", "dr_grpo")
    found = [converted(loss_type=kind).back.spec.loss.policy.aggregation for kind in kinds]
    assert found == ["token_mean", "sequence_mean", "sequence_sum_over_constant"]


OTHERWISE: dict[str, Any] = {
    "objective.kl_placement": "loss",
    "objective.entropy_coefficient": 0.01,
    "objective.dual_clip": 3.0,
    "objective.ratio_level": "sequence",
    "objective.sampler_correction": "token_truncate [-, 2.0]",
    "objective.reward_clip": 5.0,
    "carried.temperature": 0.7,
    "carried.optimizer": "sgd",
    "carried.precision": "bf16",
    "carried.dropout": "on",
    "objective.nonfinite_step": "skip",
}


def test_every_refusal_has_a_case_here() -> None:
    assert OTHERWISE.keys() == NONE_OF_IT.keys()


@pytest.mark.parametrize("path", OTHERWISE)
def test_what_no_loop_can_do_is_refused_by_name_with_what_it_can(path: str) -> None:
    spec = converted().back.spec
    adapter = TinkerAdapter()
    assert adapter.write(spec, "0.38.0").values
    with pytest.raises(CannotWrite) as refused:
        adapter.write(spec.replace(**{path: OTHERWISE[path]}), "0.38.0")
    (problem,) = (one for one in refused.value.problems if path in one.fields and NONE_OF_IT[path][1] in one.reason)
    assert problem.nearest == ({path: NONE_OF_IT[path][0]},)


def test_a_kl_penalty_is_lost_by_name_and_not_silently() -> None:
    found = converted(beta=0.04)
    assert found.verdict == "lossy"
    assert "objective.kl_placement" in {one.field for one in found.lost}
    assert any("forward_backward_custom" in one.reason for one in found.refused)


def test_a_run_is_refused_where_it_is_built() -> None:
    run = TinkerRun(base_model="m", lora_rank=4, horizon={"rollouts": 1})
    assert isinstance(run.spec, Spec)
    with pytest.raises(ValueError, match="clip_high"):
        TinkerRun(base_model="m", lora_rank=4, horizon={"rollouts": 1}, objective={"clip_low": 0.2})
    with pytest.raises(ValueError, match="rank"):
        TinkerRun(base_model="m", lora_rank=4, horizon={"rollouts": 1}, rank=4)

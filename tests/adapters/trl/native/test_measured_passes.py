"""`batchbridge run --dry --memory` on TRL's own trainer, with a memory that counts every storage on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchbridge import CannotAttach, wrap
from batchbridge.kit import device_memory
from batchbridge.kit.measured_passes import CHECKED, MeasuredPasses
from batchbridge.kit.patches import temporarily
from batchbridge_on_cpu.limited_memory import LimitedMemory
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.measured_passes import measure
from batchbridge_trl.testing import scripted_trainer

ENOUGH = 1 << 30


def built(folder: Path, **more: Any) -> Any:
    return scripted_trainer(folder / "out", **{"max_steps": 3, "max_completion_length": 96, **more})


def measured(trainer: Any, limit: int = ENOUGH) -> MeasuredPasses:
    memory = LimitedMemory(limit)
    with temporarily(device_memory, memory_of=lambda device: memory):
        return measure(trainer)


@pytest.mark.parametrize("more", [{}, {"loss_type": "grpo", "beta": 0.1}, {"gradient_checkpointing": True}])
def test_a_third_size_is_as_the_line_of_two_foretells(tmp_path: Path, more: dict[str, Any]) -> None:
    found = measured(built(tmp_path, **more))
    assert [one.tokens for one in found.passes] == [found.longest, 2 * found.longest, CHECKED * found.longest]
    assert found.passes[0].taken < found.passes[1].taken < found.passes[2].taken
    assert found.error is not None
    assert abs(found.error) < 0.05, found
    assert "held against a pass over" in found.text()


def test_at_rest_are_gradients_and_the_optimizers_state(tmp_path: Path) -> None:
    """The stand-in counts what is made in passes and in the optimizer's step, and not the weights: a gradient and two
    moments of AdamW's for each parameter. Between updates, where TRL's first step is, accelerate would make none."""
    trainer = built(tmp_path, optim="adamw_torch", gradient_accumulation_steps=2, per_device_train_batch_size=4)
    trained = sum(one.nbytes for one in trainer.model.parameters() if one.requires_grad)
    found = measured(trainer)
    assert 3 * trained <= found.resting < 3.1 * trained


def test_the_line_holds_far_from_where_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchbridge.kit.measured_passes.CHECKED", 24)
    found = measured(built(tmp_path))
    assert found.passes[-1].tokens == 24 * found.longest
    assert found.error is not None
    assert abs(found.error) < 0.05, found


def test_one_row_that_does_not_fit_is_said(tmp_path: Path) -> None:
    found = measured(built(tmp_path), 1_000_000)
    assert (found.passes, found.failed) == ((), found.longest)
    assert f"a pass over {found.longest:,} tokens did not fit" in found.text()


def test_a_third_pass_that_would_not_fit_is_not_run(tmp_path: Path) -> None:
    known = measured(built(tmp_path / "known"))
    limit = known.resting + 3 * known.passes[0].taken
    found = measured(built(tmp_path / "small"), limit)
    assert (len(found.passes), found.failed, found.error) == (2, None, None)
    assert "not held against a larger pass" in found.text()


def test_a_wrapped_trainer_is_measured_as_it_is_natively(tmp_path: Path) -> None:
    native, wrapped = built(tmp_path / "native"), wrap(built(tmp_path / "wrapped"), tokens_per_device=200)
    assert measured(wrapped).passes == measured(native).passes
    assert "batchbridge" not in vars(wrapped)


def test_prompts_are_as_long_as_the_longest_that_the_dataset_begins_with(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    longest = max(len(trainer.processing_class(row["prompt"])["input_ids"]) for row in trainer.train_dataset)
    found = measured(trainer)
    assert found.longest == longest + 96
    assert f"a row is {longest} tokens of prompt" in found.text()


def test_a_cpus_memory_has_no_limit_and_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(CannotAttach, match="measured_passes: a CPU's memory is everybody's"):
        TrlAdapter().measure_passes(built(tmp_path))


@pytest.mark.parametrize("where", ["unsloth_compiled_cache.UnslothGRPOTrainer", "swift.rlhf_trainers.grpo_trainer"])
def test_a_fork_is_not_measured(tmp_path: Path, where: str) -> None:
    """A mock of its name: the class of TRL's trainer is another one's."""
    trainer = built(tmp_path)
    name = where.rpartition(".")[2] if where.startswith("unsloth") else "GRPOTrainer"
    trainer.__class__ = type(name, (type(trainer),), {"__module__": where})
    with pytest.raises(CannotAttach, match="measured_passes: it is proven with TRL's own trainer alone"):
        measured(trainer)

"""Resume: a checkpoint inside a rollout of the second epoch, SIGKILL some steps later, and the run goes on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, Spec, wrap
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has
from batchbridge_trl.testing import flat_parameters, scripted_trainer
from batchbridge_trl.testing import sampling as sampled

RUN: dict[str, Any] = {
    # 3 rollouts of 2 prompts an epoch, 2 passes of 2 optimizer steps over each: 12 steps an epoch
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 2,
    "beta": 0.1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 17,  # the second step of the fifth rollout, in the second epoch
}
KILLED_AT = 20

CRASHING = """
import os, signal, sys
import torch
torch.set_num_threads(1)  # as in the comparing process: threads change the order of float sums
from batchbridge import wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.testing import scripted_trainer
from transformers import TrainerCallback
class Crash(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == {killed_at}:
            os.kill(os.getpid(), signal.SIGKILL)
built = wrap(scripted_trainer({folder!r}, reference=tiny_policy(seed=1), **{run!r}), ledger={ledger!r})
built.add_callback(Crash())
built.train()
"""


def build(folder: Path, **changes: Any) -> Any:
    return scripted_trainer(folder, reference=tiny_policy(seed=1), **RUN | changes)


@pytest.mark.smoke
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = wrap(build(tmp_path / "whole"), ledger=tmp_path / "whole_ledger")
    whole.train()
    code = CRASHING.format(
        killed_at=KILLED_AT, folder=str(tmp_path / "killed"), run=RUN, ledger=str(tmp_path / "killed_ledger")
    )
    crashed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert crashed.returncode == -9, crashed.stderr[-2000:]
    resumed = wrap(build(tmp_path / "killed"), ledger=tmp_path / "killed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "killed" / "checkpoint-17"))

    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    compared = diff(tmp_path / "whole_ledger", tmp_path / "killed_ledger", exact=True)
    assert compared.equal, compared.text()
    starts = [(header["started"], header["at_step"]) for header in read_headers(tmp_path / "killed_ledger")]
    assert starts == [("fresh", 0), ("resumed", 17)]


def test_negative_control_unwrapped_trl_resumes_into_another_run(tmp_path: Path) -> None:
    whole = wrap(build(tmp_path / "whole"), mode="observe", ledger=tmp_path / "whole_ledger")
    whole.train()
    resumed = wrap(build(tmp_path / "whole"), mode="observe", ledger=tmp_path / "resumed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-17"))
    moved = (flat_parameters(resumed.model) - flat_parameters(whole.model)).norm()
    assert moved / flat_parameters(whole.model).norm() > 1e-4
    after = {record["step"]: record for record in read_steps(tmp_path / "resumed_ledger")}
    before = {record["step"]: record for record in read_steps(tmp_path / "whole_ledger")}
    assert any(sorted(after[step]["prompt"]) != sorted(before[step]["prompt"]) for step in after)


def test_sampled_rollouts_resume_exactly_too(tmp_path: Path) -> None:
    def sampling(folder: str) -> Any:
        built = sampled(build(tmp_path / folder, max_completion_length=8))
        built.reward_funcs[0] = lambda completions, **others: [float(len(set(text))) for text in completions]
        return wrap(built, ledger=tmp_path / f"{folder}_ledger")

    whole = sampling("whole")
    whole.train()
    resumed = sampling("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-17"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    compared = diff(tmp_path / "whole_ledger", tmp_path / "resumed_ledger", exact=True)
    assert compared.step in (None, 0), compared.text()  # the resumed ledger starts at step 17


def test_a_checkpoint_of_an_unwrapped_run_is_refused(tmp_path: Path, trainer: Callable[..., Any]) -> None:
    native = build(tmp_path / "native")
    native.train()
    with pytest.raises(CannotAttach, match="written without batchbridge"):
        wrap(build(tmp_path / "native")).train(resume_from_checkpoint=str(tmp_path / "native" / "checkpoint-17"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another seed": ({"seed": 43}, "order.seed: 42 in the checkpoint, 43 now (seed = 43)"),
    "another group size": (
        {"num_generations": 2},
        "rollout.completions_per_prompt: 4 in the checkpoint, 2 now (num_generations = 2)",
    ),
    "another loss": (
        {"loss_type": "grpo"},
        "loss.policy.aggregation: token_mean in the checkpoint, sequence_mean now (loss_type = grpo)",
    ),
    "other prompts": ({"prompts": 8}, "dataset_size: 6 prompts in the checkpoint, 8 now"),
    "other advantages": (
        {"scale_rewards": "none" if has(">=0.22.2") else False},
        "advantage.scale: group in the checkpoint, none now",
    ),
    "another clip": ({"epsilon": 0.3}, "objective.clip_low: 0.2 in the checkpoint, 0.3 now (epsilon = 0.3)"),
    "one pass": ({"num_iterations": 1}, "optimizer_step.passes_per_rollout: 2 in the checkpoint, 1 now"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """An uninterrupted run of 24 steps with a checkpoint at 17: its folder, and its parameters."""
    folder = tmp_path_factory.mktemp("whole")
    built = wrap(build(folder / "run"), ledger=folder / "ledger")
    built.train()
    return folder, flat_parameters(built.model)


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_means_something_else_is_refused_by_name(
    whole: tuple[Path, torch.Tensor], tmp_path: Path, case: str
) -> None:
    changes, reason = REFUSED[case]
    other = wrap(build(tmp_path, **changes))
    before = flat_parameters(other.model)
    with pytest.raises(CannotAttach, match=re.escape(reason)) as caught:
        other.train(resume_from_checkpoint=str(whole[0] / "run" / "checkpoint-17"))
    assert "set these back" in str(caught.value)
    assert torch.equal(flat_parameters(other.model), before)


def test_another_learning_rate_passes_and_the_checkpoints_own_goes_on(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder, parameters = whole
    other = wrap(build(tmp_path / "run", learning_rate=1e-3), ledger=tmp_path / "ledger")
    told = "carried.learning_rate: 0.003 in the checkpoint, 0.001 now (learning_rate = 0.001)"
    with pytest.warns(UserWarning, match=re.escape(told)) as caught:
        other.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-17"))
    assert sum(str(each.message).startswith("batchbridge: ") for each in caught) == 1
    assert told in other.batchbridge.report()
    assert "brings back its learning rate" in other.batchbridge.report()
    # transformers restores the optimizer's numbers and the schedule's: what the note says is what happened.
    assert torch.equal(flat_parameters(other.model), parameters)


class Clips(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Switches clipping on after step 17 of a run that goes on."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 17:
            args.max_grad_norm = 0.5


def test_another_clip_norm_passes_and_clips_from_there_on(whole: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder, parameters = whole
    switched = wrap(build(tmp_path / "switched"))
    switched.add_callback(Clips())
    switched.train()
    other = wrap(build(tmp_path / "run", max_grad_norm=0.5), ledger=tmp_path / "ledger")
    with pytest.warns(UserWarning, match="carried.max_gradient_norm: 0.0 in the checkpoint, 0.5 now"):
        other.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-17"))
    assert torch.equal(flat_parameters(other.model), flat_parameters(switched.model))
    assert not torch.equal(flat_parameters(other.model), parameters)


SPLITS: dict[str, tuple[dict[str, Any], dict[str, Any], int | None, int | None, str]] = {
    "2x2 to 1x4": (
        {},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 8},
        None,
        None,
        "micro_batch.completions_per_device: 2 in the checkpoint, 1 now",
    ),
    "4x2 to 2x4": (
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "prompts": 8},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 8, "prompts": 8},
        None,
        None,
        "micro_batch.completions_per_device: 4 in the checkpoint, 2 now",
    ),
    "60 to 30 tokens": ({}, {}, 60, 30, "micro_batch.tokens_per_device: 60 in the checkpoint, 30 now"),
    "2x2 to 30 tokens": ({}, {}, None, 30, "micro_batch.tokens_per_device: open in the checkpoint, 30 now"),
}
DESCENT: dict[str, Any] = {
    "optim": "sgd",
    "learning_rate": 0.05,
    "lr_scheduler_type": "constant",
    "num_iterations": 1,
    "save_steps": 5,
}
"""Checkpoints inside a rollout. With AdamW, parameters whose true gradient is zero move by the noise of the split."""
BAR = 1e-5


@pytest.mark.parametrize("case", SPLITS)
def test_another_split_goes_on_to_the_same_parameters(tmp_path: Path, case: str) -> None:
    before, after, budget, other_budget, told = SPLITS[case]
    uninterrupted = wrap(build(tmp_path / "run", **DESCENT | before), ledger=tmp_path / "a", tokens_per_device=budget)
    start = flat_parameters(uninterrupted.model)
    uninterrupted.train()
    resumed = wrap(build(tmp_path / "other", **DESCENT | after), ledger=tmp_path / "b", tokens_per_device=other_budget)
    with pytest.warns(UserWarning, match=told):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    moved = flat_parameters(uninterrupted.model) - start
    assert moved.norm() >= 0.01 * start.norm()
    assert (flat_parameters(resumed.model) - start - moved).norm() / moved.norm() <= BAR
    compared = diff(tmp_path / "a", tmp_path / "b", rtol=1e-4)
    assert compared.equal, compared.text()
    assert next(iter(read_steps(tmp_path / "b")))["step"] == 5


def test_negative_control_other_rows_lead_elsewhere(tmp_path: Path) -> None:
    """What the comparison above must notice: one completion of the saved rollout has another's advantage. Where the
    saved tensors alone are changed, the run itself notices: they are not the rollout's."""
    before, after, *_ = SPLITS["4x2 to 2x4"]
    uninterrupted = wrap(build(tmp_path / "run", **DESCENT | before))
    start = flat_parameters(uninterrupted.model)
    uninterrupted.train()
    file = tmp_path / "run" / "checkpoint-5" / "batchbridge" / "rank-00000.pt"
    rows = torch.load(file, weights_only=True)
    advantages, facts = rows["rollouts"][0]["tensors"]["advantages"], rows["rollouts"][0]["facts"]
    advantages[-2:] = advantages[-2:].flip(0)
    torch.save(rows, file)
    noticing = wrap(build(tmp_path / "noticing", **DESCENT | after))
    with pytest.warns(UserWarning, match="completions_per_device"), pytest.raises(BatchDrift, match="weights"):
        noticing.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    position_of = {row: position for position, row in rows["rollouts"][0]["slots"].items()}
    one, other = (position_of[len(advantages) - back] for back in (2, 1))
    facts[one]["advantage"], facts[other]["advantage"] = facts[other]["advantage"], facts[one]["advantage"]
    torch.save(rows, file)
    resumed = wrap(build(tmp_path / "other", **DESCENT | after))
    with pytest.warns(UserWarning, match="completions_per_device"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    moved = flat_parameters(uninterrupted.model) - start
    assert (flat_parameters(resumed.model) - start - moved).norm() / moved.norm() > 10 * BAR


LONGER: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "an epoch more, inside a rollout": ({"num_train_epochs": 2}, {"num_train_epochs": 3}, 17),
    "an epoch more, after the end": ({"num_train_epochs": 1, "save_steps": 12}, {"num_train_epochs": 2}, 12),
    "more steps, after an end inside a rollout": ({"max_steps": 18, "save_steps": 18}, {"max_steps": 24}, 18),
    "more steps, after an end inside a pass": ({"max_steps": 17}, {"max_steps": 24}, 17),
    "fewer steps": ({"max_steps": 24}, {"max_steps": 20}, 17),
    "epochs, then steps": ({"num_train_epochs": 2}, {"max_steps": 20}, 17),
}


@pytest.mark.parametrize("case", LONGER)
def test_a_run_of_another_length_is_the_uninterrupted_one(tmp_path: Path, case: str) -> None:
    before, after, at_step = LONGER[case]
    constant = {"lr_scheduler_type": "constant"}
    uninterrupted = wrap(build(tmp_path / "whole", **constant | after), ledger=tmp_path / "a")
    uninterrupted.train()
    wrap(build(tmp_path / "run", **constant | before)).train()
    resumed = wrap(build(tmp_path / "run", **constant | after), ledger=tmp_path / "b")
    with pytest.warns(UserWarning, match=r"horizon\."):
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{at_step}"))
    assert "schedule had the old length" not in resumed.batchbridge.report()
    assert torch.equal(flat_parameters(resumed.model), flat_parameters(uninterrupted.model))
    compared = diff(tmp_path / "a", tmp_path / "b", exact=True)
    assert compared.equal, compared.text()


def test_a_longer_run_under_a_falling_learning_rate_is_said_to_be_another(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    resumed = wrap(build(tmp_path, num_train_epochs=3))
    with pytest.warns(UserWarning, match="schedule had the old length until here"):
        resumed.train(resume_from_checkpoint=str(whole[0] / "run" / "checkpoint-17"))
    assert "schedule had the old length until here" in resumed.batchbridge.report()


def test_a_run_that_ends_before_the_checkpoint_is_refused(whole: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(CannotAttach, match="after 17 optimizer steps, and this run ends after 12"):
        wrap(build(tmp_path, num_train_epochs=1)).train(resume_from_checkpoint=str(whole[0] / "run" / "checkpoint-17"))


def first_version(checkpoint: Path) -> None:
    """Makes a checkpoint what the first versions wrote."""
    saved = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    (checkpoint / STATE_FILE).unlink()
    plan = {name: saved[name] for name in ("optimizer_steps", "dataset_size")}
    for file in (checkpoint / "batchbridge").glob("rank-*.pt"):
        rows = torch.load(file, weights_only=True)
        torch.save(rows | {"plan": plan | {"spec": Spec.from_dict(saved["spec"]).digest()}}, file)


def test_a_checkpoint_of_the_first_versions_resumes_with_the_settings_that_it_was_written_with(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "run" / "checkpoint-17"
    shutil.copytree(whole[0] / "run" / "checkpoint-17", checkpoint)
    first_version(checkpoint)
    same = wrap(build(tmp_path / "same"))
    same.train(resume_from_checkpoint=str(checkpoint))
    assert torch.equal(flat_parameters(same.model), whole[1])
    with pytest.raises(CannotAttach, match="saved a digest of its settings in place of the settings"):
        wrap(build(tmp_path / "other", learning_rate=1e-3)).train(resume_from_checkpoint=str(checkpoint))


def test_a_node_that_has_its_own_ranks_files_alone_resumes_as_it_was_and_not_otherwise(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "run" / "checkpoint-17"
    shutil.copytree(whole[0] / "run" / "checkpoint-17", checkpoint)
    same = wrap(build(tmp_path / "same", save_on_each_node=True))
    same.train(resume_from_checkpoint=str(checkpoint))
    assert torch.equal(flat_parameters(same.model), whole[1])
    saved = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    (checkpoint / STATE_FILE).write_text(json.dumps(saved | {"ranks": 2}), encoding="utf-8")
    with pytest.raises(CannotAttach, match="written by 2 ranks, this run has 1: start as many; with save_on_each_node"):
        wrap(build(tmp_path / "fewer", save_on_each_node=True)).train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(CannotAttach, match="rank 1's file batchbridge/rank-00001"):
        wrap(build(tmp_path / "fewer")).train(resume_from_checkpoint=str(checkpoint))


def test_a_run_that_was_killed_while_it_saved_goes_on_from_the_checkpoint_before(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    code = CRASHING.format(
        killed_at=99, folder=str(tmp_path / "run"), run=RUN | {"save_steps": 8}, ledger=str(tmp_path / "ledger")
    )
    killing = """
native = built.save_model
def save_model(*arguments, **options):
    if built.state.global_step == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return native(*arguments, **options)
built.save_model = save_model
built.train()"""
    crashed = subprocess.run(
        [sys.executable, "-c", code.replace("\nbuilt.train()", killing)], capture_output=True, text=True, check=False
    )
    assert crashed.returncode == -9, crashed.stderr[-2000:]
    resumed = wrap(build(tmp_path / "run"), ledger=tmp_path / "ledger")
    with pytest.warns(UserWarning, match=r"trainer_state.json is missing. it goes on from .*checkpoint-8"):
        resumed.train(resume_from_checkpoint=True)
    assert torch.equal(flat_parameters(resumed.model), whole[1])
    compared = diff(whole[0] / "ledger", tmp_path / "ledger", exact=True)
    assert compared.equal, compared.text()

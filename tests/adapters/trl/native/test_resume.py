"""Resume: a checkpoint inside a rollout of the second epoch, SIGKILL some steps later, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import CannotAttach, wrap
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.testing.tiny import tiny_policy
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


def test_a_checkpoint_of_another_spec_is_refused(tmp_path: Path) -> None:
    wrap(build(tmp_path / "run")).train()
    with pytest.raises(CannotAttach, match="spec was"):
        wrap(build(tmp_path / "run", seed=43)).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-17"))


def test_a_checkpoint_of_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    wrap(build(tmp_path / "run")).train()
    saved = tmp_path / "run" / "checkpoint-17" / "batchbridge" / "rank-00000.pt"
    torch.save(torch.load(saved, weights_only=True) | {"world_size": 2}, saved)
    with pytest.raises(CannotAttach, match="written by 2 ranks, this run has 1"):
        wrap(build(tmp_path / "run")).train(resume_from_checkpoint=str(saved.parent.parent))

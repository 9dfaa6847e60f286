"""A run that restarts by itself: `while ! COMMAND; do :; done` with `kill -9` at random moments ends, bit-equal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from representative import WHOLE

from batchbridge import CannotAttach, wrap
from batchbridge.errors import LedgerError
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.trajectories import assert_same_end
from batchbridge_trl.testing import flat_parameters, scripted_trainer

SCRIPT = Path(__file__).parent / "restarting.py"
SEEDS = range(1, 9) if WHOLE else (1,)
"""The loops of each kind: `nox -s "trl_full(release='newest')"` runs more."""
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "beta": 0.1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 1,
}


def build(folder: Path, **changes: Any) -> Any:
    return scripted_trainer(folder, reference=tiny_policy(seed=1), **RUN | changes)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ranks", "reference"), [(1, "still"), (1, "synced"), (2, "still")])
def test_a_command_that_is_killed_again_and_again_ends_as_if_it_never_was(
    tmp_path: Path, ranks: int, reference: str, seed: int
) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(ranks), str(seed), reference]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text(encoding="utf-8"))
    assert said["codes"] == [0] * ranks, (said, ran.stderr[-3000:])
    assert said["starts"] > 2, "hardly anything was killed"
    ends = [torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("whole", "killed")]
    assert torch.equal(*ends)
    compared = diff(tmp_path / "whole" / "ledger", tmp_path / "killed" / "ledger", exact=True)
    assert compared.equal, compared.text()


@pytest.mark.skipif(not WHOLE, reason="a minute each, by name: trl_full")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_that_is_started_on_other_ranks_again_and_again_ends_where_the_whole_run_does(
    tmp_path: Path, seed: int
) -> None:
    """One and two ranks by turns, each killed at a random moment after it has left a checkpoint: the same steps, and
    float32's noise apart. Even seeds begin on one rank."""
    turns = "2,1" if seed % 2 else "1,2"
    command = [sys.executable, str(SCRIPT), str(tmp_path), turns, str(seed), "still"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text(encoding="utf-8"))
    assert not any(said["codes"]), (said, ran.stderr[-3000:])
    assert said["starts"] > 2, "hardly anything was killed"
    went_on = [header["world_size"] for header in read_headers(tmp_path / "killed" / "ledger") if header["at_step"]]
    assert {1, 2} <= set(went_on), "no run went on from what another number of ranks left"
    whole, killed = (torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("whole", "killed"))
    assert_same_end("trl, killed on one and two ranks by turns", flat_parameters(tiny_policy()), killed, whole)
    assert [step["prompt"] for step in steps_of(tmp_path / "killed")] == [
        step["prompt"] for step in steps_of(tmp_path / "whole")
    ]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The steps of a ledger, prompts sorted."""
    return [{**step, "prompt": sorted(step["prompt"])} for step in read_steps(folder / "ledger")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A run with a checkpoint after each of its four steps: its folder, and its parameters."""
    folder = tmp_path_factory.mktemp("saved")
    built = wrap(build(folder / "run"), ledger=folder / "ledger")
    built.train()
    return folder / "run", flat_parameters(built.model)


def copied(saved: tuple[Path, torch.Tensor], folder: Path) -> Path:
    return Path(shutil.copytree(saved[0], folder / "run"))


LOST = {
    "batchbridge/rank-00000.pt": "rank 0's file batchbridge/rank-00000.pt is missing",
    "optimizer.pt": "optimizer.pt is missing",
    "scheduler.pt": "scheduler.pt is missing",
    "rng_state.pth": "rank 0's file rng_state.pth is missing",
    "model.safetensors": "model.safetensors is missing",
}


@pytest.mark.parametrize("lost", LOST)
def test_a_finished_checkpoint_that_has_lost_a_file_is_refused(
    saved: tuple[Path, torch.Tensor], tmp_path: Path, lost: str
) -> None:
    """transformers itself goes on without optimizer, schedule and random states, and says nothing of it."""
    folder = copied(saved, tmp_path)
    (folder / "checkpoint-4" / lost).unlink()
    reason = f"{LOST[lost]}: the checkpoint was finished, .*; resume from .*checkpoint-3"
    with pytest.raises(CannotAttach, match=reason):
        wrap(build(folder)).train(resume_from_checkpoint=True)


UNFINISHED = ("batchbridge.json", "trainer_state.json")


@pytest.mark.parametrize("asked", ["true", "path"])
@pytest.mark.parametrize("lost", UNFINISHED)
def test_an_unfinished_checkpoint_is_skipped_with_a_line(
    saved: tuple[Path, torch.Tensor], tmp_path: Path, lost: str, asked: str
) -> None:
    folder = copied(saved, tmp_path)
    (folder / "checkpoint-4" / lost).unlink()
    built = wrap(build(folder))
    told = f"checkpoint-4 is skipped, .*{lost} is missing. it goes on from .*checkpoint-3"
    with pytest.warns(UserWarning, match=told):
        built.train(resume_from_checkpoint=True if asked == "true" else str(folder / "checkpoint-4"))
    assert torch.equal(flat_parameters(built.model), saved[1])
    assert "checkpoint-4 is skipped" in built.batchbridge.report()


CUT = ("batchbridge/rank-00000.pt", "optimizer.pt", "rng_state.pth", "model.safetensors")


@pytest.mark.parametrize("cut", CUT)
def test_a_file_that_is_cut_off_is_named_and_its_checkpoint_skipped(
    saved: tuple[Path, torch.Tensor], tmp_path: Path, cut: str
) -> None:
    folder = copied(saved, tmp_path)
    for number in (3, 4):
        content = (folder / f"checkpoint-{number}" / cut).read_bytes()
        (folder / f"checkpoint-{number}" / cut).write_bytes(content[: len(content) // 2])
    with pytest.raises(CannotAttach, match=rf"checkpoint-3: {cut} is cut off: .*; resume from .*checkpoint-2"):
        wrap(build(folder)).train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    with pytest.warns(UserWarning, match=rf"{cut} is cut off. it goes on from .*checkpoint-2"):
        wrap(build(folder)).train(resume_from_checkpoint=True)


def test_where_no_checkpoint_is_finished_the_run_starts_anew_and_its_ledger_is_set_aside(
    saved: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoint-1").mkdir(parents=True)
    shutil.copytree(saved[0].parent / "ledger", tmp_path / "ledger")
    built = wrap(build(folder), ledger=tmp_path / "ledger")
    with pytest.warns(UserWarning, match="batchbridge: ") as caught:
        built.train(resume_from_checkpoint=True)
    said = " ".join(str(each.message) for each in caught)
    assert "no other checkpoint lies beside it: the run starts anew" in said
    assert f"a run that was over before its first checkpoint: it is now {tmp_path / 'ledger.1'}" in said
    assert torch.equal(flat_parameters(built.model), saved[1])
    assert diff(tmp_path / "ledger", tmp_path / "ledger.1", exact=True).equal


def test_a_state_file_of_another_kind_is_named(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    (folder / "checkpoint-4" / "batchbridge.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CannotAttach, match=r"batchbridge\.json is damaged: .*; resume from .*-3"):
        wrap(build(folder)).train(resume_from_checkpoint=True)


def test_a_ledger_whose_run_can_go_on_is_not_set_aside(saved: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    shutil.copytree(saved[0].parent / "ledger", tmp_path / "ledger")
    with pytest.raises(LedgerError, match=r"exists already, .* can go on from .*checkpoint-4: resume from there"):
        wrap(build(folder), ledger=tmp_path / "ledger").train()
    assert not (tmp_path / "ledger.1").exists()


def test_a_second_training_in_one_process_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    built = wrap(build(tmp_path / "run"), ledger=tmp_path / "ledger")
    built.train()
    with pytest.warns(UserWarning, match="a training that this process began before: it is now .*ledger.1"):
        built.train()
    starts = [read_headers(tmp_path / name) for name in ("ledger", "ledger.1")]
    assert [[(each["started"], each["at_step"]) for each in headers] for headers in starts] == [[("fresh", 0)]] * 2
    assert starts[0][0]["start_id"] != starts[1][0]["start_id"]


def test_a_run_whose_checkpoints_lack_the_optimizer_says_so_before_it_starts(tmp_path: Path) -> None:
    built = wrap(build(tmp_path, save_only_model=True))
    assert "save_only_model = True saves neither optimizer nor schedule nor random states" in built.batchbridge.report()
    built.train()
    with pytest.raises(CannotAttach, match=r"save_only_model = True saves no optimizer, .* start a new run"):
        wrap(build(tmp_path, save_only_model=True)).train(resume_from_checkpoint=True)
    assert "save_only_model" not in wrap(build(tmp_path / "other")).batchbridge.report()


def test_a_data_set_in_another_order_is_refused_and_goes_on_where_it_is_allowed(
    saved: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    """As `.shuffle()` without a seed leaves it: as long as before, and natively trained without a word."""

    def shuffled(*allow: str) -> Any:
        built = build(tmp_path / "other")
        built.train_dataset = built.train_dataset.shuffle(seed=3)
        return wrap(built, allow=allow, ledger=tmp_path / "ledger")

    last = str(saved[0] / "checkpoint-2")
    with pytest.raises(CannotAttach, match=r'with other prompts \(all 6 prompts: .*allow=\("data",\)'):
        shuffled().train(resume_from_checkpoint=last)
    with pytest.warns(UserWarning, match="on other prompts .all 6 prompts: .*which allow=data accepts"):
        shuffled("data").train(resume_from_checkpoint=last)
    (now,), (then,) = (read_headers(folder) for folder in (tmp_path / "ledger", saved[0].parent / "ledger"))
    assert now["prompts"]["whole"] != then["prompts"]["whole"]


def test_a_reference_that_follows_the_policy_comes_back(tmp_path: Path) -> None:
    moving = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.9}
    whole = wrap(build(tmp_path / "run", **moving))
    whole.train()
    resumed = wrap(build(tmp_path / "run", **moving))
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    (tmp_path / "run" / "checkpoint-2" / "batchbridge" / "reference.pt").unlink()
    with pytest.raises(
        CannotAttach, match=r"reference\.pt .the reference model, which sync_ref_model moves. is missing"
    ):
        wrap(build(tmp_path / "run", **moving)).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))

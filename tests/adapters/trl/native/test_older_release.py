"""What an older BatchBridge left, a checkpoint and a ledger, under today's: the run goes on from both.

stored/2026-11-26 is of commit 1ea7efed, the last before checkpoints named their data and ledgers their optimizer: our
own files of `test_resume.RUN`'s checkpoint 17, and the ledger of a process that was killed after 21 records. The
weights and TRL's own files are of today's run, which trained the same until there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import build

from batchbridge import CannotAttach, wrap
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge_trl.testing import flat_parameters

STORED = Path(__file__).parent / "stored" / "2026-11-26"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole")
    built = wrap(build(folder / "run"), ledger=folder / "ledger")
    built.train()
    return folder, flat_parameters(built.model)


def left(folder: Path, whole: Path) -> Path:
    """A checkpoint whose part of ours the older release wrote, and the ledger beside it."""
    checkpoint = folder / "run" / "checkpoint-17"
    shutil.copytree(whole / "run" / "checkpoint-17", checkpoint)
    (checkpoint / STATE_FILE).unlink()
    shutil.rmtree(checkpoint / "batchbridge")
    shutil.copytree(STORED / "checkpoint", checkpoint, dirs_exist_ok=True)
    shutil.copytree(STORED / "ledger", folder / "ledger")
    return checkpoint


def test_a_run_of_an_older_release_goes_on_from_its_checkpoint_in_its_ledger(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = left(tmp_path, whole[0])
    resumed = wrap(build(tmp_path / "run"), ledger=tmp_path / "ledger")
    start: Any = flat_parameters(resumed.model)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    # Its rows hold log-probabilities of another machine: float32 rounds them otherwise.
    moved = whole[1] - start
    assert (flat_parameters(resumed.model) - whole[1]).norm() / moved.norm() < 1e-5
    assert [(header["started"], header["at_step"]) for header in read_headers(tmp_path / "ledger")] == [
        ("fresh", 0),
        ("resumed", 17),
    ]
    compared = diff(whole[0] / "ledger", tmp_path / "ledger")
    assert compared.equal, compared.text()
    assert verify(tmp_path / "ledger").departed == 0


def test_negative_control_other_old_log_probabilities_in_its_rows_move_it_elsewhere(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = left(tmp_path, whole[0])
    file = checkpoint / "batchbridge" / "rank-00000.pt"
    rows = torch.load(file, weights_only=True)
    rows["rollouts"][0]["tensors"]["old_per_token_logps"] -= 1.0
    torch.save(rows, file)
    resumed = wrap(build(tmp_path / "run"), ledger=tmp_path / "ledger")
    start: Any = flat_parameters(resumed.model)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    moved = whole[1] - start
    assert (flat_parameters(resumed.model) - whole[1]).norm() / moved.norm() > 1e-4


def test_the_ledger_of_an_older_release_is_read_and_recomputed() -> None:
    assert [record["step"] for record in read_steps(STORED / "ledger")] == list(range(20))
    assert verify(STORED / "ledger").departed == 0


def test_a_checkpoint_of_a_later_release_is_refused_before_anything_is_trained(
    whole: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    checkpoint = left(tmp_path, whole[0])
    saved = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    (checkpoint / STATE_FILE).write_text(json.dumps(saved | {"schema": "batchbridge/checkpoint/2"}), encoding="utf-8")
    resumed = wrap(build(tmp_path / "run"), ledger=tmp_path / "ledger")
    with pytest.raises(CannotAttach, match=r"checkpoint/2.*reads 'batchbridge/checkpoint/1'"):
        resumed.train(resume_from_checkpoint=str(checkpoint))

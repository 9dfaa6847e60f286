"""One unchanged command, started again and again while SIGKILL ends it at random moments, until it ends by itself.

`python restarting.py FOLDER RANKS SEED SYNC`: writes what happened to FOLDER/said.json. RANKS: "2", or "1,2": the
uninterrupted run has the first number, and those that are killed have them by turns, each after it has left a
checkpoint of its own, so that every start but the first goes on from what another number of ranks left. The command is
a fork of this process; see `batchbridge_on_cpu.killing`.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import get_last_checkpoint

from batchbridge import wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.killing import MOST_STARTS, ended, forked
from batchbridge_trl.testing import flat_parameters, scripted_trainer

RUN: dict[str, Any] = {
    # three rollouts of two prompts, two passes of two optimizer steps over each: 12 steps
    "per_device_train_batch_size": 2,
    "num_iterations": 2,
    "num_train_epochs": 1,
    "beta": 0.1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": 2,
}
DESCENT = {"optim": "sgd", "learning_rate": 0.1}
"""For several numbers of ranks: with AdamW, parameters whose true gradient is zero move by the noise of another one."""
SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6}


def command(folder: Path, ranks: int, more: dict[str, Any]) -> None:
    """What a user's script does: it goes on from the last checkpoint, where there is one."""
    split = {"gradient_accumulation_steps": 2 // ranks, "steps_per_generation": 4 // ranks}
    settings = RUN | split | more
    built = scripted_trainer(folder / "run", reference=tiny_policy(seed=1), **settings)
    wrap(built, ledger=folder / "ledger")
    built.train(resume_from_checkpoint=get_last_checkpoint(str(folder / "run")))
    if built.accelerator.is_main_process:
        torch.save(flat_parameters(built.model), folder / "end.pt")


def started(folder: Path, ranks: int, more: dict[str, Any]) -> list[int]:
    """The processes of one start of the command."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def of_rank(rank: int) -> None:
        if ranks > 1:
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in places.items()}, MASTER_ADDR="127.0.0.1")
        command(folder, ranks, more)

    return forked([functools.partial(of_rank, rank) for rank in range(ranks)])


def checkpoints_left(folder: Path) -> int:
    """The optimizer step of the last checkpoint that starts of the command have left so far."""
    last = get_last_checkpoint(str(folder / "run")) if (folder / "run").is_dir() else None
    return 0 if last is None else int(last.rpartition("-")[2])


def has_come(folder: Path, steps: int) -> bool:
    """Whether a checkpoint after so many optimizer steps is there."""
    return checkpoints_left(folder) >= steps


def main(folder: Path, ranks: list[int], seed: int, *, synced: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("default")
    more = (SYNCED if synced else {}) | (DESCENT if len(ranks) > 1 else {})
    first = time.monotonic()
    assert ended(started(folder / "whole", ranks[0], more), 600, 0) == [0] * ranks[0]
    takes, drawn, starts, failed, used = time.monotonic() - first, random.Random(seed), 0, [], []
    while starts < MOST_STARTS:
        number = ranks[starts % len(ranks)]
        starts += 1
        used.append(number)
        # Most moments are early: starts that die before their first checkpoint, or while they write one.
        seconds = takes * (drawn.random() * (0.5 if starts % 2 else 1.0) + starts / 12)
        work = 0
        if len(ranks) > 1:  # the moment is one of the steps, not of the start
            seconds, work = takes * drawn.random() / 40, checkpoints_left(folder / "killed") + drawn.randint(1, 3)
        begun = functools.partial(has_come, folder / "killed", work)
        codes = ended(started(folder / "killed", number, more), seconds, drawn.randrange(number), begun)
        if codes == [0] * number:
            break
        if None not in codes:  # it ended by itself, and not well
            failed.append(codes)
            break
    said = {"starts": starts, "failed": failed, "seconds": takes, "codes": codes, "ranks": used}
    (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        [int(word) for word in sys.argv[2].split(",")],
        int(sys.argv[3]),
        synced=sys.argv[4] == "synced",
    )

"""OpenRLHF's real `PPOTrainer.fit` in one process without Ray's, killed again and again; see `fits` and
`batchbridge_on_cpu.killing`.

`python restarting.py FOLDER SEED`: writes what happened to FOLDER/said.json.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path

import torch
from fits import PROMPTS, Bench, save_policy, wrap

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.killing import forked, run_to_its_end


def command(folder: Path, given: Path) -> None:
    """What a user's script does: it goes on from the last checkpoint, where there is one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    checkpoints = {"ckpt.path": str(folder / "checkpoints"), "ckpt.save_steps": 1, "ckpt.load_enable": True}
    policy = {"actor.model_name_or_path": str(given / "policy"), "data.prompt_dataset": str(given / "prompts.jsonl")}
    bench = Bench(given, **checkpoints, **policy)
    wrap(bench.trainer, ledger=folder / "ledger")
    torch.save(bench.fit().weights[-1], folder / "end.pt")


def started(folder: Path) -> list[int]:
    """The process of one start of the command."""
    folder.mkdir(exist_ok=True)
    return forked([functools.partial(command, folder, folder.parent)])


def main(folder: Path, seed: int) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    run_to_its_end(folder, started, seed=seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

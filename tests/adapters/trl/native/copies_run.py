"""The two stand-ins of `copies` on several processes, verified, and their gradients against the oracle.

    torchrun --nproc_per_node 2 copies_run.py FOLDER

Rank 0 leaves `said.json` in FOLDER: of each stand-in the steps that it took, the largest error over its bar, and in
what a run departs whose loss is another one on the second rank.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(ACCELERATE_USE_CPU="true", TRL_EXPERIMENTAL_SILENCE="1")

import torch
from copies import SCRIPT, LaterStandIn, StandIn, config, dataset

from batchbridge import BatchDrift, wrap
from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.testing import Captured, gradient_errors, undivided

SIZES: dict[type[StandIn], dict[str, Any]] = {
    StandIn: {"per_device_train_batch_size": 1},
    LaterStandIn: {"per_device_train_batch_size": 4, "num_iterations": 2},
}


def built(kind: type[StandIn], folder: Path) -> Any:
    torch.manual_seed(0)
    return undivided(kind(config(folder, **SIZES[kind]), dataset()))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank, said = int(os.environ["RANK"]), {}
    for kind in SIZES:
        trainer = built(kind, folder / kind.__name__)
        captured = Captured(trainer.model)
        trainer.add_callback(captured)
        ledger = folder / kind.__name__ / "ledger"
        wrap(trainer, mode="verify", ledger=ledger).train()
        torch.distributed.barrier()
        found = gradient_errors(
            captured,
            trainer.batchbridge.request.spec,
            records=read_steps(ledger),
            script=SCRIPT,
            reference=tiny_policy(seed=1),
        )
        other = built(kind, folder / f"{kind.__name__}-other")
        other.times = 1.01 if rank else 1.0
        aspect = None
        try:
            wrap(other, mode="verify").train()
        except BatchDrift as drift:
            aspect = drift.aspect
        said[kind.__name__] = [len(found), max(each.error / each.bar for each in found), aspect]
    if not rank:
        (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

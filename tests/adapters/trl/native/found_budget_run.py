"""What `test_found_budget` runs under torchrun, one process per rank: each rank with a memory of its own.

    torchrun --nproc_per_node 2 found_budget_run.py FOLDER

Each rank leaves what it saw in FOLDER, `rank-R.json`; the comparing process asserts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

import transformers
from found_budgets import LIMIT, lost, run

from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.limited_memory import LimitedMemory

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def main() -> None:
    rank, folder, steps = int(os.environ["RANK"]), Path(sys.argv[1]), 8
    # The second rank has twice the memory, and loses it now and then.
    memory = LimitedMemory(2 * LIMIT, partial(lost, every=5)) if rank else LimitedMemory(LIMIT)
    halves = {"per_device_train_batch_size": 4, "max_steps": steps}
    found = run(folder / "found", memory, **halves)
    given = run(folder / "given", memory, 100, **halves)
    seen = {
        "turns": found.turns,
        "errors": [dataclasses.asdict(one) for one in found.errors(4)],
        "logged": [found.logged(), given.logged()],
        "failed_in": memory.failed_in,
        "most": memory.most,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main()

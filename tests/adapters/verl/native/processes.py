"""What `test_gradients_verl` runs, one process per rank.

    torchrun --nproc_per_node 2 processes.py FOLDER

FOLDER/policy is the tiny policy (`batchbridge_on_cpu.verl.workers.save_policy`). Rank 0 leaves what it measured in
FOLDER/measured.pt; the comparing process asserts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

from gradients import Bench, gradients
from tampering import tampering


def main(folder: Path) -> None:
    bench = Bench(folder)
    found = {**gradients(bench, folder), "tampering": tampering(bench, folder)}
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    from batchbridge.testing.leaving import leave

    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

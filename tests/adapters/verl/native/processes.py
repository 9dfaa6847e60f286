"""What `test_gradients_verl` runs, one process per rank.

    torchrun --nproc_per_node 2 processes.py FOLDER [SEQUENCE]

With SEQUENCE, rows are packed, each on as many ranks. FOLDER/policy is the tiny policy
(`batchbridge_on_cpu.verl.workers.save_policy`). Rank 0 leaves what it measured in FOLDER/measured.pt; the comparing
process asserts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

import batchbridge_on_cpu.verl.cpu  # noqa: F401 - before verl's modules ask for their device

# isort: split
from gradients import PACKED, Bench, empty, gradients, natively, wrapped
from tampering import tampering, tampering_packed

from batchbridge_on_cpu.verl.scripted import packed


def main(folder: Path, sequence: int | None) -> None:
    bench = Bench(folder, *(() if sequence is None else packed(sequence)))
    if sequence is None:
        found = {**gradients(bench, folder), "tampering": tampering(bench, folder)}
    else:
        found = {"wrapped": wrapped(bench, PACKED), "natively": natively(bench), "empty": empty(bench, folder)}
        found["tampering"] = tampering_packed(bench)
    if bench.process == 0:
        torch.save(found, folder / "measured.pt")
    from batchbridge.testing.leaving import leave

    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)

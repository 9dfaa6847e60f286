"""What `test_gradients_verl` runs, one process per rank.

    torchrun --nproc_per_node 2 processes.py FOLDER [SEQUENCE | sdpa | grouper | shared]

With SEQUENCE, rows are packed, each on as many ranks; with `sdpa`, whole, and through torch's own attention; with
`grouper`, padded, and verl is told `use_prefix_grouper`; with `shared`, whole, and each prompt is read once.
FOLDER/policy is the tiny policy (`batchbridge_on_cpu.verl.workers.save_policy`). Rank 0 leaves what it measured in
FOLDER/measured.pt; the comparing process asserts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

import batchbridge_on_cpu.verl.cpu  # noqa: F401 - before verl's modules ask for their device

# isort: split
from gradients import PACKED, Bench, empty, gradients, natively, read_of, wrapped
from shared import shared
from tampering import tampering, tampering_packed

from batchbridge_on_cpu.verl.scripted import packed


def main(folder: Path, layout: str | None) -> None:
    overrides = {
        None: [],
        "sdpa": packed(attention="sdpa"),
        "shared": packed(attention="sdpa"),
        "grouper": ["actor_rollout_ref.actor.use_prefix_grouper=True"],
    }
    bench = Bench(folder, *(overrides[layout] if layout in overrides else packed(int(str(layout)))))
    if layout is None:
        found = {**gradients(bench, folder), "tampering": tampering(bench, folder)}
    elif layout == "shared":
        found = shared(bench, folder)
    elif layout == "grouper":
        found = {"wrapped": wrapped(bench, PACKED), "natively": natively(bench), "read": read_of(bench)}
    else:
        found = {"wrapped": wrapped(bench, PACKED), "natively": natively(bench), "empty": empty(bench, folder)}
        found["tampering"] = tampering_packed(bench)
    if bench.process == 0:
        torch.save(found, folder / "measured.pt")
    from batchbridge.testing.leaving import leave

    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)

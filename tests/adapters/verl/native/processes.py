"""What `test_gradients_verl` runs, one process per rank.

    torchrun processes.py FOLDER [SEQUENCE | sdpa | grouper | shared | FAMILY [packed] | critic | own | corrected |
        taught | legacy]

With SEQUENCE, rows are packed, each on as many ranks; with `sdpa`, whole, and through torch's own attention; with
`grouper`, padded, and verl is told `use_prefix_grouper`; with `shared`, whole, and each prompt is read once; with a
family of models that read images, padded, or whole with `packed`, and each prompt has an image or two; with `critic`, a
critic (FOLDER/critic) takes the policy's place; with `own`, an engine that is not FSDP; with `corrected`, corrections
towards the sampler; with `taught`, a teacher; with `legacy`, legacy workers.
FOLDER/policy is the tiny policy (`batchbridge_on_cpu.verl.workers.save_policy`). Rank 0 leaves what it measured in
FOLDER/measured.pt; the comparing process asserts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

torch.set_num_threads(1)

import batchbridge_on_cpu.verl.cpu  # noqa: F401 - before verl's modules ask for their device

# isort: split
from gradients import PACKED, PADDED_ALONE, Bench, empty, gradients, natively, of_padded_rows, read_of, wrapped
from shared import shared
from tampering import tampering, tampering_packed

from batchbridge_on_cpu.verl.pictures import OF_FAMILY
from batchbridge_on_cpu.verl.scripted import packed


def main(folder: Path, layout: str | None, *more: str) -> None:
    alone = {
        "own": "other_engine.another_engine",
        "corrected": "corrected.corrections",
        "taught": "distilled.distillation",
    }
    if layout == "critic":
        from critic_gradients import CriticBench, critic

        found = critic(CriticBench(folder), folder)
    elif layout == "legacy":  # what only older releases have
        from legacy_steps import LegacyBench, legacy

        found = legacy(LegacyBench(folder), folder)
    elif layout in alone:  # what only newer releases have
        found = resolve_name(alone[layout])(folder)
    else:
        found = of_policy(folder, layout, *more)
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "measured.pt")
    from batchbridge_on_cpu.leaving import leave

    leave()


def of_policy(folder: Path, layout: str | None, *more: str) -> dict[str, Any]:
    overrides = {
        None: [],
        "sdpa": packed(attention="sdpa"),
        "shared": packed(attention="sdpa"),
        "grouper": ["actor_rollout_ref.actor.use_prefix_grouper=True"],
    }
    bench: Any
    if layout in OF_FAMILY:
        from images import Seeing, images

        bench = Seeing(folder, *(packed(attention="sdpa") if more else []), family=layout)
    else:
        bench = Bench(folder, *(overrides[layout] if layout in overrides else packed(int(str(layout)))))
    if layout is None:
        found = {**gradients(bench, folder), "tampering": tampering(bench, folder)}
        if PADDED_ALONE and bench.processes == 1:
            found["padded rows"] = of_padded_rows(folder)
    elif layout in OF_FAMILY:
        found = images(bench)
    elif layout == "shared":
        found = shared(bench, folder)
    elif layout == "grouper":
        found = {"wrapped": wrapped(bench, PACKED), "natively": natively(bench), "read": read_of(bench)}
    else:
        found = {"wrapped": wrapped(bench, PACKED), "natively": natively(bench), "empty": empty(bench, folder)}
        found["tampering"] = tampering_packed(bench)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:] or [None]))

"""What `test_packed_openrlhf` runs beside `packed.py`: `fits.py`'s run with dynamic batches and packed samples, which
the command line turns on with them, and the same with padded ones.

    python packed_fits.py FOLDER

What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import fits
import torch

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.openrlhf.workers import save_policy

DYNAMIC: dict[str, Any] = {
    "train.dynamic_batch_enable": True,
    "train.max_tokens_per_gpu": fits.BUDGETS[True],
    "rollout.max_tokens_per_gpu": fits.BUDGETS[False],
}
PACKED: dict[str, Any] = {"ds.packing_samples": True, "ds.attn_implementation": "sdpa"}
"""As the command line has them beside dynamic batches, but for flash attention in place of sdpa."""


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29514")
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {"ends": {}, "passes": {}}
    for name, changes in (("padded", {}), ("packed", PACKED)):
        bench, ledger = fits.enforced(folder, name, **DYNAMIC, **changes)
        found["start"], found["ends"][name] = bench.weights[0], bench.weights[-1]
        found["passes"][name] = bench.passes
    found["steps"] = fits.against_the_oracle(bench, ledger)
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

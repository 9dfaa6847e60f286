"""What `test_leftovers_openrlhf` runs beside `leftovers.py`: `fits.py`'s run with sizes that do not divide, wrapped by
its own configuration; and what OpenRLHF makes of the same sizes alone.

    python leftover_fits.py FOLDER

What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import fits
import torch

from batchbridge import wrap
from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.openrlhf.workers import save_policy

SIZES: dict[str, dict[str, Any]] = {
    # Rollouts of 12 completions, the last one of 6.
    "one pass": {"train.batch_size": 8, "data.max_samples": 10},
    "two passes": {"train.batch_size": 9, "train.max_epochs": 2, "data.max_samples": 10},
}


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29515")
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {}
    for name, sizes in SIZES.items():
        bench, ledger = fits.enforced(folder, name.replace(" ", "_"), **sizes)
        found[name] = fits.against_the_oracle(bench, ledger)
    # Alone, in micro-batches of two: one without a token ends a native run.
    bench, ledger = fits.Bench(folder, **{**SIZES["one pass"], "train.micro_batch_size": 2}), folder / "alone"
    wrap(bench.trainer, mode="observe", ledger=ledger)
    bench.fit()
    found["alone"] = [sorted(set(step["rollout"])) for step in read_steps(ledger)]
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

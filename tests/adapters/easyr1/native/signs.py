"""What `test_signs_easyr1` runs in a process: whether a worker without flash-attn's cross entropy can be attached to.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 1 signs.py FOLDER [SETTINGS]

FOLDER/policy is the tiny policy. Leaves FOLDER/signs.json: reasons by name.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import json
import sys
from pathlib import Path

import torch
from gradients import CASES, Bench, spec_of
from verl.utils import torch_functional

from batchbridge.errors import CannotAttach
from batchbridge_easyr1.engine import install, remove


def main(folder: Path, settings: str = "{}") -> None:
    bench, reasons = Bench(folder, json.loads(settings)), {}
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = False  # EasyR1's own fallback
    try:
        install(bench.worker, bench.orders(spec_of(CASES[0], "token_mean"), CASES[0]))
    except CannotAttach as refusal:
        reasons = dict(refusal.reasons)
    remove(bench.worker)
    (folder / "signs.json").write_text(json.dumps(reasons), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

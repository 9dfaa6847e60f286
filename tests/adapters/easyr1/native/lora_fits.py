"""What `test_lora_easyr1` runs, one process per rank: EasyR1's real `RayPPOTrainer.fit` with LoRA.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 lora_fits.py FOLDER NAME...

As fits.py, which it takes the hand from that multiplies a loss; and as image_fits.py, where the policy in FOLDER reads
images.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fits import times_seven_from_step_3

sys.path.insert(0, str(Path(__file__).parent.parent))

from lora_proofs import CONTINUES, FITS, LORA

from batchbridge import unwrap, wrap
from batchbridge_on_cpu.easyr1 import pictures
from batchbridge_on_cpu.easyr1.local import trainer


def fit(folder: Path, name: str) -> None:
    mode, settings = FITS[name]
    ledger = folder / CONTINUES.get(name, name)
    os.environ["BATCHBRIDGE_WEIGHTS"] = str(folder / f"{name}-weights")
    words = pictures.arguments(folder) if (folder / "prompts.parquet").exists() else []
    words += [*(f"{key}={value}" for key, value in LORA.items()), *settings]
    torch.manual_seed(1)  # EasyR1 draws an adapter's first weights from a generator that it never seeds
    made = trainer(folder, [*words, f"trainer.save_checkpoint_path={ledger}-checkpoints"])
    wrap(made, mode=mode, ledger=ledger)
    made.init_workers()
    if name.endswith("tampered with"):
        times_seven_from_step_3(made.actor_rollout_ref_wg.worker)
    made.fit()
    made.actor_rollout_ref_wg.worker.rollout_sharding_manager.load_vllm_and_sync_weights()
    unwrap(made)


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        fit(folder, name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""What `test_images_easyr1` runs, one process per rank: EasyR1's real `RayPPOTrainer.fit` on prompts with images.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 image_fits.py FOLDER NAME...

As fits.py; the model and the prompts of `batchbridge_on_cpu.easyr1.pictures.prepare` are in FOLDER.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import os
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

from image_proofs import CONTINUES, FITS

from batchbridge import unwrap, wrap
from batchbridge_on_cpu.easyr1 import pictures
from batchbridge_on_cpu.easyr1.local import trainer


def fit(folder: Path, name: str) -> None:
    mode, settings = FITS[name]
    ledger = folder / CONTINUES.get(name, name)
    os.environ["BATCHBRIDGE_WEIGHTS"] = str(folder / f"{name}-weights")
    checkpoints = f"trainer.save_checkpoint_path={ledger}-checkpoints"
    made = trainer(folder, [*pictures.arguments(folder), *settings, checkpoints])
    wrap(made, mode=mode, ledger=ledger)
    made.init_workers()
    made.fit()
    worker = made.actor_rollout_ref_wg.worker
    worker.rollout_sharding_manager.load_vllm_and_sync_weights()
    unwrap(made)
    if "_process_multi_modal_inputs" in vars(worker):
        raise AssertionError("unwrap left a worker's images to us")


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        fit(folder, name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""What `test_fits_easyr1` runs, one process per rank: EasyR1's real `RayPPOTrainer.fit` and real workers, without Ray.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 fits.py FOLDER NAME...

Each NAME leaves FOLDER/NAME (the ledger), FOLDER/NAME-weights and FOLDER/NAME-checkpoints.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

from proofs import CONTINUES, FITS, LIKE, TAMPERED_WITH

from batchbridge import unwrap, wrap
from batchbridge.errors import CannotAttach
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read_source
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_on_cpu.easyr1.local import trainer


def spec_of(made: Any) -> Spec:
    """What the trainer's own configuration means."""
    adapter = EasyR1Adapter()
    source, context = adapter.source_of(made)
    spec = read_source(source, adapter, context).spec
    assert spec is not None
    return spec


def fit(folder: Path, name: str) -> Any:
    mode, settings = FITS[name]
    ledger = folder / CONTINUES.get(name, name)
    checkpoints = f"trainer.save_checkpoint_path={ledger}-checkpoints"
    os.environ["BATCHBRIDGE_WEIGHTS"] = str(folder / f"{name}-weights")
    os.environ["BATCHBRIDGE_SEEDS"] = str(folder / f"{name}-seeds")
    made = trainer(folder, [*settings, checkpoints], sgd=name == "sgd")
    like = None if not name.startswith("like") else spec_of(made).replace(**LIKE)
    if name == "seq":  # also after the workers stand
        made.init_workers()
        wrap(made, mode=mode, ledger=ledger)
    else:
        wrap(made, like=like, mode=mode, ledger=ledger)
        made.init_workers()
    if name == TAMPERED_WITH:
        times_seven_from_step_3(made.actor_rollout_ref_wg.worker)
    made.fit()
    if name == "seq":
        refused_again(made)
    worker = made.actor_rollout_ref_wg.worker
    worker.rollout_sharding_manager.load_vllm_and_sync_weights()
    unwrap(made)
    left = [key for key in ("_balance_batch", "_make_batch_data", "batchbridge") if key in vars(made)]
    left += [key for key in ("update_policy", "_optimizer_step") if key in vars(worker.actor)]
    if left or "batchbridge" in vars(worker):
        raise AssertionError(f"unwrap left {left}")
    return made


def times_seven_from_step_3(worker: Any) -> None:
    """Multiplies the policy loss of EasyR1's own loop by 7, from the fourth optimizer step on."""
    scope = worker.batchbridge._native_update.__func__.__globals__
    native, done = scope["compute_policy_loss"], []
    worker.optimizer.register_step_post_hook(lambda *_: done.append(1))

    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return value * (7 if len(done) >= 3 else 1), metrics

    scope["compute_policy_loss"] = loss


def refused_again(made: Any) -> None:
    """A second `fit` natively begins at step 0; wrapped, it is refused before anything is generated."""
    try:
        made.fit()
    except CannotAttach as error:
        if "begun" in error.reasons:
            return
        raise
    raise AssertionError("a second fit trained")


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        fit(folder, name)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

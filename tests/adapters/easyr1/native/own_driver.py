"""A user's own launch code: EasyR1's `RayPPOTrainer` built in the driver, wrapped after its workers started, unwrapped.

    python own_driver.py FOLDER RANKS SETTING...    (folder and environment: batchbridge_on_cpu.easyr1.scripted)

Leaves FOLDER/report.json and FOLDER/ledger.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import ray

from batchbridge import unwrap, wrap
from batchbridge_on_cpu.easyr1.local import configuration, reward_manager

PATCHED = ("_balance_batch", "_make_batch_data", "train_dataloader", "batchbridge")


def build(folder: Path, ranks: int, settings: list[str]) -> Any:
    """As EasyR1's `Runner.run` does it. Source: EasyR1 trainer/main.py."""
    from verl.single_controller.ray import RayWorkerGroup
    from verl.trainer.data_loader import create_dataloader
    from verl.trainer.ray_trainer import RayPPOTrainer, ResourcePoolManager, Role
    from verl.utils.tokenizer import get_tokenizer
    from verl.workers.fsdp_workers import FSDPWorker

    config = configuration(folder, ranks, settings)
    tokenizer = get_tokenizer(config.worker.actor.model.model_path, use_fast=True)
    loaders = create_dataloader(config.data, tokenizer, None)
    rewards = ray.remote(reward_manager()).options(num_cpus=config.worker.reward.num_cpus)
    return RayPPOTrainer(
        config=config,
        tokenizer=tokenizer,
        processor=None,
        train_dataloader=loaders[0],
        val_dataloader=loaders[1],
        role_worker_mapping={Role.ActorRolloutRef: ray.remote(FSDPWorker)},
        resource_pool_manager=ResourcePoolManager({"pool": [ranks]}, {Role.ActorRolloutRef: "pool"}),
        ray_worker_group_cls=RayWorkerGroup,
        reward_fn=rewards.remote(config.worker.reward, tokenizer),
        val_reward_fn=rewards.remote(config.worker.reward, tokenizer),
    )


def main(folder: Path, ranks: int, settings: list[str]) -> None:
    ray.init()
    trainer = build(folder, ranks, settings)
    trainer.init_workers()
    own = [name for name in PATCHED if name in vars(trainer)]
    wrap(trainer, ledger=folder / "ledger")
    report: dict[str, Any] = {"changes": [change.attribute for change in trainer.batchbridge.changes]}
    wrap(trainer, ledger=folder / "ledger")
    report["wrapped_twice"] = [change.attribute for change in trainer.batchbridge.changes]
    interrupted(trainer)
    wrap(trainer, ledger=folder / "ledger")
    trainer.fit()
    unwrap(trainer)
    report["left"] = [name for name in PATCHED if name in vars(trainer) and name not in own]
    for left in ray.get([worker.__ray_call__.remote(patched) for worker in trainer.actor_rollout_ref_wg.workers]):
        report["left"] += left
    report["dead"] = unwrapped_without_a_worker(trainer)
    report["left"] += [name for name in PATCHED if name in vars(trainer) and name not in own]
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    ray.shutdown()


def interrupted(trainer: Any) -> None:
    """A wrapped `fit` that ends with Ctrl-C before its first rollout."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    native, trainer._load_checkpoint = trainer._load_checkpoint, interrupt  # the first thing that fit() does
    try:
        trainer.fit()
    except KeyboardInterrupt:
        trainer._load_checkpoint = native


def unwrapped_without_a_worker(trainer: Any) -> list[str]:
    """Kills the last training worker of a wrapped trainer, and unwraps it: the warnings."""
    wrap(trainer, mode="observe")
    worker = trainer.actor_rollout_ref_wg.workers[-1]
    ray.kill(worker)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:  # the kill is only asked for: a call may still be answered
            ray.get(worker.__ray_call__.remote(patched))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        unwrap(trainer)
    return [str(one.message) for one in warned]


def patched(worker: Any) -> list[str]:
    """What of ours is left in a training worker."""
    (inner,) = (held for held in worker.worker_dict.values() if getattr(held, "actor", None) is not None)
    left = [name for name in ("update_policy", "_optimizer_step") if name in vars(inner.actor)]
    return left + [name for name in ("batchbridge",) if name in vars(inner)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

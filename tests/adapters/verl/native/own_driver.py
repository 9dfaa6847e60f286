"""A user's own launch code: `RayPPOTrainer` built in the driver, wrapped after its workers started, and unwrapped.

    python own_driver.py FOLDER        (what batchbridge_on_cpu.verl.scripted.prepare made)

Leaves FOLDER/report.json and FOLDER/ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from batchbridge_on_cpu.verl.scripted import environment, overrides

os.environ.update(environment())

import ray

from batchbridge import unwrap, wrap
from batchbridge.errors import CannotAttach
from batchbridge.kit.versions import holds


def build(folder: Path) -> Any:
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.single_controller.ray import RayWorkerGroup
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.config import omega_conf_to_dataclass

    try:
        from verl.trainer.main_ppo_v0 import BaseTaskRunner
        from verl.trainer.ppo.utils import create_rl_dataset
    except ModuleNotFoundError:  # verl 0.8.0
        from verl.trainer.main_ppo import TaskRunner as BaseTaskRunner
        from verl.trainer.main_ppo import create_rl_dataset

    more = ["trainer.use_v1=False"] if holds(">=0.9.0", verl.__version__) else []
    more += ["trainer.total_training_steps=1"]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=[*overrides(folder, 1), *more])
    OmegaConf.resolve(config)
    options: Any = OmegaConf.to_container(config.ray_kwargs.ray_init)
    options["runtime_env"] = {"env_vars": {name: os.environ[name] for name in environment({})}}
    ray.init(**options)
    runner = BaseTaskRunner()
    runner.add_actor_rollout_worker(config)
    runner.add_reward_model_resource_pool(config)
    tokenizer = omega_conf_to_dataclass(config.actor_rollout_ref.model).tokenizer
    pools = runner.init_resource_pool_mgr(config)
    prompts = [
        create_rl_dataset(config.data.train_files, config.data, tokenizer, None, train) for train in (True, False)
    ]
    return RayPPOTrainer(
        config=config,
        tokenizer=tokenizer,
        role_worker_mapping=runner.role_worker_mapping,
        resource_pool_manager=pools,
        ray_worker_group_cls=RayWorkerGroup,
        train_dataset=prompts[0],
        val_dataset=prompts[1],
    )


def main(folder: Path) -> None:
    trainer = build(folder)
    trainer.init_workers()
    wrap(trainer, ledger=folder / "ledger")
    report = {"changes": [change.attribute for change in trainer.batchbridge.changes]}
    wrap(trainer, ledger=folder / "ledger")
    report["wrapped_once"] = [change.attribute for change in trainer.batchbridge.changes]
    trainer.fit()
    agents = trainer.async_rollout_manager.agent_loop_workers
    report["hand_seeds"] = ray.get([agent.__ray_call__.remote(hands_seeds) for agent in agents])
    report["second"] = second(trainer, folder)
    unwrap(trainer)
    report["still_hand_seeds"] = ray.get([agent.__ray_call__.remote(hands_seeds) for agent in agents])
    workers = ray.get([worker.__ray_call__.remote(patched) for worker in trainer.actor_rollout_wg.workers])
    report["left"] = [name for name in ("_balance_batch", "batchbridge") if name in vars(trainer)] + workers
    report["again"] = again(trainer, folder)
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    ray.shutdown()


def second(trainer: Any, folder: Path) -> list[str]:
    """Trains once more. Natively fit() begins at step 0 again: refused before anything is generated, until the trainer
    is wrapped once more."""
    try:
        trainer.fit()
    except CannotAttach as error:
        wrap(trainer, ledger=folder / "second")
        trainer.fit()
        return list(error.reasons)
    return []


def again(trainer: Any, folder: Path) -> dict[str, Any]:
    """Wraps a trainer whose fit() was interrupted, and unwraps it when a worker is dead."""

    def interrupted() -> None:
        try:
            wrap(trainer, mode="observe")
        except CannotAttach as error:
            said.extend(error.reasons)
        raise KeyboardInterrupt

    said: list[str] = []
    trainer._load_checkpoint = interrupted  # the first thing that fit() does
    try:
        trainer.fit()
    except KeyboardInterrupt:
        del trainer._load_checkpoint
    wrap(trainer, mode="observe", ledger=folder / "again")
    mode = trainer.batchbridge.mode
    (worker,) = trainer.actor_rollout_wg.workers
    ray.kill(worker)
    with contextlib.suppress(ray.exceptions.RayActorError):
        while True:  # the kill is only asked for: a call may still be answered
            ray.get(worker.__ray_call__.remote(patched))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        unwrap(trainer)
    left = [name for name in ("init_workers", "_get_gen_batch", "batchbridge") if name in vars(trainer)]
    return {"inside": said, "after": mode, "warned": [str(one.message) for one in warned], "left": left}


def patched(worker: Any) -> list[str]:
    (inner,) = worker.worker_dict.values()
    return [name for name in ("train_batch", "optimizer_step") if name in vars(inner.actor.engine)]


def hands_seeds(agent: Any) -> bool:
    return "_run_agent_loop" in vars(agent)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

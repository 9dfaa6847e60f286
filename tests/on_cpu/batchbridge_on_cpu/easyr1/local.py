"""EasyR1's real trainer and real workers without Ray: every rank runs the same `fit`, its worker group computes this
rank's rows and gathers the others'.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 SCRIPT       (`cpu.start` first)

What it replaces beside `cpu`: Ray's actors, the reward manager's process, the data loader's worker processes, and the
validation at the end. For tests; the stock entry is run by `scripted`.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchbridge.kit.step_driver import StepDriver
from batchbridge_on_cpu.easyr1.scripted import arguments
from batchbridge_on_cpu.easyr1.steps import optimizer

GATHERED = ("generate_sequences", "compute_log_probs", "compute_ref_log_probs", "update_actor")
EVERYWHERE = ("prepare_rollout_engine", "release_rollout_engine", "save_checkpoint", "load_checkpoint")


class LocalActor:
    """Stands for the process of one rank; what it is called with runs there, when the answer is asked for."""

    def __init__(self, rank: int, worker: Any) -> None:
        self.rank, self.worker = rank, worker
        self.__ray_call__ = types.SimpleNamespace(remote=functools.partial(_Call, self))


class _Call:
    """What `remote` gives."""

    def __init__(self, actor: LocalActor, function: Callable[..., Any], *values: Any) -> None:
        self.actor, self.function, self.values = actor, function, values


def answers(asked: Any) -> Any:
    """In place of `ray.get`: every rank runs its own call, while the others run theirs."""
    import torch.distributed as dist

    calls = asked if isinstance(asked, list) else [asked]
    if not calls or not all(isinstance(call, _Call) for call in calls):
        return asked
    given = [[call.values for call in calls]]
    dist.broadcast_object_list(given, src=0)  # one driver's orders: every rank drives here
    mine: dict[int, tuple[Any, BaseException | None]] = {}
    for call, values in zip(calls, given[0], strict=True):
        if call.actor.rank == dist.get_rank():
            try:
                mine[call.actor.rank] = call.function(call.actor.worker, *values), None
            except Exception as error:
                mine[call.actor.rank] = None, error
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    said = {rank: answer for part in parts for rank, answer in part.items()}
    for _, failed in said.values():
        if failed is not None:
            raise failed
    found = [said[call.actor.rank][0] for call in calls]
    return found if isinstance(asked, list) else found[0]


class LocalGroup:
    """In place of EasyR1's `RayWorkerGroup`."""

    def __init__(self, worker: Any) -> None:
        import torch.distributed as dist

        self.worker, self.world_size = worker, dist.get_world_size()
        self.workers = [LocalActor(rank, worker) for rank in range(self.world_size)]
        for name in GATHERED:
            setattr(self, name, functools.partial(self._gather, name))
        for name in EVERYWHERE:
            setattr(self, name, getattr(worker, name))

    def _gather(self, name: str, data: Any) -> Any:
        import torch.distributed as dist
        from verl.protocol import DataProto

        parts: list[Any] = [None] * self.world_size
        mine = getattr(self.worker, name)(data.chunk(self.world_size)[dist.get_rank()])
        dist.all_gather_object(parts, mine)
        return DataProto.concat(parts)


def configuration(folder: Path, ranks: int, more: Sequence[str]) -> Any:
    """EasyR1's `PPOConfig` of the scripted run, as its entry makes it; `more` as on the command line."""
    from omegaconf import OmegaConf
    from verl.trainer.config import PPOConfig

    words = [*arguments(folder, ranks), *more]
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PPOConfig()), OmegaConf.from_dotlist(words)))
    config.deep_post_init()
    return config


def reward_manager() -> Any:
    """The class that EasyR1's entry takes for a function of whole batches; 0.3.2 has one for each kind."""
    from verl.workers import reward

    return getattr(reward, "AutoRewardManager", None) or reward.BatchFunctionRewardManager


def trainer(folder: Path, more: Sequence[str], *, sgd: bool = False) -> Any:
    """A `RayPPOTrainer` of the scripted run, not initialised; settings as on the command line.

    sgd: in place of AdamW, which hides uniform scaling; see `steps`.
    """
    import ray
    import torch.distributed as dist
    from verl.trainer import data_loader, ray_trainer
    from verl.utils.tokenizer import get_processor, get_tokenizer
    from verl.workers.fsdp_workers import FSDPWorker

    if not dist.is_initialized():
        dist.init_process_group()
    ray.get = answers
    if not hasattr(StepDriver.save, "__wrapped__"):  # all ranks drive here
        StepDriver.save = _once(StepDriver.save)  # type: ignore[method-assign]
    loader = data_loader.StatefulDataLoader
    data_loader.StatefulDataLoader = lambda **options: loader(**{**options, "num_workers": 0})
    config = configuration(folder, dist.get_world_size(), more)
    tokenizer = get_tokenizer(config.worker.actor.model.model_path, use_fast=True)
    processor = get_processor(config.worker.actor.model.model_path)
    loaders = data_loader.create_dataloader(config.data, tokenizer, processor)
    data_loader.StatefulDataLoader = loader

    def init_workers() -> None:
        worker = FSDPWorker(copy.deepcopy(config.worker), "actor_rollout_ref")  # it changes its copy
        with optimizer("sgd" if sgd else "adamw"):
            worker.init_model()
        made.actor_rollout_ref_wg = LocalGroup(worker)

    rewards = types.SimpleNamespace(compute_reward=types.SimpleNamespace(remote=_rewards(config, tokenizer)))
    made = ray_trainer.RayPPOTrainer(
        config=config,
        tokenizer=tokenizer,
        processor=processor,
        train_dataloader=loaders[0],
        val_dataloader=loaders[1],
        role_worker_mapping={},
        resource_pool_manager=types.SimpleNamespace(get_num_gpus=dist.get_world_size),
        reward_fn=rewards,
        val_reward_fn=rewards if config.trainer.val_freq > 0 else None,  # EasyR1 evaluates wherever it has one
    )
    made.init_workers = init_workers  # of the object: a class of its own would be other code than EasyR1's
    return made


def _rewards(config: Any, tokenizer: Any) -> Callable[[Any], Any]:
    compute: Callable[[Any], Any] = reward_manager()(config.worker.reward, tokenizer).compute_reward
    return compute


def _once(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def first_rank_alone(*values: Any, **more: Any) -> None:
        import torch.distributed as dist

        if dist.get_rank() == 0:
            save(*values, **more)
        dist.barrier()

    return first_rank_alone

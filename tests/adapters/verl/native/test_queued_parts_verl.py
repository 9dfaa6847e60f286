"""L2: what verl 0.9.1's own rollouter, queue and trainer of fully_async_policy do with the columns of `queued`.

No Ray is started: the objects are verl's classes without their actors, in one process, and run their own feeding of
samples, generation of one sample, queue, and assembling of a batch. Stand-ins are the worker that generates, the
workers beside the engines, and the training worker's list of what was handed over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.kit.patches import Patches
from batchbridge_verl import queued
from batchbridge_verl.engine import WEIGHTS_OF, column

pytestmark = pytest.mark.skipif(importlib.metadata.version("verl") != "0.9.1", reason="read on 0.9.1")
PROGRAM = "verl.experimental.fully_async_policy"
PROMPTS, GROUP, TAKEN = 6, 2, 2
"""Of the dataset; completions of a prompt; prompts of a rollout."""


def own(module: str, name: str) -> Any:
    """A class of verl's without its actor."""
    return getattr(importlib.import_module(f"{PROGRAM}.{module}"), name).__ray_metadata__.modified_class


def empty(kind: Any, **attributes: Any) -> Any:
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


class Asked:
    """A Ray actor's handle, asked in place."""

    def __init__(self, held: Any) -> None:
        self.batchbridge_weights = held
        self.__ray_call__ = SimpleNamespace(remote=self._remote)

    async def _remote(self, function: Any, *values: Any) -> Any:
        return function(self, *values)


class Client:
    """verl's queue, without a process of its own."""

    def __init__(self, queue: Any) -> None:
        self.put_sample, self.get_sample, self.get_statistics = queue.put_sample, queue.get_sample, queue.get_statistics


class Worker:
    """Generates; what it is asked for is a row per completion, and what it answers says of itself that it is of
    version 99."""

    def __init__(self) -> None:
        self.generate_sequences = SimpleNamespace(remote=self._generate)
        self.asked: list[list[int]] = []

    def _generate(self, prompts: Any) -> Any:
        import numpy as np
        import torch
        from verl import DataProto

        self.asked.append([int(sample) for sample in prompts.non_tensor_batch[SAMPLE]])
        size = len(prompts)
        tensors = {name: torch.ones(size, 3, dtype=torch.long) for name in ("attention_mask", "response_mask")}
        said = {name: np.array([99] * size, dtype=object) for name in ("min_global_steps", "max_global_steps")}
        metrics = [{"generate_sequences": 0.0, "tool_calls": 0.0}] * size
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        answer.set_result(DataProto.from_dict(tensors=tensors, non_tensors=said, meta_info={"metrics": metrics}))
        return SimpleNamespace(future=lambda: answer)


@pytest.mark.filterwarnings("ignore")  # what verl warns of while it is imported
def test_verls_own_rollouter_queue_and_trainer_carry_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from omegaconf import OmegaConf
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.utils.dataset.rl_dataset import collate_fn

    config = OmegaConf.create(
        {
            "trainer": {"total_epochs": 2, "balance_batch": False},
            "actor_rollout_ref": {"rollout": {"n": GROUP, "multi_turn": {"enable": False}}},
        }
    )
    engine = Asked(SimpleNamespace(digest="start", giving=False))
    sent: dict[str, int | None] = {"start": None}
    calls = queued.workers_ray
    monkeypatch.setattr(calls, "asked", lambda workers, call, *values: [call(one, *values) for one in workers])
    monkeypatch.setattr(queued, "install_everywhere", lambda *_: [])
    monkeypatch.setattr(queued.QueuedTrainer, "arrive", lambda _: None)
    monkeypatch.setattr(queued.QueuedTrainer, "_sent", lambda _: sent)
    dataset = [{"prompt_text": f"prompt {index}"} for index in range(PROMPTS)]
    worker = Worker()

    async def run() -> list[Any]:
        queue = own("message_queue", "MessageQueue")(config, 100)
        fully = importlib.import_module(f"{PROGRAM}.fully_async_rollouter")
        manager = empty(fully.FullyAsyncAgentLoopManager, agent_loop_workers=[worker])
        numbers = dict.fromkeys(
            ("staleness_samples", "total_generated_samples", "dropped_stale_samples", "processed_sample_count"), 0
        )
        sizes = dict.fromkeys(("max_required_samples", "required_samples", "max_queue_size", "max_concurrent_samples"))
        rollouter = empty(
            own("fully_async_rollouter", "FullyAsyncRollouter"),
            **{**numbers, **sizes, "_step_generated_samples": 0, "staleness_threshold": 0.5, "active_tasks": set()},
            config=config,
            global_steps=1,
            total_rollout_steps=PROMPTS,
            async_rollout_manager=manager,
            train_dataset=dataset,
            train_dataloader=StatefulDataLoader(dataset, batch_size=1, collate_fn=collate_fn),
            pending_queue=asyncio.Queue(),
            message_queue_client=Client(queue),
        )
        trainer = empty(
            own("fully_async_trainer", "FullyAsyncTrainer"),
            config=config,
            tokenizer=None,
            required_samples=TAKEN,
            dynamic_schedule_enabled=False,
            current_param_version=0,
            trigger_parameter_sync_step=1,
            rollouter=rollouter,
            _step_wait_times=[],
            _step_wait_samples=[],
            message_queue_client=Client(queue),
            actor_rollout_wg=SimpleNamespace(workers=[]),
            checkpoint_manager=SimpleNamespace(replicas=[SimpleNamespace(workers=[engine])]),
        )
        assert queued.is_fully_async(trainer)
        assert not queued.is_fully_async(rollouter)
        patches = Patches()
        queued.QueuedTrainer(trainer, SimpleNamespace(steps_per_rollout=2), patches)  # type: ignore[arg-type]  # all it reads
        await rollouter._feed_samples()
        found = []
        for index in range(PROMPTS):
            if index == 3:  # a hand-over, in the middle of a rollout
                sent["later"], engine.batchbridge_weights.digest = 2, "later"
            await rollouter._process_single_sample_streaming(await rollouter.pending_queue.get())
        for _ in range(PROMPTS // TAKEN):
            found.append((await trainer._get_samples_from_queue())[1])
        await queue.put_sample(None)
        assert (await trainer._get_samples_from_queue()) == (None, None)
        return found

    batches = asyncio.run(run())
    assert worker.asked == [[0, 1]] * PROMPTS
    rows = []
    for batch in batches:
        sent_to_workers = batch.to_tensordict()
        assert not {queued.BEGUN, queued.ENDED} & set(sent_to_workers.keys())
        names = (ROLLOUT, PROMPT, POSITION, SAMPLE, WEIGHTS_OF)
        rows += [tuple(map(int, row)) for row in zip(*(column(sent_to_workers, name) for name in names), strict=True)]
        assert set(batch.non_tensor_batch["max_global_steps"]) == {99}
    assert rows == [
        (prompt // TAKEN, prompt, prompt % TAKEN, sample, int(prompt >= 3))
        for prompt in range(PROMPTS)
        for sample in range(GROUP)
    ]

"""Inputs of an unwrapped run of verl in mode verify, in the trainer's process: rows in a stand-in for TransferQueue
(V1), and a batch as V0 sends it. The workers' side: `test_gradients_verl`; whole runs: `test_runs_verl`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from batchbridge.errors import BatchDrift
from batchbridge.kit.carried_rows import ComputedRows
from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.meaning.spec import Advantage
from batchbridge_verl.advantages import held_in_queue, keys_of_rows
from batchbridge_verl.columns import CARRIED, told_by_keys
from batchbridge_verl.driver import read_by_producers
from batchbridge_verl.observe import VerlObserver

RULE = Advantage(baseline="group_mean", scale="none")
HELD = HeldAdvantages(RULE, RULE, 2)
REWARDS = {"a_0_0": 1.0, "a_1_0": 0.0, "b_0_0": 3.0, "b_1_0": 5.0}
TRAINER = SimpleNamespace(config=SimpleNamespace(algorithm=SimpleNamespace(use_kl_in_reward=False)))


class Queue:
    """A stand-in for TransferQueue: columns of rows by key, nested."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        for row, (key, reward) in enumerate([*REWARDS.items(), ("pad7_0_0", 0.0)]):
            mean = {"a": 0.5, "b": 4.0}.get(key[0], 0.0)
            length = 2 + row % 3
            self.rows[key] = {
                "rm_scores": torch.nn.functional.pad(torch.tensor([reward]), (length - 1, 0)),
                "response_mask": torch.ones(length, dtype=torch.long),
                "advantages": torch.full((length,), reward - mean),
                "old_log_probs": -0.1 * torch.arange(1, length + 1),
                "input_ids": torch.arange(length + 3) + 10 * row,
                POSITION: "ab".find(key[0]),
                SAMPLE: int(key.split("_")[1]),
            }

    def get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        found = TensorDict({}, batch_size=len(keys))
        for name in select_fields:
            values = [self.rows[key].get(name) for key in keys]
            if isinstance(values[0], torch.Tensor):
                found[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            elif values[0] is not None:
                tu.assign_non_tensor_stack(found, name, values)
        return found


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    made = Queue()
    monkeypatch.setattr(transfer_queue, "kv_batch_get", made.get)
    return made


def batch_of(queue: Queue) -> Any:
    return SimpleNamespace(keys=[*reversed(queue.rows)], partition_id="train")


def test_advantages_in_the_queue_are_what_rewards_give_in_whatever_order_rows_come(queue: Queue) -> None:
    held_in_queue(TRAINER, batch_of(queue), HELD, 2, 4)
    queue.rows["b_0_0"]["advantages"] *= 1.05
    with pytest.raises(BatchDrift, match=r"step 4 .* advantages: completion . of the rollout has the advantage -1.05"):
        held_in_queue(TRAINER, batch_of(queue), HELD, 2, 4)
    held_in_queue(TRAINER, batch_of(queue), HeldAdvantages(RULE, RULE, 2, allowed=True), 2, 4)


def test_rows_that_exchange_their_advantages_are_noticed(queue: Queue) -> None:
    first, second = queue.rows["a_0_0"], queue.rows["a_1_0"]
    first["advantages"], second["advantages"] = first["advantages"] * -1, second["advantages"] * -1
    with pytest.raises(BatchDrift, match="in its advantages"):
        held_in_queue(TRAINER, batch_of(queue), HELD, 2, 4)


@pytest.mark.parametrize("key", ["a_0_1", "c_0_0"])
def test_a_rollout_of_torn_groups_or_several_outputs_is_not_judged(queue: Queue, key: str) -> None:
    queue.rows[key] = {**queue.rows["a_0_0"], "advantages": torch.full((2,), 9.0)}
    held_in_queue(TRAINER, batch_of(queue), HELD, 2, 4)


def test_digests_are_of_rows_without_fillers_and_without_numbers_that_several_have(queue: Queue) -> None:
    batch = batch_of(queue)
    keys = keys_of_rows(batch)
    assert sorted(keys) == sorted(REWARDS)
    told = told_by_keys(batch, keys)
    assert told.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert told[0, 0].keys() == {"input_ids", "response_mask", "advantages", "old_log_probs"}
    before = dict(told)
    queue.rows["b_1_0"]["old_log_probs"] -= 0.05
    assert {row for row, found in told_by_keys(batch, keys).items() if found != before[row]} == {(1, 1)}
    queue.rows["b_0_0"][POSITION] = queue.rows["b_1_0"][POSITION] = 0
    assert told_by_keys(batch, keys) == {}


def observer() -> Any:
    """V0's, whose rollout in hand is the second of two steps each."""
    made: Any = object.__new__(VerlObserver)
    made._orders, made._held, made.receipts = SimpleNamespace(steps_per_rollout=2), HELD, [object()]
    made._trainer = SimpleNamespace(
        global_steps=2,
        config=SimpleNamespace(
            algorithm=SimpleNamespace(adv_estimator="grpo"),
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=2, temperature=1.0)),
        ),
    )
    return made


def sent_by_v0() -> Any:
    """A batch of V0's: responses padded, tokens too."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    rewards = torch.tensor([1.0, 0.0, 3.0, 5.0])
    found = TensorDict(
        {
            "input_ids": torch.arange(20).reshape(4, 5),
            "attention_mask": torch.cat([torch.ones(4, 2, dtype=torch.long), mask], 1),
            "responses": mask.clone(),
            "response_mask": mask,
            "token_level_rewards": torch.nn.functional.pad(rewards[:, None], (0, 2)),
            "advantages": torch.tensor([0.5, -0.5, -1.0, 1.0])[:, None] * mask,
            "old_log_probs": -0.1 * mask,
        },
        batch_size=4,
    )
    tu.assign_non_tensor_stack(found, POSITION, [0, 0, 1, 1])
    tu.assign_non_tensor_stack(found, SAMPLE, [0, 1, 0, 1])
    return found


def computed() -> ComputedRows:
    rows, marks = ComputedRows(CARRIED), {POSITION: [0, 0, 1, 1], SAMPLE: [0, 1, 0, 1]}
    rows.computed(SimpleNamespace(batch=sent_by_v0(), non_tensor_batch=marks))
    return rows


@pytest.mark.parametrize("name", ["advantages", "old_log_probs", "input_ids", "response_mask"])
def test_what_v0_sends_is_what_its_advantages_were_computed_of(name: str) -> None:
    sent: list[Any] = []
    update = observer()._update(computed(), HELD, sent.append)
    update(sent_by_v0())
    assert tu.get(sent[0], ROW_DIGESTS).keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    other = sent_by_v0()
    other[name][1, 2] += 1
    with pytest.raises(BatchDrift, match=f"step 2 .* inputs: {name} of the rollout's prompt 0 sample 1 is not what"):
        observer()._update(computed(), HELD, sent.append)(other)
    assert len(sent) == 1


def test_advantages_of_v0_that_rewards_do_not_give_end_the_run_before_they_are_sent() -> None:
    other = sent_by_v0()
    other["advantages"] *= 1.05
    with pytest.raises(BatchDrift, match=r"step 2 .* advantages: completion 0 of the rollout has the advantage 0.525"):
        observer()._update(ComputedRows(CARRIED), HELD, lambda batch: None)(other)


def test_a_setting_that_changes_ends_the_run_before_its_rollout() -> None:
    made = observer()
    made._settings = ProducerSettings(lambda: read_by_producers(made._trainer.config))
    made._begin()
    made._trainer.config.actor_rollout_ref.rollout.temperature = 1.3
    with pytest.raises(BatchDrift, match=r"step 2 .* settings: actor_rollout_ref.rollout.temperature was 1.0 .* 1.3"):
        made._begin()

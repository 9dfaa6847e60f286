"""The parts of verl's two trainers on the plan that need no verl: which rollout it is, and whose row is whose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.kit.identified_rows import PROMPT, SAMPLE, SEED
from batchbridge_verl import observe, trainer_v0, trainer_v1


class Plan:
    """A plan whose rollout N has prompts 10 N and 10 N + 1."""

    completions_per_prompt = 2

    def rollout(self, index: int) -> Any:
        return SimpleNamespace(index=index, prompts=(10 * index, 10 * index + 1))

    def sampling_seeds(self, index: int) -> tuple[int, ...]:
        return (100 * index, 100 * index + 50)


class Driver:
    plan = Plan()
    critic = None

    def __init__(self) -> None:
        self.expected: list[Any] = []

    def expect_rollout(self, rollout: int, arrived: Any) -> None:
        self.expected.append((rollout, dict(arrived)))


def planned(kind: type, **trainer: Any) -> Any:
    made: Any = object.__new__(kind)
    made._driver, made._trainer, made._rows = Driver(), SimpleNamespace(**trainer), None
    return made


def test_the_v0_trainers_rows_are_found_by_position_and_sample_whatever_their_order() -> None:
    made = planned(trainer_v0.VerlTrainerV0)
    columns = ([3] * 4, [1, 0, 1, 0], [1, 0, 0, 1])
    rows = made._identify(columns, [7, 5, 6, 8])
    assert rows.index == 3
    assert rows.places == {(0, 0): 1, (0, 1): 3, (1, 0): 2, (1, 1): 0}
    assert rows.costs == {(0, 0): 5, (0, 1): 8, (1, 0): 6, (1, 1): 7}
    assert made._driver.expected == [(3, rows.places)]


def test_the_v1_trainers_first_step_asks_for_the_plans_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(trainer_v1.VerlTrainerV1, global_steps=1)
    monkeypatch.setattr(
        trainer_v1.VerlTrainerV1, "_batch_of", lambda self, prompts, uids, columns: (prompts, uids, columns)
    )
    prompts, uids, columns = made._prompts()
    assert (prompts, uids) == ((0, 1), ["r0p0", "r0p1"])
    assert columns[SEED] == [0, 50]
    made._trainer.global_steps = 3
    assert made._prompts()[1] == ["r2p0", "r2p1"]


def test_the_v1_trainer_takes_what_was_generated_for_this_rollout_alone() -> None:
    made = planned(trainer_v1.VerlTrainerV1, global_steps=2)
    keys = ["r1p0_0_0", "r0p1_1_0", "r1p1_1_0"]
    batch = SimpleNamespace(keys=keys, tags=[{"seq_len": length} for length in (4, 5, 6)])
    assert made._arrived(batch) == {(0, 0): ("r1p0_0_0", 4), (1, 1): ("r1p1_1_0", 6)}


def test_an_observed_v0_rollouts_samples_count_within_their_prompt() -> None:
    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return 4

    asked = Batch(non_tensor_batch={PROMPT: [5, 5, 9, 9], observe.ROLLOUT: [0] * 4, observe.POSITION: [0, 0, 1, 1]})
    native = observe.numbered(lambda prompts: SimpleNamespace(non_tensor_batch={}), 2)
    output = native(asked)
    assert [*output.non_tensor_batch[SAMPLE]] == [0, 1, 0, 1]
    assert [*output.non_tensor_batch[PROMPT]] == [5, 5, 9, 9]

"""One rank's recorder: the comparison with the plan, on every rank together, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.errors import BatchDrift
from batchbridge.kit.workers import Orders, Recorder, TrainedRow, facts, orders_of, read_off
from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read

COMMAND = [
    *("python3", "-m", "verl.trainer.main", "data.rollout_batch_size=6", "worker.rollout.n=2"),
    *("worker.actor.global_batch_size=4", "worker.actor.micro_batch_size_per_device_for_update=2"),
    *("worker.actor.dynamic_batching=false", "trainer.n_gpus_per_node=1", "trainer.max_steps=2"),
    *("worker.rollout.tensor_parallel_size=1", "algorithm.disable_kl=true"),
]
STEP = 1


def orders(mode: Any = "enforce", *more: str) -> Orders:
    reading = read([*COMMAND, *more], version="0.3.3.dev0", dataset_size=12)
    assert reading.spec is not None, reading.findings
    spec = reading.spec.replace(**{"order.last_optimizer_step": "short"})
    request = Request(spec=spec, plan=Plan(spec, 12), reading=reading, mode=mode)
    return orders_of(request, "0.3.3.dev0")


def rows_of(plan: Plan) -> list[TrainedRow]:
    """The rows of the step as they should be: every second completion is longer."""
    members = plan.step(STEP).members
    lengths = [3 + place % 2 for place in range(len(members))]
    weights = token_weights(
        plan.spec.loss.policy, [Row(tokens=length, group=place) for place, length in enumerate(lengths)]
    )
    return [
        TrainedRow(one.rollout, one.prompt, 0, one.sample, length, place, float(weight))
        for place, (one, length, weight) in enumerate(zip(members, lengths, weights, strict=True))
    ]


def recorder(given: Orders, others: Sequence[tuple[Any, ...]] = ()) -> Recorder:
    return Recorder("easyr1", given, rank=0, world_size=1, gather=lambda mine: [*mine, *others])


def compared(change: Any, *, given: Orders | None = None, objections: Sequence[str] = ()) -> None:
    made = recorder(given or orders())
    assert made.plan is not None
    made.compare(STEP, change(rows_of(made.plan)), objections)


def test_ranks_that_try_the_ledger_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    where = dataclasses.replace(orders(), ledger=tmp_path / "run" / "ledger")
    with ThreadPoolExecutor(8) as ranks:
        begun = [ranks.submit(recorder(where).begin, 0) for _ in range(200)]
    assert [each.exception() for each in begun if each.exception() is not None] == []


def test_a_planned_step_is_let_through() -> None:
    compared(lambda rows: rows)
    compared(lambda rows: rows[::-1])


@pytest.mark.parametrize(
    ("aspect", "change"),
    [
        ("membership", lambda rows: rows[:-1]),
        ("membership", lambda rows: [*rows, rows[0]]),
        ("order", lambda rows: [dataclasses.replace(rows[0], prompt=99), *rows[1:]]),
        ("weights", lambda rows: [dataclasses.replace(rows[0], weight=rows[0].weight * 1.001), *rows[1:]]),
        ("weights", lambda rows: [dataclasses.replace(rows[0], departure=0.01), *rows[1:]]),
    ],
)
def test_another_step_ends_the_run(aspect: str, change: Any) -> None:
    with pytest.raises(BatchDrift) as error:
        compared(change)
    assert error.value.aspect == aspect


def test_an_objection_ends_the_run_and_an_observed_one_goes_on() -> None:
    with pytest.raises(BatchDrift, match="twice its size"):
        compared(lambda rows: rows, objections=["the gradient has twice its size"])
    compared(lambda rows: rows[1:], given=orders("observe"))


def test_the_rows_of_all_ranks_are_compared_together() -> None:
    whole = recorder(orders())
    assert whole.plan is not None
    mine, theirs = (rows := rows_of(whole.plan))[:1], rows[1:]
    fields = ("rollout", "pass_index", "prompt", "sample", "tokens", "weight", "departure", "tolerance")
    others = [(tuple(0 if name == "pass_index" else getattr(row, name) for name in fields), None) for row in theirs]
    recorder(orders(), others).compare(STEP, mine)
    with pytest.raises(BatchDrift):
        recorder(orders()).compare(STEP, mine)


def test_a_last_step_that_is_not_whole_is_a_step_of_the_rollout() -> None:
    """Of 12 completions, 8 at a time: two steps."""
    given = orders()
    assert given.steps_per_rollout == 2  # 12 completions by 8
    assert orders("enforce", "worker.actor.ppo_epochs=2").steps_per_rollout == 4


def test_a_row_whose_tokens_weigh_differently_has_no_weight_in_the_ledger() -> None:
    row = TrainedRow(0, 0, 0, 0, 5, 0, 0.25)
    assert row.applied_weight == 0.25
    assert dataclasses.replace(row, tokens=0).applied_weight == 0.0
    assert (odd := dataclasses.replace(row, departure=1.0).applied_weight) != odd


def seen(weight: float, departure: float = 0.0) -> Any:
    """What `measuring.Measured` says of a row; that module needs torch."""
    return SimpleNamespace(weight=weight, departure=departure, tolerance=1e-5)


def test_a_filler_row_with_a_gradient_speaks_against_the_step() -> None:
    row, trained, empty = TrainedRow(0, 0, 0, 0, 5, 0, 0.0), seen(0.25), seen(0.0)
    assert read_off([[row, None]], [[trained, empty]]) == []
    assert row.weight == 0.25
    (objection,) = read_off([[row, None]], [[trained, seen(0.1, departure=0.1)]])
    assert objection.startswith("a filler row")
    with pytest.raises(ValueError, match="shorter"):
        read_off([[row, None]], [[trained]])


def written(made: Recorder, step: int) -> None:
    assert made.plan is not None
    rows = rows_of(made.plan)
    fact = facts(prompt=[1], completion=[2], trained=[0.5], old_logprobs=[-1.0], reward=1.0)
    numbers: Any = {"normaliser": None, "learning_rate": 1e-6, "gradient_norm": 1.0, "skipped": False}
    made.write(step, rows, [fact] * len(rows), **numbers)


@pytest.mark.parametrize(("step", "started"), [(0, "fresh"), (1, "resumed")])
def test_a_ledger_says_how_its_run_started_and_from_which_step_on_it_is_not_observed(
    tmp_path: Path, step: int, started: str
) -> None:
    folder = tmp_path / "ledger"
    made = recorder(dataclasses.replace(orders("observe"), ledger=folder))
    made.begin(step)
    written(made, step)
    made.end_observing("KeyError: 'x'")
    (header,) = Ledger(folder).headers
    assert (header["started"], header["at_step"]) == (started, step)
    assert f"from optimizer step {step + 1} on" in (read_steps(folder).incomplete or "")

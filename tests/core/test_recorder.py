"""One rank's recorder: the comparison with the plan, on every rank together, and what it refuses."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.errors import BatchDrift, LedgerError
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
        TrainedRow(
            *(one.rollout, one.prompt, 0, one.sample, length, place, float(weight)),
            loss=place - 1.25,
            loss_size=place + 1.25,
            micro_batch=place % 2,
        )
        for place, (one, length, weight) in enumerate(zip(members, lengths, weights, strict=True))
    ]


def recorder(given: Orders, others: Sequence[tuple[Any, ...]] = ()) -> Recorder:
    return Recorder("easyr1", given, rank=0, world_size=1, gather=lambda mine: [*mine, *others])


def compared(change: Any, *, given: Orders | None = None, objections: Sequence[str] = ()) -> None:
    made = recorder(given or orders())
    assert made.plan is not None
    rows = rows_of(made.plan)
    values = [sum(row.weight * row.loss for row in rows if row.micro_batch == number) for number in (0, 1)]
    made.compare(STEP, change(rows), objections, values=[*values, None])


def test_ranks_that_try_the_ledger_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    where = dataclasses.replace(orders(), ledger=tmp_path / "run" / "ledger")
    with ThreadPoolExecutor(8) as ranks:
        begun = [ranks.submit(recorder(where).begin, 0, lambda: None) for _ in range(200)]
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
        ("loss", lambda rows: [dataclasses.replace(rows[0], loss=rows[0].loss * 1.001), *rows[1:]]),
        ("loss", lambda rows: [dataclasses.replace(rows[0], micro_batch=1 - rows[0].micro_batch), *rows[1:]]),
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
    told = [tuple(0 if name == "pass_index" else getattr(row, name) for name in fields) for row in theirs]
    others = [(row, None, None) for row in told]
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
    assert dataclasses.replace(row, tolerance=0.1).applied_weight is None, "a tenth is closer than it is known"


def seen(weight: float, departure: float = 0.0) -> Any:
    """What `measuring.Measured` says of a row; that module needs torch."""
    return SimpleNamespace(weight=weight, departure=departure, tolerance=1e-5, loss=0.0, loss_size=0.0)


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
    made.begin(step, lambda: None)
    written(made, step)
    made.end_observing("KeyError: 'x'")
    (header,) = Ledger(folder).headers
    assert (header["started"], header["at_step"]) == (started, step)
    assert f"from optimizer step {step + 1} on" in (read_steps(folder).incomplete or "")


LOSING: dict[str, Any] = {
    "the disk is full": lambda folder: resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY)),
    "the folder is deleted": shutil.rmtree,
}


@pytest.fixture
def limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handled)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("what", LOSING)
def test_a_ledger_that_cannot_be_written_any_more_ends_and_the_run_goes_on(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ledger"
    made = recorder(dataclasses.replace(orders(), ledger=folder))
    made.begin(0, lambda: None)
    written(made, 0)
    assert capsys.readouterr().err == ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    LOSING[what](folder)
    written(made, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    told = capsys.readouterr().err
    assert "batchbridge: the run is not in its ledger from optimizer step 1 on, and the run goes on: " in told
    assert ("File too large" if what == "the disk is full" else "deleted or moved while the run wrote to it") in told
    written(made, 2)
    assert capsys.readouterr().err == "", "it is said once, and at the end"
    made.close()
    assert capsys.readouterr().err == "batchbridge: the run is not in its ledger from optimizer step 1 on\n"
    made.close()
    assert capsys.readouterr().err == ""
    if what == "the disk is full":
        assert [step["step"] for step in read_steps(folder)] == [0]


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("asked", [{"ledger_required": True}, {"mode": "observe"}])
def test_a_ledger_that_is_asked_for_ends_the_run_with_itself(tmp_path: Path, asked: dict[str, Any]) -> None:
    folder = tmp_path / "ledger"
    made = recorder(dataclasses.replace(orders(), ledger=folder, **asked))
    written(made, 0)
    shutil.rmtree(folder)
    with pytest.raises(LedgerError, match="deleted or moved while the run wrote to it"):
        written(made, 1)


def test_the_environment_asks_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not orders().ledger_required
    monkeypatch.setenv("BATCHBRIDGE_LEDGER", "required")
    assert orders().ledger_required


def test_a_ledger_of_another_run_is_a_refusal_and_not_a_loss(tmp_path: Path) -> None:
    """Of workers whose driver did not look: without it two runs would be in one file."""
    given = dataclasses.replace(orders(), ledger=tmp_path)
    written(recorder(given), 0)
    with pytest.raises(LedgerError, match="exists already"):
        written(recorder(given), 0)


def test_every_rank_hears_that_a_ledger_cannot_be_set_aside(tmp_path: Path) -> None:
    given = dataclasses.replace(orders(), ledger=tmp_path)
    first = recorder(given)
    written(first, 0)
    told: list[Any] = []

    def heard(mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        told.extend(mine)
        return list(told)

    for rank in range(2):
        made = Recorder("easyr1", given, rank=rank, world_size=2, gather=heard)
        with pytest.raises(LedgerError, match="can go on from checkpoint-3: resume from there"):
            made.begin(0, lambda: Path("checkpoint-3"))
    assert len(told) == 1, "one rank decides"

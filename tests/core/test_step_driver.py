"""The cut of a rollout into steps and forward passes, with micro-batches of fixed sizes; and the start of training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.errors import CannotAttach, LedgerError
from batchbridge.kit.step_driver import RolloutRows, StepDriver
from batchbridge.kit.workers import orders_of
from batchbridge.meaning.plan import Plan
from batchbridge.reading.read import read

COMMAND = [
    *("python3", "-m", "verl.trainer.main", "data.rollout_batch_size=6", "worker.rollout.n=2"),
    *("worker.actor.global_batch_size=2", "worker.actor.micro_batch_size_per_device_for_update=2"),
    *("worker.actor.dynamic_batching=false", "trainer.n_gpus_per_node=1", "trainer.max_steps=2"),
    *("worker.rollout.tensor_parallel_size=1", "algorithm.disable_kl=true"),
]
"""Rollouts of 12 completions, optimizer steps of 4."""


@dataclasses.dataclass
class Sizes:
    """What a framework's own micro-batches take."""

    ranks: int
    in_training: int | None
    forward: int | None


class SizedDriver(StepDriver):
    """A driver with no framework below it."""

    other_ranks = "a shard for each rank"
    sizes: Sizes

    @property
    def ranks(self) -> int:
        return self.sizes.ranks

    @property
    def rows_per_micro_batch(self) -> int | None:
        return self.sizes.in_training

    @property
    def forward_rows(self) -> int | None:
        return self.sizes.forward


def driver(sizes: Sizes) -> SizedDriver:
    reading = read(COMMAND, version="0.3.3.dev0", dataset_size=12)
    assert reading.spec is not None, reading.findings
    request = Request(spec=reading.spec, plan=Plan(reading.spec, 12), reading=reading, mode="enforce")
    made = SizedDriver(request, orders_of(request, "0.3.3.dev0"))
    made.sizes = sizes
    return made


def rollout() -> RolloutRows:
    return RolloutRows(0, {(position, sample): 3 + position for position in range(6) for sample in range(2)})


@pytest.mark.parametrize("sizes", [Sizes(2, 4, 3), Sizes(2, 4, None), Sizes(3, 1, 5), Sizes(1, None, 8)])
def test_fillers_are_enough_for_every_step_and_the_forward_passes_are_whole(sizes: Sizes) -> None:
    made, rows = driver(sizes), rollout()
    count = made.fillers_needed(rows)
    per_step = [sum(row is None for row in made.step_rows(step, rows)) for step in made.steps_of(0)]
    assert len(per_step) == 3
    assert count >= max(per_step)
    assert (len(rows.costs) + count) % (sizes.ranks * (sizes.forward or 1)) == 0
    order = made.rollout_order(rows, count)
    assert (len(order), order.count(None)) == (len(rows.costs) + count, count)


def test_a_run_goes_on_from_its_own_checkpoint_and_begins_once(tmp_path: Path) -> None:
    made = driver(Sizes(2, 2, None))
    made.save(tmp_path, 1, seen=7)
    saved = made.begin(SimpleNamespace(), tmp_path, None)
    assert (saved["optimizer_steps"], saved["ranks"], saved["rollouts"], saved["seen"]) == (3, 2, 1, 7)
    with pytest.raises(CannotAttach, match="has begun since wrap"):
        made.begin(SimpleNamespace(), tmp_path, None)
    with pytest.raises(CannotAttach, match="a shard for each rank"):
        driver(Sizes(4, 2, None)).begin(SimpleNamespace(), tmp_path, None)


def test_a_fresh_start_sets_the_ledger_aside_that_nothing_can_go_on_with(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    for rank in range(2):
        (ledger / f"rank-{rank:05d}.jsonl").write_text("{}\n", encoding="utf-8")
    (ledger / "notes.txt").write_text("of the user", encoding="utf-8")
    (tmp_path / "ledger.1").mkdir()

    def start(newest: Path | None) -> None:
        made = driver(Sizes(2, 2, None))
        made.orders = dataclasses.replace(made.orders, ledger=ledger)
        made.begin(SimpleNamespace(), None, newest)

    with pytest.raises(LedgerError, match=r"rank-00000\.jsonl: exists already, .* can go on from .*step_3: resume"):
        start(tmp_path / "step_3")
    with pytest.warns(UserWarning, match=r"over before its first checkpoint: it is now .*ledger\.2"):
        start(None)
    assert [file.name for file in ledger.iterdir()] == ["notes.txt"]
    assert sorted(file.name for file in (tmp_path / "ledger.2").iterdir()) == ["rank-00000.jsonl", "rank-00001.jsonl"]
    (ledger / "rank-00000.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"that this process began before: it is now .*ledger\.3"):
        start(tmp_path / "step_3")

"""Our code held against what EasyR1's own functions gave, without EasyR1 and without torch; `record.py` recorded it."""

from __future__ import annotations

import itertools
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.kit.step_driver import RolloutRows
from batchbridge.kit.workers import orders_of
from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.candidates import plan_of
from batchbridge.reading.read import read
from batchbridge_easyr1.behaviour import native_steps
from batchbridge_easyr1.clock import schedule_of
from batchbridge_easyr1.trainer import EasyR1Driver
from batchbridge_on_cpu.upstream_values import read as record_of
from batchbridge_on_cpu.upstream_values import unlike_proven

HERE = Path(__file__).parent
RECORD = record_of(HERE / "values.json")
VALUES = RECORD["values"]
VERSION = "0.3.3.dev0"
FLOAT32 = 2e-6
"""Relative rounding of a float32 that several operations made."""


def reading_of(*more: str, size: int) -> Any:
    command = ["python3", "-m", "verl.trainer.main", "algorithm.disable_kl=true", "trainer.n_gpus_per_node=1"]
    command += ["worker.rollout.tensor_parallel_size=1", "worker.actor.dynamic_batching=false"]
    found = read([*command, *more], version=VERSION, dataset_size=size)
    assert found.spec is not None, found.findings
    return found


def test_the_recorded_functions_are_those_that_the_adapter_is_proven_on(repository: Path) -> None:
    proven = json.loads((repository / "adapters/batchbridge_easyr1/proven.json").read_text(encoding="utf-8"))
    assert unlike_proven(RECORD, proven["verl"], VERSION) == []
    assert "workers/actor/dp_actor.py: DataParallelPPOActor.update_policy" in proven["verl"]["functions"]


# ---- learning rates


class Played:
    """A stand-in for a schedule of EasyR1's: the rates that its own function of these arguments gave."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = list(rates)


@pytest.fixture
def functional(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verl.utils.torch_functional`, whose functions give what was recorded of EasyR1's for the same arguments."""
    known = {(name, *arguments): rates for name, arguments, rates in VALUES["functions_of_rates"]}

    def played(*key: Any) -> Played:
        assert key in known, f"EasyR1's function was not recorded with {key}"
        return Played(known[key])

    utils, functions = types.ModuleType("verl.utils"), types.ModuleType("verl.utils.torch_functional")

    def constant(*, optimizer: Any, num_warmup_steps: int) -> Played:
        return played("constant", optimizer.ticks, num_warmup_steps)

    def cosine(
        *, optimizer: Any, num_warmup_steps: int, num_training_steps: int, min_lr_ratio: Any, num_cycles: float
    ) -> Played:
        return played("cosine", num_training_steps, num_warmup_steps, min_lr_ratio, num_cycles)

    names = {"get_constant_schedule_with_warmup": constant, "get_cosine_schedule_with_warmup": cosine}
    vars(functions).update(names)
    vars(utils)["torch_functional"] = functions
    for name, module in (("verl", types.ModuleType("verl")), ("verl.utils", utils)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "verl.utils.torch_functional", functions)


@pytest.mark.parametrize("one", VALUES["rates"], ids=lambda one: f"{one['ticks']}-{[*one['settings'].values()]}")
@pytest.mark.usefixtures("functional")
def test_a_schedule_of_ours_has_the_rates_of_the_one_that_easyr1_builds(one: Mapping[str, Any]) -> None:
    made = schedule_of(SimpleNamespace(**one["settings"]), SimpleNamespace(ticks=one["ticks"]), one["ticks"])
    assert made.rates == pytest.approx(one["rates"], rel=1e-12, abs=1e-15)


def test_the_recorded_rates_tell_the_schedules_apart() -> None:
    """A curve of another number of cycles, floor or warm-up is another one, wherever there are ticks to tell."""
    found = {
        json.dumps(one["rates"]): one["settings"]
        for one in VALUES["rates"]
        if one["ticks"] == 11 and one["settings"]["min_lr_ratio"] != 1.0
    }
    assert len(found) == 4 + 2 * 4 - 1 - 2  # int(0.3 * 11) is 3 warm-up ticks, which lr_warmup_steps = 3 says, too
    curves = {cycles: cosine([11, 3, None, cycles]) for cycles in (0.25, 0.5, 1.0)}
    assert curves[0.25] != curves[0.5] != curves[1.0] != curves[0.25]


def cosine(arguments: list[Any]) -> list[float]:
    (found,) = (rates for name, given, rates in VALUES["functions_of_rates"] if (name, given) == ("cosine", arguments))
    return list(found)


# ---- orders and steps


@pytest.mark.parametrize("one", VALUES["orders"], ids=lambda one: f"{one['size']} by {one['batch']}, {one['seed']}")
def test_prompts_come_in_the_order_of_easyr1s_own_loader(one: Mapping[str, Any]) -> None:
    reading = reading_of(
        f"data.rollout_batch_size={one['batch']}",
        f"worker.actor.global_batch_size={one['batch']}",
        f"data.seed={one['seed']}",
        f"data.shuffle={str(one['shuffle']).lower()}",
        "worker.rollout.n=2",
        "worker.actor.micro_batch_size_per_device_for_update=1",
        f"trainer.total_epochs={len(one['epochs'])}",
        size=one["size"],
    )
    tokens = {(prompt, sample): 1 for prompt in range(one["size"]) for sample in range(2)}
    steps = native_steps(reading, one["size"], tokens)
    rollouts = [[row.prompt for row in step.rows if row.sample == 0] for step in steps]
    assert rollouts == [batch for epoch in one["epochs"] for batch in epoch]


@pytest.mark.parametrize(
    "one", VALUES["steps"], ids=lambda one: "-".join(str(one[key]) for key in one if key[0] != "s")
)
def test_steps_have_the_rows_and_weights_that_easyr1s_own_update_gives_them(one: Mapping[str, Any]) -> None:
    lengths, group = one["lengths"], 4
    prompts = len(lengths) // group
    reading = reading_of(
        f"data.rollout_batch_size={prompts}",
        f"worker.rollout.n={group}",
        f"worker.actor.global_batch_size={one['size'] // group}",
        f"worker.actor.micro_batch_size_per_device_for_update={one['micro']}",
        f"worker.actor.ppo_epochs={one['passes']}",
        f"worker.actor.loss_avg_mode={one['mode']}",
        "data.shuffle=false",
        "trainer.max_steps=1",
        size=prompts,
    )
    tokens = {divmod(row, group): length for row, length in enumerate(lengths)}
    found = list(native_steps(reading, prompts, tokens))
    assert len(found) == len(one["steps"])
    for step, parts in zip(found, one["steps"], strict=True):
        native = [(number, int(row), weight) for number, part in enumerate(parts) for row, weight in part]
        ours = [(row.micro_batch, row.prompt * group + row.sample, row.weight) for row in step.rows]
        assert [row[:2] for row in ours] == [row[:2] for row in native]
        assert [float(row[2] or 0) for row in ours] == pytest.approx([row[2] for row in native], rel=FLOAT32)


@pytest.mark.parametrize(("micro", "ranks"), [*itertools.product((1, 2, 3), (2, 3))])
def test_micro_batches_that_easyr1_cuts_of_our_rows_are_the_planned_ones(micro: int, ranks: int) -> None:
    """A planned step, sent to ranks and split as EasyR1 was recorded to do it: whole micro-batches, none but fillers
    left, and no rank has a row of another."""
    reading = reading_of(
        "data.rollout_batch_size=6",
        "worker.rollout.n=4",
        "worker.actor.global_batch_size=3",
        "trainer.max_steps=2",
        f"worker.actor.micro_batch_size_per_device_for_update={micro}",
        size=12,
    )
    plan = plan_of(reading.spec, 12)
    actor = SimpleNamespace(ulysses_size=1, dynamic_batching=False, micro_batch_size_per_device_for_update=micro)
    trainer = SimpleNamespace(
        config=SimpleNamespace(worker=SimpleNamespace(actor=actor)),
        actor_rollout_ref_wg=SimpleNamespace(world_size=ranks),
    )
    request = Request(spec=reading.spec, plan=plan, reading=reading, mode="enforce", allow=frozenset())
    driver = EasyR1Driver(trainer, request, orders_of(request, VERSION))
    costs = {(position, sample): 3 + 5 * position + sample for position in range(6) for sample in range(4)}
    for step in driver.steps_of(1):
        order = driver.step_rows(step, RolloutRows(1, costs))
        assert {row for row in order if row is not None} == {divmod(place, 4) for place in step.positions}
        shares = dealt(order, ranks)
        assert len(order) % (ranks * micro) == 0, (
            "EasyR1 refuses a batch that its ranks and micro-batches do not divide"
        )
        loads = [sum(costs[row] for row in share if row is not None) for share in shares]
        assert max(loads) - min(loads) <= max(costs.values()) * micro, "balanced"
        rows = [sum(row is not None for row in share) for share in shares]
        assert max(rows) - min(rows) <= micro


def dealt(rows: Sequence[Any], ranks: int) -> list[list[Any]]:
    """Each rank's rows: EasyR1 was recorded to send ranks contiguous equal blocks, and to split each likewise."""
    for count, many, parts in VALUES["cuts"]["sent"]:
        assert [row for part in parts for row in part] == list(range(count))
        assert {len(part) for part in parts} == {count // many}
    for count, size, parts in VALUES["cuts"]["split"]:
        assert parts == [[*range(start, start + size)] for start in range(0, count, size)]
    size = len(rows) // ranks
    return [list(rows[rank * size : (rank + 1) * size]) for rank in range(ranks)]


# ---- advantages


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_advantages_of_the_spec_are_those_of_easyr1s_own_estimator(estimator: str) -> None:
    reading = reading_of(f"algorithm.adv_estimator={estimator}", "worker.rollout.n=4", size=512)
    groups = VALUES["advantages"]["groups"]
    found = [value for group in group_advantages(groups, reading.spec.advantage) for value in group]
    assert found == pytest.approx(VALUES["advantages"][estimator], rel=FLOAT32, abs=1e-7)

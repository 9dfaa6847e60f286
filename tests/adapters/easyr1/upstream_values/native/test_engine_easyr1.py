"""Our side of a training worker of EasyR1 over an actor that does what EasyR1's own was recorded to do: every planned
step has the plan's weights, whatever EasyR1 averages by, and another step ends the run before its update."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stand_in
import torch
import torch.distributed as dist

from batchbridge.contract.attachment import Request
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.kit.workers import Orders, orders_of
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read
from batchbridge_easyr1 import engine
from batchbridge_on_cpu.upstream_values import read as record_of

VALUES = record_of(Path(__file__).parents[1] / "values.json")["values"]
VERSION, GROUP, WIDTH = "0.3.3.dev0", 4, 8
LENGTHS = (3, 1, 4, 2, 6, 5, 2, 7)
"""Response tokens of a step's completions, two prompts of four."""


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(engine.proven, "require", lambda *given: SimpleNamespace(grade="proven"))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rank", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def orders(**changes: Any) -> Orders:
    command = ["python3", "-m", "verl.trainer.main", "algorithm.disable_kl=true", "trainer.n_gpus_per_node=1"]
    command += ["worker.rollout.tensor_parallel_size=1", "worker.actor.dynamic_batching=false", "trainer.max_steps=2"]
    command += ["data.rollout_batch_size=4", f"worker.rollout.n={GROUP}", "worker.actor.global_batch_size=2"]
    command += ["worker.actor.micro_batch_size_per_device_for_update=2", "worker.actor.clip_ratio_high=0.3"]
    reading = read(command, version=VERSION, dataset_size=8)
    assert reading.spec is not None, reading.findings
    spec = reading.spec.replace(**changes)
    request = Request(spec=spec, plan=Plan(spec, 8), reading=reading, mode="enforce")
    assert request.plan is not None
    return orders_of(request, VERSION, ticks=request.plan.total_optimizer_steps)


def step_of(given: Orders, index: int) -> Any:
    """The rows of a planned step as the driver sends them."""
    plan = given.plan()
    assert plan is not None
    step = plan.step(index)
    columns = {
        ROLLOUT: [one.rollout for one in step.members],
        PROMPT: [one.prompt for one in step.members],
        POSITION: [position // GROUP for position in step.positions],
        SAMPLE: [one.sample for one in step.members],
    }
    named = {name: np.array(values, dtype=object) for name, values in columns.items()}
    return stand_in.Rows(
        stand_in.batch_of(range(len(LENGTHS)), LENGTHS, WIDTH), named, {STEP: index, "temperature": 1.0}
    )


class StepOfItsBase(torch.optim.SGD):
    """An optimizer whose `step` calls that of its base, which has hooks of its own."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def worker_of(given: Orders, mode: str, micro: int, optimizer: type[torch.optim.SGD] | None = None) -> Any:
    made = stand_in.worker_of(
        len(LENGTHS),
        WIDTH,
        loss_avg_mode=mode,
        global_batch_size_per_device=4,
        micro_batch_size_per_device_for_update=micro,
    )
    made.actor.config.optim.training_steps = given.ticks
    if optimizer is not None:
        made.optimizer = made.actor.actor_optimizer = optimizer(made.actor.actor_module.parameters(), lr=1.0)
    engine.install(made, given)
    return made


def weights_of(given: Orders) -> list[float]:
    rows = [Row(tokens=length, group=place // GROUP) for place, length in enumerate(LENGTHS)]
    return [float(weight) for weight in token_weights(given.spec.loss.policy, rows)]


@pytest.mark.parametrize(
    "one", VALUES["steps"], ids=lambda one: f"{one['size']}-{one['micro']}-{one['passes']}-{one['mode']}"
)
def test_the_stand_in_steps_and_weighs_as_easyr1_was_recorded_to(one: dict[str, Any]) -> None:
    lengths, found = one["lengths"], []
    worker = stand_in.worker_of(
        len(lengths), max(lengths), loss_avg_mode=one["mode"], ppo_epochs=one["passes"],
        global_batch_size_per_device=one["size"], micro_batch_size_per_device_for_update=one["micro"],
    )  # fmt: skip
    table = worker.actor.actor_module.values
    worker.optimizer.register_step_pre_hook(lambda *_: found.append(table.grad.clone()))
    worker.optimizer.param_groups[0]["lr"] = 0.0
    worker.actor.update_policy(stand_in.Rows(stand_in.batch_of(range(len(lengths)), lengths, max(lengths)), {}, {}))
    wanted = [{int(row): weight for part in step for row, weight in part} for step in one["steps"]]
    assert [[row for row in range(len(lengths)) if step[row].any()] for step in found] == [
        sorted(step) for step in wanted
    ]
    for step, weights in zip(found, wanted, strict=True):
        assert [float(step[row].max()) for row in weights] == pytest.approx([*weights.values()], rel=2e-6)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_the_stand_ins_loss_is_the_recorded_one(advantage: float) -> None:
    new = (torch.tensor(VALUES["losses"]["ratios"])[:, None] - 1.0).requires_grad_()
    ones = torch.ones_like(new)
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_dual": 3.0, "loss_avg_mode": "token"}
    loss, _ = stand_in.compute_policy_loss(
        old_log_probs=-ones, log_probs=new, advantages=advantage * ones, response_mask=ones, **bounds
    )
    (loss * len(new)).backward()
    assert new.grad[:, 0].tolist() == pytest.approx(VALUES["losses"][f"default {advantage:+g}"], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("aggregation", ["token_mean", "token_sum", "sequence_mean", "sequence_sum"])
@pytest.mark.parametrize(
    ("mode", "micro", "by_tokens"),
    [
        ("token", 2, False),
        ("token", 4, False),
        ("seq", 1, False),
        ("seq", 8, False),
        ("token", 1, True),
        ("seq", 2, True),
    ],
)
def test_every_step_has_the_plans_weights_whatever_easyr1_averages_by(
    aggregation: str, mode: str, micro: int, by_tokens: bool
) -> None:
    given = orders(**{"loss.policy.aggregation": aggregation})
    worker = worker_of(given, mode, micro)
    worker.actor.config.dynamic_batching = by_tokens
    engine.probe(worker)
    table, wanted = worker.actor.actor_module.values, torch.tensor(weights_of(given))[:, None]
    mask = stand_in.batch_of(range(len(LENGTHS)), LENGTHS, WIDTH)["response_mask"]
    for index in range(2):
        before = table.detach().clone()
        data = step_of(given, index)
        data.batch["old_log_probs"] = before.clone()
        worker.actor.update_policy(data)
        torch.testing.assert_close(before - table.detach(), wanted * mask, rtol=1e-5, atol=1e-7)
    engine.remove(worker)
    assert "update_policy" not in vars(worker.actor)


def test_the_schedule_moves_when_the_plan_ticks() -> None:
    given = orders()
    worker = worker_of(given, "token", 2)
    worker.actor.update_policy(step_of(given, 0))
    worker.lr_scheduler.step()
    assert worker.lr_scheduler.last_epoch == int(given.plan().step(0).lr_tick)  # type: ignore[union-attr]
    assert worker.checkpoint_manager.lr_scheduler.last_epoch == worker.lr_scheduler.last_epoch


def times(worker: Any, factor: float) -> None:
    """Multiplies the policy loss of the loop that our side runs."""
    scope = worker.batchbridge._native_update.__func__.__globals__
    native = scope["compute_policy_loss"]
    scope["compute_policy_loss"] = lambda **inputs: (factor * native(**inputs)[0], {})


def test_a_gradient_that_is_seven_times_the_plans_ends_the_run_before_the_update() -> None:
    given = orders()
    worker = worker_of(given, "token", 2)
    times(worker, 7.0)
    before = worker.actor.actor_module.values.detach().clone()
    with pytest.raises(BatchDrift, match="7 times what the plan says"):
        worker.actor.update_policy(step_of(given, 0))
    torch.testing.assert_close(worker.actor.actor_module.values.detach(), before)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("membership", lambda data: data.non_tensor_batch[SAMPLE].__setitem__(0, 1)),
        ("order", lambda data: data.non_tensor_batch[PROMPT].__setitem__(slice(None), 7)),
    ],
)
def test_other_rows_than_planned_end_the_run(why: str, change: Any) -> None:
    given = orders()
    worker, data = worker_of(given, "token", 2), step_of(given, 0)
    change(data)
    with pytest.raises(BatchDrift) as error:
        worker.actor.update_policy(data)
    assert error.value.aspect == why


@pytest.mark.parametrize(("factor", "added"), [(1.001, 0.0), (1.0, 0.1)])
def test_a_loss_of_another_value_ends_the_run_before_the_update(factor: float, added: float) -> None:
    """Its gradient is the plan's."""
    given, native = orders(), torch.autograd.backward
    worker = worker_of(given, "token", 2)
    scope = worker.batchbridge._native_update.__func__.__globals__
    loss = scope["compute_policy_loss"]

    def another(**inputs: Any) -> Any:
        value, metrics = loss(**inputs)
        return value + (factor - 1) * value.detach() + added, metrics

    scope["compute_policy_loss"] = another
    before = worker.actor.actor_module.values.detach().clone()
    with pytest.raises(BatchDrift, match="in its loss: micro-batch 0 of the step on rank 0 has a loss of"):
        worker.actor.update_policy(step_of(given, 0))
    torch.testing.assert_close(worker.actor.actor_module.values.detach(), before)
    assert torch.autograd.backward is native


def test_an_optimizer_that_calls_its_base_is_looked_at_once_in_each_step() -> None:
    given = orders()
    worker = worker_of(given, "token", 2, StepOfItsBase)
    for index in range(2):
        worker.actor.update_policy(step_of(given, index))
    assert worker.batchbridge._last == 1


def test_the_ledger_has_the_learning_rate_that_was_applied(tmp_path: Path) -> None:
    """A hook that is registered once the step has begun sets another one than the schedule's, and `allow` names it."""
    given = dataclasses.replace(orders(), ledger=tmp_path, allow=frozenset({"learning_rate"}))
    worker = worker_of(given, "token", 2)
    raise_rate(worker)
    planned = worker.optimizer.param_groups[0]["lr"]
    worker.actor.update_policy(step_of(given, 0))
    engine.remove(worker)
    assert [step["learning_rate"] for step in read_steps(tmp_path)] == [1.5 * planned]


def test_a_learning_rate_that_someone_else_writes_ends_the_run_before_the_update() -> None:
    given = orders()
    worker = worker_of(given, "token", 2)
    raise_rate(worker)
    before = worker.actor.actor_module.values.detach().clone()
    with pytest.raises(BatchDrift, match="in its learning_rate: group 0 of the optimizer has learning_rate"):
        worker.actor.update_policy(step_of(given, 0))
    torch.testing.assert_close(worker.actor.actor_module.values.detach(), before)


def raise_rate(worker: Any) -> None:
    """Has a hook, registered when a step has begun, set one and a half times the learning rate."""
    group, native = worker.optimizer.param_groups[0], worker.actor.actor_module.clip_grad_norm_
    planned = group["lr"]

    def clip(bound: float) -> Any:
        worker.optimizer.register_step_pre_hook(lambda *_: group.update(lr=1.5 * planned))
        return native(bound)

    worker.actor.actor_module.clip_grad_norm_ = clip


def test_an_optimizer_of_another_model_ends_the_run_before_its_update() -> None:
    given = orders()
    worker = worker_of(given, "token", 2)
    stranger = torch.nn.Parameter(torch.zeros(1))
    worker.optimizer.add_param_group({"params": [stranger]})
    before = worker.actor.actor_module.values.detach().clone()
    with pytest.raises(BatchDrift, match="1 of the 2 parameters that the optimizer updates are not"):
        worker.actor.update_policy(step_of(given, 0))
    torch.testing.assert_close(worker.actor.actor_module.values.detach(), before)


def test_a_layer_that_is_refused_leaves_its_worker_as_it_was() -> None:
    given = orders()
    made = stand_in.worker_of(len(LENGTHS), WIDTH)
    native = vars(made.actor).copy()
    made.lr_scheduler.last_epoch, made.actor.config.optim.training_steps = 3, -1
    with pytest.raises(CannotAttach, match="the learning rate has moved already"):
        engine.install(made, dataclasses.replace(given, settings={"clip_ratio_low": 0.9}))
    assert "batchbridge" not in vars(made)
    assert vars(made.actor) == native
    assert made.actor.config.clip_ratio_low == 0.2


def test_a_step_out_of_turn_and_a_batch_that_nobody_planned_are_refused() -> None:
    given = orders()
    worker = worker_of(given, "token", 2)
    worker.actor.update_policy(step_of(given, 0))
    with pytest.raises(CannotAttach, match="optimizer step 0 follows step 0"):
        worker.actor.update_policy(step_of(given, 0))
    bare = stand_in.Rows(stand_in.batch_of([0], [2], WIDTH), {}, {STEP: 1})
    with pytest.raises(CannotAttach, match="without BatchBridge's columns"):
        worker.actor.update_policy(bare)


def test_a_loss_that_weighs_otherwise_is_refused_at_attach() -> None:
    worker = worker_of(orders(), "token", 2)
    times(worker, 2.0)
    with pytest.raises(CannotAttach, match="weight_probe"):
        engine.probe(worker)


def test_a_loss_with_a_term_of_its_own_is_refused_at_attach_unless_it_is_allowed() -> None:
    for allow in ((), ("own_term",)):
        worker = worker_of(dataclasses.replace(orders(), allow=frozenset(allow)), "token", 2)
        scope = worker.batchbridge._native_update.__func__.__globals__
        native, table = scope["compute_policy_loss"], worker.actor.actor_module.values
        scope["compute_policy_loss"] = lambda native=native, table=table, **inputs: (
            native(**inputs)[0] + table.sum(),
            {},
        )
        refusal = contextlib.nullcontext() if allow else pytest.raises(CannotAttach, match=r"own_term: .* 1 parameters")
        with refusal:
            engine.probe(worker)
        assert table.grad is None


def test_observing_leaves_the_native_steps_as_they_are() -> None:
    enforced = orders()
    given = dataclasses.replace(enforced, mode="observe", planned=False, native=enforced.spec)
    worker = worker_of(given, "token", 2)
    table = worker.actor.actor_module.values
    plain = stand_in.worker_of(
        len(LENGTHS), WIDTH, global_batch_size_per_device=4, micro_batch_size_per_device_for_update=2
    )
    worker.actor.update_policy(step_of(enforced, 0))
    plain.actor.update_policy(stand_in.Rows(stand_in.batch_of(range(len(LENGTHS)), LENGTHS, WIDTH), {}, {}))
    assert torch.equal(table, plain.actor.actor_module.values)

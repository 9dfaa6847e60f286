"""Which weights generated a completion, without OpenRLHF: what engines count, what is believed, what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_runtime_openrlhf import GIVEN, request_of

from batchbridge import CannotAttach
from batchbridge.kit import Request
from batchbridge.kit.patches import Patches
from batchbridge.kit.proven import evidence_here
from batchbridge.kit.workers import Orders, Receipt
from batchbridge.reading.read import read
from batchbridge_openrlhf import ahead, asynchronous, runtime, weights
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_openrlhf.weights import UNKNOWN, against, in_engine, out_of_engine, sealed

KEY, IDS, LENGTH = "a start", [5, 6, 7, 8], 3
BYTES = array("q", IDS[:LENGTH]).tobytes()
NAMES = ["first", "second"]
AHEAD = {**GIVEN, "train.async_enable": True, "vllm.num_engines": 1}


class Engine:
    """As much of a `RolloutRayActor` as is reached; `during` is what happens while it generates."""

    def __init__(self) -> None:
        self.during: Callable[[], Any] = lambda: None
        self.taken: list[str] = []
        self.executor = SimpleNamespace(execute=self.execute)
        self.llm = SimpleNamespace(collective_rpc=self.collective_rpc)

    async def execute(self, max_length: int) -> dict[str, Any]:
        if (event := self.during()) is not None:
            await event
        return {"observation_tokens": IDS, weights.BORN: [9, 9, 0]}

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> None:
        self.taken += args[:1]

    async def broadcast(self, version: int, names: list[str], *, told: bool = True) -> None:
        """What a training process does, and OpenRLHF's engine of it."""
        if told:
            weights.announce(self, version)
        for name in names:
            await self.llm.collective_rpc("update_weight", args=(name, "dtype", "shape", False))
        if told:
            weights.settle(self, NAMES)

    def born(self) -> list[int]:
        """What a completion says now."""
        answer = asyncio.run(self.executor.execute(max_length=LENGTH))
        return list(answer[weights.BORN])


@pytest.fixture
def engine() -> Engine:
    made = Engine()
    assert in_engine(made, KEY, 0)
    return made


def believed(engine: Engine, *sent: int) -> int:
    born = engine.born()
    assert against(born, BYTES, KEY, {0, *sent}) is None
    return born[0]


def test_a_completion_says_the_last_weights_that_arrived_whole(engine: Engine) -> None:
    assert believed(engine) == 0
    asyncio.run(engine.broadcast(2, NAMES))
    assert believed(engine, 2) == 2
    asyncio.run(engine.broadcast(4, NAMES))
    assert believed(engine, 2, 4) == 4
    assert engine.taken == NAMES * 2


def test_a_broadcast_that_does_not_reach_an_engine_leaves_it_older(engine: Engine) -> None:
    asyncio.run(engine.broadcast(2, NAMES))
    asyncio.run(engine.broadcast(4, []))
    assert believed(engine, 2, 4) == 2


def test_what_an_answer_says_of_its_own_version_is_not_believed(engine: Engine) -> None:
    assert asyncio.run(Engine().execute(LENGTH))[weights.BORN] == [9, 9, 0]
    assert engine.born()[:2] == [0, 0]


@pytest.mark.parametrize("names", [NAMES[:1], [*NAMES, "another"]])
def test_weights_that_arrive_in_part_are_of_no_version_until_whole_ones_come(engine: Engine, names: list[str]) -> None:
    asyncio.run(engine.broadcast(2, names))
    assert engine.born()[:2] == [UNKNOWN, UNKNOWN]
    assert "came in part" in str(against(engine.born(), BYTES, KEY, {0, 2}))
    asyncio.run(engine.broadcast(4, []))
    assert engine.born()[:2] == [UNKNOWN, UNKNOWN]
    asyncio.run(engine.broadcast(6, NAMES))
    assert believed(engine, 6) == 6


def test_weights_that_nobody_announced_are_of_no_version(engine: Engine) -> None:
    asyncio.run(engine.broadcast(2, NAMES, told=False))
    assert engine.born()[:2] == [UNKNOWN, UNKNOWN]


def test_a_completion_during_which_weights_come_is_not_believed(engine: Engine) -> None:
    engine.during = lambda: engine.broadcast(2, NAMES)
    born = engine.born()
    assert born[:2] == [0, 2]
    assert "weights came while a completion was generated" in str(against(born, BYTES, KEY, {0, 2}))


def changed(born: list[int], place: int, by: int = 2) -> list[int]:
    return [value + by * (number == place) for number, value in enumerate(born)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_version_that_is_changed_on_its_way_is_seen(engine: Engine, place: int) -> None:
    assert "not those that its engine sealed" in str(against(changed(engine.born(), place), BYTES, KEY, {0, 2}))


def test_a_version_of_another_completion_or_of_another_start_is_seen(engine: Engine) -> None:
    born = engine.born()
    assert "sealed" in str(against(born, BYTES[::-1], KEY, {0}))
    assert "sealed" in str(against(born, BYTES, "another start", {0}))


def test_a_version_that_was_never_sent_is_not_believed() -> None:
    born = [3, 3, sealed(KEY, 3, 3, BYTES)]
    assert "those were not sent; sent were [0, 2]" in str(against(born, BYTES, KEY, {0, 2}))
    assert "was not reached" in str(against(None, BYTES, KEY, {0}))


def test_an_engine_is_left_as_it_was_and_another_kind_is_not_reached(engine: Engine) -> None:
    out_of_engine(engine)
    assert engine.born() == [9, 9, 0]
    out_of_engine(engine)
    assert not in_engine(SimpleNamespace(executor=engine.executor), KEY, 0)
    assert not in_engine(SimpleNamespace(llm=engine.llm), KEY, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_believes_the_versions_that_it_took_part_in_sending(engine: Engine, rank: int) -> None:
    """Rank 0 alone tells engines which weights come: what another rank sends without it, nobody announced."""
    layer: Any = object.__new__(ahead.OpenRlhfAheadLayer)
    told: list[Any] = []
    layer._native_broadcast = lambda: asyncio.run(engine.broadcast(6, NAMES, told=rank == 0))
    layer._engine, layer._rings, layer._sent = SimpleNamespace(global_steps=6), SimpleNamespace(rank=rank), {0}
    layer._names, layer._trainer = (lambda: NAMES), SimpleNamespace(vllm_engines=[])
    before = [6, 6, sealed(KEY, 6, 6, BYTES)]
    assert "those were not sent; sent were [0]" in str(against(before, BYTES, KEY, layer._sent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "everywhere", lambda engines, function, *values: told.append(function))
        layer._broadcast()
    assert told == ([weights.announce, weights.settle] if rank == 0 else [])
    assert against(before, BYTES, KEY, layer._sent) is None
    assert engine.born()[0] == (6 if rank == 0 else UNKNOWN)


# ---- what is refused


def observed(given: dict[str, Any], mode: Any = "observe") -> Request:
    return dataclasses.replace(request_of({**AHEAD, **given}), mode=mode)


def names(request: Request) -> set[str]:
    hold = [one for one in runtime.REFUSALS if request.mode == "enforce" or one.name in runtime.OBSERVED]
    return {refusal.name for refusal in hold if refusal.against(None, request) is not None}


def test_an_asynchronous_run_is_observed_and_neither_enforced_nor_verified() -> None:
    assert names(observed({})) == set()
    assert names(observed({}, "verify")) == {"asynchronous"}
    assert names(observed({}, "enforce")) == {"asynchronous"}


@pytest.mark.parametrize("given", [{"train.partial_rollout_enable": True}, {"algo.advantage.estimator": "gae"}])
def test_what_mixes_versions_or_has_a_critic_is_not_observed_either(given: dict[str, Any]) -> None:
    assert names(observed(given)) == {"asynchronous"}
    (row,) = (refusal for refusal in runtime.REFUSALS if refusal.name == "asynchronous")
    assert row.foreseen(observed(given)) is True
    assert row.foreseen(observed({})) is False


def test_check_says_that_such_a_run_can_be_observed() -> None:
    for given, said in (({}, "--mode observe"), ({"train.partial_rollout_enable": True}, "no mode")):
        reading = read({**AHEAD, **given}, framework="openrlhf", version="0.11.2", dataset_size=8)
        found = OpenRlhfAdapter().enforcement(reading)
        (obstacle,) = (one for one in found.obstacles if one.name == "asynchronous")
        assert said in obstacle.remedy
        assert "train.partial_rollout_enable" in obstacle.reason


class PPOTrainerAsync:
    """What OpenRLHF's adapter takes for a whole asynchronous trainer."""


PPOTrainerAsync.__module__ = "openrlhf.trainer.ppo_trainer_async"


def test_the_whole_trainer_is_what_is_observed_and_no_part_of_it() -> None:
    request = observed({})
    whole = asynchronous.runtime_of(PPOTrainerAsync(), request)
    assert whole is asynchronous.RUNTIME
    part = SimpleNamespace(args=SimpleNamespace(train=SimpleNamespace(async_enable=True)))
    with pytest.raises(CannotAttach, match="wrap its PPOTrainerAsync"):
        asynchronous.runtime_of(part, request)
    assert asynchronous.runtime_of(part, observed({}, "verify")) is runtime.RUNTIME
    assert (
        asynchronous.runtime_of(
            SimpleNamespace(args=SimpleNamespace(train=SimpleNamespace(async_enable=False))), request
        )
        is runtime.RUNTIME
    )


def test_other_code_of_the_asynchronous_trainer_is_refused_by_name() -> None:
    code, trainer = asynchronous.RUNTIME.code, object()
    assert code is not None
    names = [package.title for package in code.used(asynchronous.RUNTIME.uses(trainer)).packages]
    assert "openrlhf:asynchronous" in names
    # openrlhf is not installed here.
    assert (
        "openrlhf:asynchronous trainer/ppo_trainer_async.py: TrainingActor.fit (missing)"
        in evidence_here(code.used(asynchronous.RUNTIME.uses(trainer))).control
    )


def test_a_synchronous_trainer_does_not_depend_on_the_asynchronous_ones_code() -> None:
    code = runtime.RUNTIME.code
    assert code is not None
    asked = code.used(runtime.RUNTIME.uses(object())).packages
    assert all("ppo_trainer_async.py" not in file for package in asked for file in package.functions)


# ---- what takes part is reached, and left


class Actor:
    """A Ray actor in this process: what is called in it is called here."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        if name != "__ray_call__":
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda function, *values: function(self, *values))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = type("RayError", (Exception,), {})
    errors = SimpleNamespace(RayError=gone, RayActorError=gone, RayTaskError=gone)
    handle = SimpleNamespace(ActorHandle=type("ActorHandle", (), {}))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda found: found, exceptions=errors, actor=handle))


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(("steps", "version"), [(0, 0), (6, UNKNOWN)])
def test_every_process_is_reached_when_fit_begins_and_left_again(
    monkeypatch: pytest.MonkeyPatch, steps: int, version: int
) -> None:
    done: list[tuple[Any, ...]] = []

    def in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
        done.append((worker.rank, orders is None))
        assert orders is None or not orders.planned
        return None if orders is None else Receipt(worker.rank, 2, orders.spec.digest())

    monkeypatch.setattr(ahead, "in_worker", in_worker)
    monkeypatch.setattr(ahead, "steps_of", lambda worker: steps)
    monkeypatch.setattr(ahead, "in_generator", lambda actor, rollout: done.append((actor.name, rollout)))
    monkeypatch.setattr(ahead, "out", lambda actor: done.append((actor.name, "out")))
    workers, engine = [Actor(rank=0), Actor(rank=1)], Engine()
    engines = [
        SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda function, *values: function(engine, *values)))
    ]
    states = SimpleNamespace(remote=lambda: {"global_step": 3})
    group = SimpleNamespace(_actor_handlers=workers)
    native = Actor(actor_model_group=group, vllm_engines=engines, init_checkpoint_states=states, fit="its own")
    trainer = SimpleNamespace(generator_actor=Actor(name="generator"), trainer_actor=native)
    patches = Patches()
    observer = asynchronous.OpenRlhfAsyncObserver(trainer, observed({}), "0.11.2", patches)
    assert not done
    observer.detach()
    assert not done
    assert trainer.trainer_actor.fit == "its own"
    assert trainer.trainer_actor.init_checkpoint_states.remote() == {"global_step": 3}
    assert done == [(0, False), (1, False), ("generator", 3)]
    assert engine.born()[:2] == [version, version]
    patches.undo()
    observer.detach()
    assert done[3:] == [(0, True), (1, True), ("generator", "out")]
    assert trainer.trainer_actor is native
    assert engine.born() == [9, 9, 0]


@pytest.mark.usefixtures("ray")
def test_an_engine_of_another_kind_is_refused_by_name() -> None:
    other = Actor(executor=None)
    with pytest.raises(CannotAttach, match="weights_version: 0 of 1 engines take samples and weights"):
        weights.reach([other], KEY, 0)

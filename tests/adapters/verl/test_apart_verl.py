"""Whose weights generated what one_step_off_policy trains, as far as it can be said without verl, Ray and torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Context, Mode, Source
from batchbridge.errors import CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder, TrainedRow, facts
from batchbridge.ledger import read_steps
from batchbridge.reading.read import read, read_source
from batchbridge.reports import check
from batchbridge_verl import apart, launched, runtime
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.engine import WEIGHTS_OF

np = pytest.importorskip("numpy")
COMMAND = [
    *("python", "-m", "verl.experimental.one_step_off_policy.main_ppo", "algorithm.adv_estimator=grpo"),
    *("data.train_batch_size=6", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=3"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", "trainer.n_gpus_per_node=2"),
    *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2", "actor_rollout_ref.rollout.name=vllm"),
    *("actor_rollout_ref.hybrid_engine=False", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
]
Trainer: type = type(
    "OneStepOffRayTrainer", (SimpleNamespace,), {"__module__": "verl.experimental.one_step_off_policy.ray_trainer"}
)


class Weights:
    """A tensor whose digest is its number."""

    def __init__(self, number: int) -> None:
        self.number = number


def pairs(number: int) -> list[tuple[str, Weights]]:
    return [("b", Weights(number)), ("a", Weights(number))]


class Run:
    """A trainer, its training worker, and engines; verl's hand-over as one call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engines: int = 1) -> None:
        monkeypatch.setattr(apart, "_digest", lambda tensor: str(tensor.number).encode())
        monkeypatch.setattr(
            apart.workers_ray, "asked", lambda workers, call, *values: [call(w, *values) for w in workers]
        )
        undo = apart.workers_ray, "install_everywhere", lambda workers, _, call: [call(one, None) for one in workers]
        monkeypatch.setattr(*undo)
        self.number, self.taken = 0, 10**6
        engine = SimpleNamespace(get_per_tensor_param=lambda: (iter(pairs(self.number)), None))
        self.actor = SimpleNamespace(engine=engine, batchbridge=SimpleNamespace(_last=None))
        self.engines = [self.beside() for _ in range(engines)]
        replicas = [SimpleNamespace(workers=[worker]) for worker in self.engines]
        self.trainer = Trainer(
            global_steps=1,
            actor_rollout_wg=SimpleNamespace(workers=[SimpleNamespace(actor=self.actor)]),
            checkpoint_manager=SimpleNamespace(replicas=replicas),
        )
        self.patches = Patches(Observation("observe"))
        self.apart = apart.SeparateEngines(self.trainer, 2, self.patches)
        self.apart.arrive()

    def beside(self, **checkpoint: Any) -> Any:
        async def update(weights: Any, **options: Any) -> None:
            for _ in zip(range(self.taken), weights, strict=False):
                pass

        adapter = SimpleNamespace(update_weights=update)
        return SimpleNamespace(server_adapter=adapter, checkpoint_engine=SimpleNamespace(**checkpoint))

    def trained(self, steps: int) -> None:
        """The trainer has done so many optimizer steps."""
        self.number, self.actor.batchbridge._last = steps, steps - 1

    def hand_over(self, *engines: int, bent: int = 0) -> None:
        sent = [(name, Weights(one.number + bent)) for name, one in self.actor.engine.get_per_tensor_param()[0]]
        for number in engines:
            asyncio.run(self.engines[number].server_adapter.update_weights(iter(sent), global_steps=99))

    def generated(self, arrives: bool = False) -> list[int]:
        """The rollouts whose policy the ledger is told, of the next rollout."""
        output, rollout = self.rollout(arrives)
        assert list(output[SAMPLE]) == [0, 1, 0, 1]
        assert list(output[ROLLOUT]) == [rollout] * 4
        return list(output[WEIGHTS_OF])

    def rollout(self, arrives: bool = False) -> tuple[dict[str, Any], int]:
        """The columns of the next rollout, and its number."""

        async def native(prompts: Any) -> Any:
            if arrives:
                await self.engines[0].server_adapter.update_weights(self.actor.engine.get_per_tensor_param()[0])
            return SimpleNamespace(non_tensor_batch={})

        rollout = self.apart.begin()
        prompts = Rows({PROMPT: [5] * 4, POSITION: [0] * 4, ROLLOUT: [rollout] * 4})
        return asyncio.run(self.apart.generating(native, 2)(prompts)).non_tensor_batch, rollout


class Rows:
    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.non_tensor_batch = dict(columns)

    def __len__(self) -> int:
        return 4


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_a_rollouts_policy_is_what_the_engines_held_as_it_began(run: Run) -> None:
    run.hand_over(0)
    assert run.generated() == [0] * 4
    for done in (0, 1, 2):
        run.trained(2 * done) if done else None
        run.hand_over(0)
        assert run.generated() == [done] * 4


def test_a_hand_over_that_is_skipped_leaves_the_older_version(run: Run) -> None:
    run.hand_over(0)
    run.trained(2)
    run.hand_over()  # sent, and given to nobody
    assert run.generated() == [0] * 4
    run.trained(4)
    run.hand_over(0)
    assert run.generated() == [2] * 4


def test_a_resumed_run_counts_from_where_it_goes_on(run: Run) -> None:
    run.trainer.global_steps = 8
    run.hand_over(0)
    assert run.generated() == [7] * 4
    run.trained(16)
    run.hand_over(0)
    assert run.generated() == [8] * 4


def test_of_engines_that_differ_the_oldest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, engines=2)
    run.hand_over(0, 1)
    run.trained(2)
    run.hand_over(1)
    assert run.generated() == [0] * 4
    run.hand_over(0)
    assert run.generated() == [1] * 4


def test_weights_that_arrive_meanwhile_are_told_and_the_older_count(run: Run) -> None:
    run.hand_over(0)
    run.trained(2)
    with pytest.warns(RuntimeWarning, match="arrived while rollout 0 was generated"):
        assert run.generated(arrives=True) == [0] * 4


@pytest.mark.parametrize("change", ["none at all", "a part", "others", "no digest"])
def test_weights_of_nobody_knows_whom_end_the_observing_and_not_the_run(
    run: Run, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change != "none at all":
        run.hand_over(0)
        assert run.generated() == [0] * 4
        run.trained(2)
    if change == "no digest":
        monkeypatch.setattr(apart, "_digest", lambda tensor: tensor.dtype)
    if change == "a part":
        run.taken = 1  # the engine stops in the middle
    if change != "none at all":
        run.hand_over(0, bent=100 * (change == "others"))
    output, _ = run.rollout()
    assert output == {}, "the native result, as it is"
    said = "did not hand over" if change == "others" else "was given no weights, or not all of them"
    assert said in (run.patches.observation.why or "")
    assert "weights_version" in (run.patches.observation.why or "")
    assert run.rollout()[0] == {}


def test_weights_reach_the_engine_whatever_becomes_of_their_digests(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    async def update(weights: Any) -> None:
        taken.extend(name for name, _ in weights)

    monkeypatch.setattr(apart, "_digest", lambda tensor: tensor.dtype)
    worker = run.beside()
    worker.server_adapter.update_weights = update
    held = apart.HandedWeights(worker)
    for _ in range(2):
        asyncio.run(worker.server_adapter.update_weights(run.actor.engine.get_per_tensor_param()[0]))
    assert taken == ["b", "a"] * 2
    assert held.digest is None


def test_an_engine_that_looks_at_no_weights_keeps_its_version(run: Run) -> None:
    run.hand_over(0)
    run.trained(2)
    run.taken = 0
    run.hand_over(0)
    assert run.generated() == [0] * 4


def test_the_ledger_of_a_native_step_has_the_version_that_was_seen(tmp_path: Path) -> None:
    spec = read([*COMMAND], version="0.9.1", dataset_size=12).spec
    assert spec is not None
    told: dict[str, Any] = {"planned": False, "mode": "observe", "ledger": tmp_path, "steps_per_rollout": 2}
    orders = Orders(spec=spec, dataset_size=12, framework_version="0.9.1", start_id="a", **told)
    recorder = Recorder("verl", orders, rank=0, world_size=1, gather=list)
    rows = [TrainedRow(3, 0, 0, sample, 1, sample, weight=1.0, weights_of=of) for sample, of in enumerate((2, 0, None))]
    none = [facts(prompt=[1], completion=[2], trained=[1.0], old_logprobs=[0.0], reward=None)] * 3
    recorder.write(6, rows, none, normaliser=None, learning_rate=1.0, gradient_norm=None, skipped=False)
    recorder.close()
    (step,) = read_steps(tmp_path)
    assert dict(zip(step["sample"], step["generated_at_step"], strict=True)) == {0: 4, 1: 0, 2: 6}


def test_what_is_evaluated_is_left_alone(run: Run) -> None:
    prompts = Rows({})
    assert run.apart.generating(lambda given: given, 2)(prompts) is prompts
    assert run.apart.generating(lambda given: given, 2)(None) is None, "which says nothing of what it is"
    assert prompts.non_tensor_batch == {}


def test_weights_that_come_in_parts_are_refused_before_anything_is_generated(run: Run) -> None:
    worker = run.beside(wire_format="delta_flush")
    with pytest.raises(CannotAttach, match="delta_flush"):
        apart.HandedWeights(worker)


def test_undone_nothing_is_followed(run: Run) -> None:
    followed = [run.actor.engine.get_per_tensor_param, run.engines[0].server_adapter.update_weights]
    run.patches.undo()
    assert run.actor.engine.get_per_tensor_param not in followed
    assert run.engines[0].server_adapter.update_weights not in followed


def test_weights_that_are_awaited_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_digest", lambda tensor: str(tensor.number).encode())
    read = Observation("observe").read

    async def awaited() -> AsyncIterator[tuple[str, Weights]]:
        for pair in pairs(3):
            yield pair

    async def taken(done: list[str]) -> list[str]:
        return [name async for name, _ in apart.digested(awaited(), done.append, read=read)]

    def plain() -> Iterator[tuple[str, Weights]]:
        yield from reversed(pairs(3))

    one: list[str] = []
    other: list[str] = []
    assert asyncio.run(taken(one)) == ["b", "a"]
    assert [name for name, _ in apart.digested(plain(), other.append, read=read)] == ["a", "b"]
    assert one == other  # the order is not part of it


def test_the_trainers_own_configuration_is_read_as_the_programs() -> None:
    values = {
        "data.train_batch_size": 6,
        "actor_rollout_ref.rollout.n": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 3,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
        "trainer.use_v1": False,
    }
    for trainer, mode in ((Trainer(), "lookahead"), (SimpleNamespace(), "sync")):
        source = apart.as_started(trainer, Source(values=values))
        reading = read_source(source, VerlAdapter(), Context(framework_version="0.9.1", world_size=2))
        assert reading.spec is not None
        assert reading.spec.staleness.mode == mode


@pytest.mark.parametrize(
    ("mode", "version", "names"),
    [
        ("observe", "0.9.1", set()),
        ("observe", "0.9.0", {"asynchronous"}),
        ("verify", "0.9.1", {"asynchronous"}),
        ("enforce", "0.9.1", {"one_step_off"}),
    ],
)
def test_it_is_observed_and_no_more(mode: Mode, version: str, names: set[str]) -> None:
    reading = read([*COMMAND], version=version, dataset_size=12)
    assert reading.spec is not None, reading.findings
    request = Request(spec=reading.spec, plan=None, reading=reading, mode=mode)
    asked = [one for one in runtime.REFUSALS if one.name in ("asynchronous", "one_step_off")]
    assert {one.name for one in asked if one.against(Trainer(), request) is not None} == names


def test_a_teacher_that_its_trainer_does_not_read_is_refused() -> None:
    (refusal,) = (one for one in runtime.REFUSALS if one.name == "distillation")
    for word, refused in (("distillation.enabled=False", False), ("distillation.enabled=True", True)):
        reading = read([*COMMAND, word], version="0.9.1", dataset_size=12)
        assert reading.spec is not None, reading.findings
        request = Request(spec=reading.spec, plan=None, reading=reading, mode="observe")
        assert (refusal.against(Trainer(), request) is not None) is refused


@pytest.mark.parametrize(("version", "watched"), [("0.9.1", True), ("0.9.0", False)])
def test_check_says_what_works_with_it(version: str, watched: bool) -> None:
    enforcement = check(COMMAND, version=version, dataset_size=12).enforcement
    assert enforcement is not None
    assert enforcement.verdict == "refused"
    found = {obstacle.name: obstacle for obstacle in enforcement.obstacles}
    assert ("--mode observe" in found["one_step_off"].remedy) is watched
    assert "--mode verify" not in found["one_step_off"].remedy


def test_its_trainer_follows_the_launch_before_its_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    monkeypatch.setattr(launched, "follow_before", lambda kind, method: followed.append(f"{kind.__name__}.{method}"))
    module = ModuleType("verl.experimental.one_step_off_policy.ray_trainer")
    vars(module)["OneStepOffRayTrainer"] = Trainer
    launched.one_step_off(module)
    assert followed == ["OneStepOffRayTrainer.init_workers"]
    assert VerlAdapter().hooks()[module.__name__] == "batchbridge_verl.launched:one_step_off"

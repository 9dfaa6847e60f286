"""Which completions fully_async_policy trains and whose weights made them, as far as it can be said without Ray and
torch."""

from __future__ import annotations

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Context, Mode
from batchbridge.errors import CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders
from batchbridge.reading.read import read, read_source
from batchbridge.reports import check
from batchbridge_verl import attaching, launched, proven, queued, runtime
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.engine import WEIGHTS_OF

np = pytest.importorskip("numpy")
COMMAND = [
    *("python", "-m", "verl.experimental.fully_async_policy.fully_async_main", "algorithm.adv_estimator=grpo"),
    *("data.train_batch_size=0", "data.gen_batch_size=1", "actor_rollout_ref.rollout.n=2"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"),
    *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2", "actor_rollout_ref.rollout.name=vllm"),
    *("actor_rollout_ref.hybrid_engine=False", "async_training.require_batches=2", "trainer.n_gpus_per_node=2"),
]
Trainer: type = type(
    "FullyAsyncTrainer",
    (SimpleNamespace,),
    {"__module__": "verl.experimental.fully_async_policy.fully_async_trainer"},
)


class Process:
    """A Ray actor, asked in place; whether what it is asked is awaited."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)
        self.__ray_call__ = SimpleNamespace(remote=self._remote)

    async def _remote(self, function: Any, *values: Any) -> Any:
        return function(self, *values)


class Rows:
    """A `DataProto` without tensors."""

    def __init__(self, columns: dict[str, Any], size: int) -> None:
        self.non_tensor_batch, self._size = columns, size

    def __len__(self) -> int:
        return self._size


class Dataset:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": index}


class Run:
    """A trainer, its rollouter, engines, and a queue between them; two completions of a prompt, two prompts of a
    rollout, two optimizer steps of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engines: int = 1) -> None:
        calls = queued.workers_ray
        monkeypatch.setattr(calls, "asked", lambda workers, call, *values: [call(one, *values) for one in workers])
        undo = lambda workers, _, call: [call(one, None) for one in workers]  # noqa: E731 - one line, as the one above
        monkeypatch.setattr(calls, "install_everywhere", undo)
        monkeypatch.setattr(queued, "install_everywhere", lambda *_: [])
        monkeypatch.setattr(queued.SeparateEngines, "arrive", lambda _: None)
        monkeypatch.setattr(queued, "_PAUSE", 0)
        self.sent: dict[str, int | None] = {"start": None}
        monkeypatch.setattr(queued.QueuedTrainer, "_sent", lambda _: self.sent)
        self.engines = [
            Process(batchbridge_weights=SimpleNamespace(digest="start", giving=False)) for _ in range(engines)
        ]
        self.manager = SimpleNamespace(generate_sequences_single=self._generate)
        self.rollouter = Process(
            train_dataset=Dataset(),
            train_dataloader=SimpleNamespace(dataset=None),
            async_rollout_manager=self.manager,
        )
        self.queue: list[Any] = []
        self.trainer = Trainer(
            current_param_version=0,
            trigger_parameter_sync_step=3,
            rollouter=self.rollouter,
            actor_rollout_wg=SimpleNamespace(workers=[]),
            checkpoint_manager=SimpleNamespace(replicas=[SimpleNamespace(workers=self.engines)]),
            _get_samples_from_queue=self._samples,
        )
        self.meanwhile: Any = lambda: None
        self.patches = Patches(Observation("observe"))
        reading = read([*COMMAND], version="0.9.1", dataset_size=12)
        assert reading.spec is not None, reading.findings
        told: dict[str, Any] = {"planned": False, "mode": "observe", "ledger": None, "steps_per_rollout": 2}
        orders = Orders(spec=reading.spec, dataset_size=12, framework_version="0.9.1", start_id="a", **told)
        self.queued = queued.QueuedTrainer(self.trainer, orders, self.patches)

    async def _generate(self, prompts: Any) -> Any:
        assert list(prompts.non_tensor_batch[SAMPLE]) == [0, 1]
        self.meanwhile()
        # What verl's own engines would say of themselves.
        return Rows({"min_global_steps": [99] * 2, "max_global_steps": [99] * 2}, 2)

    async def _samples(self) -> tuple[Any, Any]:
        taken, self.queue[:2] = self.queue[:2], []
        if not taken:
            return None, None
        names = taken[0].non_tensor_batch
        return 0, Rows({name: [one for each in taken for one in each.non_tensor_batch[name]] for name in names}, 4)

    def generate(self, prompt: int) -> None:
        """One sample, into the queue."""
        number = self.rollouter.train_dataset[prompt][PROMPT]
        made = asyncio.run(self.manager.generate_sequences_single(Rows({PROMPT: [number] * 2}, 2)))
        made.non_tensor_batch["uid"] = [f"uid_{prompt}"] * 2
        self.queue.append(made)

    def take(self) -> dict[str, list[Any]] | None:
        batch = asyncio.run(self.trainer._get_samples_from_queue())[1]
        return None if batch is None else {name: list(values) for name, values in batch.non_tensor_batch.items()}

    def hand_over(self, steps: int, *engines: int) -> None:
        self.sent[f"after {steps}".replace(" ", "")] = steps
        for number in engines:
            self.engines[number].batchbridge_weights.digest = f"after{steps}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_rows_out_of_the_queue_say_which_completions_they_are(run: Run) -> None:
    for prompt in (7, 3, 5, 1):
        run.generate(prompt)
    for rollout, prompts in enumerate(([7, 7, 3, 3], [5, 5, 1, 1])):
        rows = run.take()
        assert rows is not None
        assert (rows[PROMPT], rows[SAMPLE], rows[ROLLOUT]) == (prompts, [0, 1, 0, 1], [rollout] * 4)
        assert (rows[POSITION], rows[WEIGHTS_OF]) == ([0, 0, 1, 1], [0] * 4)
        assert queued.BEGUN not in rows, "no worker gets what the trainer alone reads"
        assert queued.ENDED not in rows
    assert run.take() is None


def test_each_completion_has_the_weights_that_its_own_generation_began_with(run: Run) -> None:
    run.generate(0)
    run.hand_over(6, 0)
    run.generate(1)
    rows = run.take()
    assert rows is not None
    assert rows[WEIGHTS_OF] == [0, 0, 3, 3]


def test_a_hand_over_that_never_arrives_leaves_the_older_version(run: Run) -> None:
    run.hand_over(6)
    run.generate(0)
    run.generate(1)
    rows = run.take()
    assert rows is not None
    assert rows[WEIGHTS_OF] == [0] * 4
    assert rows["max_global_steps"] == [99] * 4, "which verl says, and the ledger does not believe"


def test_weights_that_arrive_meanwhile_are_told_and_the_older_count(run: Run) -> None:
    run.meanwhile = lambda: run.hand_over(6, 0)
    run.generate(0)
    run.meanwhile = lambda: None
    run.generate(1)
    with pytest.warns(RuntimeWarning, match="2 completions of rollout 0 were generated; the ledger has the older"):
        rows = run.take()
    assert rows is not None
    assert rows[WEIGHTS_OF] == [0, 0, 3, 3]


def test_of_engines_that_differ_the_oldest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, engines=2)
    run.hand_over(6, 1)
    run.generate(0)
    run.hand_over(6, 0)
    run.generate(1)
    rows = run.take()
    assert rows is not None
    assert rows[WEIGHTS_OF] == [0, 0, 3, 3]


def test_a_completion_begins_once_its_engine_has_all_of_its_weights(run: Run) -> None:
    held, looks = run.engines[0].batchbridge_weights, iter([True, True, False])

    class Giving:
        digest = "start"

        @property
        def giving(self) -> bool:
            return next(looks, False)

    run.engines[0].batchbridge_weights = Giving()
    run.generate(0)
    assert next(looks, None) is None
    run.engines[0].batchbridge_weights = held
    run.meanwhile = lambda: vars(held).update(giving=True)
    run.generate(1)  # the weights are on their way as it ends: it is not of them
    with pytest.warns(RuntimeWarning, match="while 2 completions"):
        rows = run.take()
    assert rows is not None
    assert rows[WEIGHTS_OF] == [0] * 4


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("digest", "said"), [("bent", "did not hand over"), (None, "was given no weights, or not all of them")]
)
def test_weights_of_nobody_knows_whom_end_the_observing_and_not_the_run(
    run: Run, digest: str | None, said: str, late: bool
) -> None:
    def arrives() -> None:
        run.engines[0].batchbridge_weights.digest = digest

    if late:
        run.meanwhile = arrives
    else:
        arrives()
    run.generate(0)
    run.generate(1)
    rows = run.take()
    assert rows is not None
    assert ROLLOUT not in rows, "the native rollout, without what a worker would take for identified rows"
    assert (run.patches.observation.why or "").startswith("weights_version: an engine")
    assert said in (run.patches.observation.why or "")
    run.generate(2)
    run.generate(3)
    assert run.take() is not None


def test_an_engine_that_cannot_be_asked_ends_the_observing_and_leaves_samples_that_go_together(run: Run) -> None:
    run.generate(0)
    del run.engines[0].batchbridge_weights
    run.generate(1)
    assert len({frozenset(sample.non_tensor_batch) for sample in run.queue}) == 1, "verl puts them into one batch"
    rows = run.take()
    assert rows is not None
    assert ROLLOUT not in rows
    assert "was given no weights" in (run.patches.observation.why or "")


def test_a_resumed_run_counts_from_the_hand_over_that_it_goes_on_with(run: Run) -> None:
    run.trainer.current_param_version = 4
    run.generate(0)
    run.hand_over(30, 0)
    run.generate(1)
    rows = run.take()
    assert rows is not None
    assert (rows[ROLLOUT], rows[WEIGHTS_OF]) == ([12] * 4, [12, 12, 15, 15])


def test_undone_nothing_is_followed(run: Run) -> None:
    run.patches.undo()
    assert run.manager.generate_sequences_single == run._generate
    assert run.trainer._get_samples_from_queue == run._samples
    assert isinstance(run.rollouter.train_dataset, Dataset)
    assert run.rollouter.train_dataloader.dataset is None


# ---- what is refused, and when


@pytest.mark.parametrize(
    ("mode", "version", "word", "names"),
    [
        ("observe", "0.9.1", "trainer.nnodes=1", set()),
        ("observe", "0.9.1", "async_training.use_trainer_do_validate=True", {"asynchronous"}),
        ("observe", "0.9.1", "async_training.use_dynamic_resource_scheduling=True", {"asynchronous"}),
        ("observe", "0.9.0", "trainer.nnodes=1", {"asynchronous"}),
        ("verify", "0.9.1", "trainer.nnodes=1", {"asynchronous"}),
        ("enforce", "0.9.1", "trainer.nnodes=1", {"fully_async"}),
    ],
)
def test_it_is_observed_and_no_more(mode: Mode, version: str, word: str, names: set[str]) -> None:
    reading = read([*COMMAND, word], version=version, dataset_size=12)
    assert reading.spec is not None, reading.findings
    request = Request(spec=reading.spec, plan=None, reading=reading, mode=mode)
    asked = [one for one in runtime.REFUSALS if one.name in ("asynchronous", "fully_async")]
    assert {one.name for one in asked if one.against(Trainer(), request) is not None} == names


@pytest.mark.parametrize(("version", "watched"), [("0.9.1", True), ("0.9.0", False)])
def test_check_says_what_works_with_it(version: str, watched: bool) -> None:
    enforcement = check(COMMAND, version=version, dataset_size=12).enforcement
    assert enforcement is not None
    assert enforcement.verdict == "refused"
    found = {obstacle.name: obstacle for obstacle in enforcement.obstacles}
    assert ("--mode observe" in found["fully_async"].remedy) is watched
    assert "--mode verify" not in found["fully_async"].remedy


def settings(**changed: Any) -> dict[str, Any]:
    """A trainer's configuration, by dotted key."""
    values = dict(word.split("=") for word in COMMAND[3:])
    typed: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in values.items()}
    typed["actor_rollout_ref.hybrid_engine"] = False
    return {**typed, "trainer.nnodes": 1, "async_training.staleness_threshold": 0.5, **changed}


def launch(monkeypatch: pytest.MonkeyPatch, mode: Mode | None, **changed: Any) -> None:
    found = None if mode is None else SimpleNamespace(mode=mode)
    monkeypatch.setattr(queued, "current_launch", lambda: found)
    monkeypatch.setattr(queued, "_settings", lambda trainer: settings(**changed))


def test_the_trainers_own_configuration_is_read_as_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, "observe")
    trainer = Trainer(batchbridge_prompts=12)
    source, context = queued.source_of(trainer)
    assert (context.world_size, context.dataset_size) == (2, 12)
    reading = read_source(source, VerlAdapter(), Context(framework_version="0.9.1", world_size=2, dataset_size=12))
    assert reading.spec is not None, reading.findings
    assert (reading.spec.staleness.mode, reading.spec.rollout.prompts_per_rollout) == ("unbounded", 2)


@pytest.mark.parametrize(
    ("mode", "changed", "said"),
    [
        ("enforce", {}, "take --mode observe"),
        ("verify", {}, "take --mode observe"),
        ("observe", {"async_training.use_trainer_do_validate": True}, "use_trainer_do_validate=False"),
    ],
)
def test_what_is_refused_is_refused_before_a_worker_starts(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, changed: dict[str, Any], said: str
) -> None:
    launch(monkeypatch, mode, **changed)
    with pytest.raises(CannotAttach, match=said) as refused:
        queued.follow_with_rollouter(Trainer())
    assert list(refused.value.reasons) == ["fully_async"]


@pytest.mark.parametrize("mode", [None, "observe"])
def test_its_trainer_follows_the_launch_once_it_knows_its_rollouter(
    monkeypatch: pytest.MonkeyPatch, mode: Mode | None
) -> None:
    launch(monkeypatch, mode)
    done: list[str] = []
    monkeypatch.setattr(queued, "follow", lambda trainer: done.append(f"followed, {trainer.batchbridge_prompts}"))

    async def native() -> None:
        done.append("set up")

    class Base(SimpleNamespace):
        def _init_resource_pools(self) -> None:
            done.append("started")

    module = ModuleType("verl.experimental.separation.ray_trainer")
    vars(module)["SeparateRayPPOTrainer"] = Base
    launched.fully_async(module)
    assert VerlAdapter().hooks()[module.__name__] == "batchbridge_verl.launched:fully_async"
    kind = type("FullyAsyncTrainer", (Base,), {"__module__": Trainer.__module__})
    trainer: Any = kind(_setup_checkpoint_manager=native, rollouter=Process(train_dataset=Dataset()))
    Base()._init_resource_pools()  # another trainer of that base is left alone
    trainer._init_resource_pools()
    asyncio.run(trainer._setup_checkpoint_manager())
    assert done == ["started", "started", "set up", *([] if mode is None else ["followed, 12"])]


@pytest.mark.parametrize(
    ("home", "name", "part"),
    [
        ("verl.experimental.fully_async_policy.fully_async_trainer", "FullyAsyncTrainer", "fully_async"),
        ("verl.experimental.one_step_off_policy.ray_trainer", "OneStepOffRayTrainer", "one_step_off"),
        ("verl.trainer.ppo.ray_trainer", "RayPPOTrainer", None),
    ],
)
def test_only_a_programs_own_trainer_depends_on_its_code(home: str, name: str, part: str | None) -> None:
    trainer = type(name, (), {"__module__": home})()
    asked = [package.record for package in proven.CODE.used(attaching.RUNTIME.uses(trainer)).packages]
    assert asked == (["verl"] if part is None else ["verl", f"verl:{part}"])
    files = [file for package in proven.CODE.used().packages for file in package.functions]
    assert not any(file.startswith("experimental/") for file in files), "workers of any trainer ask for no more"

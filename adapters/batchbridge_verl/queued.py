"""A trainer that takes completions from a queue (fully_async_policy): which they are, and whose weights generated them.

Generation is another process's, the rollouter's, and does not wait for the trainer. There the rows of every sample get
their prompt, their number, and the digests of the weights that the engines held as it began and as it ended (`apart`).
Where the trainer takes them from the queue, the digests become the optimizer steps that it had done when it handed
those weights over: asked for there, a training worker is not busy, and generation waits for none.

Source: verl 0.9.1 experimental/fully_async_policy/{fully_async_main,fully_async_trainer,fully_async_rollouter,
message_queue,detach_utils}.py.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any

from batchbridge import CannotAttach, Source
from batchbridge.kit import Context, current_launch, follow, workers_ray
from batchbridge.kit.code_names import has_base
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.kit.observing import Observation
from batchbridge.kit.omegaconf import flatten
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders
from batchbridge_verl.ahead import OBSERVED_ALONE, ON_THE_TRAINERS_DEVICES, SETTINGS
from batchbridge_verl.apart import SeparateEngines, number_dataset
from batchbridge_verl.driver import install_everywhere
from batchbridge_verl.engine import WEIGHTS_OF
from batchbridge_verl.installed import installed
from batchbridge_verl.settings import BY_KEY

CONFIGURATION = "fully_async_ppo_trainer"
"""The key that says in a configuration file that it is this program's."""
UNSEEN = "BatchBridge does not see which weights engines on the trainer's own devices are given"
BEGUN, ENDED = "batchbridge_held_first", "batchbridge_held_last"
"""Columns of what comes out of the queue: the engines' digests, as one text."""
_PROMPTS = "batchbridge_prompts"
"""The trainer's attribute that has the length of the rollouter's dataset."""
_WHY = "ledger"


def is_fully_async(trainer: object) -> bool:
    """Whether `trainer` is that of fully_async_policy."""
    return has_base(trainer, "verl.experimental.fully_async_policy.fully_async_trainer", "FullyAsyncTrainer")


def follow_with_rollouter(trainer: Any) -> None:
    """Has `trainer`, whose workers are about to start, follow the launch once it knows its rollouter: that one has the
    dataset and the engines. Raises `CannotAttach` for what is refused whatever these are."""
    launch = current_launch()
    if launch is None:
        return
    if launch.mode != "observe":
        raise CannotAttach({"fully_async": f"{OBSERVED_ALONE}; take --mode observe"})
    values = _settings(trainer)
    if on := [key for key in ON_THE_TRAINERS_DEVICES if values.get(key)]:
        raise CannotAttach({"fully_async": f"{UNSEEN}; set {on[0]}=False"})
    native = trainer._setup_checkpoint_manager

    async def setup() -> None:
        await native()
        setattr(trainer, _PROMPTS, await trainer.rollouter.__ray_call__.remote(_prompts))
        del trainer._setup_checkpoint_manager
        follow(trainer)

    trainer._setup_checkpoint_manager = setup


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The source of a trainer's settings as in `runtime.source_of`, of one whose dataset is the rollouter's."""
    values = _settings(trainer)
    known = {key: value for key, value in values.items() if key in _READ}
    context = Context(
        framework_version=None if (found := installed()) is None or found.project != "verl" else found.version,
        world_size=int(values["trainer.nnodes"]) * int(values["trainer.n_gpus_per_node"]),
        dataset_size=vars(trainer).get(_PROMPTS),
    )
    return Source(values={"defaults": [CONFIGURATION, "_self_"], **known, "trainer.use_v1": False}), context


_READ = frozenset((*BY_KEY, *(row.key for row in SETTINGS), *ON_THE_TRAINERS_DEVICES))


def _settings(trainer: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(trainer.config, resolve=True)
    assert isinstance(values, dict), "verl's configuration is a mapping"
    return dict(flatten(values))


class QueuedTrainer(SeparateEngines):
    """The patches of a trainer that knows its rollouter."""

    def __init__(self, trainer: Any, orders: Orders, patches: Patches) -> None:
        super().__init__(trainer, orders.steps_per_rollout, patches)
        self.receipts = install_everywhere(trainer.actor_rollout_wg, orders, patches)
        self.arrive()
        rollouter = [trainer.rollouter]
        workers_ray.asked(rollouter, _stamp, self._engines)

        def undo() -> None:
            workers_ray.install_everywhere(rollouter, None, _stamp)

        patches.made("rollouter", undo, what="samples say which they are and whose weights made them", why=_WHY)
        told: dict[str, Any] = {"what": "rows are told apart", "why": _WHY}
        self._native = patches.read(trainer, "_get_samples_from_queue", self._take, **told)

    def _done_before(self) -> int:
        # verl counts hand-overs, and goes on from a checkpoint with the next one.
        return int(self._trainer.current_param_version) * int(self._trainer.trigger_parameter_sync_step)

    async def _take(self) -> tuple[Any, Any]:
        """The rows of the next rollout; None for them as verl's own ends."""
        import numpy as np

        epoch, batch = await self._native()
        if batch is None:
            return epoch, batch
        columns, rollout = batch.non_tensor_batch, self.begin()
        begun, ended = ([_digests(text) for text in columns.pop(name)] for name in (BEGUN, ENDED))
        places = {name: place for place, name in enumerate(dict.fromkeys(columns["uid"]))}
        sent = self._sent()
        policies = {held: self._policy_of(held, sent) for held in {*begun}}
        for held in {*ended}:
            # An engine that is given weights generates with none of them yet.
            if told := [one for one in held if one != _GIVING]:
                self._policy_of(told, sent)
        for name, values in (
            (ROLLOUT, [rollout] * len(batch)),
            (POSITION, [places[uid] for uid in columns["uid"]]),
            (WEIGHTS_OF, [policies[held] for held in begun]),
        ):
            columns[name] = np.array(values, dtype=object)
        if over := sum(first != last for first, last in zip(begun, ended, strict=True)):
            text = f"weights arrived while {over} completions of rollout {rollout} were generated"
            warnings.warn(f"{text}; the ledger has the older", RuntimeWarning, stacklevel=2)
        return epoch, batch


# ---- in the rollouter's process

_NONE, _GIVING = "none", "giving"
_PAUSE = 0.02
"""Seconds between two looks at an engine that is given weights."""


class RolloutStamps:
    """The patches of a rollouter. engines: the workers beside its engines, each with `apart.HandedWeights`."""

    def __init__(self, rollouter: Any, engines: Sequence[Any]) -> None:
        observation = Observation("observe")
        self.patches, self._engines = Patches(observation), engines
        number_dataset(rollouter, self.patches)
        self._told, _ = observation.guarded(_not_told, self._held)
        manager, told = rollouter.async_rollout_manager, {"what": "stamped", "why": _WHY}
        # Not guarded as a whole: verl puts samples together that all have the same columns, so that each has ours, also
        # behind the end of the observing.
        self._native = self.patches.set(manager, "generate_sequences_single", self._generate, **told)

    async def _generate(self, prompts: Any, *arguments: Any, **options: Any) -> Any:
        """The completions of one prompt, each with its columns."""
        import numpy as np

        columns = prompts.non_tensor_batch
        columns[SAMPLE] = np.arange(len(prompts)).astype(object)
        while _GIVING in (begun := await self._told()):
            await asyncio.sleep(_PAUSE)  # an engine that is given weights generates once it has them all
        output = await self._native(prompts, *arguments, **options)
        stamps = {BEGUN: begun, ENDED: await self._told()}
        for name, held in stamps.items():
            columns[name] = np.array([" ".join(held)] * len(prompts), dtype=object)
        for name in (PROMPT, SAMPLE, *stamps):
            if name in columns:
                output.non_tensor_batch[name] = columns[name]
        return output

    async def _held(self) -> list[str]:
        found: list[str] = await asyncio.gather(*(_answer(worker) for worker in self._engines))
        return found


async def _not_told() -> list[str]:
    """The engines' weights where nothing says them any more."""
    return [_NONE]


async def _answer(worker: Any) -> str:
    found: str = await worker.__ray_call__.remote(_state)
    return found


def _state(worker: Any) -> str:
    """The state of an engine's weights, asked inside a Ray actor of a replica."""
    held = worker.batchbridge_weights
    return _GIVING if held.giving else held.digest or _NONE


def _digests(text: str) -> tuple[str | None, ...]:
    """The weights of every engine, as the column of a completion has them (`_state`); None: of the run's start."""
    return tuple(None if one == _NONE else one for one in text.split())


_HERE = "batchbridge_stamping"


def _stamp(rollouter: Any, engines: Sequence[Any] | None) -> None:
    """The stamping of completions, inside the rollouter. engines: None undoes it."""
    earlier = vars(rollouter).pop(_HERE, None)
    if earlier is not None:
        earlier.patches.undo()
    if engines is not None:
        setattr(rollouter, _HERE, RolloutStamps(rollouter, engines))


def _prompts(rollouter: Any) -> int:
    """The number of prompts, asked inside the rollouter."""
    return len(rollouter.train_dataset)

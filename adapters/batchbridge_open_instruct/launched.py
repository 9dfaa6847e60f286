"""Hooks of `batchbridge run`: learners are wrapped when they are loaded, grpo_fast.py's weights are sent in time.

grpo.py's learner stands in a module. grpo_fast.py is its own main module, which no import hook reaches; what it does
first, once its definitions stand, is to ask `open_instruct.utils` for a check. There its definitions are patched,
before `main` uses them: Ray takes the learner's class, with the patch, to every learner by value. Should a script never
ask, then data preparation, whose class is imported, does not start: it has no orders.

They patch classes and a script's names, which is right here alone: the process belongs to one launched run.
Source: open-instruct e6c3044 grpo_fast.py, grpo.py, grpo_olmo_core_actor.py, data_loader.DataPreparationActor.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from batchbridge import BatchDrift, CannotAttach, Spec
from batchbridge.kit import checkpoints, current_launch, follow, proven
from batchbridge_open_instruct import feed
from batchbridge_open_instruct.learners import FastLearner, Learner, OlmoLearner
from batchbridge_open_instruct.proven import CODE, OPEN_INSTRUCT

LEARNER, TRIGGER, STEP = "PolicyTrainerRayProcess", "WeightSyncTrigger", "one_training_step"
SAVE = "save_final_model"
"""Names of the script that are patched."""


def utilities(module: ModuleType) -> None:
    """The hook into open_instruct.utils: the script is reached when it begins."""
    native = module.check_oe_eval_internal

    @functools.wraps(native)
    def begun() -> Any:
        reach(sys.modules["__main__"])
        return native()

    module.check_oe_eval_internal = begun  # type: ignore[attr-defined]  # a module's attribute


def preparation(module: ModuleType) -> None:
    """The hook into open_instruct.data_loader: data preparation starts with orders only."""
    actor: Any = module.DataPreparationActor.__ray_metadata__.modified_class
    native = actor.start

    @functools.wraps(native)
    def start(self: Any, *arguments: Any, **options: Any) -> Any:
        if feed.ATTRIBUTE not in vars(self):
            reason = (
                "data preparation has no orders: no learner of this run was wrapped; BatchBridge wraps those of "
                "grpo_fast.py and grpo.py alone"
            )
            raise CannotAttach({"arrival": reason})
        return native(self, *arguments, **options)

    actor.start = start


def olmo_learners(module: ModuleType) -> None:
    """The hook into open_instruct.grpo_olmo_core_actor: grpo.py's learners. Raises `CannotAttach`."""
    _require(OlmoLearner, module)
    learner: Any = module.PolicyTrainerOLMoCoreProcess.__ray_metadata__.modified_class
    learner.setup_model = _followed(learner.setup_model)


def _require(kind: type[Learner], module: ModuleType) -> None:
    launch = current_launch()
    allow = () if launch is None else launch.allow
    folders = {OPEN_INSTRUCT.name: Path(str(module.__file__)).parent}
    proven.require(CODE.used((kind.package,)), allow, folders=folders)


def reach(script: ModuleType) -> None:
    """Patches what grpo_fast.py has defined, before its main begins. Raises `CannotAttach`."""
    names = vars(script)
    if missing := [name for name in (LEARNER, TRIGGER, STEP, SAVE) if name not in names]:
        reason = f"{names.get('__file__')} defines no {', '.join(missing)}: it is not the grpo_fast.py that is followed"
        raise CannotAttach({"script": reason})
    _require(FastLearner, script)
    launch = current_launch()
    learner = names[LEARNER].__ray_metadata__.modified_class
    learner.from_pretrained = _followed(learner.from_pretrained)
    if launch is not None and launch.mode == "enforce":
        ScriptSide(names, waits=_synchronous(launch.spec, launch.like))


def _synchronous(spec: Mapping[str, Any] | None, like: str | None) -> bool:
    """Whether each rollout should be generated with the weights that it trains next. The script's own meaning never is
    that; of a configuration that only a learner can read it is not known here, and newer weights are right in any."""
    if spec is None:
        return like is not None
    staleness = Spec.from_dict(spec).staleness
    return staleness.mode == "sync" or not staleness.maximum


def _followed(native: Any) -> Any:
    """The function that loads a learner's model, after which the learner follows the launch. All learners load at once,
    and data preparation starts when all are loaded."""

    @functools.wraps(native)
    def loaded(self: Any, *arguments: Any, **options: Any) -> Any:
        made = native(self, *arguments, **options)
        follow(self)
        return made

    return loaded


class ScriptSide:
    """The script process's side: what differs from the run whose checkpoint it resumes is said before the first
    training step; and where `waits`, a training step begins when the engines have the weights of the one before, and
    the model is saved when they have those of the last: with ZeRO-3 both gather parameters, and learners that are asked
    for both at once, each in its own order, wait for each other for ever.

    The script sends weights from a thread, when a training step has ended, but not those of the first one, and goes on
    without waiting. Where `waits`, the first ones are asked for as well, and waited for are all.
    """

    def __init__(self, names: dict[str, Any], *, waits: bool) -> None:
        self._changed = threading.Condition()
        # Training steps whose weights were asked for, are on their way, and came.
        self._asked = self._sending = self._sent = -1
        self._error: BaseException | None = None
        self._trigger: Any = None
        self._begun, self._waits = False, waits
        self._native_step, self._utilities = names[STEP], names["grpo_utils"]
        self._native_sync = self._utilities.perform_weight_sync
        self._seconds = float(names["WEIGHT_SYNC_TIMEOUT_S"])
        names[STEP] = self.step
        if waits:
            self._native_save, names[SAVE] = names[SAVE], self.save
            names[TRIGGER] = self._triggers(names[TRIGGER])
            self._utilities.perform_weight_sync = self.sync

    @staticmethod
    def _notes() -> tuple[str, ...]:
        """Notes of data preparation, which compared the checkpoint with this run."""
        import ray
        from open_instruct.data_loader import DATA_PREP_ACTOR_NAME

        actor = ray.get_actor(DATA_PREP_ACTOR_NAME)
        notes: tuple[str, ...] = ray.get(actor.__ray_call__.remote(feed.notes_of))
        return notes

    def _triggers(self, native: Any) -> Any:
        sending = self

        class WeightSyncTrigger(native):  # type: ignore[misc]  # the script's class
            """The script's, whose steps are known here."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                sending._trigger = self

            def notify(self, step: int) -> None:
                sending._asked = max(sending._asked, step)
                super().notify(step)

            def get_step_and_clear(self) -> int:
                sending._sending = int(super().get_step_and_clear())
                return sending._sending

        return WeightSyncTrigger

    def sync(self, *arguments: Any, **options: Any) -> Any:
        """`perform_weight_sync` in the script's thread: returns when the engines have the weights, in-flight updates or
        not, since prompts that come later should be stamped with them."""
        try:
            made = self._native_sync(*arguments, **{**options, "inflight_updates": False})
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._sent = max(self._sent, self._sending)
            self._changed.notify_all()
        return made

    def _here(self, step: int) -> bool:
        """Waits for the weights after `step` training steps; whether they came in time, or an error did."""
        with self._changed:
            return self._changed.wait_for(lambda: self._sent >= step or self._error is not None, self._seconds)

    def save(self, *arguments: Any, **options: Any) -> Any:
        """`save_final_model`, when no weights are on their way."""
        self._here(self._asked)
        return self._native_save(*arguments, **options)

    def step(self, *arguments: Any, **options: Any) -> Any:
        """`one_training_step`, when the weights of the training step before are there."""
        given = inspect.signature(self._native_step).bind(*arguments, **options).arguments
        before = int(given["training_step"]) - 1
        if not self._begun:
            self._begun = True
            checkpoints.tell(self, self._notes())
        if not self._waits:
            return self._native_step(*arguments, **options)
        if self._asked < before:
            self._trigger.notify(before)
        there = self._here(before)
        if self._error is not None or not there:
            why = "failed" if self._error is not None else f"took more than {self._seconds:.0f} s"
            detail = f"sending the weights after {before} training steps to the engines {why}"
            raise BatchDrift(before * int(given["args"].num_epochs), "clock", detail) from self._error
        return self._native_step(*arguments, **options)

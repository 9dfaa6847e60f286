"""A trainer that a launched command builds: wrapped as the launch asks, before it trains."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from batchbridge.running.launch import JUDGED, TRAINER, Launch, arrived, current_launch, named
from batchbridge.running.telling import tell

_judged: list[Any] = []
"""The trainer that this process ends with: one that is measured comes to its own `train` again."""


def follow(trainer: Any) -> Any:
    """Wraps a trainer as the launch asks, reports it on stderr and beside the ledger, and returns it; without a launch
    it is left alone.

    What an adapter's hook calls in the process of the trainer. Raises `CannotAttach` with every reason.
    """
    launch = current_launch()
    if launch is None or _judged:
        return trainer
    if launch.instead:
        _judged.append(trainer)
        _end(launch, named(launch.instead)(trainer))
    from batchbridge.running.wrap import wrap

    asked = {name: getattr(launch, name) for name in ("tokens_per_device", "allow", "report_to", "padding")}
    wrap(trainer, _meaning(launch, trainer), launch.mode, launch.ledger, **asked)  # type: ignore[arg-type]  # wrap checks what it is given
    report = trainer.batchbridge.report()
    if os.environ.get("RANK", "0") == "0":  # torchrun's: every rank would say the same
        if launch.ledger is not None:
            with contextlib.suppress(OSError):  # the ledger's own start says so
                Path(launch.ledger).mkdir(parents=True, exist_ok=True)
        said = report if launch.verbose else trainer.batchbridge.report(changes=False)
        steps = _steps_of(trainer.batchbridge.request)
        tell(said + steps, launch.ledger, logged=report + steps)
    arrived(f"{TRAINER}-{os.getpid()}", report)
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        from batchbridge.running.launch_ray import announce

        announce(launch.run)  # the trainer may be on another machine than the command
    return trainer


def _steps_of(request: Any) -> str:
    """The line on what the trainer's steps train, which only it may know."""
    from batchbridge.running.spoken import trained

    return f"\n  {trained(request.spec, request.reading.dataset_size)}"


_SECONDS = 60
"""The time that an actor waits for its command to be ended."""


def _end(launch: Launch, text: str) -> NoReturn:
    """The end of a process that trains nothing: it leaves the receipt. An actor of Ray's waits for the command to be
    ended, which would else print the actor's death; if it is not, the actor ends with an error."""
    arrived(f"{JUDGED}-{os.getpid()}", text)
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        raise SystemExit(0)
    from batchbridge.running.launch_ray import announce, in_actor

    announce(launch.run, JUDGED, text)
    if in_actor():
        time.sleep(_SECONDS)
    raise SystemExit(0)


def follow_before(cls: Any, method: str, only: Callable[[Any], bool] = lambda trainer: True) -> None:
    """Makes every object of `cls` follow the launch before its `method` runs, unless it is wrapped already; of these
    `only` those for which it is true.

    For an adapter's hook: it patches the class that the method stands in, which is right here alone, since the process
    belongs to one launched run.
    """
    owner: Any = next(base for base in cls.__mro__ if method in vars(base))
    native = vars(owner)[method]

    @functools.wraps(native)
    def followed(self: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(self, cls) or not only(self):
            return native(self, *arguments, **options)
        launch = current_launch()
        if _judged:
            return native(self, *arguments, **options)
        if "batchbridge" in vars(self) and not (launch is not None and launch.instead):
            # wrapped by this, or by the script itself
            arrived(f"{TRAINER}-{os.getpid()}", self.batchbridge.report())
            return native(self, *arguments, **options)
        follow(self)
        patched = vars(self).get(method)  # the wrapping may have patched the very method that we stand in
        return native(self, *arguments, **options) if patched is None else patched(*arguments, **options)

    setattr(owner, method, followed)


def _meaning(launch: Launch, trainer: Any) -> Any:
    """The meaning that the launch wants: a `Spec`, a `Reading`, or None for the trainer's own configuration."""
    from batchbridge.meaning.spec import Spec
    from batchbridge.reading.read import read

    if launch.spec is not None:
        return Spec.from_dict(launch.spec)
    if launch.like is None:
        return None
    own = read(trainer)
    world_size = None if own.spec is None else own.spec.topology.world_size
    return read(launch.like, version=launch.like_version, world_size=world_size, dataset_size=own.dataset_size)

"""Rows of refusals as they were written before `batchbridge.kit.refusals.Refusals`: a predicate over trainer and
request, and a second one over the configuration.

`batchbridge.kit.refusals` hands these names on with a `DeprecationWarning`; they go two minor releases after they were
replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Reading
from batchbridge.errors import BatchBridgeError
from batchbridge.kit.refusals import Answer, RefusalRow, crosses_rollouts

_Applies = Callable[[Any, Request], object]


def named(name: str) -> Any:
    """What stands under a name that `batchbridge.kit.refusals` had; raises `AttributeError` for any other."""
    if name not in _NEW:
        raise AttributeError(f"module 'batchbridge.kit.refusals' has no attribute {name!r}")
    text = f"batchbridge.kit.refusals.{name} is deprecated: use {_NEW[name]} (docs/plugins.md, Runtimes)"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return globals()[name]


def Refusal(  # the name under which it was a class
    name: str,
    reason: str,
    applies: _Applies,
    allowable: bool = False,
    detail: Callable[[Any, Request], str | None] = lambda trainer, request: None,
    configured: Callable[[Reading], bool | None] | None = None,
    remedy: str = "",
) -> RefusalRow:
    """The row of a predicate over trainer and request. configured: whether it will apply to the trainer that a
    configuration builds, asked where `applies` looks at the trainer; None: the configuration does not say."""

    def test(request: Request) -> Answer:
        if applies is not only_asked:
            try:
                return bool(applies(_NoTrainer(), request))
            except _TrainerNeeded:
                pass
        return None if configured is None else configured(request.reading)

    def live(trainer: Any, request: Request) -> Answer:
        return bool(applies(trainer, request)) and (detail(trainer, request) or True)

    return RefusalRow(name, reason, test, live, remedy, allowable)


def never(reading: Reading) -> bool:
    """`configured` of what a trainer that its own configuration built cannot have."""
    return False


def only_asked(trainer: Any, request: Request) -> bool:
    """`applies` of what no trainer shows, and the configuration alone says."""
    return False


def foretold(refusal: RefusalRow, request: Request) -> bool | None:
    """`RefusalRow.foreseen`."""
    return refusal.foreseen(request)


def step_crosses(trainer: Any, request: Request) -> bool:
    """`crosses_rollouts`, of a trainer."""
    return crosses_rollouts(request)


_NEW = {
    "Refusal": "Refusals.row, or Refusals.live for what only a trainer shows",
    "never": "Refusals.live without foreseen",
    "only_asked": "Refusals.row",
    "foretold": "RefusalRow.foreseen",
    "step_crosses": "crosses_rollouts",
}


class _TrainerNeeded(BatchBridgeError):
    """A refusal looked at the trainer, and there is none yet."""


class _Unbuilt(type):
    @property
    def __mro__(cls) -> Any:  # whose classes are looked at is looked at
        raise _TrainerNeeded


class _NoTrainer(metaclass=_Unbuilt):
    """A stand-in for a trainer that is not built yet."""

    def __getattribute__(self, name: str) -> Any:
        raise _TrainerNeeded

"""The driver's side of a run that is observed or verified: what holds of every framework's own.

Imports no torch; knows no framework.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.errors import CannotAttach
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.kit.workers import Orders, Receipt


class RolloutObserver(abc.ABC):
    """The base of an adapter's observer of rollouts, in the process that makes them.

    request: None of a process that tells completions apart alone, and holds nothing. read: gives the settings that make
    a rollout and its advantages, by name.
    """

    def __init__(self, request: Request | None, orders: Orders, read: Callable[[], Mapping[str, Any]]) -> None:
        self._orders = orders
        self.receipts: list[Receipt] = []
        """The receipts of the training processes that have their orders."""
        self._held: HeldAdvantages | None = None
        self._settings: ProducerSettings | None = None
        if request is not None and request.mode == "verify":
            self._held, self._settings = HeldAdvantages.of(request), ProducerSettings(read)

    @property
    @abc.abstractmethod
    def _rollout(self) -> int:
        """The number of the rollout in hand."""

    @property
    def _next_step(self) -> int:
        """The optimizer step before which the rollout in hand is generated."""
        return self._rollout * self._orders.steps_per_rollout

    def _begin(self) -> None:
        """The checks before a rollout: training processes have their orders (`CannotAttach`), and what makes its
        advantages reads what it did at wrap (`BatchDrift`)."""
        if not self.receipts:
            reason = "no training process has its orders: the trainer did not start as BatchBridge knows it"
            raise CannotAttach({"arrival": reason})
        if self._settings is not None:
            self._settings.require(self._next_step)

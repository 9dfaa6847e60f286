"""A schedule of the learning rate that moves when the plan says so, in place of one that moves once for every call of
the native update.

Its own file: the only code that moves a learning rate; tests change it alone. Imports no torch; knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TickedSchedule:
    """A learning-rate schedule that moves when `due` says so. native: the one that moves with every call."""

    def __init__(self, native: Any, due: Callable[[], bool]) -> None:
        self.native, self._due = native, due

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def step(self, *arguments: Any, **options: Any) -> None:
        """The native clock's step, called after every call of the native function."""
        if self._due():
            self.native.step(*arguments, **options)

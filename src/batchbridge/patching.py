"""Instance patches that can be listed and undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from batchbridge.attach import Change

_ABSENT = object()


class Patches:
    """Attributes set on single objects, remembered in order; `undo` restores each object's own `__dict__` entry."""

    def __init__(self) -> None:
        self._saved: list[Callable[[], None]] = []
        self._changes: list[Change] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was patched so far."""
        return tuple(self._changes)

    def set(self, target: object, attribute: str, value: Any, *, what: str, why: str) -> None:
        """Sets `target.attribute` on the instance. Raises `AttributeError` if it does not exist: a renamed seam."""
        getattr(target, attribute)
        native = vars(target).get(attribute, _ABSENT)
        setattr(target, attribute, value)
        self.made(attribute, functools.partial(_restore, target, attribute, native), what=what, why=why)

    def made(self, attribute: str, undo: Callable[[], None], *, what: str, why: str) -> None:
        """Lists a change that was made elsewhere and that `undo` takes back."""
        self._saved.append(undo)
        self._changes.append(Change(attribute, what, why))

    def note(self, attribute: str, *, what: str, why: str) -> None:
        """Lists a change that is undone elsewhere (a registered callback, say)."""
        self._changes.append(Change(attribute, what, why))

    def undo(self) -> None:
        """Restores everything, last patch first."""
        while self._saved:
            self._saved.pop()()


def _restore(target: object, attribute: str, native: Any) -> None:
    if native is _ABSENT:
        delattr(target, attribute)
    else:
        setattr(target, attribute, native)

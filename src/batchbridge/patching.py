"""Instance patches that can be listed and undone."""

from __future__ import annotations

from typing import Any

from batchbridge.attach import Change

_ABSENT = object()


class Patches:
    """Attributes set on single objects, remembered in order; `undo` restores each object's own `__dict__` entry."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []
        self._changes: list[Change] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was patched so far."""
        return tuple(self._changes)

    def set(self, target: object, attribute: str, value: Any, *, what: str, why: str) -> None:
        """Sets `target.attribute` on the instance. Raises `AttributeError` if it does not exist: a renamed seam."""
        getattr(target, attribute)
        self._saved.append((target, attribute, vars(target).get(attribute, _ABSENT)))
        setattr(target, attribute, value)
        self._changes.append(Change(attribute, what, why))

    def note(self, attribute: str, *, what: str, why: str) -> None:
        """Lists a change that is undone elsewhere (a registered callback, say)."""
        self._changes.append(Change(attribute, what, why))

    def undo(self) -> None:
        """Restores everything, last patch first."""
        while self._saved:
            target, attribute, value = self._saved.pop()
            if value is _ABSENT:
                delattr(target, attribute)
            else:
                setattr(target, attribute, value)

"""Instance patches that can be listed and undone, and functions with other names in reach."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from batchbridge.contract.attachment import Change
from batchbridge.errors import CannotAttach
from batchbridge.kit.observing import Observation

_ABSENT = object()


class Patches:
    """Attributes set on single objects, remembered in order; `undo` restores each object's own `__dict__` entry.

    observation: of the run, whose functions are guarded where it is observed alone.
    """

    def __init__(self, observation: Observation | None = None) -> None:
        self.observation = observation or Observation()
        # How each change is undone, and how what then stands there is seen, for it to be put back.
        self._saved: list[tuple[Callable[[], None], Callable[[], Callable[[], None]] | None]] = []
        self._changes: list[Change] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """The patches so far."""
        return tuple(self._changes)

    def read(
        self,
        target: object,
        attribute: str,
        ours: Callable[..., Any],
        *,
        what: str,
        why: str,
        exchanges: bool = False,
    ) -> Any:
        """The change that `set` makes, for a function that reads what goes through the native one and changes nothing
        that it is given: in a run that is observed alone it is guarded. Returns the native function as `ours` has to
        call it: no other way, or its errors would be taken for ours. exchanges: see `Observation.guarded`."""
        guarded, native = self.observation.guarded(getattr(target, attribute), ours, exchanges=exchanges)
        self.set(target, attribute, guarded, what=what, why=why)
        return native

    def set(self, target: object, attribute: str, value: Any, *, what: str, why: str) -> Any:
        """Sets `target.attribute` on the instance, and returns what it was. Raises `AttributeError` if it does not
        exist, as after a renaming."""
        native, own = getattr(target, attribute), vars(target).get(attribute, _ABSENT)
        setattr(target, attribute, value)

        def again() -> Callable[[], None]:
            # Ours, or what someone else has put in its place since.
            return functools.partial(_restore, target, attribute, vars(target).get(attribute, _ABSENT))

        self._saved.append((functools.partial(_restore, target, attribute, own), again))
        self._changes.append(Change(attribute, what, why))
        return native

    def made(
        self, attribute: str, undo: Callable[[], None], *, what: str, why: str, again: Callable[[], None] | None = None
    ) -> None:
        """Lists a change that was made elsewhere and that `undo` takes back; `again` makes it once more."""
        self._saved.append((undo, None if again is None else lambda: again))
        self._changes.append(Change(attribute, what, why))

    def note(self, attribute: str, *, what: str, why: str) -> None:
        """Lists a change that is undone elsewhere (a registered callback, say)."""
        self._changes.append(Change(attribute, what, why))

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The objects as they were before, but for changes that cannot be made once more; then as they are now, with
        what others have put in a change's place."""
        changes = [(undo, again()) for undo, again in self._saved if again is not None]
        for undo, _ in reversed(changes):
            undo()
        try:
            yield
        finally:
            for _, again in changes:
                again()

    def undo(self) -> None:
        """Restores everything, last patch first. An error of one restoration is raised after all others ran."""
        failed: BaseException | None = None
        while self._saved:
            try:
                self._saved.pop()[0]()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed


def _restore(target: object, attribute: str, native: Any) -> None:
    if native is _ABSENT:
        delattr(target, attribute)
    else:
        setattr(target, attribute, native)


@contextlib.contextmanager
def temporarily(target: object, **values: Any) -> Iterator[None]:
    """Gives an object other attributes for a while; afterwards it has its own again. What it has no attribute of is
    gone again, and a property is set back."""
    before = {name: vars(target).get(name, _ABSENT) for name in values}
    for name in values:
        if isinstance(getattr(type(target), name, None), property):
            before[name] = getattr(target, name)
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            _restore(target, name, value)


def rebound(function: Any, **names: Any) -> Any:
    """A function of the given code with some of its global names bound otherwise; the original and its module stay as
    they are.

    Raises `CannotAttach` for a name that the code does not use, as after a renaming.
    """
    code, scope = function.__code__, function.__globals__
    unknown = names.keys() - set(code.co_names)
    if unknown:
        raise CannotAttach({"seam": f"{function.__qualname__} does not use {', '.join(sorted(unknown))}"})
    made = types.FunctionType(code, {**scope, **names}, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made

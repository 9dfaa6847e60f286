"""Observing that ends by itself: what our reading of a run cannot follow ends the observing, never the run.

In mode "observe" every function that we put in a native one's place is guarded: an error of ours turns the observing
off, is said once on the terminal and in the ledger, and the native function's own result is handed on. An error of the
native function is the run's, and passes. In the modes "enforce" and "verify" nothing here does anything: there an error
of ours stops the run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Mode
from batchbridge.errors import CannotAttach

GatherOfRanks = Callable[[Sequence[Any]], Sequence[Any]]
"""A function that gives every rank's items, of this rank's; collective."""


def _tell_no_more(why: str) -> None:
    """Nothing: a process without a ledger. A function of the module, since an `Observation` travels by pickle."""


class Observation:
    """The state of one process's observing: whether it goes on, and why not.

    over: nothing is read any more, since something could not be. Where several processes train together, one that fails
    says so to the others at the next `agree`, so that none waits for it in an exchange.
    """

    def __init__(self, mode: Mode = "enforce") -> None:
        self.observes = mode == "observe"
        self.why: str | None = None
        """The reason why nothing is read any more; of this process, or of another that trains with it."""
        self.when_over: Callable[[str], None] = _tell_no_more
        """The function that is called with the reason, once: the ledger says so, too."""
        self._agreed = False

    @property
    def over(self) -> bool:
        """Whether nothing is read any more."""
        return self.why is not None

    @property
    def ended(self) -> bool:
        """Whether all processes that train together know that it is over."""
        return self._agreed

    def read(self, function: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:
        """A function of ours, which calls none of the framework's: its result, or `default` where it fails or where the
        observing is over."""
        if not self.observes:
            return function(*arguments)
        if self.over:
            return default
        try:
            return function(*arguments)
        except Exception as error:
            self.fail(error)
            return default

    def hook(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of ours that a framework calls beside its own, and whose result it does not use."""
        return functools.partial(self.read, function) if self.observes else function

    def fail(self, error: Exception) -> None:
        """Ends the observing in this process, and says so, once."""
        if self.over:
            return
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in place)
        reasons = error.reasons if isinstance(error, CannotAttach) else {type(error).__name__: error}
        self.why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) + where
        print(f"batchbridge: the observing has ended, and the run goes on: {self.why}", file=sys.stderr, flush=True)
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(Exception):  # a ledger that cannot be written may be what failed
            self.when_over(self.why or "")

    def agree(self, exchange: GatherOfRanks) -> bool:
        """Whether the observing goes on in all processes that train together. Collective until it does not."""
        if not self.observes or self._agreed:
            return not self._agreed
        said = list(exchange([self.why]))
        if self.why is None:
            found = next(((rank, why) for rank, why in enumerate(said) if why is not None), None)
            if found is not None:
                self.why = f"on rank {found[0]}: {found[1]}"
                self._leave()
        self._agreed = self.over
        return not self._agreed

    def guarded(
        self, native: Callable[..., Any], ours: Callable[..., Any], *, exchanges: bool = False
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The function `ours`, in whose place the native one stands as soon as `ours` fails; and the native one as
        `ours` calls it. Where `ours` is awaited, so is the native one. exchanges: `ours` exchanges something with other
        processes, and is called until they agree that the observing is over."""
        if not self.observes:
            return ours, native

        def left() -> bool:
            return self._agreed or (self.over and not exchanges)

        if inspect.iscoroutinefunction(ours):
            awaited = _HeardAwaited(native)

            @functools.wraps(ours)
            async def await_(*arguments: Any, **options: Any) -> Any:
                if left():
                    return await native(*arguments, **options)
                with awaited.call() as seen:
                    try:
                        return await ours(*arguments, **options)
                    except Exception as error:
                        given = self._given(seen, error)
                return given[0] if given else await native(*arguments, **options)

            return await_, awaited
        heard = _Heard(native)

        @functools.wraps(ours)
        def call(*arguments: Any, **options: Any) -> Any:
            if left():
                return native(*arguments, **options)
            with heard.call() as seen:
                try:
                    return ours(*arguments, **options)
                except Exception as error:
                    given = self._given(seen, error)
            return given[0] if given else native(*arguments, **options)

        return call, heard

    def _given(self, seen: _Seen, error: Exception) -> tuple[Any, ...]:
        """The native function's result in a call of ours that ended with `error`, if it was called; its own error is
        raised."""
        if seen.raised is error:
            raise error
        if seen.raised is not None:
            raise seen.raised from None
        self.fail(error)
        return seen.returned


_CALLS: ContextVar[tuple[_Seen, ...]] = ContextVar("batchbridge_calls", default=())
"""The calls of ours that go on in this thread, and in this task of an event loop; the innermost is the last."""


class _Seen:
    """The native function's part in one call of ours."""

    def __init__(self, heard: _Heard) -> None:
        self.heard = heard
        self.returned: tuple[Any, ...] = ()
        self.raised: Exception | None = None
        self._before: Token[tuple[_Seen, ...]] | None = None

    def __enter__(self) -> _Seen:
        self._before = _CALLS.set((*_CALLS.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._before is not None, "entered before it is left"
        _CALLS.reset(self._before)


class _Heard:
    """A native function that remembers what it gave in the call of ours that goes on."""

    def __init__(self, native: Callable[..., Any]) -> None:
        self._native = native

    def call(self) -> _Seen:
        """The span of a call of ours."""
        return _Seen(self)

    @property
    def _seen(self) -> _Seen:
        return next((seen for seen in reversed(_CALLS.get()) if seen.heard is self), _Seen(self))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            result = self._native(*arguments, **options)
        except Exception as error:
            self._seen.raised = error
            raise
        self._seen.returned = (result,)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class _HeardAwaited(_Heard):
    """The same, of a native function that is awaited."""

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            result = await self._native(*arguments, **options)
        except Exception as error:
            self._seen.raised = error
            raise
        self._seen.returned = (result,)
        return result

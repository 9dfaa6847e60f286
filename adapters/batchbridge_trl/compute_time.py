"""The seconds that a rank computes in an optimizer step, which the ledger has as `compute_seconds`.

A rank's clock stands still while Accelerate's `gather` and `reduce` run, which wait for the other ranks, and stops in
backward with the last gradient, behind which DDP waits. On a GPU it is made of events of the stream, and nothing waits
for them before the step is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from batchbridge.kit.patches import temporarily


class ComputeTime:
    """The seconds of one trainer's micro-batches on this rank. sharded: whether ranks wait for each other inside of the
    model, where no clock tells computing from waiting."""

    def __init__(self, trainer: Any, *, sharded: bool) -> None:
        self._trainer, self._accelerator = trainer, trainer.accelerator
        self._timed = not sharded and self._accelerator.device.type in ("cpu", "cuda")
        self._clocks: list[Clock] = []

    @contextlib.contextmanager
    def micro_batch(self) -> Iterator[None]:
        """The span in which one micro-batch runs forward and backward."""
        if not self._timed:
            yield
            return
        accelerator, clock = self._accelerator, Clock(self._accelerator.device)
        with contextlib.ExitStack() as stack:
            if accelerator.num_processes > 1:
                waits = {name: clock.standing(getattr(accelerator, name)) for name in ("gather", "reduce")}
                stack.enter_context(temporarily(accelerator, **waits))
                if (first := self._first_weight) is not None:  # the last one whose gradient is made
                    stack.callback(first.register_post_accumulate_grad_hook(clock.look).remove)
            clock.go()
            yield
            clock.stop()
        self._clocks.append(clock)

    @property
    def _first_weight(self) -> torch.nn.Parameter | None:
        return next((one for one in self._trainer.model.parameters() if one.requires_grad), None)

    def of_the_step(self) -> float | None:
        """The seconds of all micro-batches since the last call; None: no clock can tell."""
        seconds = [clock.seconds() for clock in self._clocks]
        self._clocks.clear()
        return sum(seconds) if self._timed else None


class Clock:
    """One micro-batch's time: its moments, of which every second one starts the clock."""

    moment: Callable[[], Any] = staticmethod(time.perf_counter)
    """The time now, on a CPU (seconds)."""

    def __init__(self, device: torch.device) -> None:
        self._moment = _event if device.type == "cuda" else self.moment
        self._spans: list[tuple[Any, Any]] = []
        self._began: Any = None
        self._last_gradient: Any = None

    def go(self) -> None:
        """Starts it, or starts it again."""
        self._began, self._last_gradient = self._moment(), None

    def stop(self) -> None:
        """Stops it; in backward, it has stopped with the last gradient."""
        self._spans.append((self._began, self._moment() if self._last_gradient is None else self._last_gradient))

    def look(self, _: Any) -> None:
        """A gradient is there."""
        self._last_gradient = self._moment()

    def standing(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """A `collective` while which the clock stands still."""

        def waited(*arguments: Any, **options: Any) -> Any:
            self.stop()
            try:
                return collective(*arguments, **options)
            finally:
                self.go()

        return waited

    def seconds(self) -> float:
        """The seconds of all spans; on a GPU, once they are over."""
        return sum(_between(*span) for span in self._spans)


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(began: Any, ended: Any) -> float:
    if isinstance(began, float):
        return float(ended - began)
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000

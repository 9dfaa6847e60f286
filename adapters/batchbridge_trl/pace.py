"""The time that each micro-batch of a run takes on this rank, and the cost model that all ranks fit to it together.

A rank's clock stands still while Accelerate's `gather` and `reduce` run, which wait for the other ranks, and stops in
backward with the last gradient, behind which DDP waits. On a GPU it is made of events of the stream, and nothing waits
for them before the step is over.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object

from batchbridge.kit import Observed, StepCost, Terms, fit_cost
from batchbridge.kit.patches import temporarily

_SENT = 2048
"""Micro-batches that all ranks together fit a model to, at most."""
_LEAST_SENT = 2
_KEPT = 4096
"""Micro-batches of this rank that are remembered, the newest."""


class Pace:
    """The seconds of one trainer's micro-batches, and `cost`, which every rank has alike: rank 0 fits it, and all get
    what it found. sharded: whether ranks wait for each other inside of the model, where no clock tells them apart."""

    def __init__(self, trainer: Any, *, sharded: bool) -> None:
        self._trainer, self._accelerator = trainer, trainer.accelerator
        self._timed = not sharded and self._accelerator.device.type in ("cpu", "cuda")
        self._fitted: StepCost | None = None
        self.seconds: float | None = None
        """The seconds that this rank computed in the micro-batches of the last step; None: no clock can tell."""
        self._clocks: list[tuple[Observed, Clock]] = []
        self._observed: deque[Observed] = deque(maxlen=_KEPT)
        self._steps = 0
        self._warm = False

    @property
    def cost(self) -> StepCost:
        """The cost of a micro-batch: as fitted, or as assumed before."""
        return self._fitted or self._assumed

    @functools.cached_property
    def _assumed(self) -> StepCost:
        config = self._trainer.model.config.get_text_config()
        return StepCost.assumed(getattr(config, "hidden_size", None))

    @property
    def fits(self) -> bool:
        """Whether times decide how a step is cut; not in a run that is to be the same bit for bit every time."""
        exact = self._trainer.args.full_determinism or torch.are_deterministic_algorithms_enabled()
        return self._timed and not exact

    @contextlib.contextmanager
    def turn(self, terms: Terms) -> Iterator[None]:
        """The span in which one micro-batch runs forward and backward. terms: its size."""
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
        self._clocks.append((Observed(accelerator.process_index, terms, 0.0), clock))

    @property
    def _first_weight(self) -> torch.nn.Parameter | None:
        return next((one for one in self._trainer.model.parameters() if one.requires_grad), None)

    def step_done(self, *, by_tokens: bool) -> None:
        """The end of a step, after its last micro-batch; where it is due, the model is fitted to what was seen so far.
        Collective. by_tokens: whether steps are cut by the model."""
        found = [one._replace(seconds=clock.seconds()) for one, clock in self._clocks]
        self._clocks.clear()
        self.seconds = sum(one.seconds for one in found) if self._timed else None
        self._steps += 1
        if not (by_tokens and self.fits):
            return
        # What a process's first micro-batch takes, memory and kernels being got ready, it never takes again.
        self._observed += found if self._warm else found[1:]
        self._warm = True
        if self._due:
            self._fit()

    @property
    def _due(self) -> bool:
        """Whether the model is fitted after this step: after the first, the second, the fourth, the eighth, ..."""
        return self._steps & (self._steps - 1) == 0

    def _fit(self) -> None:
        ranks = self._accelerator.num_processes
        mine = _spread(list(self._observed), max(_SENT // ranks, _LEAST_SENT))
        if ranks == 1:
            self._fitted = fit_cost(mine, self._assumed, ranks=1)
            return
        everyone = [Observed(*one) for one in gather_object([tuple(one) for one in mine])]
        fitted = fit_cost(everyone, self._assumed, ranks=ranks) if self._accelerator.is_main_process else None
        # Ranks that computed it each by itself could differ in a last bit, and then in who trains what.
        (self._fitted,) = broadcast_object_list([fitted])

    def clear(self) -> None:
        """Forgets the model and every time."""
        self._fitted, self._steps = None, 0
        self._clocks.clear()
        self._observed.clear()

    def state(self) -> dict[str, Any]:
        """The part that a checkpoint stores: plain values."""
        return {"cost": None if self._fitted is None else dict(vars(self._fitted)), "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on with what a checkpoint stored."""
        cost, self._steps = state["cost"], state["steps"]
        self._fitted = None if cost is None else StepCost(**cost)


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


def _spread(observed: list[Observed], most: int) -> list[Observed]:
    """A sample of at most so many, over all of them evenly: a step's are of falling length."""
    if len(observed) <= most:
        return observed
    return [observed[place * len(observed) // most] for place in range(most)]

"""The learning rate of each tick of a schedule, by the text of `carried.lr_schedule` (`batchbridge.kit.schedules`).

The formulas are transformers' (optimization.py, 5.23.0); verl's and EasyR1's cosine with a floor is the same curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.meaning.spec import Carried

WARMUP_START = "warmup_start_rate"
"""Argument: the share of the peak at which the warm-up begins; left out where that is 0."""

Curve = Callable[[float, Mapping[str, Any]], float]
"""A share of the peak, given the share of the ticks after the warm-up that are over (0 to 1) and the arguments."""


def _cosine(over: float, arguments: Mapping[str, Any]) -> float:
    floor = float(arguments.get("min_lr_rate", 0.0))
    wave = 0.5 * (1.0 + math.cos(2.0 * math.pi * float(arguments.get("num_cycles", 0.5)) * over))
    return max(0.0, wave * (1.0 - floor) + floor)


_CURVES: Mapping[str, tuple[Curve, frozenset[str]]] = {
    "constant": (lambda over, arguments: 1.0, frozenset()),
    "linear": (lambda over, arguments: max(0.0, 1.0 - over), frozenset()),
    "cosine": (_cosine, frozenset({"num_cycles"})),
    "cosine_with_min_lr": (_cosine, frozenset({"num_cycles", "min_lr_rate"})),
}
"""Name of a schedule: its curve, and the arguments that the curve knows. Every other schedule is not recomputed."""


def schedule_parts(text: str) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of a text. Raises `ValueError` where the arguments are not a JSON mapping."""
    name, _, rest = text.partition(" ")
    if not rest:
        return name, {}
    import json

    arguments = json.loads(rest)
    if not isinstance(arguments, dict):
        raise ValueError(f"{rest} is not a JSON mapping")
    return name, arguments


class ScheduleRates:
    """The rates of one run: `rate(tick)` for ticks from 0.

    carried: the learning rate, its schedule and warm-up. ticks: of the whole run. round_warmup: how a share of the run
    becomes a number of ticks (`math.ceil` in transformers and OpenRLHF, `math.floor` in verl and EasyR1). Raises
    `ValueError`, with the reason, where the schedule is not known.
    """

    def __init__(self, carried: Carried, ticks: int, round_warmup: Callable[[float], int] = math.ceil) -> None:
        if carried.learning_rate is None or carried.lr_schedule is None:
            raise ValueError("the specification leaves the learning rate or its schedule open")
        name, self._arguments = schedule_parts(carried.lr_schedule)
        self._start = self._arguments.pop(WARMUP_START, 0.0)
        found = _CURVES.get(name)
        numbers = all(isinstance(number, (int, float)) for number in (*self._arguments.values(), self._start))
        if found is None or not numbers or not self._arguments.keys() <= found[1]:
            raise ValueError(f"the schedule {carried.lr_schedule} is not recomputed")
        self._curve: Curve = found[0]
        self._peak, self._ticks = carried.learning_rate, ticks
        if carried.warmup_steps is not None:
            self._warmup = math.ceil(carried.warmup_steps)
        else:
            self._warmup = round_warmup((carried.warmup_ratio or 0.0) * ticks)

    def rate(self, tick: int) -> float:
        """The rate of the optimizer steps before which the schedule has advanced `tick` times."""
        if tick < self._warmup:
            return self._peak * float(self._start + (1.0 - self._start) * tick / self._warmup)
        over = (tick - self._warmup) / max(1, self._ticks - self._warmup)
        return self._peak * self._curve(over, self._arguments)

"""The groups of an optimizer of torch, held before each update: learning rates against the schedule that gives them;
weight decay, betas, epsilon and momentum against what they were when the run began.

A step applies what the optimizer and its schedule say, whatever built them. Another write to a group departs, unless
`allow` names it. Rates that no schedule tells are recorded as they are. Imports no torch; knows no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from batchbridge.kit.allowing import LEARNING_RATE, OPTIMIZER_SETTINGS, WEIGHT_DECAY

_HELD = {"weight_decay": WEIGHT_DECAY, **dict.fromkeys(("betas", "eps", "momentum"), OPTIMIZER_SETTINGS)}
"""The values of a group, in torch's words, that stay as they were; and the name of `allow` that lets others write
them."""

Group = Mapping[str, Any]


class GroupObjection(str):
    """An objection to what an optimizer's group holds. aspect: of the step, as in `BatchDrift`; a name of `allow`."""

    aspect = LEARNING_RATE

    @classmethod
    def of(cls, said: str, aspect: str) -> GroupObjection:
        """The objection that is said, with the way out. Other ranks get it pickled, with its aspect."""
        made = cls(f'{said}: something else has written it; allow=("{aspect}",) lets it')
        made.aspect = aspect
        return made


class HeldGroups:
    """The groups of one optimizer. allowed: what may be written by others, by the names of `allow`."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)
        self._first: list[dict[str, Any]] | None = None

    def begin(self, optimizer: Any) -> None:
        """Takes what the groups hold now for what they should hold. Without a call, the first update does."""
        self._first = [{key: group[key] for key in _HELD if key in group} for group in _groups(optimizer)]

    def objections(self, optimizer: Any, schedule: Any) -> list[GroupObjection]:
        """Objections to the groups right before an update. schedule: the scheduler of the learning rate; None where
        the framework has none of torch's."""
        groups = _groups(optimizer)
        if self._first is None or len(self._first) != len(groups):  # another optimizer is told by its parameters
            self.begin(optimizer)
        found: list[GroupObjection] = []
        if LEARNING_RATE not in self._allowed:
            rates = [{"learning_rate": group.get("lr")} for group in groups]
            given = [{"learning_rate": rate} for rate in rates_of(schedule)]
            found += _departing(rates, given, "its schedule gives", lambda _: LEARNING_RATE)
        free = {*self._allowed, *([OPTIMIZER_SETTINGS] if _moves_momentum(schedule) else [])}
        said = [{key: value for key, value in group.items() if _HELD[key] not in free} for group in self._first or ()]
        return [*found, *_departing(groups, said, "when the run began it had", _HELD.__getitem__)]


def applied_rate(optimizer: Any) -> float:
    """The learning rate that an optimizer applies, as far as it says so in torch's words; NaN: it does not."""
    groups = _groups(optimizer) or [{}]
    rate = groups[0].get("lr")
    return math.nan if rate is None else float(rate)


def _groups(optimizer: Any) -> Sequence[Group]:
    return getattr(optimizer, "param_groups", None) or ()


def rates_of(schedule: Any) -> Sequence[Any]:
    """The rates that a schedule has set, by group; empty where it does not tell."""
    try:
        return list(schedule.get_last_lr())
    except (AttributeError, AssertionError, NotImplementedError, TypeError):
        return []  # DeepSpeed's own has set none before its first step


def _moves_momentum(schedule: Any) -> bool:
    """Whether a schedule moves momentum or betas, too. Source: torch 2.13.0 optim/lr_scheduler.py, OneCycleLR and
    CyclicLR; accelerate keeps torch's scheduler in `scheduler`."""
    return bool(getattr(getattr(schedule, "scheduler", schedule), "cycle_momentum", False))


def _departing(
    have: Sequence[Group], want: Sequence[Group], by: str, name: Callable[[str], str]
) -> list[GroupObjection]:
    """Objections to the values of groups that are others than those wanted. by: who gives these; name: the aspect of
    a value."""
    if len(have) != len(want):
        return []
    return [
        GroupObjection.of(
            f"group {place} of the optimizer has {key} {_text(mine[key])}, and {by} {_text(value)}", name(key)
        )
        for place, (mine, wanted) in enumerate(zip(have, want, strict=True))
        for key, value in wanted.items()
        if not _same(mine.get(key), value)
    ]


def _numbers(value: Any) -> tuple[float, ...]:
    """A group's value as numbers: two of betas, none of an optimizer that works it out by itself."""
    if value is None:
        return ()
    return tuple(float(one) for one in value) if isinstance(value, list | tuple) else (float(value),)


def _same(mine: Any, wanted: Any) -> bool:
    """Whether two values agree, or one of them is not there."""
    pairs = zip(_numbers(mine), _numbers(wanted), strict=False)
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-30) for one, other in pairs)


def _text(value: Any) -> str:
    return " and ".join(f"{one:.6g}" for one in _numbers(value))

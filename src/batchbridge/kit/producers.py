"""The producer of a rollout's advantages: the settings that it reads, which stay what they were when the trainer was
wrapped, and what it gives, held against what a rule of the specification makes of the rewards. Imports no torch; knows
no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from batchbridge.contract.attachment import Request
from batchbridge.errors import BatchDrift
from batchbridge.kit.allowing import ADVANTAGES
from batchbridge.meaning.advantages import RULED, group_advantages
from batchbridge.meaning.rounding import float32_rooms
from batchbridge.meaning.spec import Advantage


class ProducerSettings:
    """The settings that generation, scoring and advantages read. read: gives their values of now, by name."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._at_wrap = dict(read())

    def objection(self) -> str | None:
        """The objection that settings were changed since the trainer was wrapped."""
        changed = [
            f"{name} was {self._at_wrap.get(name)} when the trainer was wrapped, and is {value}"
            for name, value in self._read().items()
            if self._at_wrap.get(name) != value
        ]
        return None if not changed else f'{"; ".join(changed)}: wrap it again after the change, or with mode="observe"'

    def require(self, step: int) -> None:
        """The check (`BatchDrift`), before the rollout of an optimizer step, that no setting was changed."""
        if (why := self.objection()) is not None:
            raise BatchDrift(step, "settings", why)


def settings_below(root: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The settings of a configuration at and below dotted keys: groups are mappings, dataclasses or namespaces. A key
    that is not there is None; a value that is no plain one is its text."""
    found: dict[str, Any] = {}

    def look(key: str, value: Any) -> None:
        if hasattr(value, "items"):
            inner = dict(value.items())
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            inner = vars(value)
        else:
            found[key] = value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
            return
        for name, one in inner.items():
            look(f"{key}.{name}", one)

    for key in keys:
        value = root
        for name in key.split("."):
            value = getattr(value, name, None)
        look(key, value)
    return found


class RuledAdvantages(NamedTuple):
    """The advantages that a rule makes of rewards. rooms: how far rounding may move each."""

    values: list[float]
    rooms: list[float]


def is_recomputed(rule: Advantage) -> bool:
    """Whether the rewards of a completion's group give its advantage by this rule. A deviation of a whole rollout is
    taken over tokens by some frameworks, and over completions by others."""
    return rule.baseline in RULED and rule.scale != "batch"


def ruled_advantages(rewards: Sequence[float], rule: Advantage, size: int) -> RuledAdvantages:
    """The advantages of groups of `size` completions, which follow each other."""
    groups = [list(rewards[start : start + size]) for start in range(0, len(rewards), size)]
    wanted = group_advantages(groups, rule)
    rooms = float32_rooms(groups, wanted, rule)
    return RuledAdvantages(
        [one for group in wanted for one in group],
        [room for room, group in zip(rooms, groups, strict=True) for _ in group],
    )


def advantage_objection(found: Iterable[tuple[int, float]], ruled: RuledAdvantages) -> str | None:
    """The objection that an advantage is not what its group's rewards give. found: (number of the completion in the
    rollout, an advantage of it), of one that a token has or of all."""
    for place, value in found:
        if not abs(value - ruled.values[place]) <= ruled.rooms[place]:
            return (
                f"completion {place} of the rollout has the advantage {value:.6g}, and its rewards give "
                f'{ruled.values[place]:.6g}: where a function of your own makes them, allow=("{ADVANTAGES}",) trains '
                "on what it gives"
            )
    return None


class HeldAdvantages:
    """The advantages of a run's rollouts: held against what the trainer's own rule makes of the rewards, and, where the
    plan is enforced, replaced by the requested rule's.

    A function of the user's own that is allowed is neither held nor replaced. own, asked: the trainer's rule and the
    requested one. size: completions of a group.
    """

    def __init__(self, own: Advantage, asked: Advantage, size: int, *, allowed: bool = False) -> None:
        self._own, self._asked, self.size, self.allowed = own, asked, size, allowed

    @classmethod
    def of(cls, request: Request) -> HeldAdvantages:
        """Those of a trainer that follows a request. A run that is not enforced keeps its own rule."""
        own = request.reading.spec
        assert own is not None, "wrap refuses a trainer whose own configuration is not read"
        enforces = request.mode == "enforce"
        asked = request.spec if enforces else own
        size = asked.rollout.completions_per_prompt or 1
        return cls(own.advantage, asked.advantage, size, allowed=ADVANTAGES in request.allow)

    @property
    def looks(self) -> bool:
        """Whether rewards are needed at all."""
        return not self.allowed and (is_recomputed(self._own) or is_recomputed(self._asked))

    def hold(
        self,
        rewards: Sequence[float],
        found: Iterable[tuple[int, float]],
        step: int,
        *,
        larger: float = 1.0,
        coarse: float = 0.0,
    ) -> None:
        """The check (`BatchDrift` at `step`) of a whole rollout's advantages. rewards: of its completions, group by
        group. found: see `advantage_objection`. larger: the factor of the rooms for rounding. coarse: how far, relative
        to it, a type that is coarser than float32 rounds an advantage."""
        # A group of one has no rule that frameworks share.
        if self.allowed or not is_recomputed(self._own) or self.size == 1:
            return
        values, rooms = ruled_advantages(rewards, self._own, self.size)
        wider = [room * larger + coarse * abs(value) for value, room in zip(values, rooms, strict=True)]
        if (why := advantage_objection(found, RuledAdvantages(values, wider))) is not None:
            raise BatchDrift(step, ADVANTAGES, why)

    def hold_tokens(self, columns: Iterable[Sequence[Any]], step: int) -> list[float]:
        """The check `hold` over columns: rewards, masks and advantages, tensors of each completion's tokens. Returns
        the completions' rewards."""
        rewards, masks, found = columns
        sums = [float(tokens.sum()) for tokens in rewards]
        # What is summed up over tokens is rounded with each of them.
        largest = max((float(tokens.abs().sum()) for tokens in rewards), default=0.0)
        spread = max(map(abs, sums), default=0.0)
        each = (
            (place, float(value))
            for place, (values, mask) in enumerate(zip(found, masks, strict=True))
            if bool(mask.any())
            for value in values[mask.bool()].aminmax()
        )
        self.hold(sums, each, step, larger=max(largest / spread, 1.0) if spread else 1.0)
        return sums

    def replacing(self, rewards: Sequence[float]) -> list[float] | None:
        """The advantages of a rollout's completions by the requested rule; None: those that are there stay, since a
        function of the user's own makes them and is allowed, or since that rule is none of rewards."""
        if self.allowed or not is_recomputed(self._asked):
            return None
        return ruled_advantages(rewards, self._asked, self.size).values

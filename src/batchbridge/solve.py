"""The nearest legal neighbours of an illegal configuration: what a person could change, by how little.

A caller names its integer variables with their present values and says, for a whole assignment, whether it is legal.
One variable is changed at a time where that suffices, then two, then more; nothing is ever assumed about the rule, so
any mixture of divisibility, bounds and products works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

Legal = Callable[[Mapping[str, int]], bool]

_LARGEST_OPEN_MAXIMUM = 1 << 20
"""Where the search for an open-ended variable gives up: no batch setting of a real run is larger."""


@dataclass(frozen=True)
class Variable:
    """An integer that may be changed: its present `value`, its smallest legal value, and its largest (None: open)."""

    name: str
    value: int
    minimum: int = 1
    maximum: int | None = None


class TooFar(ValueError):
    """Nothing legal was found within the budget of `tried` questions: too far away to be worth a proposal."""

    def __init__(self, tried: int) -> None:
        super().__init__(f"nothing legal among the {tried} nearest assignments")
        self.tried = tried


class Unsatisfiable(ValueError):
    """No assignment within the bounds is legal: `bounds` names them."""

    def __init__(self, bounds: Mapping[str, tuple[int, int]]) -> None:
        said = ", ".join(f"{low} <= {name} <= {high}" for name, (low, high) in bounds.items())
        super().__init__(f"no legal values with {said}")
        self.bounds = dict(bounds)


def neighbours(variables: Sequence[Variable], legal: Legal, *, budget: int = 200_000) -> tuple[dict[str, int], ...]:
    """Nearest legal changes, each as {name: new value}; never empty.

    For every variable the nearest legal values below and above its present one, the others unchanged, in the order of
    `variables`. Where no single change works: for every pair the nearest change of both (smallest larger step first,
    then smallest sum), nearest pair first; then triples, and so on. `legal` sees all names. Raises `Unsatisfiable` when
    nothing within the bounds is legal; an open maximum grows until something is found, at most to 2**20. `budget`
    bounds how often `legal` is asked, and so the time, whatever the values: `TooFar` when it is spent without a find;
    what was found by then is returned.
    """
    ask = _Budget(legal, budget)
    try:
        return _neighbours(variables, ask)
    except TooFar:
        if ask.found:
            return tuple(ask.found)
        raise


class _Budget:
    """`legal`, asked at most so often; remembers single changes that were found before it ran out."""

    def __init__(self, legal: Legal, budget: int) -> None:
        self._legal, self._budget, self._left = legal, budget, budget
        self.found: list[dict[str, int]] = []

    def __call__(self, assignment: Mapping[str, int]) -> bool:
        if not self._left:
            raise TooFar(self._budget)
        self._left -= 1
        return self._legal(assignment)


def _neighbours(variables: Sequence[Variable], legal: _Budget) -> tuple[dict[str, int], ...]:
    present = {variable.name: variable.value for variable in variables}
    reach = {v.name: _first_maximum(v) for v in variables}
    while True:
        for variable in variables:
            legal.found += _single(variable, reach[variable.name], present, legal)
        if legal.found:
            return tuple(legal.found)
        for count in range(2, len(variables) + 1):
            found = [_nearest(group, reach, present, legal) for group in combinations(variables, count)]
            changes = [change for change in found if change is not None]
            if changes:
                return tuple(sorted(changes, key=lambda change: _distance(change, present)))
        growing = [v for v in variables if v.maximum is None and reach[v.name] < _LARGEST_OPEN_MAXIMUM]
        if not growing:
            raise Unsatisfiable({v.name: (v.minimum, reach[v.name]) for v in variables})
        for variable in growing:
            reach[variable.name] = min(4 * reach[variable.name], _LARGEST_OPEN_MAXIMUM)


def _first_maximum(variable: Variable) -> int:
    if variable.maximum is not None:
        return variable.maximum
    return max(2 * variable.value, variable.value + 64, variable.minimum + 64)


def _single(variable: Variable, maximum: int, present: Mapping[str, int], legal: Legal) -> Iterator[dict[str, int]]:
    below = range(min(variable.value - 1, maximum), variable.minimum - 1, -1)
    above = range(max(variable.value + 1, variable.minimum), maximum + 1)
    for values in (below, above):
        for value in values:
            if legal({**present, variable.name: value}):
                yield {variable.name: value}
                break


def _nearest(
    group: tuple[Variable, ...], reach: Mapping[str, int], present: Mapping[str, int], legal: Legal
) -> dict[str, int] | None:
    """The nearest legal change of all of `group`: shells of growing largest step, the smallest sum inside a shell."""
    farthest = max(max(abs(v.value - v.minimum), abs(reach[v.name] - v.value)) for v in group)
    for radius in range(1, farthest + 1):
        hits = [change for change in _shell(group, reach, radius) if legal({**present, **change})]
        if hits:
            return min(hits, key=lambda change: (_distance(change, present), tuple(change.values())))
    return None


def _shell(group: tuple[Variable, ...], reach: Mapping[str, int], radius: int) -> Iterator[dict[str, int]]:
    """Every assignment that changes all of `group`, the largest step being exactly `radius`."""
    names = [v.name for v in group]
    inside = [_steps(v, reach[v.name], range(1, radius)) for v in group]
    edge = [_steps(v, reach[v.name], range(radius, radius + 1)) for v in group]
    for at_edge in product((False, True), repeat=len(group)):
        if any(at_edge):
            choices = [edge[i] if at_edge[i] else inside[i] for i in range(len(group))]
            for values in product(*choices):
                yield dict(zip(names, values, strict=True))


def _steps(variable: Variable, maximum: int, steps: range) -> list[int]:
    values = [variable.value + sign * step for step in steps for sign in (-1, 1)]
    return [value for value in values if variable.minimum <= value <= maximum]


def _distance(change: Mapping[str, int], present: Mapping[str, int]) -> tuple[int, int]:
    steps = [abs(value - present[name]) for name, value in change.items()]
    return max(steps), sum(steps)

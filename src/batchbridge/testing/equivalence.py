"""Whether two finished runs trained the same: their ledgers, gradients and trajectories. See docs/equivalence.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from batchbridge.ledger import diff

if TYPE_CHECKING:
    import torch

TRAJECTORY_BAR = 1e-5
"""`norm(Da - Db) / norm(Db)` of two runs' movements, and of their gradients at the first step, in float32.

A movement is that of what the policy says (`says` of `compare`) where the comparison knows the policy, else that of its
parameters, which float32 itself rounds. Later gradients are taken at parameters that float noise has parted already,
and are measured but not judged here: the movement is what they add up to, and the oracle of
`batchbridge.testing.oracle` is what each is held against at its own parameters."""
CONTROL = 10 * TRAJECTORY_BAR
"""The least distance of a negative control: a run that trains something else, or with one fault in it."""
LEAST_MOVEMENT = 0.01
"""The least movement, as a share of the parameters' norm: a run that moves less than that shows nothing."""
ADAM_EPSILON = 3e-3
"""AdamW's epsilon wherever trajectories of the tiny policy are compared: 100,000 times the rounding noise of its
gradients (3e-8 per element), half of the smallest gradients' root mean square or less (7e-3 to 2e-1). See
docs/testing.md for what a smaller one does."""
LEDGER_RTOL = 1e-4
"""The relative tolerance of rewards, advantages and weights: frameworks compute them in float32."""


@dataclass(frozen=True)
class FinishedRun:
    """The place of a run's ledger, and of its steps (`batchbridge.testing.snapshots`); None: they were not kept."""

    ledger: Path
    steps: Path | None = None

    @classmethod
    def at(cls, place: FinishedRun | str | PathLike[str]) -> FinishedRun:
        """`place`, a folder with `ledger` and perhaps `steps` in it, or itself a ledger."""
        if isinstance(place, FinishedRun):
            return place
        folder = Path(place)
        if not (folder / "ledger").is_dir():
            return cls(folder)
        return cls(folder / "ledger", folder / "steps" if (folder / "steps").is_dir() else None)


@dataclass(frozen=True)
class RunDistance:
    """The distance between two runs. ledger: None, or the first difference in words. gradients: of each step, `norm(a -
    b) / norm(b)`. trajectory: the same of the movements. movement: of b's parameters, relative to their norm at the
    start. None: the runs kept no steps."""

    ledger: str | None
    gradients: tuple[float, ...] | None = None
    trajectory: float | None = None
    movement: float | None = None

    def problems(self, bar: float = TRAJECTORY_BAR) -> list[str]:
        """The objections to calling the runs equal; empty: nothing."""
        found = [] if self.ledger is None else [self.ledger]
        if self.gradients is not None and not self.gradients[0] <= bar:
            found.append(f"optimizer step 0: gradients differ by {self.gradients[0]:.2e}, bar {bar:.0e}")
        if self.trajectory is not None and not self.trajectory <= bar:
            found.append(f"trajectories differ by {self.trajectory:.2e}, bar {bar:.0e}")
        if self.movement is not None and self.movement < LEAST_MOVEMENT:
            found.append(f"the parameters moved by {self.movement:.1e} of their norm: too little to compare")
        return found


RunOrPath = FinishedRun | str | PathLike[str]
Says: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""The function from parameters (flat) to what a policy says, flat and in float64: `trajectories.log_probabilities`."""


def compare(a: RunOrPath, b: RunOrPath, *, says: Says | None = None) -> RunDistance:
    """Measures how far apart two finished runs are. says: what movements are measured by; None: parameters. Raises
    `LedgerError`, and `ValueError` where only one kept its steps or they kept different numbers of them."""
    one, two = FinishedRun.at(a), FinishedRun.at(b)
    found = diff(one.ledger, two.ledger, rtol=LEDGER_RTOL)
    first = None if found.equal else found.text()
    if one.steps is None and two.steps is None:
        return RunDistance(first)
    if one.steps is None or two.steps is None:
        raise ValueError(f"{(one if one.steps is None else two).ledger}: this run kept no steps, the other did")
    from batchbridge.testing.oracle import relative_error
    from batchbridge.testing.snapshots import snapshots

    steps = snapshots(one.steps), snapshots(two.steps)
    if first is not None and len(steps[0]) != len(steps[1]):
        return RunDistance(first)
    if len(steps[0]) != len(steps[1]) or not steps[0]:
        raise ValueError(f"{len(steps[0])} and {len(steps[1])} optimizer steps were kept")
    gradients = tuple(relative_error(one.gradient, two.gradient) for one, two in zip(*steps, strict=True))
    start, *ends = (parameters.double() for parameters in (steps[1][0].before, steps[0][-1].after, steps[1][-1].after))
    movement = float((ends[1] - start).norm() / start.norm())
    before, *after = [start, *ends] if says is None else map(says, [start, *ends])
    return RunDistance(first, gradients, relative_error(*(end - before for end in after)), movement)


def assert_equivalent(
    a: RunOrPath, b: RunOrPath, *, bar: float = TRAJECTORY_BAR, says: Says | None = None
) -> RunDistance:
    """Fails with the first difference of each kind; returns what was measured. says: as in `compare`."""
    found = compare(a, b, says=says)
    problems = found.problems(bar)
    assert not problems, "\n".join([f"{a} and {b} did not train the same:", *problems])
    return found

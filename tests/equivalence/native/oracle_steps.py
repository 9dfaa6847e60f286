"""Optimizer steps beside the float64 oracle: how far each is off, and how far two runs are apart. Standard library
only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OracleStep:
    """One optimizer step against the oracle. off: the gradient minus the oracle's, over the oracle's norm. floor: how
    far the oracle's own code in float32 is from it. clipped: share of tokens. wrong: how far the gradient is from a
    wrong one: that of the first candidates, those too that a group filter drops, of other pictures, of other advantages
    or returns; None: the case has no such thing."""

    off: Any
    floor: float
    clipped: float
    wrong: float | None = None

    @property
    def bar(self) -> float:
        """What a gradient may be off by."""
        return max(1e-6, 3 * self.floor)


def worst(steps: Sequence[OracleStep]) -> dict[str, float]:
    """The largest of a run's steps: error, floor, error in parts of the bar, share of clipped tokens. kept: the
    smallest error in parts of the bar against the wrong gradients, see `OracleStep`."""
    kept = [step.wrong / step.bar for step in steps if step.wrong is not None]
    return {
        "error": max(float(step.off.norm()) for step in steps),
        "floor": max(step.floor for step in steps),
        "of_the_bar": max(float(step.off.norm()) / step.bar for step in steps),
        "clipped": max(step.clipped for step in steps),
        **({"kept": min(kept)} if kept else {}),
    }


def between(a: Sequence[OracleStep], b: Sequence[OracleStep]) -> float:
    """The largest difference of two runs' gradients at one step, in parts of the bar, without what the noise in their
    parameters makes of it: each is taken against the oracle at its own parameters."""
    pairs = zip(a, b, strict=True)
    return max(float((one.off - two.off).norm()) / min(one.bar, two.bar) for one, two in pairs)

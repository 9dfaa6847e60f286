"""The memory that forward and backward passes of a trainer take, measured at two sizes and held against a third.

What `batchbridge run --dry --memory` says. Knows no framework, and not whose memory it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from batchbridge.kit.found_budgets import SHARE, DeviceMemory, PassMemory

ROWS = (1, 2)
"""The completions of the passes by which memory is extrapolated."""
CHECKED = 4
"""The completions of the pass that the extrapolation is held against."""


class Pass(NamedTuple):
    """One forward and backward pass. tokens: that it reads, padding included. taken: bytes at its peak, above those
    that rest."""

    tokens: int
    taken: int


@dataclass(frozen=True)
class MeasuredPasses:
    """The memory of one device while a model is trained on it.

    resting: bytes of weights, gradients and the optimizer's state. limit: bytes that this process can have. passes:
    those that fitted, by size. failed: tokens of the pass that did not; None: all did. longest: tokens of one row.
    rows: completions of a micro-batch as the configuration has them, in the words of `micro_batch`. said: how long a
    row is taken to be, as a sentence.
    """

    resting: int
    limit: int
    passes: tuple[Pass, ...]
    failed: int | None
    longest: int
    rows: int
    micro_batch: str
    said: str

    @property
    def line(self) -> tuple[float, float] | None:
        """(bytes of every pass, bytes of each token), by the passes of `ROWS`; None where they did not fit."""
        if len(self.passes) < len(ROWS):
            return None
        (few, less), (many, more) = self.passes[:2]
        slope = max(more - less, 0) / (many - few)
        return max(less - slope * few, 0.0), slope

    def foretold(self, tokens: int) -> int | None:
        """The bytes that a pass over so many tokens takes above those that rest; None where no line is known."""
        return None if self.line is None else int(self.line[0] + self.line[1] * tokens)

    @property
    def error(self) -> float | None:
        """The bytes of the pass of `CHECKED` rows less those that were foretold, as a share of the latter; None: it was
        not run."""
        if len(self.passes) <= len(ROWS):
            return None
        last = self.passes[-1]
        foretold = self.foretold(last.tokens)
        return (last.taken - foretold) / foretold if foretold else None

    @property
    def most_tokens(self) -> int | None:
        """The tokens of a pass that fill `SHARE` of the device, as foretold; None where no line is known."""
        if self.line is None or self.line[1] <= 0:
            return None
        return max(int((SHARE * self.limit - self.resting - self.line[0]) / self.line[1]), 0)

    def text(self) -> str:
        """The account for a person, a line each."""
        lines = [
            f"memory of passes, measured with this trainer's own model, of {_size(self.limit)} that it can have:",
            f"  {self.said}",
            f"  at rest {_size(self.resting)}: weights, gradients, optimizer state",
        ]
        if self.line is None:
            size = f"{self.failed:,} tokens" if self.failed is not None else "so many tokens"
            lines.append(f"  a pass over {size} did not fit: shorten completions, or take gradient checkpointing")
            return "\n".join(lines)
        constant, slope = self.line
        sizes = " and ".join(f"{one.tokens:,}" for one in self.passes[:2])
        lines.append(f"  a pass {_size(constant)}, and {_size(slope)} a token (passes over {sizes} tokens)")
        lines.append(f"  {self._checked()}")
        wanted = self.rows * self.longest
        taken = self.foretold(wanted)
        assert taken is not None, "there is a line"
        fits = self.resting + taken <= self.limit
        lines.append(
            f"  {self.micro_batch}: at most {wanted:,} tokens, {_size(self.resting + taken)} with what rests: "
            f"{'fits' if fits else 'does not fit'}"
        )
        if self.most_tokens:
            lines.append(
                f"  {SHARE:.0%} of the memory holds passes of {self.most_tokens:,} tokens: "
                f'tokens_per_device={self.most_tokens}, or "auto"'
            )
        lines.append("  not in it: generation, rewards, and what other processes take on the device")
        return "\n".join(lines)

    def _checked(self) -> str:
        if self.error is None:
            return f"not held against a larger pass: {CHECKED} such rows do not fit"
        last = self.passes[-1]
        off = f"{abs(self.error):.1%} {'more' if self.error > 0 else 'less'} than foretold"
        off = "as foretold" if off.startswith("0.0%") else off
        return f"held against a pass over {last.tokens:,} tokens: {_size(last.taken)}, {off}"


def measured_passes(
    memory: DeviceMemory, longest: int, run: Callable[[int], None], update: Callable[[], None]
) -> tuple[int, tuple[Pass, ...], int | None]:
    """(bytes at rest, the passes that fitted, tokens of the one that did not).

    run: runs one forward and backward pass over so many rows of `longest` tokens. update: one step of the optimizer,
    by which its state is there. A first pass, which is not counted, makes the gradients.
    """
    found = list[Pass]()
    resting = 0

    def fits(step: Callable[[], None]) -> PassMemory | None:
        """The memory of a step; None where it does not fit."""
        try:
            with memory.measured() as seen:
                step()
        except memory.out_of_memory:
            seen = None
        if seen is None:  # outside of the block: the error's traceback refers to all that the step had
            memory.give_back()
        return seen

    for rows in (*ROWS, CHECKED):
        tokens = rows * longest
        if not found:
            if fits(functools.partial(run, rows)) is None or fits(update) is None:
                return resting, (), tokens
        elif len(found) == len(ROWS) and not _has_room(found, tokens, memory.limit - resting):
            return resting, tuple(found), None
        seen = fits(functools.partial(run, rows))
        if seen is None:
            return resting, tuple(found), tokens
        resting = seen.resting
        found.append(Pass(tokens, max(seen.peak - seen.resting, 0)))
    return resting, tuple(found), None


def _has_room(found: list[Pass], tokens: int, room: int) -> bool:
    """Whether a pass is foretold to fit: one that does not would tell nothing."""
    per_token = max(one.taken / one.tokens for one in found)
    return per_token * tokens <= SHARE * room


def _size(count: float) -> str:
    """Bytes for a person: in GiB, MiB or KiB."""
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count / 1024:.1f} KiB"

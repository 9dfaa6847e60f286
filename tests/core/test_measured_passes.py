"""The memory of passes, as it is extrapolated and said: a made-up device whose passes take what a function says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from batchbridge.kit.found_budgets import PassMemory
from batchbridge.kit.measured_passes import MeasuredPasses, measured_passes

GIB = 1 << 30


class Device:
    """A device of `limit` bytes; resting grows by the optimizer's state in its step."""

    out_of_memory: type[Exception] = MemoryError
    measuring = False

    def __init__(self, limit: int, taken: Callable[[int], int], state: int) -> None:
        self.limit, self._taken, self._state = limit, taken, state
        self.resting, self.rows, self.runs, self.given_back = GIB, 0, list[int](), 0
        self._peak = 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[PassMemory]:
        seen = PassMemory(self.resting)
        self._peak = self.resting
        yield seen
        seen.peak = self._peak

    def run(self, rows: int) -> None:
        self.runs.append(rows)
        self._use(self.resting + self._taken(rows * 100))

    def update(self) -> None:
        self.resting += self._state
        self._use(self.resting)

    def give_back(self) -> None:
        self.given_back += 1

    def _use(self, bytes_: int) -> None:
        if bytes_ > self.limit:
            raise MemoryError
        self._peak = bytes_


def found(device: Device, rows: int = 8) -> MeasuredPasses:
    resting, passes, failed = measured_passes(device, 100, device.run, device.update)
    words = {"micro_batch": f"per_device_train_batch_size {rows}", "said": "a row is 100 tokens"}
    return MeasuredPasses(
        resting=resting, limit=device.limit, passes=passes, failed=failed, longest=100, rows=rows, **words
    )


def straight(tokens: int) -> int:
    return GIB // 4 + tokens * 1_000_000


def test_a_straight_line_is_foretold_exactly() -> None:
    device = Device(20 * GIB, straight, GIB)
    seen = found(device)
    assert device.runs == [1, 1, 2, 4], "the first makes gradients, and is not counted"
    assert seen.resting == 2 * GIB
    assert seen.line == (GIB // 4, 1_000_000)
    assert seen.error == 0
    assert seen.most_tokens == int((0.9 * 20 * GIB - 2 * GIB - GIB // 4) / 1_000_000)
    assert seen.text().splitlines() == [
        "memory of passes, measured with this trainer's own model, of 20.00 GiB that it can have:",
        "  a row is 100 tokens",
        "  at rest 2.00 GiB: weights, gradients, optimizer state",
        "  a pass 256.00 MiB, and 976.6 KiB a token (passes over 100 and 200 tokens)",
        "  held against a pass over 400 tokens: 637.47 MiB, as foretold",
        "  per_device_train_batch_size 8: at most 800 tokens, 3.00 GiB with what rests: fits",
        '  90% of the memory holds passes of 16,911 tokens: tokens_per_device=16911, or "auto"',
        "  not in it: generation, rewards, and what other processes take on the device",
    ]


def test_memory_that_grows_faster_than_a_line_shows_in_its_error() -> None:
    """The control: a pass whose memory is quadratic."""
    seen = found(Device(20 * GIB, lambda tokens: 20_000 * tokens**2, GIB))
    assert seen.error == pytest.approx(1 / 3)
    assert "33.3% more than foretold" in seen.text()


def test_a_micro_batch_that_does_not_fit_is_said() -> None:
    device = Device(3 * GIB + GIB // 2, straight, GIB)
    assert "per_device_train_batch_size 16: at most 1,600 tokens, 3.74 GiB with what rests: does not fit" in (
        found(device, rows=16).text()
    )


@pytest.mark.parametrize(("limit", "runs"), [(GIB + 1, [1]), (2 * GIB, [1]), (2 * GIB + GIB // 3, [1, 1])])
def test_a_row_that_does_not_fit_ends_it(limit: int, runs: list[int]) -> None:
    """In its first pass, in the optimizer's step, or once the optimizer's state is there."""
    device = Device(limit, straight, GIB + GIB // 8)
    seen = found(device)
    assert (device.runs, seen.passes, seen.failed, device.given_back) == (runs, (), 100, 1)
    assert "a pass over 100 tokens did not fit" in seen.text()

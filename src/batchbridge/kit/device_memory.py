"""The memory of the device that a model is trained on, and passes that can be repeated as if they had not run.

Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator

import torch

from batchbridge.kit.found_budgets import DeviceMemory, PassMemory

NO_LIMIT = "a CPU's memory is everybody's: it has no limit that could be found by running out of it"
"""The reason why no budget is found there."""


def memory_of(device: torch.device) -> DeviceMemory | None:
    """The memory of a device; None where it has no limit of its own."""
    return CudaMemory(device) if device.type == "cuda" else None


class CudaMemory:
    """The memory of a GPU: what torch's allocator holds, and what is free beside it."""

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.measuring = False

    @property
    def limit(self) -> int:
        """The bytes that the allocator has and those that are free: other processes' are neither."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free) + int(torch.cuda.memory_reserved(self._device))

    @contextlib.contextmanager
    def measured(self) -> Iterator[PassMemory]:
        """The span of one pass; see `DeviceMemory`."""
        seen = PassMemory(resting=int(torch.cuda.memory_allocated(self._device)))
        torch.cuda.reset_peak_memory_stats(self._device)
        self.measuring = True
        try:
            yield seen
        finally:
            self.measuring = False
            seen.peak = int(torch.cuda.max_memory_allocated(self._device))

    def give_back(self) -> None:
        """Gives back what is cached; see `DeviceMemory`."""
        gc.collect()
        torch.cuda.empty_cache()


@contextlib.contextmanager
def gradients_apart(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """The span of one pass, forward and backward, whose gradients are kept apart from those before it: added to them at
    its end, and dropped where it fails.

    A failed backward pass has given some parameters their gradient and others none. What was there before is not
    copied but put aside, so that at a pass's peak, where backward begins, nothing more is in memory.
    """
    before = [(one, one.grad) for one in parameters if one.requires_grad]
    for one, _ in before:
        one.grad = None
    try:
        yield
    except BaseException:
        for one, gradient in before:
            one.grad = gradient
        raise
    with torch.no_grad():
        for one, gradient in before:
            if gradient is None:
                continue
            if one.grad is not None:
                gradient += one.grad
            one.grad = gradient


@contextlib.contextmanager
def same_random(device: torch.device) -> Iterator[None]:
    """The span of one pass; where it fails, torch's random numbers go on as if it had not begun."""
    state = torch.get_rng_state()
    of_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    except BaseException:
        torch.set_rng_state(state)
        if of_device is not None:
            torch.cuda.set_rng_state(of_device, device)
        raise

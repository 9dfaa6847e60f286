"""PyTorch's CPU random numbers in plain Python: as many as it takes to predict what a framework shuffles.

Both generators are MT19937. PyTorch seeds it with one 32-bit word (the reference `init_genrand`), Python with an array;
so the state is built here and handed to `random.Random`, whose 32-bit outputs are then PyTorch's.
Source: torch 2.13.0, ATen/core/MT19937RNGEngine.h, ATen/native/TensorFactories.cpp randperm_cpu.

Its own file: adapters and plugins import it by this name.
"""

from __future__ import annotations

_WORDS, _FACTOR, _MASK = 624, 1812433253, 0xFFFFFFFF
LARGEST = _MASK // 20 - 1
"""Longest permutation: above, PyTorch takes 64-bit numbers."""


class TorchGenerator:
    """`torch.Generator().manual_seed(seed)`, or the process's own generator after `torch.manual_seed(seed)`."""

    def __init__(self, seed: int) -> None:
        import random  # few runs are predicted

        state = [seed & _MASK]
        for index in range(1, _WORDS):
            previous = state[-1]
            state.append((_FACTOR * (previous ^ (previous >> 30)) + index) & _MASK)
        self._random = random.Random()
        self._random.setstate((3, (*state, _WORDS), None))

    def draw_int64(self) -> None:
        """`torch.empty((), dtype=torch.int64).random_()`: two 32-bit words are gone."""
        self._random.getrandbits(32)
        self._random.getrandbits(32)

    def permutation(self, size: int) -> list[int]:
        """`torch.randperm(size)`. Raises `ValueError` above `LARGEST`."""
        if size > LARGEST:
            raise ValueError(f"a permutation of {size} is longer than {LARGEST}, where PyTorch shuffles otherwise")
        order = list(range(size))
        word = self._random.getrandbits
        for place in range(size - 1):
            other = place + word(32) % (size - place)
            order[place], order[other] = order[other], order[place]
        return order

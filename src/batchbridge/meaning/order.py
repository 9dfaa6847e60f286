"""A keyed bijection of `range(size)`: the prompt order, the same on every machine and every torch version.

An alternating Feistel network over the smallest power of two that holds `size`, with cycle walking. It needs no list
of `size` entries: any position, and its inverse, costs a few microseconds, so a plan over 10^10 prompts can be entered
anywhere. The round function is the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014); round keys are BLAKE2b of
the key's parts. Test vectors are published in `tests/core/test_order.py` and `docs/plan.md`; they never change.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from batchbridge.frozen import dataclass

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_ROUNDS = 12  # alternating halves: six full Feistel rounds; fewer leave visible structure for sizes below 16
_MASK = (1 << 64) - 1
_SEEDS = (1 << 31) - (1 << 20)
"""The number of seeds: engines take 31 bits everywhere; a group has fewer than 2**20 samples."""


def _mix(value: int) -> int:
    """SplitMix64's finaliser: a 64-bit bijection that spreads every input bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _round_keys(parts: tuple[int | str, ...]) -> tuple[int, ...]:
    import hashlib  # most commands order nothing, and it loads OpenSSL

    text = "batchbridge/order/1:" + ",".join(map(str, parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8 * 8).digest()
    more = hashlib.blake2b(digest, digest_size=8 * 8).digest()
    stream = digest + more
    return tuple(int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


@dataclass(frozen=True)
class Bijection:
    """A permutation of `range(size)` that is determined by `size` and `key` alone.

    `key` is any tuple of ints and strings, for example `("prompts", seed, epoch)`. `size` is at most 2**62.
    """

    size: int
    key: tuple[int | str, ...]
    _keys: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _low_bits: int = field(init=False, repr=False, compare=False)
    _high_bits: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.size <= 1 << 62:
            raise ValueError(f"size = {self.size}: must be between 0 and 2**62")
        bits = max(self.size - 1, 0).bit_length()
        object.__setattr__(self, "_keys", _round_keys(self.key))
        object.__setattr__(self, "_low_bits", bits // 2)
        object.__setattr__(self, "_high_bits", bits - bits // 2)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        """The element at `position` (0 <= position < size)."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is outside range({self.size})")
        value = self._forward(position)
        while value >= self.size:  # cycle walking: the network permutes a power of two
            value = self._forward(value)
        return value

    def index(self, value: int) -> int:
        """The position of `value`: the inverse of `self[position]`."""
        if not 0 <= value < self.size:
            raise IndexError(f"value {value} is outside range({self.size})")
        position = self._backward(value)
        while position >= self.size:
            position = self._backward(position)
        return position

    def take(self, start: int, stop: int) -> list[int]:
        """Elements at positions `start` to `stop` (exclusive)."""
        return [self[position] for position in range(start, stop)]

    def take_array(self, start: int, stop: int) -> NDArray[numpy.int64]:
        """`take` as an int64 array of shape (stop - start,), computed by NumPy; the same elements."""
        import numpy as np

        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"positions {start}:{stop} are outside range({self.size})")
        values = self._forward_array(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            values[outside] = self._forward_array(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _forward(self, value: int) -> int:
        low_bits, low_mask, high_mask = self._low_bits, (1 << self._low_bits) - 1, (1 << self._high_bits) - 1
        high, low = value >> low_bits, value & low_mask
        for i in range(0, _ROUNDS, 2):
            high ^= _mix(low ^ self._keys[i]) & high_mask
            low ^= _mix(high ^ self._keys[i + 1]) & low_mask
        return high << low_bits | low

    def _backward(self, value: int) -> int:
        low_bits, low_mask, high_mask = self._low_bits, (1 << self._low_bits) - 1, (1 << self._high_bits) - 1
        high, low = value >> low_bits, value & low_mask
        for i in range(_ROUNDS - 2, -1, -2):
            low ^= _mix(high ^ self._keys[i + 1]) & low_mask
            high ^= _mix(low ^ self._keys[i]) & high_mask
        return high << low_bits | low

    def _forward_array(self, values: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
        import numpy as np

        keys = np.array(self._keys, dtype=np.uint64)
        shift = np.uint64(self._low_bits)
        low_mask, high_mask = np.uint64((1 << self._low_bits) - 1), np.uint64((1 << self._high_bits) - 1)
        high, low = values >> shift, values & low_mask
        if len(values) >> self._high_bits >= 4:  # few halves: all are mixed once, and looked up
            of_low = _mix_array(np.arange(1 << self._low_bits, dtype=np.uint64) ^ keys[0::2, None]) & high_mask
            of_high = _mix_array(np.arange(1 << self._high_bits, dtype=np.uint64) ^ keys[1::2, None]) & low_mask
            for changes_of_low, changes_of_high in zip(of_low, of_high, strict=True):
                high ^= changes_of_low.take(low.view(np.int64))
                low ^= changes_of_high.take(high.view(np.int64))
        else:
            for i in range(0, _ROUNDS, 2):
                change = _mix_array(low ^ keys[i])
                change &= high_mask
                high ^= change
                change = _mix_array(high ^ keys[i + 1])
                change &= low_mask
                low ^= change
        mixed: NDArray[numpy.uint64] = high << shift | low
        return mixed


def _mix_array(values: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    """`_mix` of every element; `values` is changed. In place: temporaries would cost more than the arithmetic."""
    import numpy as np

    spare = values >> np.uint64(30)
    values ^= spare
    values *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(values, np.uint64(27), out=spare)
    values ^= spare
    values *= np.uint64(0x94D049BB133111EB)
    np.right_shift(values, np.uint64(31), out=spare)
    values ^= spare
    return values


def sampling_seed(seed: int, epoch: int, prompt: int) -> int:
    """The sampling seed of a prompt's first sample: 0 to 2**31 - 2**20, so that those of its others stay below 2**31.

    The key's parts, joined by commas and prefixed with `batchbridge/sampling/1:`, in UTF-8; the first 64-bit
    little-endian word of its BLAKE2b digest of 8 bytes, modulo that bound.
    """
    import hashlib

    text = f"batchbridge/sampling/1:{seed},{epoch},{prompt}"
    word = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return word % _SEEDS

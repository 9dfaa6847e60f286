"""The prompt order: a bijection for every size and key, forever the same."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.meaning.order import Bijection, sampling_seed

keys = st.lists(st.integers() | st.text(max_size=5), max_size=4).map(tuple)
small_sizes = st.integers(0, 300)
large_sizes = st.integers(2**20, 2**62)

# (size, key, the elements at the first positions). Published, also in docs/plan.md: a change of any of them breaks
# every run that was planned before.
VECTORS: list[tuple[int, tuple[int | str, ...], list[int]]] = [
    (1, ("prompts", 0, 0), [0]),
    (2, ("prompts", 0, 0), [1, 0]),
    (2, ("prompts", 0, 1), [0, 1]),
    (10, ("prompts", 42, 0), [1, 2, 3, 4, 9, 8, 0, 5, 7, 6]),
    (10, ("prompts", 42, 1), [8, 4, 9, 6, 7, 3, 0, 5, 2, 1]),
    (16, ("rollout", 42, 3, 0), [10, 2, 9, 5, 15, 1, 3, 8, 11, 6, 7, 4, 12, 14, 13, 0]),
    (10**10, ("prompts", 42, 0), [4646890128, 3757025483, 6551877575, 2509178253]),
    (2**62, ("prompts", -1, 0), [1405340585531057852, 1516562808324124455, 668405227675914258, 809066262359529566]),
]


@pytest.mark.parametrize(("size", "key", "first"), VECTORS, ids=lambda value: str(value)[:20])
def test_published_vectors_never_change(size: int, key: tuple[int | str, ...], first: list[int]) -> None:
    assert Bijection(size, key).take(0, len(first)) == first


@given(small_sizes, keys)
def test_every_element_comes_exactly_once(size: int, key: tuple[int | str, ...]) -> None:
    assert sorted(Bijection(size, key).take(0, size)) == list(range(size))


@given(large_sizes, keys, st.data())
def test_index_is_the_inverse(size: int, key: tuple[int | str, ...], data: st.DataObject) -> None:
    order = Bijection(size, key)
    position = data.draw(st.integers(0, size - 1))
    assert order.index(order[position]) == position
    assert order[order.index(position)] == position


@given(st.integers(1, 2**62), keys, st.data())
def test_numpy_computes_the_same_elements(size: int, key: tuple[int | str, ...], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, min(size, start + 50)))
    array = Bijection(size, key).take_array(start, stop)
    assert array.dtype == np.int64
    assert array.tolist() == Bijection(size, key).take(start, stop)


@pytest.mark.parametrize("size", [1, 2, 3, 9, 63, 64, 65, 1000, 8192, 8193])
def test_numpy_computes_the_same_elements_of_a_whole_permutation(size: int) -> None:
    """Here it looks up what halves become; of a few elements it computes each."""
    order = Bijection(size, ("rollout", 7, size))
    assert order.take_array(0, size).tolist() == order.take(0, size)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_of_a_small_set_are_about_equally_frequent(size: int) -> None:
    draws = 6000
    seen = Counter(tuple(Bijection(size, ("prompts", seed, 0)).take(0, size)) for seed in range(draws))
    expected = draws / math.factorial(size)
    chi_square = sum((seen[order] - expected) ** 2 / expected for order in permutations(range(size)))
    freedom = math.factorial(size) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)  # five standard deviations: a fixed draw, no flake


def test_an_element_is_about_equally_often_at_each_position() -> None:
    size, draws = 100, 5000
    at = Counter(Bijection(size, ("prompts", seed, 0)).index(0) for seed in range(draws))
    chi_square = sum((at[position] - draws / size) ** 2 / (draws / size) for position in range(size))
    assert chi_square < 99 + 5 * math.sqrt(2 * 99)


def test_neighbours_in_the_data_do_not_stay_neighbours() -> None:
    order = Bijection(10_000, ("prompts", 1, 0))
    gaps = [abs(order[position + 1] - order[position]) for position in range(9_999)]
    assert sum(gap == 1 for gap in gaps) < 20  # 2 expected
    assert abs(sum(gaps) / len(gaps) - 10_000 / 3) < 200


@pytest.mark.parametrize("part", ["seed", "epoch", "kind"])
def test_every_part_of_the_key_changes_the_order(part: str) -> None:
    other = {"seed": ("prompts", 2, 0), "epoch": ("prompts", 1, 1), "kind": ("rollout", 1, 0)}[part]
    assert Bijection(1000, ("prompts", 1, 0)).take(0, 10) != Bijection(1000, other).take(0, 10)


def test_no_size_has_nothing_to_order() -> None:
    assert Bijection(0, ("prompts", 0, 0)).take(0, 0) == []


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match=rf"position {position} is outside range\(10\)"):
        Bijection(10, ("prompts", 0, 0))[position]


@pytest.mark.parametrize("value", [-1, 10])
def test_a_value_outside_is_refused(value: int) -> None:
    with pytest.raises(IndexError, match=rf"value {value} is outside range\(10\)"):
        Bijection(10, ("prompts", 0, 0)).index(value)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11)])
def test_array_positions_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=rf"positions {start}:{stop} are outside range\(10\)"):
        Bijection(10, ("prompts", 0, 0)).take_array(start, stop)


@pytest.mark.parametrize("size", [-1, 2**62 + 1])
def test_a_size_outside_the_bounds_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"must be between 0 and 2\*\*62"):
        Bijection(size, ("prompts", 0, 0))


@pytest.mark.parametrize(
    ("key", "seed"), [((0, 0, 0), 772264459), ((42, 0, 7), 547853745), ((42, 3, 7), 709755614), ((-1, 0, 2**70), None)]
)
def test_sampling_seeds_never_change(key: tuple[int, int, int], seed: int | None) -> None:
    found = sampling_seed(*key)
    assert 0 <= found < 2**31 - 2**20
    assert seed is None or found == seed


def test_the_recipe_of_the_page_gives_the_sampling_seed() -> None:
    word = int.from_bytes(hashlib.blake2b(b"batchbridge/sampling/1:42,3,7", digest_size=8).digest(), "little")
    assert sampling_seed(42, 3, 7) == word % (2**31 - 2**20)

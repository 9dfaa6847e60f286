"""docs/plan.md and the code agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from batchbridge.meaning.order import Bijection, sampling_seed
from batchbridge.meaning.spec import Aggregation

ROW = re.compile(r"^\| (\d+) \| `(\(.*\))` \| ([\d, ]+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "plan.md").read_text(encoding="utf-8")


def test_the_page_s_test_vectors_are_the_code_s(page: str) -> None:
    rows = ROW.findall(page)
    assert len(rows) == 8
    for size, key, elements in rows:
        expected = [int(element) for element in elements.split(",")]
        assert Bijection(int(size), ast.literal_eval(key)).take(0, len(expected)) == expected


def test_the_page_s_test_vectors_are_those_of_the_tests(page: str, repository: Path) -> None:
    tests = (repository / "tests" / "core" / "test_order.py").read_text(encoding="utf-8")
    for _, key, elements in ROW.findall(page):
        assert f"{key}, [{elements}]" in tests


def test_the_page_s_recipe_gives_the_order(page: str) -> None:
    """The bijection, written again from the page's words alone."""
    import hashlib

    assert "batchbridge/order/1:" in page
    digest = hashlib.blake2b(b"batchbridge/order/1:prompts,42,0").digest()
    words = digest + hashlib.blake2b(digest).digest()
    keys = [int.from_bytes(words[8 * i : 8 * i + 8], "little") for i in range(12)]
    size, bits = 10, (10 - 1).bit_length()
    low_bits = bits // 2

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    def network(x: int) -> int:
        high, low = x >> low_bits, x % 2**low_bits
        for a, b in zip(keys[::2], keys[1::2], strict=True):
            high ^= mix(low ^ a) % 2 ** (bits - low_bits)
            low ^= mix(high ^ b) % 2**low_bits
        return high << low_bits | low

    def walk(x: int) -> int:
        x = network(x)
        return x if x < size else walk(x)

    assert [walk(position) for position in range(size)] == Bijection(size, ("prompts", 42, 0)).take(0, size)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_the_page_names_every_aggregation(page: str, aggregation: str) -> None:
    assert f"| `{aggregation}` |" in page


def test_the_page_s_sampling_seeds_are_the_code_s(page: str) -> None:
    rows = re.findall(r"^\| (\d+), (\d+), (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for *key, seed in rows:
        assert sampling_seed(*map(int, key)) == int(seed)

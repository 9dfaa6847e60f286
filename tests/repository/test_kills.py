"""benchmarks/kills.py counts what a killed run repeats, loses and alters: each is planted once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from batchbridge_on_cpu.scripts import module_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kills() -> Any:
    return module_at(ROOT / "benchmarks/kills.py", "kills")


def steps() -> list[dict[str, Any]]:
    """Two optimizer steps of two completions, as `read_steps` gives them."""
    return [
        {
            "step": number,
            "epoch": 0,
            "prompt": [0, 1],
            "sample": [0, 0],
            "pass": [number, number],
            "completion_fingerprint": ["a", "b"],
            "prompt_fingerprint": ["c", "d"],
            "response_tokens": [3, 5],
            "weights": [0.125, 0.125],
            "advantage": [0.5, -0.5],
        }
        for number in range(2)
    ]


def counts(kills: Any, killed: list[dict[str, Any]], noise: float = 0.0) -> tuple[int, int, int]:
    found = kills.compared(steps(), killed, noise)
    return found["repeated"], found["lost"], found["altered"]


COLUMNS = ("prompt", "sample", "pass", "completion_fingerprint", "prompt_fingerprint", "response_tokens", "weights")


def test_the_same_run_has_nothing_to_count(kills: Any) -> None:
    assert counts(kills, steps()) == (0, 0, 0)


def test_a_completion_that_is_trained_twice_is_repeated(kills: Any) -> None:
    killed = steps()
    for name in (*COLUMNS, "advantage"):
        killed[1][name] = [*killed[1][name], killed[1][name][0]]
    assert counts(kills, killed) == (1, 0, 0)


def test_a_completion_that_is_trained_never_is_lost(kills: Any) -> None:
    killed = steps()
    for name in (*COLUMNS, "advantage"):
        killed[0][name] = killed[0][name][:1]
    assert counts(kills, killed) == (0, 1, 0)


def test_a_step_that_is_left_out_is_lost(kills: Any) -> None:
    assert counts(kills, steps()[:1]) == (0, 2, 0)


def test_a_completion_of_another_step_is_repeated_there_and_lost_here(kills: Any) -> None:
    killed = steps()
    killed[1]["sample"] = [1, 0]
    assert counts(kills, killed) == (1, 1, 0)


CHANGED = {
    "completion_fingerprint": "z",
    "prompt_fingerprint": "z",
    "response_tokens": 4,
    "weights": 0.125 * (1 + 1e-7),
    "advantage": 0.5 * (1 + 1e-7),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_completion_that_is_another_is_altered(kills: Any, name: str) -> None:
    killed = copy.deepcopy(steps())
    killed[0][name][0] = CHANGED[name]
    assert counts(kills, killed) == (0, 0, 1)


def test_on_other_processes_noise_is_none_and_a_thousandth_is(kills: Any) -> None:
    for factor, altered in ((1 + 1e-7, 0), (1.001, 1)):
        killed = steps()
        killed[0]["weights"][0] *= factor
        assert counts(kills, killed, kills.NOISE) == (0, 0, altered)

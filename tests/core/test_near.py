"""Names near a wrong one: ordinary mistakes have suggestions, and no number of mistakes costs more than some."""

from __future__ import annotations

import difflib
import gc
import time

import pytest

import batchbridge
from batchbridge.kit import near_names as near_names_module
from batchbridge.kit.near_names import MOST_CHARACTERS, MOST_NAMES, near_names
from batchbridge.meaning.findings import Finding

MANY = 15_000

ONE = {
    "trl": ("1.16.0", "BB-TRL-003", "num_generation", "num_generations"),
    "open_r1": ("1.16.0", "BB-TRL-003", "num_generation", "num_generations"),
    "verl": ("0.9.1", "BB-VERL-003", "data.train_batch_sizes", "data.train_batch_size"),
    "easyr1": ("0.3.2", "BB-EZR1-003", "data.rollout_batch_sizes", "data.rollout_batch_size"),
    "openrlhf": ("0.11.2", "BB-ORL-003", "rollout.batch_sizes", "rollout.batch_size"),
    "open_instruct": (
        "2026.8.20",
        "BB-OI-003",
        "num_unique_prompts_rollouts",
        "num_unique_prompts_rollout",
    ),
}
"""Framework -> (version, code of the finding, a key that is nearly right, the right one)."""


def unknown(framework: str, keys: list[str]) -> list[Finding]:
    """The findings about unknown keys of a configuration that has these alone."""
    version, code, _, _ = ONE[framework]
    reading = batchbridge.read(dict.fromkeys(keys, 8), framework=framework, version=version, world_size=8)
    return [finding for finding in reading.findings if finding.code == code]


def suggestions(finding: Finding) -> set[str]:
    """The keys that the finding's fixes would write."""
    return {key for fix in finding.fixes for key, value in fix.changes.items() if value is not None}


@pytest.mark.parametrize("framework", ONE)
def test_a_nearly_right_key_is_answered_with_the_right_one(framework: str) -> None:
    _, _, wrong, right = ONE[framework]
    (finding,) = unknown(framework, [wrong])
    assert right in suggestions(finding)


def nearly_right(framework: str, count: int) -> list[str]:
    """`count` keys that each differ from the framework's right one by a few digits."""
    right = ONE[framework][3]
    return [f"{right[:-1]}{index}{right[-1]}" for index in range(count)]


@pytest.mark.parametrize("framework", ONE)
def test_15_000_nearly_right_keys_are_all_named_and_few_are_compared(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = nearly_right(framework, MANY)
    wrong, compared = set(keys), []

    class Counted(difflib.SequenceMatcher):  # type: ignore[type-arg]  # of characters
        def __init__(self, isjunk: None, a: str, b: str) -> None:
            compared.extend(name for name in (a, b) if name in wrong)
            super().__init__(isjunk, a, b)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    near_names_module._ratio_to.cache_clear()  # two frameworks have the same names
    findings = unknown(framework, keys)
    assert {finding.where[0].key for finding in findings} == set(keys)
    assert 0 < sum(bool(suggestions(finding)) for finding in findings) <= MOST_NAMES
    # each costs milliseconds: while every key was compared with every known one, a reading took 4 to 41 s
    assert 0 < len(set(compared)) <= MOST_NAMES


@pytest.mark.parametrize("framework", ONE)
def test_ten_times_the_unknown_keys_cost_no_hundred_times_the_cpu(framework: str) -> None:
    def seconds(count: int) -> float:
        keys = nearly_right(framework, count)
        gc.disable()  # collecting what other tests of the process left is not one of the reader's work
        try:
            before = time.process_time()
            unknown(framework, keys)
            return time.process_time() - before
        finally:
            gc.enable()

    assert seconds(MANY) < 30 * seconds(MANY // 10)  # a share of two times: a slow machine changes neither


def test_no_more_than_the_first_names_are_compared() -> None:
    wrong = [f"batch{index}" for index in range(MOST_NAMES + 5)]
    near = near_names(wrong, ["batch", "other"], cutoff=0.7)
    assert near == {name: ["batch"] for name in wrong[:MOST_NAMES]}


def test_a_long_group_makes_no_two_names_alike() -> None:
    known = ["actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.tau_pos"]
    assert near_names(["actor_rollout_ref.actor.use_kl_los"], known, cutoff=0.6).popitem()[1] == known[:1]
    assert near_names(["actor_rollout_ref.actor.nothing_like_it"], known, cutoff=0.6).popitem()[1] == []


def test_the_two_nearest_names_come_the_nearest_first() -> None:
    assert near_names(["sed"], ["seeds", "unlike", "sent", "seed"], cutoff=0.5)["sed"] == ["seed", "seeds"]


def test_a_name_of_absurd_length_is_near_nothing() -> None:
    known = ["a" * MOST_CHARACTERS]
    assert near_names(["a" * MOST_CHARACTERS], known, cutoff=0.9) == {"a" * MOST_CHARACTERS: known}
    assert near_names(["a" * (MOST_CHARACTERS + 1)], known, cutoff=0.9) == {"a" * (MOST_CHARACTERS + 1): []}

"""The rewards of the scripted rollouts: what a group filter needs of them."""

from __future__ import annotations

from batchbridge.testing.tiny import ScriptedRollouts


def test_binary_rewards_are_0_and_1_in_every_group_but_the_flat_ones() -> None:
    script = ScriptedRollouts(flat=frozenset({2, 5, 8, 11}), binary=True)
    for prompt in range(100):
        rewards = {script.reward(prompt, sample) for sample in range(4)}
        assert rewards == {0.0, 1.0} if prompt not in script.flat else len(rewards) == 1
    assert {script.reward(prompt, 0) for prompt in script.flat} == {0.0, 1.0}


def test_an_environment_says_what_engines_play() -> None:
    assert ScriptedRollouts.of_environment({}) == ScriptedRollouts()
    told = {"BATCHBRIDGE_FLAT": "2,5", "BATCHBRIDGE_BINARY": "1"}
    assert ScriptedRollouts.of_environment(told) == ScriptedRollouts(flat=frozenset({2, 5}), binary=True)

"""Ranks that train one share together, and the lengths by which shares are cut: without OpenRLHF."""

from __future__ import annotations

from batchbridge_openrlhf.rings import RankRings
from batchbridge_openrlhf.turns import ReplayedCompletion


def test_ranks_of_a_ring_stand_one_after_the_other_and_the_first_one_speaks() -> None:
    every = [RankRings(2, 6, rank, averaged=6) for rank in range(6)]
    assert {ring.replicas for ring in every} == {3}
    assert [ring.replica for ring in every] == [0, 0, 1, 1, 2, 2]
    assert [ring.speaks for ring in every] == [True, False] * 3


def test_a_completions_length_is_its_prompt_and_the_rest_of_its_tokens() -> None:
    held = ReplayedCompletion(0, 7, 1, 2, prompt_tokens=5, all_tokens=12, tokens=6, index=3)
    assert (held.length.prompt, held.length.response, held.length.tokens) == (5, 7, 12)
    assert held.row == (1, 2)

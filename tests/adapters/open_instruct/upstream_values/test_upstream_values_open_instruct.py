"""Our code held against what Open-Instruct's own functions gave, without Open-Instruct and without torch; `record.py`
recorded it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchbridge.kit.patches import Patches
from batchbridge.kit.torch_random import TorchGenerator
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.spec import LossTerm
from batchbridge.meaning.weights import Normaliser, Row
from batchbridge.reading.read import read
from batchbridge_on_cpu.upstream_values import read as record_of
from batchbridge_on_cpu.upstream_values import unlike_proven
from batchbridge_open_instruct.candidates import CandidateRollout, PassRate
from batchbridge_open_instruct.completions import PackedCompletion
from batchbridge_open_instruct.feed import ATTRIBUTE, ActorFeed, KnownPermutations
from batchbridge_open_instruct.learners import FastLearner, OlmoLearner
from batchbridge_open_instruct.writing import denominator

HERE = Path(__file__).parent
RECORD = record_of(HERE / "values.json")
VALUES = RECORD["values"]
CHECKOUT = "2026.8.20"
FLOAT32 = 2e-6
"""Relative rounding of a float32 that several operations made."""


def test_the_recorded_functions_are_those_that_the_adapter_is_proven_on(repository: Path) -> None:
    proven = json.loads((repository / "adapters/batchbridge_open_instruct/proven.json").read_text(encoding="utf-8"))
    assert unlike_proven(RECORD, proven["open_instruct"], CHECKOUT) == []
    assert "grpo_fast.py: PolicyTrainerRayProcess.step" in proven["open_instruct"]["functions"]


# ---- optimizer steps


def learner_of(one: Mapping[str, Any]) -> Any:
    """A learner of the script, as far as it decides which micro-batches fill a step."""
    if one["script"] == "fast":
        return FastLearner(SimpleNamespace(num_mini_batches=one["num_mini_batches"]))
    config = SimpleNamespace(num_mini_batches=one["num_mini_batches"])
    return OlmoLearner(SimpleNamespace(train_module=SimpleNamespace(grpo_config=config)))


@pytest.mark.parametrize(
    "one", VALUES["steps"], ids=lambda one: "-".join(str(one[key]) for key in one if key not in ("lengths", "steps"))
)
def test_micro_batches_fill_the_steps_that_the_learner_itself_makes_of_them(one: Mapping[str, Any]) -> None:
    """Which micro-batches are trained at all, how many a step takes, and where a step reaches into the next pass."""
    learner, count = learner_of(one), one["micro_batches"]
    kept, size = learner.kept(count), learner.micro_batches_of_step(count)
    stream = [*range(kept)] * one["num_epochs"]
    assert [[int(number) for number, _ in step] for step in one["steps"]] == [
        stream[start : start + size] for start in range(0, len(stream), size)
    ]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_sum_over_constant"])
def test_the_denominator_that_the_loss_is_told_gives_its_tokens_the_plans_weights(aggregation: Any) -> None:
    """Whole steps of the learners: the recorded weight of a token is 1 over what `denominator` says."""
    for one in VALUES["steps"]:
        counts = one["loss_denominator"] == "token"
        if counts != (aggregation == "token_mean"):
            continue
        size = learner_of(one).micro_batches_of_step(one["micro_batches"])
        for step in one["steps"]:
            numbers = [int(number) for number, _ in step]
            if numbers != [*range(numbers[0], numbers[0] + size)] or numbers[0] % size:
                continue  # it reaches into the next pass, or is not whole
            rows = [Row(tokens=one["lengths"][number], group=number) for number in numbers]
            constant = None if counts else 24.0 / len(rows)
            normaliser = Normaliser.of(LossTerm(aggregation=aggregation, constant=constant), rows)
            said = denominator(normaliser)
            assert said == "token" if counts else float(said) == pytest.approx(24.0)
            assert [weight for _, weight in step] == pytest.approx([normaliser.step_factor()] * size, rel=FLOAT32)


# ---- packed rows


class Listed(list):  # type: ignore[type-arg]
    """A tensor, as far as it is read as a list."""

    def tolist(self) -> list[Any]:
        return list(self)


def feed_of(one: Mapping[str, Any]) -> Any:
    """A feed that observes, its rollout's completions known by their number."""
    made: Any = object.__new__(ActorFeed)
    made._held = None
    made._plan, made._taken, made._permutations, made._patches = None, (), [], Patches()
    made._orders = SimpleNamespace(spec=SimpleNamespace(digest=lambda: "spec"))
    made._pieces = [PackedCompletion(0, number, number, 0, 0, 0, 0, 0.0, None) for number in range(len(one["sizes"]))]
    packed = SimpleNamespace(
        packed_seq_lens=[Listed(row) for row in one["packed_seq_lens"]],
        num_actions=[Listed(row) for row in one["num_actions"]],
    )
    made._rows = made._located(packed, range(len(one["sizes"])))
    return made


@pytest.mark.parametrize("one", VALUES["packs"], ids=lambda one: f"{one['pack_length']}-{one['ranks']}")
def test_completions_are_found_where_open_instruct_packed_them(one: Mapping[str, Any]) -> None:
    rows = feed_of(one)._rows
    assert len(rows) == len(one["rows"])
    for pieces, ids, mask in zip(rows, one["rows"], one["response_masks"], strict=True):
        found = [0] * len(ids)
        for piece in pieces:
            middle = piece.start + piece.prompt_tokens
            assert (piece.prompt_tokens, piece.completion_tokens) == tuple(one["sizes"][piece.prompt])
            assert set(ids[piece.start : middle]) == {9}, "the prompt"
            assert set(ids[middle : middle + piece.completion_tokens]) == {10 + piece.prompt}, "its own answer"
            found[middle : middle + piece.completion_tokens] = [piece.prompt + 1] * piece.completion_tokens
        assert found == mask


@pytest.mark.parametrize("one", VALUES["packs"], ids=lambda one: f"{one['pack_length']}-{one['ranks']}")
def test_ranks_have_the_rows_that_open_instruct_deals_them(one: Mapping[str, Any]) -> None:
    """The permutation is the one that upstream draws; blocks and micro-batches of it are what upstream was recorded to
    hand to its ranks."""
    feed, ranks = feed_of(one), one["ranks"]

    def native(packed: Any, ranks: int, size: int, pad: int, **more: Any) -> list[Any]:
        known = KnownPermutations(feed._permutation)
        for _ in range(ranks):
            known.random.permutation(len(one["rows"]) // ranks)
        assert (known.array, known.random.rand) == (np.array, np.random.rand)
        return [SimpleNamespace() for _ in range(ranks)]

    feed._native_collate = native
    state = np.random.get_state()
    np.random.seed(7)
    try:
        made = feed._collate(None, ranks, 2, 0)
    finally:
        np.random.set_state(state)
    for batch, micro_batches in zip(made, one["micro_batches"], strict=True):
        table = vars(batch)[ATTRIBUTE].micro_batches
        assert [[feed._rows.index(row) for row in rows] for rows in table] == micro_batches


# ---- groups, seeds and orders


@pytest.mark.parametrize(("rewards", "rate", "excluded", "dropped"), VALUES["groups"])
def test_a_prompt_is_solved_and_a_group_dropped_as_open_instruct_does_it(
    rewards: Sequence[float], rate: float | None, excluded: bool, dropped: bool
) -> None:
    assert PassRate(rate, 10.0).solves(rewards) is excluded
    result = SimpleNamespace(reward_scores=rewards, index=0, model_step=0)
    assert CandidateRollout(0, 0, 1, "drop_zero_variance").take(result) is not dropped


def test_samples_of_a_request_have_the_seeds_that_the_plan_counts_on() -> None:
    command = ["python", "open_instruct/grpo_fast.py", "--num_unique_prompts_rollout", "2"]
    command += ["--num_samples_per_prompt_rollout", "4", "--total_episodes", "16", "--seed", "3"]
    reading = read(command, version=CHECKOUT, dataset_size=8)
    assert reading.spec is not None, reading.findings
    plan = plan_of(reading.spec, 8)
    assert isinstance(plan, CandidatePlan)
    for seed, count, asked in VALUES["seeds"]:
        assert asked == [None if seed is None else seed + sample for sample in range(count)]
    (first,), (prompt,) = plan.candidate_seeds(0, 1), plan.candidates(0, 1)
    given = next(asked for seed, _, asked in VALUES["seeds"] if seed)
    assert [plan.sampling_seed(prompt, sample) - first for sample in range(4)] == [one - given[0] for one in given]


@pytest.mark.parametrize("one", VALUES["orders"], ids=lambda one: f"{one['size']} by {one['batch']}, {one['seed']}")
def test_an_epochs_order_is_the_permutation_of_seed_and_epoch(one: Mapping[str, Any]) -> None:
    """As `behaviour` says of the unwrapped script."""
    whole = one["size"] // one["batch"] * one["batch"]
    orders = [
        TorchGenerator(one["seed"] + epoch).permutation(one["size"])[:whole] for epoch in range(len(one["epochs"]))
    ]
    assert orders == one["epochs"]

"""Misreadings of micro-batches, KL in rewards, staleness, truncated completions and corrections towards the sampler,
each of which a law tells where its author asks the framework; and none of them where nobody does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from toy_adapter import ToyAdapter

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, Token, ValidCase

SETTINGS = {"prompts": 8, "samples": 2, "step": 12, "devices": 2}
CASE = ValidCase(name="one", source=Source(values=SETTINGS), context=Context(framework_version="1.0"))
KL = {"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}
NEW = ("micro_batches", "kl_rewards", "staleness", "truncated", "corrections")


class Native(EvidenceContract):
    """What toy's trainer would do if it were one: four completions a micro-batch of each replica, k3 taken from the
    rewards, two rollouts ahead, truncated completions masked, ratios to the sampler's probabilities cut at 2."""

    valid = (CASE,)

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        share = case.source.values["step"] // case.source.values["devices"]
        return [min(4, share - begun) for begun in range(0, share, 4)]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        apart = [token.reference - token.old for token in tokens]
        return [-0.1 * (math.exp(one) - one - 1) for one in apart]

    def native_staleness(self, case: ValidCase) -> float:
        return 2

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        return [0 if cut else length for length, cut in zip(lengths, truncated, strict=True)]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        return [[min(math.exp(before - sampled), 2.0) for before, sampled in tokens] for tokens in completions]


RIGHT: dict[str, Any] = {
    "micro_batch.completions_per_device": 4,
    **KL,
    "staleness.mode": "bounded",
    "staleness.maximum": 2,
    "rollout.truncated_completions": "mask",
    "objective.sampler_correction": "token_truncate [-, 2.0]",
}
MISREADINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "a micro-batch of all devices": ("micro_batches", {"micro_batch.completions_per_device": 2}),
    "a micro-batch of a rollout": ("micro_batches", {"micro_batch.completions_per_device": 8}),
    "no micro-batches": ("micro_batches", {"micro_batch.completions_per_device": None}),
    "k3 is k1": ("kl_rewards", {"objective.kl_estimator": "k1"}),
    "k3 is k2": ("kl_rewards", {"objective.kl_estimator": "k2"}),
    "another coefficient": ("kl_rewards", {"objective.kl_coefficient": 0.05}),
    "KL is a term of the loss": ("kl_rewards", {"objective.kl_placement": "loss"}),
    "a bound of the estimate": ("kl_rewards", {"objective.kl_clamp": 10.0}),
    "no KL": ("kl_rewards", {"objective.kl_placement": "none", "objective.kl_coefficient": 0.0}),
    "a rollout less": ("staleness", {"staleness.maximum": 1}),
    "in step": ("staleness", {"staleness.mode": "sync", "staleness.maximum": 0}),
    "no bound": ("staleness", {"staleness.mode": "unbounded", "staleness.maximum": None}),
    "truncated ones train": ("truncated", {"rollout.truncated_completions": "keep"}),
    "truncated ones are gone": ("truncated", {"rollout.truncated_completions": "drop"}),
    "no correction": ("corrections", {"objective.sampler_correction": None}),
    "no cap": ("corrections", {"objective.sampler_correction": "token_truncate [-, -]"}),
    "another cap": ("corrections", {"objective.sampler_correction": "token_truncate [-, 5.0]"}),
    "a lower bound": ("corrections", {"objective.sampler_correction": "token_truncate [0.5, 2.0]"}),
    "a cap that masks": ("corrections", {"objective.sampler_correction": "token_mask [-, 2.0]"}),
    "the ratio of the sequence": ("corrections", {"objective.sampler_correction": "sequence_truncate [-, 2.0]"}),
}


def asked(law: str, contract: type[EvidenceContract], fields: dict[str, Any]) -> Callable[[], None]:
    class Adapter(ToyAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**fields))

    class Held(contract):  # type: ignore[misc, valid-type]  # an argument
        adapter_class = Adapter

    return lambda: getattr(Held(), LAWS[law].test)(CASE)


@pytest.mark.parametrize("law", NEW)
def test_what_was_read_right_keeps_the_law(law: str) -> None:
    if law == "kl_rewards":
        pytest.importorskip("torch")
    asked(law, Native, RIGHT)()


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told(misread: str) -> None:
    law, wrong = MISREADINGS[misread]
    if law == "kl_rewards":
        pytest.importorskip("torch")
    with pytest.raises(AssertionError, match="natively"):
        asked(law, Native, RIGHT | wrong)()


@pytest.mark.parametrize("law", NEW)
def test_a_law_that_nobody_asks_the_framework_about_is_skipped(law: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="no function to ask"):
        asked(law, EvidenceContract, RIGHT)()


@pytest.mark.parametrize(
    ("correction", "factors"),
    [
        ("token_mask [-, 2.0]", lambda tokens: [one if one <= 2 else 0.0 for one in tokens]),
        ("token_truncate [0.5, 2.0]", lambda tokens: [min(max(one, 0.5), 2.0) for one in tokens]),
        ("sequence_truncate [-, 2.0]", lambda tokens: [min(math.prod(tokens), 2.0)] * len(tokens)),
        (
            "sequence_mask [0.5, 2.0]",
            lambda tokens: [math.prod(tokens) * (0.5 <= math.prod(tokens) <= 2)] * len(tokens),
        ),
        ("token_truncate [-, -]", lambda tokens: tokens),
    ],
)
def test_every_formula_of_a_correction_is_held_against_one_written_otherwise(
    correction: str, factors: Callable[[list[float]], list[float]]
) -> None:
    class Other(Native):
        def native_sampler_factors(self, case: ValidCase, completions: Any) -> list[list[float]]:
            return [factors([math.exp(before - sampled) for before, sampled in tokens]) for tokens in completions]

    asked("corrections", Other, {"objective.sampler_correction": correction})()


@pytest.mark.parametrize(
    ("law", "fields"),
    [
        ("micro_batches", {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 64}),
        ("micro_batches", {"topology.world_size": 5}),
        ("kl_rewards", {**KL, "objective.kl_estimator": "ours"}),
        ("corrections", {"objective.sampler_correction": "reject token_k1 0.6_1.6"}),
    ],
)
def test_what_has_no_number_to_compare_is_skipped_by_its_reason(law: str, fields: dict[str, Any]) -> None:
    if law == "kl_rewards":
        pytest.importorskip("torch")
    with pytest.raises(pytest.skip.Exception):
        asked(law, Native, RIGHT | fields)()

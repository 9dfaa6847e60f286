"""L2: corrections towards the sampler (`algorithm.rollout_correction`), by verl's own functions, against the oracle.

Factors of tokens and of sequences, cut and left out, alone and with rejected tokens and completions; rows as the V1
trainer sends them, whose rejection is in one of two masks.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.testing.oracle import gradient_bar

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("verl") != "0.9.1", reason="corrections are followed on 0.9.1"
)
COMPARED = ("vanilla", "vanilla, k3", "gspo")


@pytest.fixture(scope="module")
def measured(folder: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """World size -> what `corrected.py` found."""
    return lambda ranks: torch.load(folder(ranks, "corrected") / "measured.pt", weights_only=True)


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.by_hand)], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


@pytest.mark.parametrize("case", COMPARED)
def test_every_corrected_step_has_the_oracles_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [one for one in measured(ranks)["wrapped"] if one["case"].partition(";")[0] == case]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    worst = max(results, key=lambda result: result["error"])
    record("corrected", f"{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


def test_enough_is_corrected_and_rejected_for_it_to_be_tested(measured: Callable[[int], dict[str, Any]]) -> None:
    found = measured(1)["wrapped"]
    for words in {one["case"].partition("; ")[2] for one in found}:
        of_words = [one for one in found if one["case"].endswith(f"; {words}")]
        assert max(one["plain"] for one in of_words) > 10, "without the correction the gradient is another one"
        assert any(one["kept"] < one["all"] for one in of_words) == ("reject" in words)


def test_negative_control_verl_alone_counts_the_tokens_that_it_rejected(
    measured: Callable[[int], dict[str, Any]], ranks: int, record: Callable[..., None]
) -> None:
    assert measured(ranks)["natively"] > 10
    record("natively", f"rejected tokens in the denominator, ranks: {ranks}", bars=measured(ranks)["natively"])


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        ("the weights", "weights: (a response token|the gradient at the log-probabilities) of prompt "),
        ("the mask", "weights: the gradient at the log-probabilities of .* is not the one"),
    ],
)
def test_a_correction_that_something_else_has_a_hand_in_ends_the_step(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str, said: str
) -> None:
    found = measured(ranks)["tampering"]
    assert found["nothing"] == {"said": "", "updates": 1}
    assert re.match(f"optimizer step 3 departs from the plan in its {said}", found[tampering]["said"])
    assert found[tampering]["updates"] == 0


# ---- the sampler's log-probabilities as the old ones (bypass_mode)


def test_every_step_whose_old_log_probabilities_are_the_samplers_has_the_oracles_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, record: Callable[..., None]
) -> None:
    results = measured(ranks)["bypass"]
    for result in results:
        assert result["error"] <= gradient_bar(result["floor"]), result
        assert result["norm"] > 0.1, result
    assert len({result["case"] for result in results}) >= 9
    worst = max(results, key=lambda result: result["error"])
    record("corrected", f"bypass_mode, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


def test_negative_control_scored_log_probabilities_give_another_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, record: Callable[..., None]
) -> None:
    found = measured(ranks)["bypass"]
    ratios = {one["case"] for one in found} - {"gpg; bypass_mode"}  # its loss has no ratio
    furthest = {case: max(one["plain"] for one in found if one["case"] == case) for case in ratios}
    assert min(furthest.values()) > 10, furthest
    record("natively", f"bypass_mode taken for scored, ranks: {ranks}", bars=min(furthest.values()))


@pytest.mark.parametrize(
    ("tampering", "said"),
    [
        ("before the step", "gradient: the old log-probabilities of prompt .* are not the sampler's"),
        ("in a micro-batch", "weights: the gradient at the log-probabilities of .* is not the one"),
    ],
)
def test_old_log_probabilities_that_are_not_the_samplers_end_the_step(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str, said: str
) -> None:
    found = measured(ranks)["bypass tampering"]
    assert found["nothing"] == {"said": "", "updates": 1}
    assert re.match(f"optimizer step 3 departs from the plan in its {said}", found[tampering]["said"])
    assert found[tampering]["updates"] == 0

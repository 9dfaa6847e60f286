"""Advantages and the weights of tokens, against what prime-rl's own functions gave on a CPU.

`vectors.json` was made by prime-rl 0.8.0 (559b44772), of which it has the files' digests: GRPOAlgorithm and
MaxRLAlgorithm.score_group, and the gradients of compute_loss by the log-probabilities, with the denominator of
rl/train.py (trained tokens of all ranks) and the tokens that _prune_zero_advantages leaves.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source, Spec
from batchbridge.kit import Context, Row, group_advantages, token_weights
from batchbridge_prime_rl.config import PrimeRLAdapter

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))


def _spec(**values: Any) -> Spec:
    given = {"max_steps": 1, **{key.replace("__", "."): value for key, value in values.items()}}
    spec = PrimeRLAdapter().read(Source(values=given), Context(framework_version="0.8.0")).spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("vector", VECTORS["advantages"], ids=lambda vector: str(vector["rewards"]))
def test_advantages_are_those_of_grpo(vector: dict[str, Any]) -> None:
    spec = _spec(orchestrator__group_size=4)
    assert not [term for term in spec.open_terms if term.startswith("advantage")]
    assert group_advantages([vector["rewards"]], spec.advantage)[0] == pytest.approx(vector["grpo"], abs=1e-6)


@pytest.mark.parametrize("vector", VECTORS["advantages"], ids=lambda vector: str(vector["rewards"]))
def test_max_rl_divides_what_the_fields_say_by_the_mean_and_is_a_term_of_its_own(vector: dict[str, Any]) -> None:
    spec = _spec(orchestrator__group_size=4, orchestrator__algo__type="max_rl")
    assert "advantage: max_rl" in spec.open_terms
    mean = sum(vector["rewards"]) / 4
    ours = group_advantages([vector["rewards"]], spec.advantage)[0]
    assert [value / mean if mean > 0 else 0.0 for value in ours] == pytest.approx(vector["max_rl"], abs=1e-6)


@pytest.mark.parametrize("vector", VECTORS["steps"], ids=lambda vector: f"{vector['lengths']}")
def test_a_token_weighs_what_the_loss_gives_it(vector: dict[str, Any]) -> None:
    spec = _spec(orchestrator__train__filter_zero_advantages=vector["filter_zero_advantages"])
    pruned = "loss: train.filter_zero_advantages" in spec.open_terms
    assert pruned == vector["filter_zero_advantages"]
    lengths = [
        0 if pruned and not advantage else length
        for length, advantage in zip(vector["lengths"], vector["advantages"], strict=True)
    ]
    assert sum(lengths) == vector["denominator"]
    rows = [Row(tokens=length, group=place // 2, rank=place % 2) for place, length in enumerate(lengths)]
    weights = token_weights(spec.loss.policy, rows)
    for ours, length, advantage, theirs in zip(
        weights, vector["lengths"], vector["advantages"], vector["weights"], strict=True
    ):
        if advantage:  # the gradient shows the weight of a token only where its advantage is not 0
            assert theirs == pytest.approx([float(ours)] * length, abs=1e-7)
    assert Fraction(1, vector["denominator"]) in weights


@pytest.mark.parametrize("vector", VECTORS["tokens"], ids=lambda vector: json.dumps(list(vector.values())))
def test_a_token_s_gradient_is_that_of_the_words(vector: dict[str, Any]) -> None:
    """dppo_tv: no gradient where the probability went the advantage's way by more than the bound; ipo: either way.
    kl_tau is the factor of the squared log ratio, adv_tau that of the advantage."""
    import math

    ipo = vector["loss"] == "ipo"
    settings = {"trainer__loss__type": "ipo", "trainer__loss__ipo_threshold": 0.15, "trainer__loss__adv_tau": 2.0}
    bounds = {"trainer__loss__dppo_mask_high": 0.1, "trainer__loss__kl_tau": 0.5}
    spec = _spec(**(settings | {"trainer__loss__kl_tau": 0.0} if ipo else bounds))
    ours, change, ratio = spec.objective, vector["new"] - vector["old"], vector["new"] / vector["old"]
    assert (ours.surrogate, ours.clip_low, ours.clip_high) == (("ipo", 0.15, 0.15) if ipo else ("dppo_tv", 0.2, 0.1))
    assert ours.clip_low is not None
    assert ours.clip_high is not None
    up, down = change > ours.clip_high, change < -ours.clip_low
    masked = up or down if ipo else (up if vector["advantage"] > 0 else down)
    terms = dict(term.rpartition(" ")[::2] for term in spec.open_terms)
    factor = float(terms.get("advantage: loss.adv_tau", 1.0))
    drift = float(terms.get("objective: loss.kl_tau", 0.0))
    gradient = (0.0 if masked else -factor * vector["advantage"] * ratio) + 2 * drift * math.log(ratio)
    assert gradient == pytest.approx(vector["gradient"], abs=1e-9)

"""L2: losses that choose tokens of a micro-batch by statistics and a draw (clip_cov, kl_cov), against the oracle, which
is given the choice that was written down.

Ratios on both sides of one and of the clipping bounds; bounds of the covariance that some tokens are outside of; more
candidates than are drawn; several micro-batches, two of which cuts differ.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import read_steps
from batchbridge.testing.oracle import gradient_bar

AGGREGATIONS = 4 if importlib.metadata.version("verl") == "0.8.0" else 5
CASES = {"clip_cov": AGGREGATIONS, "kl_cov": AGGREGATIONS, "clip_cov, k3": 1, "kl_cov, k3": 1}
"""Objectives, and how many aggregations each is measured with."""
PAIR = ("clip_cov", "kl_cov")


@pytest.fixture(scope="module")
def measured(folder: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """World size -> what `chosen.py` found."""
    return lambda ranks: torch.load(folder(ranks, "chosen") / "measured.pt", weights_only=True)


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


@pytest.mark.parametrize("case", CASES)
def test_every_step_has_the_oracles_gradient_given_the_choice(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [one for one in measured(ranks)["wrapped"] if one["case"] == case]
    assert len(results) == 2 * 3 * CASES[case]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    worst = max(results, key=lambda result: result["error"])
    record("chosen", f"{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


@pytest.mark.parametrize("case", CASES)
def test_negative_control_no_token_and_other_tokens_chosen_miss_the_bar_tenfold(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [one for one in measured(ranks)["wrapped"] if one["case"] == case]
    nearest = min(min(one["none"], one["another"]) for one in results)
    assert nearest > 10
    record("natively", f"{case}, another choice, ranks: {ranks}", bars=nearest)


def test_enough_is_chosen_for_it_to_be_tested(measured: Callable[[int], dict[str, Any]], ranks: int) -> None:
    results = measured(ranks)["wrapped"]
    for result in results:
        assert sum(result["micro-batches"]) == sum(map(sum, result["choice"]))
        assert sum(result["micro-batches"]) >= 2, result
    assert max(sum(count > 1 for count in one["micro-batches"]) for one in results) >= 3, "several in several of them"


@pytest.mark.parametrize("case", PAIR)
def test_another_cut_chooses_other_tokens(measured: Callable[[int], dict[str, Any]], case: str) -> None:
    """What BB-VERL-029 tells: nothing claims that a step is the same in another cut."""
    chosen = {
        split: [one["choice"] for one in measured(1)["wrapped"] if (one["case"], one["split"]) == (case, split)]
        for split in ("fixed 2", "budget 40")
    }
    assert chosen["fixed 2"] != chosen["budget 40"]


def test_what_kl_cov_chooses_hangs_on_no_draw(measured: Callable[[int], dict[str, Any]]) -> None:
    def place(one: dict[str, Any]) -> tuple[str, int]:
        return one["split"], one["step"]

    results = sorted((one for one in measured(1)["wrapped"] if one["case"].startswith("kl_cov")), key=place)
    for _, same in groupby(results, key=place):
        assert len({str(one["choice"]) for one in same}) == 1


def test_the_steps_numbers_say_how_many_are_chosen(measured: Callable[[int], dict[str, Any]]) -> None:
    for ranks in (1, 2):
        for result in measured(ranks)["wrapped"]:
            assert result["told"] == [sum(map(sum, result["choice"]))]


TAMPERED = {
    "clip_cov": ("another draw", "another number", "a chosen token is trained", "another token is not"),
    "kl_cov": (
        "another number",
        "a chosen token has no penalty",
        "another token has one",
        "another token is not trained",
    ),
}
SAID = (
    "optimizer step 3 departs from the plan in its weights: (a response token|the gradient at the log-probabilities) of"
)


@pytest.mark.parametrize(("case", "tampering"), [(case, one) for case in PAIR for one in TAMPERED[case]])
def test_tokens_that_are_not_trained_as_was_written_down_end_the_step(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str, tampering: str
) -> None:
    found = measured(ranks)["tampering"][case][tampering]
    assert found["alike"], "every rank says the same"
    assert re.match(SAID, found["said"]), found
    assert found["updates"] == 1


@pytest.mark.parametrize("case", PAIR)
def test_a_step_that_nothing_else_has_a_hand_in_is_trained_or_verified(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str
) -> None:
    found = measured(ranks)
    for result in (found["tampering"][case]["nothing"], found["verify"][case]["nothing"]):
        assert (result["said"], result["alike"], result["updates"]) == ("", True, 2)
    (departed,) = (one for name, one in found["verify"][case].items() if name != "nothing")
    assert re.match(SAID, departed["said"])
    assert departed["updates"] == 1


@pytest.mark.parametrize("mode", ["enforce", "verify", "observe"])
@pytest.mark.parametrize("case", PAIR)
def test_the_ledger_says_which_tokens_were_chosen(
    measured: Callable[[int], dict[str, Any]], folder: Callable[..., Path], ranks: int, case: str, mode: str
) -> None:
    """Those of which the gradients above are the oracle's."""
    found = measured(ranks)["tampering" if mode == "enforce" else mode][case]["nothing"]["chosen"]
    steps = list(read_steps(folder(ranks, "chosen") / f"{case} {mode} nothing"))
    assert len(steps) == len(found) == 2
    for step, chosen in zip(steps, found, strict=True):
        rows = zip(step["prompt"], step["sample"], step["chosen_tokens"], strict=True)
        told = {(prompt, sample): [int(place) for place in text.split()] for prompt, sample, text in rows}
        assert told == {row: [at for at, one in enumerate(tokens) if one] for row, tokens in chosen.items()}
        assert sum(map(len, told.values())) >= 2


@pytest.mark.parametrize("case", PAIR)
def test_rows_as_the_v0_trainer_sends_them_are_measured(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str
) -> None:
    found = measured(ranks)["v0"][case]
    assert found["error"] <= gradient_bar(found["floor"]), found
    assert min(found["none"], found["another"]) > 10


@pytest.mark.parametrize("case", PAIR)
def test_observing_writes_down_weights(
    measured: Callable[[int], dict[str, Any]], folder: Callable[..., Path], case: str
) -> None:
    for name, result in measured(1)["observe"][case].items():
        assert (result["said"], result["updates"]) == ("", 2)
        _, step = read_steps(folder(1, "chosen") / f"{case} observe {name}")
        shown = [weight for weight in step["weights"] if weight is not None]
        departs = [weight for weight in shown if math.isnan(weight)]
        assert bool(departs) == (name != "nothing")
        assert [one for one in shown if one not in departs] == pytest.approx([1 / 70] * (len(shown) - len(departs)))
        assert len(shown) - len(departs) >= 2


@pytest.mark.parametrize("case", PAIR)
def test_a_loss_that_chooses_is_taken_at_attach_without_a_trace_and_another_under_its_name_is_refused(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str
) -> None:
    found = measured(ranks)["attached"]
    assert found[case] == ""
    assert found[f"{case} is vanilla"].startswith("the trainer's own loss is not the objective")


def test_a_loss_that_may_choose_every_token_is_taken(measured: Callable[[int], dict[str, Any]], ranks: int) -> None:
    assert measured(ranks)["attached"]["every token is chosen"] == ""

"""L2 of packed rows (`use_remove_padding`, verl's default), whole and on two ranks each (Ulysses): verl's real engine
on gloo against the float64 oracle. The attention kernel is a stand-in (`batchbridge_on_cpu.verl.packed`), and for whole
rows torch's own as well (`sdpa`, which transformers gives a mask by position numbers): what stands around it is verl's.

The processes run `processes.py`; this one compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import diff, read_steps
from batchbridge.testing.oracle import gradient_bar

LAYOUTS = {
    "rows whole": (1, "1"),
    "rows whole, sdpa": (1, "sdpa"),
    "rows whole, sdpa, two ranks": (2, "sdpa"),
    "one sequence group of two": (2, "2"),
    "two sequence groups of two": (4, "2"),
}
"""Processes, and what `processes.py` is told: ranks that a row is on, or the attention of whole rows."""
BY_HAND = ("rows whole, sdpa, two ranks", "two sequence groups of two")
"""Minutes each."""


@pytest.fixture(scope="module")
def measured(folder: Callable[..., Path]) -> Callable[[str], dict[str, Any]]:
    """Layout -> what `processes.py` found."""
    return lambda layout: torch.load(left(folder, layout) / "measured.pt", weights_only=True)


def left(folder: Callable[..., Path], layout: str) -> Path:
    return folder(*LAYOUTS[layout])


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.by_hand] * (name in BY_HAND)) for name in LAYOUTS])
def layout(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.mark.parametrize("case", ["vanilla", "vanilla, k3", "gspo"])
def test_every_step_of_packed_rows_has_the_oracles_gradient(
    measured: Callable[[str], dict[str, Any]], layout: str, case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured(layout)["wrapped"] if result["case"] == case]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    assert {(result["rows"], result["silent"]) for result in results} == {(2, 0), (5, 0), (5, 1)}
    worst = max(results, key=lambda result: result["error"])
    record("packed", f"{case}, {layout}", error=worst["error"], float32=worst["floor"])


@pytest.mark.parametrize(
    "control", ["seq-mean-token-sum-norm, null factor", "geo_mean", "seq-mean-token-sum, filler rows in B"]
)
def test_negative_control_verl_alone_misses_the_bar_tenfold_on_packed_rows(
    measured: Callable[[str], dict[str, Any]], layout: str, control: str
) -> None:
    assert measured(layout)["natively"][control] > 10


def test_positive_control_verl_alone_meets_the_bar_on_packed_rows(
    measured: Callable[[str], dict[str, Any]], layout: str
) -> None:
    assert measured(layout)["natively"]["positive control: token-mean"] <= 1


def test_a_loss_is_probed_on_packed_rows(measured: Callable[[str], dict[str, Any]], layout: str) -> None:
    said = measured(layout)["tampering"]["losses"]
    assert said.pop("itself") == ""
    assert len(said) == 7
    assert said.pop("a term of its own").startswith("own_term: ")
    for why in said.values():
        assert why.startswith("weight_probe: ")


TAMPERED = {
    "the loss": r"weights: a response token of .* weighs 0\.\d*, 7 times what the plan says",
    "the mask": "weights: the gradient at the log-probabilities of .* is not the one",
    "the advantages": r"weights: a response token of .*, 1\.01 times what the plan says",
    "a micro-batch's gradient": r"gradient: the gradients that the optimizer finds of .* \(another direction\)",
    "the gradient after backward": r"gradient: the gradients that the optimizer finds of .* \(3 times\)",
    "the gradient after clipping": r"gradient: .* \(0\.5 times\)",
    "the update": r"gradient: .* \(1\.001 times\)",
}


@pytest.mark.parametrize("tampering", TAMPERED)
def test_a_step_of_packed_rows_that_one_rank_has_a_hand_in_ends_on_every_rank(
    measured: Callable[[str], dict[str, Any]], layout: str, tampering: str
) -> None:
    result = measured(layout)["tampering"][tampering]
    assert (result["step"], result["updates"]) == (3, 1), result
    assert re.match(f"optimizer step 3 departs from the plan in its {TAMPERED[tampering]}", result["said"]), result


@pytest.mark.parametrize("name", ["nothing", "clipped"])
def test_a_step_of_packed_rows_that_nothing_else_has_a_hand_in_is_trained(
    measured: Callable[[str], dict[str, Any]], layout: str, name: str
) -> None:
    assert measured(layout)["tampering"][name] == {"said": "", "step": None, "updates": 2}


@pytest.mark.by_hand
def test_ranks_that_share_a_row_write_it_down_once(folder: Callable[..., Path]) -> None:
    ledgers = [left(folder, layout) / "empty_ledger" for layout in LAYOUTS]
    whole = ledgers[0]
    for ledger, ranks in zip(ledgers, (1, 1, 2, 1, 2), strict=True):
        assert [(step["ranks"], len(step["prompt"])) for step in read_steps(ledger)] == [(ranks, 5), (ranks, 5)]
        compared = diff(whole, ledger, rtol=1e-5)
        assert compared.equal, compared.text()

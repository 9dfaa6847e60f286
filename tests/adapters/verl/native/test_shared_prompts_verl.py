"""`padding="free"` in verl's real engine on gloo: each prompt once, its completions behind it, and the same gradient.

The processes run `processes.py` (`shared.py`); this one compares. Groups are cut over micro-batches and ranks, lengths
are ragged, a completion's loss mask is all zero, and there are filler rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.kit import packable
from batchbridge.ledger import diff
from batchbridge.testing.oracle import gradient_bar


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


@pytest.fixture
def measured(folder: Callable[..., Path], ranks: int) -> dict[str, Any]:
    """What `processes.py` found."""
    found: dict[str, Any] = torch.load(folder(ranks, "shared") / "measured.pt", weights_only=True)
    return found


@pytest.fixture
def alone(folder: Callable[..., Path]) -> dict[str, Any]:
    """What it found on one rank."""
    found: dict[str, Any] = torch.load(folder(1, "shared") / "measured.pt", weights_only=True)
    return found


@pytest.mark.parametrize("case", ["vanilla", "vanilla, k3", "gspo"])
def test_every_step_has_the_oracles_gradient(
    measured: dict[str, Any], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured["wrapped"] if result["case"] == case]
    assert {result["split"] for result in results} >= {"fixed 2", "budget 40"}
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    worst = max(results, key=lambda result: result["error"])
    record("shared prompts", f"{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


SEES = (
    "everything that lies before",
    "the completions of its prompt before it",
    "its prompt but for the first token",
    "nothing of its prompt",
)


@pytest.mark.parametrize("how", SEES)
def test_attention_that_sees_something_else_ends_the_run_before_an_update(measured: dict[str, Any], how: str) -> None:
    found = measured["seen"][how]
    assert found["said"].startswith("optimizer step 3 departs from the plan in its padding: ")
    assert 'wrap with padding="padded"' in found["said"]
    assert found["applied"] == 0


@pytest.mark.parametrize("how", SEES)
def test_negative_control_its_gradient_misses_the_bar_a_hundredfold(measured: dict[str, Any], how: str) -> None:
    assert measured["seen"][how]["bars"] > 100


@pytest.mark.parametrize("split", ["fixed 1", "fixed 2", "budget 40"])
def test_scoring_gives_verls_own_values_at_their_places_and_nothing_elsewhere(
    measured: dict[str, Any], split: str
) -> None:
    found = measured["scored"][split]
    assert found["log_probs"] <= 2e-5
    assert found["entropy"] <= 2e-5
    assert found["elsewhere"] == 0


def test_a_completion_with_tools_answers_inside_is_read_whole_and_trained_in_part(measured: dict[str, Any]) -> None:
    found = measured["answers"]
    assert found["error"] <= gradient_bar(found["floor"])
    assert found["masks matter"] > 100


def test_an_entropy_term_has_the_gradient_of_verls_own_rows(measured: dict[str, Any]) -> None:
    assert measured["entropy"]["error"] <= 5e-6
    assert measured["entropy"]["term"] > 1e-3


def test_each_prompt_is_read_once_and_a_first_pass_is_held_against_verls_own(alone: dict[str, Any]) -> None:
    found = alone["tokens"]
    assert found["padded"] == found["rows"]
    *compared, trained = found["free"]
    assert [trained] == found["once"]
    assert trained < found["rows"][0]
    verls, shared = compared
    assert shared < verls < found["rows"][0]


def test_a_reference_beside_the_policy_reads_each_prompt_once_and_is_left_as_it_was(alone: dict[str, Any]) -> None:
    *_, scored = alone["beside"]["tokens"]
    assert [scored] == alone["tokens"]["once"]
    assert alone["beside"]["left alone"]


@pytest.mark.parametrize("family", packable.FAMILIES)
def test_every_family_has_the_oracles_gradient(alone: dict[str, Any], family: str) -> None:
    found = alone["families"][family]
    assert found["error"] <= gradient_bar(found["floor"])


@pytest.mark.parametrize("setting", ["gradient checkpointing", "FSDP1"])
def test_it_is_the_gradient_of_verls_own_rows_with(alone: dict[str, Any], setting: str) -> None:
    assert alone["others"][setting] <= 5e-6


REFUSED = {
    "eager": "attention is eager, and packed passes are proven here under sdpa alone",
    "flash": "attention is packed_cpu, and packed passes are proven here under sdpa alone",
    "lora": "LoRA is not proven here",
    "dropout": "attention_dropout: dropout draws other numbers in packed passes; set it to 0",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_worker_refuses_what_is_not_proven_and_auto_leaves_it_alone(alone: dict[str, Any], why: str) -> None:
    assert alone["refused"][why] == {"said": REFUSED[why], "alone": True}


@pytest.mark.parametrize("tampering", ["the loss", "the mask"])
def test_a_step_that_something_else_has_a_hand_in_ends_before_its_update(
    measured: dict[str, Any], tampering: str
) -> None:
    found = measured["tampering"][tampering]
    assert (found["step"], found["updates"]) == (3, 1)
    assert found["said"].startswith("optimizer step 3 departs from the plan in its weights: ")
    assert measured["tampering"]["nothing"] == {"said": "", "step": None, "updates": 2}


def test_a_loss_is_probed_as_without_shared_prompts(measured: dict[str, Any]) -> None:
    said = dict(measured["losses"])
    assert said.pop("itself") == ""
    assert said.pop("a term of its own").startswith("own_term: ")
    assert all(why.startswith("weight_probe: ") for why in said.values())
    assert len(said) == 6


def test_unwrapping_leaves_the_engine_as_it_was(measured: dict[str, Any]) -> None:
    assert measured["left alone"]


def test_one_and_two_ranks_write_the_same_ledger(folder: Callable[..., Path]) -> None:
    compared = diff(folder(1, "shared") / "empty_ledger", folder(2, "shared") / "empty_ledger", rtol=1e-5)
    assert compared.equal, compared.text()

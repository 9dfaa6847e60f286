"""L2: an engine that nothing was proven on, allowed by name: behind verl's interface and in its registry, with nothing
of FSDP's (`batchbridge_on_cpu.verl.own_engine`).

It shows that what is enforced stands above the engine, and that what is measured needs no more of one than verl's
`BaseEngine` says. It shows nothing of Megatron, VeOmni or torchtitan themselves, which do not run here.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import read_headers
from batchbridge.testing.oracle import gradient_bar

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("verl") != "0.9.1", reason="the engine keeps to the interface of 0.9.1"
)


@pytest.fixture(scope="module")
def measured(folder: Callable[..., Path]) -> Callable[[int], dict[str, Any]]:
    """World size -> what `other_engine.py` found."""
    return lambda ranks: torch.load(folder(ranks, "own") / "measured.pt", weights_only=True)


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def test_every_step_of_an_allowed_engine_has_the_oracles_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, record: Callable[..., None]
) -> None:
    results = measured(ranks)["wrapped"]
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    assert {result["case"] for result in results} == {"vanilla", "vanilla, k3", "gspo"}
    worst = max(results, key=lambda result: result["error"])
    record("other engine", f"ranks: {ranks}", error=worst["error"], float32=worst["floor"])


def test_an_engine_that_is_not_allowed_is_refused_by_name(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["refused"] == {
        "unproven_engine": "OwnEngine is not proven; proven: FSDPEngineWithLMHead, FSDPEngineWithValueHead"
    }


def test_the_ledger_of_an_allowed_engine_does_not_call_it_proven(folder: Callable[..., Path], ranks: int) -> None:
    for header in read_headers(folder(ranks, "own") / "ledger"):
        assert header["evidence"]["grade"] == "measured"
        (named,) = header["evidence"]["control"]
        assert named.endswith("OwnEngine (an engine that no proof ran on)")


@pytest.mark.parametrize("loss", ["times seven", "over its own tokens", "mean over rows", "library altered"])
def test_a_loss_that_weighs_otherwise_is_refused_at_attach(
    measured: Callable[[int], dict[str, Any]], ranks: int, loss: str
) -> None:
    said = measured(ranks)["losses"]
    assert said["itself"] == ""
    assert re.match("weight_probe: the trainer's own loss gives a token .* the weight ", said[loss])


TAMPERED = {
    "the engine's scaling": r"weights: a response token of .* weighs 0.0\d*, 3 times what the plan says",
    "the mask": "weights: the gradient at the log-probabilities of .* is not the one",
    "the advantages": "weights: a response token of .*, 1.01 times what the plan says",
    "a micro-batch that is left out": "gradient: of the step's . rows on this rank, . reached the loss",
}


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("tampering", TAMPERED)
def test_a_step_of_other_weights_ends_before_the_engines_update(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str, mode: str
) -> None:
    """Enforced it is allowed; verified, nobody is asked."""
    result = measured(ranks)[mode][tampering]
    assert re.match(f"optimizer step 3 departs from the plan in its {TAMPERED[tampering]}", result["said"])
    assert result["updates"] == 1
    assert measured(ranks)[mode]["nothing"] == {"said": "", "updates": 2}


def test_observing_asks_for_no_allow_and_ends_nothing(measured: Callable[[int], dict[str, Any]], ranks: int) -> None:
    assert set(map(str, measured(ranks)["observe"].values())) == {str({"said": "", "updates": 2})}


def test_of_a_pipelines_stages_the_one_that_has_the_loss_speaks_for_all(
    measured: Callable[[int], dict[str, Any]],
) -> None:
    found = measured(2)["staged"]
    bar = gradient_bar(*(result["floor"] for result in found["wrapped"]))
    assert max(result["error"] for result in found["wrapped"]) <= bar
    assert found["losses"] == {"itself": "", "times seven": ""}, "the first stage sees no loss, and has no objection"
    assert found["enforce"]["nothing"] == {"said": "", "updates": 2}
    for tampering, said in TAMPERED.items():
        assert re.match(f"optimizer step 3 departs from the plan in its {said}", found["enforce"][tampering]["said"])


def test_what_cannot_be_reached_is_refused_by_name(measured: Callable[[int], dict[str, Any]], ranks: int) -> None:
    assert measured(ranks)["unseen"].startswith("OwnEngine has a train_batch of its own")
    assert measured(ranks)["clock"].startswith("its schedule was built for 10 ticks, and the plan has 11")

"""Rows of refusals as tables had them before `Refusals`: they still work, and say what stands in their place."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Reading
from batchbridge.kit import refusals
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology

SPEC = Spec(
    topology=Topology(world_size=2),
    horizon=Horizon(epochs=1.0),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=8),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
)
REQUEST = Request(
    spec=SPEC, plan=None, reading=Reading(framework="toy", framework_version="1.0", spec=SPEC), mode="enforce"
)


def before(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(refusals, name)


class Known:
    """Something that a trainer may be."""


LOOKS: dict[str, Callable[[Any, Request], object]] = {
    "an attribute": lambda trainer, request: trainer.switch,
    "an attribute with a default": lambda trainer, request: getattr(trainer, "switch", False),
    "whether it has one": lambda trainer, request: hasattr(trainer, "switch"),
    "its class": lambda trainer, request: isinstance(trainer, Known),
    "its bases": lambda trainer, request: any(base is Known for base in type(trainer).__mro__),
    "its attributes": lambda trainer, request: "switch" in vars(trainer),
}


@pytest.mark.parametrize("name", ["Refusal", "never", "only_asked", "foretold", "step_crosses"])
def test_a_name_of_before_is_there_and_says_what_to_use(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{name} is deprecated: use \w+"):
        assert callable(getattr(importlib.import_module("batchbridge.kit.refusals"), name))
    with pytest.raises(AttributeError, match="has no attribute 'refuse'"):
        refusals.refuse  # noqa: B018  # that it is looked up is the test


@pytest.mark.parametrize("look", LOOKS)
def test_a_row_that_looks_at_the_trainer_is_not_known_without_a_second_predicate(look: str) -> None:
    refusal, never = before("Refusal"), before("never")
    assert refusal("row", "why", LOOKS[look]).foreseen(REQUEST) is None
    assert refusal("row", "why", LOOKS[look], configured=lambda reading: True).foreseen(REQUEST) is True
    assert refusal("row", "why", LOOKS[look], configured=never).foreseen(REQUEST) is False


def test_a_row_about_the_request_needs_no_second_predicate_and_none_overrules_it() -> None:
    refusal, never, only_asked = before("Refusal"), before("never"), before("only_asked")
    tokens = lambda trainer, request: request.spec.loss.policy.aggregation == "token_mean"  # noqa: E731
    assert refusal("row", "why", tokens, configured=never).foreseen(REQUEST) is True
    row = refusal("row", "why", only_asked, configured=lambda reading: True)
    assert (row.foreseen(REQUEST), row.against(object(), REQUEST)) == (True, None)


def test_a_trainer_is_refused_with_the_detail_of_the_row() -> None:
    row = before("Refusal")(
        "row", "why", LOOKS["an attribute"], True, lambda trainer, request: trainer.switch, remedy="turn it off"
    )
    assert row.against(SimpleNamespace(switch="on"), REQUEST) == "why: on"
    assert row.against(SimpleNamespace(switch=""), REQUEST) is None
    assert (row.allowable, row.remedy, before("foretold")(row, REQUEST)) == (True, "turn it off", None)
    assert before("step_crosses")(object(), REQUEST) is refusals.crosses_rollouts(REQUEST)

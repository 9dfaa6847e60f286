"""What `batchbridge.writing.objections` finds when a written configuration is read back."""

from __future__ import annotations

from toy_adapter import ToyAdapter

from batchbridge.adapter import Context, Source
from batchbridge.spec import Spec
from batchbridge.writing import objections

CONTEXT = Context(framework_version="2.0", world_size=2)
VALUES = {"prompts": 4, "samples": 2, "step": 8, "rate": 0.5}


def meaning() -> Spec:
    spec = ToyAdapter().read(Source(values=VALUES), CONTEXT).spec
    assert spec is not None
    return spec


def test_what_says_the_spec_meets_no_objection() -> None:
    assert list(objections(ToyAdapter(), meaning(), VALUES, CONTEXT)) == []


def test_another_value_is_named_by_its_canonical_field() -> None:
    spec = meaning().replace(**{"order.seed": 5})
    assert list(objections(ToyAdapter(), spec, VALUES, CONTEXT)) == ["order.seed = 5: toy would do 0"]


def test_a_none_that_means_unknown_may_be_filled_in() -> None:
    assert list(objections(ToyAdapter(), meaning().replace(**{"carried.learning_rate": None}), VALUES, CONTEXT)) == []


def test_what_the_framework_refuses_is_told_in_its_own_words() -> None:
    spec = meaning().replace(**{"optimizer_step.completions_per_step": 3})
    (text,) = objections(ToyAdapter(), spec, {**VALUES, "step": 3}, CONTEXT)
    assert text == "step = 3 (completions) is no multiple of devices = 2"


def test_values_that_leave_the_run_open_are_refused() -> None:
    (text,) = objections(ToyAdapter(), meaning(), VALUES, Context(framework_version="2.0"))
    assert text == "devices: not said"

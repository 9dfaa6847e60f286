"""What `batchbridge.kit.writing.objections` finds when a written configuration is read back."""

from __future__ import annotations

import pytest
from toy_adapter import ToyAdapter

from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.errors import Problem
from batchbridge.kit.writing import Problems, objections, remembered
from batchbridge.meaning.spec import Spec

SEED = Problem(("order.seed",), "order.seed = 5: toy would do 0")
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
    assert list(objections(ToyAdapter(), spec, VALUES, CONTEXT)) == [SEED]


def test_a_none_that_means_unknown_may_be_filled_in() -> None:
    assert list(objections(ToyAdapter(), meaning().replace(**{"carried.learning_rate": None}), VALUES, CONTEXT)) == []


def test_what_the_framework_refuses_is_told_in_its_own_words_and_its_fields_are_named() -> None:
    spec = meaning().replace(**{"optimizer_step.completions_per_step": 3})
    (problem,) = objections(ToyAdapter(), spec, {**VALUES, "step": 3}, CONTEXT)
    assert problem.fields == ("topology.world_size", "optimizer_step.completions_per_step")
    fields = "topology.world_size, optimizer_step.completions_per_step"
    assert problem.reason == f"step = 3 (completions) is no multiple of devices = 2 ({fields})"


def test_values_that_leave_the_run_open_are_refused() -> None:
    (problem,) = objections(ToyAdapter(), meaning(), VALUES, Context(framework_version="2.0"))
    assert problem.reason == "devices: not said"


class Counting(ToyAdapter):
    """Remembers what it was asked to read, but for settings of which one was left out: those look for its field."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, object], Context]] = []

    def read(self, source: Source, context: Context) -> Reading:
        if source.values.keys() >= VALUES.keys():
            self.asked.append((dict(source.values), context))
        return super().read(source, context)


def test_in_a_search_the_same_values_are_read_back_once() -> None:
    adapter, other = Counting(), meaning().replace(**{"order.seed": 5})
    with remembered():
        assert list(objections(adapter, meaning(), VALUES, CONTEXT)) == []
        assert list(objections(adapter, other, dict(VALUES), CONTEXT)) == [SEED]
        assert len(adapter.asked) == 1
    list(objections(adapter, meaning(), VALUES, CONTEXT))
    list(objections(adapter, meaning(), VALUES, CONTEXT))
    assert len(adapter.asked) == 3


@pytest.mark.parametrize(
    "changes", [{"samples": 2.0}, {"samples": True}, {"samples": "2"}, {"samples": [2]}, {"more": None}]
)
def test_values_that_only_look_alike_are_read_each(changes: dict[str, object]) -> None:
    adapter = Counting()
    with remembered():
        list(objections(adapter, meaning(), VALUES, CONTEXT))
        list(objections(adapter, meaning(), {**VALUES, **changes}, CONTEXT))
        list(objections(adapter, meaning(), VALUES, Context(framework_version="2.0", world_size=1)))
    assert len(adapter.asked) == 3


def test_values_that_are_not_plain_are_read_every_time() -> None:
    adapter, odd = Counting(), {**VALUES, "more": object()}
    with remembered():
        list(objections(adapter, meaning(), odd, CONTEXT))
        list(objections(adapter, meaning(), odd, CONTEXT))
    assert sum("more" in values for values, _ in adapter.asked) == 2


def test_what_is_needed_and_does_not_hold_is_a_problem() -> None:
    problems = Problems()
    assert problems.need(True, "rollout.prompts_per_rollout is open")
    assert not problems.need(False, "order.seed is open", "order.seed")
    assert problems == [Problem(("order.seed",), "order.seed is open")]

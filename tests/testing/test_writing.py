"""What `batchbridge.kit.writing.objections` finds when a written configuration is read back."""

from __future__ import annotations

from toy_adapter import ToyAdapter

from batchbridge.contract.reading import Context, Source
from batchbridge.errors import Problem
from batchbridge.kit.writing import Problems, objections
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
    assert problem.reason == f"step = 3 (completions) is not a multiple of devices = 2 ({fields})"


def test_values_that_leave_the_run_open_are_refused() -> None:
    (problem,) = objections(ToyAdapter(), meaning(), VALUES, Context(framework_version="2.0"))
    assert problem.reason == "devices: not said"


def test_the_way_out_of_an_objection_is_what_the_framework_would_do() -> None:
    (problem,) = objections(ToyAdapter(), meaning().replace(**{"order.seed": 5}), VALUES, CONTEXT)
    assert problem.nearest == ({"order.seed": 0},)


def test_words_and_legal_values_are_handed_on_as_ways_out() -> None:
    problems = Problems(ToyAdapter(), meaning())
    assert problems.word("other", "objective.kl_estimator", {"low_var": "k3", "kl": "k1", "k3": "k3"}) is None
    assert not problems.fits(False, "order.seed", "toy has 0", (0, None))
    assert problems.fits(True, "order.seed", "toy has 0", (0, None))
    assert [problem.nearest for problem in problems] == [
        ({"objective.kl_estimator": "k3"}, {"objective.kl_estimator": "k1"}),
        ({"order.seed": 0}, {"order.seed": None}),
    ]


def test_what_is_needed_and_does_not_hold_is_a_problem() -> None:
    problems = Problems()
    assert problems.need(True, "rollout.prompts_per_rollout is open")
    assert not problems.need(False, "order.seed is open", "order.seed")
    assert problems == [Problem(("order.seed",), "order.seed is open")]

"""What a runtime says of a configuration before there is a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.contract.enforcement import Enforcement, enforcement_of
from batchbridge.contract.reading import Reading, Unreached
from batchbridge.kit.lifecycle import Patched, Runtime
from batchbridge.kit.refusals import Answer, RefusalRow, Refusals, any_on, is_on, reasons_against, setting
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.render.text import explain

SPEC = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=8),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
    order=Order(seed=1),
)


READ = Reading(framework="toy", framework_version="1.0", spec=SPEC, dataset_size=64)


def said(
    *rows: RefusalRow, spec: Spec = SPEC, size: int | None = 64, version: str = "1.0", versions: str = "", **more: Any
) -> Enforcement:
    reading = replace(READ, framework_version=version, spec=spec, dataset_size=size)
    runtime = Runtime(
        framework="toy", version=lambda trainer: "1.0", refusals=rows, patch=lambda *asked: Patched(), **more
    )
    return runtime.enforcement(reading, fills_places=False, versions=versions)


def verdict(*rows: RefusalRow, **asked: Any) -> tuple[str, list[str]]:
    found = said(*rows, **asked)
    return found.verdict, [f"{one.name}{'' if one.certain else '?'}" for one in found.obstacles]


def row(name: str, test: Callable[[Request], Answer], **more: Any) -> RefusalRow:
    return RefusalRow(name, "why", test, **more)


def request_of(**asked: Any) -> Request:
    return Request(spec=SPEC, plan=None, reading=Reading(framework="toy", framework_version="1.0", spec=SPEC), **asked)


def test_one_test_is_asked_of_a_configuration_and_of_a_trainer() -> None:
    for answer, verdict_of_it, of_a_trainer in (
        (True, ("refused", ["row"]), "why"),
        ("twice", ("refused", ["row"]), "why: twice"),
        (False, ("enforced", []), None),
        (None, ("unknown", ["row?"]), "why (the settings of this trainer leave it open)"),
    ):
        one = row("row", lambda request, answer=answer: answer)  # type: ignore[misc]  # a lambda's default
        assert verdict(one) == verdict_of_it
        assert one.against(object(), request_of(mode="enforce")) == of_a_trainer


def test_what_only_a_trainer_shows_is_foreseen_as_far_as_settings_say_it() -> None:
    rows = Refusals()
    switched = lambda trainer, request: trainer.switch  # noqa: E731
    rows.live("shown", "why")(switched)
    rows.live("perhaps", "why", foreseen=lambda request: None, allowable=True)(switched)
    rows.live("told", "why", foreseen=lambda request: True, remedy="turn it off")(switched)
    assert verdict(*rows) == ("refused", ["told", "perhaps?"])
    assert verdict(rows[0]) == ("enforced", [])
    assert verdict(rows[1]) == ("with_allow", ["perhaps?"])
    on, off = SimpleNamespace(switch="and how"), SimpleNamespace(switch=False)
    request = request_of(mode="enforce", allow=frozenset({"perhaps"}))
    assert reasons_against(rows, on, request) == {"shown": "why: and how", "told": "why: and how"}
    assert reasons_against(rows, off, request) == {}


def test_some_setting_is_on_where_one_is_and_open_where_one_may_be() -> None:
    given = {key: Where(key, value) for key, value in (("on", "true"), ("off", "null"), ("later", "${other}"))}
    reading = Reading(framework="toy", framework_version="1.0", spec=SPEC, given=given)
    asked = Request(spec=SPEC, plan=None, reading=reading, mode="enforce")
    assert [any_on(asked, *keys) for keys in (("off", "on", "later"), ("off", "later"), ("off", "unsaid"))] == [
        True,
        None,
        False,
    ]


def test_a_dataset_that_nobody_sizes_is_tried_with_and_without_a_remainder() -> None:
    odd = row("odd", lambda request: request.plan is not None and request.plan.dataset_size % 4 > 0)
    assert verdict(odd, size=None) == ("unknown", ["odd?"])
    assert "--dataset-size" in said(odd, size=None).obstacles[0].remedy
    assert (verdict(odd, size=64), verdict(odd, size=63)) == (("enforced", []), ("refused", ["odd"]))
    no_step = row("none", lambda request: not (request.plan and request.plan.total_optimizer_steps))
    assert verdict(no_step, size=None) == ("enforced", [])
    assert said(no_step, size=None).assumes == ("a dataset of at least 4 prompts",)
    assert (verdict(no_step, size=4)[0], verdict(no_step, size=3)[0]) == ("enforced", "refused")
    wide = SPEC.replace(**{"optimizer_step.completions_per_step": 24, "optimizer_step.step_may_span": "epoch"})
    assert said(no_step, size=None, spec=wide).assumes == ("a dataset of at least 12 prompts",)


def test_a_specification_without_a_plan_is_refused_and_can_be_recorded() -> None:
    error = SPEC.replace(**{"order.last_rollout": "error"})
    assert verdict(spec=error, size=None) == ("unknown", ["plan?"])
    assert (verdict(spec=error, size=64)[0], verdict(spec=error, size=63)) == ("enforced", ("refused", ["plan"]))
    open_one = SPEC.replace(**{"staleness.mode": "bounded", "staleness.maximum": 2})
    assert verdict(spec=open_one) == ("refused", ["plan"])
    assert "--spec" in said(spec=open_one).obstacles[0].remedy
    assert "--mode observe" in said(spec=open_one).obstacles[0].remedy
    terms = SPEC.replace(open_terms=("a_term",))
    assert verdict(spec=terms) == ("refused", ["open_terms"])
    own = {"advantage.baseline": "open"}  # the framework's own advantages are taken
    assert verdict(spec=SPEC.replace(open_terms=("advantage: gdpo",), **own))[0] == "enforced"
    more = SPEC.replace(open_terms=("advantage: gdpo", "objective: vapo_nll"), **own)
    assert verdict(spec=more) == ("refused", ["open_terms"])


@pytest.mark.parametrize(
    ("modes", "watch", "way"),
    [
        ((), "verify", "--mode verify"),
        (("verify",), "observe", "--mode observe"),
        (("verify", "observe"), None, "start it without BatchBridge"),
    ],
)
def test_a_remedy_names_the_nearest_mode_that_takes_the_run(
    modes: tuple[str, ...], watch: str | None, way: str
) -> None:
    refusal = row("row", lambda request: request.mode == "enforce" or request.mode in modes)
    found = said(refusal, always=("row",))
    assert (found.verdict, found.watch) == ("refused", watch)
    (one,) = found.obstacles
    assert way in one.remedy
    shown = explain("toy", READ, enforcement=found)
    assert (f"run and wrap: refused: row; --mode {watch} takes it (" in shown) is (watch is not None)
    (one,) = said(row("row", lambda request: True, allowable=True, remedy="turn it off")).obstacles
    assert one.remedy == "turn it off; or --allow row accepts it as it is"


def test_no_mode_is_named_where_none_is_needed_and_where_none_is_reached() -> None:
    certain = row("row", lambda request: request.mode == "enforce")
    assert (said(certain).watch, said().watch) == ("verify", None)
    assert said(certain, versions=">=1.1").watch is None, "another version is refused in every mode"

    class Refusing:
        def enforcement(self, reading: Reading) -> Enforcement:
            return said(certain)

    lost = replace(READ, unreached=Unreached("ray job submit", "it runs elsewhere", "batchbridge run inside"))
    assert [enforcement_of(Refusing(), reading).watch for reading in (READ, lost)] == ["verify", None]


def test_what_can_be_allowed_does_not_keep_a_run_from_being_watched() -> None:
    rows = (row("row", lambda request: True, allowable=True),)
    sure = row("sure", lambda request: request.mode == "enforce")
    found = {one.name: one.remedy for one in said(*rows, sure, always=("row",)).obstacles}
    assert "--mode verify" in found["sure"]
    assert "--allow row" in found["row"]


def test_what_is_certain_and_cannot_be_allowed_comes_first() -> None:
    may = row("may", lambda request: None)
    allowed = row("allowed", lambda request: True, allowable=True)
    sure = row("sure", lambda request: True)
    assert verdict(may, allowed, sure) == ("refused", ["sure", "allowed", "may?"])
    assert verdict(may, allowed) == ("unknown", ["allowed", "may?"])
    assert verdict(allowed) == ("with_allow", ["allowed"])


def test_a_version_that_is_not_wrapped_is_refused() -> None:
    assert verdict(versions=">=1.0") == ("enforced", [])
    assert verdict(versions=">=1.1") == ("refused", ["version"])
    assert said(versions=">=1.1").obstacles[0].remedy == "use toy >=1.1"


def test_what_a_run_fixes_and_what_is_assumed_belong_to_the_runtime() -> None:
    seeded = row("seed", lambda request: request.spec.order.seed is None)
    unseeded = SPEC.replace(**{"order.seed": None, "order.prompt_shuffle": "none"})
    assert verdict(seeded, spec=unseeded) == ("refused", ["seed"])
    fixed = lambda reading: Reading(**{**vars(reading), "spec": SPEC})  # noqa: E731
    assert verdict(seeded, spec=unseeded, started=fixed) == ("enforced", [])
    assert said(assumes=lambda reading: ("a start by hand",)).assumes == ("a start by hand",)


def test_errors_of_a_reading_are_obstacles_and_an_adapter_that_fails_is_one() -> None:
    class Failing:
        def enforcement(self, reading: Reading) -> Enforcement:
            raise KeyError("gone")

    wrong = Finding("BB-TOY-001", "error", "config", "odd", (Where("a", 1),), (Fix("a = 2"), Fix("a = 4")))
    undecided = Finding("BB-TOY-002", "warning", "config", "open", undecided=True)
    note = Finding("BB-TOY-003", "note", "config", "so")
    unread = Reading(framework="toy", framework_version="1.0", findings=(wrong, undecided, note))
    found = enforcement_of(Failing(), unread)
    assert [(one.name, one.certain) for one in found.obstacles] == [("BB-TOY-001", True), ("BB-TOY-002", False)]
    assert found.obstacles[0].remedy == "a = 2, or a = 4"
    assert enforcement_of(None, Reading(framework="x", framework_version=None)).verdict == "unknown"
    (failed,) = enforcement_of(Failing(), Reading(framework="toy", framework_version="1.0", spec=SPEC)).obstacles
    assert (failed.name, failed.certain) == ("adapter", False)
    assert "KeyError: 'gone'" in failed.reason


def test_settings_are_as_read_else_as_given() -> None:
    given = {"b": Where("b", "true"), "c": Where("c", "${other}")}
    reading = Reading(framework="toy", framework_version="1.0", native={"a": 0}, given=given)
    assert [setting(reading, key, "default") for key in "abcd"] == [0, "true", "${other}", "default"]
    assert [is_on(value) for value in (0, "true", "${other}", None, "False", "null", 2, "x.py")] == [
        False, True, None, False, False, False, True, True,
    ]  # fmt: skip

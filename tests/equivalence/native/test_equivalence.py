"""One source configuration, every framework: converted, wrapped, run for real, and compared with each other and the
oracle. `suite.py` ran them; `BATCHBRIDGE_EQUIVALENCE` names its folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from matrix import CASES, DERIVED, framework_of
from report import aspects

from batchbridge.testing.equivalence import CONTROL, LEAST_MOVEMENT, LEDGER_RTOL, TRAJECTORY_BAR

RESULTS: dict[str, Any] = json.loads(
    (Path(os.environ["BATCHBRIDGE_EQUIVALENCE"]) / "result.json").read_text(encoding="utf-8")
)
WRAPPED = [(case, pair) for case, result in RESULTS.items() for pair in result["pairs"]["enforce"]]
CRITICS = [case for case in RESULTS if CASES[case].critic]
CRITICS_WRAPPED = [(case, pair) for case in CRITICS for pair in RESULTS[case]["critic"]["pairs"]["enforce"]]
CRITICS_RUNS = [(case, name) for case in CRITICS for name in RESULTS[case]["critic"]["oracle"]]
NATIVE = [
    (case, pair)
    for case, result in RESULTS.items()
    for pair in result["pairs"]["observe"]
    if len({name.partition(" ")[0] for name in pair.split(" / ")}) == 2  # verl's two trainers may well agree
]


def test_every_run_ended_well() -> None:
    failed = {
        (case, name, mode): run["code"]
        for case, result in RESULTS.items()
        for name, runs in result["runs"].items()
        for mode, run in runs.items()
        if run["code"]
    }
    assert failed == {}


@pytest.mark.parametrize("case", RESULTS)
def test_several_frameworks_ran(case: str) -> None:
    told = CASES[case]
    asked = set(told.ci_targets) or {"trl", "verl", "openrlhf", *DERIVED}
    cannot = {target for target in asked if not told.runs(target) or framework_of(target) in told.cannot}
    assert ran_in(case) >= asked - cannot
    assert len(ran_in(case)) > 1


def ran_in(case: str) -> set[str]:
    return {name.partition(" ")[0] for name in RESULTS[case]["runs"]}


@pytest.mark.parametrize(
    ("case", "target"), [(case, target) for case, result in RESULTS.items() for target in result["accounts"]]
)
def test_a_framework_runs_the_case_unless_it_cannot_say_it(case: str, target: str) -> None:
    cannot = CASES[case].cannot.get(framework_of(target), frozenset())
    lost = RESULTS[case]["refused"].get(target, {})
    assert set(lost) >= cannot
    assert bool(lost) == bool(cannot)
    assert bool(lost) != (target in ran_in(case))


@pytest.mark.parametrize(("case", "pair"), WRAPPED)
def test_wrapped_runs_have_the_same_ledger(case: str, pair: str) -> None:
    found = RESULTS[case]["pairs"]["enforce"][pair]
    assert found["ledgers_equal"], found["first_difference"]


RECOMPUTED = [(case, name) for case, result in RESULTS.items() for name in result["recomputed"]]


@pytest.mark.parametrize(("case", "name"), RECOMPUTED)
def test_the_ledger_of_a_wrapped_run_is_recomputed_from_its_specification_and_agrees(case: str, name: str) -> None:
    found = RESULTS[case]["recomputed"][name]
    assert {check: told["departures"] for check, told in found.items() if told["departed"]} == {}
    assert found["membership"]["held"] or found["membership"]["skipped"]
    assert found["weights"]["held"]


@pytest.mark.parametrize(("case", "pair"), WRAPPED)
def test_wrapped_runs_begin_with_the_same_gradient_and_go_the_same_way(case: str, pair: str) -> None:
    found = RESULTS[case]["pairs"]["enforce"][pair]
    assert found["problems"] == []
    assert found["first_gradient"] <= TRAJECTORY_BAR
    assert found["trajectory"] <= TRAJECTORY_BAR
    assert found["movement"] >= LEAST_MOVEMENT


@pytest.mark.parametrize(("case", "pair"), WRAPPED)
def test_the_gradients_of_every_optimizer_step_of_two_wrapped_runs_are_one(case: str, pair: str) -> None:
    assert RESULTS[case]["pairs"]["enforce"][pair]["gradients_of_the_bar"] <= 1


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case, result in RESULTS.items() for name in result["oracle"]]
)
def test_every_gradient_is_the_oracles(case: str, name: str) -> None:
    found = RESULTS[case]["oracle"][name]
    assert found["of_the_bar"] <= 1, found
    passes = "passes" in CASES[case].name
    assert not passes or found["clipped"] >= 0.05
    assert not CASES[case].flat or found["kept"] > 10, "negative control: a filter that drops nothing"
    assert not CASES[case].images or found["kept"] > 10, "negative control: other images"
    assert not CASES[case].critic or found["kept"] > 10, "negative control: advantages over the other deviation"
    assert not CASES[case].critic or found["clipped"] >= 0.05


@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case, result in RESULTS.items() for name in result["plain_torch"]]
)
def test_a_run_ends_where_its_plan_leads_in_plain_torch_and_with_one_fault_elsewhere(case: str, name: str) -> None:
    found = RESULTS[case]["plain_torch"][name]
    assert found.pop("sound") <= TRAJECTORY_BAR
    assert min(found.values()) > CONTROL, found


@pytest.mark.parametrize("case", RESULTS)
def test_the_noise_of_a_first_gradient_stays_small_as_far_as_the_case_goes(case: str) -> None:
    """Float noise grows with the steps as any small change does; where that filled the bar, it would tell nothing."""
    noise = max(found["first_gradient"] for found in RESULTS[case]["pairs"]["enforce"].values())
    assert noise * RESULTS[case]["amplification"] <= TRAJECTORY_BAR / 3


@pytest.mark.parametrize(("case", "pair"), NATIVE)
def test_negative_control_natively_they_differ(case: str, pair: str) -> None:
    """Unwrapped runs that train other completions end elsewhere; TRL and EasyR1 shuffle alike, and where both train
    whole rollouts, only the clock and the epsilon of their advantages are different."""
    found = RESULTS[case]["pairs"]["observe"][pair]
    assert not found["ledgers_equal"]
    first = found["first_difference"]
    if first is None:  # runs with a critic, which keep no ledger where they are not wrapped
        assert CASES[case].critic
        for model in (found, RESULTS[case]["critic"]["pairs"]["observe"][pair]):
            assert model["first_gradient"] > CONTROL
            assert model["trajectory"] > CONTROL
    elif {first["aspect"], *first["also"]} <= {"advantage", "clock"}:
        assert found["trajectory"] > TRAJECTORY_BAR
    else:
        assert found["trajectory"] is None or found["trajectory"] > CONTROL


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (case, target)
        for case, result in RESULTS.items()
        if result["pairs"]["observe"] and not CASES[case].critic
        for target in result["predicted"]
    ],
)
def test_what_diff_predicts_without_running_is_what_the_unwrapped_runs_show(case: str, target: str) -> None:
    """Both ways: every aspect that is observed first was predicted, and where any was predicted the runs differ."""
    told, source = aspects(RESULTS[case]["predicted"][target]), CASES[case].framework
    for pair, found in RESULTS[case]["pairs"]["observe"].items():
        if {name.partition(" ")[0] for name in pair.split(" / ")} == {source, target}:
            first = found["first_difference"]
            assert first is not None
            assert {first["aspect"], *first["also"]} <= told
            assert told


# ---- critics


@pytest.mark.parametrize(("case", "pair"), CRITICS_WRAPPED)
def test_critics_of_wrapped_runs_train_the_same_and_go_the_same_way(case: str, pair: str) -> None:
    found = RESULTS[case]["critic"]["pairs"]["enforce"][pair]
    assert found["ledgers_equal"], found["first_difference"]
    assert found["problems"] == []
    assert found["first_gradient"] <= TRAJECTORY_BAR
    assert found["trajectory"] <= TRAJECTORY_BAR
    assert found["movement"] >= LEAST_MOVEMENT
    assert found["gradients_of_the_bar"] <= 1


@pytest.mark.parametrize(("case", "name"), CRITICS_RUNS)
def test_every_gradient_of_a_critic_is_the_oracles(case: str, name: str) -> None:
    found = RESULTS[case]["critic"]["oracle"][name]
    assert found["of_the_bar"] <= 1, found
    assert found["kept"] > 10, "negative control: returns without a discount"
    assert 0.05 <= found["clipped"] <= 0.95, "values are clipped, and not all"
    weights = RESULTS[case]["critic"]["weights"][name]
    assert weights["off"] <= LEDGER_RTOL
    assert weights["shown"] > 0.5


@pytest.mark.parametrize(("case", "name"), CRITICS_RUNS)
def test_a_critic_ends_where_its_plan_leads_in_plain_torch_and_with_one_fault_elsewhere(case: str, name: str) -> None:
    found = RESULTS[case]["critic"]["plain_torch"][name]
    assert found.pop("sound") <= TRAJECTORY_BAR
    assert min(found.values()) > CONTROL, found


@pytest.mark.parametrize("case", CRITICS)
def test_the_noise_of_a_critics_first_gradient_stays_small_as_far_as_the_case_goes(case: str) -> None:
    found = RESULTS[case]["critic"]
    noise = max(pair["first_gradient"] for pair in found["pairs"]["enforce"].values())
    assert noise * found["amplification"] <= TRAJECTORY_BAR / 3


@pytest.mark.parametrize("case", CRITICS)
def test_policies_differ_by_the_deviations_of_their_advantages_alone(case: str) -> None:
    """As they are, first gradients of the two frameworks are apart by the factor that their whitenings differ by, far
    beyond the bar; of one framework they are one. Every gradient is clipped, which takes that factor away."""
    found, seen = RESULTS[case]["critic"], set()
    for pair, told in found["whitening"].items():
        several = len({name.partition(" ")[0] for name in pair.split(" / ")}) == 2
        assert told["first_gradient"] == pytest.approx(told["expected"], abs=TRAJECTORY_BAR)
        assert (told["expected"] > CONTROL) == several
        seen.add(several)
    assert seen == {True, False}
    assert min(found["least_over_its_clip"].values()) > 1

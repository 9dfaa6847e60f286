"""What runs of OpenRLHF's stock entry left, held against the plan, the rules and the prediction as they are now.

The runs are made by hand: `nox -s openrlhf_runs`, with BATCHBRIDGE_RECORD=1.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import orl_proofs as proofs
import pytest
from packaging.version import Version

from batchbridge.kit.proven import records
from batchbridge.testing.equivalence import LEAST_MOVEMENT, TRAJECTORY_BAR
from batchbridge_on_cpu.openrlhf.scripted import command

NEWEST = "0.11.2"
TESTED = records("batchbridge_openrlhf")["openrlhf"].tested
"""Releases that the native tests run on."""
EARLIER = ("0.10.4",)
"""Releases whose stock entry was run on two ranks, killed and resumed."""
PLANNED = {"two ranks": 2, "one rank": 1, "zero 3": 2, "resumed": 2, "divides nothing": 2, "filtered": 2}
"""Runs of the newest that follow a plan to its end, and their ranks."""
RUNS = {*PLANNED, "killed", "unwrapped", "predicted"}
SAID = {"killed", "another number of ranks", "a missing completion", "refused"}


def of(release: str) -> dict[str, Any]:
    """What the runs of one release left."""
    found = proofs.recorded(release)
    assert {run["framework_version"] for run in found["runs"].values()} == {release}
    return found


@pytest.fixture
def recorded() -> dict[str, Any]:
    return of(NEWEST)


@pytest.mark.parametrize("release", [NEWEST, *EARLIER])
def test_recorded_runs_are_of_the_code_as_it_is_now(release: str) -> None:
    assert not changed(of(release).get("code", {}), "runs")


@pytest.mark.parametrize("file", proofs.BY_RELEASE)
@pytest.mark.parametrize("release", list(TESTED))
def test_recorded_figures_are_of_the_code_as_it_is_now(release: str, file: str) -> None:
    assert not changed(measured(file)[release].get("code", {}), file.removesuffix(".json")), (
        "nox -s openrlhf_full with BATCHBRIDGE_RECORD=1 makes them again"
    )


def measured(file: str) -> dict[str, Any]:
    """The figures of the native tests, by release."""
    found: dict[str, Any] = json.loads((proofs.RECORDED / file).read_text(encoding="utf-8"))
    return found


def changed(recorded: dict[str, str], record: str) -> set[str]:
    return {name for name, digest in proofs.code(record).items() if recorded.get(name) != digest}


def test_the_record_has_the_runs_that_are_asked_about(recorded: dict[str, Any]) -> None:
    assert set(recorded["runs"]) == RUNS
    assert set(recorded["said"]) == SAID
    for release in EARLIER:
        assert set(of(release)["runs"]) == {"two ranks", "killed", "resumed"}
        assert set(of(release)["said"]) == {"killed"}


def test_the_oldest_and_the_newest_release_that_are_tested_had_their_stock_entry_run() -> None:
    by_age = sorted(TESTED, key=Version)
    assert {by_age[0], by_age[-1]} <= {NEWEST, *EARLIER}


@pytest.mark.parametrize("release", EARLIER)
@pytest.mark.parametrize("name", ["two ranks", "resumed"])
def test_an_earlier_release_trained_what_the_plan_says_now(release: str, name: str) -> None:
    proofs.check_plan(of(release)["runs"][name], ranks=2)


def test_an_unwrapped_run_is_predicted_completion_by_completion(recorded: dict[str, Any]) -> None:
    changes = {name.replace(".", "__"): str(value) for name, value in proofs.WHOLE.items()}
    proofs.check_prediction(recorded["runs"]["predicted"], command(Path("x"), 1, **changes)[1:])


@pytest.mark.parametrize(("name", "ranks"), PLANNED.items())
def test_a_run_that_follows_its_plan_trained_what_the_plan_says_now(
    recorded: dict[str, Any], name: str, ranks: int
) -> None:
    proofs.check_plan(recorded["runs"][name], ranks=ranks)


@pytest.mark.parametrize(("column", "value"), [("sample", 99), ("weights", 0.5), ("advantage", 9.0)])
def test_a_recorded_row_that_is_not_the_plans_fails(recorded: dict[str, Any], column: str, value: object) -> None:
    run = copy.deepcopy(recorded["runs"]["two ranks"])
    run["steps"][2][column][3] = value
    with pytest.raises(AssertionError):
        proofs.check_plan(run, ranks=2)


def test_a_completion_of_a_second_pass_without_a_weight_is_one_that_was_clipped(recorded: dict[str, Any]) -> None:
    run = recorded["runs"]["divides nothing"]
    proofs.check_plan(run, ranks=2)
    assert len(run["clipped"]) > 1
    for clipped in ([], run["clipped"][1:], [*run["clipped"], run["steps"][4]["old_logprobs"][0]]):
        with pytest.raises(AssertionError):
            proofs.check_plan({**run, "clipped": clipped}, ranks=2)


@pytest.mark.parametrize("other", ["one rank", "zero 3"])
def test_ranks_micro_batches_and_zero_stages_did_not_change_the_run(recorded: dict[str, Any], other: str) -> None:
    proofs.check_same(recorded["runs"]["two ranks"], recorded["runs"][other])
    assert recorded["figures"]["moved"] >= LEAST_MOVEMENT
    assert recorded["figures"][f"apart: {other}"] <= TRAJECTORY_BAR


def test_unwrapped_it_trained_other_steps_and_ended_elsewhere(recorded: dict[str, Any]) -> None:
    runs = recorded["runs"]
    assert proofs.differing_steps(runs["two ranks"], runs["unwrapped"])
    proofs.check_once(runs["unwrapped"])
    assert recorded["figures"]["apart: unwrapped"] > 10 * TRAJECTORY_BAR


@pytest.mark.parametrize("release", [NEWEST, *EARLIER])
def test_the_killed_run_ends_as_planned_and_the_resumed_one_is_the_whole_one(release: str) -> None:
    runs = of(release)["runs"]
    proofs.check_steps(runs["killed"], ranks=2)
    assert len(runs["killed"]["steps"]) == (4 if runs["killed"]["incomplete"] else 5)
    proofs.check_identical(runs["two ranks"], runs["resumed"])


def test_every_release_that_is_tested_has_the_figures_of_its_native_tests() -> None:
    by_release = measured("measured.json")
    assert set(by_release) == set(TESTED)
    assert len({frozenset(figures) for figures in by_release.values()}) == 1
    for figures in by_release.values():
        shares = [case["of_the_bar"] for name, case in figures.items() if name.startswith("gradient of ")]
        assert len(shares) == 14, "7 objectives on one rank and on two"
        assert max(shares) <= 1
        assert all(case["bars"] > 10 for name, case in figures.items() if name.startswith("alone, "))
        assert figures["fit, other micro-batches"]["moved"] >= LEAST_MOVEMENT
        assert figures["fit, other micro-batches"]["apart"] <= TRAJECTORY_BAR
        assert figures["fit, unwrapped"]["apart"] > 10 * TRAJECTORY_BAR


def test_every_release_that_is_tested_has_the_figures_of_a_critic() -> None:
    by_release = measured("critics.json")
    assert set(by_release) == set(TESTED)
    alone = [f"gae, alone, ZeRO-2, several micro-batches, ranks: {ranks}" for ranks in (1, 2)]
    assert len({frozenset({*figures} - {*alone}) for figures in by_release.values()}) == 1
    for release, figures in by_release.items():
        shares = {name: case["of_the_bar"] for name, case in figures.items() if "gae, gradient of the " in name}
        assert len(shares) == 8, "of policy and critic, padded and packed, on one rank and on two"
        assert max(shares.values()) <= 1
        divided = [figures[name]["of_the_bar"] for name in alone if name in figures]
        assert len(divided) == (0 if release == NEWEST else 2), "BB-ORL-069 ends with 0.11.2"
        assert all(bars > 1e4 for bars in divided)

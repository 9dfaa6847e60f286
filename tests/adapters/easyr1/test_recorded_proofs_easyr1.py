"""The proofs of the running trainer as they were recorded; `native/record_proofs.py` makes them again.

The runs themselves need a checkout of EasyR1: `nox -s easyr1`. Here what they left is held against the plan, the
oracle's bar and the adapter's prediction as they are now.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge.meaning.spec import Spec, walk

HERE = Path(__file__).parent


def _proofs() -> ModuleType:
    found = importlib.util.spec_from_file_location("easyr1_proofs", HERE / "proofs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


proofs = _proofs()
COMMITS = {
    "0.3.2": "a23fb5b06be61d0eaa5819430533bf11136609cf",
    "0.3.3.dev0": "b44b311b669bf1fd1aa2fc36f2251482ba33cb16",
}
"""Versions that were measured, and the commit of each; the versions beside EasyR1 are in each record's `made_of`."""
VERSIONS = tuple(COMMITS)
OTHER_RANKS = "was written by 2 ranks, this run has 1: start as many"
BAR = 1e-5
"""DESIGN 8: of the parameters' movement."""
ON_THE_PLAN = {
    # `fit` without Ray -> ranks that have rows of their own
    **{f"fit {name}, {ranks}": ranks for name in ("enforced", "seq", "sgd", "like") for ranks in (1, 2)},
    "fit resumed, 2": 2,
    "fit resumed with other settings, 2": 2,
    "fit other loss, 1": 1,
    **{f"fit {name}, 2": 1 for name in (*proofs.SHARED_ROWS, "resumed, ulysses")},
    "fit enforced, ulysses, 4": 2,
}
ON_THE_CANDIDATES = {"fit filtered, 1": 1, "fit filtered, 2": 2, "fit filtered, resumed, 2": 2}
NATIVE = {"fit predicted, 1", "fit orderly, 1", "fit observed, 2", "fit filtered, observed, 1"}
NATIVE |= {"fit observed, ulysses, 2"}
WITH_RAY = {
    # the stock entry, or a driver of the user's own -> ranks
    "stock entry": 2,
    "stock entry on one rank": 1,
    "resumed": 2,
    "own driver": 2,
    proofs.WITH_ULYSSES: 1,
}
UNWRAPPED_WITH_RAY = {"stock entry observed", "stock entry predicted"}
SAME = [(f"fit {name}, 2", f"fit {name}, 1") for name in ("enforced", "seq", "sgd", "like", "filtered")]
SAME += [(f"fit {name.partition(',')[0]}, 2", f"fit {name}, 2") for name in proofs.SHARED_ROWS]
SAME += [("fit enforced, 2", "fit enforced, ulysses, 4")]


def recorded(kind: str, version: str) -> dict[str, Any]:
    text = (HERE / "recorded" / f"{kind}_{version}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["gradients", "runs", "tampering"])
def test_a_record_is_of_a_known_checkout_and_of_the_code_as_it_is_now(kind: str, version: str) -> None:
    proofs.check_code(recorded(kind, version), kind, COMMITS[version])


def test_a_record_of_other_code_fails() -> None:
    record = recorded("runs", VERSIONS[0])
    record["made_of"]["code"]["batchbridge_easyr1.engine"] = "another"
    with pytest.raises(AssertionError, match=r"stale: batchbridge_easyr1\.engine changed since"):
        proofs.check_code(record, "runs", COMMITS[VERSIONS[0]])


@pytest.mark.parametrize(
    ("version", "bench"),
    [(version, bench) for version in VERSIONS for bench in proofs.MEASURED_ON["gradients"]],
)
def test_recorded_gradients_meet_the_bar_and_the_controls_miss_it(version: str, bench: str) -> None:
    measured = recorded("gradients", version)[bench]
    assert measured["version"] == version
    proofs.check_gradients(measured, bench)
    proofs.check_controls(measured, bench)
    proofs.check_edges(measured)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_tampering_ended_before_its_update(version: str) -> None:
    measured = recorded("tampering", version)
    for bench in proofs.MEASURED_ON["tampering"]:
        proofs.check_probe(measured[bench])
        proofs.check_tampering(measured[bench], proofs.BENCHES[bench][0])


def test_a_tampered_step_that_was_trained_fails() -> None:
    measured = recorded("tampering", VERSIONS[-1])["1"]
    measured["tampered"]["mask"]["updates"] = 4
    with pytest.raises(AssertionError):
        proofs.check_tampering(measured, 1)


def test_a_recorded_gradient_beyond_the_bar_fails() -> None:
    measured = recorded("gradients", VERSIONS[0])["1"]
    measured["wrapped"][0]["error"] = 1e-3
    with pytest.raises(AssertionError):
        proofs.check_gradients(measured, "1")


@pytest.fixture(scope="module", params=VERSIONS)
def said(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What was recorded of one version's runs."""
    return recorded("runs", request.param)


def of_each(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """(version, *case), where the release has a setting for the run that each begins with."""
    return [(version, *case) for version in VERSIONS for case in cases]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_runs_are_those_that_the_tables_above_name(version: str) -> None:
    said = recorded("runs", version)
    named = ON_THE_PLAN.keys() | ON_THE_CANDIDATES.keys() | NATIVE
    assert said["runs"].keys() == named | WITH_RAY.keys() | UNWRAPPED_WITH_RAY
    faults = {f"fit {name}, {ranks}" for name, (ranks, _) in proofs.FIT_FAULTS.items()}
    assert said["failed"].keys() == faults | set(proofs.FAULTS)
    assert WITH_RAY.keys() | UNWRAPPED_WITH_RAY | set(proofs.FAULTS) == proofs.RUNS.keys()


def test_every_recorded_run_that_follows_the_plan_is_the_plan_as_it_is_now(said: dict[str, Any]) -> None:
    named = {**ON_THE_PLAN, **WITH_RAY}
    for name, ranks in ((name, named[name]) for name in named.keys() & said["runs"].keys()):
        proofs.check_plan(said["runs"][name], ranks=ranks)
        proofs.check_whole_groups(said["runs"][name])
        assert said["moved"][name] >= 0.01, name


def test_every_recorded_run_says_that_its_code_is_proven_but_for_the_one_with_another_loss(
    said: dict[str, Any],
) -> None:
    grades = {name: run["grade"] for name, run in said["runs"].items()}
    assert grades.pop("fit other loss, 1") == "measured"
    assert set(grades.values()) == {"proven"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_filtered_runs_trained_the_plans_candidates_in_their_order(version: str) -> None:
    said = recorded("runs", version)
    for name, ranks in ON_THE_CANDIDATES.items():
        proofs.check_candidates(said["runs"][name], ranks=ranks)
        proofs.check_whole_groups(said["runs"][name])
        assert said["moved"][name] >= 0.01, name
    observed = said["runs"]["fit filtered, observed, 1"]
    with pytest.raises(AssertionError):
        proofs.check_candidates({**observed, "mode": "enforce"}, ranks=1)


def test_the_recorded_run_like_another_configuration_had_its_meaning(said: dict[str, Any]) -> None:
    own, like = (dict(walk_of(said["runs"][f"fit {name}, 2"])) for name in ("enforced", "like"))
    assert {path: like[path] for path in proofs.LIKE} == proofs.LIKE
    assert all(own[path] != value for path, value in proofs.LIKE.items())


def walk_of(run: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(path, value) for path, value, _ in walk(Spec.from_dict(run["spec"]))]


def test_a_recorded_step_with_other_completions_is_not_the_plan(said: dict[str, Any]) -> None:
    run = said["runs"]["fit enforced, 1"]
    changed = {**run, "steps": [{**step, "prompt": step["prompt"][::-1]} for step in run["steps"]]}
    with pytest.raises(AssertionError):
        proofs.check_plan(changed, ranks=1)


@pytest.mark.parametrize(
    ("version", "name", "wrapped"),
    of_each(
        ("fit observed, 2", "fit enforced, 2"),
        ("fit observed, ulysses, 2", "fit enforced, ulysses, 2"),
        ("stock entry observed", "stock entry"),
    ),
)
def test_the_recorded_run_unwrapped_trained_other_steps_and_ended_elsewhere(
    version: str, name: str, wrapped: str
) -> None:
    said = recorded("runs", version)
    assert proofs.differing_steps(said["runs"][wrapped], said["runs"][name]) == 6
    assert said["ends_apart"][name] > 10 * BAR


@pytest.mark.parametrize(("version", "name", "other"), of_each(*SAME))
def test_ranks_and_micro_batches_did_not_change_the_recorded_run(version: str, name: str, other: str) -> None:
    said = recorded("runs", version)
    proofs.check_same(said["runs"][name], said["runs"][other])
    assert said["ends_apart"][other] <= BAR


def test_the_recorded_resumed_run_is_the_uninterrupted_one(said: dict[str, Any]) -> None:
    for name, other in (("fit resumed, 2", "fit enforced, 2"), ("fit filtered, resumed, 2", "fit filtered, 2")):
        if name in said["runs"]:
            proofs.check_identical(said["runs"][name], said["runs"][other])
            assert said["ends_apart"][name] == 0.0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_resumed_run_whose_ranks_share_rows_is_the_uninterrupted_one(version: str) -> None:
    said, sharing = recorded("runs", version), ("fit resumed, ulysses, 2", "fit enforced, ulysses, 2")
    proofs.check_identical(*(said["runs"][name] for name in sharing))
    assert len({said["ends_apart"][name] for name in sharing}) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_run_that_was_resumed_with_a_token_budget_ended_within_the_bar(version: str) -> None:
    said = recorded("runs", version)
    name = f"fit {proofs.OTHER_SETTINGS}, 2"
    proofs.check_same(said["runs"][name], said["runs"]["fit enforced, 2"])
    assert 0.0 < said["ends_apart"][name] <= BAR


def test_the_recorded_runs_were_evaluated_between_their_rollouts(said: dict[str, Any]) -> None:
    for ranks in (1, 2):
        proofs.check_evaluated(said["runs"][f"fit enforced, {ranks}"])
    assert said["runs"]["fit resumed, 2"]["evaluations"] == 0


def test_the_recorded_runs_with_ray_are_those_without(said: dict[str, Any]) -> None:
    for name, ranks in ((name, WITH_RAY[name]) for name in WITH_RAY.keys() & said["runs"].keys()):
        proofs.check_same(said["runs"][name], said["runs"]["fit enforced, 2"])
        assert said["ends_apart"][name] <= BAR
        if ranks == 2:
            proofs.check_identical(said["runs"][name], said["runs"]["fit enforced, 2"])
            assert said["ends_apart"][name] == 0.0


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_run_that_was_handed_a_budget_was_cut_by_it(version: str) -> None:
    run = recorded("runs", version)["runs"][proofs.ON_ONE_RANK]
    proofs.check_cuts(run)
    pairs = [{**cut, "tokens": [[9, 9]] * 6} for cut in run["cuts"]]
    with pytest.raises(AssertionError):
        proofs.check_cuts({**run, "cuts": pairs})


def test_the_recorded_driver_of_the_users_own_was_wrapped_once_and_unwrapped(said: dict[str, Any]) -> None:
    proofs.check_driver(said["runs"]["own driver"]["report"])


@pytest.mark.parametrize(("version", "name"), of_each(("fit predicted, 1",), ("stock entry predicted",)))
def test_the_recorded_unwrapped_run_on_one_device_is_as_predicted(version: str, name: str) -> None:
    run = recorded("runs", version)["runs"][name]
    proofs.check_prediction(run, run["argv"])


def test_the_recorded_native_run_that_keeps_to_the_plan_was_left_alone(said: dict[str, Any]) -> None:
    run = said["runs"]["fit orderly, 1"]
    assert run["mode"] == "verify"
    proofs.check_members(run)
    with pytest.raises(AssertionError):
        proofs.check_members(said["runs"]["fit observed, 2"])


def test_the_recorded_run_that_was_verified_ended_where_it_was_tampered_with(said: dict[str, Any]) -> None:
    proofs.check_tampered_with(said["failed"][f"fit {proofs.TAMPERED_WITH}, 1"])


@pytest.mark.parametrize(
    ("version", "name"),
    of_each(("fit killed, 2",), ("fit filtered, killed, 2",), ("fit killed, ulysses, 2",), ("killed",)),
)
def test_a_recorded_killed_worker_ended_the_run_and_left_every_step_before(version: str, name: str) -> None:
    proofs.check_killed(recorded("runs", version)["failed"][name])


@pytest.mark.parametrize(
    ("version", "name", "reason"),
    of_each(
        ("fit resumed, 1", OTHER_RANKS),
        ("resumed on one rank", OTHER_RANKS),
        ("fit other code, 1", proofs.REFUSED_CODE),
        ("other code", proofs.REFUSED_CODE),
        ("fit verified, 1", "optimizer step 0 departs from the plan"),
    ),
)
def test_what_cannot_go_on_was_refused_by_name_before_a_step(version: str, name: str, reason: str) -> None:
    proofs.check_refused(recorded("runs", version)["failed"][name], reason)


def test_the_recorded_figures_are_those_of_the_records() -> None:
    have = json.loads((HERE / "recorded" / "figures.json").read_text(encoding="utf-8"))
    assert have == {
        version: proofs.figures(recorded("gradients", version), recorded("runs", version)) for version in VERSIONS
    }

"""The proofs of the running trainer as they were recorded; `native/record_proofs.py` makes them again.

The runs themselves need a checkout of Open-Instruct: `nox -s open_instruct`. Here what they left is held against the
plan, the oracle's bar and the adapter's reading as they are now.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge.ledger import fingerprint
from batchbridge.testing.tiny import Script

HERE = Path(__file__).parent


def _proofs() -> ModuleType:
    found = importlib.util.spec_from_file_location("open_instruct_proofs", HERE / "proofs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


proofs = _proofs()


def recorded(kind: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((HERE / "recorded" / f"{kind}.json").read_text(encoding="utf-8"))
    return made


@pytest.mark.parametrize("kind", list(proofs.SCRIPTS))
def test_a_record_is_of_the_code_as_it_is_now(kind: str) -> None:
    is_of = recorded(kind)["code"]
    changed = {name for name, digest in proofs.code(*proofs.SCRIPTS[kind]).items() if is_of.get(name) != digest}
    assert not changed, f"{kind}.json is of other code; nox -s open_instruct and record_proofs.py make it again"


@pytest.mark.parametrize("ranks", [1, 2])
def test_recorded_gradients_meet_the_bar_and_the_controls_miss_it(ranks: int) -> None:
    measured = recorded("gradients")[str(ranks)]
    assert measured["ranks"] == ranks
    proofs.check_gradients(measured)
    proofs.check_controls(measured)
    proofs.check_edges(measured)
    proofs.check_taken(measured)
    proofs.check_rubrics(measured)


@pytest.mark.parametrize("ranks", [1, 2])
def test_recorded_gradients_leave_a_tools_tokens_out(ranks: int) -> None:
    measured = recorded("tools")["gradients"][str(ranks)]
    assert measured["ranks"] == ranks
    proofs.check_tool_masks(measured)
    measured["wrapped"][3]["error"] = measured["wrapped"][3]["error_with_tool_tokens"]
    with pytest.raises(AssertionError):
        proofs.check_tool_masks(measured)


@pytest.mark.parametrize(
    ("name", "ranks", "masked"), [("tools, 1", 1, True), ("tools, 2", 2, True), ("tools trained, 1", 1, False)]
)
def test_the_recorded_script_with_a_tool_is_the_plan_as_it_is_now(name: str, ranks: int, masked: bool) -> None:
    said = recorded("tools")
    given = said["runs"][name], said["asked"][name], said["initial"]
    tokens_of = said["fingerprints"][name]
    proofs.check_tools(*given, tokens_of, ranks=ranks, masked=masked)
    with pytest.raises(AssertionError):
        proofs.check_tools(*given, tokens_of, ranks=ranks, masked=not masked)
    assert tokens_of == said["fingerprints"]["tools, 1"]
    script = Script()
    uncalled = {key: fingerprint(script.completion(*map(int, key.split(".")))) for key in tokens_of}
    with pytest.raises(AssertionError):
        proofs.check_tools(*given, uncalled, ranks=ranks, masked=masked)


@pytest.mark.parametrize("name", ["counter", "wordle", "generic_sandbox"])
def test_the_recorded_script_with_an_environment_is_the_plan(name: str) -> None:
    said, run = recorded("environments"), f"{name}, 1"
    given = said["runs"][run], said["asked"][run], said["initial"], said["fingerprints"][run]
    proofs.check_environment(name, *given, ranks=1)
    other = "wordle" if name not in proofs.ALWAYS else "generic_sandbox"  # which speaks elsewhere
    with pytest.raises(AssertionError):
        proofs.check_environment(other, *given, ranks=1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_recorded_ranks_that_share_rows_train_the_plans_gradient(ranks: int) -> None:
    said = recorded("sequences")
    measured = said[str(ranks)]
    assert measured["ranks"] == ranks
    proofs.check_plan(said["run"], ranks=1)
    proofs.check_sent(said["run"], said["asked"], said["initial"])
    proofs.check_sequences(measured)
    measured["wrapped"][3]["error"] = measured["natively"][0]["error"]
    with pytest.raises(AssertionError):
        proofs.check_sequences(measured)


@pytest.mark.parametrize("ranks", [1, 2])
def test_recorded_learners_of_the_other_script_train_the_plans_gradient_or_nothing(ranks: int) -> None:
    measured = recorded("olmo")[str(ranks)]
    assert measured["ranks"] == ranks
    proofs.check_olmo(measured)


@pytest.mark.parametrize("name", ["olmo, 1", "olmo, 2", "olmo resumed, 2"])
def test_the_other_recorded_script_is_the_plan_and_its_weights_came_in_time(name: str) -> None:
    said, ranks = recorded("olmo"), int(name[-1])
    proofs.check_plan(said["runs"][name], ranks=ranks)
    proofs.check_same(said["runs"][name], said["runs"][f"olmo, {ranks}"])
    if "resumed" not in name:  # its first rollout was answered in the run that was killed
        proofs.check_sent(said["runs"][name], said["asked"][name], said["initial"])


def test_the_other_recorded_script_goes_on_where_it_was_killed_and_trains_something_else_where_nobody_follows() -> None:
    said = recorded("olmo")
    assert said["resumed_is_equal"]
    assert said["ranks_apart"] < 1e-5
    proofs.check_plan(said["runs"]["olmo as it is, 2"], ranks=2)
    assert proofs.differing_steps(said["runs"]["olmo observed, 2"], said["runs"]["olmo, 2"]) == 6


def test_recorded_tampering_ended_before_its_update() -> None:
    measured = recorded("tampering")
    for ranks in (1, 2):
        proofs.check_probe(measured[str(ranks)])
        proofs.check_tampering(measured[str(ranks)], ranks)


def test_a_tampered_step_that_was_trained_fails() -> None:
    measured = recorded("tampering")["1"]
    measured["tampered"]["verify"]["mask"]["updates"] = 4
    with pytest.raises(AssertionError):
        proofs.check_tampering(measured, 1)


def test_a_recorded_gradient_beyond_the_bar_fails() -> None:
    measured = recorded("gradients")["1"]
    measured["wrapped"][0]["error"] = 1e-3
    with pytest.raises(AssertionError):
        proofs.check_gradients(measured)


def test_a_control_within_the_bar_fails() -> None:
    measured = recorded("gradients")["2"]
    for one in measured["natively"]:
        one["error"] = 0.0
    with pytest.raises(AssertionError):
        proofs.check_controls(measured)


@pytest.mark.parametrize("name", ["enforced, 1", "enforced, 2", "adamw, 1", "adamw, 2", "resumed, 1", "resumed, 2"])
def test_every_recorded_job_that_follows_the_plan_is_the_plan_as_it_is_now(name: str) -> None:
    proofs.check_plan(recorded("jobs")["jobs"][name], ranks=int(name[-1]))


def test_the_recorded_jobs_of_one_rank_and_two_are_the_same_and_the_unwrapped_ones_are_not() -> None:
    said = recorded("jobs")
    for name in ("enforced", "adamw"):
        proofs.check_same(said["jobs"][f"{name}, 2"], said["jobs"][f"{name}, 1"])
        assert said["moved"][name] >= 0.01
        assert said["ranks_apart"][name] <= 1e-5
    assert said["resumed_is_equal"]
    assert "written by 3 ranks" in said["foreign"]
    assert [proofs.CLIP_NORM in note for note in said["report"]] == [True], "every learner's report says what differs"
    assert proofs.differing_steps(said["jobs"]["observed, 2"], said["jobs"]["enforced, 2"]) == 6
    assert said["unwrapped_apart"] > 10 * 1e-5


def test_the_recorded_job_whose_learner_was_killed_ended_with_an_error_and_whole_records() -> None:
    said = recorded("jobs")
    proofs.check_killed(said["jobs"]["killed, 2"], said["ends"]["killed, 2"], "Connection closed by peer")
    with pytest.raises(AssertionError):
        proofs.check_killed(said["jobs"]["enforced, 2"], said["ends"]["killed, 2"], "Connection closed by peer")


def test_the_recorded_job_of_rays_actors_is_the_job_without_them_and_names_the_actor_that_died() -> None:
    said = recorded("jobs")
    proofs.check_plan(said["jobs"]["ray, 2"], ranks=2)
    proofs.check_same(said["jobs"]["ray, 2"], said["jobs"]["enforced, 2"])
    assert said["ends"]["ray, 2"] == ["the job ended well"]
    proofs.check_killed(
        said["jobs"]["killed with Ray, 2"], said["ends"]["killed with Ray, 2"], "PolicyTrainerRayProcess", "died"
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_recorded_unwrapped_job_does_what_its_command_line_is_read_to_do(ranks: int) -> None:
    proofs.check_behaviour(recorded("jobs")["jobs"][f"observed, {ranks}"], ranks)


def test_a_job_that_drops_rows_is_not_as_read_without_the_finding_about_them() -> None:
    run = recorded("jobs")["jobs"]["observed, 1"]
    run["steps"][0]["rollout"] = [1 for _ in run["steps"][0]["rollout"]]
    with pytest.raises(AssertionError):
        proofs.check_behaviour(run, 1)


# ---- the script itself, launched


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_recorded_launched_script_is_the_plan_and_its_weights_came_in_time(ranks: int) -> None:
    said, name = recorded("script"), f"launched, {ranks}"
    proofs.check_plan(said["runs"][name], ranks=ranks)
    proofs.check_sent(said["runs"][name], said["asked"][name], said["initial"])
    proofs.check_same(said["runs"][name], recorded("jobs")["jobs"][f"enforced, {ranks}"])
    assert said["own_driver_apart"][str(ranks)] <= 1e-5


def test_a_launched_script_whose_weights_came_late_fails() -> None:
    said = recorded("script")
    asked = said["asked"]["launched, 2"]
    for line in asked:
        line["model_step"] = max(line["model_step"] - 1, 0)
    with pytest.raises(AssertionError):
        proofs.check_sent(said["runs"]["launched, 2"], asked, said["initial"])


def test_a_launched_script_that_asks_without_the_plan_s_seeds_fails() -> None:
    said = recorded("script")
    asked = said["asked"]["launched, 2"]
    asked[1]["seeds"] = asked[0]["seeds"]
    with pytest.raises(AssertionError):
        proofs.check_sent(said["runs"]["launched, 2"], asked, said["initial"])


def test_the_recorded_script_that_nobody_followed_lagged_and_trained_something_else() -> None:
    said = recorded("script")
    name = "launched observed, 2"
    proofs.check_behaviour(said["runs"][name], 2)
    proofs.check_lags(proofs.lags(said["runs"][name], said["asked"][name], 1))
    assert proofs.differing_steps(said["runs"][name], said["runs"]["launched, 2"]) == 6
    assert said["observed_apart"] > 10 * 1e-5


def test_the_recorded_launched_script_whose_learner_was_killed_was_continued_by_the_same_command() -> None:
    said = recorded("script")
    killed, resumed = (said["runs"][f"launched {name}, 2"] for name in ("killed", "resumed"))
    proofs.check_killed(killed, said["said"]["launched killed, 2"], "PolicyTrainerRayProcess", "died", steps=(2, 3))
    proofs.check_plan(resumed, ranks=2)
    proofs.check_same(resumed, said["runs"]["launched, 2"])
    assert said["resumed_is_equal"]
    assert said["note"], "the driver's output says what differs from the killed run"


def test_the_recorded_launched_script_that_was_evaluated_in_the_middle_is_the_one_that_was_not() -> None:
    said = recorded("script")
    run, whole = said["runs"]["launched evaluated, 1"], said["runs"]["launched, 1"]
    asked = said["asked"]["launched evaluated, 1"]
    proofs.check_evaluated(run, whole, asked, said["initial"])
    assert said["evaluated_is_equal"]
    with pytest.raises(AssertionError):
        proofs.check_evaluated(run, whole, said["asked"]["launched, 1"], said["initial"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_recorded_command_line_s_own_meaning_was_followed(ranks: int) -> None:
    said, name = recorded("script"), f"launched as it is, {ranks}"
    proofs.check_plan(said["runs"][name], ranks=ranks)
    proofs.check_ahead(said["runs"][name], said["asked"][name], 1)
    assert proofs.differing_steps(said["runs"][name], said["runs"][f"launched, {ranks}"]) == 0


def test_a_ledger_that_says_other_weights_than_answered_fails() -> None:
    said, name = recorded("script"), "launched as it is, 2"
    for line in said["asked"][name]:
        line["model_step"] += 1
    with pytest.raises(AssertionError):
        proofs.check_ahead(said["runs"][name], said["asked"][name], 1)


def test_the_recorded_figures_are_those_of_the_recorded_proofs() -> None:
    assert recorded("figures") == json.loads(
        json.dumps(
            _rounded(proofs.figures(*map(recorded, ("gradients", "jobs", "script", "tools", "sequences", "olmo"))))
        )
    )


def test_the_page_has_the_figures_of_the_recorded_proofs() -> None:
    page = HERE.parents[2] / "docs" / "open_instruct.md"
    assert proofs.table(recorded("figures")) in page.read_text(encoding="utf-8")


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in values.items()}

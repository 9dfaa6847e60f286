"""What runs of OpenRLHF's asynchronous trainer left (by_hand/native/test_asynchronous_runs_openrlhf.py with
BATCHBRIDGE_RECORD=1): each version against the engine's own account, and against the bound that is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import orl_proofs as proofs
import orl_versions as asked
import pytest

from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read
from batchbridge_on_cpu.openrlhf.scripted import command


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((proofs.RECORDED / "asynchronous_0.11.2.json").read_text(encoding="utf-8"))
    return found


def test_the_record_of_asynchronous_runs_is_of_the_code_as_it_is_now(recorded: dict[str, Any]) -> None:
    assert recorded["code"] == proofs.code("asynchronous")


@pytest.mark.parametrize(("name", "steps"), [("observed", 12), ("skipped", 6)])
def test_every_recorded_completion_has_the_version_that_its_engine_had(
    recorded: dict[str, Any], name: str, steps: int
) -> None:
    run = recorded["runs"][name]
    assert run["mode"] == "observe"
    assert len(run["steps"]) == steps
    asked.check_truth(run)


def test_the_bound_that_is_read_holds_and_a_skipped_broadcast_breaks_it(recorded: dict[str, Any]) -> None:
    for name, queue, age in (("observed", 2, 2 * asked.STEPS), ("skipped", 1, 2 * asked.STEPS)):
        run = recorded["runs"][name]
        words = [*command(Path("x"), 1, train__async_queue_size=str(queue))[1:], "--train.async_enable"]
        reading = read(words, framework="openrlhf", version="0.11.2", dataset_size=proofs.PROMPTS)
        assert reading.spec is not None
        for spec in (reading.spec, Spec.from_dict(run["spec"])):
            assert (spec.staleness.mode, spec.staleness.maximum, spec.staleness.unit) == ("bounded", queue, "rollouts")
        assert 0 < asked.oldest(run) <= age
        assert (asked.oldest(run) > queue * asked.STEPS) == (name == "skipped")
    proofs.check_once(recorded["runs"]["skipped"])


def test_a_skipped_broadcast_showed_as_an_older_version(recorded: dict[str, Any]) -> None:
    seen = {name: asked.versions(recorded["runs"][name]) for name in ("observed", "skipped")}
    assert any(2 in versions for versions in seen["observed"].values())
    assert seen["skipped"] == {0: {0}, 1: {0}, 2: {0}}


@pytest.mark.parametrize("by", [-2, 1, 2])
def test_a_recorded_version_that_is_another_one_fails(recorded: dict[str, Any], by: int) -> None:
    run = copy.deepcopy(recorded["runs"]["observed"])
    run["steps"][5]["generated_at_step"][0] += by
    with pytest.raises(AssertionError):
        asked.check_truth(run)


def test_what_ends_such_a_run_said_so(recorded: dict[str, Any]) -> None:
    assert set(recorded["said"]) == {"rewritten", "unlocked", "partial"}

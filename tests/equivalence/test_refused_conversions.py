"""A framework that cannot say what a case asks is not run: the suite's page names it, with the reason. What a critic is
converted to means the same there and back."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge import convert, read

NATIVE = Path(__file__).parent / "native"
ENTROPY = "    actor_rollout_ref.actor.entropy_coeff=0.01 \\\n"
"""EasyR1 has no such term."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's modules are scripts of one folder."""
    monkeypatch.syspath_prepend(str(NATIVE))


@pytest.fixture
def suite(importable: None) -> ModuleType:
    return importlib.import_module("suite")


def test_what_easyr1_cannot_say_is_refused_by_name_and_what_its_kit_injects_is_not(
    suite: ModuleType, tmp_path: Path
) -> None:
    case = suite.CASES["sequence_mean_two_passes"]
    first, _, rest = case.path.read_text(encoding="utf-8").partition("main_ppo \\\n")
    changed = tmp_path / "source.sh"
    changed.write_text(f"{first}main_ppo \\\n{ENTROPY}{rest}", encoding="utf-8")
    fields = suite.account(suite.converted(tmp_path, dataclasses.replace(case, source=str(changed)), "easyr1"))
    lost = {field["field"] for field in fields if field["status"] in ("inexpressible", "approximate")}
    assert lost == {"objective.entropy_coefficient", "carried.optimizer"}
    assert list(suite.refused(fields)) == ["objective.entropy_coefficient"]


def test_the_page_names_who_did_not_run_and_why(importable: None) -> None:
    report = importlib.import_module("report")
    result = {
        "versions": {"verl v1": "0.9.1"},
        "accounts": {},
        "refused": {"easyr1": {"objective.entropy_coefficient": "another exploration bonus"}},
        "pairs": {"enforce": {}, "observe": {}},
        "oracle": {},
        "plain_torch": {},
        "amplification": 1.0,
    }
    on = {"commit": "0123456789ab", "date": "2026-01-01"}
    lines = report.of_cases({"measured_on": on, "cases": {"sequence_mean_two_passes": result}}).splitlines()
    assert "Measured on commit `0123456789ab`, 2026-01-01." in lines
    assert "Not run: easyr1, which cannot say objective.entropy_coefficient (another exploration bonus)." in lines


def test_a_critic_is_the_same_in_openrlhf_and_back_in_verl(suite: ModuleType) -> None:
    case = suite.CASES["critic"]
    source = read(str(case.path), framework="verl", version=case.version, dataset_size=case.prompts)
    there = convert(source, "openrlhf")
    assert there.back is not None
    back = convert(there.back, "verl", target_version=case.version)
    lost = {field.field for field in there.lost if field.field not in suite.INJECTED}
    assert lost <= {"objective.reward_clip", "advantage.ddof"}, "each whitens by its own deviation"
    critics, advantages = [], []
    for reading in (source, there.back, back.back):
        assert reading is not None
        assert reading.spec is not None
        critics.append(reading.spec.critic)
        advantages.append(reading.spec.advantage)
    assert critics[0] is not None
    assert critics == 3 * critics[:1]
    verls, openrlhfs, again = advantages
    assert verls == again != openrlhfs, "each whitens by its own deviation"
    own = {name: getattr(verls, name) for name in (field.removeprefix("advantage.") for field in case.own)}
    assert verls == dataclasses.replace(openrlhfs, **own), "and by nothing else"


@pytest.mark.parametrize("target", ["trl", "easyr1", "open_instruct"])
def test_a_framework_without_a_critic_is_not_run_with_one(suite: ModuleType, tmp_path: Path, target: str) -> None:
    case = suite.CASES["critic"]
    lost = suite.refused(suite.account(suite.converted(tmp_path, case, target)), case.own)
    assert set(lost) >= case.cannot[target] >= {"critic.completions_per_step"}

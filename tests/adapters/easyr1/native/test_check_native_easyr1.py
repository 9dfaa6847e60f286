"""`check --native` with EasyR1's real configuration classes. vLLM, which they import, is a mock that has nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchbridge import Finding, read
from batchbridge.contract import plugins
from batchbridge.native_check import native_findings
from batchbridge_easyr1.installed import installed_version

MOCK = """
from batchbridge_on_cpu.easyr1.cpu import start
start()
"""


@pytest.fixture
def told(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What EasyR1 says of settings."""
    (tmp_path / "sitecustomize.py").write_text(MOCK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(checkout))
    monkeypatch.syspath_prepend(str(tmp_path))

    def said(values: dict[str, Any]) -> tuple[Finding, ...]:
        reading = read(values, framework="easyr1", version=installed_version(), world_size=8)
        return native_findings(plugins.adapters()["easyr1"], reading)

    return said


RUN = {"data.rollout_batch_size": 512, "worker.actor.global_batch_size": 128, "worker.rollout.n": 5}


def test_a_legal_configuration_is_constructed_without_an_objection(told: Any) -> None:
    found = told(RUN)
    assert {one.severity for one in found} == {"note"}, found
    assert "without an objection" in found[0].message
    assert "PPOConfig was constructed" in found[1].message


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"worker.actor.nonsense": 3}, "nonsense"),
        ({"worker.actor.global_batch_size": "many"}, "many"),
        ({"worker.rollout.tensor_parallel_size": "two"}, "two"),
    ],
)
def test_a_setting_that_the_classes_do_not_take_is_said_in_their_words(
    told: Any, values: dict[str, Any], text: str
) -> None:
    errors = [one for one in told({**RUN, **values}) if one.severity == "error"]
    assert [one.code for one in errors] == ["BB036"]
    assert text in errors[0].message


def test_without_vllm_easyr1_is_not_asked_and_nothing_was_constructed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(checkout))
    reading = read(RUN, framework="easyr1", version=installed_version(), world_size=8)
    (found,) = native_findings(plugins.adapters()["easyr1"], reading)
    assert found.undecided
    assert "No module named 'vllm'" in found.message

"""Keys that a release does not declare are held against the other releases, and no more of these than are needed."""

from __future__ import annotations

from typing import Any

import pytest

import batchbridge
from batchbridge.contract import plugins
from batchbridge.reading import undeclared

RUN = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-6}


def asked(monkeypatch: pytest.MonkeyPatch, key: str, version: str) -> tuple[dict[str, bool], list[str]]:
    """What is found of a key that `version` of TRL does not declare, and the releases that were asked."""
    source = {**RUN, key: 8}
    reading = batchbridge.read(source, framework="trl", version=version, world_size=8)
    versions: list[str] = []

    def counted(source: object, **said: Any) -> batchbridge.Reading:
        versions.append(said["version"])
        return batchbridge.read(source, **said)

    monkeypatch.setattr(undeclared, "read", counted)
    adapter = plugins.adapters()["trl"]
    return undeclared.declared_elsewhere(source, adapter, reading, world_size=8), versions


def test_a_key_of_the_next_release_is_found_there_and_no_more_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found, versions = asked(monkeypatch, "steps_per_generation", "0.17.0")
    assert found == {"steps_per_generation": True}
    assert len(versions) < 4


def test_a_key_of_no_release_is_found_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    found, versions = asked(monkeypatch, "colour_of_steps", "0.17.0")
    assert found == {}
    assert set(versions) == set(plugins.adapters()["trl"].releases)

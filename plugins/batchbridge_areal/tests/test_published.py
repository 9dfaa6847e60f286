"""Every YAML file that AReaL publishes as an example, against what AReaL's own parser made of it.

`published.json` was written by `published_examples.py`: for each file its digest, the settings that it gives, and what
AReaL resolved them to where that is not a default, or AReaL's error.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source
from batchbridge.kit import Context
from batchbridge.meaning.findings import verdict
from batchbridge_areal.config import ArealAdapter
from batchbridge_areal.settings import FACTS, KEYS

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
WHOLE = {"ref", "critic", "teacher", "rollout.agent"}
DEFAULTS = {row.key: row.default for row in KEYS}
READ = {*FACTS["settings"], *(row.key for row in KEYS if row.fields or row.kind.name == "group?")} - WHOLE
RUNS = [name for name, said in PUBLISHED.items() if said["given"].get("actor.ppo_n_minibatches") is not None]
NAMED = {50, 51, 53, 60}
COUNTED = {"valid": 34, "invalid": 9, "undecided": 5}


def judged(name: str) -> tuple[str, set[int], dict[str, Any]]:
    adapter = ArealAdapter()
    reading = adapter.read(Source(values=PUBLISHED[name]["given"]), Context(framework_version="1.0.4"))
    found = [*reading.findings, *adapter.check(reading)]
    codes = {int(one.code[-3:]) for one in found if one.severity == "error"}
    return verdict(found), codes, dict(reading.native)


@pytest.mark.parametrize("name", RUNS)
def test_a_published_example_is_judged_as_areal_judges_it(name: str) -> None:
    said, codes, native = judged(name)
    if "error" in PUBLISHED[name]:
        assert said == "invalid", f"AReaL: {PUBLISHED[name]['error']}"
        return
    assert said == "valid" or codes <= NAMED
    resolved = PUBLISHED[name]["resolved"]
    wrong = {key: native[key] for key in READ if native[key] != resolved.get(key, DEFAULTS[key])}
    assert not wrong


def test_what_is_left_open_is_counted() -> None:
    assert Counter(judged(name)[0] for name in RUNS) == COUNTED


def test_files_without_a_policy_of_ppo_are_no_runs() -> None:
    said = {
        name: judged(name)[0] for name in PUBLISHED if name not in RUNS and "actor.backend" in PUBLISHED[name]["given"]
    }
    assert set(said.values()) == {"undecided"}, said

"""Every RL configuration that prime-rl publishes, against prime-rl's own settings, key by key.

`published.json` is what RLConfig of prime-rl 0.8.0 (559b44772) made of them: for each file its digest, the settings
that it gives (environments left out), and what RLConfig resolved them to where that is not a default. The environments,
which are packages of their own, were replaced by one that its library brings. `not_compared.json` names the settings
that are made up at launch or are whole tables here, each with its reason.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source
from batchbridge.kit import Context
from batchbridge.kit.key_table import settings_in
from batchbridge_prime_rl.config import PrimeRLAdapter
from batchbridge_prime_rl.outside import OUTSIDE
from batchbridge_prime_rl.settings import DECLARED, KEYS, NAMES, SHARED

HERE = Path(__file__).parent
PUBLISHED: dict[str, Any] = json.loads((HERE / "published.json").read_text(encoding="utf-8"))
LEFT: dict[str, str] = json.loads((HERE / "not_compared.json").read_text(encoding="utf-8"))
DEFAULTS = {row.key: row.default for row in (*DECLARED, *KEYS)}
COMPUTED = ("orchestrator.num_train_workers", "orchestrator.pad_to_multiple_of")
"""Settings that decide nothing here, of which prime-rl computes the defaults."""
CONTEXT = Context(framework_version="0.8.0")
DISTILLED = ("opd", "opsd", "sft")


def _given(file: str) -> Source:
    return Source(values=PUBLISHED[file]["given"])


@pytest.mark.parametrize("file", PUBLISHED)
def test_a_published_configuration_is_read_as_prime_rl_reads_it(file: str) -> None:
    given, resolved = PUBLISHED[file]["given"], PUBLISHED[file]["resolved"]
    said = dict(settings_in(_given(file).values, NAMES))
    declared = {row.key: said.get(row.key, row.default) for row in DECLARED if row.key not in COMPUTED}
    native = {**declared, **PrimeRLAdapter().read(_given(file), CONTEXT).native}
    compared = set(native) - set(LEFT) - (set(SHARED) - set(given))
    if native["deployment.type"] == "multi_node":
        compared -= {"deployment.num_train_gpus"}  # not there; the adapter has nodes times devices of a node in it
    if native["trainer.optim.type"] not in ("adamw", "muon"):
        compared -= {"trainer.optim.betas2"}  # not there; the adapter has AdamW's default in it
    wrong = {key: native[key] for key in compared if native[key] != resolved.get(key, DEFAULTS[key])}
    assert not wrong
    assert len(compared) > 130


@pytest.mark.parametrize("file", PUBLISHED)
def test_a_published_configuration_is_read_and_written_back_or_left_open_by_name(file: str) -> None:
    adapter = PrimeRLAdapter()
    reading = adapter.read(_given(file), CONTEXT)
    assert [found.code for found in adapter.check(reading) if found.severity == "error"] == []
    if reading.spec is None:
        (why,) = reading.findings
        algorithms = {reading.native["orchestrator.algo.type"]} & {*DISTILLED}
        assert why.undecided
        assert algorithms or "differ in algo.type" in why.message
        return
    written = adapter.write(reading.spec)
    again = adapter.read(Source(values=written.values), Context(framework_version=written.framework_version))
    assert again.spec == reading.spec


def test_most_are_decided() -> None:
    decided = [file for file in PUBLISHED if PrimeRLAdapter().read(_given(file), CONTEXT).spec is not None]
    assert (len(PUBLISHED), len(decided)) == (47, 39)


def test_only_settings_are_left_out_and_each_has_a_reason() -> None:
    assert set(LEFT) <= NAMES
    assert all(LEFT.values())


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("model.name", "the model"),
        ("trainer.model.lora", "the model"),
        ("orchestrator.tokenizer.chat_template", "the prompts"),
    ],
)
def test_what_no_field_says_and_yet_changes_what_is_trained_is_told(key: str, what: str) -> None:
    assert PrimeRLAdapter().decides(key) == what


def test_every_pattern_of_what_lies_outside_the_schema_names_a_setting() -> None:
    known = PrimeRLAdapter().read(Source(), Context(framework_version="0.8.0", world_size=1)).native
    assert [one for one in OUTSIDE if not any(fnmatch(key, one) for key in known)] == []

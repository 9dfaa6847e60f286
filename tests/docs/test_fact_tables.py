"""Rows of the pages' tables that once said less, or more, than the adapters' own tables do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_easyr1.settings import PROMPT_TOKENS, RESPONSE_TOKENS
from batchbridge_open_instruct.rules.grpo_silent import GRPO_SILENT
from batchbridge_open_instruct.settings import ALIASES
from batchbridge_openrlhf.deepspeed import required
from batchbridge_openrlhf.meaning import ESTIMATORS
from batchbridge_openrlhf.rules import RULES
from batchbridge_openrlhf.settings import RELEASES
from batchbridge_verl.config import VerlAdapter

ACTOR = "actor_rollout_ref.actor."


def row(repository: Path, page: str, start: str) -> str:
    """The row of a page's table whose first cell is `start`."""
    text = (repository / "docs" / page).read_text(encoding="utf-8")
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return found


def test_openrlhfs_estimators_are_told_with_the_versions_in_which_they_mean_something_else(repository: Path) -> None:
    said = row(repository, "openrlhf.md", "advantages")
    (rloo,) = [one for one in ESTIMATORS if one.versions.startswith("<")]
    assert (rloo.name, rloo.scale) == ("rloo", "batch")
    assert f"{rloo.name}: leave one out, before {rloo.versions[1:]} scaled over the rollout too" in said


def test_easyr1s_token_budget_is_the_padded_width_whatever_the_longest_completion_is(repository: Path) -> None:
    said = row(repository, "easyr1.md", "micro-batch")
    assert f"{PROMPT_TOKENS} + {RESPONSE_TOKENS}" in said
    values: dict[str, Any] = {
        "worker.actor.dynamic_batching": True,
        "worker.actor.micro_batch_size_per_device_for_update": 3,
        "worker.actor.micro_batch_size_per_device_for_experience": 3,
        PROMPT_TOKENS: 100,
        RESPONSE_TOKENS: 200,
    }
    spec = EasyR1Adapter().read(load_source(values), Context(framework_version="0.3.2")).spec
    assert spec is not None
    assert spec.micro_batch.tokens_per_device == 3 * (100 + 200)


@pytest.mark.parametrize(("version", "engine", "alike"), [("0.7.1", "dp", False), ("0.7.1", "megatron", True)])
def test_verls_shuffle_is_no_matter_of_fsdp_before_0_8(
    repository: Path, version: str, engine: str, alike: bool
) -> None:
    said = row(repository, "verl.md", "BB-VERL-076")
    assert said.startswith("| BB-VERL-076 | all but FSDP to 0.7.1 |")
    values: dict[str, Any] = {"model_engine": engine, f"{ACTOR}shuffle": True}
    adapter = VerlAdapter()
    findings = adapter.check(adapter.read(load_source(values), Context(framework_version=version)))
    assert ("BB-VERL-076" in [finding.code for finding in findings]) is alike


def test_verls_padding_is_told_with_the_critics_warm_up(repository: Path) -> None:
    assert "completions per step only from rollout trainer.critic_warmup on" in row(
        repository, "verl.md", "BB-VERL-023"
    )


@pytest.mark.parametrize("code", ["BB-ORL-042", "BB-ORL-068"])
def test_openrlhfs_rows_about_deepspeed_name_its_versions_and_openrlhfs(repository: Path, code: str) -> None:
    said = row(repository, "openrlhf.md", code)
    (rule,) = [one for one in RULES if one.code == code]
    assert rule.phase in ("never", "optimizer_step")
    pairs = re.findall(r"([0-9.]+) (?:to|and) ([0-9.]+) \(DeepSpeed ([0-9.]+) (?:to|and) ([0-9.]+)\)", said)
    assert pairs
    for first, last, oldest, newest in pairs:
        assert {first, last} <= set(RELEASES)
        assert (required(first), required(last)) == (oldest, newest)


def test_open_instructs_row_about_zero_2_names_the_release_that_began_it(repository: Path) -> None:
    (rule,) = [one for one in GRPO_SILENT if one.code == "BB-OI-059"]
    names = {checkout: f"v{release}" for release, checkout in ALIASES.items()}
    since, until = rule.versions.removeprefix(">=").split(",<")
    assert row(repository, "open_instruct.md", "BB-OI-059").endswith(f"| from {names[since]}, before {names[until]} |")

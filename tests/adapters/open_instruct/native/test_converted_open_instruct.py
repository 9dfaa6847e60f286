"""What `convert` writes for Open-Instruct starts: grpo_fast.py's own parser, dataclasses and check take the words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge_on_cpu.converted import RUNS

from converted_words import SPOILED  # isort: skip  # this folder's

pytestmark = pytest.mark.smoke
SIZES = {"two steps of a rollout": (64, 8, 2)}
"""Prompts, completions of each and steps of a rollout, where they are not those of the other runs."""


@pytest.fixture(scope="module")
def found(ran: Callable[..., Path]) -> dict[str, Any]:
    name = "converted_words.json"
    said: dict[str, Any] = json.loads((ran("converted_words", 0, name) / name).read_text(encoding="utf-8"))
    return said


def test_every_converted_command_is_taken_with_its_sizes(found: dict[str, Any]) -> None:
    written = {name: said for name, said in found.items() if name not in SPOILED}
    assert {name: said for name, said in written.items() if isinstance(said, str)} == {}
    sizes = {
        name: (said["num_unique_prompts_rollout"], said["num_samples_per_prompt_rollout"], said["num_mini_batches"])
        for name, said in written.items()
    }
    assert sizes == {name: SIZES.get(name.partition(", ")[2], (32, 8, 1)) for name in written}


def test_every_framework_gives_commands(found: dict[str, Any]) -> None:
    written = [name.partition(", ") for name in found if name not in SPOILED]
    assert {source for source, _, _ in written} == {"trl", "verl", "easyr1", "openrlhf"}
    assert {run for source, _, run in written if source == "trl"} == set(RUNS)


def test_the_parser_and_its_dataclasses_refuse_what_is_wrong(found: dict[str, Any]) -> None:
    """Otherwise the first test could not fail."""
    assert "invalid int value: 'many'" in found["a seed of text"]
    assert "num_samples_per_prompt_rollout" in found["a group of one"]

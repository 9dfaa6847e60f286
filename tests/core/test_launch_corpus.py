"""Every published launch command, as executed, through the front door: `batchbridge.read` finds its framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import batchbridge
from batchbridge.contract.reading import Reading

SHARED = Path(__file__).parents[3] / "shared" / "corpus" / "launch_argv.jsonl"
FRAMEWORKS = {
    "verl-project/verl": ("verl", "0.9.1"),
    "hiyouga/EasyR1": ("easyr1", "0.3.3.dev0"),
    "OpenRLHF/OpenRLHF": ("openrlhf", "0.10.4"),
    "allenai/open-instruct": ("open_instruct", "2026.8.20"),
}
"""Repository to its framework, and the version that the commands are read in."""
NO_TRAINING = ("examples/generation/run_deepseek_llm_7b.sh",)
REASONS = {
    "BB-OI-002": "the PPO script was deleted before this checkout: it is read in 2025.11.3",
    "BB-OI-003": "the script passes flags that this checkout has no more, or that its program never had",
    "BB-OI-010": "grpo_fast_mini_old.sh: a pack_length below prompt + response, which the script itself refuses",
    "BB107": "the same, in the core's words",
    "BB-VERL-003": "the script sets keys that verl 0.9.1 has not: it is of a later commit",
    "BB-VERL-080": "the same: 0.9.1's dataclasses raise TypeError for megatron.grad_offload and policy_loss.tau_pos",
    "BB-VERL-021": "run_qwen2_5_7b_fsdp_multi_rs.sh: a micro-batch above what a replica has",
    "BB-VERL-088": "remax, gdpo and the token baselines need what verl 0.9.1's default trainer, V1, does not hand them",
}
"""Codes of the errors that published commands may have, and why these are not errors of ours."""


def _commands() -> list[tuple[str, str, list[str]]]:
    if not SHARED.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    rows = map(json.loads, SHARED.read_text(encoding="utf-8").splitlines())
    return [(row["repository"], row["path"], command) for row in rows for command in row["commands"]]


def _read(repository: str, command: list[str]) -> Reading:
    return batchbridge.read(command, version=FRAMEWORKS[repository][1])


@pytest.mark.shared
def test_the_framework_of_every_command_is_found() -> None:
    found = [(path, repository, _read(repository, argv).framework) for repository, path, argv in _commands()]
    wrong = [row for row in found if row[0] not in NO_TRAINING and row[2] != FRAMEWORKS[row[1]][0]]
    assert wrong == []
    assert len(found) == 129


@pytest.mark.shared
def test_no_command_has_an_error_but_for_a_known_reason() -> None:
    unknown = [
        (path, error.code, error.message)
        for repository, path, argv in _commands()
        if path not in NO_TRAINING
        for error in _read(repository, argv).findings
        if error.severity == "error" and error.code not in REASONS
    ]
    assert unknown == []


@pytest.mark.shared
def test_most_commands_are_valid_as_they_stand() -> None:
    verdicts = [_read(repository, argv).verdict for repository, _, argv in _commands()]
    assert verdicts.count("valid") >= 78


def test_what_a_launcher_starts_is_read() -> None:
    plain = ["python", "open_instruct/grpo_fast.py", "--num_learners_per_node", "8", "--total_episodes", "1000"]
    told = batchbridge.read(plain, version="2026.8.20")
    for wrapped in (
        ["python", "mason.py", "--cluster", "a", "--", "source", "setup.sh", "&&", *plain],
        ["nohup", *plain],
        ["ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", *plain],
    ):
        reading = batchbridge.read(wrapped, version="2026.8.20")
        assert (reading.framework, reading.spec) == ("open_instruct", told.spec), wrapped


def test_words_that_start_nothing_known_stay_as_they_are() -> None:
    assert batchbridge.read(["nohup", "ls", "--all"]).framework == "unknown"

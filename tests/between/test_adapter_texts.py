"""Error texts that our adapters add to doctor's own: recognised in a log, explained, with ways out."""

from __future__ import annotations

import pytest
from pasted import SAID

from batchbridge.contract import plugins
from batchbridge.diagnosis import doctor, known_texts

ADDED = [text for text in known_texts() if text.name in SAID]


@pytest.mark.parametrize("framework", plugins.adapters())
def test_a_text_about_a_rule_s_row_stands_in_that_row_and_in_no_table(framework: str) -> None:
    adapter = plugins.adapters()[framework]
    rows = {row.code for row in plugins.rows(adapter)}
    assert [text.name for text in adapter.error_texts() if rows & {*text.codes}] == []


@pytest.mark.parametrize("name", SAID)
def test_a_text_in_a_log_is_recognised_as_its_row_and_no_other(name: str) -> None:
    log = f"[rank0]: Traceback (most recent call last):\n[rank0]: {SAID[name]}\n8 x 7 things more"
    assert [found.text.name for found in doctor(log, texts=known_texts())] == [name]


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("trl-evaluation-batch", {}, ["per_device_eval_batch_size = 6", "num_generations = 4", "num_generations = 7"]),
        ("verl-step-of-replicas", {"n": 5}, ["actor_rollout_ref.actor.ppo_mini_batch_size = 32"]),
        ("verl-devices-of-parallel-sizes", {}, ["4 devices", "8 devices"]),
        (
            "easyr1-micro-of-share",
            {"global": 128, "n": 5, "devices": 8, "micro": 3},
            [f"worker.actor.micro_batch_size_per_device_for_update = {size}" for size in (2, 4)],
        ),
        ("easyr1-nothing-per-device", {"devices": 16, "n": 5}, ["worker.actor.global_batch_size = 4"]),
        ("open-instruct-pack-length", {"prompt": 2048, "response": 8192}, ["pack_length = 10240"]),
    ],
)
def test_neighbours_are_legal_numbers(name: str, numbers: dict[str, int], expected: list[str]) -> None:
    (found,) = doctor(SAID[name], numbers, ADDED)
    assert [fix.text for fix in found.fixes] == expected

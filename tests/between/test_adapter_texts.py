"""Error texts that our adapters add to doctor's own: recognised in a log, explained, with ways out."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet
from pasted import SAID

from batchbridge.contract.error_text import ErrorText
from batchbridge.diagnosis import doctor, known_texts

ADDED = [text for text in known_texts() if text.name in SAID]


def test_the_adapters_add_their_rows() -> None:
    known = [text.name for text in known_texts()]
    assert set(SAID) <= set(known)
    assert len(known) == len(set(known))


@pytest.mark.parametrize("name", SAID)
def test_a_text_in_a_log_is_recognised_as_its_row_and_no_other(name: str) -> None:
    log = f"[rank0]: Traceback (most recent call last):\n[rank0]: {SAID[name]}\n8 x 7 things more"
    assert [found.text.name for found in doctor(log, texts=known_texts())] == [name]


@pytest.mark.parametrize("name", SAID)
def test_there_is_a_way_out_once_what_is_asked_for_is_known(name: str) -> None:
    (found,) = doctor(SAID[name], texts=ADDED)
    assert found.fixes or found.asks
    numbers = {ask.name: 8 for ask in found.asks}
    (again,) = doctor(SAID[name], numbers, ADDED)
    assert again.fixes
    assert not again.asks


@pytest.mark.parametrize("text", ADDED, ids=lambda text: text.name)
def test_a_version_range_is_a_specifier_or_words(text: ErrorText) -> None:
    if text.versions[0] in "<>=~!":
        SpecifierSet(text.versions)
    assert text.versions.strip()


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

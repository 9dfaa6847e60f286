"""LoRA: which configurations with it are refused, without EasyR1."""

from __future__ import annotations

import pytest

from batchbridge.reports import check
from batchbridge_easyr1.refusals import MODEL

RANK = "worker.actor.model.lora.rank=64"
FROZEN = "worker.actor.model.freeze_vision_tower=true"


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        ((f"{MODEL}=Qwen/Qwen3-4B", RANK), []),
        ((f"{MODEL}=Qwen/Qwen3-VL-4B-Instruct", RANK), []),
        ((f"{MODEL}=Qwen/Qwen3-VL-4B-Instruct", FROZEN), []),
        ((f"{MODEL}=Qwen/Qwen3-4B", RANK, FROZEN), []),
        ((f"{MODEL}=Qwen/Qwen3-VL-4B-Instruct", RANK, FROZEN), ["lora"]),
    ],
)
def test_lora_is_refused_beside_a_frozen_vision_tower_alone(words: tuple[str, ...], reasons: list[str]) -> None:
    command = ["python3", "-m", "verl.trainer.main", "config=examples/config.yaml", *words]
    enforcement = check(command, dataset_size=4096).enforcement
    assert enforcement is not None
    assert [one.name for one in enforcement.obstacles] == reasons

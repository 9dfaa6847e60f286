"""LoRA: what was recorded of it with EasyR1, held against the plan and the bars as they are now."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from batchbridge.reports import check
from batchbridge_easyr1.refusals import MODEL

HERE = Path(__file__).parent
VERSION, COMMIT = "0.3.3.dev0", "b44b311b669bf1fd1aa2fc36f2251482ba33cb16"
RANK = "worker.actor.model.lora.rank=64"
FROZEN = "worker.actor.model.freeze_vision_tower=true"


def _module(name: str) -> Any:
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


proofs, lora_proofs = _module("proofs"), _module("lora_proofs")


def recorded() -> dict[str, Any]:
    text = (HERE / "recorded" / f"lora_{VERSION}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


def test_the_record_is_of_a_known_checkout_and_of_the_code_as_it_is_now() -> None:
    proofs.check_code(recorded(), "lora", COMMIT)


@pytest.mark.parametrize(("name", "ranks"), lora_proofs.CASES)
def test_recorded_gradients_of_adapters_meet_the_bar_and_other_adapters_miss_it(name: str, ranks: int) -> None:
    measured = recorded()["gradients"][f"{name}, {ranks}"]
    lora_proofs.check_gradients(measured)
    lora_proofs.check_tampering(measured, ranks)


@pytest.mark.parametrize("change", ["error", "control"])
def test_a_recorded_gradient_beyond_the_bar_or_a_control_within_it_fails(change: str) -> None:
    measured = recorded()["gradients"]["text, 2"]
    if change == "error":
        measured["wrapped"][0]["error"] = 1e-3
    else:
        measured["control"] = 1.0
    with pytest.raises(AssertionError):
        lora_proofs.check_gradients(measured)


def test_a_tampered_step_that_was_trained_fails() -> None:
    measured = recorded()["gradients"]["text, 2"]
    measured["tampered"]["one gradient dropped"]["updates"] = 1
    with pytest.raises(AssertionError):
        lora_proofs.check_tampering(measured, 2)


def test_recorded_runs_with_lora_are_the_plan_and_end_where_it_leads() -> None:
    lora_proofs.check_runs(recorded())


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("apart", "enforced, 1", 1e-3),
        ("plain_torch", "penalised, 2", 1e-3),
        ("plain_torch_with_a_fault", "another reference", 1e-6),
        ("frozen_moved", "enforced, 2", True),
    ],
)
def test_a_recorded_run_that_ends_elsewhere_fails(part: str, name: str, value: object) -> None:
    record = recorded()
    record[part][name] = value
    with pytest.raises(AssertionError):
        lora_proofs.check_runs(record)


def test_recorded_adapters_that_reached_vllm_otherwise_than_trained_fail() -> None:
    record = recorded()
    record["sent"]["enforced, 2"]["as trained"] = False
    with pytest.raises(AssertionError):
        lora_proofs.check_runs(record)


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

"""One launch of each setup that people have, and what `check` says of it: tests/upstream/enforcement_of_setups.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge_on_cpu.scripts import module_at

VERSION = "1.16.0"
PLAIN: Mapping[str, Any] = {"distributed": "single", "precision": "bf16"}
SETUPS: Mapping[str, tuple[Mapping[str, Any], str, list[str]]] = {
    # features: (the verdict, its obstacles)
    "single": ({}, "enforced", []),
    "ddp, LoRA": ({"distributed": "ddp", "processes": "4", "lora": True}, "enforced", []),
    "zero2": ({"distributed": "zero2", "processes": "4"}, "enforced", []),
    "zero3, Liger": ({"distributed": "zero3", "processes": "8", "liger": True}, "enforced", []),
    "fp16": ({"precision": "fp16"}, "refused", ["fp16"]),
    "dr_grpo, two passes": ({"loss_type": "dr_grpo", "num_iterations": "2"}, "enforced", []),
    "what the row does not say": ({"loss_type": "args.loss_type", "num_iterations": "cfg.passes"}, "enforced", []),
    "a subclass": ({"subclass": "mine.trainer.BalancedGRPOTrainer"}, "unknown", ["trainer"]),
    "a known copy": ({"own_trainer": "open_r1.trainer.Qwen2VLGRPOTrainer"}, "refused", ["trainer"]),
    "its own copy": ({"own_trainer": "its own copy"}, "unknown", ["trainer"]),
}


def script(repository: Path) -> ModuleType:
    path = repository / "tests" / "upstream" / "enforcement_of_setups.py"
    return module_at(path, "enforcement_of_setups")


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_launched_with_its_features(repository: Path, tmp_path: Path, name: str) -> None:
    features, verdict, names = SETUPS[name]
    setups = tmp_path / "setups.jsonl"
    other = {"framework": "verl", "features": {}}
    row = {"source": name, "framework": "trl", "features": {**PLAIN, **features}}
    setups.write_text(json.dumps(other) + "\n" + json.dumps(row) + "\n")
    (found,) = script(repository).rows(setups, tmp_path / "launches", VERSION)
    assert (found["verdict"], [one["name"] for one in found["obstacles"]]) == (verdict, names)
    assert found["findings"] == ("undecided" if names == ["trainer"] else "valid")
    assert all(one["remedy"] for one in found["obstacles"])
    assert found["own_trainer"] is (names == ["trainer"])


@pytest.mark.shared
def test_no_setup_with_trls_own_trainer_is_refused(repository: Path, tmp_path: Path) -> None:
    setups = repository.parent / "shared" / "corpus" / "real_setups.jsonl"
    if not setups.exists():
        pytest.skip("../shared/corpus/real_setups.jsonl is absent")
    found = list(script(repository).rows(setups, tmp_path, VERSION))
    assert all(one["remedy"] for row in found for one in row["obstacles"])
    stock = [row for row in found if not row["own_trainer"]]
    assert len(stock) >= 20
    assert {row["verdict"] for row in stock} <= {"enforced", "with_allow"}
    assert {row["verdict"] for row in found if row["own_trainer"]} <= {"refused", "unknown"}

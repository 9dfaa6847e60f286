"""What is asked of runs with LoRA, and the figures that they leave; see proofs.py.

What was measured is JSON: `gradients` by case, such as "text, 2" (native/lora.py); `runs` by name, such as
"enforced, 2" (of native/lora_fits.py); outcomes of those that `failed`; how far runs ended `apart`; what was `sent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import proofs

from batchbridge.contract.reading import Mode

RANK, ALPHA = 4, 8
LORA: Mapping[str, Any] = {"worker.actor.model.lora.rank": RANK, "worker.actor.model.lora.alpha": ALPHA}
TEXT, IMAGES = "text", "images"
WITHOUT, FROZEN = "images, some prompts without", "images, tower frozen"
"""Runs that EasyR1 itself cannot make."""
MODEL = "Qwen3-VL"
"""Of every run on prompts with images."""
GRADIENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # case -> family of models, none of one that reads text alone; and settings beside `LORA`
    TEXT: ("", {}),
    "some modules": ("", {"worker.actor.model.lora.target_modules": "q_proj,v_proj,down_proj"}),
    MODEL: (MODEL, {}),
}
ONE_RANK: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    family: (family, {}) for family in ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL-MoE")
}
"""Cases beside `GRADIENTS` that are measured on one rank: the same forward with other models."""
TWO_RANKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {"ulysses": ("", proofs.ULYSSES)}
"""The same on two ranks: which share the tokens of their rows."""
THREE, SAVED, RESUMED = proofs.THREE, proofs.SAVED, proofs.RESUMED
FITS: Mapping[str, tuple[Mode, list[str]]] = {
    "enforced": ("enforce", [THREE, *proofs.EVALUATED]),
    "penalised": ("enforce", [THREE, *proofs.KL, "worker.actor.kl_coef=0.1"]),
    "observed": ("observe", [THREE]),
    "killed": ("enforce", [THREE, SAVED]),
    "resumed": ("enforce", [THREE, SAVED, RESUMED]),
    "orderly, tampered with": ("verify", [THREE, "data.shuffle=false"]),
    IMAGES: ("enforce", [THREE]),
    WITHOUT: ("enforce", [THREE]),
    FROZEN: ("enforce", [THREE, "worker.actor.model.freeze_vision_tower=true"]),
}
"""What native/lora_fits.py runs, beside `LORA`: mode and settings by name."""
CONTINUES = {"resumed": "killed"}
ENFORCED = ("enforced", "penalised", IMAGES)
ON_THE_PLAN: Mapping[str, int] = {
    **{f"{name}, {ranks}": ranks for name in ENFORCED for ranks in (1, 2)},
    "resumed, 2": 2,
}
"""Runs whose ledger is the plan, and on how many ranks."""
TAMPERED: Mapping[str, str] = {
    # what has a hand in step 3 -> the aspect in which it departs from the plan
    "one gradient dropped": "gradient",
    "gradients times 3": "gradient",
    "loss times 7": "weights",
}
BAR, CONTROL = 1e-5, 1e-4
"""Of what policies say at the end, relative to how far that moved; see `batchbridge_on_cpu.trajectories`."""


def cases_of(ranks: int) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The cases of native/lora.py, by name."""
    return {**GRADIENTS, **(ONE_RANK if ranks == 1 else TWO_RANKS)}


CASES = [(name, ranks) for ranks in (1, 2) for name in cases_of(ranks)]


def check_gradients(measured: Mapping[str, Any]) -> None:
    """Every step is within the bar, and adapters that are 1 % larger miss it."""
    results = measured["wrapped"]
    assert len(results) == 2 * 2 * 3 * 3  # objectives, aggregations, cuts, steps
    for result in results:
        assert result["error"] <= proofs.bar(result), result
        assert result["norm"] > 0.01
    assert measured["control"] > 10


def check_tampering(measured: Mapping[str, Any], ranks: int) -> None:
    """A step that something has a hand in ends before its update, on every rank; another does not."""
    found = dict(measured["tampered"])
    assert found.pop("nothing") == {"said": [""] * ranks, "updates": 1}
    assert found.keys() == TAMPERED.keys()
    for name, aspect in TAMPERED.items():
        assert found[name]["updates"] == 0, name
        assert len(found[name]["said"]) == ranks
        for said in found[name]["said"]:
            assert said.startswith(f"optimizer step 3 departs from the plan in its {aspect}: "), (name, said)


def check_runs(record: Mapping[str, Any]) -> None:
    """Ledgers are the plan, ends are the same on any ranks and those of the plan in plain torch, resumed bit for bit;
    unwrapped elsewhere. Only adapters move, and vLLM is given them as they are, but for a vision tower's."""
    runs, apart = record["runs"], record["apart"]
    for name, ranks in ON_THE_PLAN.items():
        proofs.check_plan(runs[name], ranks=ranks)
        proofs.check_whole_groups(runs[name])
        assert record["moved"][name] >= 0.01, name
        assert record["frozen_moved"][name] is False, name
    for name in ENFORCED:
        proofs.check_same(runs[f"{name}, 1"], runs[f"{name}, 2"])
        assert apart[f"{name}, 1"] <= BAR, name
    for name in ("enforced, 1", "enforced, 2", "penalised, 1", "penalised, 2"):
        assert record["plain_torch"][name] <= BAR, name
    assert len(record["plain_torch_with_a_fault"]) == 3
    assert all(distance > CONTROL for distance in record["plain_torch_with_a_fault"].values())
    proofs.check_identical(runs["resumed, 2"], runs["enforced, 2"])
    assert apart["resumed, 2"] == 0.0
    assert proofs.differing_steps(runs["enforced, 2"], runs["observed, 2"]) == 6
    assert apart["observed, 2"] > CONTROL
    proofs.check_killed(record["failed"]["killed, 2"])
    without = record["failed"][f"{WITHOUT}, 1"]
    assert without["code"] != 0
    assert "a leaf Variable that requires grad is being used in an in-place operation" in without["said"]
    assert without["steps"] == []
    proofs.check_refused(record["failed"][f"{FROZEN}, 1"], "lora: ")
    proofs.check_tampered_with(record["failed"]["orderly, tampered with, 1"])
    for name, sent in record["sent"].items():
        assert sent["as trained"], name
        assert sent["changed"], name
        assert sent["of the tower"] == 0, name
        assert (sent["left out"] > 0) is name.startswith(IMAGES), name


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Those of docs/easyr1.md, as `proofs.figures`."""
    apart = record["apart"]
    return proofs.rounded(
        {
            **proofs.of_gradients(record["gradients"]),
            "larger_adapters_bars": min(case["control"] for case in record["gradients"].values()),
            "ranks_apart": apart["enforced, 1"],
            "penalised_apart": apart["penalised, 1"],
            "images_apart": apart["images, 1"],
            "plain_torch_apart": max(record["plain_torch"].values()),
            "fault_apart": min(record["plain_torch_with_a_fault"].values()),
            "unwrapped_apart": apart["observed, 2"],
        }
    )

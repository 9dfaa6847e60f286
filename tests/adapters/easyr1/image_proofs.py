"""What is asked of runs whose prompts have images, and the figures that they leave; see proofs.py.

What was measured is JSON: `gradients` by case, such as "Qwen2-VL, 2" (native/images.py); `runs` by name, such as
"enforced, 2" (of native/image_fits.py, and with Ray); outcomes of those that `failed`; how far runs ended `apart`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import proofs

from batchbridge.contract.reading import Mode

FAMILIES = ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL", "Qwen3-VL-MoE")
"""Models with random weights."""
FROZEN, PADDED = "tower frozen", "padded"
GRADIENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # case -> family, and settings beside `batchbridge_on_cpu.easyr1.pictures.SETTINGS`
    **{family: (family, {}) for family in FAMILIES},
    FROZEN: ("Qwen2.5-VL", {"worker.actor.model.freeze_vision_tower": True}),
}
ONE_RANK: Mapping[str, tuple[str, Mapping[str, Any]]] = {PADDED: ("Qwen2-VL", {"worker.actor.padding_free": False})}
"""Cases of `GRADIENTS` that several ranks refuse."""
THREE, SAVED = "trainer.max_steps=3", "trainer.save_freq=1"
KL = ["algorithm.disable_kl=false", "algorithm.use_kl_loss=true", "algorithm.kl_penalty=low_var_kl"]
WITHOUT_TOWER = "worker.actor.model.freeze_vision_tower=true"
FITS: Mapping[str, tuple[Mode, list[str]]] = {
    "enforced": ("enforce", [THREE, "trainer.val_freq=1"]),
    "penalised, tower frozen": ("enforce", [THREE, *KL, WITHOUT_TOWER]),
    "observed": ("observe", [THREE]),
    "killed": ("enforce", [THREE, SAVED]),
    "resumed": ("enforce", [THREE, SAVED, "trainer.find_last_checkpoint=true"]),
    "padded": ("enforce", [THREE, "worker.actor.padding_free=false"]),
}
"""What native/image_fits.py runs: mode and settings by name."""
CONTINUES = {"resumed": "killed"}
MODEL = "Qwen2.5-VL"
"""Of every fit."""
KILL = proofs.KILL
STOCK = "stock entry"
ENFORCED = (("enforced", 1), ("enforced", 2), ("penalised, tower frozen", 1), ("penalised, tower frozen", 2))
ON_THE_PLAN: Mapping[str, int] = {
    **{f"{name}, {ranks}": ranks for name, ranks in ENFORCED},
    "padded, 1": 1,
    "resumed, 2": 2,
    STOCK: 2,
}
"""Runs whose ledger is the plan, and on how many ranks."""
REFUSED = "multi_modal: some prompts of this rollout have images and some have none"
BAR, CONTROL = 1e-5, 1e-4
"""Of what policies say at the end, relative to how far that moved; see `batchbridge_on_cpu.trajectories`."""


def cases_of(ranks: int) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The cases of native/images.py, by name."""
    return {**GRADIENTS, **(ONE_RANK if ranks == 1 else {})}


def check_gradients(measured: Mapping[str, Any], ranks: int) -> None:
    """Every step is within the bar, and other pictures miss it; forward passes with and without an image met."""
    results = measured["wrapped"]
    assert len(results) == 2 * 2 * 3 * 3  # objectives, aggregations, cuts, steps
    for result in results:
        assert result["error"] <= proofs.bar(result), result
        assert result["norm"] > 0.1
    kinds = [set(itertools.chain.from_iterable(result["looked"])) for result in results]
    assert {True} in kinds
    assert {False} in kinds
    assert {True, False} in kinds
    apart = [set(at) for result in results for at in zip(*result["looked"], strict=True)]
    assert ({True, False} in apart) is (ranks > 1)
    assert all(ratio > 10 for ratio in measured["controls"].values()), measured["controls"]


def check_dropped(measured: Mapping[str, Any], ranks: int) -> None:
    """A step without an image whose first micro-batch's gradient was lost ended before its update, on every rank."""
    assert len(measured["dropped"]) == ranks
    for said in measured["dropped"]:
        assert said.startswith("optimizer step 3 departs from the plan in its gradient: ")


def check_runs(record: Mapping[str, Any]) -> None:
    """Ledgers are the plan, ends are the same on any ranks, resumed and with Ray bit for bit; unwrapped elsewhere."""
    runs, apart = record["runs"], record["apart"]
    for name, ranks in ON_THE_PLAN.items():
        proofs.check_plan(runs[name], ranks=ranks)
        proofs.check_whole_groups(runs[name])
    for name in ("enforced, 1", "padded, 1"):
        proofs.check_same(runs[name], runs["enforced, 2"])
        assert apart[name] <= BAR
    assert apart["penalised, tower frozen, 1"] <= BAR
    for name in ("resumed, 2", STOCK):
        proofs.check_identical(runs[name], runs["enforced, 2"])
        assert apart[name] == 0.0
    assert proofs.differing_steps(runs["enforced, 2"], runs["observed, 2"]) == 6
    assert apart["observed, 2"] > CONTROL
    assert record["moved"] >= 0.01
    assert record["tower_moved"] == {"enforced, 2": True, "penalised, tower frozen, 2": False}
    proofs.check_killed(record["failed"]["killed, 2"])
    proofs.check_refused(record["failed"]["padded, 2"], REFUSED)


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Those of docs/easyr1.md, as `proofs.figures`."""
    controls, apart = [case["controls"] for case in record["gradients"].values()], record["apart"]
    return proofs.rounded(
        {
            **proofs.of_gradients(record["gradients"]),
            "families": len({name.partition(",")[0] for name in record["gradients"]} - {FROZEN, PADDED}),
            "other_pictures_bars": min(case["other pictures"] for case in controls),
            "trained_tower_bars": min(case["a trained tower"] for case in controls if "a trained tower" in case),
            "ranks_apart": apart["enforced, 1"],
            "penalised_apart": apart["penalised, tower frozen, 1"],
            "unwrapped_apart": apart["observed, 2"],
        }
    )

"""What is asked of gradients of rows with videos, and the figures that they leave; see proofs.py.

What was measured is JSON: `gradients` by case, such as "Qwen2-VL, 2" (what native/videos.py measured).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import proofs

FAMILIES = ("Qwen2-VL", "Qwen2.5-VL")
"""Models with random weights."""
FROZEN, PADDED = "tower frozen", "padded"
GRADIENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # case -> family, and settings beside `batchbridge_on_cpu.easyr1.pictures.SETTINGS`
    **{family: (family, {}) for family in FAMILIES},
    FROZEN: ("Qwen2.5-VL", {"worker.actor.model.freeze_vision_tower": True}),
}
ONE_RANK: Mapping[str, tuple[str, Mapping[str, Any]]] = {PADDED: ("Qwen2-VL", {"worker.actor.padding_free": False})}
"""Cases beside `GRADIENTS` on one rank: several refuse rows without a video beside others then."""
CONTROLS = {"other videos", "first videos of two prompts exchanged", "frames backwards", "no videos"}
"""What an oracle is shown in place of a step's videos."""
POSITIONS, TRAINED = "positions of transformers", "a trained tower"
"""Further ones: of Qwen2-VL; of a frozen tower."""
SPLITS, STEPS = ("fixed 1", "fixed 2", "budget 4"), (0, 1, 3, 4)
MIXED = 1
"""The step of them with images beside videos: no micro-batch of several ranks has both, see native/videos.py."""


def cases_of(ranks: int) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The cases of native/videos.py, by name."""
    return {**GRADIENTS, **(ONE_RANK if ranks == 1 else {})}


CASES = [(name, ranks) for ranks in (1, 2) for name in cases_of(ranks)]


def check_gradients(measured: Mapping[str, Any], name: str, ranks: int) -> None:
    """Every step is within the bar, and oracles that are shown something else miss it more than 10-fold; there were
    forward passes with videos, with images and with neither, on one rank with both, and on two ranks videos met nothing
    and images."""
    results = measured["wrapped"]
    cuts = {cut for cut in itertools.product(SPLITS, STEPS) if ranks == 1 or cut[1] != MIXED or cut[0] == "fixed 1"}
    assert {(result["split"], result["step"]) for result in results} == cuts
    assert len(results) == 2 * 2 * len(cuts)  # objectives, aggregations
    for result in results:
        assert result["error"] <= proofs.bar(result), result
        assert result["norm"] > 0.1
        assert len(result["looked"]) == ranks
    met = {kind for result in results for at in result["looked"] for kind in at}
    assert met == {"", "videos", "images"} | ({"images and videos"} if ranks == 1 else set())
    apart = [set(at) for result in results for at in zip(*result["looked"], strict=True)]
    assert ({"", "videos"} in apart) is (ranks > 1)
    assert ({"images", "videos"} in apart) is (ranks > 1)
    family, settings = cases_of(ranks)[name]
    asked = CONTROLS | ({POSITIONS} if family == "Qwen2-VL" else set())
    asked |= {TRAINED} if settings.get("worker.actor.model.freeze_vision_tower") else set()
    assert measured["controls"].keys() == asked
    assert all(ratio > 10 for ratio in measured["controls"].values()), measured["controls"]


SHOWN = ("first videos of two prompts exchanged", "frames backwards", "no videos", TRAINED, POSITIONS)
"""The controls of docs/easyr1.md, in its order."""


def figures(cases: Mapping[str, Any]) -> dict[str, float]:
    """Those of docs/easyr1.md, as `proofs.figures`."""
    controls = [case["controls"] for case in cases.values()]
    bars = {name: min(case[name] for case in controls if name in case) for name in SHOWN}
    return proofs.rounded({**proofs.of_gradients(cases), **bars})

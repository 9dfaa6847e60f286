"""Videos: what was recorded of rows with them with EasyR1, held against the bar and the code as they are now."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
VERSION, COMMIT = "0.3.3.dev0", "b44b311b669bf1fd1aa2fc36f2251482ba33cb16"


def _module(name: str) -> Any:
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


proofs, video_proofs = _module("proofs"), _module("video_proofs")


def recorded() -> dict[str, Any]:
    text = (HERE / "recorded" / f"videos_{VERSION}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


def test_the_record_is_of_a_known_checkout_and_of_the_code_as_it_is_now() -> None:
    proofs.check_code(recorded(), "videos", COMMIT)


def test_every_case_is_recorded() -> None:
    assert recorded()["gradients"].keys() == {f"{name}, {ranks}" for name, ranks in video_proofs.CASES}


@pytest.mark.parametrize(("name", "ranks"), video_proofs.CASES)
def test_recorded_gradients_of_rows_with_videos_meet_the_bar_and_other_videos_miss_it(name: str, ranks: int) -> None:
    video_proofs.check_gradients(recorded()["gradients"][f"{name}, {ranks}"], name, ranks)


@pytest.mark.parametrize("change", ["error", "controls", "looked"])
def test_a_recorded_gradient_beyond_the_bar_a_control_within_it_and_unseen_videos_fail(change: str) -> None:
    measured = recorded()["gradients"]["Qwen2-VL, 2"]
    if change == "error":
        measured["wrapped"][0]["error"] = 1e-3
    elif change == "controls":
        measured["controls"]["no videos"] = 1.0
    else:
        for result in measured["wrapped"]:
            result["looked"] = [["images"] * len(at) for at in result["looked"]]
    with pytest.raises(AssertionError):
        video_proofs.check_gradients(measured, "Qwen2-VL", 2)

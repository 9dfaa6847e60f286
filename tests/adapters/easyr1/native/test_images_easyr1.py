"""Images: EasyR1's real workers, padding-free forward and `fit` on prompts with no, one or two images.

The processes run images.py and image_fits.py; image_proofs.py says what is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import image_proofs
import image_runs
import pytest


@pytest.fixture(autouse=True, scope="module")
def newer(checkout: Path) -> None:
    if '"0.3.2"' in (checkout / "verl" / "__init__.py").read_text(encoding="utf-8"):
        pytest.skip("0.3.2 does not run the vision tower where it scores rows without an image")


@pytest.fixture(scope="module")
def everything(place: Path, checkout: Path) -> dict[str, Any]:
    return image_runs.everything(place, checkout)


@pytest.mark.parametrize(
    ("name", "ranks"), [(name, ranks) for ranks in (1, 2) for name in image_proofs.cases_of(ranks)]
)
def test_gradients_of_rows_with_images_are_the_oracles_and_other_pictures_miss_it(
    place: Path, checkout: Path, name: str, ranks: int
) -> None:
    measured = image_runs.gradients(place, checkout, ranks, name)
    image_proofs.check_gradients(measured, ranks)
    image_proofs.check_dropped(measured, ranks)


def test_runs_on_prompts_with_images_are_the_plan_and_end_the_same(everything: dict[str, Any]) -> None:
    image_proofs.check_runs(everything)

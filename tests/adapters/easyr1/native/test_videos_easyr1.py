"""Videos: EasyR1's real workers and its data set on prompts with no, one or two videos.

The processes run videos.py; video_proofs.py says what is asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import video_proofs
import video_runs


@pytest.fixture(autouse=True, scope="module")
def newer(checkout: Path) -> None:
    if '"0.3.2"' in (checkout / "verl" / "__init__.py").read_text(encoding="utf-8"):
        pytest.skip("models that read images are refused in 0.3.2")


@pytest.mark.parametrize(("name", "ranks"), video_proofs.CASES)
def test_gradients_of_rows_with_videos_are_the_oracles_and_other_videos_miss_it(
    place: Path, checkout: Path, name: str, ranks: int
) -> None:
    video_proofs.check_gradients(video_runs.gradients(place, checkout, ranks, name), name, ranks)

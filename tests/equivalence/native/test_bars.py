"""The bars of the suite are bars: its result with one figure beyond them fails, whichever cases ran."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS: dict[str, Any] = json.loads(
    (Path(os.environ["BATCHBRIDGE_EQUIVALENCE"]) / "result.json").read_text(encoding="utf-8")
)
FIRST = "(the first)"
MISSED: dict[str, tuple[tuple[str, ...], float]] = {
    "two ends": (("pairs", "enforce", FIRST, "trajectory"), 1.1e-5),
    "a gradient": (("oracle", FIRST, "of_the_bar"), 1.1),
    "a fault that does not show": (("plain_torch", FIRST, "weight"), 9e-5),
    "a critic's end": (("critic", "pairs", "enforce", FIRST, "trajectory"), 1.1e-5),
    "a critic's gradient": (("critic", "oracle", FIRST, "of_the_bar"), 1.1),
    "a critic's weights": (("critic", "weights", FIRST, "off"), 1.1e-4),
    "a critic that agrees unwrapped": (("critic", "pairs", "observe", "verl v1 / openrlhf", "trajectory"), 9e-5),
    "a critic's fault that does not show": (("critic", "plain_torch", FIRST, "weight"), 9e-5),
    "another factor of advantages": (("critic", "whitening", "verl v1 / openrlhf", "expected"), 4e-3),
    "a gradient that is not clipped": (("critic", "least_over_its_clip", FIRST), 0.9),
}
"""What misses its bar -> where the result has it, and what it has then."""


def missed() -> Iterator[tuple[str, str]]:
    """(case, what) of every figure that a case has."""
    for case, result in RESULTS.items():
        for what, (path, _) in MISSED.items():
            if path[0] in result:
                yield case, what


@pytest.mark.parametrize(("case", "what"), list(missed()))
def test_a_result_with_one_figure_beyond_its_bar_fails(case: str, what: str, tmp_path: Path) -> None:
    (*groups, last), value = MISSED[what]
    result = copy.deepcopy(RESULTS[case])
    place: dict[str, Any] = result
    for group in groups:
        place = place[next(iter(place)) if group == FIRST else group]
    name = next(iter(place)) if last == FIRST else last
    assert name in place
    place[name] = value
    (tmp_path / "result.json").write_text(json.dumps({case: result}), encoding="utf-8")
    judging = Path(__file__).with_name("test_equivalence.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(judging)],
        env={**os.environ, "BATCHBRIDGE_EQUIVALENCE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout, done.stdout

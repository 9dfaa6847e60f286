"""docs/cli.md has the figures that benchmarks/check_lines.py recorded, and the script counts what `check` prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge import check
from batchbridge_on_cpu.scripts import module_at

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "benchmarks" / "check_lines.json").read_text(encoding="utf-8"))
SCRIPT = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n={}\n"


@pytest.fixture
def check_lines() -> ModuleType:
    return module_at(ROOT / "benchmarks" / "check_lines.py", "check_lines")


def test_the_page_has_what_the_script_recorded(check_lines: ModuleType) -> None:
    (block,) = check_lines.BLOCK.findall((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
    assert block == check_lines.sentence(RECORDED)


def test_the_median_of_the_published_scripts_is_at_most_eight_lines() -> None:
    assert RECORDED["scripts"] > 100
    assert RECORDED["lines"][1] <= 8
    assert RECORDED["valid"][1] <= 8


def test_the_script_counts_the_lines_of_every_script_of_a_checkout(check_lines: ModuleType, tmp_path: Path) -> None:
    texts = {"a.sh": SCRIPT.format(4), "b.sh": SCRIPT.format("no"), "sub/c.sh": SCRIPT.format(8), "d.sh": "echo\n"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = check_lines.measured(tmp_path, "0.7.1")
    counts = sorted(len(str(check(tmp_path / name, version="0.7.1")).splitlines()) for name in list(texts)[:3])
    assert (found["scripts"], found["lines"][1]) == (3, counts[1])
    assert found["verdicts"] == {"invalid": 3}
    assert found["longest"] > 80

"""README.md's change of a user's own program, applied to one: a real `GRPOTrainer`, before and after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "docs"))

import make_outputs

PAGES = ("README.md", "docs/newcomer.md")
OWN = """
from pathlib import Path

from batchbridge_trl.testing import tiny_policy, tiny_tokenizer
from datasets import Dataset
from trl import GRPOConfig

model = "policy"
tiny_policy().save_pretrained(model)
tiny_tokenizer().save_pretrained(model)
prompts = Dataset.from_dict({"prompt": ["a", "b", "c", "d"]})
args = GRPOConfig(
    "out", num_generations=4, per_device_train_batch_size=4, max_completion_length=4, max_steps=2,
    use_cpu=True, bf16=False, report_to=[], save_strategy="no",
)

def reward(completions, **_):
    return [float(len(text)) for text in completions]
"""
"""What the reader has: a model, prompts, a reward and TRL's own settings. TRL generates."""
MISSES = "\nassert not hasattr(trainer, 'batchbridge')\n"


def programs() -> tuple[str, str]:
    """The user's program before and after the change that the pages show."""
    blocks = [one for page in PAGES for one in make_outputs.blocks(ROOT / page) if one.language == "diff"]
    (text,) = {block.text for block in blocks}
    assert len(blocks) == len(PAGES)
    lines = text.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    return OWN + "\n".join(before) + MISSES, OWN + "\n".join(line[1:] for line in lines)


def runs(program: str, folder: Path) -> str:
    (folder / "train.py").write_text(program, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_three_lines_wrap_a_users_own_trainer_that_ran_without_them(tmp_path: Path) -> None:
    before, after = programs()
    assert len(after.splitlines()) == len(before.removesuffix(MISSES).splitlines()) + 3
    runs(before, tmp_path)
    assert not (tmp_path / "out" / "ledger").exists()
    assert "completions" in runs(after, tmp_path)
    assert any((tmp_path / "out" / "ledger").iterdir())

"""TRL's own examples, each file unchanged and as `__main__` under `batchbridge run`: none is stopped falsely.

By name, those of a checkout: `BATCHBRIDGE_TRL=../trl nox -s "trl_full(release='newest')" -- -k examples`; by default
the script of the installed release. BATCHBRIDGE_RECORD=1 keeps what came of them, for docs/measured.md.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import trl

from batchbridge.ledger import read_steps
from batchbridge_on_cpu.figures import keep

SCRIPT = Path(__file__).with_name("example_script.py")
FIGURES = Path(__file__).parents[1] / "figures.json"
BIN = Path(sys.executable).parent
CHECKOUT = os.environ.get("BATCHBRIDGE_TRL")
STEPS = 12
"""As `example_script.STEPS`, which stands in the example's process."""
OF_A_TEXT = "--model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/DeepMath-103K --output_dir trained"
INSTALLED = {
    # These two name no command.
    "trl/scripts/grpo.py": f"{OF_A_TEXT} --reward_funcs accuracy_reward think_format_reward",
    "trl/scripts/rloo.py": f"{OF_A_TEXT} --reward_funcs accuracy_reward think_format_reward",
}
CAME: dict[str, str] = {
    "trl/scripts/grpo.py": f"{STEPS} steps",
    "trl/scripts/rloo.py": "refused: trainer_copy",
    "examples/scripts/gspo.py": f"{STEPS} steps",
    "examples/scripts/gspo_vlm.py": f"{STEPS} steps",
    "examples/scripts/grpo_2048.py": f"{STEPS} steps",
    "examples/scripts/grpo_agent.py": f"{STEPS} steps",
    "examples/scripts/grpo_continuous_batching.py": f"{STEPS} steps",
    "examples/scripts/grpo_vlm.py": f"{STEPS} steps",
    "examples/scripts/rloo.py": "refused: trainer_copy",
}
"""What comes of an example, in both modes."""
BEHIND: dict[str, str] = {
    # Its group of 32 is more than the eight completions of one device, which TRL refuses: BB-TRL-021.
    "examples/scripts/grpo_continuous_batching.py": "--per_device_train_batch_size 32",
}
"""What its own command lacks on one device."""
BY_HAND = (pytest.mark.by_hand, pytest.mark.skipif(not CHECKOUT, reason="BATCHBRIDGE_TRL names no checkout of TRL"))
EXAMPLES = [
    pytest.param(name, mode, marks=() if name in INSTALLED else BY_HAND)
    for name in CAME
    for mode in ("enforce", "verify")
]


def file_of(name: str) -> Path:
    root = Path(trl.__file__).parents[1] if name in INSTALLED else Path(str(CHECKOUT))
    return (root / name).absolute()


def words_of(name: str) -> list[str]:
    """What stands behind the example in the first command of its own docstring."""
    if name in INSTALLED:
        return shlex.split(INSTALLED[name])
    text = re.sub(r"\\\n", " ", file_of(name).read_text(encoding="utf-8"))
    own = text.split(f"{name} ", 1)[1].splitlines()[0] if f"{name} " in text else ""
    return shlex.split(f"{own} {BEHIND.get(name, '')}")


def ran(folder: Path, name: str, mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [str(BIN / "batchbridge"), "run", "--mode", mode, "--ledger", "ledger", "--", sys.executable, str(SCRIPT)]
    words = [*command, str(file_of(name)), *words_of(name)]
    return subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, timeout=600, check=False)


def what_came(folder: Path, done: subprocess.CompletedProcess[str]) -> str:
    """`N steps`, `refused: NAMES`, or the end of what was said; a run that hardly ever had a gradient says that."""
    if done.returncode == 0:
        norms = [step["gradient_norm"] for step in read_steps(folder / "ledger")]
        moved = sum(norm > 0 for norm in norms)
        # A game in which no sample of a group scores has no advantages in that step.
        return f"{len(norms)} steps" if moved >= len(norms) - 2 else f"{moved} of {len(norms)} steps had a gradient"
    refusal = done.stderr.partition("CannotAttach: batchbridge cannot attach:\n")[2]
    names = re.findall(r"(?m)^  (\w+): ", refusal)
    return f"refused: {', '.join(names)}" if names else done.stderr[-3000:]


@pytest.mark.parametrize(("name", "mode"), EXAMPLES)
def test_a_stock_example_takes_all_steps_or_is_refused_by_name(tmp_path: Path, name: str, mode: str) -> None:
    came = what_came(tmp_path, ran(tmp_path, name, mode))
    assert came == CAME[name]
    if CHECKOUT:  # one commit's figures stand together
        keep(FIGURES, version("trl"), "examples", {f"{name}, {mode}": came})


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_a_stock_example_whose_gradients_are_changed_is_stopped(tmp_path: Path, mode: str) -> None:
    done = ran(tmp_path, "trl/scripts/grpo.py", mode, BATCHBRIDGE_TAMPERED="1")
    assert done.returncode == 1
    assert "BatchDrift: optimizer step 4 departs from the plan in its gradient" in done.stderr
    assert len(list(read_steps(tmp_path / "ledger"))) == 4


@pytest.mark.skipif(not CHECKOUT, reason="BATCHBRIDGE_TRL names no checkout of TRL")
def test_the_words_of_an_example_are_its_own() -> None:
    words = words_of("examples/scripts/gspo.py")
    assert words[:2] == ["--model_name_or_path", "Qwen/Qwen3-0.6B"]
    assert words[-2:] == ["--steps_per_generation", "8"]

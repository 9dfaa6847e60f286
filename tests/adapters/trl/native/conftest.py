"""Real `GRPOTrainer`s on CPU, wrapped and unwrapped; rollouts are scripted, everything else is TRL's own code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is marked experimental
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for the helper modules of this folder

import torch
import transformers

from batchbridge_trl.testing import scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Any]:
    """Builds a `GRPOTrainer` of the tiny policy; see `batchbridge_trl.testing.scripted_trainer`."""

    def build(folder: str = "out", **arguments: Any) -> Any:
        return scripted_trainer(tmp_path / folder, **arguments)

    return build


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """TRL seeds the global random state itself; start every test from the same one."""
    torch.manual_seed(0)

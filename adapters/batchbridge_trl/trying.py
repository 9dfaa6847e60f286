"""The trial of TRL's adapter, for `batchbridge try trl`; imports no framework.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from pathlib import Path

from batchbridge.kit import Trial, TrialCommand

PROMPTS = 9


def _prepare(folder: Path, beside: Path) -> TrialCommand:
    environment = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    return TrialCommand(words=("-m", "batchbridge_trl.on_cpu", str(folder)), environment=environment)


TRIAL = Trial(
    needs=("torch", "trl"),
    install=("pip install 'batchbridge[trl]'",),
    prepare=_prepare,
    real="GRPOTrainer, its loop, advantages, loss and optimizer",
    scripted="completions and rewards, through TRL's own rollout_func",
    prompts=PROMPTS,
)

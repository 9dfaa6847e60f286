"""The trial of verl's adapter, for `batchbridge try verl`; imports no framework."""

from __future__ import annotations

from pathlib import Path

from batchbridge.kit import Trial, TrialCommand

PROMPTS = 12


def _prepare(folder: Path, beside: Path) -> TrialCommand:
    from batchbridge_verl.on_cpu import launching

    launching.prepare(folder, prompts=PROMPTS)
    settings = (*launching.overrides(folder, 1, ray=beside), "trainer.total_epochs=1")
    return TrialCommand(words=("-m", "verl.trainer.main_ppo", *settings), environment=launching.environment({}))


TRIAL = Trial(
    needs=("torch", "verl", "ray", "transfer_queue", "cachetools", "msgspec", "zmq", "fastapi", "uvicorn"),
    install=("pip install 'batchbridge[try-verl]'",),
    prepare=_prepare,
    real="main_ppo, its trainer on Ray, the FSDP2 engine, loss and optimizer",
    scripted="the rollout engine and the rewards (our agent loop); a CPU is declared as one of verl's platforms",
    prompts=PROMPTS,
)

"""Runs whose token budget is found meanwhile: lengths with a long tail, and a memory that has a limit."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packable import packable
from transformers import TrainerCallback

from batchbridge import wrap
from batchbridge.kit import device_memory
from batchbridge.kit.patches import temporarily
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_on_cpu.limited_memory import LimitedMemory
from batchbridge_trl.recording import TrlLayer
from batchbridge_trl.testing import Captured, GradientError, default_script, gradient_errors, scripted_trainer

STEPS = int(os.environ.get("BATCHBRIDGE_BUDGET_STEPS", "12"))
"""Optimizer steps of the long run; by hand 1000."""
LIMIT = 60_000_000
"""Bytes: a few times what the longest completion takes alone."""
ONE_STEP: dict[str, Any] = {
    "prompts": 16,
    "loss_type": "bnpo",
    "beta": 0.1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_iterations": 2,
    "learning_rate": 1e-4,
}
"""Steps of 16 completions, two passes over a rollout, log-probabilities scored before."""


@dataclass(frozen=True)
class LongTail(ScriptedRollouts):
    """Completions whose lengths are lognormal, and one that is as long as any may be."""

    longest: int = 96

    def completion(self, prompt: int, sample: int) -> list[int]:
        """Token ids of a length of its own; see `ScriptedRollouts`."""
        drawn = random.Random(f"{prompt} {sample}").lognormvariate(math.log(9.0), 0.6)
        length = self.longest if (prompt, sample) == (3, 2) else min(max(int(drawn), 1), self.longest // 2)
        own = super().completion(prompt, sample)
        words = own[:-1] or [own[-1] + 1]
        return [*(words[place % len(words)] for place in range(length - 1)), own[-1]]


def script() -> LongTail:
    """The script, as the installed TRL can play it."""
    return LongTail(empty=default_script().empty)


def lost(number: int, where: str, operation: int, every: int = 11) -> bool:
    """Whether a pass loses its memory: each eleventh, by turns when the log-probabilities are there, and when part of
    the parameters have their gradients."""
    if number % every != every - 1:
        return False
    return (where, operation) == (("forward", 300) if number // every % 2 else ("backward", 150))


def run(
    folder: Path,
    memory: LimitedMemory,
    tokens: int | Literal["auto"] = "auto",
    padding: Literal["padded", "auto"] = "padded",
    **more: Any,
) -> FoundRun:
    """A run that has been trained, with its own memory for one that finds its budget."""
    build = packable if padding == "auto" else tiny_policy
    reference = build(seed=1)
    settings = {"max_steps": STEPS, "logging_strategy": "steps", "logging_steps": 1, **ONE_STEP, **more}
    built = scripted_trainer(folder / "out", script=script(), policy=build(), reference=reference, **settings)
    with temporarily(device_memory, memory_of=lambda device: memory):
        built = wrap(built, tokens_per_device=tokens, padding=padding, ledger=folder / "ledger")
    seen = FoundRun(built, Captured(built.model), reference)
    built.add_callback(seen.captured)
    built.add_callback(_Turns(seen))
    built.train()
    return seen


class FoundRun:
    """What was seen of a run. turns: micro-batches of each step on this rank."""

    def __init__(self, trainer: Any, captured: Captured, reference: Any) -> None:
        self.trainer, self.captured, self._reference = trainer, captured, reference
        self.turns: list[int] = []

    def errors(self, steps: int | None = None) -> list[GradientError]:
        """The distances of its gradients from the oracle's."""
        plan, script_ = self.trainer.batchbridge.plan, script()
        given = {"plan": plan, "reference": self._reference, "script": script_, "steps": steps}
        return gradient_errors(self.captured, plan.spec, **given)

    def logged(self) -> list[dict[str, float]]:
        """The metrics of each step's passes."""
        names = ("loss", "kl", "entropy", *(f"clip_ratio/{name}" for name in ("low_mean", "high_max", "region_mean")))
        return [{name: one[name] for name in names if name in one} for one in self.trainer.state.log_history[:-1]]


class _Turns(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    def __init__(self, seen: FoundRun) -> None:
        self._seen = seen

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (layer,) = [one for one in self._seen.trainer.callback_handler.callbacks if isinstance(one, TrlLayer)]
        self._seen.turns.append(len(layer.parts))

"""GRPO trainers that are not TRL's own, by the names of their classes and modules; nothing is imported.

Sources: Deep-Agent/R1-V and tulerfeng/Video-R1 src/r1-v/src/open_r1/trainer/grpo_trainer.py (Qwen2VLGRPOTrainer),
om-ai-lab/VLM-R1 src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py at 0ae0aea (VLMGRPOTrainer), trl 1.16.0
experimental/async_grpo (AsyncGRPOTrainer) and trainer/rloo_trainer.py (RLOOTrainer): each a subclass of transformers'
Trainer. unsloth 2026.10.9 models/rl.py at 637, 3679, 4366 (UnslothGRPOTrainer over a copy of TRL's class, or over the
class itself where its source cannot be rewritten), unsloth_zoo rl_replacements.py:1427. modelscope/ms-swift at 006938b
swift/rlhf_trainers/grpo_trainer.py, in version 3 swift/trainers/rlhf_trainer/grpo_trainer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_DERIVED = "the loss of a class that is derived from it is measured before it trains (weight_probe)"

RELEASES = "unsloth 2026.10.9 with unsloth_zoo 2026.10.9 over trl 1.15.0"
"""The releases of Unsloth's whose generated code is known, see `unsloth_code`."""


class TrainerFork(NamedTuple):
    """A trainer of other people that is known by name: its refusal's name and reason, and whether a class is it."""

    name: str
    reason: str
    made: Callable[[type], bool]


UNSLOTH = TrainerFork(
    "unsloth",
    "Unsloth's GRPO loss computes its gradient in the forward pass and ignores what is handed back to it "
    '(grad_output): its trainer is wrapped, with allow=("unproven_code",), where the code that it generated is the one '
    "that is known "
    f"({RELEASES}), and this is not; use these releases, or train with TRL's own GRPOTrainer, in a process that does "
    "not import unsloth",
    lambda cls: cls.__name__.lstrip("_") == "UnslothGRPOTrainer",
)
FORKS = (
    UNSLOTH,
    TrainerFork(
        "ms_swift",
        "ms-swift's GRPOTrainer replaces TRL's generation, scoring, micro-batches and loss by its own; those of 4.6.0 "
        "are taken in every mode where its settings have a meaning in TRL (docs/trl.md), and nothing else of it; train "
        f"with TRL's own GRPOTrainer: {_DERIVED}",
        lambda cls: cls.__module__.partition(".")[0] == "swift" and "GRPO" in cls.__name__,
    ),
)
"""Forks that may be derived from TRL's class."""
COPY = TrainerFork(
    "trainer_copy",
    "a GRPO trainer on transformers' Trainer that is not derived from TRL's GRPOTrainer (R1-V's Qwen2VLGRPOTrainer, "
    "VLM-R1's VLMGRPOTrainer and their copies; TRL's RLOOTrainer and experimental AsyncGRPOTrainer) has an order of "
    "prompts, a generation and a loss of its own: none is enforced; where its own compute_loss makes log-probabilities "
    "by a _get_per_token_logps of its own, as R1-V's family does, what it trains is measured "
    '(mode="observe", or mode="verify" against its settings); else train with TRL\'s own GRPOTrainer: '
    f"{_DERIVED}",
    lambda cls: "GRPO" in cls.__name__.upper() or cls.__name__ == "RLOOTrainer",
)


def is_unsloths(trainer: object) -> bool:
    """Whether a trainer is of Unsloth's class, or of one that is derived from it."""
    return any(map(UNSLOTH.made, type(trainer).__mro__))


def fork_of(trainer: object) -> TrainerFork | None:
    """The fork that made `trainer` and that nobody wraps, or None: TRL's own, one that is derived from it, Unsloth's of
    code that is known, or no GRPO trainer."""
    classes = type(trainer).__mro__
    if fork := next((fork for fork in FORKS if any(fork.made(cls) for cls in classes)), None):
        from batchbridge_trl.unsloth_code import is_known

        return None if fork is UNSLOTH and is_known(trainer) else fork
    names = {(cls.__name__, cls.__module__.partition(".")[0]) for cls in classes}
    copied = ("Trainer", "transformers") in names and ("GRPOTrainer", "trl") not in names
    return COPY if copied and any(COPY.made(cls) for cls in classes) else None

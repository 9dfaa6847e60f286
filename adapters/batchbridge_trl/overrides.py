"""The methods that a subclass of `GRPOTrainer` puts in the place of TRL's own, as its text says it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

from batchbridge.kit.allowing import ADVANTAGES
from batchbridge.kit.proven import overridden
from batchbridge_trl.ms_swift import uses
from batchbridge_trl.proven import ACCELERATOR, CODE, REWARDS, SCHEDULER
from batchbridge_trl.unsloth_code import is_written_by_unsloth

_PRODUCER = "_generate_and_score_completions"
_BECOMES: Mapping[str, str] = {
    "_get_train_sampler": "your sampler is not used: the plan orders prompts",
    "get_train_dataloader": "your loader is not used: prompts are fetched from the dataset by the plan's numbers",
    "_prepare_inputs": "your method sees evaluation alone: a rollout is generated when the plan needs it",
    _PRODUCER: "it is called for each rollout of the plan; its rows are trained, their advantages as the rewards give "
    'them or, with allow=("advantages",), as they are',
    REWARDS: "it is called for each rollout of the plan, and its rewards decide the advantages",
    SCHEDULER: "it is called as natively, and its schedule gives the rates",
    ACCELERATOR: "it ran when the trainer was built, and what it made was looked at",
    "training_step": "it is called for each micro-batch of the plan's step",
    "_get_per_token_logps_and_entropies": "it is called, and what it gives is measured as the log-probabilities",
    "_get_per_token_logps": "it is called, and what it gives is measured as the log-probabilities",
    **dict.fromkeys(
        ("compute_loss", "_compute_loss"),
        "it is called for each micro-batch, and its loss is multiplied by the step's factor",
    ),
}
_CALLED = "it is called as natively"


def overrides_of(trainer: Any) -> dict[str, str]:
    """The methods that a wrapped run depends on and that are the trainer's own, by name: where each stands."""
    return {method: where for method, where, _ in overridden(CODE.used(uses(trainer)), trainer)}


def said_of_overrides(trainer: Any, allow: Collection[str]) -> list[str]:
    """Notes on what an enforced run does with each method of the trainer's own, and with its advantages."""
    notes = [f"{where}: {_BECOMES.get(method, _CALLED)}" for method, where in overrides_of(trainer).items()]
    if ADVANTAGES in allow:
        notes.append("advantages are what the trainer gives: carried, not recomputed from the rewards")
    return notes


def own_advantages(trainer: Any) -> str | None:
    """The class of a trainer whose method that generates and scores says `advantages` where it stores something; None:
    no class of it does, as far as its text shows."""
    for cls in type(trainer).__mro__:
        method = vars(cls).get(_PRODUCER)
        if method is None:
            continue
        if cls.__module__.startswith("trl.") or is_written_by_unsloth(cls):
            return None
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        except (OSError, TypeError, SyntaxError):
            return None
        if any(map(_stores_advantages, ast.walk(tree))):
            return cls.__qualname__
    return None


def _stores_advantages(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return any(isinstance(part, ast.Constant) and part.value == ADVANTAGES for part in ast.walk(node))
    if isinstance(node, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value == ADVANTAGES for key in node.keys)
    return isinstance(node, ast.keyword) and node.arg == ADVANTAGES

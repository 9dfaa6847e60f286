"""A tiny critic that verl and OpenRLHF read from one folder.

The tiny policy's body with a value for each token. OpenRLHF's value head has no bias, and transformers' token
classifiers, which verl makes its critics of, have one: here neither has (`value_head_bias` of the configuration, which
`batchbridge_on_cpu.verl.critic` reads). Nothing is dropped out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.snapshots import FOLDER, StepKeeper
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer


def value_model(seed: int = 0) -> Any:
    """The critic, float32."""
    from transformers import LlamaForTokenClassification

    config = tiny_policy(seed).config
    config.num_labels, config.classifier_dropout, config.value_head_bias = 1, 0.0, False
    state = torch.random.get_rng_state()
    torch.manual_seed(seed + 100)
    model = without_bias(LlamaForTokenClassification(config).float())
    torch.random.set_rng_state(state)
    return model


def without_bias(model: Any) -> Any:
    """A token classifier whose head has no bias, where its configuration says so."""
    if not getattr(model.config, "value_head_bias", True):
        model.score.register_parameter("bias", None)
    return model


def save(folder: Path, *, seed: int = 0) -> None:
    """Writes it and its tokenizer."""
    value_model(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def keeper_of(module: Any, kept: dict[str, StepKeeper | None], *, writes: bool) -> StepKeeper | None:
    """The keeper of the optimizer steps of a process's model, or None; a critic's, by its value head, are kept in the
    folder `critic` inside that of the policy's. kept: those that there are."""
    name = "critic" if hasattr(module, "score") else "policy"
    if name not in kept:
        folder = os.environ.get(FOLDER)
        place = None if folder is None else Path(folder) / name if name == "critic" else Path(folder)
        kept[name] = None if place is None else StepKeeper(place, writes=writes)
    return kept[name]

"""The code of Unsloth's GRPO trainer that a wrapped run relies on, known by the digests of its functions.

Unsloth writes a module of its own over the text of the TRL that is installed, into its compiled cache, and imports it.
So a version says little: each function is held against what was read and tested, in the module as it was written, and
it has to be the one that runs. Nothing of Unsloth is imported here.

Source: the module that unsloth 2026.10.9 with unsloth_zoo 2026.10.9 wrote over trl 1.15.0.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from batchbridge.kit.fingerprints import digests

_CLASS = "_UnslothGRPOTrainer"
"""The class that Unsloth writes over the text of TRL's."""
LOSS = "UnslothEfficientGRPO"
"""The autograd function that makes the loss, and its gradient, of a micro-batch's log-probabilities."""
ACCUMULATED = "grpo_accumulated_loss"
"""The function that makes log-probabilities, and calls `LOSS` with them."""
KNOWN: Mapping[str, str] = {
    "UnslothEfficientGRPO.forward": "737559d515ffcbb4",
    "UnslothEfficientGRPO.backward": "942d13a5896afab8",
    "grpo_compute_loss": "330c0a59bd7f1f07",
    "grpo_accumulated_loss": "572b4d882f3b050f",
    "calculate_pad_tokens_in_prompt": "5b18ca3569f13c2f",
    "create_completion_attention_mask": "f2a42e1d928ff60c",
    "left_pack_padding": "c834c2899d22b75f",
    "align_logprobs_with_mask": "0265ec47abb05759",
    "align_completion_tool_mask": "e1d29ef0284b13c6",
    "_unsloth_grpo_accumulation_steps": "6ad1575510b097c0",
    "_UnslothGRPOTrainer.compute_loss": "b819eb4b1a5bf775",
    "_UnslothGRPOTrainer.training_step": "fe66bc3a98cbe60b",
    "_UnslothGRPOTrainer._prepare_inputs": "126d223ac0592853",
    "_UnslothGRPOTrainer._calculate_rewards": "b168c49969c3f9c7",
    "_UnslothGRPOTrainer._generate_and_score_completions": "f05173ad60c815e8",
    "_UnslothGRPOTrainer._get_per_token_logps_and_entropies": "0f27facce1704516",
    "_UnslothGRPOTrainer._get_train_sampler": "352ee9f014e358c3",
    "_UnslothGRPOTrainer.get_train_dataloader": "c3f86c4b5c5477d7",
    "_UnslothGRPOTrainer._load_optimizer_and_scheduler": "fbafad1c93ec1008",
    "_UnslothGRPOTrainer._save_checkpoint": "0d724ce05710d9d4",
}
"""A function of the generated module to its digest."""
AROUND: Mapping[str, str] = {
    "_wrap_grpo_generate_and_score": "7a617f215157f5bf",
    "_wrap_grpo_ddp_gradient_sync": "a2253dc498e91239",
}
"""A function of unsloth's models/rl.py that puts its own around a method of the generated class, to its digest."""
_MAY_WRAP = ("trl", "torch", "unsloth", "functools", "contextlib")


def is_written_by_unsloth(cls: type) -> bool:
    """Whether a class is the one that Unsloth writes; what it has is held by digests (`unknown`), and not by its
    text."""
    return cls.__name__ in (_CLASS, _CLASS.lstrip("_"))


def generated(trainer: object) -> ModuleType | None:
    """The module that Unsloth wrote and that a trainer's class stands in; None where there is none."""
    for cls in type(trainer).__mro__:
        module = sys.modules.get(cls.__module__)
        if cls.__name__ == _CLASS and module is not None and getattr(module, "__file__", None):
            return module
    return None


def is_known(trainer: object) -> bool:
    """Whether the code of a trainer of Unsloth's is known."""
    return next(unknown(trainer), None) is None


def unknown(trainer: object) -> Iterator[str]:
    """The functions of a trainer of Unsloth's that are not those that are known, by name."""
    module = generated(trainer)
    if module is None:
        yield f"a class {_CLASS}, in a module that Unsloth wrote"
        return
    file = Path(str(module.__file__))
    found = digests(file.parent, {file.name: tuple(KNOWN)})
    for name, digest in KNOWN.items():
        if found[f"{file.name}: {name}"] != digest:
            yield name
        elif not _stands_in(_live(module, trainer, name), file, name.rpartition(".")[2]):
            yield f"{name} (replaced)"
    package = sys.modules.get("unsloth.models.rl")
    rl = Path(str(getattr(package, "__file__", "rl.py")))
    found = digests(rl.parent, {rl.name: tuple(AROUND)})
    yield from (f"unsloth models/rl.py {name}" for name, digest in AROUND.items() if found[f"rl.py: {name}"] != digest)


def _live(module: ModuleType, trainer: object, name: str) -> Any:
    """A function as a trainer would call it: a method of its class, or a name of the generated module."""
    owner, _, called = name.rpartition(".")
    if not owner:
        return vars(module).get(name)
    cls = type(trainer) if owner == _CLASS else vars(module).get(owner)
    return None if cls is None else inspect.getattr_static(cls, called, None)


def _stands_in(function: Any, file: Path, name: str) -> bool:
    """Whether a function is the one of this name in the generated file, or one of Unsloth's, TRL's or torch's around
    it."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is not None and code.co_name == name and Path(code.co_filename) == file:
        return True
    where = str(getattr(function, "__globals__", {}).get("__name__", type(function).__module__))
    if not where.startswith(_MAY_WRAP):
        return False
    held = [getattr(function, "__wrapped__", None), *inspect.getclosurevars(function).nonlocals.values()]
    return any(inspect.isroutine(one) and one is not function and _stands_in(one, file, name) for one in held)

"""Attaching to a constructed `GRPOTrainer`: what is refused, and what is set.

What patches a trainer is imported once there is one: the table of refusals is read without TRL and torch, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import (
    RefusalRow,
    changed_fields,
    left_different,
)
from batchbridge.kit.versions import version as installed_version
from batchbridge_trl import releases
from batchbridge_trl.configured import (
    assumed,
    would_use,
)
from batchbridge_trl.copied import producers
from batchbridge_trl.forks import COPY, FORKS
from batchbridge_trl.proven import CODE, OF_COPIES
from batchbridge_trl.refusals import ALL_SETTABLE, REFUSALS, SETTABLE_ARGS

PLANNED = (
    "rollout.prompts_per_rollout",
    "rollout.prompts_per_generation_batch",
    "optimizer_step.",
    "loss.",
    "advantage.",
    "order.",
    "horizon.",
    "staleness.",
    "objective.surrogate",
    "objective.old_logprobs",
)
"""Canonical fields (or their beginnings) that the plan, the factors or the rollout code of `enforce` bring about."""


def _patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    from batchbridge_trl.engine import Enforcer
    from batchbridge_trl.finished import Restart
    from batchbridge_trl.notes import not_known, not_replayed, not_resumable
    from batchbridge_trl.overrides import said_of_overrides

    if request.mode == "enforce":
        left = _set_fields(trainer, request, patches)
        enforcer = Enforcer(trainer, request, patches, version)
        enforcer.attach()
        Restart(trainer, patches)
        said = said_of_overrides(trainer, request.allow)
        notes = [*said, *not_known(trainer), *not_replayed(trainer), *not_resumable(trainer), *enforcer.notes()]
        return Patched(left_different=left, notes=notes, detach=enforcer.close, probe=enforcer.probe)
    observer = _observer_of(trainer)(trainer, request, patches, version)
    observer.attach()
    return Patched(detach=observer.close)


def _observer_of(trainer: Any) -> Any:
    """The class that observes a trainer."""
    from batchbridge_trl.ms_swift import is_swift
    from batchbridge_trl.observe import TrlObserver

    if not is_swift(trainer):
        return TrlObserver
    from batchbridge_trl.swift_steps import SwiftObserver  # of trainers of ms-swift's alone

    return SwiftObserver


def _prompts(trainer: Any) -> Sequence[Any]:
    """The column that TRL reads prompts from."""
    from batchbridge.kit import PromptColumn
    from batchbridge_trl.ms_swift import is_swift

    return PromptColumn(trainer.train_dataset, "messages" if is_swift(trainer) else "prompt")


def _uses(trainer: Any) -> tuple[str, ...]:
    from batchbridge_trl.ms_swift import uses  # `check` reads the table of refusals without it

    return uses(trainer)


def _gather(trainer: Any, value: Any) -> list[Any]:
    """The values of all ranks, which are wrapped together. Collective."""
    from accelerate.utils import gather_object

    return list(gather_object([value])) if trainer.accelerator.num_processes > 1 else [value]


RUNTIME = Runtime(
    framework="trl",
    version=lambda trainer: installed_version("trl"),
    code=CODE,
    parts=lambda trainer: (trainer, trainer.accelerator),
    uses=_uses,
    refusals=REFUSALS,
    always=[*(fork.name for fork in FORKS), "unsloth_settings"],
    training=lambda trainer: is_inside(
        trainer, "train", "_inner_training_loop", of=("trl", "transformers", "accelerate")
    ),
    gather=_gather,
    prompts=_prompts,
    patch=_patch,
    would_use=would_use,
    assumes=assumed,
)


class _CopyRuntime(Runtime):
    """The running trainers that are copies of TRL's."""

    def check(self, trainer: Any, request: Request) -> Request:
        """The request; its evidence is never "proven", since the copy's own loss is measured."""
        request = super().check(trainer, request)
        assert request.evidence is not None, "they have code"
        own = tuple(f"{type(trainer).__qualname__}.{name}" for name in ("compute_loss", *producers(trainer)))
        found = replace(request.evidence, grade="measured", loss=(*request.evidence.loss, *own))
        return replace(request, evidence=found)


def _patch_copy(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    from batchbridge_trl.copied_steps import CopyObserver

    observer = CopyObserver(trainer, request, patches, version)
    observer.attach()
    return Patched(detach=observer.close)


COPIES = _CopyRuntime(
    framework="trl",
    version=RUNTIME.version,
    code=OF_COPIES,
    parts=RUNTIME.parts,
    uses=RUNTIME.uses,
    refusals=[RefusalRow(COPY.name, COPY.reason, lambda request: False, lambda trainer, request: True)],
    training=RUNTIME.training,
    gather=RUNTIME.gather,
    prompts=RUNTIME.prompts,
    patch=_patch_copy,
)
"""Copies that are observed, and verified: enforcing one is refused."""


def _set_fields(trainer: Any, request: Request, patches: Patches) -> dict[str, str]:
    """Sets what the trainer can take of the requested spec; returns what stays different, by canonical field."""
    for path, want in changed_fields(request).items():
        if path in ALL_SETTABLE:
            attribute, convert = ALL_SETTABLE[path]
            if releases.lacks(attribute):
                continue  # `missing_setting` has seen that the release does what is asked for anyway
            target, value = trainer.args if path in SETTABLE_ARGS else trainer, convert(want, request.spec)
            what = f"{value}, natively {getattr(target, attribute)}"
            patches.set(target, attribute, value, what=what, why=f"{path} of the requested spec")
    planned = [path for path in PLANNED if path != "advantage." or "advantages" not in request.allow]
    return left_different(request, (*ALL_SETTABLE, *planned))

"""The notes of a wrapped trainer's report: what another run of the same plan, or one that goes on, cannot do."""

from __future__ import annotations

import dataclasses
from typing import Any

from batchbridge_trl import releases, settings
from batchbridge_trl.finished import reference_is_cut, reference_moves


def not_replayed(trainer: Any) -> list[str]:
    """Notes on where another run of the same plan may draw other completions, in words."""
    notes = []
    if trainer.use_vllm and trainer.vllm_mode == "server":
        notes.append(
            "vLLM's server draws a whole rollout by one seed: what is trained is the plan's, but a completion does not "
            "have a seed of its own, so that another split of the same rollout draws other completions"
        )
    if any(bool(releases.value(trainer, name)) for name in ("tools", "environments")):
        notes.append(
            "tools and environments answer by themselves, and turns after the first are drawn for some rows only: what "
            "is trained is the plan's, but another run may draw other completions"
        )
    if releases.value(trainer, "aux_loss_enabled"):
        notes.append(
            "the router's loss is the mean over micro-batches, each of its own tokens (filler rows included), as "
            "natively: its part of the gradient depends on how a step is split"
        )
    return notes


def not_resumable(trainer: Any) -> list[str]:
    """Notes on a run whose checkpoints nothing can go on from exactly, in words."""
    told = "; no run can go on exactly from a checkpoint"
    if trainer.args.save_strategy == "no":
        return []
    if trainer.args.save_only_model:
        return [f"save_only_model = True saves neither optimizer nor schedule nor random states{told}"]
    if reference_moves(trainer) and reference_is_cut(trainer):
        return [f"sync_ref_model = True moves the reference model, whose shards are not saved{told}"]
    return []


def not_known(trainer: Any) -> list[str]:
    """Notes on settings of a TRL or transformers newer than the tables, which this run sets, in words. Those of a
    user's own class are the user's."""
    rows = {row.key for group in settings.TRL_GROUPS for row in group.settings}
    theirs = {
        name
        for cls in type(trainer.args).__mro__
        if cls.__module__.partition(".")[0] in ("trl", "transformers")
        for name in vars(cls).get("__annotations__", {})
    }
    found = [
        one.name
        for one in dataclasses.fields(trainer.args)
        if one.init and one.name in theirs - rows and getattr(trainer.args, one.name) != _default(one)
    ]
    if not found:
        return []
    return [
        f"{', '.join(found)}: set in this run, and in no release of trl that is known here; what that does to the rows "
        "and the loss is measured, and nothing else of it is followed"
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()

"""Checkpoints of a trainer that follows a plan: the completions of rollouts that are still trained on, by rank.

Each rank saves the rows that it holds in a file of its own; then one process writes the place in the plan
(`batchbridge.kit.checkpoints`), and TRL its checkpoint. All that a step still needs is in at least one rank's file, so
that another number of ranks, or another split, can share it out anew. Source: transformers 5.23.0 Trainer.train,
_save_checkpoint, _load_from_checkpoint, _load_optimizer_and_scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from batchbridge import CannotAttach, Plan
from batchbridge.kit import Request, checkpoints
from batchbridge.kit.checkpoints import STATE_FILE, ResumePoint
from batchbridge_trl import sharded_files, whole
from batchbridge_trl.finished import (
    NATIVE_STATE,
    REFERENCE,
    first_version,
    is_ours,
    lack_of,
    read_rows,
    reference_is_cut,
    reference_moves,
    refusal_of,
    rows_file,
)
from batchbridge_trl.loss_terms import LossTerms
from batchbridge_trl.rows import TrlRolloutRows
from batchbridge_trl.shares import StepShares


class Checkpoints:
    """Saves and loads the rows of `rollouts`, and the state of `shares` and `terms`, which belong to the enforcer of
    `trainer`."""

    def __init__(
        self,
        trainer: Any,
        request: Request,
        plan: Plan,
        rollouts: dict[int, TrlRolloutRows],
        shares: StepShares,
        terms: LossTerms,
    ) -> None:
        self._trainer, self._request, self._plan, self._rollouts = trainer, request, plan, rollouts
        self._shares, self._terms = shares, terms
        self._accelerator = trainer.accelerator
        self._found: tuple[Path, ResumePoint, dict[int, list[Mapping[str, Any]]], bool] | None = None

    def save(self, folder: Path) -> None:
        """The plan's part of a checkpoint, put into the folder that TRL writes next. Collective: what is complete for
        TRL is complete for us, whenever any rank is killed."""
        step, ranks = self._trainer.state.global_step, self._accelerator.num_processes
        if self._trainer.args.should_save:  # an earlier start may have left a checkpoint of this name
            for mark in (STATE_FILE, NATIVE_STATE):
                (folder / mark).unlink(missing_ok=True)
        self._accelerator.wait_for_everyone()
        target = rows_file(folder, self._accelerator.process_index)
        live = self._plan.seek(step).live_rollouts
        rows = {"world_size": ranks, "rollouts": [self._rollouts[index].state() for index in live]}
        rows |= {"terms": self._terms.state(), "shares": self._shares.state()}
        _save(rows, target)
        if self._trainer.args.should_save and reference_moves(self._trainer) and not reference_is_cut(self._trainer):
            _save(self._reference().state_dict(), folder / REFERENCE)
        self._accelerator.wait_for_everyone()
        if self._trainer.args.should_save:
            more = {"prompts": self._request.prompts, **whole.names_of(self._trainer)}
            checkpoints.write(folder, checkpoints.state(self._plan, step, ranks=ranks, **more))

    def _reference(self) -> Any:
        return self._accelerator.unwrap_model(self._trainer.ref_model)

    def check(self, folder: Path) -> None:
        """The check (`CannotAttach`) that the checkpoint in `folder` is whole and continues the plan."""
        ranks, rank = self._accelerator.num_processes, self._accelerator.process_index
        each_node = self._trainer.args.save_on_each_node
        own = rank if each_node else None
        if is_ours(folder) and (lack := lack_of(folder, self._trainer, own)) is not None:
            raise CannotAttach({"resume": refusal_of(folder, lack, self._trainer, own)})
        if (reason := sharded_files.loads_otherwise(self._trainer)) is not None:
            raise CannotAttach({"resume": reason})
        saved = checkpoints.read(folder) or first_version(folder)
        wrote = 0 if saved is None else saved["ranks"]
        stored = self._stored(folder, [rank] if rank < wrote else range(min(wrote, 1)))
        resumed = checkpoints.resume(
            saved,
            self._plan,
            where=str(folder),
            ranks=ranks,
            other_ranks=ON_EACH_NODE if each_node else sharded_files.other_shards(self._trainer),
            request=self._request,
            held=stored,
        )
        cut_anew = any(path.startswith(("micro_batch.", "horizon.")) for path in resumed.changed)
        # Before shares were saved, too, a step was cut by tokens otherwise than now.
        everyone = wrote != ranks or cut_anew
        everyone = everyone or not self._shares.cut_alike(read_rows(rows_file(folder, rank)).get("shares"))
        if everyone:
            if each_node and wrote > 1:
                raise CannotAttach({"resume": f"{folder}: {ON_EACH_NODE}"})
            stored = self._stored(folder, range(wrote))
            self._check_rows(folder, resumed, stored)
        self._found = folder, resumed, stored, everyone

    def load_weights(self, folder: Path) -> None:
        """Loads the weights once more where the checkpoint has them under names that the model does not use.

        transformers 5 saves several models (those that read images, mixtures of experts) under the names of an earlier
        layout, and puts them back in from_pretrained alone: on resume it goes on with the weights of a new model, and
        only warns. Source: transformers 5.23.0 core_model_loading.py, Trainer._load_from_checkpoint.
        """
        model, names = self._trainer.model, set(_names(folder))
        own = {name for name, _ in model.named_parameters()}
        if names and not own <= names and type(model).__module__.startswith("transformers."):
            model.load_state_dict(type(model).from_pretrained(folder, dtype=model.dtype).state_dict())

    def load(self, folder: Path) -> bool:
        """Puts the rollouts that are still trained on into `rollouts`. Whether the rows of all ranks are among them:
        so it is where steps are split otherwise than before."""
        if self._found is None or self._found[0] != folder:
            self.check(folder)
        assert self._found is not None, "check finds it, or raises"
        folder, resumed, stored, everyone = self._found
        own = read_rows(rows_file(folder, 0 if everyone else self._accelerator.process_index))
        self._terms.load(own.get("terms", {}))
        if reference_moves(self._trainer):
            self._reference().load_state_dict(read_rows(folder / REFERENCE))
        if not everyone:
            self._shares.load(own["shares"])
        self._found = None
        ranks, device = self._accelerator.num_processes, self._accelerator.device
        for index in sorted(stored.keys() & set(resumed.position.live_rollouts)):  # in the same order on every rank
            self._rollouts[index] = TrlRolloutRows.from_states(stored[index], device, ranks, everyone=everyone)
        notes = list(resumed.notes)
        if resumed.ranks != self._accelerator.num_processes:
            notes.append(
                "the checkpoint's random states are those of another number of ranks: dropout and TRL's own sampling "
                "go on from other ones"
            )
        checkpoints.tell(self._trainer, notes, aloud=self._accelerator.is_main_process)
        return everyone

    def _stored(self, folder: Path, ranks: Iterable[int]) -> dict[int, list[Mapping[str, Any]]]:
        """Rollout -> what these ranks stored of it."""
        found: dict[int, list[Mapping[str, Any]]] = {}
        for rank in ranks:
            for rows in read_rows(rows_file(folder, rank))["rollouts"]:
                found.setdefault(rows["index"], []).append(rows)
        return found

    def _check_rows(self, folder: Path, resumed: ResumePoint, stored: Mapping[int, list[Mapping[str, Any]]]) -> None:
        """Refusal (`CannotAttach`) of a checkpoint where a completion that will be trained on is in nobody's file."""
        for rollout in resumed.position.live_rollouts:
            held = {position for rows in stored.get(rollout, ()) for position in rows["slots"]}
            for step in self._plan.steps_using(rollout, resumed.position.optimizer_steps):
                if step.index >= self._plan.total_optimizer_steps:
                    break
                for member, position in zip(step.members, step.positions, strict=True):
                    if member.rollout == rollout and position not in held:
                        reason = (
                            f"{folder} does not hold the completion (prompt {member.prompt}, sample {member.sample}) "
                            f"of rollout {rollout}, which optimizer step {step.index} trains on: resume from a "
                            "checkpoint before that rollout"
                        )
                        raise CannotAttach({"resume": reason})


ON_EACH_NODE = (
    "with save_on_each_node a node holds the rows of its own ranks alone, and another number of ranks or another split "
    "needs those of all: copy every node's batchbridge/rank-*.pt into one folder and leave save_on_each_node out"
)


def _save(content: Any, file: Path) -> None:
    """Writes a file of torch's, whole or not at all, whenever the run is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file.with_suffix(".partial"))
    file.with_suffix(".partial").replace(file)


def _names(folder: Path) -> Iterable[str]:
    """The names of the weights in a checkpoint; nothing where they are not in a file of safetensors."""
    if (index := folder / "model.safetensors.index.json").is_file():
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    if (file := folder / "model.safetensors").is_file():
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            return list(weights.keys())
    return ()

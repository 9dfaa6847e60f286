"""Checkpoints of a trainer that follows a plan: the completions of rollouts that are still trained on, by rank.

Each rank saves the rows that it holds in a file of its own; then one process writes the place in the plan
(`batchbridge.kit.checkpoints`), and TRL its checkpoint. All that a step still needs is in at least one rank's file, so
that another number of ranks, or another split, can share it out anew. Source: transformers 5.23.0 Trainer.train,
_save_checkpoint, _load_from_checkpoint, _load_optimizer_and_scheduler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from batchbridge import CannotAttach, Plan
from batchbridge.kit import Request, checkpoints
from batchbridge.kit.checkpoints import STATE_FILE, ResumePoint
from batchbridge_trl.loss_terms import LossTerms
from batchbridge_trl.rows import TrlRolloutRows
from batchbridge_trl.shares import StepShares

FOLDER = "batchbridge"
_NATIVE_STATE = "trainer_state.json"
"""The file that TRL writes last: without it, a checkpoint was killed while it was being written."""


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
            for mark in (STATE_FILE, _NATIVE_STATE):
                (folder / mark).unlink(missing_ok=True)
        self._accelerator.wait_for_everyone()
        target = _rows_file(folder, self._accelerator.process_index)
        target.parent.mkdir(parents=True, exist_ok=True)
        live = self._plan.seek(step).live_rollouts
        rows = {"world_size": ranks, "rollouts": [self._rollouts[index].state() for index in live]}
        rows |= {"terms": self._terms.state(), "shares": self._shares.state()}
        torch.save(rows, target.with_suffix(".partial"))
        target.with_suffix(".partial").replace(target)
        self._accelerator.wait_for_everyone()
        if self._trainer.args.should_save:
            checkpoints.write(folder, checkpoints.state(self._plan, step, ranks=ranks))

    def check(self, folder: Path) -> None:
        """The check (`CannotAttach`) that the checkpoint in `folder` is whole and continues the plan."""
        ranks, rank = self._accelerator.num_processes, self._accelerator.process_index
        each_node = self._trainer.args.save_on_each_node
        if _is_ours(folder) and (missing := missing_from(folder, rank if each_node else None)):
            raise CannotAttach({"resume": _unfinished(folder, missing, rank if each_node else None)})
        saved = checkpoints.read(folder) or _first_version(folder)
        wrote = 0 if saved is None else saved["ranks"]
        stored = self._stored(folder, [rank] if rank < wrote else range(min(wrote, 1)))
        resumed = checkpoints.resume(
            saved,
            self._plan,
            where=str(folder),
            ranks=ranks,
            other_ranks=ON_EACH_NODE if each_node else SHARDED if self._trainer.is_fsdp_enabled else None,
            held=stored,
            reading=self._request.reading,
        )
        cut_anew = any(path.startswith(("micro_batch.", "horizon.")) for path in resumed.changed)
        # Before shares were saved, too, a step was cut by tokens otherwise than now.
        everyone = wrote != ranks or cut_anew
        everyone = everyone or not self._shares.cut_alike(_read_rows(_rows_file(folder, rank)).get("shares"))
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
        own = _read_rows(_rows_file(folder, 0 if everyone else self._accelerator.process_index))
        self._terms.load(own.get("terms", {}))
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
            for rows in _read_rows(_rows_file(folder, rank))["rollouts"]:
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


SHARDED = "whether FSDP's files come back in other shards is not proven; the weights alone go on in a new run"


def missing_from(folder: Path, rank: int | None = None) -> str | None:
    """The part that a checkpoint of a wrapped run lacks, because the run was killed while it was being written; None
    where it is whole. rank: looks for this rank's files only, where each node has its own."""
    saved, files = checkpoints.read(folder), sorted((folder / FOLDER).glob("rank-*.pt"))
    whole = saved if saved is not None else _first_version(folder)
    ranks = saved["ranks"] if saved else _read_rows(files[0])["world_size"] if files else 0
    shared_out = any(folder.glob("rng_state_*.pth"))
    for each in range(ranks):
        if rank not in (None, each):
            continue
        if not _rows_file(folder, each).is_file():
            return f"rank {each}'s file {FOLDER}/{_rows_file(folder, each).name} is missing"
        if shared_out and not (folder / f"rng_state_{each}.pth").is_file():
            return f"rank {each}'s file rng_state_{each}.pth is missing"
    if whole is None:
        return f"{STATE_FILE} is missing"
    return None if (folder / _NATIVE_STATE).is_file() else f"{_NATIVE_STATE} is missing"


def _names(folder: Path) -> Iterable[str]:
    """The names of the weights in a checkpoint; nothing where they are not in a file of safetensors."""
    if (index := folder / "model.safetensors.index.json").is_file():
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    if (file := folder / "model.safetensors").is_file():
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            return list(weights.keys())
    return ()


def _is_ours(folder: Path) -> bool:
    return (folder / FOLDER).is_dir() or (folder / STATE_FILE).is_file()


def _unfinished(folder: Path, missing: str, rank: int | None) -> str:
    beside = (other for other in folder.parent.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", other.name))
    newest = sorted(beside, key=lambda other: int(other.name.partition("-")[2]), reverse=True)
    whole = next((other for other in newest if _is_ours(other) and missing_from(other, rank) is None), None)
    remedy = "no whole one lies beside it: start the run anew" if whole is None else f"resume from {whole}"
    return f"{folder}: {missing}: the checkpoint was not finished when the run was killed; {remedy}"


def _first_version(folder: Path) -> dict[str, Any] | None:
    """The place in the plan as the first versions saved it: with every rank's rows."""
    files = sorted((folder / FOLDER).glob("rank-*.pt"))
    rows = _read_rows(files[0]) if files else {}
    return {"plan": rows["plan"], "ranks": rows["world_size"]} if "plan" in rows else None


def _read_rows(file: Path) -> dict[str, Any]:
    rows: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return rows


def _rows_file(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank-{rank:05d}.pt"

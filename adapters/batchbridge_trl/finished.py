"""Whether a checkpoint is finished and whole, and from which one a run that was killed goes on.

A run may be killed at any moment, also while it saves. What then lies there is not finished: it is skipped, with a
line, so that the same command goes on from the newest checkpoint that is, or from the beginning where none is. A
checkpoint that was finished and has lost a file since is refused by name: nothing is left out in silence. Source:
transformers 5.24.0 Trainer._save_checkpoint (trainer_state.json is written last), trl 1.16.0
GRPOTrainer._save_checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object

from batchbridge import CannotAttach
from batchbridge.kit import checkpoints
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.kit.patches import Patches

FOLDER = "batchbridge"
REFERENCE = f"{FOLDER}/reference.pt"
"""The weights of a reference model that follows the policy (sync_ref_model)."""
NATIVE_STATE = "trainer_state.json"
"""The file that TRL writes last: without it, a checkpoint was killed while it was being written."""
_ENTROPY = "entropy_ctrl_state.json"
"""The state of an adaptive entropy bonus, which TRL writes after everything else."""
_WEIGHTS = ("*model*.safetensors", "*model*.bin", "*/adapter_model*", "pytorch_model_fsdp*", "global_step*")


class Lack(NamedTuple):
    """The part that a checkpoint lacks. killed: the run was killed while it was written; otherwise it was finished, and
    has lost the part since, or never had it."""

    what: str
    killed: bool


def rows_file(folder: Path, rank: int) -> Path:
    """The file of a rank's rows in a checkpoint."""
    return folder / FOLDER / f"rank-{rank:05d}.pt"


def read_rows(file: Path) -> dict[str, Any]:
    """The content of a rank's file of rows. Raises `CannotAttach` where it cannot be read."""
    try:
        rows: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise CannotAttach({"resume": f"{file} is missing: resume from another checkpoint"}) from None
    except Exception as error:  # torch's own are of many kinds
        why = f"{type(error).__name__}: {error!s:.200}"
        raise CannotAttach({"resume": f"{file} cannot be read ({why}): resume from another checkpoint"}) from error
    return rows


def first_version(folder: Path) -> dict[str, Any] | None:
    """The place in the plan as the first versions saved it: with every rank's rows."""
    files = sorted((folder / FOLDER).glob("rank-*.pt"))
    rows = read_rows(files[0]) if files else {}
    return {"plan": rows["plan"], "ranks": rows["world_size"]} if "plan" in rows else None


def reference_moves(trainer: Any) -> bool:
    """Whether the reference model follows the policy, so that a run cannot go on without its weights."""
    return any(type(callback).__name__ == "SyncRefModelCallback" for callback in trainer.callback_handler.callbacks)


def reference_is_cut(trainer: Any) -> bool:
    """Whether no rank has the whole reference model, so that it is not saved."""
    return bool(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)


def is_ours(folder: Path) -> bool:
    """Whether a wrapped run has written to this checkpoint."""
    return (folder / FOLDER).is_dir() or (folder / STATE_FILE).is_file()


def lack_of(folder: Path, trainer: Any, rank: int | None = None) -> Lack | None:
    """The part that a checkpoint lacks for `trainer` to go on from it exactly; None where it is whole, and where no
    wrapped run wrote it. rank: looks for this rank's files only, where each node has its own."""
    if not is_ours(folder):
        return None if (folder / NATIVE_STATE).is_file() else _missing(NATIVE_STATE, killed=True)
    try:
        return next(_lacks(folder, trainer, rank), None)
    except CannotAttach as error:  # what stands in its place whole or not at all
        return Lack("; ".join(error.reasons.values()), killed=False)


def _lacks(folder: Path, trainer: Any, rank: int | None) -> Iterator[Lack]:
    saved = checkpoints.read(folder)
    if saved is None:
        with contextlib.suppress(CannotAttach):
            saved = first_version(folder)
    if saved is None:
        yield _missing(STATE_FILE, killed=True)
        return
    if not (folder / NATIVE_STATE).is_file():
        yield _missing(NATIVE_STATE, killed=True)
    ranks = range(saved["ranks"]) if rank is None else [rank] if rank < saved["ranks"] else []
    for each in ranks:  # they were all there before `STATE_FILE` was written
        if not rows_file(folder, each).is_file():
            yield _missing(f"rank {each}'s file {FOLDER}/{rows_file(folder, each).name}", killed=False)
    of_one = saved["ranks"] == 1 or (folder / "rng_state.pth").is_file()
    for each in ranks:  # rank 0 does not wait for these before it writes what comes last
        name = "rng_state.pth" if of_one else f"rng_state_{each}.pth"
        if not (folder / name).is_file():
            yield _missing(f"rank {each}'s file {name}", killed=each > 0)
    engine = any(folder.glob("global_step*"))  # DeepSpeed's own folder has the optimizer, and may have the schedule
    if not engine and not any(folder.glob("optimizer*")):
        yield _missing("optimizer.pt", killed=False)
    if not engine and not (folder / "scheduler.pt").is_file():
        yield _missing("scheduler.pt", killed=False)
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        yield _missing("model.safetensors", killed=False)
    for index in folder.glob("*.index.json"):
        for name in sorted(set(_json(index)["weight_map"].values())):
            if not (folder / name).is_file():
                yield _missing(name, killed=False)
    if getattr(trainer, "use_adaptive_entropy", False) and not (folder / _ENTROPY).is_file():
        yield _missing(_ENTROPY, killed=True)
    if reference_moves(trainer) and not (folder / REFERENCE).is_file():
        yield _missing(f"{REFERENCE} (the reference model, which sync_ref_model moves)", killed=False)
    if (cut := checkpoints.cut_off(folder)) is not None:
        yield Lack(f"{cut.relative_to(folder)} is cut off", killed=True)


def _missing(name: str, *, killed: bool) -> Lack:
    return Lack(f"{name} is missing", killed)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotAttach({"resume": f"{file.name} cannot be read: {error}"}) from None


def numbered(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder, the newest first."""
    beside = (each for each in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", each.name))
    found = (each for each in beside if each.is_dir())
    return sorted(found, key=lambda each: int(each.name.partition("-")[2]), reverse=True)


def newest_whole(folder: Path, trainer: Any, rank: int | None = None) -> Path | None:
    """The newest checkpoint in a run's folder that is finished and whole, of whichever run."""
    return next((each for each in numbered(folder) if lack_of(each, trainer, rank) is None), None)


def refusal_of(folder: Path, lack: Lack, trainer: Any, rank: int | None) -> str:
    """The reason why a run cannot go on from a checkpoint that lacks something, and what to do."""
    if not lack.killed and trainer.args.save_only_model:
        return (
            f"{folder}: {lack.what}: save_only_model = True saves no optimizer, schedule and random states, so that no "
            "run can go on from it exactly; set save_only_model = False, and start a new run from its weights"
        )
    whole = newest_whole(folder.parent, trainer, rank)
    remedy = "no whole one lies beside it: start the run anew" if whole is None else f"resume from {whole}"
    why = (
        "the checkpoint was not finished when the run was killed"
        if lack.killed
        else "the checkpoint was finished, and has lost this since, or never had it"
    )
    return f"{folder}: {lack.what}: {why}; {remedy}"


class Restart:
    """`train()` of a trainer: where it is asked to go on from the newest checkpoint, and this one is not finished, it
    goes on from the newest that is."""

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        what, why = "unfinished checkpoints are skipped", "a killed run goes on by the same command"
        self._native = patches.set(trainer, "train", self._train, what=what, why=why)

    def _train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        if resume_from_checkpoint:
            resume_from_checkpoint = self._chosen(resume_from_checkpoint)
        return self._native(resume_from_checkpoint, *arguments, **options)

    def _chosen(self, asked: Any) -> Any:
        """The checkpoint to go on from in place of the one that is asked for; None: the run starts anew. Collective."""
        trainer = self._trainer
        each_node, main = trainer.args.save_on_each_node, trainer.accelerator.is_main_process
        beside = numbered(Path(trainer.args.output_dir))
        is_newest = bool(beside) and (asked is True or Path(asked).resolve() == beside[0].resolve())
        looks = [self._look(beside, each_node=each_node)] if is_newest and (each_node or main) else []
        # Where ranks share a folder, one of them looks: what others see may be older.
        ranks = list(gather_object(looks)) if trainer.accelerator.num_processes > 1 else looks
        skipped, chosen = [], None
        for name in ranks[0] if ranks else ():
            killed = [lack.what for lacks in ranks if (lack := lacks.get(name)) is not None and lack.killed]
            if not killed:
                chosen = str(Path(trainer.args.output_dir) / name)
                break
            skipped.append(f"{name} is skipped, which was not finished when the run was killed: {killed[0]}")
        if not skipped:
            return asked
        on = (
            "no other checkpoint lies beside it: the run starts anew" if chosen is None else f"it goes on from {chosen}"
        )
        checkpoints.tell(trainer, [*skipped, on], aloud=main)
        return chosen

    def _look(self, beside: list[Path], *, each_node: bool) -> Mapping[str, Lack | None]:
        """The lack of each checkpoint that this rank sees, by its name, the newest first."""
        rank = self._trainer.accelerator.process_index if each_node else None
        found: dict[str, Lack | None] = {}
        for folder in beside:
            found[folder.name] = lack = lack_of(folder, self._trainer, rank)
            if not each_node and (lack is None or not lack.killed):
                break
        return found

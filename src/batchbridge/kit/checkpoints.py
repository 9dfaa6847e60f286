"""A run's place in its plan, saved with the framework's checkpoint, and compared by meaning when a run resumes.

One format for every framework: plain JSON types, in a file of their own (`STATE_FILE`) or inside what the framework
saves. A checkpoint holds the whole spec. What decides which completions are trained in which optimizer step, what they
weigh and when the learning rate moves must agree; what is a matter of speed or carried along may change, with a note.
Standard library only; what an adapter saves beside it (TRL's rows) is the adapter's own.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotAttach, PlanError
from batchbridge.kit.allowing import OTHER_PROMPTS
from batchbridge.meaning.plan import Plan, Position
from batchbridge.meaning.spec import Spec

if TYPE_CHECKING:
    from batchbridge.kit.workers import Orders

SCHEMA = "batchbridge/checkpoint/1"
STATE_FILE = "batchbridge.json"
"""The name of our file in a checkpoint's folder, where the framework saves no state of ours inside its own files."""
DECISIVE = ("rollout", "optimizer_step", "loss", "advantage", "order", "staleness", "objective", "critic", "open_terms")
"""Groups of the spec that decide what an optimizer step trains on, what it weighs and how often it happens; with them
`horizon.lr_tick` and the number of prompts."""
_LENGTHS = ("horizon.rollouts", "horizon.epochs", "horizon.optimizer_steps")
_SAVED_BY_OPTIMIZERS = tuple(
    f"carried.{name}" for name in ("learning_rate", "beta1", "beta2", "optimizer_epsilon", "weight_decay")
)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The place where a resumed run goes on.

    ranks: data-parallel ranks that wrote the checkpoint. changed: canonical fields that differ and may. saved: the
    state as it was saved, with what the adapter added. notes: what to tell the user; see `tell`.
    """

    position: Position
    ranks: int
    changed: tuple[str, ...]
    saved: Mapping[str, Any]
    notes: tuple[str, ...]


def steps_before(plan: Plan, rollout: int) -> int:
    """Optimizer steps of the run before the first that trains on `rollout`; for checkpoints after whole rollouts."""
    return min(plan.rollout(rollout).generated_at_step, plan.total_optimizer_steps)


def state(plan: Plan, optimizer_steps: int, *, ranks: int, **more: Any) -> dict[str, Any]:
    """The state that a checkpoint after `optimizer_steps` steps holds: plain JSON types. ranks: data-parallel ranks.
    more: what the adapter needs besides."""
    return {
        "schema": SCHEMA,
        "spec": plan.asked.to_dict(),
        "dataset_size": plan.dataset_size,
        "optimizer_steps": optimizer_steps,
        "ranks": ranks,
        **more,
    }


def write(folder: Path, saved: Mapping[str, Any]) -> None:
    """Writes `STATE_FILE`, whole or not at all, whenever the run is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{STATE_FILE}.partial"
    partial.write_text(json.dumps(saved), encoding="utf-8")
    partial.replace(folder / STATE_FILE)


def read(folder: Path) -> dict[str, Any] | None:
    """The state that `write` wrote; None where there is no such file. Raises `CannotAttach` for one that cannot be
    read, or holds something else."""
    try:
        saved = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _refusal(f"{folder / STATE_FILE} cannot be read: {error}") from None
    if not isinstance(saved, dict) or not {"schema", "plan"} & saved.keys():
        raise _refusal(f"{folder / STATE_FILE} is damaged: it holds no state of a run; resume from another checkpoint")
    return saved


def check_files(folder: Path) -> None:
    """Refusal (`CannotAttach`) of a checkpoint in which a file of the framework's own is cut off: torch's error names
    none.

    torch.save writes a ZIP archive, whose directory stands at its end. A file that is missing is named by whoever looks
    for it.
    """
    cut = cut_off(folder)
    if cut is None:
        return
    whole = [path.parent for path in folder.parent.glob(f"*/{STATE_FILE}") if cut_off(path.parent) is None]
    newest = max(whole, key=lambda path: (path / STATE_FILE).stat().st_mtime, default=None)
    remedy = "; no other checkpoint beside it is whole" if newest is None else f"; the newest whole one is {newest}"
    raise _refusal(f"{cut} is cut off: the checkpoint was not finished when the run was killed{remedy}")


def cut_off(folder: Path) -> Path | None:
    """The first file of a checkpoint that is cut off, of torch's and of safetensors' form; None: no file is."""
    import zipfile  # a check of a configuration, which looks at no checkpoint, imports this module, too

    for file in sorted(folder.rglob("*")):
        if file.suffix == ".safetensors" and file.is_file():
            if _reaches(file) > file.stat().st_size:
                return file
        elif file.suffix in (".pt", ".pth") and file.is_file():
            with file.open("rb") as start:
                archive = start.read(2) == b"PK"
            if not file.stat().st_size or (archive and not zipfile.is_zipfile(file)):
                return file
    return None


def _reaches(file: Path) -> int:
    """The bytes that a file of safetensors has by its own header: 8 bytes of the header's length, a JSON of the places
    of its tensors, and the tensors."""
    with file.open("rb") as start:
        length = int.from_bytes(start.read(8), "little")
        size = file.stat().st_size
        if not 2 <= length <= size - 8:
            return 8 + max(length, 2)
        try:
            header = json.loads(start.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return 0  # of another form, of which nothing is known
    return 8 + length + max(ends, default=0)


def resume(
    saved: Mapping[str, Any] | None,
    plan: Plan,
    *,
    where: str,
    ranks: int,
    other_ranks: str | None,
    request: Request | Orders | None = None,
    held: Collection[int] = (),
) -> ResumePoint:
    """The place where `plan` goes on after a checkpoint. Raises `CannotAttach` unless the checkpoint continues it.

    saved: a `state`, or the digest of one that the first versions saved; None or anything else: not ours. where: names
    the checkpoint. other_ranks: why the framework cannot load it on another number of ranks, and what to do; None: it
    can. request: of the run that goes on: its prompts, what it allows, and, unless a worker has orders in its place,
    the user's own names of settings. held: generated rollouts whose completions were saved.
    """
    if not saved or not {"schema", "plan"} & saved.keys():
        raise _refusal(
            f"{where} was written without batchbridge: its place in the plan is unknown; go on without batchbridge, "
            "or start a new run from the weights in it"
        )
    try:
        wrote, place = int(saved["ranks"]), saved if "schema" in saved else saved["plan"]
        steps, prompts = int(place["optimizer_steps"]), int(place["dataset_size"])
        if saved.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"schema {saved['schema']!r}, and this batchbridge reads {SCHEMA!r}")
        before = Spec.from_dict(saved["spec"]) if "schema" in saved else None
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(f"{where}: its saved state cannot be read: {error!s:.300}") from None
    reading = request.reading if isinstance(request, Request) else None
    if wrote != ranks and other_ranks is not None:
        raise _refusal(ranks_differ(where, wrote, ranks, other_ranks))
    if before is None:
        _check_digest(where, place, plan)
        before = plan.asked
    old, new = before.values, plan.asked.values
    changed = {path: (old.get(path), new.get(path)) for path in {**old, **new} if old.get(path) != new.get(path)}
    wrong = [path for path in changed if _decides(path, before, plan.asked)]
    if wrong or prompts != plan.dataset_size:
        raise CannotAttach(
            {"resume": f"{where} belongs to another run; set these back, or start a new run in another folder"}
            | {path: _both(path, changed[path], plan.asked, reading) for path in wrong}
            | ({} if prompts == plan.dataset_size else {"dataset_size": _text("prompts", (prompts, plan.dataset_size))})
        )
    if any(path in changed for path in _LENGTHS):
        _check_length(where, before, plan, steps)
    position = plan.seek(steps)
    missing = set(position.live_rollouts).difference(held) if steps < plan.total_optimizer_steps else ()
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise _refusal(
            f"{where} lies inside rollout {names}, whose completions it does not hold: it was the last of a shorter "
            "run; resume from a checkpoint before that rollout"
        )
    notes = (*_notes(where, changed, plan.asked, reading), *_of_prompts(where, saved.get("prompts"), request))
    return ResumePoint(position=position, ranks=wrote, changed=tuple(changed), saved=saved, notes=notes)


def ranks_differ(where: str, wrote: int, ranks: int, why: str) -> str:
    """The reason why a checkpoint of another number of ranks cannot be resumed from, and what to do."""
    return f"{where} was written by {wrote} ranks, this run has {ranks}: start as many; {why}"


def tell(trainer: object, notes: Sequence[str], *, aloud: bool = True) -> None:
    """Hands the notes of a resume to the user: as one warning (`aloud`: on one rank is enough), and as lines of
    `trainer.batchbridge.report()`."""
    attachment = vars(trainer).get("batchbridge")
    if isinstance(attachment, Attachment):
        attachment.notes.extend(notes)
    if notes and aloud:
        warnings.warn(f"batchbridge: {'. '.join(notes)}", UserWarning, stacklevel=2)


def _of_prompts(where: str, saved: Mapping[str, Any] | None, request: Request | Orders | None) -> Iterator[str]:
    """Notes on other prompts than those of the run that wrote the checkpoint. Raises `CannotAttach` unless they are
    allowed."""
    now = None if request is None else request.prompts
    if saved is None or now is None or request is None:
        return
    from batchbridge.meaning.prompt_digest import unlike

    if (change := unlike(saved, now)) is None:
        return
    if OTHER_PROMPTS not in request.allow:
        reason = (
            f"{where} was written with other prompts ({change}): some would be trained twice, others never; load and "
            f'shuffle the data set as before (with a seed), or go on with allow=("{OTHER_PROMPTS}",)'
        )
        raise CannotAttach({OTHER_PROMPTS: reason})
    yield f"resumed from {where} on other prompts ({change}), which allow={OTHER_PROMPTS} accepts"


def digest_of_prompts(prompts: Sequence[Any]) -> Mapping[str, Any] | None:
    """The digest of prompts, plain JSON; see `batchbridge.meaning.prompt_digest`. None of a stream, whose prompts have
    no places."""
    from batchbridge.meaning.prompt_digest import digest_of, has_rows

    return digest_of(prompts) if has_rows(prompts) else None


def with_prompts(
    request: Request, prompts: Sequence[Any] | Mapping[str, Any] | None, gather: Callable[[Any], list[Any]]
) -> Request:
    """The request with the digest of a trainer's prompts, which checkpoints hold. Collective. Raises `CannotAttach`
    where ranks have other prompts; a run that is observed alone goes on. prompts: they, or their digest."""
    from batchbridge.meaning.prompt_digest import other_rank

    digest = prompts if prompts is None or isinstance(prompts, Mapping) else digest_of_prompts(prompts)
    reason = other_rank(gather(digest))
    if reason is not None and request.mode != "observe":
        raise CannotAttach({OTHER_PROMPTS: reason})
    return replace(request, prompts=digest)


def _refusal(reason: str) -> CannotAttach:
    return CannotAttach({"resume": reason})


def _decides(path: str, before: Spec, now: Spec) -> bool:
    group = path.partition(".")[0]
    scopes = {
        term.denominator_scope
        for spec in (before, now)
        for term in (spec.loss.policy, spec.loss.kl, spec.loss.entropy)
        if term is not None
    }
    if scopes & {"micro_batch", "rank"} and group in ("micro_batch", "topology"):
        return True  # what tokens weigh hangs on the split
    if path in ("critic.completions_per_device", "critic.tokens_per_device"):
        return False
    return group in DECISIVE or path == "horizon.lr_tick"


def _check_digest(where: str, place: Mapping[str, Any], plan: Plan) -> None:
    """The check of a checkpoint of the first versions, which has a digest of its settings, not the settings."""
    was, here = place.get("spec"), plan.asked.digest()
    if was != here:
        raise _refusal(
            f"{where} was written by a version of batchbridge that saved a digest of its settings in place of the "
            f"settings, and some setting has changed since (digest {was} then, {here} now): resume with exactly the "
            "settings, batch splits included, that it was written with"
        )


def _check_length(where: str, before: Spec, plan: Plan, steps: int) -> None:
    """The check (`CannotAttach`) that the first `steps` steps of a run that is now longer or shorter are the same."""
    if steps > plan.total_optimizer_steps:
        raise _refusal(
            f"{where} was written after {steps} optimizer steps, and this run ends after {plan.total_optimizer_steps}: "
            "make the run longer, or resume from an earlier checkpoint"
        )
    try:
        same = not steps or type(plan)(before, plan.dataset_size).step(steps - 1) == plan.step(steps - 1)
    except PlanError as error:
        raise _refusal(f"{where}: its own run has no plan: {error.reason}") from None
    if not same:
        raise _refusal(
            f"{where} was written after the last step of its run, which was cut short there and is whole in a run of "
            "another length: resume from an earlier checkpoint"
        )


def _notes(where: str, changed: Mapping[str, Sequence[Any]], now: Spec, reading: Reading | None) -> Iterator[str]:
    if not changed:
        return
    fields = "; ".join(f"{path}: {_both(path, pair, now, reading)}" for path, pair in changed.items())
    yield f"resumed from {where}, and no member or weight of an optimizer step changes by what differs: {fields}"
    if any(path in changed for path in _SAVED_BY_OPTIMIZERS):
        yield (
            "a checkpoint with the optimizer's state brings back its learning rate, betas, epsilon and weight decay; "
            "the ledger records the learning rate that is applied"
        )
    if any(path in changed for path in _LENGTHS) and now.carried.lr_schedule != "constant":
        yield (
            "the learning rate's schedule had the old length until here and has the new one from here on: the "
            "parameters are not those of a run of the new length from its start"
        )


def _both(path: str, values: Sequence[Any], now: Spec, reading: Reading | None) -> str:
    """The two values of a field; with the user's own setting, where this run's value comes from it."""
    text = _text("", values)
    if reading is None or reading.spec is None or path not in reading.provenance:
        return text
    own = reading.spec.values
    origin = reading.provenance[path]
    return f"{text} ({origin.key} = {origin.value})" if origin.key and own.get(path) == values[1] else text


def _text(unit: str, values: Sequence[Any]) -> str:
    was, here = ("open" if value is None else value for value in values)
    return f"{was}{unit and ' '}{unit} in the checkpoint, {here} now"


FSDP_SHARDS = (
    "FSDP's checkpoint is one shard for each rank, in files that are named by the number of ranks "
    "(model_world_size_N_rank_R.pt), and its manager loads those of its own number alone; the weights without the "
    "optimizer go on in a new run, merged by the framework's model merger"
)
"""The reason why a checkpoint of another number of ranks cannot be loaded. Source: verl 0.9.1 and EasyR1 b44b311,
utils/checkpoint/fsdp_checkpoint_manager.py."""

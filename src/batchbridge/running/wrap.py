"""Attaching to a running trainer: `wrap`, `unwrap`, and what an adapter's runtime gets and gives back.

The core decides what the run should mean (`Request.spec`, its plan) and keeps the ledger; the adapter's runtime patches
the trainer. Patches are instance attributes, listed in `Attachment.changes`, undone by `unwrap`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.reading import Mode, Padding, Reading, ReportTo
from batchbridge.errors import CannotAttach, LedgerError, PlanError
from batchbridge.meaning.candidates import keyed
from batchbridge.meaning.findings import Finding, Where
from batchbridge.meaning.spec import MicroBatch, Spec
from batchbridge.running.asked import no_finding, no_loggers, no_packing, open_terms, planned, shared

_Trainer = TypeVar("_Trainer")
_ATTRIBUTE = "batchbridge"


def wrap(
    trainer: _Trainer,
    like: Spec | Reading | str | PathLike[str] | Mapping[str, Any] | None = None,
    mode: Mode = "enforce",
    ledger: str | PathLike[str] | None = None,
    *,
    tokens_per_device: int | Literal["auto"] | None = None,
    allow: Collection[str] = (),
    report_to: ReportTo | None = None,
    padding: Padding = "padded",
) -> _Trainer:
    """A constructed trainer, made to do what its configuration (or `like`) means.

    `trainer.batchbridge` is then the `Attachment`. Wrapping again with the same request does nothing; with another one,
    or after the trainer's own configuration or dataset changed, it replaces the attachment.

    Args:
        trainer: The trainer, as its framework built it.
        like: A `Spec`, a `Reading`, or a configuration that an installed adapter reads (a path or a dict): behave as
            that run would, on this trainer's devices and with its micro-batches; an order of prompts that nothing fixes
            there is keyed by this trainer's seed. By default the trainer's own configuration.
        mode: "enforce" patches the trainer to follow the plan and verifies every step; "verify" changes nothing and
            raises `BatchDrift` at the first step that departs from the configuration, in the framework's own order of
            prompts where nothing else is asked for; "observe" only writes the ledger.
        ledger: A folder for the ledger.
        tokens_per_device: Cuts optimizer steps, and the forward-only passes, into micro-batches of at most so many
            tokens (prompt and response; padding included where the framework pads) instead of the trainer's own
            micro-batches; one completion that is longer runs alone, unless the framework cuts and cannot (its page says
            so). A `Spec` with token budgets of its own asks for them likewise, a configuration that is read does not.
            Only speed and memory change, never the gradient. "auto" finds the budget while the run goes on, by the
            memory that its passes take; refused by name where an adapter does not, or the device has no limit.
        allow: Names of refused terms to accept.
        report_to: "trainer" logs `batchbridge/completions`, `/response_tokens`, `/drift` and, with a token budget,
            `/padding_saved` through the trainer's own loggers (W&B, TensorBoard, trackio, ...), wherever it logs;
            refused by name where an adapter does not reach them. None: nothing is logged.
        padding: "free" lays a micro-batch's completions end to end, each prompt once and its completions behind it, in
            training and in scoring; refused by name where that is not proven. "auto" does so where it is. Only speed
            and memory change, never the gradient. "padded": as the framework pads.

    Returns:
        The same trainer.

    Raises:
        CannotAttach: With every reason; the trainer is then as it was, wrapped if it was, unless a reason `unwrapped`
            says that this could not be. Where several processes train together, each wraps its trainer, with the same
            request: what one of them refuses, all do.
        LedgerError: `ledger` is a file.
        ValueError: `mode` or `padding` is not one of its three, `tokens_per_device` or `padding` does not go with
        `mode`,
            `allow` is one text, or `report_to` is neither "trainer" nor None.
    """
    from batchbridge.contract import plugins

    if mode not in get_args(Mode):
        raise ValueError(f"mode = {mode!r}: must be one of {', '.join(get_args(Mode))}")
    finds = tokens_per_device == "auto"
    if tokens_per_device is not None and (mode != "enforce" or not (finds or _at_least_one(tokens_per_device))):
        raise ValueError(
            f'tokens_per_device = {tokens_per_device!r} with mode = "{mode}": must be "auto" or at least 1, and only '
            '"enforce" cuts steps itself'
        )
    if report_to is not None and report_to not in get_args(ReportTo):
        raise ValueError(f'report_to = {report_to!r}: must be "trainer" or None')
    if padding not in get_args(Padding):
        raise ValueError(f"padding = {padding!r}: must be one of {', '.join(get_args(Padding))}")
    if isinstance(allow, str):
        raise ValueError(f"allow = {allow!r}: a list of names is needed: allow=[{allow!r}]")
    if padding == "free" and mode != "enforce":
        raise ValueError(f'padding = "free" with mode = "{mode}": only "enforce" changes how completions are laid')
    owners = plugins.owners(trainer)
    if not owners:
        known = ", ".join(sorted(plugins.adapters())) or "none"
        what = f"the class {trainer.__qualname__}" if isinstance(trainer, type) else f"a {type(trainer).__qualname__}"
        stranger = {"trainer": f"no installed adapter takes {what}; adapters: {known}; {_BUILT}"}
        said = [adapter.refuses(trainer) for adapter in plugins.adapters().values()]
        reasons = {name: reason for each in said for name, reason in each.items()} or stranger
        raise CannotAttach(reasons | {problem.code: problem.message for problem in plugins.problems()})
    owners = _most_derived(owners, trainer)
    if len(owners) > 1:
        raise CannotAttach({"trainer": f"claimed by the adapters {', '.join(owner.framework for owner in owners)}"})
    if named := owners[0].refuses(trainer):  # before its configuration is read, which may be nothing that we know
        raise CannotAttach(named)
    cut = None
    if isinstance(tokens_per_device, int):
        cut = MicroBatch(tokens_per_device=tokens_per_device, cap="soft")
    owner, folder = owners[0], None if ledger is None else Path(ledger)
    if folder is not None and folder.is_file():
        raise LedgerError("the ledger needs a folder, and this is a file: name another place", folder)
    found = vars(trainer).get(_ATTRIBUTE)
    existing = found if isinstance(found, Attachment) else None
    same = False
    with nullcontext() if existing is None else existing.suspended():
        with shared(lambda reasons: owner.gather(trainer, reasons)):
            request = _request(trainer, owner, like, mode, folder, frozenset(allow), cut, finds)
            packs = owner.packs and mode == "enforce"
            request = replace(request, report_to=report_to, padding=padding if packs else "padded", finds_budget=finds)
            same = existing is not None and existing.request.same_as(request)
            if report_to is not None and not owner.reports:
                raise _refused(trainer, owner, request, "report_to", no_loggers(owner.framework))
            if padding == "free" and not packs:
                raise _refused(trainer, owner, request, "padding_free", no_packing(owner.framework))
            if finds and not owner.finds_budgets:
                raise _refused(trainer, owner, request, "found_budget", no_finding(owner.framework))
            if not same:
                owner.check_attach(trainer, request)
        beside = {"mode": mode, "report_to": report_to, "padding": request.padding, "finds_budget": finds}
        own = {**beside, "dataset_size": request.reading.dataset_size, **request.spec.values}
        everyones = owner.gather(trainer, (same, own))
    _require_equal([asked for _, asked in everyones])
    if all(unchanged for unchanged, _ in everyones):
        return trainer
    if existing is not None:
        unwrap(trainer)
    try:
        attachment = _attached(owner, trainer, request)
    except BaseException as failure:
        if existing is not None:  # what stood before stands again
            setattr(trainer, _ATTRIBUTE, _put_back(owner, trainer, existing.request, failure))
        raise
    setattr(trainer, _ATTRIBUTE, attachment)
    return trainer


def _most_derived(owners: Sequence[Adapter], trainer: object) -> list[Adapter]:
    """The adapters that own the most derived of a trainer's classes: one of a subclass goes before one of its base."""
    if len(owners) < 2:
        return list(owners)
    classes = type(trainer).__mro__

    def base(owner: Adapter) -> int:
        """The distance from the trainer's own class to the last one that the adapter takes."""
        return max((place for place, cls in enumerate(classes) if _owns(owner, cls)), default=len(classes))

    nearest = min(map(base, owners))
    return [owner for owner in owners if base(owner) == nearest]


def _owns(owner: Adapter, cls: Any) -> bool:
    """Whether an adapter takes bare objects of a class: it looks at their class alone."""
    try:
        return owner.owns(cls.__new__(cls))
    except Exception:  # a class that makes no bare object, or an adapter that looks at what is in it
        return False


_BUILT = "wrap the trainer that a framework has built; `batchbridge.check` judges configurations"


def _attached(owner: Adapter, trainer: object, request: Request) -> Attachment:
    """The attachment that the adapter makes, and what tells the trainer's loggers where they are asked for."""
    attachment = owner.attach(trainer, request)
    if request.report_to is None:
        return attachment
    try:
        return owner.report(trainer, attachment)
    except BaseException as failure:
        attachment.detach()
        if isinstance(failure, AttributeError):
            reason = f"what reaches the trainer's loggers has changed ({failure}): wrap without report_to"
            raise CannotAttach({"report_to": reason}) from failure
        raise


def _at_least_one(tokens: object) -> bool:
    return isinstance(tokens, int) and tokens >= 1


def _put_back(owner: Adapter, trainer: object, request: Request, failure: BaseException) -> Attachment:
    """The earlier attachment, put back; else `CannotAttach`, the reasons of `failure` included."""
    try:
        attachment = _attached(owner, trainer, replace(request, again=True))
    except CannotAttach as error:
        said = failure.reasons if isinstance(failure, CannotAttach) else {"error": f"{failure}"}
        without = f"what was attached before cannot be put back, and the trainer is not wrapped any more: {error}"
        raise CannotAttach({**said, "unwrapped": without}) from failure
    return replace(attachment, request=request)


def _require_equal(asked: Sequence[Mapping[str, Any]]) -> None:
    """Refusal (`CannotAttach`) of processes that are wrapped together and ask for different things, by what differs."""
    mine = asked[0]
    for rank, its in enumerate(asked):
        differs = [
            f"{path} is {mine.get(path)} on rank 0, {its.get(path)} on rank {rank}"
            for path in sorted(mine.keys() | its.keys())
            if mine.get(path) != its.get(path)
        ]
        if differs:
            reason = f"the ranks of one run must be alike, and {'; '.join(differs)}: build every rank's trainer alike"
            raise CannotAttach({"ranks_differ": reason})


def unwrap(trainer: _Trainer) -> _Trainer:
    """A wrapped trainer, restored.

    Args:
        trainer: The trainer; one that is not wrapped stays as it is.

    Returns:
        The same trainer.
    """
    attachment = getattr(trainer, "__dict__", {}).get(_ATTRIBUTE)
    if isinstance(attachment, Attachment):
        try:
            attachment.detach()
        finally:
            delattr(trainer, _ATTRIBUTE)
    return trainer


def _request(
    trainer: object,
    adapter: Adapter,
    like: Any,
    mode: Mode,
    ledger: Path | None,
    allow: frozenset[str],
    cut: MicroBatch | None,
    finds: bool,
) -> Request:
    from batchbridge.reading.read import read

    own = read(trainer, framework=adapter.framework)
    if own.spec is None:
        raise CannotAttach(_reasons(own))
    settled = (adapter.started(own).spec if mode == "enforce" else None) or own.spec
    spec, own_cut = settled, own.spec.micro_batch
    if like is not None:
        other = like
        if not isinstance(other, (Spec, Reading)):
            other = read(like, world_size=own.spec.topology.world_size, dataset_size=own.dataset_size)
        if isinstance(other, Reading):
            if other.spec is None or other.verdict == "invalid":
                raise CannotAttach({f"like: {name}": reason for name, reason in _reasons(other).items()})
            other = other.spec
        if other.order.prompt_shuffle == "epoch_permutation" and other.order.seed is None:
            # An order that nothing fixes there: whatever this trainer's is keyed by is one of them.
            other = other.replace(**{"order.seed": own.spec.order.seed})
        # Devices and micro-batches are this trainer's own: they are not part of the meaning.
        spec = other.replace(topology=own.spec.topology, micro_batch=own_cut)
        if cut is None and not finds and mode == "enforce" and isinstance(like, Spec):
            cut = _budget(like.micro_batch, own_cut)
    if cut is not None:
        spec = spec.replace(micro_batch=cut)
    asked = Request(spec=spec, plan=None, reading=own, mode=mode, ledger=ledger, allow=allow, budget=cut)
    differ = set(spec.open_terms) ^ set(settled.open_terms)
    if mode != "observe" and (names := {*spec.unfollowed_terms, *settled.unfollowed_terms, *differ}):
        raise _refused(trainer, adapter, asked, "open_terms", open_terms(sorted(names), own))
    if own.dataset_size is None:
        reason = "the trainer's dataset has no length, so its prompts have no numbers: load it as a map-style dataset"
        raise _refused(trainer, adapter, asked, "iterable_dataset", reason)
    try:
        followed = keyed(spec) if mode == "verify" else spec
        plan = planned(followed, own.dataset_size, fills_places=_fills(adapter, mode))
    except PlanError as error:
        if mode != "observe":
            raise _refused(trainer, adapter, asked, "plan", error.reason) from None
        return asked
    return replace(asked, plan=plan)


def _fills(adapter: Adapter, mode: Mode) -> bool:
    return adapter.counts_places if mode == "verify" else adapter.fills_places and mode == "enforce"


def _refused(trainer: object, adapter: Adapter, asked: Request, name: str, reason: str) -> CannotAttach:
    """A reason for which nothing is attached and that needs no plan, beside every other one that needs none."""
    try:
        adapter.check_attach(trainer, asked)
    except CannotAttach as error:
        return CannotAttach({name: reason, **error.reasons})
    return CannotAttach({name: reason})


def _budget(asked: MicroBatch, own: MicroBatch) -> MicroBatch | None:
    """The part of micro-batches that a user's spec asks for: its token budgets, no fixed sizes."""
    if asked.tokens_per_device is not None:
        return asked
    if asked.forward_tokens_per_device is None:
        return None
    forward = asked.forward_tokens_per_device
    return replace(own, forward_tokens_per_device=forward, forward_completions_per_device=None)


def _reasons(reading: Reading) -> dict[str, str]:
    said = {finding.code: f"{_file(finding)}{finding.message}" for finding in reading.wrong}
    return said or {reading.framework: "nothing could be read"}


def _file(finding: Finding) -> str:
    """`recipe.yaml:3: `, or nothing."""
    place = next((Where(file=where.file, line=where.line) for where in finding.where if where.file), None)
    return "" if place is None else f"{place}: "

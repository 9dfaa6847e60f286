"""Attaching as one transaction: everything is checked, then the trainer is patched, then its loss is probed.

An adapter describes its trainer in a `Runtime`; `check` and `attach` do the rest, alike for every framework. On any
failure the trainer is what it was before. `batchbridge.running.wrap.wrap` detaches an earlier attachment only after
`check` found nothing, and puts it back where `attach` fails after all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.enforcement import Enforcement
from batchbridge.contract.evidence import Code
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotAttach
from batchbridge.frozen import dataclass
from batchbridge.kit.allowing import ON_EVERY_FRAMEWORK
from batchbridge.kit.foreseen import foreseen
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.proven import require
from batchbridge.kit.refusals import RefusalRow, not_allowable, reasons_against
from batchbridge.running.asked import shared


@dataclass(frozen=True, kw_only=True)
class Patched:
    """The result of `Runtime.patch`, beside what it listed in its `Patches`.

    left_different, notes: see `Attachment`. detach: undoes what `Patches` does not; called after them, and once only.
    probe: runs the trainer's own loss on made-up log-probabilities, and raises `CannotAttach` where it is not the
    plan's.
    """

    left_different: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    detach: Callable[[], None] = lambda: None
    probe: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One framework's running trainers.

    version: of the framework, for the ledger and the report; raises `CannotAttach` where none is installed. code: the
    functions that a wrapped run depends on, held against recorded ones (`batchbridge.kit.proven`); parts: the live
    objects whose methods count; uses: the optional packages of that code that the trainer uses. refusals: what cannot
    be enforced. always: names of refusals that hold in every mode. subject: what refusals look at, of a trainer
    (default: the trainer). training: whether the trainer is inside its training loop right now. patch: patches the
    trainer as the request says, every change listed in the `Patches` that it gets. gather: a value of every process
    whose trainers are wrapped together, in the order of their ranks; collective (`values_of_all_ranks`). By it a reason
    that one of them has is everyone's, after the checks, the patching and the probe: alone it would leave the others
    waiting where they communicate next.

    prompts: texts, messages or tokens; of a trainer whose prompts another process has, their digest; None of one that
    does not have them.

    started: a configuration's reading as an enforced run of it is, where the run fixes what the framework leaves open,
    or to the next rollout. Of a configuration, before there is a trainer: would_use: as uses. assumes: what it does not
    say, and `enforcement` takes for granted.
    """

    framework: str
    version: Callable[[Any], str]
    refusals: Sequence[RefusalRow]
    patch: Callable[[Any, Request, Patches, str], Patched]
    always: Collection[str] = ()
    subject: Callable[[Any], Any] = lambda trainer: trainer
    training: Callable[[Any], bool] = lambda trainer: False
    gather: Callable[[Any, Any], list[Any]] = lambda trainer, value: [value]
    prompts: Callable[[Any], Sequence[Any] | Mapping[str, Any] | None] | None = None
    code: Code | None = None
    parts: Callable[[Any], Sequence[object]] = lambda trainer: (trainer,)
    uses: Callable[[Any], Collection[str]] = lambda trainer: ()
    started: Callable[[Reading], Reading] = lambda reading: reading
    would_use: Callable[[Reading], Collection[str]] = lambda reading: ()
    assumes: Callable[[Reading], Sequence[str]] = lambda reading: ()

    def enforcement(self, reading: Reading, *, fills_places: bool, versions: str = "") -> Enforcement:
        """The prediction of mode "enforce" for a trainer of this configuration; see `Adapter.enforcement`. versions:
        those that are wrapped, a PEP 440 specifier; empty: any."""
        started = self.started(reading)
        code = None if self.code is None else self.code.used(self.would_use(started))
        found = foreseen(started, code, self.refusals, self.always, fills_places=fills_places, versions=versions)
        return replace(found, assumes=(*found.assumes, *self.assumes(started)))

    @property
    def allowable(self) -> Collection[str]:
        """The names of refusals that `allow` accepts."""
        return {*(refusal.name for refusal in self.refusals if refusal.allowable), *ON_EVERY_FRAMEWORK}

    def check(self, trainer: Any, request: Request) -> Request:
        """The request with what speaks for the code that would be patched. Raises `CannotAttach` with every reason;
        changes nothing."""
        self.version(trainer)
        reasons = not_allowable(self.refusals, request.allow)
        if self.training(trainer):
            reasons["in_training"] = "the trainer is training; wrap it before train(), or after it has ended"
        if self.code is not None:
            try:
                code = self.code.used(self.uses(trainer))
                request = replace(request, evidence=require(code, request.allow, *self.parts(trainer)))
            except CannotAttach as error:
                reasons |= error.reasons
        enforces, subject = request.mode == "enforce", self.subject(trainer)
        fitting = [refusal for refusal in self.refusals if enforces or refusal.name in self.always]
        for refusal in fitting:
            try:
                reasons |= reasons_against([refusal], subject, request)
            except CannotAttach:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                reasons[refusal.name] = f"it cannot be told whether this holds: {refusal.reason} ({what})"
        if reasons:
            raise CannotAttach(reasons)
        return request

    def attach(self, trainer: Any, request: Request) -> Attachment:
        """Checks, patches and probes. Raises `CannotAttach` with every reason, also those of another process that is
        wrapped together with this one; the trainer is then as it was."""
        patches = Patches(Observation(request.mode))
        patched = Patched()
        version = "of an unknown version"
        try:
            with _together(self, trainer, version):
                request = request if request.again else self.check(trainer, request)
                version = self.version(trainer)
            if self.prompts is not None and not request.again:
                with _together(self, trainer, version):
                    from batchbridge.kit.checkpoints import with_prompts

                    request = with_prompts(request, self.prompts(trainer), lambda mine: self.gather(trainer, mine))
            with _together(self, trainer, version):
                patched = self.patch(trainer, request, patches, version)
            with _together(self, trainer, version):
                if not request.again:
                    patched.probe()
        except BaseException:
            _undo(patches, patched)
            raise
        return Attachment(
            framework=self.framework,
            framework_version=version,
            request=request,
            changes=patches.changes,
            left_different=patched.left_different,
            notes=list(patched.notes),
            detach=lambda: _undo(patches, patched),
            suspended=patches.suspended,
        )


@contextmanager
def _together(runtime: Runtime, trainer: Any, version: str) -> Iterator[None]:
    """The span of processes wrapped together: what one cannot do, none does; its reasons are raised in all."""
    with shared(lambda reasons: runtime.gather(trainer, reasons)):
        try:
            yield
        except AttributeError as error:
            reason = f"the code that BatchBridge patches has changed: {error} ({runtime.framework} {version})"
            raise CannotAttach({"seam": reason}) from error


def values_of_all_ranks(value: Any) -> list[Any]:
    """A value of every rank of `torch.distributed`: a `Runtime.gather` for trainers that are wrapped on all of them at
    once. Collective; a process without a group of processes is alone."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _undo(patches: Patches, patched: Patched) -> None:
    try:
        patches.undo()
    finally:
        patched.detach()


def is_inside(trainer: object, *functions: str, of: Collection[str] = ()) -> bool:
    """Whether some thread is inside a method of `trainer` with one of these names right now.

    of: the packages whose functions count, all where none is named: a subclass of the user's own may override them, and
    do its work before it calls theirs. A flag that a framework sets when training begins stays set after a run that was
    interrupted.
    """
    for frame in list(sys._current_frames().values()):
        inner = frame
        while inner is not None:
            counts = not of or str(inner.f_globals.get("__name__", "")).partition(".")[0] in of
            if inner.f_code.co_name in functions and counts and inner.f_locals.get("self") is trainer:
                return True
            inner = inner.f_back  # type: ignore[assignment]  # the outermost frame has none
    return False

"""The refusals of `attach`, foreseen from a configuration alone: the same rows, plan and record of code, before any
trainer.

Whatever a trainer, a model or a dataset decides is an obstacle that is not certain; nothing is taken for granted but
what `Enforcement.assumes` names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from batchbridge.contract.attachment import Request
from batchbridge.contract.enforcement import Enforcement, Obstacle
from batchbridge.contract.evidence import Code
from batchbridge.contract.reading import Mode, Reading
from batchbridge.errors import PlanError
from batchbridge.kit import proven
from batchbridge.kit.refusals import RefusalRow
from batchbridge.kit.versions import holds, installed
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.running.asked import open_terms, planned

_MANY = 997
"""Rollouts of an epoch, where nobody says how many prompts there are: enough for every step to be filled."""


def foreseen(
    reading: Reading,
    code: Code | None,
    refusals: Sequence[RefusalRow],
    always: Collection[str],
    *,
    fills_places: bool,
    versions: str,
) -> Enforcement:
    """The enforcement of a reading, for `batchbridge.kit.lifecycle.Runtime.enforcement`. always: names of refusals that
    hold in every mode."""
    assert reading.spec is not None, "what is not read is not asked"
    evidence, obstacles = _evidence(code, reading, versions)
    wrapped = reading.framework_version is None or holds(versions, reading.framework_version)
    if names := reading.spec.unfollowed_terms:
        reason = open_terms(names, reading)
        obstacles.append(Obstacle(name="open_terms", reason=reason, remedy=_WATCH["observe"]))
    sizes = [reading.dataset_size] if reading.dataset_size is not None else list(_sizes(reading.spec))
    requests = []
    unplanned: dict[int, str] = {}
    for size in sizes:
        plan: Plan | None = None
        try:
            plan = planned(reading.spec, size, fills_places=fills_places)
        except PlanError as error:
            unplanned[size] = error.reason
        requests.append(Request(spec=reading.spec, plan=plan, reading=reading, mode="enforce"))
    if unplanned:
        certain = len(unplanned) == len(sizes)
        remedy = f"{_ASK_OTHERWISE}; or {_WATCH['observe']}" if certain else _SAY_THE_SIZE
        obstacles.append(Obstacle(name="plan", reason=next(iter(unplanned.values())), remedy=remedy, certain=certain))
    # One that can be allowed is an obstacle of its own, which says so.
    hold = [one for one in refusals if one.name in always and not one.allowable]
    watch = _watched(requests[0], hold, planned=not obstacles)
    for refusal in refusals:
        said = {refusal.foreseen(request) for request in requests}
        if said != {False}:
            obstacles.append(_obstacle(refusal, said, watch))
    assumed = () if reading.dataset_size is not None else (f"a dataset of at least {sizes[0]} prompts",)
    watch = watch if obstacles and wrapped else None
    return Enforcement(obstacles=tuple(obstacles), evidence=evidence, assumes=assumed, watch=watch)


def _sizes(spec: Spec) -> Iterator[int]:
    """Sizes of a dataset, the smallest that has a whole step first: with and without a remainder."""
    rollout, step = spec.rollout.prompts_per_rollout or 1, spec.optimizer_step.completions_per_step or 1
    group = spec.rollout.completions_per_prompt or 1
    least = rollout * max(1, -(-step // (group * rollout)))
    yield from sorted({least, _MANY * least, _MANY * least + 1, (_MANY + 1) * least - 1})


_SAY_THE_SIZE = "say how many prompts the dataset has (--dataset-size)"
_ASK_OTHERWISE = "ask for a specification that has a plan (--spec, or --like another configuration)"
_WATCH: dict[Mode | None, str] = {
    "verify": '--mode verify (mode="verify") compares every step with the plan, and changes nothing',
    "observe": '--mode observe (mode="observe") records what is trained, and changes nothing',
    None: "`run` works with such a run in no mode: start it without BatchBridge",
}


def _watched(request: Request, always: Sequence[RefusalRow], *, planned: bool) -> Mode | None:
    """The nearest mode that takes the run; None: no mode does."""
    modes: tuple[Mode, ...] = ("verify", "observe") if planned else ("observe",)
    for mode in modes:
        asked = Request(spec=request.spec, plan=request.plan, reading=request.reading, mode=mode)
        if not any(refusal.foreseen(asked) for refusal in always):
            return mode
    return None


def _obstacle(refusal: RefusalRow, said: Collection[bool | None], watch: Mode | None) -> Obstacle:
    ways = [refusal.remedy] if refusal.remedy else []
    if len(said) > 1:
        ways.append(_SAY_THE_SIZE)
    ways.append(f"--allow {refusal.name} accepts it as it is" if refusal.allowable else _WATCH[watch])
    return Obstacle(
        name=refusal.name,
        reason=refusal.reason,
        remedy="; or ".join(ways),
        allowable=refusal.allowable,
        certain=set(said) == {True},
    )


def _evidence(
    code: Code | None, reading: Reading, enforced: str
) -> tuple[Literal["proven", "measured"] | None, list[Obstacle]]:
    """The evidence for the code of a version: of the files that are installed, where they are that version's; else what
    is recorded of the release, as which it is then known by name alone. code: None where nothing is recorded."""
    version = reading.framework_version
    if version is not None and not holds(enforced, version):
        reason = f"{reading.framework} {version} is not a version whose trainer BatchBridge wraps: {enforced}"
        remedy = f"use {reading.framework} {enforced}"
        return None, [Obstacle(name="version", reason=reason, remedy=remedy)]
    if code is None:
        return "measured", []
    first = code.packages[0]
    accepts = f"use a recorded version; or --allow {proven.UNPROVEN} has the weights of this code measured at attach"
    if proven.package_folder(first) is not None:
        here = tuple(one for one in code.packages if proven.package_folder(one) is not None)
        found = proven.evidence_here(replace(code, packages=here))
        if version in (found.labels[first.title], installed(first.distribution)):
            if found.grade != "refused":
                return found.grade, []
            reason = proven.refusal(found)
            return None, [Obstacle(name=proven.UNPROVEN, reason=reason, remedy=accepts, allowable=True)]
    status = proven.records(code.home)[first.name].labels.get(version or "")
    if status in ("tested", "read"):
        return "proven" if status == "tested" else "measured", []
    reason = f"nothing is recorded of the code of {first.title} {version}, and it is not installed here"
    return None, [Obstacle(name=proven.UNPROVEN, reason=reason, remedy=accepts, allowable=True, certain=False)]

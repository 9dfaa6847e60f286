"""Whether `run` or `wrap` would follow a configuration, said before anything is started."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Literal, Protocol

from batchbridge.contract.reading import Mode, Reading
from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief
from batchbridge.meaning.findings import Finding

Foreseen = Literal["enforced", "with_allow", "refused", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A reason for which `attach` would refuse a run, or might.

    name: as in `CannotAttach.reasons`, or the code of a finding. allowable: `wrap(..., allow=(name,))` accepts it.
    remedy: what to do about it. certain: False where a trainer, a model or a dataset decides it, not the configuration.
    """

    name: str
    reason: str
    allowable: bool = False
    remedy: str
    certain: bool = True

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Enforcement:
    """The prediction of mode "enforce" for a configuration: it is followed, or what stands in the way.

    obstacles: certain ones first. evidence: "proven" where the native tests ran on the code of this release, "measured"
    where its weights are measured when a trainer is wrapped; None where its code is not known. assumes: what the
    configuration does not say, and the verdict rests on. watch: the nearest mode that takes a run which "enforce" does
    not, "verify" or else "observe"; None: no mode does, or none is needed.
    """

    obstacles: tuple[Obstacle, ...] = ()
    evidence: Literal["proven", "measured"] | None = None
    assumes: tuple[str, ...] = ()
    watch: Mode | None = None

    mode: Mode = "enforce"

    def __post_init__(self) -> None:
        ordered = sorted(self.obstacles, key=lambda one: (not one.certain, one.allowable))
        object.__setattr__(self, "obstacles", tuple(ordered))

    def __repr__(self) -> str:
        return brief(self, self.verdict, *(one.name for one in self.obstacles))

    @property
    def verdict(self) -> Foreseen:
        """ "enforced"; "with_allow": if every obstacle is allowed; "refused"; "unknown": the trainer decides."""
        binding = [one for one in self.obstacles if not one.allowable]
        if any(one.certain for one in binding):
            return "refused"
        return "unknown" if binding else "with_allow" if self.obstacles else "enforced"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "verdict": self.verdict,
            "mode": self.mode,
            "evidence": self.evidence,
            "watch": self.watch,
            "assumes": list(self.assumes),
            "obstacles": [one.to_dict() for one in self.obstacles],
        }


class _Enforces(Protocol):
    """An adapter, as far as it is asked here."""

    def enforcement(self, reading: Reading, /) -> Enforcement: ...


def enforcement_of(adapter: _Enforces | None, reading: Reading) -> Enforcement:
    """The enforcement of a reading by `adapter` (None: there is none for it); errors of the reading come first. Of its
    condition the adapter says itself what it means for a trainer.

    Never raises: where the adapter fails, its error is an obstacle.
    """
    found = (*_launcher(reading), *map(_obstacle, reading.supposed.wrong))
    if adapter is None or reading.spec is None:
        unread = Obstacle(
            name="unread", reason="nothing says what is trained", remedy="see the findings", certain=False
        )
        return Enforcement(obstacles=found or (unread,))
    try:
        said = adapter.enforcement(reading)
    except Exception as error:
        reason = f"the adapter of {reading.framework} failed to say it: {type(error).__name__}: {error}"
        failed = Obstacle(name="adapter", reason=reason, remedy="report this to its authors", certain=False)
        return Enforcement(obstacles=(*found, failed))
    watch = None if reading.unreached is not None else said.watch
    return replace(said, obstacles=(*found, *said.obstacles), watch=watch)


def _launcher(reading: Reading) -> tuple[Obstacle, ...]:
    """The obstacle that the launch does not arrive, whatever the configuration says."""
    if (lost := reading.unreached) is None:
        return ()
    reason = f"{lost.reason}: `batchbridge run` in front of {lost.launcher} does not reach the training"
    return (Obstacle(name="launcher", reason=reason, remedy=f"write: {lost.instead}"),)


def without_runtime(framework: str, *, attaches: bool) -> Enforcement:
    """The enforcement by an adapter that has no `Runtime`. attaches: it defines `attach` itself, which says nothing
    beforehand."""
    if attaches:
        reason = f"the adapter of {framework} attaches by code of its own, which says nothing before a trainer stands"
        remedy = "wrap the trainer: what is raised then has every reason"
        return Enforcement(obstacles=(Obstacle(name="unforeseen", reason=reason, remedy=remedy, certain=False),))
    reason = f"the adapter of {framework} reads and writes configurations; `run` and `wrap` do not work with it"
    remedy = "convert the configuration to a framework that they work with (`batchbridge adapters` lists them)"
    return Enforcement(obstacles=(Obstacle(name="no_runtime", reason=reason, remedy=remedy),))


def _obstacle(finding: Finding) -> Obstacle:
    """The obstacle that an error is, or what leaves a reading open."""
    remedy = ", or ".join(fix.text for fix in finding.fixes) or "correct what the finding names"
    return Obstacle(name=finding.code, reason=finding.message, remedy=remedy, certain=not finding.undecided)

"""The request of `wrap` to an adapter, and the attachment that it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from pathlib import Path
from typing import Any

from batchbridge.contract.evidence import Evidence
from batchbridge.contract.reading import Mode, Padding, Reading, ReportTo
from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import MicroBatch, Spec


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of `wrap` to an adapter's `attach`.

    spec: what the run should mean. plan: its plan over the trainer's prompts; a `CandidatePlan` only where the adapter
    says `fills_places`; None only in mode "observe", where the spec leaves membership open. reading: the trainer's own
    configuration. mode: see `wrap`. ledger: folder for the ledger, or None. allow: terms that the user accepts as they
    are. budget: the token budget that the user asked for, in `spec` too; None: micro-batches are the trainer's own.
    evidence: what speaks for the code that runs, once `kit.proven.require` has looked; None before, and from
    adapters that have no record of their framework's code. again: what stood before another request failed is put back;
    it was checked and probed when it was made, and need not be now. report_to: "trainer" where every optimizer step's
    numbers go to the trainer's own loggers; None: they go nowhere but into the ledger. padding: see `wrap`; "free" only
    where the adapter says `packs`. finds_budget: whether the token budget is found while the run goes on, only where
    the adapter says `finds_budgets`; `budget` is then None. prompts: the digest of the prompts' texts; None: unknown.
    """

    spec: Spec
    plan: Plan | None
    reading: Reading
    mode: Mode
    ledger: Path | None = None
    allow: frozenset[str] = frozenset()
    budget: MicroBatch | None = None
    evidence: Evidence | None = None
    again: bool = False
    report_to: ReportTo | None = None
    padding: Padding = "padded"
    finds_budget: bool = False
    prompts: Mapping[str, Any] | None = None

    def same_as(self, other: Request) -> bool:
        """Whether both ask for the same thing of a trainer that has not changed."""
        asked = ("spec", "mode", "ledger", "allow", "budget", "report_to", "padding", "finds_budget")
        mine, its = self.reading, other.reading
        return (mine.spec, mine.dataset_size) == (its.spec, its.dataset_size) and all(
            getattr(self, name) == getattr(other, name) for name in asked
        )


@dataclass(frozen=True)
class Change:
    """One patch: the trainer's attribute, what is different now, and why."""

    attribute: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Attachment:
    """The changes that `wrap` made to a trainer; `trainer.batchbridge` on a wrapped trainer.

    changes: every patched attribute. left_different: settings of the requested spec that the framework cannot take and
    that stay native, by canonical field. notes: what the run met since, such as settings that differ from those of the
    checkpoint that it resumed from. detach: restores the trainer. suspended: the trainer as it was before, for a while:
    its configuration is read then.
    """

    framework: str
    framework_version: str
    request: Request
    changes: tuple[Change, ...]
    left_different: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    detach: Callable[[], None]
    suspended: Callable[[], AbstractContextManager[None]] = nullcontext

    def __repr__(self) -> str:
        return brief(self, f"{self.framework} {self.framework_version}", self.mode, many(self.changes, "change"))

    @property
    def mode(self) -> Mode:
        """The mode: observe, verify or enforce."""
        return self.request.mode

    @property
    def plan(self) -> Plan | None:
        """The plan that the run follows, or is held against."""
        return self.request.plan

    @property
    def evidence(self) -> Evidence | None:
        """The evidence for the code that runs; see `Request`."""
        return self.request.evidence

    def report(self, *, changes: bool = True) -> str:
        """The attachment in words: what was changed, and what was left different. changes: every patch; else how many
        there are."""
        lines = [f"{self.framework} {self.framework_version}, mode {self.mode}, spec {self.request.spec.digest()}"]
        if self.evidence is not None:
            lines.append(f"  code: {self.evidence.text()}")
        if changes:
            lines += [f"  {change.attribute}: {change.what} ({change.why})" for change in self.changes]
        else:
            lines.append(f"  {many(self.changes, 'attribute')} of the trainer patched (-v lists them)")
        if isinstance(self.plan, CandidatePlan):
            lines += [f"  decided while it runs: {path} = {why}" for path, why in self.plan.undecided.items()]
        lines += [f"  left different: {path}: {reason}" for path, reason in self.left_different.items()]
        lines += [f"  note: {note}" for note in self.notes]
        if self.request.prompts is not None and self.request.prompts["whole"] is None:
            from batchbridge.meaning.prompt_digest import sampled

            lines.append(sampled(self.request.prompts))
        return "\n".join(lines)

"""Attaching to a running trainer: `wrap`, `unwrap`, and what an adapter's runtime gets and gives back.

The core decides what the run shall mean (`Request.spec`, its plan) and keeps the ledger; the adapter's runtime patches
the trainer. Patches are instance attributes, listed in `Attachment.changes`, undone by `unwrap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from batchbridge.adapter import Mode, Reading
from batchbridge.spec import Spec

if TYPE_CHECKING:
    from batchbridge.plan import Plan

_Trainer = TypeVar("_Trainer")


class BatchDrift(RuntimeError):
    """A run departed from its plan.

    `step`: the first optimizer step that departs. `aspect`: membership, weights, clock or order. `detail`: what was
    expected and what was seen.
    """

    def __init__(self, step: int, aspect: str, detail: str) -> None:
        super().__init__(f"optimizer step {step}: {aspect} departs from the plan: {detail}")
        self.step, self.aspect, self.detail = step, aspect, detail


class CannotAttach(RuntimeError):
    """The trainer cannot be made to follow the plan: every reason, by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        lines = [f"  {name}: {reason}" for name, reason in reasons.items()]
        super().__init__("batchbridge cannot attach:\n" + "\n".join(lines))
        self.reasons = dict(reasons)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an adapter's `attach` is asked to do.

    spec: what the run shall mean. plan: its plan over the trainer's prompts. reading: the trainer's own configuration.
    mode: see `wrap`. ledger: folder for the ledger, or None. allow: terms that the user accepts as they are.
    """

    spec: Spec
    plan: Plan
    reading: Reading
    mode: Mode
    ledger: Path | None = None
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Change:
    """One patch: the trainer's attribute, what is different now, and why."""

    attribute: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """What `wrap` did to a trainer; `trainer.batchbridge` on a wrapped trainer.

    changes: every patched attribute. left_different: settings of the requested spec that the framework cannot take and
    that stay native, by canonical field. detach: restores the trainer.
    """

    framework: str
    framework_version: str
    request: Request
    changes: tuple[Change, ...]
    left_different: Mapping[str, str] = field(default_factory=dict)
    detach: Callable[[], None]

    @property
    def mode(self) -> Mode:
        """observe, verify or enforce."""
        return self.request.mode

    @property
    def plan(self) -> Plan:
        """The plan that the run follows."""
        return self.request.plan

    def report(self) -> str:
        """The attachment in words: what was changed, and what was left different."""
        lines = [f"{self.framework} {self.framework_version}, mode {self.mode}, spec {self.request.spec.digest()}"]
        lines += [f"  {change.attribute}: {change.what} ({change.why})" for change in self.changes]
        lines += [f"  left different: {path}: {reason}" for path, reason in self.left_different.items()]
        return "\n".join(lines)

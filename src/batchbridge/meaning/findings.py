"""The findings about a configuration: what, where, which rule, the nearest fix; collected, never raised one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, get_args

from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief

Severity = Literal["error", "warning", "note"]
"""The severity of a finding: only an error makes a configuration invalid."""
Verdict = Literal["valid", "invalid", "undecided"]
"""The judgement of a configuration."""
Phase = Literal["config", "construction", "worker_start", "first_rollout", "optimizer_step", "never"]
"""The moment when the native framework would notice: while reading its config, building the trainer, starting its
workers, at the first rollout, at some optimizer step, or never (it trains something else than one would think,
silently)."""


CONDITION = "BB041"
"""The code of the finding that says on what a reading rests."""
LOOKS_LIKE_TRAINING = "BB042"
"""The code of the finding about a file that looks like training by rewards and that no adapter reads."""
EQUIVALENT_TO = "equivalent_to"
"""The expectation (BB045) whose value is another configuration's path."""


@dataclass(frozen=True)
class Where:
    """A place in the user's own input: the native key, its value, and the file and line if it stands in one."""

    key: str | None = None
    value: Any = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        text = "" if self.key is None else self.key if self.value is None else f"{self.key} = {self.value}"
        if self.file is not None:
            place = self.file if self.line is None else f"{self.file}:{self.line}"
            text = f"{text} ({place})" if text else place
        return text


@dataclass(frozen=True)
class Fix:
    """One way out, in the user's keys: `changes` maps native keys to legal values, or to None where a key goes; `text`
    says it for a person. `safe`: with `changes` the run is the one that was meant, whatever else is set, so that
    `batchbridge check --fix` may write them: a renamed key (None for the old name, the value for the new one), or one
    that nothing reads (None); never a choice among legal numbers."""

    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    safe: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {"text": self.text, "changes": dict(self.changes), "safe": self.safe}


@dataclass(frozen=True, repr=False)
class Finding:
    """One violated rule or known defect.

    `code` is stable (`BB-TRL-003`). `severity`: an error makes the verdict "invalid". `phase`: when the framework
    itself would notice. `message`: what, in the user's keys. `where`: places of these keys. `fixes`: ways out, the
    nearest one first. `native` is what the framework itself would say or do, `source` where that was read: framework,
    version, symbol. `undecided` findings name what is missing before the rule can be decided; they make the verdict
    "undecided" unless an error stands beside them.
    """

    code: str
    severity: Severity
    phase: Phase
    message: str
    where: tuple[Where, ...] = ()
    fixes: tuple[Fix, ...] = ()
    native: str | None = None
    source: str | None = None
    undecided: bool = False

    def __str__(self) -> str:
        """Severity, code and message, on one line."""
        return f"{'undecided' if self.undecided else self.severity} {self.code}: {' '.join(self.message.split())}"

    def __repr__(self) -> str:
        return brief(self, str(self))

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask

        said = [("where", "; ".join(map(str, self.where))), ("the framework itself", self.native)]
        said += [("use instead", fix.text) for fix in self.fixes] + [("source", self.source)]
        rows = [row for row in said if row[1]]
        return notebook.fragment(str(self), notebook.table(("", ""), rows))

    def same_as(self, other: Finding) -> bool:
        """Whether both say one thing: the same code, about the same native keys and values; files do not count."""
        places = ({(where.key, repr(where.value)) for where in one.where} for one in (self, other))
        return self.code == other.code and next(places) == next(places)

    def to_dict(self) -> dict[str, Any]:
        """JSON types: code, severity, phase, message, where, fixes, native, source, undecided."""
        return {
            "code": self.code,
            "severity": self.severity,
            "phase": self.phase,
            "message": self.message,
            "where": [vars(where) for where in self.where],
            "fixes": [fix.to_dict() for fix in self.fixes],
            "native": self.native,
            "source": self.source,
            "undecided": self.undecided,
        }


def verdict(findings: Iterable[Finding]) -> Verdict:
    """ "invalid" with any error, else "undecided" if something needed is missing, else "valid"."""
    findings = list(findings)
    if any(finding.severity == "error" and not finding.undecided for finding in findings):
        return "invalid"
    return "undecided" if any(finding.undecided for finding in findings) else "valid"


KINDS = ("error", "undecided", "warning", "note")


def kind_of(finding: Finding) -> str:
    """One of `KINDS`, the most severe first."""
    return "undecided" if finding.undecided else finding.severity


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as a person is shown them: the most severe first, of these the one that its framework notices
    first."""
    phases = get_args(Phase)
    return sorted(findings, key=lambda one: (KINDS.index(kind_of(one)), phases.index(one.phase)))


def counts(findings: Iterable[Finding]) -> str:
    """`1 error, 2 warnings, 5 notes`; "no findings"."""
    kinds = [kind_of(finding) for finding in findings]
    numbers = [(kinds.count(kind), kind) for kind in KINDS]
    said = [f"{count} {kind}{'s' if count > 1 and kind != 'undecided' else ''}" for count, kind in numbers if count]
    return ", ".join(said) or "no findings"

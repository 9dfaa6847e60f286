"""The exceptions that BatchBridge raises.

    BatchBridgeError
    |- PlanError (ValueError)        a specification without a plan
    |- CannotWrite (ValueError)      a specification that a framework's configuration cannot say
    |- CannotEdit (ValueError)       a YAML file that cannot be changed as asked
    |- TooLong (ValueError)          a completion above a hard token budget
    |- LedgerError (ValueError)      a ledger that cannot be read or written
    |- CannotAttach (RuntimeError)   a trainer that cannot be made to follow its plan
    |- BatchDrift (RuntimeError)     a run that departed from its plan
    `- LostGradient (RuntimeError)   a micro-batch whose gradients never arrived

What is wrong with a configuration is not an exception but a `Finding` of its reading. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from batchbridge.frozen import dataclass


class BatchBridgeError(Exception):
    """The base of every exception that BatchBridge raises on purpose.

    Each is pickled whole: worker processes raise them, and the driver shows them.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args), vars(self)


def _rebuilt(kind: type[BatchBridgeError], arguments: tuple[object, ...]) -> BatchBridgeError:
    """An error with these `args`; what its class makes of its own arguments comes as state."""
    return kind.__new__(kind, *arguments)


class PlanError(BatchBridgeError, ValueError):
    """The spec has no plan: `reason` says which fields leave it open, in the schema's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Problem:
    """One reason why a framework's configuration cannot say a specification.

    `fields` are the canonical fields (`order.seed`, `loss.kl`) that would have to change, the nearest cause first:
    conversions move exactly those. `reason` is a sentence for a person, and nothing else reads it. `nearest` are the
    ways out as data, the nearest first: changes of canonical fields, each of which ends the problem
    (`{"objective.kl_estimator": "k3"}`). Empty: only the fields are known.
    """

    fields: tuple[str, ...]
    reason: str
    nearest: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            raise TypeError(f"Problem: fields is a tuple of canonical fields, not the text {self.fields!r}")

    def __str__(self) -> str:
        return self.reason


class CannotWrite(BatchBridgeError, ValueError):
    """The framework's configuration cannot say this spec: `problems` names the fields of each reason."""

    def __init__(self, framework: str, problems: Sequence[Problem]) -> None:
        if wrong := [problem for problem in problems if not isinstance(problem, Problem)]:
            raise TypeError(f"CannotWrite: problems are `Problem(fields, reason)`; {wrong[0]!r} is none")
        super().__init__(f"{framework} cannot express: " + "; ".join(problem.reason for problem in problems))
        self.framework, self.problems = framework, tuple(problems)


class CannotEdit(BatchBridgeError, ValueError):
    """The text cannot be changed as asked: `problems` names each key and why."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class TooLong(BatchBridgeError, ValueError):
    """A completion alone exceeds a hard token budget: `item` is its position, `tokens` its length."""

    def __init__(self, item: int, tokens: int, tokens_per_device: int) -> None:
        super().__init__(
            f"completion {item} has {tokens} tokens (prompt and response), more than tokens_per_device = "
            f"{tokens_per_device}; the least budget that holds it is {tokens}"
        )
        self.item, self.tokens = item, tokens


class LedgerError(BatchBridgeError, ValueError):
    """A ledger that cannot be read or written: what, in which file, at which line."""

    def __init__(self, what: str, file: Path | str, line: int | None = None) -> None:
        super().__init__(f"{file if line is None else f'{file}:{line}'}: {what}")
        self.what, self.file, self.line = what, file, line


class CannotAttach(BatchBridgeError, RuntimeError):
    """The trainer cannot be made to follow the plan: every reason, by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        lines = [f"  {name}: {reason}" for name, reason in reasons.items()]
        super().__init__("batchbridge cannot attach:\n" + "\n".join(lines))
        self.reasons = dict(reasons)


class BatchDrift(BatchBridgeError, RuntimeError):
    """A run departed from its plan.

    `step`: the first optimizer step that departs. `aspect`: membership, weights, loss (its value is not that of its
    tokens), clock, order, gradient (what the optimizer finds is not what backward gave), learning_rate, weight_decay,
    optimizer_settings (something else than the schedule has written them), advantages (not what the rewards give),
    settings (changed after the trainer was wrapped), inputs (a row does not carry what the trainer's process sent), or
    ranks (one did not come to where the others wait for it).
    `detail`: what was expected and what was seen.
    """

    def __init__(self, step: int, aspect: str, detail: str) -> None:
        super().__init__(f"optimizer step {step} departs from the plan in its {aspect}: {detail}")
        self.step, self.aspect, self.detail = step, aspect, detail


class LostGradient(BatchBridgeError, RuntimeError):
    """A micro-batch whose backward pass never reached its log-probabilities."""

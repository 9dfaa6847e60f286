"""A whole run in figures: what its ledger adds up to, and how each figure moved over the optimizer steps.

The ledger is streamed once. Memory does not grow with the run: of a long one, neighbouring steps share a `StepBin`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchbridge.errors import PlanError
from batchbridge.ledger.comparing import applied_weights
from batchbridge.ledger.membership import LARGEST, as_planned, is_small
from batchbridge.ledger.reading import CountItems, Ledger, unwatched
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Normaliser

MOST_BINS = 120
"""Points of a figure over the steps: as many as a chart shows apart."""

_Step = Mapping[str, Any]


class FigureRange(NamedTuple):
    """A figure over one or several optimizer steps: the least, the mean and the largest value."""

    least: float
    mean: float
    most: float


class Figure(NamedTuple):
    """A figure that is read off a step. title, unit: for a person. axis: the unit where there is room for little. of:
    the values of one step; nothing where not recorded."""

    title: str
    unit: str
    axis: str
    of: Callable[[_Step, int | None], Iterable[float]]


def _denominators(step: _Step, planned: int | None) -> Iterable[float]:
    """The factors 1/T, 1/B, ... of the normaliser; of measured weights the inverse of each completion's."""
    said = step["normaliser"]
    try:
        if said is not None and "normaliser" not in step["disagreeing"] and said["aggregation"] != "prompt_mean":
            factor = Normaliser(**said).step_factor()
            return [1 / factor] if factor else []
        return [1 / weight for weight in applied_weights(step) or () if weight]
    except (TypeError, ValueError, KeyError, ZeroDivisionError):  # a normaliser of another hand
        return []


def slowest_rank(step: Mapping[str, Any]) -> tuple[int, float] | None:
    """The rank that computed longest in a merged step, and its seconds over the ranks' mean; None where not every
    rank's seconds are known, where there is one rank, and where nothing was computed."""
    seconds = step["compute_seconds"] or ()
    if len(seconds) < 2 or None in seconds or not sum(seconds):
        return None
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return slowest, seconds[slowest] * len(seconds) / sum(seconds)


FIGURES = {
    "response_tokens": Figure(
        "Response tokens", "tokens in a step", "tokens", lambda step, _: [sum(step["response_tokens"])]
    ),
    "completions": Figure(
        "Completions, B", "completions in a step", "completions", lambda step, _: [len(step["prompt"])]
    ),
    "denominator": Figure(
        "Denominator of the weights", "1 / the weight of a response token", "1 / weight", _denominators
    ),
    "learning_rate": Figure(
        "Learning rate",
        "learning rate that the optimizer applied",
        "learning rate",
        lambda step, _: [] if step["learning_rate"] is None else [step["learning_rate"]],
    ),
    "staleness": Figure(
        "Staleness",
        "optimizer steps between generation and training",
        "optimizer steps",
        lambda step, _: [step["step"] - made for made in step["generated_at_step"]],
    ),
    "masked": Figure(
        "Masked completions",
        "completions without a trained token",
        "completions",
        lambda step, _: [sum(not tokens for tokens in step["response_tokens"])],
    ),
    "dropped": Figure(
        "Dropped completions",
        "planned completions that the step did not train",
        "completions",
        lambda step, planned: [] if planned is None else [max(planned - len(step["prompt"]), 0)],
    ),
    "slowest_rank": Figure(
        "Slowest rank",
        "seconds of the slowest rank / the ranks' mean",
        "of the mean",
        lambda step, _: [] if (straggler := slowest_rank(step)) is None else [straggler[1]],
    ),
}
"""Every figure, in the order in which they are shown."""


@dataclass(kw_only=True)
class StepBin:
    """Neighbouring optimizer steps, `first` to `last`, and each figure over them; one that none recorded is missing."""

    first: int
    last: int
    figures: dict[str, FigureRange] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, step: int, figures: Mapping[str, FigureRange]) -> None:
        """Counts a step in. figures: its own."""
        self.last = step
        for name, here in figures.items():
            count = self._counts[name]
            if (was := self.figures.get(name)) is not None:
                mean = (was.mean * count + here.mean) / (count + 1)
                here = FigureRange(min(was.least, here.least), mean, max(was.most, here.most))
            self.figures[name] = here
            self._counts[name] += 1


def _figures_of(step: _Step, planned: int | None) -> Iterator[tuple[str, FigureRange]]:
    """The figures of one step. planned: completions that the plan has in it; None: no plan."""
    for name, figure in FIGURES.items():
        if values := [value for value in figure.of(step, planned) if math.isfinite(value)]:
            yield name, FigureRange(min(values), sum(values) / len(values), max(values))


@dataclass(kw_only=True)
class RankSummary:
    """The training of one rank: completions, and their response tokens. seconds: that it computed, None where no step
    says it. slowest: steps in which it was the slowest rank."""

    completions: int = 0
    response_tokens: int = 0
    seconds: float | None = None
    slowest: int = 0


@dataclass(kw_only=True)
class LedgerSummary:
    """A run's ledger as a whole.

    first, last: optimizer steps (None: none is complete). response_tokens, completions, masked: of all steps. skipped:
    steps in which the optimizer did not step. not_finite: steps whose gradient's norm was not finite. starts: rank 0's
    headers, in order. drift: steps whose completions are not those of the plan; None where there is none to hold them
    against, and `no_plan` says why. incomplete: what the ledger's end lacks. timed: steps in which every rank's seconds
    are known, and there are several; ratios: the sum over them of the slowest rank's seconds over the mean's. ends:
    each figure's mean in the first and in the last step that recorded it.
    """

    folder: str
    starts: list[dict[str, Any]]
    incomplete: str | None
    first: int | None = None
    last: int | None = None
    steps: int = 0
    completions: int = 0
    response_tokens: int = 0
    masked: int = 0
    skipped: int = 0
    not_finite: int = 0
    drift: int | None = None
    first_drift: int | None = None
    timed: int = 0
    ratios: float = 0.0
    no_plan: str | None = None
    ranks: defaultdict[int, RankSummary] = field(default_factory=lambda: defaultdict(RankSummary))
    bins: list[StepBin] = field(default_factory=list)
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def straggler(self) -> tuple[int, RankSummary] | None:
        """The rank that was the slowest in most steps; None where the ranks' seconds are not known."""
        if not self.timed:
            return None
        return max(self.ranks.items(), key=lambda one: (one[1].slowest, one[1].seconds or 0.0, -one[0]))

    @property
    def resumed(self) -> list[dict[str, Any]]:
        """The headers of starts that went on from a checkpoint."""
        return [header for header in self.starts if header["started"] == "resumed"]


def summarise(ledger: Ledger, watch: CountItems = unwatched) -> LedgerSummary:
    """A ledger in figures. Raises `LedgerError`, naming file and line."""
    found = LedgerSummary(folder=str(ledger.folder), starts=ledger.headers, incomplete=ledger.incomplete)
    plan, found.no_plan = _plan(ledger)
    found.drift = None if plan is None else 0
    size = max(-(-(ledger.stop_step - ledger.first_step) // MOST_BINS), 1)
    for step in ledger.whole(watch):
        _add(found, step, plan, size)
    return found


def is_broken(step: Mapping[str, Any]) -> bool:
    """Whether the gradient of a merged step was not finite, as far as its norm was recorded."""
    norm = step["gradient_norm"]
    return norm is not None and not math.isfinite(norm)


def _add(found: LedgerSummary, step: _Step, plan: Plan | None, size: int) -> None:
    number, tokens = step["step"], step["response_tokens"]
    if not found.steps:
        found.first = number
    if found.steps % size == 0:
        found.bins.append(StepBin(first=number, last=number))
    found.last = number
    found.steps += 1
    found.completions += len(tokens)
    found.response_tokens += sum(tokens)
    found.masked += sum(not count for count in tokens)
    found.skipped += bool(step["skipped"])
    found.not_finite += is_broken(step)
    for rank, count in zip(step["rank"], tokens, strict=True):
        found.ranks[rank].completions += 1
        found.ranks[rank].response_tokens += count
    for rank, seconds in enumerate(step["compute_seconds"] or ()):
        if seconds is not None:
            found.ranks[rank].seconds = (found.ranks[rank].seconds or 0.0) + seconds
    if (straggler := slowest_rank(step)) is not None:
        found.ranks[straggler[0]].slowest += 1
        found.timed += 1
        found.ratios += straggler[1]
    planned = None
    if plan is not None and found.drift is not None:
        members = plan.step(number).members if number < plan.total_optimizer_steps else ()
        planned = len(members)
        if not as_planned([step], members):
            found.drift += 1
            found.first_drift = number if found.first_drift is None else found.first_drift
    figures = dict(_figures_of(step, planned))
    found.bins[-1].add(number, figures)
    for name, one in figures.items():
        found.ends[name] = found.ends.get(name, (one.mean, one.mean))[0], one.mean


def _plan(ledger: Ledger) -> tuple[Plan | None, str | None]:
    """The plan of the run's last start; or why there is none."""
    if not ledger.headers:
        return None, "the run was killed before it began"
    header = ledger.headers[-1]
    if header["mode"] == "verify":
        return None, "mode verify held it against its framework's own order (`batchbridge ledger verify`)"
    try:
        plan = plan_of(Spec.from_dict(header["spec"]), header["dataset_size"])
        total = plan.total_optimizer_steps
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # PlanError, or a specification of another time
        return None, error.reason if isinstance(error, PlanError) else "its specification cannot be read"
    if isinstance(plan, CandidatePlan):
        return None, "; ".join(plan.undecided.values())
    if not is_small(plan):
        return None, f"its steps or rollouts have more than {LARGEST:,} completions"
    return (plan, None) if total else (None, "the plan has no optimizer step")


def series(bins: Iterable[StepBin], name: str) -> Iterator[tuple[int, int, FigureRange]]:
    """(first step, last step, range) of one figure, where it is recorded."""
    for one in bins:
        if name in one.figures:
            yield one.first, one.last, one.figures[name]

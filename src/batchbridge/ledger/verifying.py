"""A ledger recomputed: membership from the plan, weights from the columns, advantages from the rewards, rates from the
schedule. Nothing that the run said of itself is believed where something else in the ledger decides it.

Records are streamed, one optimizer step at a time; the completions of a rollout are kept until a later rollout begins.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge.errors import LedgerError, PlanError
from batchbridge.ledger.membership import LARGEST, as_planned, is_small
from batchbridge.ledger.numbers import drift_of
from batchbridge.ledger.reading import CountItems, Ledger, merge, unwatched
from batchbridge.ledger.scanning import StartId, start_of
from batchbridge.meaning.advantages import RULED, group_advantages
from batchbridge.meaning.candidates import CandidatePlan, keyed, plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.rounding import float32_rooms
from batchbridge.meaning.schedule_rates import ScheduleRates
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.stock_run import StockMembership
from batchbridge.meaning.weights import Normaliser, Row

WIDEST_TOLERANCE = 2.0**-6
"""Relative drift of a weight that rounding explains in the widest case, bfloat16."""
RATE_TOLERANCE = 1e-6
"""Difference of a recorded rate from the schedule's, as a share of the peak: float64, computed in another order."""
DEPARTURES = 8
"""Departures that are listed for each check."""
_HELD_MODES = ("enforce", "verify")

_Step = Mapping[str, Any]


@dataclass
class LedgerCheck:
    """One kind of number that is recomputed.

    of: from what. unit: what is counted. held: how many were recomputed and agree. departed: how many do not; the first
    `DEPARTURES` stand in `departures`, as (optimizer step, what). largest: the largest difference of those that agree,
    None where the comparison is exact. skipped: how many were not recomputed, by reason.
    """

    name: str
    of: str
    unit: str = "optimizer steps"
    held: int = 0
    departed: int = 0
    departures: list[tuple[int, str]] = field(default_factory=list)
    largest: float | None = None
    skipped: Counter[str] = field(default_factory=Counter)

    def agree(self, difference: float | None = None, count: int = 1) -> None:
        """Counts what agrees, as closely as `difference` says."""
        self.held += count
        if difference is not None:
            self.largest = max(difference, self.largest or 0.0)

    def depart(self, step: int, what: str) -> None:
        """Counts what does not agree."""
        self.departed += 1
        if len(self.departures) < DEPARTURES:
            self.departures.append((step, what))

    def skip(self, why: str, count: int = 1) -> None:
        """Counts what cannot be recomputed."""
        if count:
            self.skipped[why] += count

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        listed = [{"step": step, "what": what} for step, what in self.departures]
        return {**vars(self), "skipped": dict(self.skipped), "departures": listed}


DECISIVE = ("membership", "weights")
"""Checks without which a step's gradient is not what the plan says, whatever the others find."""


class LedgerVerification(NamedTuple):
    """The result of `verify`.

    first, stop: the optimizer steps looked at. headers: rank 0's. checks: in the order of docs/ledger.md. incomplete:
    what the ledger's end lacks. unseen: steps in which no gradient shows a weight, for all advantages are zero.
    """

    folder: str
    first: int
    stop: int
    headers: Sequence[Mapping[str, Any]]
    checks: tuple[LedgerCheck, ...]
    incomplete: str | None
    unseen: int
    unobserved_from: int | None = None
    """The first step that was not observed, see `Ledger.unobserved_from`."""

    @property
    def departed(self) -> int:
        """The number of departures, of all checks."""
        return sum(check.departed for check in self.checks)

    @property
    def decided(self) -> bool:
        """Whether every step was observed, and its membership and weights recomputed."""
        whole = self.unobserved_from is None
        return whole and all(not check.skipped for check in self.checks if check.name in DECISIVE)

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        checks = [check.to_dict() for check in self.checks]
        told = {
            "folder": self.folder,
            "first": self.first,
            "stop": self.stop,
            "incomplete": self.incomplete,
            "steps_without_a_weight": self.unseen,
        }
        return {**told, "departed": self.departed, "decided": self.decided, "checks": checks}


def verify(folder: Path | str, watch: CountItems = unwatched) -> LedgerVerification:
    """The recomputation of what a run recorded. Raises `LedgerError` for a ledger that cannot be read, or has no step.

    folder: a folder or URL. watch: gets the steps and their number, and hands the steps on; for a progress bar.
    """
    ledger = Ledger(folder)
    if ledger.stop_step <= ledger.first_step:
        raise LedgerError("no optimizer step that all ranks recorded: there is nothing to verify", ledger.folder)
    looking = _Looking(ledger)
    for lines in watch(ledger.steps(ledger.first_step), ledger.stop_step - ledger.first_step):
        looking.look(merge(lines.parts()), lines.sources[0][1].start)
    return looking.result()


# ---- one start of the run


class _Start:
    """One start of the run, by rank 0's header: what its steps are held against, or why not."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        self.spec: Spec | None = None
        self.plan: Plan | None = None
        self.problem: str | None = None
        """The reason why nothing is recomputed from the specification."""
        self.stock: StockMembership | None = None
        """The membership of a run that trained in its framework's own order, in place of the plan's completions."""
        self.no_members: str | None = None
        """The reason why the plan's completions are not recomputed."""
        self.unheld = None if header["mode"] in _HELD_MODES else f"mode {header['mode']} holds no step against the plan"
        try:
            self.spec = Spec.from_dict(header["spec"])
            if self.spec.digest() != header["spec_digest"]:
                self.problem = "the header's specification has another digest than the header says"
            native = header["mode"] == "verify"
            self.plan = plan_of(keyed(self.spec) if native else self.spec, header["dataset_size"])
            self.stock = StockMembership(self.plan) if native else None
            if isinstance(self.plan, CandidatePlan):
                self.no_members = "; ".join(self.plan.undecided.values())
            elif not is_small(self.plan):
                self.no_members = f"a step or rollout has more than {LARGEST:,} completions"
        except PlanError as error:
            self.no_members = f"the specification has no plan: {error.reason}"
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            self.problem = f"the header's specification cannot be read: {error}"

    @property
    def total(self) -> int | None:
        """Optimizer steps of the plan."""
        return None if self.plan is None or isinstance(self.plan, CandidatePlan) else self.plan.total_optimizer_steps

    def ends_before(self, step: int) -> bool:
        """Whether the plan has no such optimizer step."""
        return self.total is not None and step >= self.total

    def ticks(self) -> int:
        """Ticks of the schedule in the whole run."""
        assert self.plan is not None, "the caller looks at this"
        steps = self.plan.steps(0, self.total)
        return sum(step.lr_tick for step in steps)


class _Rates:
    """The rates of the run under both roundings of a warm-up that is given as a share: the closer one is the run's."""

    def __init__(self, start: _Start) -> None:
        """The rates of one start. Raises `ValueError`, with the reason, where the schedule is not known."""
        assert start.spec is not None, "the caller looks at this"
        carried, ticks = start.spec.carried, start.ticks()
        self._peak = carried.learning_rate or 1.0
        self._curves = [ScheduleRates(carried, ticks, rounded) for rounded in (math.ceil, math.floor)]
        self._checks = [LedgerCheck("", "") for _ in self._curves]

    def look(self, step: int, tick: int, recorded: float) -> None:
        for curve, check in zip(self._curves, self._checks, strict=True):
            expected = curve.rate(tick)
            off = abs(recorded - expected) / self._peak
            if off <= RATE_TOLERANCE:
                check.agree(off)
            else:
                check.depart(step, f"{recorded:.6g}; after {tick} ticks the schedule gives {expected:.6g}")

    def add_to(self, check: LedgerCheck) -> None:
        best = min(self._checks, key=lambda one: one.departed)
        check.agree(best.largest, best.held)
        check.departed += best.departed
        check.departures += best.departures[: DEPARTURES - len(check.departures)]


# ---- rollouts


class _Trained(NamedTuple):
    """One completion as its first pass trained it."""

    step: int
    prompt_fingerprint: str
    completion_fingerprint: str
    response_tokens: int
    reward: float | None
    advantage: float | None
    old_logprobs: str | None
    generated_at_step: int


_COMPLETION = _Trained._fields[1:]
_SAME_IN_ALL_PASSES = ("prompt_fingerprint", "completion_fingerprint", "response_tokens", "reward", "advantage")


class _Looking:
    """The checks of one ledger, and what they keep between steps."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._starts = {start_of(header): _Start(header) for header in ledger.headers}
        self._rates: dict[StartId, _Rates | str] = {}
        self._live: dict[int, dict[tuple[int, int], _Trained]] = {}
        self._rules: dict[int, _Start] = {}
        self.unseen = 0
        """Steps in which no gradient shows a weight: all advantages are zero."""
        self._ticks: int | None = 0 if ledger.first_step == 0 else None
        stock = {header["mode"] for header in ledger.headers} == {"verify"}
        self.membership = LedgerCheck("membership", "the configuration" if stock else "the plan")
        self.denominators = LedgerCheck("denominators", "the step's completions")
        self.weights = LedgerCheck("weights", "the loss term")
        self.advantages = LedgerCheck("advantages", "the rewards", "completions")
        self.rates = LedgerCheck("learning rate", "the schedule")
        self.clock = LedgerCheck("clock", "the plan")
        self.passes = LedgerCheck("passes", "the first pass", "completions")
        self.groups = LedgerCheck("groups", "the prompt's tokens", "groups")
        self.ranks = LedgerCheck("ranks", "all ranks' records")

    def result(self) -> LedgerVerification:
        for rollout in sorted(self._live):
            self._end(rollout)
        for rates in self._rates.values():
            if isinstance(rates, _Rates):
                rates.add_to(self.rates)
        checks = (
            *(self.membership, self.denominators, self.weights, self.advantages, self.rates),
            *(self.clock, self.passes, self.groups, self.ranks),
        )
        ledger = self._ledger
        return LedgerVerification(
            str(ledger.folder),
            ledger.first_step,
            ledger.stop_step,
            ledger.headers,
            checks,
            ledger.incomplete,
            self.unseen,
            ledger.unobserved_from,
        )

    def look(self, step: _Step, written_by: StartId) -> None:
        """Adds one optimizer step, all ranks merged. written_by: the start that recorded it."""
        start = self._starts[written_by]
        for rollout in sorted(self._live):
            if step["rollout"] and rollout < min(step["rollout"]):
                self._end(rollout)
        self._ranks_agree(step)
        self._members(step, start)
        self._denominators(step, start)
        self._weigh(step, start)
        self._rate(step, start, written_by)
        self._clock(step, start)
        self._keep(step, start)

    def _ranks_agree(self, step: _Step) -> None:
        for name, values in step["disagreeing"].items():
            self.ranks.depart(step["step"], f"{name} differs between ranks: rank 0 says {values[0]}")
            return
        self.ranks.agree()

    def _members(self, step: _Step, start: _Start) -> None:
        number, reason = step["step"], start.unheld or start.problem or start.no_members
        if reason is not None or start.plan is None:
            self.membership.skip(reason or "there is no plan")
        elif start.ends_before(number):
            self.membership.depart(number, f"the plan ends after {start.total} optimizer steps")
        elif start.stock is not None:
            rows = zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True)
            if (found := start.stock.departure(number, rows)) is not None:
                self.membership.depart(number, found.detail)
            else:
                self.membership.agree()
        elif not as_planned([step], start.plan.step(number).members):
            self.membership.depart(number, "other completions than the plan's")
        else:
            self.membership.agree()

    def _denominators(self, step: _Step, start: _Start) -> None:
        recorded = step["normaliser"]
        if recorded is None:
            self.denominators.skip("the run recorded weights instead, or nothing")
            return
        if start.spec is None:
            self.denominators.skip(start.problem or "there is no specification")
            return
        term = dataclasses.replace(start.spec.loss.policy, denominator_scope="optimizer_step")  # as `wrap` enforces it
        expected = vars(Normaliser.of(term, [Row(tokens=row[2], group=row[:2]) for row in _rows(step)]))
        other = [name for name, value in expected.items() if recorded.get(name) != value]
        if other:
            said = f"{other[0]} = {recorded.get(other[0])}; the step's completions give {expected[other[0]]}"
            self.denominators.depart(step["step"], said)
        else:
            self.denominators.agree()

    def _weigh(self, step: _Step, start: _Start) -> None:
        reason = start.unheld or (start.problem if start.spec is None else None)
        if reason is not None or start.spec is None:
            self.weights.skip(reason or "there is no specification")
        elif step["weights"] is None:
            said = "denominators" if step["normaliser"] is not None else "neither weights nor denominators"
            self.weights.skip(f"the run recorded {said}, and did not measure its weights")
        elif (drift := drift_of(start.spec.loss.policy, _rows(step))) is None:
            if any(step["response_tokens"]):
                self.unseen += 1
        elif drift > WIDEST_TOLERANCE:
            self.weights.depart(step["step"], f"a completion weighs {drift:.3g} (relative) otherwise")
        else:
            self.weights.agree(drift)

    def _rate(self, step: _Step, start: _Start, written_by: StartId) -> None:
        """Compares the recorded learning rate of a step with the schedule's at this tick, or says why it cannot."""
        recorded, tick = step["learning_rate"], self._ticks
        if self._ticks is not None and step["lr_tick"]:
            self._ticks += 1
        if recorded is None:
            reason: str | None = "the run did not record it"
        elif tick is None:
            reason = "the ledger begins after the run did"
        else:
            reason = start.unheld or start.problem or start.no_members
        if reason is not None or recorded is None or tick is None:
            self.rates.skip(reason or "")
            return
        if written_by not in self._rates:
            try:
                self._rates[written_by] = _Rates(start)
            except ValueError as error:
                self._rates[written_by] = str(error)
        rates = self._rates[written_by]
        if isinstance(rates, str):
            self.rates.skip(rates)
        else:
            rates.look(step["step"], tick, recorded)

    def _clock(self, step: _Step, start: _Start) -> None:
        number, reason = step["step"], start.unheld or start.problem or start.no_members
        if not sum(step["response_tokens"]) and not step["skipped"]:
            self.clock.depart(number, "the optimizer stepped, and no completion has a token")
        elif reason is not None or start.plan is None:
            self.clock.skip(reason or "there is no plan")
        elif start.ends_before(number):
            self.clock.skip("the plan ends before it")
        elif step["lr_tick"] != start.plan.step(number).lr_tick and not step["skipped"]:
            said = "advanced" if step["lr_tick"] else "stayed"
            self.clock.depart(number, f"the schedule {said}; in the plan it does not")
        else:
            self.clock.agree()

    def _keep(self, step: _Step, start: _Start) -> None:
        """The step's completions, for what needs whole rollouts; later passes are held against the first one."""
        number = step["step"]
        columns = [step[name] for name in _COMPLETION]
        keys = zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True)
        for (rollout, index, prompt, sample), row in zip(keys, zip(*columns, strict=True), strict=True):
            kept = self._live.setdefault(rollout, {})
            self._rules.setdefault(rollout, start)
            made = _Trained(number, *row)
            first = kept.setdefault((prompt, sample), made)
            if first is made:
                continue
            if index == 0:  # a prompt that stands in one rollout twice: which of the two is which, nothing says
                self.passes.skip("the prompt stands in the rollout more than once")
            elif other := [name for name in _SAME_IN_ALL_PASSES if _unlike(getattr(first, name), getattr(made, name))]:
                self.passes.depart(
                    number, f"prompt {prompt}, sample {sample}: {other[0]} is not that of the first pass"
                )
            else:
                self.passes.agree()

    def _end(self, rollout: int) -> None:
        """The checks of a rollout that no later step trains."""
        kept, start = self._live.pop(rollout), self._rules.pop(rollout)
        groups: dict[int, list[_Trained]] = {}
        for (prompt, _), row in sorted(kept.items()):
            groups.setdefault(prompt, []).append(row)
        for prompt, rows in groups.items():
            if len({row.prompt_fingerprint for row in rows}) > 1:
                self.groups.depart(rows[0].step, f"prompt {prompt}: the group's completions have different prompts")
            else:
                self.groups.agree()
        self._advantages(groups, start)

    def _advantages(self, groups: Mapping[int, Sequence[_Trained]], start: _Start) -> None:
        count = sum(map(len, groups.values()))
        reason = start.problem if start.spec is None else _unruled(start.spec)
        if reason is not None or start.spec is None:
            self.advantages.skip(reason or "there is no specification", count)
            return
        rule, size = start.spec.advantage, start.spec.rollout.completions_per_prompt
        whole = {prompt: rows for prompt, rows in groups.items() if len(rows) == size}
        known = {prompt: rows for prompt, rows in whole.items() if all(row.reward is not None for row in rows)}
        self.advantages.skip("its group is not whole in the ledger", count - sum(map(len, whole.values())))
        left = sum(map(len, whole.values())) - sum(map(len, known.values()))
        self.advantages.skip("a reward of its group is unknown", left)
        if rule.scale == "batch" and len(known) < len(groups):
            self.advantages.skip("a reward of its rollout is unknown", sum(map(len, known.values())))
            return
        rewards = [[row.reward or 0.0 for row in rows] for rows in known.values()]
        if start.spec.objective.reward_clip is not None:
            bound = start.spec.objective.reward_clip
            rewards = [[max(-bound, min(bound, one)) for one in group] for group in rewards]
        expected = group_advantages(rewards, rule)
        rooms = float32_rooms(rewards, expected, rule)
        for (prompt, rows), mine, room in zip(known.items(), expected, rooms, strict=True):
            for place, (row, wanted) in enumerate(zip(rows, mine, strict=True)):
                if row.advantage is None:
                    self.advantages.skip("the run did not record it")
                    continue
                off = abs(row.advantage - wanted)
                if off <= room:
                    self.advantages.agree(off)
                else:
                    what = f"prompt {prompt}, completion {place}: {row.advantage:.6g}; the rewards give {wanted:.6g}"
                    self.advantages.depart(row.step, what)


# ---- helpers


def _rows(step: _Step) -> list[tuple[Any, ...]]:
    """(rollout, prompt, response tokens, weight) of a step's completions."""
    weights = step["weights"] or [None] * len(step["rollout"])
    return list(zip(step["rollout"], step["prompt"], step["response_tokens"], weights, strict=True))


def _unruled(spec: Spec) -> str | None:
    """The reason why rewards alone do not decide the advantages."""
    if spec.advantage.baseline not in RULED:
        return f"advantage.baseline = {spec.advantage.baseline}: rewards do not decide it"
    if spec.objective.kl_placement == "reward" and spec.objective.kl_coefficient:
        return "the KL penalty is part of the reward, and no ledger has it"
    if spec.rollout.group_filter != "none" and spec.advantage.scale == "batch":
        return "groups were filtered out, and the scale counts them"
    return None


def _unlike(a: Hashable, b: Hashable) -> bool:
    return a != b and not (a != a and b != b)

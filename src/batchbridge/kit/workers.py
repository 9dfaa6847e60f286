"""The orders of a trainer to its training workers in other processes, and the record of an optimizer step there.

Knows no framework. The trainer sends `Orders`; each worker answers with a `Receipt`; each rank holds its steps
against the plan and writes them down with a `Recorder`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge.contract import plugins
from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Mode
from batchbridge.contract.reading import Padding as Layout
from batchbridge.errors import BatchDrift
from batchbridge.kit.drift import WEIGHT_TOLERANCE, SeenRow, compare_with_plan, compare_with_stock
from batchbridge.kit.rank_ledger import RankLedger
from batchbridge.ledger import Header, StepRecord, digest_floats, fingerprint
from batchbridge.ledger.numbers import PaddingTokens, StepNumbers
from batchbridge.meaning.candidates import CandidatePlan, keyed, plan_of
from batchbridge.meaning.plan import Plan, StepPlan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.stock_run import OwnOrder, StockMembership, same_sizes
from batchbridge.meaning.weights import Normaliser

LEDGER_VARIABLE = "BATCHBRIDGE_LEDGER"
"""The environment variable that asks for the ledger, as "required": where it cannot be written, the run ends."""

if TYPE_CHECKING:
    from batchbridge.contract.evidence import Evidence
    from batchbridge.kit.measuring import Measured


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The orders of the driver to every training worker; they travel by pickle.

    ticks: learning-rate ticks of the whole run. settings: attributes of the actor's configuration (dotted) that the
    native loss should read. start_id: shared by all ranks of one start of the run. steps_per_rollout: native optimizer
    steps of one rollout, for modes that follow no plan.
    """

    spec: Spec
    dataset_size: int
    planned: bool
    mode: Mode
    ledger: Path | None
    framework_version: str
    start_id: str
    ticks: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    detached: bool = False
    """The ratio's denominator is the current policy, whatever the batch carries."""
    steps_per_rollout: int = 1
    allow: frozenset[str] = frozenset()
    """Terms that the user accepts as they are; see `wrap`."""
    evidence: Mapping[str, Any] | None = None
    """The evidence for the framework's code, for the ledger; see `batchbridge.contract.evidence.Evidence.to_dict`."""
    native: Spec | None = None
    """The meaning of the trainer's own configuration, where the run is not enforced; None: `spec`."""
    native_rollouts: Callable[[], Iterator[Sequence[int]]] | None = None
    """The function that gives the prompts of every rollout of an unwrapped run, in the framework's own order; None:
    that is not known beforehand."""

    leaves_out: bool = False
    """Whether rewards or devices leave completions of an unwrapped run's rollouts out; see `StockMembership`."""
    temperature: float | None = None
    """The temperature that log-probabilities are of, as the trainer had it when it was wrapped; None: not held."""
    padding: Layout = "padded"
    """The layout of the workers' micro-batches, where they can choose it; see `wrap`."""
    prompts: Mapping[str, Any] | None = None
    """The digest of the prompts, for the ledger; see `batchbridge.meaning.prompt_digest`."""
    ledger_required: bool = False
    """Whether a ledger that cannot be written ends the run."""
    report: bool = False
    """Whether every step's numbers are kept for the trainer's own loggers; see `Recorder.numbers`."""

    @property
    def trained(self) -> Spec:
        """The spec that the loss of this run computes: the requested one if enforced, else the trainer's own."""
        return self.native or self.spec

    def here(self, found: Evidence) -> Orders:
        """The orders in a worker whose own code is known as `found` says: the ledger has the weaker of both grades."""
        return self if found.grade == "proven" else dataclasses.replace(self, evidence=found.to_dict())

    def plan(self) -> Plan | None:
        """The plan that the run follows or is held against."""
        if not self.planned:
            return None
        return plan_of(keyed(self.spec) if self.mode == "verify" else self.spec, self.dataset_size)

    def stock(self, plan: Plan | None) -> StockMembership | None:
        """The membership that an unwrapped run is held against; None where it is the plan's."""
        if plan is None or self.mode != "verify" or not same_sizes(self.spec, self.trained):
            return None
        order = None if self.native_rollouts is None else OwnOrder(self.native_rollouts)
        return StockMembership(plan, order, leaves_out=self.leaves_out)


@dataclass(frozen=True)
class Receipt:
    """A worker's answer to its orders: proof that the adapter arrived."""

    rank: int
    world_size: int
    spec_digest: str

    @classmethod
    def here(cls, orders: Orders, *, rank: int, world_size: int) -> Receipt:
        """The receipt of this process."""
        return cls(rank, world_size, orders.spec.digest())


@dataclass
class TrainedRow:
    """One completion of the current step on this rank.

    weight: of one of its response tokens; None where nothing shows it. departure, tolerance, loss, loss_size: see
    `batchbridge.kit.measuring.Measured`.
    """

    rollout: int
    prompt: int
    position: int
    sample: int
    tokens: int
    index: int
    weight: float | None = math.nan
    weights_of: int | None = None
    """The rollout at whose start the policy was the one that generated this completion; None: its own."""
    pass_index: int | None = None
    """The pass over its rollout, where a step may reach across passes; None: the step's."""
    departure: float = 0.0
    tolerance: float = WEIGHT_TOLERANCE
    loss: float = 0.0
    loss_size: float = 0.0
    micro_batch: int = -1
    """The number of its micro-batch in the step, on its rank; -1: not known."""

    @property
    def named(self) -> str:
        """The row as a user knows it."""
        return f"prompt {self.prompt} sample {self.sample}"

    def measured(self, seen: Measured, micro_batch: int = -1) -> None:
        """Takes over what was seen of the row, in the micro-batch of this number."""
        self.weight, self.departure, self.tolerance = seen.weight, seen.departure, seen.tolerance
        self.loss, self.loss_size, self.micro_batch = seen.loss, seen.loss_size, micro_batch

    @property
    def applied_weight(self) -> float | None:
        """The weight in the ledger: 0 without tokens, NaN where no one weight describes the row's, None where it is
        known less closely than a ledger's numbers should be."""
        if not self.tokens:
            return 0.0
        from batchbridge.ledger.verifying import WIDEST_TOLERANCE  # which no check of a configuration needs

        if self.tolerance > WIDEST_TOLERANCE:
            return None
        return math.nan if self.departure > self.tolerance else self.weight

    @property
    def facts_for_loggers(self) -> tuple[int, int, int, float | None]:
        """The facts of the row that loggers are told, for `StepNumbers.of`."""
        return self.rollout, self.prompt, self.tokens, self.applied_weight


def read_off(parts: Sequence[Sequence[TrainedRow | None]], seen: Sequence[Sequence[Measured]]) -> list[str]:
    """Gives every row of an optimizer step what was seen of it, by micro-batch; None is a filler row. Returns what
    speaks against the step. Raises `ValueError` where not exactly its rows were seen."""
    objections = []
    for number, (part, found) in enumerate(zip(parts, seen, strict=True)):
        for row, measured in zip(part, found, strict=True):
            if row is not None:
                row.measured(measured, number)
            elif measured.departure > measured.tolerance:
                objections.append(FILLER_GRADIENT)
    return objections


def read_places(
    rows: Mapping[int, TrainedRow | None], parts: Sequence[Sequence[int]], seen: Sequence[Sequence[Measured]]
) -> list[str]:
    """Gives every row of an optimizer step what was seen of it. Returns what speaks against the step.

    rows: by their place in the batch; None is a filler row. parts: the places of each micro-batch. Raises `ValueError`
    where not exactly the step's rows were seen.
    """
    if sorted(place for part in parts for place in part) != sorted(rows):
        raise ValueError("other rows reached the loss than the step has")
    return read_off([[rows[place] for place in part] for part in parts], seen)


FILLER_GRADIENT = "a filler row, which has nothing to train, got a gradient"


def orders_of(request: Request, version: str, **more: Any) -> Orders:
    """The orders to the workers in every mode, and `more`."""
    own, steps = request.reading.spec, 1
    assert own is not None, "wrap refuses a trainer whose own configuration is not read"
    if own.completions_per_rollout and own.optimizer_step.completions_per_step:
        steps = -(-own.completions_per_rollout // own.optimizer_step.completions_per_step)
    return Orders(
        spec=request.spec,
        dataset_size=request.reading.dataset_size or 0,
        planned=request.plan is not None,
        mode=request.mode,
        # Workers run in other folders.
        ledger=None if request.ledger is None else Path(request.ledger).absolute(),
        framework_version=version,
        evidence=None if request.evidence is None else request.evidence.to_dict(),
        start_id=uuid.uuid4().hex,
        prompts=request.prompts,
        ledger_required=os.environ.get(LEDGER_VARIABLE) == "required",
        allow=request.allow,
        report=request.report_to is not None,
        steps_per_rollout=steps * max(own.optimizer_step.passes_per_rollout, 1),
        native=None if request.mode == "enforce" else own,
        **more,
    )


class Recorder:
    """One rank's optimizer steps: held against the plan, and written into the ledger.

    gather: every data-parallel rank's tuples, of this rank's; collective.
    """

    def __init__(
        self,
        framework: str,
        orders: Orders,
        *,
        rank: int,
        world_size: int,
        gather: Callable[[Sequence[tuple[Any, ...]]], list[tuple[Any, ...]]],
    ) -> None:
        self._orders, self._rank, self._gather = orders, rank, gather
        self._ledger = _ledger_of(framework, orders, rank, world_size)
        self._next_step = 0
        self._ended = False
        self.plan = orders.plan()
        self._stock = orders.stock(self.plan)
        self.numbers: list[StepNumbers] = []
        """The numbers of the steps since someone took them away, on rank 0 and where the orders ask for them; see
        `batchbridge.kit.reporting`."""
        self.padding: Callable[[], PaddingTokens | None] = lambda: None
        """The padding of this rank's micro-batches of the step, where the adapter knows it."""

    def taken(self) -> list[StepNumbers]:
        """The numbers of the steps since the last call; see `numbers`."""
        found, self.numbers = self.numbers, []
        return found

    def begin(self, step: int, checkpoint: Callable[[], Path | None]) -> list[str]:
        """The check (`LedgerError`) that a start at this step can write the ledger, before anything is generated.
        Collective. checkpoint: finds a finished one of an earlier start. Returns what to tell the user: an earlier
        ledger that nothing can go on with is set aside."""
        self._next_step = step
        return [] if self._ledger is None else self._ledger.begin(step, checkpoint, self._gather)

    def close(self) -> None:
        """Closes the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def compare(
        self,
        step: int,
        rows: Sequence[TrainedRow],
        objections: Sequence[str] = (),
        *,
        pass_index: Callable[[], int] = lambda: 0,
        values: Sequence[float | None] = (),
    ) -> None:
        """The check (`BatchDrift`, on every rank) that the ranks' rows together are the plan's step. Collective.

        objections: what this rank saw beside its rows (see `drift.compare_with_plan`). pass_index: the native pass,
        asked for where neither the plan nor the rows say it. values: of the losses of this rank's micro-batches, see
        `measuring.Tap.values`.
        """
        if self._orders.mode == "observe" or self.plan is None:
            return
        enforced = self._orders.mode == "enforce"
        index = self.plan.step(step).members[0].pass_index if enforced else pass_index()
        places = isinstance(self.plan, CandidatePlan)
        mine = []
        for row in rows:
            passed, prompt = index if row.pass_index is None else row.pass_index, row.position if places else row.prompt
            seen_of_it = row.weight, row.departure, row.tolerance, row.loss, row.loss_size
            of = self._rank, row.micro_batch
            mine.append(SeenRow(row.rollout, passed, prompt, row.sample, row.tokens, *seen_of_it, micro_batch=of))
        known = {(self._rank, number): value for number, value in enumerate(values) if value is not None}
        everyone = self._gather(
            [
                *((tuple(row), None, None) for row in mine),
                *((None, text, None) for text in objections),
                *((None, None, value) for value in known.items()),
            ]
        )
        seen, said, losses = ([one for one in column if one is not None] for column in _columns(everyone))
        try:
            if self._stock is None:
                compare_with_plan(self.plan, step, seen, said, dict(losses))
            else:
                compare_with_stock(self._stock, self.plan, step, seen, said, dict(losses))
        except BatchDrift as drift:
            # The step is never written: what ended the run is told the loggers as far as weights show it.
            self._keep(step, [_told(SeenRow(*row)) for row in seen])
            if enforced:
                raise
            raise BatchDrift(drift.step, drift.aspect, f"{drift.detail}; {WAYS_ON}") from None

    def _keep(self, step: int, everyone: Sequence[tuple[Any, ...]], paddings: Sequence[PaddingTokens] = ()) -> None:
        """Keeps, on rank 0, the numbers of a step that a tracker is sent. everyone: all ranks' rows."""
        if self._orders.report and not self._rank:
            self.numbers.append(StepNumbers.of(step, self._orders.spec.loss.policy, everyone, paddings))

    def write(
        self,
        step: int,
        rows: Sequence[TrainedRow],
        facts: Sequence[Mapping[str, Any]],
        *,
        normaliser: Normaliser | None,
        learning_rate: float,
        gradient_norm: float | None,
        skipped: bool,
        pass_index: Callable[[], int] = lambda: 0,
        lr_tick: Callable[[], bool] = lambda: True,
        generated_at_step: Sequence[int] | None = None,
        epoch: int = 0,
        skips_tick: bool = False,
        compute_seconds: float | None = None,
        gradient_ratio: float | None = None,
        halved_budgets: Sequence[Sequence[str | int]] = (),
    ) -> None:
        """Appends the step's record and tells the watchers.

        normaliser: of an enforced step, else None: then `pass_index` and `lr_tick` say what the trainer did natively.
        facts: of each row, see `StepRecord`. generated_at_step: of each row, as seen; None: the plan's, or of a native
        step what rollouts of one number of steps have. epoch: the native one, where there is no plan. skips_tick: the
        schedule does not advance in a skipped step. compute_seconds and halved_budgets, of this rank, and
        gradient_ratio: see `StepRecord`.
        """
        planned: StepPlan | None = None if self.plan is None else self.plan.step(step)
        made_for = [row.rollout if row.weights_of is None else row.weights_of for row in rows]
        if normaliser is not None and planned is not None and self.plan is not None:  # enforced
            # Looking a rollout up takes as long as it is large: once, and only where nobody saw what it says.
            asked = set(made_for) if generated_at_step is None else set()
            starts = {rollout: self.plan.rollout(rollout).generated_at_step for rollout in asked}
            generated = [starts.get(rollout, 0) for rollout in made_for]
            index, tick = planned.members[0].pass_index, planned.lr_tick
        else:
            generated = [rollout * self._orders.steps_per_rollout for rollout in made_for]
            index, tick = pass_index(), lr_tick()
        record = StepRecord(
            step=step,
            epoch=epoch if planned is None else planned.epoch,
            normaliser=normaliser,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            skipped=skipped,
            lr_tick=tick and not (skipped and skips_tick),
            rollout=[row.rollout for row in rows],
            pass_index=[index if row.pass_index is None else row.pass_index for row in rows],
            prompt=[row.prompt for row in rows],
            sample=[row.sample for row in rows],
            response_tokens=[row.tokens for row in rows],
            generated_at_step=generated if generated_at_step is None else list(generated_at_step),
            weights=[row.applied_weight for row in rows],
            compute_seconds=compute_seconds,
            gradient_ratio=gradient_ratio,
            halved_budgets=halved_budgets,
            **{name: [fact[name] for fact in facts] for name in facts[0]} if facts else _NO_FACTS,
        )
        if self._orders.report:  # before what may fail here alone: others would wait for this rank
            mine = [row.facts_for_loggers for row in rows]
            padding = self.padding()
            told = self._gather([*mine, *(() if padding is None else (tuple(padding),))])
            width = len(PaddingTokens._fields)
            paddings = [PaddingTokens(*one) for one in told if len(one) == width]
            self._keep(step, [one for one in told if len(one) != width], paddings)
        if self._ended:  # while this step was looked at
            return
        if self._ledger is not None:
            self._ledger.append(record)
        self._next_step = step + 1
        for failure in plugins.call("batchbridge_optimizer_step", record=record.to_dict())[1]:
            warnings.warn(failure.message, RuntimeWarning, stacklevel=2)  # a watcher must not end a run

    def end_observing(self, why: str) -> None:
        """Says in the ledger that nothing is observed from the next step on, and closes it. Raises `LedgerError`."""
        self._ended = True
        if self._ledger is not None:
            self._ledger.end(self._next_step, why)
        self.close()


def _ledger_of(framework: str, orders: Orders, rank: int, world_size: int) -> RankLedger | None:
    """The ledger of a rank; None where none is written."""
    if orders.ledger is None:
        return None
    first = Header(
        framework=framework,
        framework_version=orders.framework_version,
        mode=orders.mode,
        spec=orders.spec,
        dataset_size=orders.dataset_size,
        world_size=world_size,
        rank=rank,
        start_id=orders.start_id,
        evidence=orders.evidence,
        prompts=orders.prompts,
    )
    # An observed run is made for its ledger alone.
    return RankLedger(orders.ledger, first, required=orders.ledger_required or orders.mode == "observe")


def _columns(told: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """(rows, objections, losses) that ranks told in triples."""
    return [[one[place] for one in told] for place in range(3)]


WAYS_ON = (
    'mode="observe" records such a run and holds nothing, mode="enforce" makes it train what its configuration says'
)
"""The ways on from a departure in mode "verify", as the end of a sentence."""


def _told(row: SeenRow) -> tuple[int, int, int, float | None]:
    """(rollout, prompt, tokens, weight) as the ledger would have them."""
    return row.rollout, row.prompt, row.tokens, math.nan if row.departure > row.tolerance else row.weight


def facts(
    *,
    prompt: Sequence[int],
    completion: Sequence[int],
    trained: Sequence[float],
    old_logprobs: Sequence[float],
    reward: float | None,
) -> dict[str, Any]:
    """The facts of a row for `Recorder.write`. trained: the advantages of the tokens whose loss mask is 1."""
    alike = bool(trained) and all(value == trained[0] for value in trained)
    return {
        "prompt_fingerprint": fingerprint(prompt),
        "completion_fingerprint": fingerprint(completion),
        "reward": reward,
        "advantage": float(trained[0]) if alike else None,
        "old_logprobs": digest_floats(old_logprobs),
    }


_NO_FACTS: Mapping[str, list[Any]] = {
    name: [] for name in ("prompt_fingerprint", "completion_fingerprint", "reward", "advantage", "old_logprobs")
}

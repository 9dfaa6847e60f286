"""The layer of a training process: what is patched there, and every optimizer step measured, held against the plan
before its update and written down after it.

An adapter subclasses `WorkerLayer` once for each kind of process that trains. It says what only its framework knows:
the seams (object, attribute, what stands there), the rows and denominators of a step, what the native loss and clock
read, how a step is cut, and what measures it (`StepProbe`). `install`, `probe` and `remove` are what a worker is told
to do. Imports no torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from batchbridge.errors import CannotAttach
from batchbridge.kit.allowing import GRADIENT_TRANSFORM, OWN_TERM
from batchbridge.kit.before_update import BeforeStep, strangers
from batchbridge.kit.observing import Observation
from batchbridge.kit.optimizer_groups import HeldGroups, applied_rate
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder, TrainedRow
from batchbridge.ledger.numbers import StepNumbers
from batchbridge.meaning.weights import Normaliser, Row

PLACE = "batchbridge"
"""The attribute of a worker that holds its layer."""


class Seam(NamedTuple):
    """One attribute of one object, and what stands there as long as the layer does.

    reads: `ours` changes nothing that it is given, so that a run that is observed alone goes on without it where it
    fails; exchanges: it exchanges something with other processes (see `Patches.read`). name: by which the layer finds
    the native one (`WorkerLayer.native`); empty: the attribute's.
    """

    target: Any
    attribute: str
    ours: Any
    what: str = "held against the plan"
    why: str = "ledger"
    reads: bool = False
    exchanges: bool = False
    name: str = ""


@dataclass
class StepInHand:
    """The optimizer step that a process is at. facts: of each row, for the ledger (see `workers.facts`)."""

    index: int
    rows: Sequence[TrainedRow]
    facts: Callable[[], Sequence[Mapping[str, Any]]] = lambda: ()


class Ranks(Protocol):
    """The training processes of one model, as a layer sees them (`batchbridge.kit.replicas.Replicas`, or an adapter's
    own)."""

    @property
    def replica(self) -> int:
        """The number of this process among those whose rows are told apart."""

    @property
    def replicas(self) -> int:
        """The number of such processes."""

    @property
    def writes(self) -> bool:
        """Whether this process writes its rows down; of several that have the same rows one does."""

    def gather(self, mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every replica's tuples, of this one's. Collective."""

    def agree(self, compare: Callable[[], None]) -> None:
        """Runs `compare`; where several processes have the same rows, each raises the `BatchDrift` of any."""


LayerT = TypeVar("LayerT", bound="WorkerLayer")


def install(
    worker: Any,
    orders: Orders,
    make: Callable[[Patches], LayerT],
    *,
    place: str = PLACE,
) -> LayerT:
    """Installs the layer that `make` builds in a worker, in place of an earlier one. Where anything is refused
    (`CannotAttach`), the worker is unpatched."""
    remove(worker, place=place)
    patches = Patches(Observation(orders.mode))
    layer: LayerT | None = None
    try:
        layer = make(patches)
        layer.attach()
    except BaseException:
        if layer is None:
            patches.undo()
        else:
            layer.remove()
        raise
    setattr(worker, place, layer)
    return layer


def probe(worker: Any, *, place: str = PLACE) -> None:
    """Holds the loss of an installed worker against the plan's weights, where it should follow the plan. Collective.
    Raises `CannotAttach`."""
    getattr(worker, place).probe()


def remove(worker: Any, *, place: str = PLACE) -> None:
    """Undoes `install`; a worker without a layer is left alone."""
    layer = vars(worker).get(place)
    if layer is not None:
        layer.remove()
        delattr(worker, place)


class WorkerLayer(ABC):
    """The patches of one training process, and the optimizer step that it is at.

    orders: what the driver asked for.
    """

    framework: ClassVar[str]
    """The framework's name, for the ledger."""
    again: ClassVar[str] = "; before a second fit(), wrap once more"
    """The way out for the user where steps do not follow each other, as the end of a sentence."""

    def __init__(self, orders: Orders, patches: Patches, ranks: Ranks) -> None:
        self._orders, self._patches, self.ranks = orders, patches, ranks
        self._enforces = orders.mode == "enforce"
        self._observation = patches.observation
        self._recorder = self.recording(orders)
        self._plan = self._recorder.plan
        self._observation.when_over = self.end_observing
        self._normaliser: Normaliser | None = None
        """The denominators of the step in hand, where the run applies them."""
        self._watch: Any = None
        self._last: int | None = None
        self._learning_rate = math.nan
        self._looked = False
        self._groups = HeldGroups(orders.allow)
        self.native: dict[str, Any] = {}
        """The native functions in whose place ours stand, by the names of their seams."""

    # ---- what an adapter says

    @abstractmethod
    def seams(self) -> Iterable[Seam]:
        """The functions of the process that ours stand in for, in the order in which they are replaced."""

    @abstractmethod
    def watching(self) -> Any:
        """The part that measures the model's optimizer steps (a `StepProbe`)."""

    @abstractmethod
    def in_hand(self) -> StepInHand:
        """The optimizer step that this process is at."""

    @abstractmethod
    def measure(self) -> Sequence[str]:
        """Reads off what every row of the step in hand weighed. Returns what this rank has against it. Collective."""

    def apply_settings(self) -> None:
        """Sets what the native loss reads (`Orders.settings`); called where the plan is enforced."""
        return

    def set_clock(self) -> None:
        """Sets the learning rate's schedule to the plan's ticks; called where the plan is enforced."""
        return

    def prepare(self) -> None:
        """Other changes, made before the seams are made, in every mode."""
        return

    def hold_loss(self) -> None:
        """Holds the framework's own loss against the plan's weights on made-up log-probabilities (see
        `batchbridge.kit.probing`). Raises `CannotAttach`. Collective."""
        return

    @property
    def trained_module(self) -> Any:
        """The module whose parameters the optimizer should update; None where none is known."""
        return None

    @property
    def schedule(self) -> Any:
        """The scheduler of the learning rate, of torch's kind; None where the framework has another kind: the rate is
        then recorded as it is."""
        return None

    @property
    def optimizer(self) -> Any:
        """The optimizer that the process has when the layer is installed; None where it is built later. What its
        groups hold then, beside the rates, should stay (`optimizer_groups`)."""
        return None

    @property
    def probe_runs_model(self) -> bool:
        """Whether `hold_loss` runs the model beside made-up log-probabilities: a term of the user's own is then not
        told from it."""
        return False

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """The trained model's parameters by name, for what is said of one."""
        module = self.trained_module
        return () if module is None else module.named_parameters()

    def native_pass(self) -> int:
        """The pass over its rollout of a native step."""
        return 0

    def native_tick(self) -> bool:
        """Whether the native schedule advances after the step in hand."""
        return True

    def written_beside(self) -> Mapping[str, Any]:
        """More values for `Recorder.write` of the step in hand."""
        return {}

    # ---- the layer's life

    @property
    def patches(self) -> Patches:
        """The patches of the process."""
        return self._patches

    def attach(self) -> None:
        """Patches the process. Raises `CannotAttach`; `remove` undoes what is there by then."""
        if self._enforces:
            self.apply_settings()
            self.set_clock()
        self.prepare()
        self._place(self.seams())
        self._watch = self.watching()
        if self.optimizer is not None:
            self._groups.begin(self.optimizer)

    def _place(self, seams: Iterable[Seam]) -> None:
        for seam in seams:
            told: dict[str, Any] = {"what": seam.what, "why": seam.why}
            place = self._patches.set
            if seam.reads:
                place = functools.partial(self._patches.read, exchanges=seam.exchanges)
            self.native[seam.name or seam.attribute] = place(seam.target, seam.attribute, seam.ours, **told)

    def recording(self, orders: Orders) -> Recorder:
        """A new record of this process's steps."""
        return Recorder(
            self.framework, orders, rank=self.ranks.replica, world_size=self.ranks.replicas, gather=self.ranks.gather
        )

    def probe(self) -> None:
        """The probe of the process's loss, where the plan is enforced; see `hold_loss`."""
        if not self._enforces:
            return
        from batchbridge.kit.own_terms import own_terms

        allowed = OWN_TERM in self._orders.allow
        pure = contextlib.nullcontext() if self.probe_runs_model else own_terms(self.named_parameters, allowed=allowed)
        with pure:
            self.hold_loss()

    def remove(self) -> None:
        """Restores the process, and closes the ledger."""
        try:
            self._patches.undo()
        finally:
            self.close()

    def taken(self) -> Sequence[StepNumbers]:
        """The numbers of the steps since the last call, where they are kept; see `Recorder.numbers`."""
        return self._recorder.taken()

    def end_observing(self, why: str) -> None:
        """Says in the ledger that nothing is observed from the step in hand on, and closes it."""
        self._recorder.end_observing(why)

    def close(self) -> None:
        """Undoes what `Patches` does not, and closes the ledger."""
        self._recorder.close()

    # ---- one optimizer step

    def follow(self, step: int) -> None:
        """The check (`CannotAttach`) that an optimizer step follows the one before it."""
        if self._last is not None and step != self._last + 1:
            reason = f"optimizer step {step} follows step {self._last}{self.again}"
            raise CannotAttach({"clock": reason})

    def denominators(self, rows: Iterable[TrainedRow]) -> Normaliser:
        """The denominators of an optimizer step, of all ranks' rows. Collective."""
        everyone = self.ranks.gather([(row.rollout, row.prompt, row.tokens) for row in rows])
        return Normaliser.of(self._orders.spec.loss.policy, [Row(tokens=row[2], group=row[:2]) for row in everyone])

    @contextlib.contextmanager
    def updating(self, optimizer: Any) -> Iterator[None]:
        """The span in which native code may update once: the step is looked at right before it does."""
        self._looked, self._learning_rate = False, applied_rate(optimizer)
        with self.looking(optimizer, functools.partial(self._observation.read, self.look, optimizer)):
            yield

    def looking(self, optimizer: Any, look: Callable[[], None]) -> contextlib.AbstractContextManager[Any]:
        """The span in which `look` is called right before an update; of an engine whose optimizer is none of torch's,
        an adapter's own."""
        return BeforeStep(optimizer, look)

    def look(self, optimizer: Any) -> None:
        """The look at the step in hand before its update, when all that it uses is there: measured, and held against
        the plan. Collective."""
        # The rate that is applied: someone may have set another one since the step began.
        self._looked, self._learning_rate = True, applied_rate(optimizer)
        module = self.trained_module
        foreign = None if module is None else strangers(optimizer, module)
        groups = self._groups.objections(optimizer, self.schedule)
        self.hold([*([] if foreign is None else [foreign]), *self.measure(), *groups])

    def hold(self, objections: Sequence[str] = ()) -> None:
        """The check (`BatchDrift`, on every rank) that the ranks' rows together are the plan's step. Collective."""
        if self._orders.mode == "observe":
            return
        objections = [one for one in objections if getattr(one, "allowed_by", None) not in self._orders.allow]
        step, values = self.in_hand(), self._loss_values()
        compare = functools.partial(self._recorder.compare, pass_index=self.native_pass, values=values)
        self.ranks.agree(lambda: compare(step.index, step.rows, objections))

    def _loss_values(self) -> Sequence[float | None]:
        """The values of the losses of the step in hand, where nothing that is allowed adds to them."""
        if OWN_TERM in self._orders.allow or self._watch is None or not self._looked:
            return ()
        values: Sequence[float | None] = self._watch.loss_values
        return values

    def write(self, *, gradient_norm: float | None, skipped: bool) -> None:
        """Writes the step in hand down; the next one follows it."""
        step = self.in_hand()
        if self.ranks.writes:
            self._recorder.write(
                step.index,
                step.rows,
                step.facts(),
                normaliser=self._normaliser,
                pass_index=self.native_pass,
                lr_tick=self.native_tick,
                learning_rate=self._learning_rate,
                gradient_norm=gradient_norm,
                skipped=skipped,
                gradient_ratio=self._watch.gradient_ratio if GRADIENT_TRANSFORM in self._orders.allow else None,
                **self.written_beside(),
            )
        self._last = step.index

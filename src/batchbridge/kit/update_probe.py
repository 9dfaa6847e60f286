"""The measuring of an actor's optimizer steps, where one of its methods makes the log-probabilities of a micro-batch of
padded rows (`_forward_micro_batch` of EasyR1's and verl's actors).

Two places, neither of which knows an average of the framework's: the log-probabilities that the loss is made of (a hook
on the tensor), and every parameter (its own gradients of every micro-batch against what the optimizer finds).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from batchbridge.errors import LostGradient
from batchbridge.kit.gradient_sketches import sketches_of
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.model_inputs import HeldModelInputs, SeenModelInputs
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.step_probe import MEASURED, StepProbe
from batchbridge.kit.workers import TrainedRow, read_places
from batchbridge.meaning.spec import Objective


class StepInputs(Protocol):
    """The rows of a rank's batch as they arrived. mask: shape (rows, tokens)."""

    @property
    def mask(self) -> torch.Tensor:
        """The tokens that are trained."""

    @property
    def model_inputs(self) -> HeldModelInputs:
        """The rows' tokens and their positions, and the temperature, as the model should be run on them."""


class UpdateProbe(StepProbe):
    """The measuring of one actor's optimizer steps. objective: what its loss computes. ranks: FSDP averages over.
    scale: what a loss is multiplied with because of that (`Tap.take`)."""

    def __init__(self, actor: Any, objective: Objective, *, ranks: int, scale: float, patches: Patches) -> None:
        self._actor, self._ranks, self._scale = actor, ranks, scale
        super().__init__(objective, patches)
        self._given: Any = None
        self._places: Callable[[int, int], Sequence[int]] = lambda number, rows: range(rows)
        self._parts: list[Sequence[int]] = []
        self._moved = False
        self._run_on = SeenModelInputs()
        self._leaves: list[tuple[Tap, ProbeBatch]] = []
        hooked = "log-probabilities hooked"
        self._native_forward = patches.read(actor, "_forward_micro_batch", self._forward, what=hooked, why=MEASURED)
        self.hook_clipping()
        self.watch_gradients(lambda: sketches_of(actor.actor_module))

    # ---- what an adapter says

    @abstractmethod
    def hook_clipping(self) -> None:
        """Has the actor's clipping tell what it multiplied the gradients with (`clipped`)."""

    @abstractmethod
    def rows_at(self, places: Sequence[int], logprobs: torch.Tensor) -> Rows:
        """The rows at `places` and what they are meant to train, of what was announced by `expect`."""

    def logprobs_of(self, result: Any) -> torch.Tensor:
        """The log-probabilities in the result of the actor's method."""
        made: torch.Tensor = result
        return made

    def standing_in(self, leaf: torch.Tensor) -> Any:
        """The result of an actor's method that made the log-probabilities `leaf`."""
        return leaf

    # ---- log-probabilities

    def expect(self, given: StepInputs | None, places: Callable[[int, int], Sequence[int]]) -> None:
        """The announcement of the rows that micro-batches are of from now on; None: nothing is expected. places: the
        rows of a micro-batch, by its number in the optimizer step and its number of rows."""
        self._given, self._places = given, places
        self.drop()

    def _forward(self, micro_batch: Any, *arguments: Any, **options: Any) -> Any:
        if self._leaves:
            tap, made = self._leaves.pop(0)
            return self.standing_in(tap.leaf(made.logprobs, made.rows))
        if self._given is not None and torch.is_grad_enabled():
            given = self._given.model_inputs
            self._observation.read(lambda: self._hold_inputs(given, micro_batch, *arguments, **options))
        result = self._native_forward(micro_batch, *arguments, **options)
        if self._given is not None and torch.is_grad_enabled():
            self._hooked(self.logprobs_of(result))
        return result

    def _hooked(self, made: torch.Tensor) -> None:
        if not made.requires_grad:
            return
        places = self._places(len(self._parts), len(made))
        if len(places) == len(made) and made.shape[1] == self._given.mask.shape[1]:
            self._tap.watch(made, self.rows_at(places, made.detach()))
            self._parts.append(places)
        else:
            self._moved = True

    def _hold_inputs(self, given: HeldModelInputs, micro_batch: Any, temperature: float, **options: Any) -> None:
        """Compares what the model is about to be run on; before it is, since it may change that."""
        rows = len(micro_batch["input_ids"])
        places = self._places(len(self._parts), rows)
        if len(places) == rows:  # else the step departs anyway
            self._run_on.compare(given, places, micro_batch, temperature)

    def leaves(self, tap: Tap, made: Sequence[ProbeBatch]) -> None:
        """The next forward passes are none: their log-probabilities are the probe's."""
        self._leaves = [(tap, one) for one in made]

    # ---- between backward and the optimizer

    def look(self, rows: Sequence[TrainedRow | None], first: int) -> list[str]:
        """Reads off what every row of the optimizer step weighed. Returns what this rank has against it. Collective.

        rows: of the step; None is a filler. first: the first one's place in the batch.
        """
        parts, self._parts = self._parts, []
        moved, self._moved = self._moved, False
        objections = self._run_on.objections({row.index: row.named for row in rows if row is not None})
        for row in rows:
            if row is not None:
                row.measured(Measured(math.nan, 0.0))
        try:
            seen = self._tap.take(scale=self._scale)
            if moved:
                raise ValueError("other shapes than the step has")
            by_place = dict(enumerate(rows, start=first))
            objections += read_places(by_place, parts, seen)
        except LostGradient as error:
            objections.append(str(error))
        except ValueError:
            objections.append("the loss did not take the rows of log-probabilities that the step has")
        return objections + self.gradient_objections(1 / self._ranks, self._actor.actor_optimizer)

    def drop(self) -> None:
        """Forgets what was seen since the last `look`."""
        super().drop()
        self._parts.clear()
        self._run_on.drop()
        self._moved = False

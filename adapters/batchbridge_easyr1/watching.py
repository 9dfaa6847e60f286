"""The input of the optimizer in one training process: measured in every optimizer step, in every mode.

Two places, neither of which knows an average of EasyR1's: the log-probabilities that the loss is made of (a hook on the
tensor), and one small weight (its own gradients of every micro-batch against what the optimizer finds).

Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/actor/dp_actor.py; torch 2.13.0 distributed/fsdp (FSDP1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchbridge import LostGradient
from batchbridge.kit import Objective, Surrogate, clip_bounds
from batchbridge.kit.gradient_sketches import sketches_of
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.model_inputs import HeldModelInputs, SeenModelInputs
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.step_probe import MEASURED, StepProbe
from batchbridge.kit.workers import TrainedRow, read_places

MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids", "responses")
"""Columns that a model is run on, or that its log-probabilities are of."""


@dataclass(frozen=True)
class EasyR1StepInputs:
    """The rows of a rank's batch as they arrived: copies, since the loss may change what it is given.

    All of shape (rows, tokens). old, reference: log-probabilities; None where the loss uses none.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None
    model_inputs: HeldModelInputs
    """The rows' tokens and their positions, and the temperature, as the model should be run on them."""

    @classmethod
    def of(
        cls, batch: Mapping[str, torch.Tensor], *, detached: bool, penalised: bool, temperature: float | None = None
    ) -> EasyR1StepInputs:
        """The values that a batch gives. detached: ratios are over the current policy. penalised: a KL term is in the
        loss. temperature: see `HeldModelInputs`."""
        return cls(
            batch["response_mask"].clone(),
            batch["advantages"].clone(),
            None if detached else batch["old_log_probs"].clone(),
            batch["ref_log_probs"].clone() if penalised else None,
            HeldModelInputs.of(batch, MODEL_INPUTS, temperature),
        )

    def rows(self, places: Sequence[int]) -> Rows:
        """Rows for `batchbridge.kit.measuring`: what those at `places` are meant to train."""
        picked = list(places)
        return Rows(
            mask=self.mask[picked],
            advantages=self.advantages[picked],
            old=None if self.old is None else self.old[picked],
            reference=None if self.reference is None else self.reference[picked],
        )


class EasyR1StepProbe(StepProbe):
    """The measuring of one actor's optimizer steps. objective: what its loss computes. ranks: FSDP averages over.
    replicas: the ranks of each have the same rows, and the same gradient at their log-probabilities."""

    def __init__(self, actor: Any, objective: Objective, *, ranks: int, replicas: int, patches: Patches) -> None:
        self._actor, self._ranks, self._replicas = actor, ranks, replicas
        super().__init__(objective, patches)
        self._given: EasyR1StepInputs | None = None
        self._places: Callable[[int, int], Sequence[int]] = lambda number, rows: range(rows)
        self._parts: list[Sequence[int]] = []
        self._moved = False
        self._run_on = SeenModelInputs()
        self._leaves: list[tuple[Tap, ProbeBatch]] = []
        module, hooked = actor.actor_module, "log-probabilities hooked"
        self._native_forward = patches.read(actor, "_forward_micro_batch", self._forward, what=hooked, why=MEASURED)
        self._native_clip = patches.read(module, "clip_grad_norm_", self._clip, what="recorded", why=MEASURED)
        self.watch_gradients(lambda: sketches_of(module))

    def surrogates(self) -> Mapping[str, Surrogate]:
        """EasyR1's own, of the actor's settings."""
        return surrogates(self._actor.config, self.objective)

    # ---- log-probabilities

    def expect(self, given: EasyR1StepInputs | None, places: Callable[[int, int], Sequence[int]]) -> None:
        """The announcement of the rows that micro-batches are of from now on; None: nothing is expected. places: the
        rows of a micro-batch, by its number in the optimizer step and its number of rows."""
        self._given, self._places = given, places
        self.drop()

    def _forward(self, micro_batch: Any, *arguments: Any, **options: Any) -> Any:
        if self._leaves:
            tap, made = self._leaves.pop(0)
            return tap.leaf(made.logprobs, made.rows)
        if self._given is not None and torch.is_grad_enabled():
            given = self._given.model_inputs
            self._observation.read(lambda: self._hold_inputs(given, micro_batch, *arguments, **options))
        result = self._native_forward(micro_batch, *arguments, **options)
        if self._given is not None and result.requires_grad:
            places = self._places(len(self._parts), len(result))
            if len(places) == len(result) and result.shape[1] == self._given.mask.shape[1]:
                self._tap.watch(result, self._given.rows(places))
                self._parts.append(places)
            else:
                self._moved = True
        return result

    def _hold_inputs(self, given: HeldModelInputs, micro_batch: Any, temperature: float) -> None:
        """Compares what the model is about to be run on; before it is, since it may change that."""
        rows = len(micro_batch["input_ids"])
        places = self._places(len(self._parts), rows)
        if len(places) == rows:  # else the step departs anyway
            self._run_on.compare(given, places, micro_batch, temperature)

    def leaves(self, tap: Tap, made: Sequence[ProbeBatch]) -> None:
        """The next forward passes are none: their log-probabilities are the probe's."""
        self._leaves = [(tap, one) for one in made]

    # ---- between backward and the optimizer

    def _clip(self, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        norm = self._native_clip(max_norm, *arguments, **options)
        self.clipped(norm, max_norm)
        return norm

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
            # EasyR1 multiplies a loss with all ranks, over tokens that it counts once for each rank of a replica.
            seen = self._tap.take(scale=self._replicas)
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


def surrogates(config: Any, objective: Objective) -> dict[str, Surrogate]:
    """EasyR1's own surrogates, for which the schema has names and no formulas. Source: EasyR1 0.3.3.dev0
    core_algos.compute_policy_loss."""

    def gspo_token(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean = ((new - old).detach() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        ratio = (mean + new - new.detach()).exp()
        low, high = clip_bounds(objective)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if objective.dual_clip is not None:
            loss = torch.where(advantages < 0, torch.minimum(loss, -objective.dual_clip * advantages), loss)
        return loss

    def sapo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        temperature = torch.where(advantages >= 0, config.tau_positive, config.tau_negative)
        return -advantages * 4.0 / temperature * torch.sigmoid(temperature * ((new - old).exp() - 1))

    return {"gspo_token": gspo_token, "sapo": sapo}

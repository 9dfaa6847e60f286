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
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.sharded import smallest_weight
from batchbridge.kit.workers import TrainedRow


@dataclass(frozen=True)
class EasyR1StepInputs:
    """The rows of a rank's batch as they arrived: copies, since the loss may change what it is given.

    All of shape (rows, tokens). old, reference: log-probabilities; None where the loss uses none.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None

    @classmethod
    def of(cls, batch: Mapping[str, torch.Tensor], *, detached: bool, penalised: bool) -> EasyR1StepInputs:
        """The values that a batch gives. detached: ratios are over the current policy. penalised: a KL term is in the
        loss."""
        return cls(
            batch["response_mask"].clone(),
            batch["advantages"].clone(),
            None if detached else batch["old_log_probs"].clone(),
            batch["ref_log_probs"].clone() if penalised else None,
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


class EasyR1StepProbe:
    """The measuring of one actor's optimizer steps. objective: what its loss computes. ranks: FSDP averages over.
    replicas: the ranks of each have the same rows, and the same gradient at their log-probabilities."""

    def __init__(self, actor: Any, objective: Objective, *, ranks: int, replicas: int, patches: Patches) -> None:
        self._actor, self._ranks, self._replicas, self.objective = actor, ranks, replicas, objective
        self._observation = patches.observation
        self._tap = self.tap()
        self._given: EasyR1StepInputs | None = None
        self._places: Callable[[int, int], Sequence[int]] = lambda number, rows: range(rows)
        self._parts: list[Sequence[int]] = []
        self._moved = False
        self._leaves: list[tuple[Tap, ProbeBatch]] = []
        self._clipping = 1.0
        why, module = "what a step trains is measured", actor.actor_module
        hooked = "log-probabilities hooked"
        self._native_forward = patches.read(actor, "_forward_micro_batch", self._forward, what=hooked, why=why)
        self._native_clip = patches.read(module, "clip_grad_norm_", self._clip, what="recorded", why=why)
        # Nobody asks what it says in a run that is observed, and it takes an exchange of all ranks.
        self._weight = None if self._observation.observes else smallest_weight(text_of(module))
        if self._weight is not None:
            patches.made(self._weight.name, self._weight.witness.remove, what="its gradients hooked", why=why)

    def tap(self) -> Tap:
        """A new one for this objective."""
        own = surrogates(self._actor.config, self.objective).get(_name(self.objective))
        return Tap(self.objective, surrogate=own, hook=self._observation.hook)

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
        result = self._native_forward(micro_batch, *arguments, **options)
        if self._given is not None and result.requires_grad:
            places = self._places(len(self._parts), len(result))
            if len(places) == len(result) and result.shape[1] == self._given.mask.shape[1]:
                self._tap.watch(result, self._given.rows(places))
                self._parts.append(places)
            else:
                self._moved = True
        return result

    def leaves(self, tap: Tap, made: Sequence[ProbeBatch]) -> None:
        """The next forward passes are none: their log-probabilities are the probe's."""
        self._leaves = [(tap, one) for one in made]

    # ---- between backward and the optimizer

    def _clip(self, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        norm = self._native_clip(max_norm, *arguments, **options)
        # Source: torch's FullyShardedDataParallel.clip_grad_norm_, whose factor has this epsilon.
        limit = float(max_norm)
        self._clipping = min(1.0, limit / (float(norm) + 1e-6)) if math.isfinite(limit) else 1.0
        return norm

    def look(self, rows: Sequence[TrainedRow | None], first: int) -> list[str]:
        """Reads off what every row of the optimizer step weighed. Returns what this rank has against it. Collective.

        rows: of the step; None is a filler. first: the first one's place in the batch.
        """
        parts, self._parts = self._parts, []
        moved, self._moved = self._moved, False
        objections = []
        for row in rows:
            if row is not None:
                row.measured(Measured(math.nan, 0.0))
        try:
            # EasyR1 multiplies a loss with all ranks, over tokens that it counts once for each rank of a replica.
            seen = self._tap.take(scale=self._replicas)
            trained = [place - first for part in parts for place in part]
            if moved or sorted(trained) != list(range(len(rows))):
                objections.append("the loss did not take the rows of log-probabilities that the step has")
            else:
                for place, measured in zip(trained, (one for part in seen for one in part), strict=True):
                    row = rows[place]
                    if row is not None:
                        row.measured(measured)
                    elif measured.departure > measured.tolerance:
                        objections.append("a filler row, which has nothing to train, got a gradient")
        except LostGradient as error:
            objections.append(str(error))
        clipping, self._clipping = self._clipping, 1.0
        if self._weight is not None and (why := self._weight.objection(clipping / self._ranks)) is not None:
            objections.append(why)
        return objections

    def drop(self) -> None:
        """Forgets what was seen since the last `look`."""
        self._tap.drop()
        self._parts.clear()
        self._moved, self._clipping = False, 1.0
        if self._weight is not None:
            self._weight.witness.drop()


def text_of(module: Any) -> Any:
    """The last layer that FSDP has a part of its own for in the text of a model with a vision tower, whose weights have
    no gradient in rows without an image; any other model itself."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not any(_in(name, "visual") for name, _ in module.named_modules()):
        return module
    units: dict[str, Any] = {}
    for name, unit in module.named_modules():
        inner = isinstance(unit, FullyShardedDataParallel) and unit is not module
        if inner and _in(name, "language_model") and not any(name.startswith(f"{outer}.") for outer in units):
            units[name] = unit
    return list(units.values())[-1] if units else module


def _in(name: str, part: str) -> bool:
    return part in name.split(".")


def _name(objective: Objective) -> str:
    return objective.surrogate or ""


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

"""Weights by differentiation: what a framework's own loss gives each response token, read off a running trainer.

The gradient that arrives at a token's log-probability is `w * d loss / d logprob`, where the loss of one token is the
objective's (`batchbridge.kit.objectives`) and w the token's weight in the optimizer step. So the weight can be
measured, on any version and any subclass of a trainer, wherever its log-probabilities can be reached:

- `Tap` hooks the log-probabilities of a micro-batch as the model made them, in a step as it runs;
- a leaf in their place needs no model at all: `Tap.leaf`, for a probe before training (see `batchbridge.kit.probing`);
- `Witness` measures what happens after backward: a parameter's own gradients against what the optimizer finds.

Imports torch; knows no framework.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchbridge.errors import LostGradient
from batchbridge.kit.objectives import Surrogate, clip_bounds, importance_ratio, kl_losses, policy_losses
from batchbridge.meaning.spec import Objective

TOLERANCE: Mapping[torch.dtype, float] = {
    # Largest relative departure that rounding explains, by the type of the gradient at the log-probabilities: 64 units
    # in the last place of float32 (measured 0 to 16 on five frameworks), 2 of the half types, whose loss code rounds
    # at every operation.
    torch.float64: 64 * 2.0**-23,  # a float64 gradient of a loss that was computed in float32 is no better than that
    torch.float32: 64 * 2.0**-23,
    torch.bfloat16: 4 * 2.0**-8,
    torch.float16: 16 * 2.0**-11,
}
_EDGE = 1e-4
"""Relative distance of a ratio from its clipping bound within which either side may count: rounding decides there."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a micro-batch and what they are meant to train, as the plan and the rollout have it: not as the loss
    was given it.

    All tensors of shape (rows, tokens), or (rows, 1) where one value holds for a whole row. mask: 1 per trained token.
    old: old log-probabilities; None: the current ones, detached. reference: the reference policy's; None without a KL
    term. multiplier: a factor of each token's policy loss (a correction towards the sampler), or a function of the
    log-probabilities that gives it; None: 1. kl_share: weight of a token's KL term over that of its policy term;
    None: 1.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    multiplier: torch.Tensor | Callable[[torch.Tensor], torch.Tensor] | None = None
    kl_share: torch.Tensor | None = None


@dataclass(frozen=True)
class Measured:
    """One row as it was trained. weight: the factor of its tokens' losses in the gradient at the log-probabilities;
    None where nothing shows it (no trained token, or zero advantage and no KL term). departure: largest distance of a
    token's gradient from `weight` times the objective's, relative to the row's largest; 0 where the loss is the
    objective's. tolerance: what rounding explains of it."""

    weight: float | None
    departure: float
    tolerance: float = TOLERANCE[torch.float32]


class Tap:
    """The gradients at the log-probabilities of a step's micro-batches, and what they say of each row.

    hook: makes what autograd calls of a function of ours (see `Observation.hook`).
    """

    def __init__(
        self,
        objective: Objective,
        *,
        surrogate: Surrogate | None = None,
        hook: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        self._objective, self._surrogate, self._hook = objective, surrogate, hook
        self._pending: list[_MicroBatch] = []

    def watch(
        self, logprobs: torch.Tensor, rows: Rows, *, view: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Hooks a micro-batch's log-probabilities, (rows, tokens); returns them. Without a gradient nothing happens.

        view: makes (rows, tokens) of them, and of their gradient, where a framework packs rows.
        """
        if logprobs.requires_grad:
            seen = _MicroBatch(logprobs.detach(), rows, view)
            self._pending.append(seen)
            logprobs.register_hook(self._hook(seen.arrive))
        return logprobs

    def leaf(
        self, values: torch.Tensor, rows: Rows, *, view: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """A tensor of log-probabilities that no model made, hooked: stands in for a forward pass."""
        return self.watch(values.detach().clone().requires_grad_(True), rows, view=view)

    def drop(self) -> None:
        """Forgets what was watched since the last `take`."""
        self._pending.clear()

    def take(self, *, scale: float = 1.0) -> list[list[Measured]]:
        """The rows of every micro-batch since the last call, in the order in which they were watched.

        scale: what the framework multiplies a loss with because it later divides gradients by as much (averaging over
        data-parallel ranks, say); the weights are divided by it. Raises `LostGradient` for a micro-batch that no
        backward pass reached. Waits for the device once.
        """
        pending, self._pending = self._pending, []
        lost = [number for number, seen in enumerate(pending) if seen.gradient is None]
        if lost:
            raise LostGradient(f"micro-batch {lost[0]} of {len(pending)} was computed, but no gradient came back to it")
        if not pending:
            return []
        found = [self._measure(seen) for seen in pending]
        flat = torch.cat([numbers for numbers, _ in found], dim=1).double().cpu().tolist()
        result, start = [], 0
        for numbers, tolerance in found:
            end = start + numbers.shape[1]
            weights, departures, known = (column[start:end] for column in flat)
            result.append(
                [
                    Measured(weight / scale if is_known else None, departure, tolerance)
                    for weight, departure, is_known in zip(weights, departures, known, strict=True)
                ]
            )
            start = end
        return result

    def _measure(self, seen: _MicroBatch) -> tuple[torch.Tensor, float]:
        """(weight, departure, whether the weight is known) by row, shape (3, rows); and the tolerance."""
        gradient = seen.gradient
        assert gradient is not None, "take looks at this first"
        tolerance = max(TOLERANCE.get(gradient.dtype, 0.0), TOLERANCE.get(seen.logprobs.dtype, 0.0))
        unit, compared = self._unit_gradient(seen)
        found = torch.where(compared, gradient.to(unit.dtype), torch.zeros((), dtype=unit.dtype, device=unit.device))
        unit = torch.where(compared, unit, torch.zeros_like(unit))
        found, unit = found.double(), unit.double()
        length, most = unit.square().sum(1), unit.abs().amax(1)
        weight = (found * unit).sum(1) / length.clamp(min=torch.finfo(torch.float64).tiny)
        # Where the reference is near, a KL term is a small difference of large numbers: it is right but for rounding of
        # its coefficient's size, and a row that shows nothing else shows no weight.
        penalty = self._objective.kl_coefficient or 0.0 if seen.rows.reference is not None else 0.0
        known = most > penalty / 8
        difference = (found - weight[:, None] * unit).abs().amax(1)
        # A row that weighs nothing itself is held against what the others weigh.
        size = weight.abs().amax() * torch.maximum(most, penalty + 1e-3 * most.amax())
        departure = torch.where(difference > 0, difference / size.clamp(min=1e-300), difference)
        departure = torch.nan_to_num(departure, nan=math.inf)
        return torch.stack([torch.nan_to_num(weight, nan=math.inf), departure, known.double()]), tolerance

    def _unit_gradient(self, seen: _MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The objective's own gradient at the log-probabilities, every weight 1; and where it can be compared: outside
        of the mask it is 0, at the edge of a clipping range rounding decides."""
        rows, objective = seen.rows, self._objective
        mask = rows.mask.to(torch.bool)
        with torch.enable_grad():
            # Rows may differ in type (a half log-probability, a float32 advantage); sums are taken in the wider one.
            kind = torch.promote_types(seen.logprobs.dtype, torch.float32)
            new = seen.logprobs.to(kind).requires_grad_(True)
            old = new.detach() if rows.old is None else rows.old.to(kind)
            advantages, trained = rows.advantages.to(kind), mask.to(kind)
            policy = policy_losses(objective, new, old, trained, advantages, self._surrogate)
            if rows.multiplier is not None:
                factor = rows.multiplier if isinstance(rows.multiplier, torch.Tensor) else rows.multiplier(new.detach())
                policy = policy * factor.to(kind)
            reference = None if rows.reference is None else rows.reference.to(kind)
            penalty = kl_losses(objective, new, old, reference, trained)
            if penalty is not None:
                policy = policy + (penalty if rows.kl_share is None else penalty * rows.kl_share.to(kind))
            total = torch.where(mask, policy, torch.zeros_like(policy)).sum()
            (unit,) = torch.autograd.grad(total, new) if total.requires_grad else (torch.zeros_like(new),)
        compared = ~self._on_edge(new.detach(), old.detach(), trained, advantages)
        return unit.detach(), compared

    def _on_edge(
        self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        edge = torch.zeros_like(new, dtype=torch.bool)
        ratio = importance_ratio(self._objective, new, old, mask)
        for bound in (*clip_bounds(self._objective), self._objective.dual_clip):
            if bound is not None and math.isfinite(bound) and bound > 0:
                edge |= (ratio - bound).abs() < _EDGE * bound
        return edge & mask.bool()


def unpacked(places: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A `view` of rows that hold several completions. places: shape (completions, tokens), each token's place in the
    flattened log-probabilities; -1: none."""
    return lambda values: values.flatten()[places].masked_fill(places < 0, 0.0)


class _MicroBatch:
    """A hooked micro-batch; its gradient is there once backward ran."""

    def __init__(
        self, logprobs: torch.Tensor, rows: Rows, view: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self._view = view or (lambda tensor: tensor)
        self.logprobs, self.rows = self._view(logprobs), rows
        self.gradient: torch.Tensor | None = None

    def arrive(self, gradient: torch.Tensor) -> None:
        """A hook: several backward passes over one forward pass add up."""
        gradient = self._view(gradient.detach())
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


def is_blind(name: str) -> bool:
    """Whether a parameter of this name may be without a gradient: a bias, or the matrix of LoRA's that the other one,
    which begins as zeros, leaves without one in the first step."""
    return name.endswith("bias") or ".lora_A." in f".{name}."


class Witness:
    """One small parameter: what backward gave it on every rank, against the gradient that the optimizer finds.

    What stands between the two (averaging over ranks, an engine's own scaling and accumulation) should be one known
    factor: micro-batches whose gradients were lost, or gradients that were changed after backward, show here and
    nowhere else. `all_reduce`: sums a small float64 tensor over the data-parallel ranks in place; collective. apart:
    backward passes are kept apart, so that those whose gradients were lost can be told (`Factor.passes`). inside: the
    module, and its attribute, in whose forward pass the weight is whole, where between passes a rank holds a part of
    it (FSDP).
    """

    def __init__(
        self,
        parameter: torch.Tensor,
        all_reduce: Callable[[torch.Tensor], object] | None = None,
        *,
        apart: bool = False,
        inside: tuple[torch.nn.Module, str] | None = None,
    ) -> None:
        self._all_reduce = all_reduce or (lambda tensor: None)
        self._apart = apart
        self._passes: list[torch.Tensor] = []
        self._kind = parameter.dtype
        self._whole: Callable[[], torch.Tensor | None] = lambda: None
        self.parameter = parameter
        if inside is None:
            self._handles: list[Any] = [parameter.register_hook(self.arrive)]
        else:
            module, self._attribute = inside
            self._handles = [module.register_forward_pre_hook(self._arm)]

    @classmethod
    def choose(
        cls, named: Sequence[tuple[str, torch.Tensor]], *, size: Callable[[torch.Tensor], int] = torch.Tensor.numel
    ) -> tuple[str, torch.Tensor] | None:
        """The smallest trained parameter that may always have a gradient, else the smallest; None without any.

        size: values of a whole parameter, where the rank holds a part of it.
        """
        trained = [(name, one) for name, one in named if one.requires_grad and size(one)]
        return min(trained, key=lambda pair: (is_blind(pair[0]), size(pair[1])), default=None)

    def _arm(self, module: torch.nn.Module, inputs: object) -> None:
        weight: torch.Tensor = getattr(module, self._attribute)
        if torch.is_grad_enabled() and weight.requires_grad and self._whole() is not weight:
            self._whole = weakref.ref(weight)
            del self._handles[1:]  # of a tensor that is no more
            self._handles.append(weight.register_hook(self.arrive))

    def arrive(self, gradient: torch.Tensor) -> None:
        """A hook: this rank's own gradient of one backward pass."""
        self._kind = gradient.dtype
        gradient = gradient.detach().double()
        if self._apart or not self._passes:
            self._passes.append(gradient)
        else:
            self._passes[0] = self._passes[0] + gradient

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()

    def drop(self) -> None:
        """Forgets the gradients since the last `compare`."""
        self._passes.clear()

    def compare(self, found: torch.Tensor | None) -> Factor:
        """The comparison of the gradients since the last call with what the optimizer will use. found: the whole
        gradient that the optimizer will use, or None where it has none. Collective; with `apart`, ranks have run as
        many backward passes each."""
        passes, self._passes = self._passes, []
        like = self.parameter if found is None else found
        total = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
        for gradient in passes:
            total += gradient.to(total.device)
        self._all_reduce(total)
        seen = torch.zeros_like(total) if found is None else found.detach().double()
        length = total.square().sum()
        factor = torch.where(length > 0, (seen * total).sum() / length.clamp(min=1e-300), torch.zeros_like(length))
        rest = torch.linalg.vector_norm(seen - factor * total)
        rest = torch.where(rest > 0, rest / torch.linalg.vector_norm(seen).clamp(min=1e-300), rest)
        values: list[float] = torch.stack([factor, rest, length]).tolist()
        kinds = {self._kind, self.parameter.dtype, self.parameter.dtype if found is None else found.dtype}
        tolerance = 4 * max(TOLERANCE.get(kind, TOLERANCE[torch.float32]) for kind in kinds)
        apart: tuple[float, ...] | None = None
        if self._apart and passes and values[1] > tolerance:  # the same on every rank
            apart = self._factors(torch.stack(passes), seen, tolerance)
        return Factor(values[0], values[1], nothing=not values[2], tolerance=tolerance, passes=apart)

    def _factors(self, passes: torch.Tensor, seen: torch.Tensor, tolerance: float) -> tuple[float, ...] | None:
        """The share of each backward pass's gradient that the optimizer finds; None where that is not decided.
        Collective.

        Gradients of different micro-batches are not multiples of each other, so one sum of them is one set of factors.
        """
        self._all_reduce(passes)
        columns, seen = passes.flatten(1).T.cpu(), seen.flatten().cpu()
        if columns.shape[0] <= columns.shape[1]:
            return None
        factors = torch.linalg.lstsq(columns, seen[:, None], driver="gelsd").solution[:, 0]
        rest = torch.linalg.vector_norm(seen - columns @ factors)
        if not rest <= tolerance * torch.linalg.vector_norm(seen):
            return None
        return tuple(factors.tolist())


@dataclass(frozen=True)
class Factor:
    """The observation of a `Witness`: the optimizer's gradient is `factor` times the sum of all ranks' own, but for
    `rest` (a share of its norm). nothing: there was no gradient at all, or none but zeros. tolerance: what rounding
    explains. passes: the factor of each backward pass, in their order, where they differ and were kept apart; None: not
    known."""

    factor: float
    rest: float
    nothing: bool = False
    tolerance: float = 4 * TOLERANCE[torch.float32]
    passes: tuple[float, ...] | None = None

    def applied(self, expected: float, micro_batches: int) -> list[float]:
        """Share of each micro-batch's gradient that reached the optimizer: 1 where `expected` times it did, 0 where it
        was lost, NaN where nothing shows it."""
        if self.nothing or self.objection(expected) is None:
            return [1.0] * micro_batches
        found = [self.factor] * micro_batches if self.rest <= self.tolerance else self.passes
        if found is None or len(found) != micro_batches:
            return [math.nan] * micro_batches
        shares = [one / expected for one in found]
        return [float(round(one)) if abs(one - round(one)) <= self.tolerance else one for one in shares]

    def objection(self, expected: float) -> str | None:
        """The objection that the optimizer's gradient is not `expected` times backward's; None where it is."""
        if self.nothing:
            return None if not self.rest else "the optimizer finds a gradient, but backward gave none"
        if not (math.isfinite(self.factor) and math.isfinite(self.rest)):
            return None  # a non-finite gradient is the loss's own, and shows in its norm
        if self.rest > self.tolerance:
            return (
                f"the gradient that the optimizer finds is not what the micro-batches gave: {self.rest:.2g} of its "
                f"norm "
                "is something else (a micro-batch whose gradient was lost, or counted twice)"
            )
        if not math.isclose(self.factor, expected, rel_tol=self.tolerance):
            return (
                f"the optimizer finds {self.factor / expected:.6g} times the gradient that the micro-batches gave: "
                f"it was "
                "changed after backward"
            )
        return None


def all_reduce_over(group: Any = None) -> Callable[[torch.Tensor], object]:
    """Sums over the ranks of a process group (None: all); does nothing where there are no processes."""

    def reduce(tensor: torch.Tensor) -> object:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(tensor, group=group)
        return None

    return reduce

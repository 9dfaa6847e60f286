"""Weights by differentiation: what a framework's own loss gives each response token, read off a running trainer.

The gradient that arrives at a token's log-probability is `w * d loss / d logprob`, where the loss of one token is the
objective's (`batchbridge.kit.objectives`) and w the token's weight in the optimizer step. So the weight can be
measured, on any version and any subclass of a trainer, wherever its log-probabilities can be reached:

- `Tap` hooks the log-probabilities of a micro-batch as the model made them, in a step as it runs;
- a leaf in their place needs no model at all: `Tap.leaf`, for a probe before training (see `batchbridge.kit.probing`);
- `Tap.returned` takes down the loss that came of them, whose value should be that of its tokens' losses so weighed;
- `Witness` measures what happens after backward: a parameter's own gradients against what the optimizer finds.

Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from batchbridge.errors import LostGradient
from batchbridge.kit.joined_rows import JoinedRows, joined
from batchbridge.kit.objectives import Surrogate, clip_bounds, importance_ratio
from batchbridge.kit.patches import temporarily
from batchbridge.kit.rounding import TOLERANCE, WIDEST_ALLOWANCE, allowances, token_losses, unit_gradient
from batchbridge.kit.rounding import Rows as Rows  # of what a `Tap` is given
from batchbridge.meaning.spec import Objective

_UNSURE = 64
"""The weight of a row that shows none, at most, over the largest one beside it: rows of a sequence mean differ so."""
_TINY = torch.finfo(torch.float64).tiny
_EDGE = 1e-4
"""Relative distance of a ratio from its clipping bound within which either side may count: rounding decides there."""
_FAR = 19.0
"""Log of a token's ratio beyond which nobody knows its loss: frameworks bound it, from 20 on, in ways of their own."""


@dataclass(frozen=True)
class Measured:
    """One row as it was trained. weight: the factor of its tokens' losses in the gradient at the log-probabilities;
    None where nothing shows it: no trained token, zero advantage and no KL term, or a gradient that rounding alone
    decides. departure: largest distance of a token's gradient from `weight` times the objective's, beyond what
    `rounding.allowances` has for the token, relative to the row's largest; 0 where the loss is the objective's.
    tolerance: what rounding explains of both. loss: the sum of its tokens' losses before they are weighed; loss_size:
    of what rounding is relative to in it, infinite where nobody knows them."""

    weight: float | None
    departure: float
    tolerance: float = TOLERANCE[torch.float32]
    loss: float = 0.0
    loss_size: float = 0.0


class Tap:
    """The gradients at the log-probabilities of a step's micro-batches, and what they say of each row.

    valued: the objective whose value the loss has, where its gradient is another one's (a straight-through KL
    estimator). hook: makes what autograd calls of a function of ours (see `Observation.hook`).
    """

    def __init__(
        self,
        objective: Objective,
        *,
        surrogate: Surrogate | None = None,
        valued: Objective | None = None,
        hook: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        self._objective, self._surrogate, self._hook = objective, surrogate, hook
        self._valued = objective if valued is None else valued
        self._pending: list[_MicroBatch] = []
        self.values: list[float | None] = []
        """The values of the losses of the micro-batches of the last `take`, in the unit of its weights; None: nobody
        said which loss a micro-batch has."""

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

    def returned(self, loss: Any, *, times: float = 1.0, beside: torch.Tensor | float | None = 0.0) -> None:
        """Takes down the loss that the framework's code gave for the micro-batch that was watched last.

        times: what the gradient is multiplied with between the loss and the log-probabilities, beside what the loss
        itself does. beside: the part of the loss's value that terms with a name of their own have; None: nobody knows
        it.
        """
        if self._pending and beside is not None and isinstance(loss, torch.Tensor) and loss.requires_grad:
            seen = self._pending[-1]
            seen.value, seen.loss_gradient = (loss.detach() - beside) * times, None
            loss.register_hook(self._hook(seen.arrive_at_loss))

    @contextlib.contextmanager
    def differentiating(self, beside: Callable[[], torch.Tensor | float | None] = lambda: 0.0) -> Iterator[None]:
        """The span in which a framework differentiates its losses where nobody else can reach them: what it calls
        `backward` of is taken as `returned`. beside: gives that of the micro-batch which was watched last."""
        native = torch.autograd.backward

        def backward(tensors: Any, grad_tensors: Any = None, *given: Any, **options: Any) -> Any:
            if isinstance(tensors, torch.Tensor) and not tensors.dim() and grad_tensors is None:
                self.returned(tensors, beside=beside())
            return native(tensors, grad_tensors, *given, **options)

        with temporarily(torch.autograd, backward=backward):
            yield

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """The span of a micro-batch; where it fails, it was not watched."""
        before = len(self._pending)
        try:
            yield
        except BaseException:
            del self._pending[before:]
            raise

    def drop(self) -> None:
        """Forgets what was watched since the last `take`."""
        self._pending.clear()
        self.values = []

    def take(self, *, scale: float = 1.0) -> list[list[Measured]]:
        """The rows of every micro-batch since the last call, in the order in which they were watched.

        scale: what the framework multiplies a loss with because it later divides gradients by as much (averaging over
        data-parallel ranks, say); the weights are divided by it. Raises `LostGradient` for a micro-batch that no
        backward pass reached. Waits for the device once.
        """
        pending, self._pending, self.values = self._pending, [], []
        lost = [number for number, seen in enumerate(pending) if seen.gradient is None]
        if lost:
            raise LostGradient(f"micro-batch {lost[0]} of {len(pending)} was computed, but no gradient came back to it")
        together = list(joined(seen.together() for seen in pending))
        if not together:
            return []
        values = torch.stack([seen.arrived_value() for seen in pending])
        last = torch.cat([values[None], values.new_zeros(5, len(values))])
        found = torch.cat([*(self._measure(some) for some in together), last], dim=1)
        numbers, result = zip(*found.cpu().tolist(), strict=True), []
        for seen in pending:
            result.append(
                [
                    Measured(weight / scale if known else None, departure, tolerance, loss, size)
                    for weight, departure, tolerance, known, loss, size in islice(numbers, len(seen.logprobs))
                ]
            )
        for seen, (value, *_) in zip(pending, numbers, strict=True):
            self.values.append(None if seen.value is None else value / scale)
        return result

    def _measure(self, seen: JoinedRows) -> torch.Tensor:
        """(weight, departure, tolerance, whether the weight is known, losses of the tokens, their size) by row, shape
        (6, rows)."""
        gradient, own = seen.gradient, seen.coarsest
        base = TOLERANCE.get(own, TOLERANCE[torch.float32])
        unit, allowed, compared = self._expected(seen, own)
        losses, sizes = self._losses(seen, unit, allowed, base)
        zero = torch.zeros((), dtype=torch.float64, device=unit.device)
        found, unit = (torch.where(compared, one.double(), zero) for one in (gradient, unit))
        size_of = unit.abs()
        most = size_of.amax(1)
        if allowed is None:
            sure, spread = unit, torch.zeros_like(most)
        else:
            allowed = torch.where(compared, allowed, zero)
            # A token counts for its row's weight as far as its own gradient is certain.
            sure = unit / (1 + (allowed / (base * most[:, None]).clamp(min=_TINY)).square())
            weighed = (sure * unit).sum(1).clamp(min=_TINY)
            spread = ((sure.abs() * allowed).sum(1) / weighed).minimum(torch.full_like(most, 1e6))
        weight = (found * sure).sum(1) / (sure * unit).sum(1).clamp(min=_TINY)
        # Where the reference is near, a KL term is a small difference of large numbers: it is right but for rounding of
        # its coefficient's size, and a row that shows nothing else shows no weight.
        penalty = self._objective.kl_coefficient or 0.0 if seen.rows.reference is not None else 0.0
        certain = spread <= WIDEST_ALLOWANCE
        known = (most > penalty / 8) & certain
        heaviest = seen.largest(torch.where(certain, weight.abs(), zero))
        difference = (found - weight[:, None] * unit).abs()
        if allowed is not None:
            # A row whose gradient rounding alone decides is held to the size that others of its micro-batch leave it.
            room = _UNSURE * heaviest[:, None] * (size_of + allowed)
            free = (heaviest[:, None] > 0) | (size_of + allowed == 0)
            room = torch.where(free, room, torch.full_like(room, math.inf))
            unsure = (found.abs() - room).clamp(min=0.0)
            difference = (difference - weight.abs()[:, None] * allowed).clamp(min=0.0)
            difference = torch.where(certain[:, None], difference, unsure)
        difference = difference.amax(1)
        # A row that weighs nothing itself is held against what the others weigh.
        size = heaviest * torch.maximum(most, penalty + 1e-3 * seen.largest(most))
        departure = torch.where(difference > 0, difference / size.clamp(min=1e-300), difference)
        departure = torch.nan_to_num(departure, nan=math.inf)
        tolerance = torch.where(certain, spread, zero).clamp(min=base)
        weight = torch.nan_to_num(weight, nan=math.inf)
        return torch.stack([weight, departure, tolerance, known.double(), losses, sizes])

    def _losses(
        self, seen: JoinedRows, unit: torch.Tensor, allowed: torch.Tensor | None, base: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums of the rows' token losses before they are weighed, and of what rounding is relative to in them."""
        new, rows, kind = seen.logprobs, seen.rows, seen.logprobs.dtype
        mask = rows.mask.to(torch.bool)
        policy, penalty, room = token_losses(self._valued, self._surrogate, new, rows, kind)
        sizes = policy.abs() + penalty.abs() + room
        if allowed is not None:  # a steep factor is as uncertain in the loss as it is in the gradient
            steep = allowed / unit.double().abs().clamp(min=_TINY)
            steep = torch.where(steep > WIDEST_ALLOWANCE, torch.full_like(steep, math.inf), steep / base)
            sizes = sizes + torch.where((unit == 0) | (allowed == 0), torch.zeros_like(steep), policy.abs() * steep)
        zero = torch.zeros((), dtype=torch.float64, device=new.device)
        far = torch.zeros_like(mask) if rows.old is None else mask & ~((new - rows.old.to(kind)).abs() < _FAR)
        sizes = torch.where(mask, sizes.double(), zero).sum(1)
        sizes = torch.where(far.any(1) | sizes.isnan(), torch.full_like(sizes, math.inf), sizes)
        return torch.nan_to_num(torch.where(mask, (policy + penalty).double(), zero).sum(1)), sizes

    def _expected(self, seen: JoinedRows, own: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """The objective's own gradient at the log-probabilities, what rounding explains beside it, and where they can
        be compared: outside of the mask a gradient is 0, at the edge of a clipping range rounding decides."""
        new, rows, kind = seen.logprobs, seen.rows, seen.logprobs.dtype
        unit = unit_gradient(self._objective, self._surrogate, new, rows, kind)
        allowed = allowances(self._objective, self._surrogate, new, rows, unit, own)
        old, trained = new if rows.old is None else rows.old.to(kind), rows.mask.to(torch.bool).to(kind)
        return unit, allowed, ~self._on_edge(new, old, trained, rows.advantages.to(kind))

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
        self.value: torch.Tensor | None = None
        """The value of its loss."""
        self.loss_gradient: torch.Tensor | None = None
        """The gradient that arrived at it: whatever divides or scales the loss before its backward pass."""

    def arrive_at_loss(self, gradient: torch.Tensor) -> None:
        """A hook, on the loss."""
        gradient = gradient.detach()
        self.loss_gradient = gradient if self.loss_gradient is None else self.loss_gradient + gradient

    def arrive(self, gradient: torch.Tensor) -> None:
        """A hook: several backward passes over one forward pass add up."""
        gradient = self._view(gradient.detach())
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def arrived_value(self) -> torch.Tensor:
        """The value of its loss times the gradient that arrived there, float64, shape (); NaN where one is missing."""
        if self.value is None or self.loss_gradient is None:
            return torch.full((), math.nan, dtype=torch.float64, device=self.logprobs.device)
        return self.value.double() * self.loss_gradient.double()

    def together(self) -> JoinedRows:
        """It alone, as it is measured."""
        assert self.gradient is not None, "take looks at this first"
        coarsest = max(self.gradient.dtype, self.logprobs.dtype, key=lambda kind: TOLERANCE.get(kind, 0.0))
        # Rows may differ in type (a half log-probability, a float32 advantage); sums are taken in the wider one.
        new = self.logprobs.to(torch.promote_types(self.logprobs.dtype, torch.float32))
        part = torch.zeros(len(new), dtype=torch.long, device=new.device)
        return JoinedRows(new, self.gradient, self.rows.by_numbers(new), coarsest, part)


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

"""Losses that choose tokens of a micro-batch: clip_cov and kl_cov.

Both look for tokens whose log-probability and advantage are far above, or far below, the micro-batch's means together
(their covariance). clip_cov draws some of those between two bounds and trains them not at all; kl_cov takes the largest
and adds a penalty to them. Which tokens those are is a micro-batch's own, and its draw's: nothing says it beforehand.

So it is written down as it happens. Where a micro-batch's log-probabilities are made, the choice is made a second time,
from what arrived at the worker and from the state of torch's generator, which is only read; then the gradient that
comes back from the loss is held against the formulas below, given that choice. A loss that chose other tokens, or did
otherwise with them, gives another gradient.

Source: verl 0.8.0 to 0.9.1 core_algos.compute_policy_loss_clip_cov, compute_policy_loss_kl_cov (the same functions),
torch_functional.masked_mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from batchbridge import LostGradient
from batchbridge.kit import Objective
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.objectives import clip_bounds, policy_losses
from batchbridge_verl.terms import CHOOSING

CLIP, PENALTY = CHOOSING
DEFAULTS = {"clip_cov_ratio": 2e-4, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0, "kl_cov_ratio": 2e-4, "ppo_kl_coef": 1.0}
"""Values that clip_cov and kl_cov take where a setting of `policy_loss` is null. The canonical schema has no words for
these settings: they stay the trainer's own."""


@dataclasses.dataclass(frozen=True)
class MeasuredChoice(Measured):
    """A measured row and its choice. chosen: the tokens that the loss chose, by their places in the row's response,
    from 0."""

    chosen: tuple[int, ...] = ()


class _Part(NamedTuple):
    """One micro-batch. slack: of each row, how much of its gradient a sum of two has left; see `_cancelled`."""

    tap: Tap
    choice: torch.Tensor
    slack: torch.Tensor


class ChoosingTap(Tap):
    """A tap that writes down which tokens of each micro-batch the loss is about to choose, and measures given that.

    It has to be told of log-probabilities after everything random before the loss, and before the loss.
    """

    def __init__(self, objective: Objective, settings: Any) -> None:
        """A tap on losses that choose tokens. settings: `policy_loss` of the actor's configuration."""
        super().__init__(objective)
        self._settings = settings
        self._parts: list[_Part] = []
        self.last: list[torch.Tensor] = []
        """The choices of the step that was taken last, by micro-batch: (rows, tokens), true where one is chosen."""

    def watch(
        self, logprobs: torch.Tensor, rows: Rows, *, view: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The watched log-probabilities of a loss that chooses tokens, as in `Tap.watch`."""
        if not logprobs.requires_grad:
            return logprobs
        new = logprobs.detach() if view is None else view(logprobs.detach())
        old = new if rows.old is None else rows.old
        advantages, mask = rows.advantages.expand_as(new), rows.mask.bool()
        slack = torch.ones(len(new), dtype=torch.float64)
        if self._objective.surrogate == CLIP:
            choice = drawn(self._objective, self._settings, new, old, advantages, mask)
            tap = Tap(self._objective, surrogate=functools.partial(_spared, self._objective, choice))
        else:
            choice = largest(self._settings, new, advantages, mask)
            coefficient = _setting(self._settings, "ppo_kl_coef")
            tap = Tap(_unclipped(self._objective), surrogate=functools.partial(_penalised, choice, coefficient))
            slack = _cancelled(choice, coefficient, new, old, advantages, mask)
        self._parts.append(_Part(tap, choice, slack))
        return tap.watch(logprobs, rows, view=view)

    def drop(self) -> None:
        """The dropping of what was watched, as in `Tap.drop`."""
        self._parts.clear()

    def take(self, *, scale: float = 1.0) -> list[list[Measured]]:
        """The measurements of a loss that chooses tokens, as in `Tap.take`. The rows are `MeasuredChoice`."""
        parts, self._parts = self._parts, []
        self.last = [part.choice for part in parts]
        found: list[list[Measured]] = []
        for number, part in enumerate(parts):
            try:
                (rows,) = part.tap.take(scale=scale)
            except LostGradient:
                lost = f"micro-batch {number} of {len(parts)} was computed, but no gradient came back to it"
                raise LostGradient(lost) from None
            places = [tuple(row.nonzero().flatten().tolist()) for row in part.choice.cpu()]
            told = zip(rows, places, part.slack.tolist(), strict=True)
            found.append(
                [
                    MeasuredChoice(row.weight, row.departure, row.tolerance * slack, chosen)
                    for row, chosen, slack in told
                ]
            )
        return found


# ---- the choices, by the operations of verl's functions: a set is the same only where every rounding is


def drawn(
    objective: Objective,
    settings: Any,
    new: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The choice of clip_cov: true at the tokens that the loss is about to draw. All of shape (rows, tokens); torch's
    generator is left as it is."""
    low, high = clip_bounds(objective)
    ratio = (new - old).exp()
    clipped = -advantages * ratio.clamp(low, high) > -advantages * ratio
    covariance = (advantages - _mean(advantages, mask)) * (new - _mean(new, mask))
    least, most = (_setting(settings, f"clip_cov_{end}") for end in ("lb", "ub"))
    candidates = (mask & ~clipped & (covariance > least) & (covariance < most)).nonzero()
    count = max(int(_setting(settings, "clip_cov_ratio") * int(mask.sum())), 1)
    choice = torch.zeros_like(mask)
    if len(candidates):
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
        order = torch.randperm(len(candidates), generator=generator)[:count]
        rows, tokens = candidates[order.to(candidates.device)].unbind(1)
        choice[rows, tokens] = True
    return choice


def largest(settings: Any, new: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The choice of kl_cov: true at the tokens of the largest covariance, as `drawn`."""
    choice = torch.zeros_like(mask)
    places = mask.nonzero()
    if len(places):
        far = [values[mask].cpu() for values in (advantages, new)]
        covariance = (far[0] - far[0].mean()) * (far[1] - far[1].mean())
        count = min(max(1, int(len(places) * _setting(settings, "kl_cov_ratio"))), len(places))
        rows, tokens = places[covariance.topk(count).indices.to(places.device)].unbind(1)
        choice[rows, tokens] = True
    return choice


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (torch.where(mask, values, 0.0) * mask).sum() / (mask.sum() + 1e-8)


def _setting(settings: Any, name: str) -> float:
    value = getattr(settings, name, None)
    return DEFAULTS[name] if value is None else float(value)


# ---- the loss of a token, given the choice


def _spared(
    objective: Objective,
    choice: torch.Tensor,
    new: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The losses of PPO with one clip, and nothing of what is chosen."""
    plain = dataclasses.replace(objective, surrogate="ppo", dual_clip=None)
    return policy_losses(plain, new, old, mask, advantages) * ~choice


def _penalised(
    choice: torch.Tensor,
    coefficient: float,
    new: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The policy gradient's without a clip, and a penalty on what is chosen."""
    log_ratio = new - old
    return -log_ratio.exp() * advantages + coefficient * choice * log_ratio.abs()


def _unclipped(objective: Objective) -> Objective:
    return dataclasses.replace(objective, clip_low=None, clip_high=None, dual_clip=None)


def _cancelled(
    choice: torch.Tensor,
    coefficient: float,
    new: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The factor by which the two parts of kl_cov's gradient are larger than their sum, of each row's largest: where
    they cancel, rounding is that of the parts."""
    log_ratio = (new - old).double()
    gain, penalty = -log_ratio.exp() * advantages, coefficient * choice * log_ratio.sign()
    parts, whole = ((values * mask).abs().amax(1) for values in (gain.abs() + penalty.abs(), gain + penalty))
    return torch.where(whole > 0, parts / whole.clamp(min=1e-300), torch.ones_like(whole)).cpu()


# ---- a probe


@contextlib.contextmanager
def choosing_nothing(settings: Any) -> Iterator[None]:
    """The span in which clip_cov has no candidates. settings: `policy_loss` of the actor's configuration, which verl
    freezes."""
    native = settings.clip_cov_lb
    object.__setattr__(settings, "clip_cov_lb", math.inf)
    try:
        yield
    finally:
        object.__setattr__(settings, "clip_cov_lb", native)

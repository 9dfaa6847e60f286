"""The rounding that a loss may show at each token's log-probability: what its type and its own formula make of it.

A factor of the ratio may be steep: VESPO's is exp(c + k x - c exp(x)) of a log ratio x that is summed up over a whole
sequence, SAPO's gate saturates. Whatever rounded before comes out many times as large there, so that one bar for all
tokens would be too strict for those far from where they were sampled, or too loose for all others. So each token has an
allowance of its own, computed from the objective's formula as it stands: nobody states it. Imports torch; knows no
framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from batchbridge.kit.objectives import Surrogate, kl_losses, policy_losses
from batchbridge.meaning.spec import Objective

TOLERANCE: Mapping[torch.dtype, float] = {
    # Largest relative departure that rounding explains where a factor is not steep, by the type of the gradient at the
    # log-probabilities: 64 units in the last place of float32 (measured 0 to 16 on five frameworks), 2 of the half
    # types, whose loss code rounds at every operation.
    torch.float64: 64 * 2.0**-23,  # a float64 gradient of a loss that was computed in float32 is no better than that
    torch.float32: 64 * 2.0**-23,
    torch.bfloat16: 4 * 2.0**-8,
    torch.float16: 16 * 2.0**-11,
}
WIDEST_ALLOWANCE = 1 / 8
"""The relative uncertainty beyond which a token or a row shows no weight."""
_INPUT_ROUNDINGS = 2
"""Roundings of a log ratio, as many units in the last place of the sizes that it is summed up from."""
_FORMULA_ROUNDINGS = 4
"""The distance between two ways to compute one formula, over its own from the exact value in the same type."""
_LOST_BELOW = 1e-30
"""The gradient, before it is weighed, whose product with a weight may be less than float32's smallest normal number."""
_STEP = 2.0**-20
"""The relative change of log ratios by which their effect is told, in float64."""


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

    def by_numbers(self, new: torch.Tensor) -> Rows:
        """The same rows with their multiplier as numbers, of the current log-probabilities."""
        made = self.multiplier
        return self if made is None or isinstance(made, torch.Tensor) else replace(self, multiplier=made(new))


def token_losses(
    objective: Objective, surrogate: Surrogate | None, new: torch.Tensor, rows: Rows, kind: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The policy and the KL losses of each token, every weight 1, computed in one type, and what the latter round by,
    in that type's units: an estimate near 0 is a difference of numbers of the size of 1. The rows' multiplier is
    numbers; outside of the mask they have any value."""
    old = new.detach() if rows.old is None else rows.old.to(kind)
    trained = rows.mask.to(torch.bool).to(kind)
    policy = policy_losses(objective, new, old, trained, rows.advantages.to(kind), surrogate)
    if isinstance(rows.multiplier, torch.Tensor):
        policy = policy * rows.multiplier.to(kind)
    reference = None if rows.reference is None else rows.reference.to(kind)
    penalty = kl_losses(objective, new, old, reference, trained)
    if penalty is None:
        return policy, torch.zeros_like(policy), torch.zeros_like(policy)
    share = torch.ones_like(penalty) if rows.kl_share is None else rows.kl_share.to(kind)
    return policy, penalty * share, share.detach().abs() * (objective.kl_coefficient or 0.0)


def unit_gradient(
    objective: Objective, surrogate: Surrogate | None, new: torch.Tensor, rows: Rows, kind: torch.dtype
) -> torch.Tensor:
    """The objective's own gradient at the log-probabilities, every weight 1, computed in one type. The rows'
    multiplier is numbers; outside of the mask it is 0."""
    mask = rows.mask.to(torch.bool)
    with torch.enable_grad():
        new = new.detach().to(kind).requires_grad_(True)
        policy, penalty, _ = token_losses(objective, surrogate, new, rows, kind)
        total = torch.where(mask, policy + penalty, torch.zeros_like(policy)).sum()
        (unit,) = torch.autograd.grad(total, new) if total.requires_grad else (torch.zeros_like(new),)
    return unit.detach()


def allowances(
    objective: Objective,
    surrogate: Surrogate | None,
    new: torch.Tensor,
    rows: Rows,
    unit: torch.Tensor,
    own: torch.dtype,
) -> torch.Tensor | None:
    """The distance from `unit`, by token, that rounding explains beside `TOLERANCE`; None where every ratio is one.

    unit: the rows' `unit_gradient`. own: the type that the loss is computed in. Three things add up: what rounding of
    the log ratios becomes in the factor, what its formula loses in its own type (a gate that is nearly 1, say), and
    gradients that are too small for that type.
    """
    if rows.old is None and rows.reference is None:
        return None
    wide = torch.float64
    new = new.detach().to(wide)
    old = new if rows.old is None else rows.old.to(wide)
    moved_old = old - _STEP * (new - old).abs()  # all of a sequence's to one side: the worst that they can add up to
    reference = None if rows.reference is None else rows.reference.to(wide)
    moved_reference = None if reference is None else reference + _STEP * (reference - new).abs()
    exact, ratios, estimates = _together(
        lambda new, rows: unit_gradient(objective, surrogate, new, rows, wide),
        new,
        replace(rows, old=old, reference=reference),
        replace(rows, old=moved_old, reference=reference),
        replace(rows, old=old, reference=moved_reference),
    )
    half = own in (torch.bfloat16, torch.float16)
    computed = unit_gradient(objective, surrogate, new, rows, own) if half else unit
    reference_point = unit.to(wide)
    change = ((ratios - exact).abs() + (estimates - exact).abs()) / _STEP
    lost = (computed.to(wide) - (reference_point if half else exact)).abs()
    allowed = _INPUT_ROUNDINGS * torch.finfo(own).eps * change + _FORMULA_ROUNDINGS * lost
    allowed = allowed + torch.where(reference_point.abs() < _LOST_BELOW, _LOST_BELOW, 0.0) * (exact != 0)
    return torch.where(rows.mask.to(torch.bool), allowed, torch.zeros_like(allowed)).nan_to_num(nan=0.0, posinf=0.0)


def _together(
    function: Callable[[torch.Tensor, Rows], torch.Tensor], new: torch.Tensor, *each: Rows
) -> tuple[torch.Tensor, ...]:
    """A function of rows, of several versions of the same ones at once."""

    def joined(name: str) -> torch.Tensor | None:
        parts = [getattr(one, name) for one in each]
        return None if parts[0] is None else torch.cat(parts)

    names = ("mask", "advantages", "old", "reference", "multiplier", "kl_share")
    rows = Rows(**{name: joined(name) for name in names})
    made: tuple[torch.Tensor, ...] = function(torch.cat([new] * len(each)), rows).chunk(len(each))
    return made

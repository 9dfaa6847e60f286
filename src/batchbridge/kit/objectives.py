"""The loss of one response token, in plain torch: what `Objective` says, before any token is weighed.

The one place where the schema's surrogates and KL estimators are formulas: the oracle differentiates them in float64,
and `batchbridge.kit.measuring` holds the gradients of running trainers against them. Imports torch: no part of the core
that reads or plans imports this module.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from batchbridge.meaning.spec import Objective

Surrogate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A framework's own policy loss per token, of (log-probabilities, old ones, advantages, loss mask): for what the schema
has a name and no formula for. All of shape (rows, tokens), the advantages (rows, 1) or (rows, tokens)."""

WITH_SCORE = "_with_score"
"""The ending of estimators whose gradient includes the score function's term: that of the estimate times
`exp(new - new.detach())`, which is 1. With k3 that is k2's gradient, and the word is "k3+"."""
KL_ESTIMATORS = ("k1", "k2", "k3", "k1_times_ratio", "k3_times_ratio", "abs", f"k1{WITH_SCORE}", f"k2{WITH_SCORE}")
"""KL estimators with a formula here; verl's straight-through variants ("k1+", ...) have that of k2 as their
gradient."""


def policy_losses(
    objective: Objective,
    new: torch.Tensor,
    old: torch.Tensor,
    mask: torch.Tensor,
    advantages: torch.Tensor,
    surrogate: Surrogate | None = None,
) -> torch.Tensor:
    """Policy loss per token, shape (rows, tokens), before weighting; tokens outside of the mask have any value.

    new, old: log-probabilities, (rows, tokens). mask: 1 per trained token. advantages: (rows, 1) or (rows, tokens).
    surrogate: replaces the objective's. Raises `ValueError` for a surrogate that the schema knows no formula of.
    """
    if surrogate is not None:
        return surrogate(new, old, advantages, mask)
    ratio = importance_ratio(objective, new, old, mask)
    low, high = clip_bounds(objective)
    if objective.surrogate in ("ppo", "gspo", None):  # gspo is ppo with a ratio over the sequence
        loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if objective.dual_clip is not None:
            bounded = torch.minimum(loss, -objective.dual_clip * advantages)
            loss = torch.where(advantages < 0, bounded, loss)
        return loss
    if objective.surrogate == "cispo":
        return -ratio.clamp(low, high).detach() * advantages * new
    raise ValueError(f"objective.surrogate = {objective.surrogate}: formulas are there for ppo, gspo and cispo")


def kl_losses(
    objective: Objective, new: torch.Tensor, old: torch.Tensor, reference: torch.Tensor | None, mask: torch.Tensor
) -> torch.Tensor | None:
    """KL penalty per token times its coefficient, shape (rows, tokens); None where the loss has none.

    Where a log ratio or an estimate is beyond its bound, the token's penalty is constant, and has no gradient.
    Raises `ValueError` for an estimator without a formula, or a missing reference.
    """
    if objective.kl_placement != "loss" or not objective.kl_coefficient:
        return None
    estimator = objective.kl_estimator or ""
    if reference is None or estimator.removesuffix("+") not in KL_ESTIMATORS:
        raise ValueError(f"objective.kl_estimator = {estimator}: needs {', '.join(KL_ESTIMATORS)}, and a reference")
    difference = reference - new
    if objective.kl_log_ratio_clamp is not None:
        difference = difference.clamp(-objective.kl_log_ratio_clamp, objective.kl_log_ratio_clamp)
    kind = estimator.removesuffix(WITH_SCORE)
    penalty = difference.exp() - difference - 1
    if kind == "k1":
        penalty = -difference
    elif kind == "k2" or estimator.endswith("+"):
        penalty = 0.5 * difference**2
    elif estimator == "abs":
        penalty = difference.abs()
    elif estimator == "k3_times_ratio":
        penalty = penalty * importance_ratio(objective, new, old, mask)
    elif estimator == "k1_times_ratio":
        penalty = -difference * importance_ratio(objective, new, old, mask)
    if kind != estimator:
        free = difference == reference - new
        penalty = penalty * torch.where(free, new - new.detach(), torch.zeros_like(new)).exp()
    if objective.kl_clamp is not None:
        penalty = penalty.clamp(-objective.kl_clamp, objective.kl_clamp)
    return objective.kl_coefficient * penalty


def importance_ratio(objective: Objective, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """New over old probability of each token, or of the sequence (the geometric mean of its tokens), (rows, tokens)."""
    log_ratio = new - old
    if objective.ratio_level == "sequence":
        mean = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = mean.expand_as(new)
    return log_ratio.exp()


def clip_bounds(objective: Objective) -> tuple[float, float]:
    """The ratio's lower and upper bound; 0 and infinity where it is not clipped."""
    low = 0.0 if objective.clip_low is None else 1 - objective.clip_low
    high = float("inf") if objective.clip_high is None else 1 + objective.clip_high
    return low, high

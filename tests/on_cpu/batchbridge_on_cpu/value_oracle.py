"""The oracle of a critic: what the gradient of one of its optimizer steps is, one completion at a time, in float64.

As `batchbridge.testing.oracle`, of half the squared error of a token's value instead of a policy's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchbridge.meaning.spec import LossTerm
from batchbridge.meaning.weights import Row, token_weights


@dataclass(frozen=True, kw_only=True)
class ValueSample:
    """One completion of a critic's optimizer step.

    prompt, completion: token ids. loss_mask: 1 per trained token. group: identifies its prompt's group. returns,
    old_values: of each of its tokens.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    loss_mask: Sequence[int]
    group: int
    returns: torch.Tensor
    old_values: torch.Tensor


def values(model: Any, sample: ValueSample) -> torch.Tensor:
    """Values of the completion's tokens, each of the state before its token, shape (completion tokens,)."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*sample.prompt, *sample.completion]], device=device)
    found: torch.Tensor = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1, 0]
    return found


def value_gradient(
    model: Any,
    samples: Sequence[ValueSample],
    *,
    term: LossTerm,
    clip: float | None,
    weights: Iterable[float] | None = None,
) -> torch.Tensor:
    """The gradient of one optimizer step of a critic, flat, in the order of its trained parameters.

    clip: see `Critic.value_clip`. weights: instead of those that `term` gives.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    if weights is None:
        rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
        weights = [float(weight) for weight in token_weights(term, rows)]
    for sample, weight in zip(samples, weights, strict=True):
        new = values(model, sample)
        old, returns, mask = (
            one.to(new) for one in (sample.old_values, sample.returns, torch.tensor(sample.loss_mask))
        )
        error = (new - returns) ** 2
        if clip is not None:
            error = torch.maximum(error, (old + (new - old).clamp(-clip, clip) - returns) ** 2)
        (weight * (error / 2 * mask).sum()).backward()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().clone() for p in parameters]
    )


def clipped_share(model: Any, samples: Sequence[ValueSample], clip: float) -> float:
    """The share of trained tokens whose value has moved further than `clip`."""
    clipped, total = 0, 0
    for sample in samples:
        with torch.no_grad():
            far = (values(model, sample) - sample.old_values).abs() > clip
        clipped += int((far & torch.tensor(sample.loss_mask, dtype=torch.bool)).sum())
        total += sum(sample.loss_mask)
    return clipped / max(total, 1)

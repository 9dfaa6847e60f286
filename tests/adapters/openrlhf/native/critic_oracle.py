"""The oracle of a critic's optimizer step: values, returns and the value loss in plain torch, one completion at a
time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from batchbridge.testing.oracle import Sample

CLIP = 0.2
"""Most that a value is taken to move from the rollout's."""


def ppo(new: torch.Tensor, old: torch.Tensor, advantage: Any) -> torch.Tensor:
    """PPO's loss of each token, its advantages of single tokens."""
    ratio, advantage = (new - old).exp(), advantage.to(new)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def values(model: Any, sample: Sample) -> torch.Tensor:
    """Values of the states before each of the completion's tokens, shape (completion tokens,), differentiable."""
    hidden = model.model(input_ids=torch.tensor([[*sample.prompt, *sample.completion]])).last_hidden_state
    return model.score(hidden)[0, len(sample.prompt) - 1 : -1, 0]


Scored = Sequence[tuple[Sample, torch.Tensor, torch.Tensor]]


def value_gradient(model: Any, rows: Scored, denominators: Sequence[float] | None = None) -> torch.Tensor:
    """The gradient of half the squared errors' mean over the rows' trained tokens, clipped; one row at a time.

    denominators: of each row, in place of the step's tokens.
    """
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    whole = sum(sum(sample.loss_mask) for sample, _, _ in rows)
    for place, (sample, old, returns) in enumerate(rows):
        found = values(model, sample)
        mask, old, returns = found.new_tensor(list(sample.loss_mask)), old.to(found), returns.to(found)
        bounded = old + (found - old).clamp(-CLIP, CLIP)
        loss = 0.5 * torch.maximum((found - returns) ** 2, (bounded - returns) ** 2)
        ((loss * mask).sum() / (whole if denominators is None else denominators[place])).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone() for p in parameters])


def clipped(model: Any, rows: Scored) -> float:
    """Share of trained tokens whose value has no gradient, being clipped."""
    held, whole = 0, 0
    for sample, old, returns in rows:
        with torch.no_grad():
            found = values(model, sample)
        bounded = old + (found - old).clamp(-CLIP, CLIP)
        off = ((bounded - returns).abs() > (found - returns).abs()) & torch.tensor(sample.loss_mask).bool()
        held, whole = held + int(off.sum()), whole + sum(sample.loss_mask)
    return held / max(whole, 1)


def gae(values: torch.Tensor, reward: float, *, gamma: float, lambda_: float) -> torch.Tensor:
    """Advantages of the trained tokens of one completion, of their values and the reward that the last of them has:
    the sum over later tokens of `(gamma lambda)^k` times what each of them was better than its value said."""
    count = len(values)
    rewards = torch.zeros_like(values)
    if count:
        rewards[-1] = reward
    later = torch.cat([values[1:], values.new_zeros(1)])
    better = rewards + gamma * later - values
    return (
        torch.stack(
            [sum((gamma * lambda_) ** (k - t) * better[k] for k in range(t, count)) for t in range(count)]  # type: ignore[misc]
        )
        if count
        else values.clone()
    )


def whitened(advantages: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Advantages of a rollout's completions, less their mean over all tokens and divided by their deviation."""
    every = torch.cat(list(advantages))
    return [(one - every.mean()) / every.std(correction=0) for one in advantages]

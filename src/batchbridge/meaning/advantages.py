"""Group advantages by the schema's rule, in plain Python: for drivers that hold one reward per completion."""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchbridge.meaning.spec import Advantage

RULED = ("group_mean", "leave_one_out", "none")
"""Baselines that rewards alone decide; "value" needs a critic, "open" is the framework's own."""


def group_advantages(groups: Sequence[Sequence[float]], rule: Advantage) -> list[list[float]]:
    """One advantage per completion, by `rule`; groups are the completions of one prompt, the whole being one rollout.

    A NaN reward (no reward function answered) takes no part, and its completion gets 0. Raises `ValueError` for a
    baseline that rewards do not decide. The numbers of each baseline and scale: docs/schema.md.
    """
    if rule.baseline not in RULED:
        raise ValueError(f"advantage.baseline = {rule.baseline}: rewards do not decide it")
    ddof = 1 if rule.ddof is None else rule.ddof
    rewards = [reward for group in groups for reward in group if not math.isnan(reward)]
    batch_scale = _deviation(rewards, ddof) + (rule.epsilon or 0.0) if rule.scale == "batch" else 1.0
    result = []
    for group in groups:
        known = [reward for reward in group if not math.isnan(reward)]
        count = len(known)
        mean = math.fsum(known) / count if count else 0.0
        scales = dict.fromkeys(known, batch_scale)
        if rule.scale == "group":
            scales = dict.fromkeys(known, _deviation(known, ddof) + (rule.epsilon or 0.0))
        elif rule.scale == "group_others":
            scales = {reward: _scale_of_others(known, reward, ddof, rule.epsilon or 0.0) for reward in scales}
        result.append([_advantage(reward, mean, count, scales.get(reward, 0.0), rule) for reward in group])
    return result


def _scale_of_others(known: Sequence[float], reward: float, ddof: int, epsilon: float) -> float:
    """The number that a completion with `reward` is divided by: 1 where all the others have one reward."""
    others = list(known)
    others.remove(reward)
    deviation = _deviation(others, ddof)
    return deviation + epsilon if deviation else 1.0


def _advantage(reward: float, mean: float, count: int, scale: float, rule: Advantage) -> float:
    if math.isnan(reward):
        return 0.0
    value = reward - (mean if rule.baseline != "none" else 0.0)
    if rule.baseline == "leave_one_out":
        value *= count / max(count - 1, 1)
    value = value / scale if scale else 0.0
    if rule.minimum is not None:
        value = max(value, rule.minimum)
    if rule.maximum is not None:
        value = min(value, rule.maximum)
    return value


def _deviation(values: Sequence[float], ddof: int) -> float:
    if len(values) <= ddof or min(values) == max(values):  # rounding must make no deviation of equal rewards
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))

"""The advantages of a rollout: recomputed from the rewards that were recorded, and what the trainer gives held against
them; and the settings by which it generates and scores, which stay what they were when the trainer was wrapped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge.kit import Advantage
from batchbridge.kit.allowing import ADVANTAGES
from batchbridge.kit.producers import (
    ProducerSettings,
    RuledAdvantages,
    advantage_objection,
    ruled_advantages,
)
from batchbridge_trl.copied import SAMPLING

_NORMALISED = Advantage(baseline="group_mean", scale="group", epsilon=1e-4, ddof=1)
"""One function's rewards in a group, and their sums in a rollout, with `normalize_then_sum`. Source: trl 0.27.0 to
1.16.0, GRPOTrainer._generate_and_score_completions."""
_READ: Mapping[str, Sequence[str]] = {
    # Part of the trainer -> what generation and scoring read there. Source: trl 0.18.0 to 1.16.0, GRPOTrainer.
    "": (
        *("num_generations", "scale_rewards", "multi_objective_aggregation", "reward_weights"),
        *("mask_truncated_completions", "off_policy_mask_threshold", *SAMPLING),
    ),
    "generation_config": SAMPLING,
    "vllm_generation": SAMPLING,
    "request_config": (*SAMPLING, "max_tokens", "stop"),  # ms-swift's
}


class TrlAdvantages:
    """The advantages that the rewards of one trainer's rollouts give. rule: the trainer's own; group: completions of
    one prompt; allow: see `wrap`."""

    def __init__(self, trainer: Any, rule: Advantage, group: int, allow: Collection[str]) -> None:
        self._trainer, self._rule, self._group = trainer, rule, group
        self.allowed = ADVANTAGES in allow
        self.settings = ProducerSettings(lambda: dict(_settings(trainer)))

    def objection(
        self, found: torch.Tensor, first: int, per_function: torch.Tensor, rewards: torch.Tensor
    ) -> str | None:
        """The objection to the advantages that a rollout was given. first: the number of their first completion in the
        rollout. per_function, rewards: of the whole rollout, by function and summed up."""
        if found.dim() != 1:
            return (
                f"they have the shape {tuple(found.shape)}, one number per token, and a step carries one number per "
                'completion: give one per completion, or wrap with mode="observe"'
            )
        if not len(found) <= len(rewards) or len(rewards) % self._group:
            return (
                f"{len(rewards)} rewards were seen of a rollout with groups of {self._group}: give each completion one"
            )
        if self.allowed or torch.isinf(rewards).any():  # TRL makes 0 of what is no number
            return None
        # Earlier releases of TRL take a completion that no function scored for one with the reward 0.
        unscored = [rewards, rewards.nan_to_num(nan=0.0)] if torch.isnan(rewards).any() else [rewards]
        numbered = list(enumerate(found.tolist(), start=first))
        said = [advantage_objection(numbered, self._expected(per_function, one)) for one in unscored]
        return None if None in said else said[0]

    def _expected(self, per_function: torch.Tensor, rewards: torch.Tensor) -> RuledAdvantages:
        """The rollout's advantages."""
        if getattr(self._trainer, "multi_objective_aggregation", None) != "normalize_then_sum":
            return ruled_advantages(rewards.tolist(), self._rule, self._group)
        weights = self._trainer.reward_weights.tolist()
        sums, moved = [0.0] * len(rewards), [0.0] * len(rewards)
        for weight, column in zip(weights, per_function.T, strict=True):
            normalised, rooms = ruled_advantages(column.tolist(), _NORMALISED, self._group)
            sums = [total + weight * value for total, value in zip(sums, normalised, strict=True)]
            moved = [total + abs(weight) * room for total, room in zip(moved, rooms, strict=True)]
        whole = torch.tensor(sums, dtype=torch.float64).masked_fill(rewards.isnan().cpu(), torch.nan)
        wanted, rooms = ruled_advantages(whole.tolist(), _NORMALISED, len(sums))
        # What rounding moved before is divided once more: each row, and all of them, as the mean and the deviation.
        spread, steepest = max(sums) - min(sums), max(map(abs, wanted))
        scale = spread / steepest if spread and steepest else _NORMALISED.epsilon or 1.0
        of_all = (1.0 + steepest) * sum(moved) / len(moved)
        return RuledAdvantages(wanted, [room + (own + of_all) / scale for room, own in zip(rooms, moved, strict=True)])


def _settings(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of everything that generation and scoring read, as far as the trainer has it."""
    for part, names in _READ.items():
        owner = getattr(trainer, part, None) if part else trainer
        for name in names:
            value = getattr(owner, name, None)
            yield f"{part}.{name}" if part else name, value.tolist() if isinstance(value, torch.Tensor) else value

"""The rewards of all ranks and this rank's tokens of a rollout, kept where a trainer computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from batchbridge.kit.patches import Patches
from batchbridge_trl import releases


class RewardTap:
    """Instance patch that keeps what TRL computed of a rollout: this rank's token ids, and all ranks' rewards.

    trl 0.18 computes rewards inside of `_generate_and_score_completions`; they are read where it logs them.
    """

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        self.forget()
        inside = not releases.has(releases.HAS_CALCULATE_REWARDS)
        attribute = "_generate_and_score_completions" if inside else "_calculate_rewards"
        own = self._generated if inside else self._calculated
        self._native = patches.read(trainer, attribute, own, what="recorded", why="ledger and advantages")

    def generating(self, native: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The method that generates and scores, whose rollouts are in TRL's columns."""
        return native

    def forget(self) -> None:
        """Forgets the rollout before."""
        self.completion_ids: list[list[int]] = []
        self.rewards = self.per_function = torch.zeros(0)

    def _calculated(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        per_function: torch.Tensor = self._native(inputs, prompts, completions, completion_ids_list)
        self._keep(completion_ids_list, per_function)
        return per_function

    def _generated(self, inputs: Any) -> Any:
        logs = self._trainer._textual_logs
        heard = logs["rewards"] = _Heard(logs["rewards"])
        try:
            output = self._native(inputs)
        finally:
            logs["rewards"] = heard.native
        eos = self._trainer.processing_class.eos_token_id
        ids = output["completion_ids"].tolist()  # up to the first end-of-sequence, as trl masks them
        ids = [row[: row.index(eos) + 1] if eos in row else row for row in ids]
        self._keep(ids, torch.tensor(heard.columns, device=output["completion_ids"].device).T)
        return output

    def _keep(self, completion_ids: Any, per_function: torch.Tensor) -> None:
        self.completion_ids = [list(map(int, ids)) for ids in completion_ids]
        self.per_function = per_function
        weights = self._trainer.reward_weights.to(per_function.device)
        self.rewards = (per_function * weights.unsqueeze(0)).nansum(dim=1)
        self.rewards[torch.isnan(per_function).all(dim=1)] = torch.nan


class _Heard:
    """A stand-in for trl's log of rewards by function, while a rollout is generated, which keeps what comes."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.columns: list[list[float]] = []
        self._name = ""

    def __getitem__(self, name: str) -> _Heard:
        self._name = name
        return self

    def extend(self, rewards: list[float]) -> None:
        """One function's rewards of all ranks."""
        self.columns.append(list(rewards))
        self.native[self._name].extend(rewards)

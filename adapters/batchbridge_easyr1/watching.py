"""The input of the optimizer in one training process: measured in every optimizer step, in every mode.

Two places, neither of which knows an average of EasyR1's: the log-probabilities that the loss is made of (a hook on the
tensor), and one small weight (its own gradients of every micro-batch against what the optimizer finds).

Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/actor/dp_actor.py; torch 2.13.0 distributed/fsdp (FSDP1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchbridge.kit import Objective, Surrogate, clip_bounds
from batchbridge.kit.measuring import Rows
from batchbridge.kit.model_inputs import HeldModelInputs
from batchbridge.kit.step_probe import MEASURED
from batchbridge.kit.update_probe import UpdateProbe

MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids", "responses")
"""Columns that a model is run on, or that its log-probabilities are of."""


@dataclass(frozen=True)
class EasyR1StepInputs:
    """The rows of a rank's batch as they arrived: copies, since the loss may change what it is given.

    All of shape (rows, tokens). old, reference: log-probabilities; None where the loss uses none.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None
    model_inputs: HeldModelInputs
    """The rows' tokens and their positions, and the temperature, as the model should be run on them."""

    @classmethod
    def of(
        cls, batch: Mapping[str, torch.Tensor], *, detached: bool, penalised: bool, temperature: float | None = None
    ) -> EasyR1StepInputs:
        """The values that a batch gives. detached: ratios are over the current policy. penalised: a KL term is in the
        loss. temperature: see `HeldModelInputs`."""
        return cls(
            batch["response_mask"].clone(),
            batch["advantages"].clone(),
            None if detached else batch["old_log_probs"].clone(),
            batch["ref_log_probs"].clone() if penalised else None,
            HeldModelInputs.of(batch, MODEL_INPUTS, temperature),
        )

    def rows(self, places: Sequence[int]) -> Rows:
        """Rows for `batchbridge.kit.measuring`: what those at `places` are meant to train."""
        picked = list(places)
        return Rows(
            mask=self.mask[picked],
            advantages=self.advantages[picked],
            old=None if self.old is None else self.old[picked],
            reference=None if self.reference is None else self.reference[picked],
        )


class EasyR1StepProbe(UpdateProbe):
    """The measuring of one actor's optimizer steps. EasyR1 multiplies a loss with all ranks, over tokens that it counts
    once for each rank of a replica."""

    _given: EasyR1StepInputs | None

    def hook_clipping(self) -> None:
        """The hook on FSDP1's clipping, a method of the module."""
        module = self._actor.actor_module
        self._native_clip = self._patches.read(module, "clip_grad_norm_", self._clip, what="recorded", why=MEASURED)

    def _clip(self, max_norm: Any, *arguments: Any, **options: Any) -> Any:
        norm = self._native_clip(max_norm, *arguments, **options)
        self.clipped(norm, max_norm)
        return norm

    def rows_at(self, places: Sequence[int], logprobs: torch.Tensor) -> Rows:
        """The rows at `places`, of the batch in hand."""
        assert self._given is not None, "asked for while a step runs"
        return self._given.rows(places)

    def surrogates(self) -> Mapping[str, Surrogate]:
        """EasyR1's own, of the actor's settings."""
        return surrogates(self._actor.config, self.objective)


def surrogates(config: Any, objective: Objective) -> dict[str, Surrogate]:
    """EasyR1's own surrogates, for which the schema has names and no formulas. Source: EasyR1 0.3.3.dev0
    core_algos.compute_policy_loss."""

    def gspo_token(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean = ((new - old).detach() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        ratio = (mean + new - new.detach()).exp()
        low, high = clip_bounds(objective)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if objective.dual_clip is not None:
            loss = torch.where(advantages < 0, torch.minimum(loss, -objective.dual_clip * advantages), loss)
        return loss

    def sapo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        temperature = torch.where(advantages >= 0, config.tau_positive, config.tau_negative)
        return -advantages * 4.0 / temperature * torch.sigmoid(temperature * ((new - old).exp() - 1))

    return {"gspo_token": gspo_token, "sapo": sapo}

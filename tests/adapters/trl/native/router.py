"""A tiny mixture of experts, and what its router's loss adds to a step's gradient, computed in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object

from batchbridge.testing.tiny import tiny_policy

COEFFICIENT = 0.5


def mixture() -> Any:
    """As large as the tiny policy, with four experts of which two are asked."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    plain = tiny_policy().config
    torch.manual_seed(0)
    config = Qwen2MoeConfig(
        vocab_size=plain.vocab_size, hidden_size=16, intermediate_size=16, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        num_experts=4, num_experts_per_tok=2, pad_token_id=plain.pad_token_id, eos_token_id=plain.eos_token_id,
        bos_token_id=None, output_router_logits=True, experts_implementation="eager",
    )  # fmt: skip
    return Qwen2MoeForCausalLM(config)


class Routed:
    """What the model was given in each micro-batch of each optimizer step, on this rank."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._steps: list[list[dict[str, torch.Tensor]]] = []
        trainer.model.register_forward_pre_hook(self._given, with_kwargs=True)

    def _given(self, model: Any, inputs: Any, options: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            step = self._trainer.state.global_step
            self._steps += [[] for _ in range(step + 1 - len(self._steps))]
            given = {name: options[name].detach().clone() for name in ("input_ids", "attention_mask")}
            self._steps[step].append(given)

    def gather(self) -> list[list[dict[str, torch.Tensor]]]:
        """By optimizer step, of all ranks. Collective."""
        if self._trainer.accelerator.num_processes == 1:
            return self._steps
        everyone = gather_object([self._steps])
        return [[given for rank in step for given in rank] for step in zip(*everyone, strict=True)]


def router_loss(micro_batches: list[dict[str, torch.Tensor]], policy: Any) -> torch.Tensor:
    """As TRL has it natively: the mean over micro-batches of what the model says, times the coefficient."""
    said = [policy(**given, output_router_logits=True).aux_loss for given in micro_batches]
    return COEFFICIENT * torch.stack(said).mean()

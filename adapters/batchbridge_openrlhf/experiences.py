"""OpenRLHF's experiences of one completion: whose they are, what the ledger says of them, and metrics over nothing.

Imports torch only inside functions. Source: openrlhf 0.11.2 experience.Experience, ppo_actor.ActorPPOTrainer.
"""

from __future__ import annotations

from typing import Any

from batchbridge.kit.workers import facts

IDENTITY = "batchbridge"
"""Key of an experience's `info`: which completion it is, five integers per row. See `identify`."""
NO_TOKEN = 1e-9
"""Tokens that a micro-batch without any reports: upstream divides its metrics by them."""


def identify(experience: Any, *, rollout: int, prompt: int, position: int, sample: int, prompt_tokens: int) -> Any:
    """Marks an experience of one completion before it is appended to a replay buffer, and returns it.

    rollout: from 0 over the run. prompt: index in the dataset. position: the prompt's place in its rollout, as the plan
    has it. sample: the completion's number in its group. prompt_tokens: tokens before the response.
    """
    import torch

    experience.info[IDENTITY] = torch.tensor([[rollout, prompt, position, sample, prompt_tokens]])
    return experience


def facts_of(item: Any, prompt_tokens: int) -> dict[str, Any]:
    """What the ledger says of one completion's experience; see `batchbridge.kit.workers.facts`."""
    ids, reward = item.sequences.tolist(), item.info.get("reward")
    # The mask and the log-probabilities are about the token after each position.
    return facts(
        prompt=ids[:prompt_tokens],
        completion=ids[prompt_tokens:],
        trained=item.advantages[item.action_mask.bool()].tolist(),
        old_logprobs=item.action_log_probs[prompt_tokens - 1 :].float().tolist(),
        reward=None if reward is None else float(reward),
    )


def finite(status: dict[str, Any], real: int) -> dict[str, Any]:
    """The status of a micro-batch without tokens, or of fillers: upstream takes means over nothing for its metrics."""
    import torch

    if real and status["num_action_tokens"]:
        return status
    for name, value in status["metrics"].items():
        if isinstance(value, torch.Tensor):
            status["metrics"][name] = torch.nan_to_num(value.float())
    status["num_samples"] = float(real)
    status["num_action_tokens"] = max(status["num_action_tokens"], NO_TOKEN)
    return status

"""The columns that a completion carries to its loss, and the settings that make its advantages: what the trainer's
process says of them, and training workers hold.

Its own file: both read it.
"""

from __future__ import annotations

from typing import Any

from batchbridge.kit.producers import settings_below

PRODUCER = "verl.trainer.ray_trainer"
"""The module that computes advantages."""
CARRIED = ("input_ids", "response_mask", "advantages", "old_log_probs", "ref_log_probs")
"""The columns of a batch of which the trainer's process makes digests, by row, where they are there."""
_SAMPLING = ("n", "temperature", "top_p", "top_k", "prompt_length", "response_length", "ignore_eos")
_READ_BY_PRODUCERS = ("algorithm", "worker.reward", *(f"worker.rollout.{name}" for name in _SAMPLING))


def read_by_producers(trainer: Any) -> dict[str, Any]:
    """The settings of now that generation, rewards and advantages read, by key. Source: EasyR1 b44b311
    trainer/ray_trainer.py, workers/rollout/vllm_rollout_spmd.py, workers/reward."""
    found = settings_below(trainer.config, _READ_BY_PRODUCERS)
    if found.get("algorithm.kl_type") == "fixed":  # the other kind moves by itself
        found["kl_ctrl.kl_coef"] = getattr(trainer.kl_ctrl, "kl_coef", None)
    return found

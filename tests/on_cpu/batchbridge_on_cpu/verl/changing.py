"""Rollouts by a class of a user's own, which changes the trainer's configuration behind its back.

`BATCHBRIDGE_WARMUP`: what it sets trainer.critic_warmup to, once the trainer is built and wrapped.
`BATCHBRIDGE_TEMPERATURE`: what it sets the sampling temperature to, before the second rollout is generated.
"""

from __future__ import annotations

import os
from typing import Any

from verl.trainer.ppo.v1 import AgentLoopManagerTQ


class Changing(AgentLoopManagerTQ):  # type: ignore[misc]  # verl is untyped here
    """verl's own, and the change."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        self._config_of_run, self._rollouts = config, 0
        if "BATCHBRIDGE_WARMUP" in os.environ:
            config.trainer.critic_warmup = int(os.environ["BATCHBRIDGE_WARMUP"])
        super().__init__(config, *arguments, **options)

    def generate_sequences(self, prompts: Any) -> None:
        """The change, and then verl's own."""
        self._rollouts += 1
        if self._rollouts == 2 and "BATCHBRIDGE_TEMPERATURE" in os.environ:
            self._config_of_run.actor_rollout_ref.rollout.temperature = float(os.environ["BATCHBRIDGE_TEMPERATURE"])
        super().generate_sequences(prompts)

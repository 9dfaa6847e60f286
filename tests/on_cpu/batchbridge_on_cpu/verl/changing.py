"""Rollouts by a class of a user's own, which changes the trainer's configuration behind its back.

`BATCHBRIDGE_WARMUP`: what it sets trainer.critic_warmup to, once the trainer is built and wrapped.
"""

from __future__ import annotations

import os
from typing import Any

from verl.trainer.ppo.v1 import AgentLoopManagerTQ


class Changing(AgentLoopManagerTQ):  # type: ignore[misc]  # verl is untyped here
    """verl's own, and the change."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        config.trainer.critic_warmup = int(os.environ["BATCHBRIDGE_WARMUP"])
        super().__init__(config, *arguments, **options)

"""Attention that a CPU has, where the command line puts flash attention in every other one's place: it does so with
packed samples. Of the policy, the reference, the critic and the reward model.

Source: openrlhf 0.11.2 cli.train_ppo_ray, models.actor.Actor, models.model.get_llm_for_sequence_regression.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

NAME = "BATCHBRIDGE_ATTENTION"
"""Of the environment: the implementation to take, transformers' `sdpa`."""


def instead_of_flash(name: str) -> Mapping[str, Callable[[Any], None]]:
    """Hooks for `cpu.start` with which models that are asked for with flash_attention_2 have the implementation
    `name`."""

    def taking(native: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(native)
        def load(*given: Any, **options: Any) -> Any:
            if options.get("attn_implementation") == "flash_attention_2":
                options["attn_implementation"] = name
            return native(*given, **options)

        return load

    def actor(module: Any) -> None:
        module.Actor.__init__ = taking(module.Actor.__init__)

    def regression(module: Any) -> None:
        module.get_llm_for_sequence_regression = taking(module.get_llm_for_sequence_regression)

    return {"openrlhf.models.actor": actor, "openrlhf.models.model": regression}

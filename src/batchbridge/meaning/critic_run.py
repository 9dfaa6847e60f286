"""The run as its critic trains: the spec of the critic's own optimizer steps, over the policy's rollouts. Not in
`critic`, which `spec` is made of.

Its own file: the core's rules, texts and the kit use it.
"""

from __future__ import annotations

import dataclasses

from batchbridge.meaning.spec import Spec

_CRITICS = {
    # group of the policy's fields -> those that a critic has of its own
    "optimizer_step": ("passes_per_rollout", "rollout_shuffle"),
    "loss.policy": ("aggregation", "denominator_scope", "constant", "count_empty"),
    "micro_batch": ("completions_per_device", "tokens_per_device"),
    "carried": ("learning_rate", "max_gradient_norm"),
}


def run_of_critic(spec: Spec) -> Spec:
    """The run as its critic trains: the critic's steps, weights and micro-batches stand where the policy's stood.

    What is planned, weighed and cut of it is the critic's. Raises `ValueError` for a spec without a critic.
    """
    critic = spec.critic
    if critic is None:
        raise ValueError("critic: the spec has none")
    own = {f"{group}.{name}": getattr(critic, name) for group, names in _CRITICS.items() for name in names}
    if critic.completions_per_device is None and critic.tokens_per_device is None:
        own |= {f"micro_batch.{name}": getattr(spec.micro_batch, name) for name in _CRITICS["micro_batch"]}
    if critic.completions_per_step is not None:
        step = dataclasses.replace(
            spec.optimizer_step,
            completions_per_step=critic.completions_per_step,
            tokens_per_step=None,
            parts_per_rollout=None,
            micro_batches_per_step=None,
        )
        spec = dataclasses.replace(spec, optimizer_step=step)
    return spec.replace(**own, **{"loss.kl": None, "loss.entropy": None, "critic.": None})


def critics_field(path: str) -> str:
    """The critic's own field where `run_of_critic` has the field `path` from it, else `path`."""
    group, _, name = path.rpartition(".")
    return f"critic.{name}" if name in (*_CRITICS.get(group, ()), "completions_per_step") else path

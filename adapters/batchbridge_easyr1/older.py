"""Names and habits of the wrapped releases of EasyR1 (0.3.0 to 0.3.3.dev0) that differ, told by their objects and code.

0.3.0 has a worker group for the actor and one for the reference, makes a rollout's batch inside of `fit`, and averages
losses by a function of its utilities. Until 0.3.1 the losses of micro-batches are averaged evenly; since 0.3.2 they are
weighed by their tokens.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

from batchbridge.kit.patches import rebound


def ulysses_of(actor: Any) -> int:
    """Ranks that share the tokens of their rows, of an actor's configuration."""
    newer = getattr(actor, "ulysses_size", None)
    return int(actor.ulysses_sequence_parallel_size if newer is None else newer)


def cuts_by_tokens(actor: Any) -> bool:
    """Whether a configuration has micro-batches cut by a budget: 0.3.2 and later can."""
    return bool(getattr(actor, "dynamic_batching", False))


def actor_group(trainer: Any) -> Any:
    """The worker group that trains and generates; None before `init_workers`."""
    return getattr(trainer, "actor_rollout_ref_wg", None) or getattr(trainer, "actor_rollout_wg", None)


def reference_group(trainer: Any) -> Any:
    """The worker group that has the reference policy; None where there is none."""
    return getattr(trainer, "ref_policy_wg", None) if hasattr(trainer, "actor_rollout_wg") else actor_group(trainer)


def makes_batches(trainer: Any) -> bool:
    """Whether a method makes a rollout's batch, which `fit` calls; else `fit` does, up to `_balance_batch`."""
    return hasattr(trainer, "_make_batch_data")


def weighs_by_tokens(update: Any) -> bool:
    """Whether `update_policy` multiplies each micro-batch's loss with its tokens over the step's."""
    return "total_response_tokens" in update.__code__.co_varnames


def averages(update: Any, average: Callable[..., Any], loss: Callable[[Callable[..., Any]], Any]) -> dict[str, Any]:
    """Names of `update_policy` and what they are bound to, so that its averages are `average`. loss: of the native
    policy loss with that average in it, the function that is called in its place."""
    scope = update.__globals__
    if "average_loss" in scope:
        native = rebound(scope["compute_policy_loss"], average_loss=average)
        return {"average_loss": average, "compute_policy_loss": loss(native)}
    algorithms, utilities = scope["core_algos"], scope["VF"]

    def policy_loss(**inputs: Any) -> Any:
        # The loss is averaged first, then what is only reported. Source: EasyR1 0.3.0 core_algos.compute_policy_loss.
        number = itertools.count()

        def mean(values: Any, mask: Any, *arguments: Any, **options: Any) -> Any:
            return (utilities.masked_mean if next(number) else average)(values, mask, *arguments, **options)

        return rebound(algorithms.compute_policy_loss, VF=_With(utilities, masked_mean=mean))(**inputs)

    return {
        "core_algos": _With(algorithms, compute_policy_loss=loss(policy_loss)),
        "VF": _With(utilities, masked_mean=average),
    }


class _With(types.SimpleNamespace):
    """A module, with some of its names bound otherwise."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(**names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

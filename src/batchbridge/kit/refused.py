"""Refusals that several frameworks have, for the table of an adapter: a function for each, of the refusal's name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.kit.refusals import Refusal, never, own_spec


def _other_than_own(path: str, reason: str) -> Refusal:
    """The refusal of a spec that has something else at a canonical path than the trainer's own configuration."""
    at = attrgetter(path)
    return Refusal(path.rpartition(".")[2], reason, lambda trainer, request: at(request.spec) != at(own_spec(request)))


def group_filter(keys: str) -> Refusal:
    """The refusal of another group filter than the trainer's. keys: what sets it, in words."""
    return _other_than_own("rollout.group_filter", f"the spec and the trainer filter groups differently: set {keys}")


def staleness(keys: str) -> Refusal:
    """The refusal of another staleness than the trainer's. keys: what sets it, in words."""
    reason = f"the spec and the trainer differ in how far generation runs ahead: set {keys}"
    return _other_than_own("staleness", reason)


def group_size(key: str, own: Callable[[Any], int]) -> Refusal:
    """The refusal of another number of completions per prompt than the trainer's `own`. key: what sets it."""
    return Refusal(
        "group_size",
        f"the spec has another number of completions per prompt; set {key}",
        lambda trainer, request: request.spec.rollout.completions_per_prompt != own(trainer),
        configured=never,
    )


def tokens_per_device(framework: str, why: Callable[[Any, Request], str | None]) -> Refusal:
    """The refusal of micro-batches that the framework would cut otherwise. why: the reason; None: it takes them."""
    return Refusal(
        "tokens_per_device",
        f"the spec's micro-batches cannot be handed to {framework}, which cuts them itself",
        lambda trainer, request: why(trainer, request) is not None,
        detail=why,
        configured=never,
    )


def batch_scale(framework: str, remedy: str) -> Refusal:
    """The refusal of a deviation over the rollout's completions, where the framework takes it over tokens."""
    return Refusal(
        "batch_scale",
        f"{framework} whitens advantages over every token of the rollout; the spec takes the deviation over "
        "completions, or the trainer's estimator is another one",
        lambda trainer, request: (
            request.spec.advantage.scale == "batch" and request.spec.advantage != own_spec(request).advantage
        ),
        remedy=remedy,
    )


def value_baseline(why: str, remedy: str = "") -> Refusal:
    """The refusal of a critic's advantages, where the framework has none. why: the end of the sentence that says so."""
    return Refusal(
        "value_baseline",
        f"the spec's advantages need a critic, {why}",
        lambda trainer, request: request.spec.advantage.baseline == "value",
        remedy=remedy,
    )


def aggregation(words: str, known: Collection[str]) -> Refusal:
    """The refusal of an aggregation that is not `known`; `words` stand before the names of these."""
    return Refusal(
        "aggregation",
        f"{words} {', '.join(known)}",
        lambda trainer, request: request.spec.loss.policy.aggregation not in known,
    )


def entropy(framework: str) -> Refusal:
    """The refusal of an entropy term, where the framework has none."""
    return Refusal(
        "entropy",
        f"{framework} has no entropy term",
        lambda trainer, request: bool(request.spec.objective.entropy_coefficient),
    )


def kl_estimator(reason: str, known: Collection[str]) -> Refusal:
    """The refusal of a KL penalty whose estimator is not `known`."""
    return Refusal(
        "kl_estimator",
        reason,
        lambda trainer, request: (
            bool(request.spec.objective.kl_coefficient) and request.spec.objective.kl_estimator not in known
        ),
    )


def no_step(why: str) -> Refusal:
    """The refusal of a plan without an optimizer step. why: reasons beside too few prompts."""
    return Refusal(
        "no_step",
        f"the plan has no optimizer step: fewer prompts than one rollout takes, {why}",
        lambda trainer, request: request.plan is not None and request.plan.total_optimizer_steps == 0,
    )

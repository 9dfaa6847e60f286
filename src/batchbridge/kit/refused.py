"""Refusals that several frameworks have, for the table of an adapter: a function for each, of the refusal's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.kit.allowing import ADVANTAGES
from batchbridge.kit.producers import is_recomputed
from batchbridge.kit.refusals import Answer, RefusalRow, has_no_step, own_spec, setting
from batchbridge.meaning.spec import Spec


def _other_than_own(path: str, reason: str) -> RefusalRow:
    """The refusal of a spec that has something else at a canonical path than the trainer's own configuration."""
    at = attrgetter(path)
    return RefusalRow(path.rpartition(".")[2], reason, lambda request: at(request.spec) != at(own_spec(request)))


def group_filter(keys: str) -> RefusalRow:
    """The refusal of another group filter than the trainer's. keys: what sets it, in words."""
    return _other_than_own("rollout.group_filter", f"the spec and the trainer filter groups differently: set {keys}")


def staleness(keys: str) -> RefusalRow:
    """The refusal of another staleness than the trainer's. keys: what sets it, in words."""
    reason = f"the spec and the trainer differ in how far generation runs ahead: set {keys}"
    return _other_than_own("staleness", reason)


def group_size(key: str, own: Callable[[Any], int] | None = None) -> RefusalRow:
    """The refusal of another number of completions per prompt than the trainer's. key: what sets it. own: gives it, of
    a trainer whose configuration does not."""
    reason = f"the spec has another number of completions per prompt; set {key}"
    if own is not None:
        have = own
        return RefusalRow(
            "group_size", reason, lambda request: False, lambda trainer, request: _group(request.spec) != have(trainer)
        )
    return RefusalRow("group_size", reason, lambda request: _group(request.spec) != _group(own_spec(request)))


def _group(spec: Spec) -> int | None:
    return spec.rollout.completions_per_prompt


def tokens_per_device(framework: str, why: Callable[[Any, Request], str | None]) -> RefusalRow:
    """The refusal of micro-batches that the framework would cut otherwise. why: the reason; None: it takes them."""
    return RefusalRow(
        "tokens_per_device",
        f"the spec's micro-batches cannot be handed to {framework}, which cuts them itself",
        lambda request: False,
        lambda trainer, request: why(trainer, request) or False,
    )


def own_estimator(framework: str, key: str, registered: Callable[[], Mapping[str, Any]], package: str) -> RefusalRow:
    """The refusal of a function of the user's own that is registered over one of the framework's estimators. key: of
    the estimator's name. registered: gives the functions by name. package: of the framework's own."""

    def live(trainer: Any, request: Request) -> Answer:
        if not is_recomputed(own_spec(request).advantage):
            return False
        made = registered().get(str(setting(request.reading, key)))
        module = getattr(made, "__module__", package)
        return False if module.partition(".")[0] == package else f"{module}.{getattr(made, '__qualname__', made)}"

    return RefusalRow(
        ADVANTAGES,
        f"a function of your own is registered as the estimator that {key} names, in place of {framework}'s; "
        f'allow=("{ADVANTAGES}",) trains on what it gives, carried and not recomputed from the rewards',
        lambda request: False,
        live,
        "give the function a name of its own: its advantages are then carried",
        allowable=True,
    )


def batch_scale(framework: str, remedy: str) -> RefusalRow:
    """The refusal of a deviation over the rollout's completions, where the framework takes it over tokens."""
    return RefusalRow(
        "batch_scale",
        f"{framework} whitens advantages over every token of the rollout; the spec takes the deviation over "
        "completions, or the trainer's estimator is another one",
        lambda request: (
            request.spec.advantage.scale == "batch" and request.spec.advantage != own_spec(request).advantage
        ),
        remedy=remedy,
    )


def value_baseline(why: str, remedy: str = "") -> RefusalRow:
    """The refusal of a critic's advantages, where the framework has none. why: the end of the sentence that says so."""
    return RefusalRow(
        "value_baseline",
        f"the spec's advantages need a critic, {why}",
        lambda request: request.spec.advantage.baseline == "value",
        remedy=remedy,
    )


def aggregation(words: str, known: Collection[str]) -> RefusalRow:
    """The refusal of an aggregation that is not `known`; `words` stand before the names of these."""
    return RefusalRow(
        "aggregation",
        f"{words} {', '.join(known)}",
        lambda request: request.spec.loss.policy.aggregation not in known,
    )


def entropy(framework: str) -> RefusalRow:
    """The refusal of an entropy term, where the framework has none."""
    return RefusalRow(
        "entropy",
        f"{framework} has no entropy term",
        lambda request: bool(request.spec.objective.entropy_coefficient),
    )


def kl_estimator(reason: str, known: Collection[str]) -> RefusalRow:
    """The refusal of a KL penalty whose estimator is not `known`."""
    return RefusalRow(
        "kl_estimator",
        reason,
        lambda request: (
            bool(request.spec.objective.kl_coefficient) and request.spec.objective.kl_estimator not in known
        ),
    )


def no_step(why: str) -> RefusalRow:
    """The refusal of a plan without an optimizer step. why: reasons beside too few prompts."""
    return RefusalRow(
        "no_step",
        f"the plan has no optimizer step: fewer prompts than one rollout takes, {why}",
        has_no_step,
    )

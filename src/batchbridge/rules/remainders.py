"""The core's rules of remainders: prompts and completions that are left over, and shares that do not come out even."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.meaning.findings import Fix
from batchbridge.meaning.spec import Spec
from batchbridge.rules.violation import Violation


def prompts_left_over(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    prompts = spec.rollout.prompts_per_rollout
    if dataset_size is None or prompts is None or dataset_size < prompts or spec.order.last_rollout != "drop":
        return
    if rest := dataset_size % prompts:
        yield Violation(
            f"{rest} of {dataset_size} prompts are dropped in every epoch: rollouts take {prompts} prompts each",
            ("rollout.prompts_per_rollout",),
            (Fix(f"{dataset_size - rest} or {dataset_size - rest + prompts} prompts in the dataset"),),
        )


def refused_prompts(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    prompts = spec.rollout.prompts_per_rollout
    if dataset_size is None or prompts is None or spec.order.last_rollout != "error":
        return
    if rest := dataset_size % prompts:
        yield Violation(
            f"{dataset_size} prompts leave {rest} over: rollouts take {prompts} each, and remainders are refused",
            ("rollout.prompts_per_rollout", "order.last_rollout"),
            (Fix(f"{dataset_size - rest} or {dataset_size - rest + prompts} prompts in the dataset"),),
        )


def _left_over(spec: Spec) -> Iterator[tuple[int, Violation]]:
    """Completions that do not fill a step at the end of each stretch that steps may not leave. Source: I3."""
    step, per_rollout = spec.optimizer_step, spec.completions_per_rollout
    per_step, passes = step.completions_per_step, step.passes_per_rollout
    stretches = {"none": ("pass over a rollout", 1), "rollout": ("rollout with its passes", passes)}
    if per_rollout is None or per_step is None or not passes or step.step_may_span not in stretches:
        return
    what, times = stretches[step.step_may_span]
    completions = per_rollout * times
    if rest := completions % per_step:
        fields = (
            "rollout.prompts_per_rollout",
            "rollout.completions_per_prompt",
            "optimizer_step.completions_per_step",
            "order.last_optimizer_step",
        )
        message = f"each {what} has {completions} completions: steps of {per_step} leave {rest} over"
        if completions < per_step:
            message = f"each {what} has {completions} completions, which never fill a step of {per_step}"
        yield rest, Violation(message, fields)


def refused(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for _, violation in _left_over(spec):
        if spec.order.last_optimizer_step == "error":
            yield violation._replace(message=f"{violation.message}; remainders are refused")


def changed_by_rest(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for rest, violation in _left_over(spec):
        if spec.order.last_optimizer_step == "drop":
            yield violation._replace(message=f"{violation.message}; they are generated and never trained on")
        elif spec.order.last_optimizer_step in ("short", "pad"):
            consequence = f"a step of {rest} completions moves the weights as far as a full one"
            yield violation._replace(message=f"{violation.message}; {consequence}")


def odd_shares(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    # A warning: the canonical plan pads, natively many frameworks assert; their adapters say so in their own rules. I4.
    size, replicas = spec.optimizer_step.completions_per_step, spec.topology.data_parallel_size
    if size is not None and replicas.denominator == 1 and size % replicas:
        below, above = size - size % replicas, size - size % replicas + replicas
        yield Violation(
            f"{size} completions per optimizer step cannot be shared out evenly to {replicas} replicas",
            ("optimizer_step.completions_per_step", "topology.world_size"),
            (Fix(" or ".join(str(near) for near in (below, above) if near) + " completions per optimizer step"),),
        )


def uneven_micro_batches(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    size, micro = spec.optimizer_step.completions_per_step, spec.micro_batch.completions_per_device
    replicas = spec.topology.data_parallel_size
    if size is None or micro is None or replicas.denominator != 1 or size % replicas:
        return
    share = size // int(replicas)
    if share % micro:
        yield Violation(
            f"{share} completions per device and optimizer step are not a multiple of the micro-batch of {micro}: the "
            "last micro-batch is smaller",
            ("optimizer_step.completions_per_step", "micro_batch.completions_per_device", "topology.world_size"),
        )

"""The refusals of an adapter's `attach`, by name, and how a requested spec is split into what is set and what stays
different. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Reading
from batchbridge.errors import BatchBridgeError
from batchbridge.frozen import dataclass
from batchbridge.kit.proven import UNPROVEN
from batchbridge.meaning.spec import Spec

PLANNED = (
    "rollout.prompts_per_rollout",
    "rollout.prompts_per_generation_batch",
    "rollout.completions_per_prompt",
    "optimizer_step.",
    "loss.",
    "advantage.",
    "order.",
    "horizon.",
    "staleness.",
    "objective.old_logprobs",
    "objective.kl_placement",
    "objective.ratio_level",
)
"""Canonical fields (or their beginnings) that the plan, the weights or the surrogate of `enforce` bring about."""

Settable = Mapping[str, tuple[str, Callable[[Any, Spec], Any]]]
"""Canonical field -> (attribute of the actor's configuration that the native loss reads, canonical -> native value)."""


@dataclass(frozen=True)
class Refusal:
    """Something that enforcing cannot make canonical, or that nobody has proven yet; `allow` may accept it by `name`
    where `allowable`: then it stays native. `detail`: what of this trainer and request it is, said after the reason.

    `configured`: whether it will apply to the trainer that a configuration builds; None: the configuration does not
    say. It is asked where `applies` looks at the trainer; see `foretold`. `remedy`: what to do about it, where the
    reason does not say it.
    """

    name: str
    reason: str
    applies: Callable[[Any, Request], bool]
    allowable: bool = False
    detail: Callable[[Any, Request], str | None] = lambda trainer, request: None
    configured: Callable[[Reading], bool | None] | None = None
    remedy: str = ""

    def why(self, trainer: Any, request: Request) -> str:
        """The reason, and its detail."""
        detail = self.detail(trainer, request)
        return self.reason if detail is None else f"{self.reason}: {detail}"


def never(reading: Reading) -> bool:
    """`Refusal.configured` of what a trainer that its own configuration built cannot have."""
    return False


def only_asked(trainer: Any, request: Request) -> bool:
    """`Refusal.applies` of what no trainer shows, and the configuration alone says."""
    return False


class _TrainerNeeded(BatchBridgeError):
    """A refusal looked at the trainer, and there is none yet."""


class _Unbuilt(type):
    @property
    def __mro__(cls) -> Any:  # whose classes are looked at is looked at
        raise _TrainerNeeded


class _NoTrainer(metaclass=_Unbuilt):
    """A stand-in for a trainer that is not built yet."""

    def __getattribute__(self, name: str) -> Any:
        raise _TrainerNeeded


def foretold(refusal: Refusal, request: Request) -> bool | None:
    """Whether a refusal will apply to the trainer that `request.reading` configures; None: it takes the trainer."""
    if refusal.applies is not only_asked:
        try:
            return bool(refusal.applies(_NoTrainer(), request))
        except _TrainerNeeded:
            pass
    return None if refusal.configured is None else refusal.configured(request.reading)


def setting(reading: Reading, key: str, default: Any = None) -> Any:
    """A native setting: as it was read, else as the user gave it, else `default`; keys without a meaning are not read,
    and what is not said stands at the framework's default."""
    if key in reading.native:
        return reading.native[key]
    return reading.given[key].value if key in reading.given else default


def is_on(value: Any) -> bool | None:
    """Whether a setting is said, and not off; None where it names what is only known later (`${...}`, `$NAME`)."""
    if isinstance(value, str):
        word = value.strip().lower()
        return None if "$" in word else word not in ("", "false", "no", "off", "0", "null", "none", "~")
    return bool(value)


def own_spec(request: Request) -> Spec:
    """The meaning of the trainer's own configuration."""
    assert request.reading.spec is not None, "wrap refuses a trainer whose own configuration is not read"
    return request.reading.spec


def reasons_against(refusals: Sequence[Refusal], trainer: Any, request: Request) -> dict[str, str]:
    """Every reason that applies and is not allowed, by name."""
    return {
        refusal.name: refusal.why(trainer, request)
        for refusal in refusals
        if not (refusal.allowable and refusal.name in request.allow) and refusal.applies(trainer, request)
    }


def not_allowable(refusals: Sequence[Refusal], allow: Collection[str]) -> dict[str, str]:
    """The reason `allow`, where a name in it cannot be allowed; else nothing."""
    allowable = {refusal.name for refusal in refusals if refusal.allowable} | {UNPROVEN}
    if not set(allow) - allowable:
        return {}
    named, known = ", ".join(sorted(set(allow) - allowable)), ", ".join(sorted(allowable))
    return {"allow": f"{named} cannot be allowed; what can: {known}"}


def split(request: Request, settable: Settable) -> tuple[dict[str, Any], dict[str, str]]:
    """The differences between the requested spec and the trainer's own: settings, by attribute; and what stays
    different, by canonical field."""
    spec, own = request.spec, own_spec(request)
    settings: dict[str, Any] = {}
    for path, want in changed_fields(request).items():
        if path in settable:
            name, convert = settable[path]
            settings[name] = convert(want, spec)
    if spec.objective.kl_coefficient and spec.objective.kl_placement == "loss":
        settings["use_kl_loss"] = True
    elif own.objective.kl_placement == "loss" and not spec.objective.kl_coefficient:
        settings["use_kl_loss"] = False
    return settings, left_different(request, (*settable, *PLANNED))


def changed_fields(request: Request) -> dict[str, Any]:
    """The values of the requested spec that differ from the trainer's own, by canonical field; how the run is spread
    over devices, and a step over micro-batches, is nothing of it."""
    have = own_spec(request).values
    return {
        path: want
        for path, want in request.spec.values.items()
        if want != have.get(path) and not path.startswith(("topology.", "micro_batch."))
    }


def left_different(request: Request, brought: Collection[str]) -> dict[str, str]:
    """The values that stay different from the requested spec, by canonical field. brought: fields, or their beginnings,
    that are brought about."""
    have = own_spec(request).values
    named = set(request.spec.values)
    return {
        path: f"{want} in the requested spec, {have.get(path)} in the trainer"
        for path, want in changed_fields(request).items()
        if not path.startswith((*brought,))
    } | {
        path: f"open in the requested spec, {value} in the trainer" for path, value in have.items() if path not in named
    }


def step_crosses(trainer: Any, request: Request) -> bool:
    """Whether some optimizer step draws from two rollouts or passes."""
    plan = request.plan
    if plan is None or request.spec.optimizer_step.step_may_span == "none":
        return False
    sizes = {plan.prompts_per_rollout * plan.completions_per_prompt}
    if plan.spec.order.last_rollout in ("short", "pad"):
        sizes.add(plan.dataset_size % plan.prompts_per_rollout * plan.completions_per_prompt)
    return any(size % plan.completions_per_step for size in sizes)


def common(framework: str, *names: str) -> tuple[Refusal, ...]:
    """The refusals of every trainer that trains rollout by rollout, all terms of its loss aggregated alike: what it
    cannot be made to do. names: those of these rows alone."""
    rows = (
        Refusal(
            "denominator_scope",
            "only weights at optimizer-step scope are enforced: any other scope makes the gradient depend on the split",
            lambda trainer, request: request.spec.loss.policy.denominator_scope != "optimizer_step",
        ),
        Refusal(
            "loss_per_term",
            f"the spec gives the KL or entropy term weights of its own; {framework} aggregates all terms alike",
            lambda trainer, request: any(
                term is not None and term != request.spec.loss.policy
                for term in (request.spec.loss.kl, request.spec.loss.entropy)
            ),
        ),
        Refusal(
            "kl_without_reference",
            "the spec has a KL penalty, but the trainer was configured without one and loads no reference model",
            lambda trainer, request: bool(request.spec.objective.kl_coefficient) and not trainer.use_reference_policy,
            configured=never,
        ),
        Refusal(
            "kl_in_reward",
            "the spec and the trainer put the KL penalty in different places (reward, loss)",
            lambda trainer, request: (
                "reward" in (request.spec.objective.kl_placement, own_spec(request).objective.kl_placement)
                and (request.spec.objective.kl_placement != own_spec(request).objective.kl_placement)
            ),
        ),
        Refusal(
            "sampler_logprobs",
            f"the spec takes old log-probabilities from the sampler; {framework} scores them itself",
            lambda trainer, request: request.spec.objective.old_logprobs == "sampler",
        ),
        Refusal(
            "truncated_completions",
            f"the spec masks or drops completions that were cut off; {framework} trains on them",
            lambda trainer, request: request.spec.rollout.truncated_completions != "keep",
        ),
        Refusal(
            "step_crosses_rollouts",
            "the spec has optimizer steps that draw from two rollouts or passes; "
            f"{framework} forgets a rollout before the next",
            step_crosses,
        ),
        Refusal(
            "no_step",
            "the plan has no optimizer step: fewer prompts than one rollout takes, no pass over it, or none behind a "
            "critic's warm-up",
            lambda trainer, request: request.plan is not None and request.plan.total_optimizer_steps == 0,
        ),
    )
    return tuple(row for row in rows if not names or row.name in names)

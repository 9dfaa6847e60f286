"""The refusals of an adapter's `attach`, by name, and how a requested spec is split into what is set and what stays
different. Knows no framework.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Reading
from batchbridge.errors import BatchBridgeError
from batchbridge.frozen import dataclass
from batchbridge.kit.allowing import ON_EVERY_FRAMEWORK
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

SettableFields = Mapping[str, tuple[str, Callable[[Any, Spec], Any]]]
"""Canonical field -> (attribute of the actor's configuration that the native loss reads, canonical -> native value)."""


Answer = bool | str | None
"""Whether a refusal applies. A text: it does, and the text is said after the reason. None: the settings leave it open;
`check` then says so, and `wrap` refuses."""


@dataclass(frozen=True)
class RefusalRow:
    """Something that enforcing cannot make canonical, or that nobody has proven yet.

    name: by which it is told, and by which `allow` accepts it where `allowable`: then it stays native. test: whether it
    applies to a run of the request's settings (`Request.reading`), which `check` reads off a file and `wrap` off a
    trainer. live: in its place for a trainer, where only that shows it; `test` is then what settings say of it before
    there is one. remedy: what to do about it, where the reason does not say it.
    """

    name: str
    reason: str
    test: Callable[[Request], Answer]
    live: Callable[[Any, Request], Answer] | None = None
    remedy: str = ""
    allowable: bool = False

    def foreseen(self, request: Request) -> bool | None:
        """Whether it will apply to the trainer that the settings of a request build; None: that decides it."""
        answer = self.test(request)
        return None if answer is None else bool(answer)

    def against(self, trainer: Any, request: Request) -> str | None:
        """The reason against a trainer, with what is said beside it; None where it does not apply."""
        answer = self.test(request) if self.live is None else self.live(trainer, request)
        if answer is None:
            return f"{self.reason} (the settings of this trainer leave it open)"
        return None if not answer else f"{self.reason}: {answer}" if isinstance(answer, str) else self.reason


Test = Callable[[Request], Answer]
LiveTest = Callable[[Any, Request], Answer]


class Refusals(list[RefusalRow]):
    """Rows in the order in which they are said, each above its test.

    REFUSALS = Refusals()

    @REFUSALS.row("fp16", "the loss scaler leaves steps out on its own", remedy="precision=bf16")
    def _fp16(request: Request) -> bool:
        return setting(request.reading, "precision") == "fp16"
    """

    def row(self, name: str, reason: str, *, remedy: str = "", allowable: bool = False) -> Callable[[Test], Test]:
        """The decorator of a test of settings, plan and request; see `RefusalRow`."""

        def add(test: Test) -> Test:
            self.append(RefusalRow(name, reason, test, None, remedy, allowable))
            return test

        return add

    def live(
        self, name: str, reason: str, *, foreseen: Test | None = None, remedy: str = "", allowable: bool = False
    ) -> Callable[[LiveTest], LiveTest]:
        """The decorator of a test of what only a trainer shows, its model or its optimizer. foreseen: what settings say
        of it before; None: a trainer that was built of its settings alone is never refused so."""

        def add(test: LiveTest) -> LiveTest:
            self.append(RefusalRow(name, reason, foreseen or _not_foreseen, test, remedy, allowable))
            return test

        return add


def _not_foreseen(request: Request) -> bool:
    return False


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


def on(request: Request, key: str, default: Any = None) -> bool | None:
    """Whether a native setting of a request's run is said, and not off; see `is_on`."""
    return is_on(setting(request.reading, key, default))


def any_on(request: Request, *keys: str) -> bool | None:
    """Whether some of these settings is on; None where one that is only known later decides it."""
    said = {on(request, key) for key in keys}
    return True if True in said else None if None in said else False


def own_spec(request: Request) -> Spec:
    """The meaning of the trainer's own configuration."""
    assert request.reading.spec is not None, "wrap refuses a trainer whose own configuration is not read"
    return request.reading.spec


def reasons_against(refusals: Sequence[RefusalRow], trainer: Any, request: Request) -> dict[str, str]:
    """Every reason that applies to a trainer and is not allowed, by name."""
    asked = [row for row in refusals if not (row.allowable and row.name in request.allow)]
    return {row.name: reason for row in asked if (reason := row.against(trainer, request)) is not None}


def not_allowable(refusals: Sequence[RefusalRow], allow: Collection[str]) -> dict[str, str]:
    """The reason `allow`, where a name in it cannot be allowed; else nothing."""
    allowable = {refusal.name for refusal in refusals if refusal.allowable} | ON_EVERY_FRAMEWORK
    if not set(allow) - allowable:
        return {}
    named, known = ", ".join(sorted(set(allow) - allowable)), ", ".join(sorted(allowable))
    return {"allow": f"{named} cannot be allowed; what can: {known}"}


def split(request: Request, settable: SettableFields) -> tuple[dict[str, Any], dict[str, str]]:
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


def crosses_rollouts(request: Request) -> bool:
    """Whether some optimizer step draws from two rollouts or passes."""
    plan = request.plan
    if plan is None or request.spec.optimizer_step.step_may_span == "none":
        return False
    sizes = {plan.prompts_per_rollout * plan.completions_per_prompt}
    if plan.spec.order.last_rollout in ("short", "pad"):
        sizes.add(plan.dataset_size % plan.prompts_per_rollout * plan.completions_per_prompt)
    return any(size % plan.completions_per_step for size in sizes)


def common(framework: str, *names: str, references: Callable[[Request], bool] | None = None) -> tuple[RefusalRow, ...]:
    """The refusals of every trainer that trains rollout by rollout, all terms of its loss aggregated alike: what it
    cannot be made to do. names: those of these rows alone. references: whether settings have a reference policy loaded;
    None: the trainer's attribute `use_reference_policy` says it."""

    def wants_kl(request: Request) -> bool:
        return bool(request.spec.objective.kl_coefficient)

    def without_reference(request: Request) -> bool:
        return references is not None and wants_kl(request) and not references(request)

    def kl_placements(request: Request) -> set[Any]:
        return {one.objective.kl_placement for one in (request.spec, own_spec(request))}

    rows = (
        RefusalRow(
            "denominator_scope",
            "only weights at optimizer-step scope are enforced: any other scope makes the gradient depend on the split",
            lambda request: request.spec.loss.policy.denominator_scope != "optimizer_step",
        ),
        RefusalRow(
            "loss_per_term",
            f"the spec gives the KL or entropy term weights of its own; {framework} aggregates all terms alike",
            lambda request: any(
                term not in (None, request.spec.loss.policy)
                for term in (request.spec.loss.kl, request.spec.loss.entropy)
            ),
        ),
        RefusalRow(
            "kl_without_reference",
            "the spec has a KL penalty, but the trainer was configured without one and loads no reference model",
            without_reference,
            None if references else lambda trainer, request: wants_kl(request) and not trainer.use_reference_policy,
        ),
        RefusalRow(
            "kl_in_reward",
            "the spec and the trainer put the KL penalty in different places (reward, loss)",
            lambda request: len(placed := kl_placements(request)) > 1 and "reward" in placed,
        ),
        RefusalRow(
            "sampler_logprobs",
            f"the spec takes old log-probabilities from the sampler; {framework} scores them itself",
            lambda request: request.spec.objective.old_logprobs == "sampler",
        ),
        RefusalRow(
            "truncated_completions",
            f"the spec masks or drops completions that were cut off; {framework} trains on them",
            lambda request: request.spec.rollout.truncated_completions != "keep",
        ),
        RefusalRow(
            "step_crosses_rollouts",
            "the spec has optimizer steps that draw from two rollouts or passes; "
            f"{framework} forgets a rollout before the next",
            crosses_rollouts,
        ),
        RefusalRow(
            "no_step",
            "the plan has no optimizer step: fewer prompts than one rollout takes, no pass over it, or none behind a "
            "critic's warm-up",
            has_no_step,
        ),
    )
    return tuple(row for row in rows if not names or row.name in names)


def has_no_step(request: Request) -> bool:
    """Whether there is a plan, and no optimizer step in it."""
    return request.plan is not None and request.plan.total_optimizer_steps == 0


# ---- names of before `Refusals`, for two minor releases


def __getattr__(name: str) -> Any:
    if name not in _BEFORE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found, instead = _BEFORE[name]
    text = f"{__name__}.{name} is deprecated: use {instead} (docs/plugins.md, Refusals)"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return found


def _refusal(
    name: str,
    reason: str,
    applies: Callable[[Any, Request], object],
    allowable: bool = False,
    detail: Callable[[Any, Request], str | None] = lambda trainer, request: None,
    configured: Callable[[Reading], bool | None] | None = None,
    remedy: str = "",
) -> RefusalRow:
    """The row of a predicate over trainer and request. configured: whether it will apply to the trainer that a
    configuration builds, asked where `applies` looks at the trainer; None: the configuration does not say."""

    def test(request: Request) -> Answer:
        if applies is not _only_asked:
            try:
                return bool(applies(_NoTrainer(), request))
            except _TrainerNeeded:
                pass
        return None if configured is None else configured(request.reading)

    def live(trainer: Any, request: Request) -> Answer:
        return bool(applies(trainer, request)) and (detail(trainer, request) or True)

    return RefusalRow(name, reason, test, live, remedy, allowable)


def _never(reading: Reading) -> bool:
    return False


def _only_asked(trainer: Any, request: Request) -> bool:
    return False


def _step_crosses(trainer: Any, request: Request) -> bool:
    return crosses_rollouts(request)


def _foretold(refusal: RefusalRow, request: Request) -> bool | None:
    return refusal.foreseen(request)


_BEFORE: Mapping[str, tuple[Callable[..., Any], str]] = {
    "Refusal": (_refusal, "Refusals.row, or Refusals.live for what only a trainer shows"),
    "never": (_never, "Refusals.live without foreseen"),
    "only_asked": (_only_asked, "Refusals.row"),
    "foretold": (_foretold, "RefusalRow.foreseen"),
    "step_crosses": (_step_crosses, "crosses_rollouts"),
}


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

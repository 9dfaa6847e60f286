"""Rules that hold for every framework: named, with stable codes, over the canonical spec alone.

Frameworks' own rules live in their adapters, in the user's keys; these say what no framework can repair, and what makes
a run mean something else than its numbers suggest. Source of each row: the invariants I1 to I12 that seven frameworks
share; docs/cli.md lists them, and a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.meaning.critic_run import critics_field, run_of_critic
from batchbridge.meaning.derived import derive
from batchbridge.meaning.findings import Finding, Fix, Phase, Severity, Where
from batchbridge.meaning.spec import STEP_SIZES, LossTerm, Spec, walk
from batchbridge.rules import remainders
from batchbridge.rules.nearest_numbers import nearest_numbers
from batchbridge.rules.violation import Violation

if TYPE_CHECKING:
    from batchbridge.contract.reading import Provenance


class CoreRule(NamedTuple):
    """A row of the table; `titles.json` beside it has its title. `violations` takes the spec and the number of prompts
    (None: not said)."""

    code: str
    severity: Severity
    phase: Phase
    violations: Callable[[Spec, int | None], Iterator[Violation]]
    critics: bool = False
    """Whether it holds for the critic's optimizer steps, too."""


def check(
    spec: Spec, dataset_size: int | None = None, provenance: Mapping[str, Provenance] | None = None
) -> tuple[Finding, ...]:
    """Every violation of `RULES`, in the table's order. `provenance` turns canonical fields into the user's keys.

    Types and bounds come first: while they are broken, products and quotients of the numbers mean nothing, and the
    other rules wait.
    """
    origins = provenance or {}
    for rules in (RULES[:1], RULES[1:2], RULES[2:]):
        found = [
            _finding(rule, violation, spec, origins)
            for rule in rules
            for violation in _violations(rule, spec, dataset_size)
        ]
        if found:
            return tuple(found)
    return ()


def _violations(rule: CoreRule, spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    policys = list(rule.violations(spec, dataset_size))
    yield from policys
    if rule.critics and spec.critic is not None:
        critics, said = run_of_critic(spec), {violation.fields for violation in policys}
        for violation in rule.violations(critics, dataset_size):
            shared = all(critics.values.get(path) == spec.values.get(path) for path in violation.fields)
            if not (shared and violation.fields in said):
                fields = tuple(map(critics_field, violation.fields))
                yield violation._replace(message=f"critic: {violation.message}", fields=fields)


def _finding(rule: CoreRule, violation: Violation, spec: Spec, provenance: Mapping[str, Provenance]) -> Finding:
    places = (_where(path, spec, provenance) for path in violation.fields)
    once = {(place.key, place.file, place.line): place for place in places}  # a value of the wrong type has no hash
    return Finding(rule.code, rule.severity, rule.phase, violation.message, tuple(once.values()), violation.fixes)


def _where(path: str, spec: Spec, provenance: Mapping[str, Provenance]) -> Where:
    origin = provenance.get(path)
    if origin is None or origin.key is None:
        value: object = spec
        for name in path.split("."):
            value = getattr(value, name, None)
        return Where(key=path, value=value)
    value = origin.value if isinstance(origin.value, (str, int, float, type(None))) else str(origin.value)
    return Where(key=origin.key, value=value, file=origin.file, line=origin.line)


# ---- the rules


def _types(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    try:
        Spec.from_dict(spec.to_dict())
    except ValueError as error:
        path = str(error).partition(":")[0]
        yield Violation(str(error), (path,))


def _bounds(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for path, value, quantity in walk(spec):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        low, high = quantity.minimum, quantity.maximum
        infinite = isinstance(value, float) and not math.isfinite(value)
        if not infinite and (low is None or value >= low) and (high is None or value <= high):
            continue
        # `carried` says no more than that the batches do not depend on it.
        said = f"{path.removeprefix('carried.')} = {value} ({quantity.unit}) is"
        if infinite:
            yield Violation(f"{said} not a finite number", (path,))
        elif low is not None and value < low:
            bound = int(low) if isinstance(value, int) else low
            yield Violation(f"{said} below its minimum of {low:g}", (path,), (Fix(f"{bound:g}"),))
        elif high is not None:
            yield Violation(f"{said} above its maximum of {high:g}", (path,), (Fix(f"{high:g}"),))


_PARALLEL = ("tensor_parallel", "pipeline_parallel", "context_parallel")


def _whole_replicas(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    t = spec.topology
    if t.data_parallel_size.denominator == 1:
        return
    below = t.world_size - t.world_size % t.replica_size
    fixes = [Fix(f"world size {size}") for size in (below, below + t.replica_size) if size]
    used = [name for name in _PARALLEL if getattr(t, name) > 1]
    for name in used:
        value = getattr(t, name)
        others = t.replica_size // value
        sizes = nearest_numbers(value, divides=t.world_size // others) if t.world_size % others == 0 else []
        fixes += [Fix(f"{name.replace('_', ' ')} {size}") for size in sizes]
    yield Violation(
        f"{t.world_size} devices cannot be shared out to replicas of {t.tensor_parallel} x {t.pipeline_parallel} x "
        f"{t.context_parallel} devices (tensor x pipeline x context parallel)",
        tuple(f"topology.{name}" for name in ("world_size", *used)),
        tuple(fixes),
    )


def _one_step_size(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    step = spec.optimizer_step
    given = [name for name in STEP_SIZES if getattr(step, name) is not None]
    if len(given) != 1:
        said = " and ".join(f"{name} = {getattr(step, name)}" for name in given) or "none of them"
        message = f"the size of an optimizer step needs exactly one of {', '.join(STEP_SIZES)}; given: {said}"
        yield Violation(message, tuple(f"optimizer_step.{name}" for name in given or STEP_SIZES[:1]))


def _a_horizon(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    if not spec.horizon.lengths:
        message = "the length of the run needs at least one of rollouts, epochs, optimizer_steps; none of them is given"
        yield Violation(message, ("horizon.rollouts",))


def _one_micro_batch(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    micro = spec.micro_batch
    if micro.completions_per_device is not None and micro.tokens_per_device is not None:
        yield Violation(
            f"a micro-batch has either a fixed size ({micro.completions_per_device} completions per device) or a token "
            f"budget ({micro.tokens_per_device} tokens per device)",
            ("micro_batch.completions_per_device", "micro_batch.tokens_per_device"),
        )


def _terms(spec: Spec) -> Iterator[tuple[str, LossTerm]]:
    for name in ("policy", "kl", "entropy"):
        term = getattr(spec.loss, name)
        if term is not None:
            yield name, term


def _constant_given(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for name, term in _terms(spec):
        if term.aggregation == "sequence_sum_over_constant" and term.constant is None:
            yield Violation(
                f"the {name} term divides by a constant number of tokens that is not given",
                (f"loss.{name}.aggregation", f"loss.{name}.constant"),
            )


def _constant_unused(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for name, term in _terms(spec):
        if term.aggregation != "sequence_sum_over_constant" and term.constant is not None:
            yield Violation(
                f"the {name} term has the constant {term.constant} tokens, which {term.aggregation} does not use",
                (f"loss.{name}.constant", f"loss.{name}.aggregation"),
            )


def _trains_something(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    found = [*_nothing_to_train(spec, dataset_size)]
    yield from found
    if not found and dataset_size is not None and derive(spec, dataset_size)["total_optimizer_steps"] == 0:
        yield Violation(
            f"{dataset_size} prompts make no whole optimizer step in the run: nothing is trained",
            ("optimizer_step.completions_per_step", "order.last_optimizer_step"),
        )


def _nothing_to_train(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    """Rollouts, passes and lengths of which nothing is left."""
    rollout, order = spec.rollout, spec.order
    prompts = rollout.prompts_per_rollout
    if spec.optimizer_step.passes_per_rollout == 0:
        yield Violation(
            "no pass over a rollout: nothing is trained", ("optimizer_step.passes_per_rollout",), (Fix("1"),)
        )
    for name, length in spec.horizon.lengths.items():
        if length == 0:
            yield Violation(f"the run has 0 {name.replace('_', ' ')}: nothing is trained", (f"horizon.{name}",))
    if dataset_size is not None and prompts is not None and dataset_size < prompts and order.last_rollout == "drop":
        yield Violation(
            f"{dataset_size} prompts do not fill one rollout of {prompts} prompts, and remainders are dropped: "
            "nothing is trained",
            ("rollout.prompts_per_rollout", "order.last_rollout"),
            (Fix(f"at most {dataset_size} prompts per rollout"), Fix(f"at least {prompts} prompts in the dataset")),
        )


def _budget_too_small(spec: Spec) -> Iterator[Violation]:
    """Token budgets below the longest prompt and completion. Source: I6."""
    carried, longest = spec.carried, spec.carried.longest_tokens
    if longest is None:
        return
    parts = (
        f"{carried.max_prompt_tokens or 0} + {carried.max_completion_tokens} = {longest} tokens (prompt + completion)"
    )
    fields = ["carried.max_prompt_tokens", "carried.max_completion_tokens"]
    if longest == carried.max_total_tokens:
        parts, fields = f"{longest} tokens (prompt and completion together)", ["carried.max_total_tokens"]
    for name in ("tokens_per_device", "forward_tokens_per_device"):
        budget = getattr(spec.micro_batch, name)
        # Devices of one context-parallel group share a sequence, and so do their budgets.
        if budget is not None and budget * spec.topology.context_parallel < longest:
            yield Violation(
                f"a budget of {budget} tokens per device cannot hold one completion of {parts}",
                (f"micro_batch.{name}", *fields),
                (Fix(f"at least {longest} tokens per device"),),
            )


def _hard_budget(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    if spec.micro_batch.cap == "hard":
        yield from _budget_too_small(spec)


def _soft_budget(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    if spec.micro_batch.cap == "soft":
        for violation in _budget_too_small(spec):
            yield violation._replace(message=f"{violation.message}; such a completion exceeds the budget alone")


_SCOPE_DEPENDS_ON = {
    "rollout": "on how many optimizer steps a rollout is cut into",
    "rank": "on the number of devices",
    "micro_batch": "on the micro-batch size, the number of devices, and which completions meet in a micro-batch",
}


def _scope(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for name, term in _terms(spec):
        if term.denominator_scope in _SCOPE_DEPENDS_ON:
            yield Violation(
                f"the {name} term's denominator is counted over one {term.denominator_scope.replace('_', '-')}: the "
                f"gradient depends {_SCOPE_DEPENDS_ON[term.denominator_scope]}",
                (f"loss.{name}.denominator_scope", f"loss.{name}.aggregation"),
            )


def _ratio_is_one(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    per_rollout, per_step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    passes = spec.optimizer_step.passes_per_rollout
    if spec.objective.old_logprobs != "detached":
        return
    if per_rollout is not None and per_step is not None and per_rollout * passes > per_step:
        steps = -(-per_rollout * passes // per_step)
        why = f"a rollout is trained on in {steps} optimizer steps"
    elif passes > 1:
        why = f"a rollout is trained on {passes} times"
    elif spec.staleness.mode != "sync":
        why = f"completions may be stale ({spec.staleness.mode})"
    else:
        return
    yield Violation(
        f"{why}, but the ratio's denominator is the current policy itself: the ratio is 1, and clipping never acts",
        ("objective.old_logprobs", "optimizer_step.passes_per_rollout", "optimizer_step.completions_per_step"),
    )


def _words_agree(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    low, high, names = spec.advantage.minimum, spec.advantage.maximum, spec.open_terms
    if low is not None and high is not None and low > high:
        yield Violation(
            f"advantages cannot be at least {low:g} and at most {high:g}", ("advantage.minimum", "advantage.maximum")
        )
    if spec.advantage.baseline == "open" and not any(name.startswith("advantage: ") for name in names):
        yield Violation(
            "advantage.baseline is open, and no open term says what the advantages are",
            ("advantage.baseline", "open_terms"),
            (Fix('open_terms = ["advantage: NAME"]'),),
        )
    groups = [group for group in Spec.__annotations__ if group != "open_terms"]
    for name in names:
        group, colon, term = name.partition(": ")
        if group not in groups or not colon or not term.strip():
            message = f"the open term {name!r} is not named as its group, a colon and a name, as in 'advantage: gdpo'"
            yield Violation(f"{message}; groups: {', '.join(groups)}", ("open_terms",))
    if list(names) != sorted(set(names)):
        right = ", ".join(sorted(set(names)))
        yield Violation("open terms are named once each, sorted", ("open_terms",), (Fix(right),))


def _not_sampled(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    for name in ("temperature", "top_p"):
        if getattr(spec.carried, name) == 0:
            yield Violation(
                f"{name} is 0: a prompt's completions are all the same, and no policy gradient comes of them",
                (f"carried.{name}",),
                (Fix("1"),),
            )


def _group_of_one(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    baseline = spec.advantage.baseline
    ddof = 1 if spec.advantage.ddof is None else spec.advantage.ddof
    if spec.advantage.scale == "group_others" and 1 < spec.rollout.completions_per_prompt < 2 + ddof:
        yield Violation(
            "2 completions per prompt with the scale group_others: one other completion has no deviation, and no "
            "advantage is divided",
            ("rollout.completions_per_prompt", "advantage.scale"),
            (Fix("at least 3 completions per prompt"),),
        )
    if spec.rollout.completions_per_prompt == 1 and baseline in ("group_mean", "leave_one_out"):
        what = "every advantage is 0" if baseline == "group_mean" else "there is no other completion to compare with"
        yield Violation(
            f"1 completion per prompt with the baseline {baseline}: {what}",
            ("rollout.completions_per_prompt", "advantage.baseline"),
            (Fix("at least 2 completions per prompt"),),
        )


def _groups_straddle(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    size, group = spec.optimizer_step.completions_per_step, spec.rollout.completions_per_prompt
    if size is not None and size % group:
        yield Violation(
            f"{size} completions per optimizer step are {size / group:g} prompts: some groups are trained in two steps",
            ("optimizer_step.completions_per_step", "rollout.completions_per_prompt"),
        )


def _open_membership(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    rollout, step, staleness, order = spec.rollout, spec.optimizer_step, spec.staleness, spec.order
    if rollout.group_filter != "none":
        yield Violation(
            f"groups are filtered ({rollout.group_filter}): rewards decide what is trained, the plan fixes the "
            "candidates' order only, and the rollout's size is a target",
            ("rollout.group_filter",),
        )
    if staleness.mode != "sync":
        yield Violation(
            f"generation runs ahead ({staleness.mode}): timing decides what is trained, the plan fixes the candidates' "
            "order only",
            ("staleness.mode",),
        )
    if rollout.prompts_per_rollout is None:
        yield Violation("prompts are streamed: arrival decides what is trained", ("rollout.prompts_per_rollout",))
    for name in STEP_SIZES[1:]:
        if getattr(step, name) is not None:
            yield Violation(
                f"steps are sized by {name.replace('_', ' ')}: completion lengths decide what a step trains on",
                (f"optimizer_step.{name}",),
            )
    if order.prompt_shuffle == "weighted_sampling":
        yield Violation("prompts are drawn with weights: the draw decides what is trained", ("order.prompt_shuffle",))
    elif order.prompt_shuffle == "epoch_permutation" and order.seed is None:
        yield Violation("prompts are shuffled without a seed: no two runs see one order", ("order.seed",))


def _terms_without_a_word(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    if spec.open_terms:
        taken = "wrap refuses it" if spec.unfollowed_terms else "wrap leaves the advantages as they are"
        yield Violation(
            f"the schema has no word for {', '.join(spec.open_terms)}: what else is said holds beside it, {taken}, and "
            "a conversion keeps it where the target has a term of the same name",
            ("open_terms",),
        )


def _rollouts_end_with_epochs(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    if spec.order.last_rollout == "wrap" and spec.optimizer_step.step_may_span == "epoch":
        yield Violation(
            "rollouts reach across epochs, but optimizer steps must end with an epoch",
            ("order.last_rollout", "optimizer_step.step_may_span"),
        )


def _kl_without_place(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    objective = spec.objective
    if objective.kl_placement == "none" and objective.kl_coefficient:
        yield Violation(
            f"the KL penalty has the coefficient {objective.kl_coefficient:g} but no place (loss or reward): it does "
            "not act",
            ("objective.kl_placement", "objective.kl_coefficient"),
        )


def _slow_clock(spec: Spec, dataset_size: int | None) -> Iterator[Violation]:
    per_rollout, per_step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    passes = spec.optimizer_step.passes_per_rollout
    if spec.horizon.lr_tick == "rollout" and per_rollout and per_step and per_rollout * passes > per_step:
        yield Violation(
            f"the learning rate moves once per rollout, that is once in {-(-per_rollout * passes // per_step)} "
            "optimizer steps",
            ("horizon.lr_tick",),
        )


RULES = (
    CoreRule("BB100", "error", "config", _types),
    CoreRule("BB101", "error", "config", _bounds),
    CoreRule("BB102", "error", "worker_start", _whole_replicas),
    CoreRule("BB103", "error", "config", _one_step_size),
    CoreRule("BB104", "error", "config", _a_horizon),
    CoreRule("BB105", "error", "config", _one_micro_batch, True),
    CoreRule("BB106", "error", "config", _constant_given, True),
    CoreRule("BB107", "error", "optimizer_step", _hard_budget),
    CoreRule("BB108", "error", "optimizer_step", remainders.refused, True),
    CoreRule("BB109", "error", "construction", remainders.refused_prompts),
    CoreRule("BB110", "error", "config", _rollouts_end_with_epochs),
    CoreRule("BB111", "error", "config", _words_agree),
    CoreRule("BB112", "error", "first_rollout", _not_sampled),
    CoreRule("BB113", "error", "never", _trains_something),
    CoreRule("BB121", "warning", "optimizer_step", remainders.odd_shares, True),
    CoreRule("BB122", "warning", "never", remainders.uneven_micro_batches, True),
    CoreRule("BB123", "warning", "never", remainders.changed_by_rest, True),
    CoreRule("BB124", "warning", "never", remainders.prompts_left_over),
    CoreRule("BB125", "warning", "never", _scope, True),
    CoreRule("BB126", "warning", "never", _ratio_is_one),
    CoreRule("BB127", "warning", "never", _group_of_one),
    CoreRule("BB128", "warning", "optimizer_step", _soft_budget),
    CoreRule("BB129", "warning", "never", _constant_unused, True),
    CoreRule("BB130", "warning", "never", _kl_without_place),
    CoreRule("BB140", "note", "never", _open_membership),
    CoreRule("BB141", "note", "never", _groups_straddle),
    CoreRule("BB142", "note", "never", _slow_clock),
    CoreRule("BB143", "note", "never", _terms_without_a_word),
)
"""Rules, with stable codes: BB10x and BB11x errors, BB12x and BB13x warnings, BB14x notes; no number is used again."""

"""The differences in meaning between two readings, the largest effect first.

Plan, weights, clock, order, objective and carried settings are compared; where a step runs and in which portions is not
part of the meaning, unless a native denominator makes it one. What the frameworks would really do (scopes, known
defects, order) is compared too: two runs can differ though their specifications agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from batchbridge.comparing.comparison import Comparison, Difference, DifferenceKind
from batchbridge.comparing.effects import BY_FIELD, EFFECTS, RANK, SPLIT, FieldEffect, leaves, terms
from batchbridge.comparing.outside import SharedValue, shared_values
from batchbridge.contract import plugins
from batchbridge.contract.reading import Provenance, Reading
from batchbridge.frozen import dataclass
from batchbridge.meaning.derived import UNITS
from batchbridge.meaning.spec import Spec, every_field


def compare(a: Reading, b: Reading) -> Comparison:
    """The comparison of `diff`, of two readings; each as it is where its condition holds."""
    a, b = a.supposed, b.supposed
    left_open = tuple(() if reading.behaviour is None else reading.behaviour.undecided for reading in (a, b))
    if a.spec is None or b.spec is None:
        return Comparison(a=a, b=b, differences=tuple(_settings(a, b)), left_open=(left_open[0], left_open[1]))
    found = [*_fields(a, b), *_dataset(a, b), *_native(a, b)]
    outside = outside_of(a), outside_of(b)
    alike = a.framework == b.framework
    shared = {} if alike else _shared(a, b)
    found += _outside(a, b, outside) if alike else _outside_in_other_words(a, b, shared)
    ranked = sorted(found, key=lambda difference: _rank(difference.field))
    by_kind = {kind: tuple(d for d in ranked if d.kind == kind) for kind in ("differs", "unknown", "same")}
    return Comparison(
        a=a,
        b=b,
        differences=by_kind["differs"],
        cannot_tell=by_kind["unknown"],
        no_difference=by_kind["same"],
        derived=tuple(_derived(a, b)),
        left_open=(left_open[0], left_open[1]),
        not_compared=((), ()) if alike else (_given(a, outside[0], shared), _given(b, outside[1], shared)),
    )


def outside_of(reading: Reading) -> dict[str, str]:
    """Native keys that no canonical field comes from, with what each decides; "" where that is not known.

    Left out are keys that decide nothing of what is trained (see `Adapter.decides`), and other ones that the adapter
    reads: what they mean stands in the specification.
    """
    adapter = plugins.adapters().get(reading.framework)
    used = {key for origin in reading.provenance.values() for key in origin.keys}
    used |= reading.places.keys() - reading.given.keys()  # what stands there under another name
    found = {}
    for key in {**reading.given, **reading.native}:
        if key in used:
            continue
        what = None if adapter is None else adapter.decides(key)
        if what or (what is None and key not in reading.native):
            found[key] = what or ""
    return found


# ---- fields


@dataclass(frozen=True)
class SameMeaning:
    """Values of `fields` that differ and yet mean the same in these two specs with this number of prompts."""

    fields: tuple[str, ...]
    reason: str
    holds: Callable[[Spec, Spec, int | None], bool]


def _both(test: Callable[[Spec], bool]) -> Callable[[Spec, Spec, int | None], bool]:
    return lambda a, b, prompts: test(a) and test(b)


def _whole_rollouts_per_step(spec: Spec) -> bool:
    rollout, step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    return bool(rollout and step and step % rollout == 0)


def _whole_steps(spec: Spec) -> bool:
    """Every pass over every rollout ends with a full step."""
    rollout, step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    return bool(rollout and step and rollout % step == 0)


def _whole_steps_everywhere(a: Spec, b: Spec, prompts: int | None) -> bool:
    whole = _whole_rollouts(a, b, prompts) or all(s.order.last_rollout in ("drop", "wrap") for s in (a, b))
    return whole and _whole_steps(a) and _whole_steps(b)


def _whole_rollouts(a: Spec, b: Spec, prompts: int | None) -> bool:
    sizes = [spec.rollout.prompts_per_rollout for spec in (a, b)]
    return prompts is not None and all(size and prompts % size == 0 for size in sizes)


def _one_step_per_rollout(spec: Spec) -> bool:
    rollout, step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
    return bool(rollout and step and step == rollout * spec.optimizer_step.passes_per_rollout)


def _on_policy(spec: Spec) -> bool:
    own = spec.objective.old_logprobs in ("detached", "rollout_start")
    return own and spec.staleness.mode == "sync" and _one_step_per_rollout(spec)


def _estimate_bound_first(spec: Spec) -> bool:
    """Whether `kl_clamp` bounds the KL estimate before `kl_log_ratio_clamp` bounds its log ratio: then the second bound
    has no effect."""
    objective = spec.objective
    ratio, bound = objective.kl_log_ratio_clamp, objective.kl_clamp
    if ratio is None:
        return True
    smallest = {"k1": ratio, "abs": ratio, "k2": ratio**2 / 2, "k3": math.exp(-ratio) + ratio - 1}
    kind = (objective.kl_estimator or "").removesuffix("+")
    return bound is not None and kind in smallest and bound <= smallest[kind]


SAME: tuple[SameMeaning, ...] = (
    SameMeaning(
        ("optimizer_step.rollout_shuffle",),
        "an optimizer step takes whole rollouts: order inside one does not matter",
        _both(_whole_rollouts_per_step),
    ),
    SameMeaning(
        ("optimizer_step.step_may_span", "order.last_optimizer_step"),
        "sizes divide: every pass over a rollout ends with a full step",
        _whole_steps_everywhere,
    ),
    SameMeaning(("order.last_rollout",), "the number of prompts divides: there is no remainder", _whole_rollouts),
    SameMeaning(
        ("objective.old_logprobs",),
        "a rollout is trained on in one optimizer step: both are the weights that generated it, and the ratio is 1, "
        "up to rounding where both are computed in micro-batches of other shapes",
        _both(_on_policy),
    ),
    SameMeaning(
        ("objective.kl_log_ratio_clamp",),
        "the KL estimate reaches its own bound first, which leaves no gradient",
        _both(_estimate_bound_first),
    ),
    SameMeaning(("horizon.lr_tick",), "a rollout is trained on in one optimizer step", _both(_one_step_per_rollout)),
)
"""Fields that may differ without a difference in meaning, and why. Source: the definitions of the plan (docs/plan.md)
and of the ratio."""


def _fields(a: Reading, b: Reading) -> Iterator[Difference]:
    assert a.spec is not None
    assert b.spec is not None
    one, other = leaves(a.spec), leaves(b.spec)
    split_counts = _scopes_that_see_the_split(a, b)
    lengths = a.spec.horizon.lengths, b.spec.horizon.lengths
    field_by_field = lengths[0] == lengths[1] or (len(lengths[0]) == 1 and lengths[0].keys() == lengths[1].keys())
    same_surrogate = a.spec.objective.surrogate == b.spec.objective.surrogate
    for effect in EFFECTS:
        field = effect.field
        values = one.get(field), other.get(field)
        if values[0] == values[1] or not effect.counts(a.spec, b.spec):
            continue
        if field.startswith(("loss.kl.", "loss.entropy.")):
            term = field.split(".")[1]
            if getattr(a.spec.loss, term) is None and getattr(b.spec.loss, term) is None:
                continue  # it follows the policy term, whose difference is said already
        if field.startswith("horizon.") and field != "horizon.lr_tick" and not field_by_field:
            continue
        if effect.of_surrogate and None in values and not same_surrogate:
            continue  # another loss has no such bound: that difference is said already
        kind, reason = _judge(effect, *values, a, b, split_counts)
        # What the split changes natively are the weights.
        aspect = "weights" if effect.aspect == "split" and kind == "differs" else effect.aspect
        yield Difference(field, aspect, UNIT_OF[field], *values, kind, reason, _origin(a, field), _origin(b, field))
    if not field_by_field:
        yield from _horizons(a, b)


def _judge(
    effect: FieldEffect, one: Any, other: Any, a: Reading, b: Reading, split_counts: Mapping[str, str]
) -> tuple[DifferenceKind, str]:
    assert a.spec is not None
    assert b.spec is not None
    if effect.aspect == "split":
        group = effect.field.split(".")[0]
        return ("differs", split_counts[group]) if group in split_counts else ("same", SPLIT)
    for same in SAME:
        if effect.field in same.fields and same.holds(a.spec, b.spec, _prompts(a, b)):
            return "same", same.reason
    if effect.missing == "unknown" and (one is None or other is None):
        return "unknown", f"one side does not say it; {effect.reason}"
    if effect.missing == "unfixed" and (one is None or other is None):
        return "differs", f"{(a if one is None else b).framework} fixes nothing, and each launch has another"
    return "differs", effect.reason


def _scopes_that_see_the_split(a: Reading, b: Reading) -> dict[str, str]:
    """`topology` and `micro_batch`, where a denominator makes them matter, with the reason. Source: invariant I9."""
    found: dict[str, str] = {}
    for reading in (a, b):
        scopes = [] if reading.behaviour is None else [reading.behaviour.denominator_scope]
        if reading.spec is not None:
            scopes += [term.denominator_scope for term in terms(reading.spec.loss).values()]
        for scope in scopes:
            reason = f"{reading.framework} counts denominators per {scope.replace('_', '-')}: the gradient sees it"
            if scope in ("rank", "micro_batch"):
                found.setdefault("topology", reason)
            if scope == "micro_batch":
                found.setdefault("micro_batch", reason)
    return found


def _horizons(a: Reading, b: Reading) -> Iterator[Difference]:
    """Lengths in different units, or several: compared as optimizer steps, where the number of prompts is known."""
    totals = [total_steps(reading) for reading in (a, b)]
    if None in totals:
        kind: DifferenceKind = "unknown"
        several = max(len(reading.spec.horizon.lengths) for reading in (a, b) if reading.spec is not None) > 1
        units = "are several, the first to end counting," if several else "are in different units,"
        reason = f"the lengths {units} and the total of optimizer steps is open: how many prompts?"
    elif totals[0] == totals[1]:
        kind, reason = "same", f"both are {totals[0]:,} optimizer steps with this number of prompts"
    else:
        kind, reason = "differs", BY_FIELD["horizon.optimizer_steps"].reason
    yield Difference("horizon", "clock", "", _length(a), _length(b), kind, reason, _length_origin(a), _length_origin(b))


def total_steps(reading: Reading) -> int | None:
    """Optimizer steps of the whole run (optimizer steps); None while that is open."""
    known = reading.derived.get("total_optimizer_steps")
    if known is not None or reading.spec is None:
        return known
    if len(reading.spec.horizon.lengths) != 1:
        return None
    rollouts, per_rollout = reading.spec.horizon.rollouts, reading.derived.get("optimizer_steps_per_rollout")
    whole = isinstance(per_rollout, int) and reading.spec.order.last_rollout != "short"
    return rollouts * per_rollout if rollouts is not None and per_rollout and whole else None


def _length_origin(reading: Reading) -> str:
    assert reading.spec is not None
    origins = (_origin(reading, f"horizon.{name}") for name in reading.spec.horizon.lengths)
    return ", ".join(filter(None, origins))


def _length(reading: Reading) -> str:
    assert reading.spec is not None
    lengths = reading.spec.horizon.lengths
    return " or ".join(f"{value:g} {name.replace('_', ' ')}" for name, value in lengths.items()) or "open"


def _dataset(a: Reading, b: Reading) -> Iterator[Difference]:
    if a.dataset_size is not None and b.dataset_size is not None and a.dataset_size != b.dataset_size:
        reason = "epochs have other lengths, and the runs see other prompts"
        yield Difference("dataset_size", "plan", "prompts", a.dataset_size, b.dataset_size, "differs", reason)


def _outside(a: Reading, b: Reading, outside: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Difference]:
    """Settings of one framework that the schema has no field for, key by key."""
    decides = {**outside[0], **outside[1]}
    for key, what in decides.items():
        one, other = (_said(reading, key) for reading in (a, b))
        known = any(key in reading.given for reading in (a, b)) or all(key in reading.native for reading in (a, b))
        if one != other and known:
            reason = (
                f"the schema has no field for it; it decides {what}"
                if what
                else "the schema has no field for it, and whether it changes what is trained is not known"
            )
            kind: DifferenceKind = "differs" if what else "unknown"
            yield Difference(f"outside.{key}", "outside", "", one, other, kind, reason, _place(a, key), _place(b, key))


def _shared(a: Reading, b: Reading) -> dict[str, tuple[SharedValue, SharedValue]]:
    """Settings outside the schema that two frameworks have one word for and both sides give, by that word."""
    adapters = plugins.adapters()
    one, other = (
        {said.row.name: said for said in reversed(shared_values(reading, {}, adapters.get(reading.framework)))}
        for reading in (a, b)
    )
    both = {name: (said, other[name]) for name, said in one.items() if name in other}
    return {name: pair for name, pair in both.items() if None not in (pair[0].value, pair[1].value)}


def _outside_in_other_words(
    a: Reading, b: Reading, shared: Mapping[str, tuple[SharedValue, SharedValue]]
) -> Iterator[Difference]:
    """Differences outside the schema where two frameworks share a word for a setting that decides something."""
    for name, (one, other) in shared.items():
        if one.value != other.value and one.row.decides:
            reason = f"the schema has no field for it; it decides {one.row.decides}"
            places = f"{one.key} ({_place(a, one.key)})", f"{other.key} ({_place(b, other.key)})"
            yield Difference(f"outside.{name}", "outside", "", one.value, other.value, "differs", reason, *places)


def _given(
    reading: Reading, keys: Iterable[str], shared: Mapping[str, tuple[SharedValue, SharedValue]]
) -> tuple[str, ...]:
    compared = {said.key for pair in shared.values() for said in pair}
    return tuple(key for key in keys if key in reading.given and key not in compared)


def _said(reading: Reading, key: str) -> Any:
    """The value of a native key, its default included where that is known."""
    given = reading.given.get(key)
    return reading.native.get(key, None if given is None else given.value)


def _place(reading: Reading, key: str) -> str:
    given = reading.given.get(key)
    return "" if given is None or given.file is None else f"{given.file}:{given.line}" if given.line else given.file


# ---- settings as they are said


def _settings(a: Reading, b: Reading) -> Iterator[Difference]:
    """Differences between what two readings say, where one has no meaning: settings that decide something of what is
    trained, or may; of two frameworks, whose settings are not each other's, these alone."""
    if a.framework != b.framework:
        reason = "nothing more is compared while the meaning of one side is not known"
        yield Difference("framework", "setting", "", a.framework or None, b.framework or None, "differs", reason)
        return
    adapter = plugins.adapters().get(a.framework)
    for key in dict.fromkeys([*a.given, *b.given]):
        values, what = (_said(a, key), _said(b, key)), None if adapter is None else adapter.decides(key)
        if what != "" and str(values[0]) != str(values[1]):
            reason = f"it decides {what}" if what else "what follows is not known while the meaning of one side is not"
            places = _place(a, key), _place(b, key)
            yield Difference(f"setting.{key}", "setting", "", *values, "differs", reason, *places)


# ---- what the frameworks do on their own


def _native(a: Reading, b: Reading) -> Iterator[Difference]:
    one, other = a.behaviour, b.behaviour
    if one is None or other is None or a.spec is None or b.spec is None:
        return
    agree = a.spec.loss == b.spec.loss
    though = "native runs differ, though the specifications agree" if agree else "native runs differ"

    def differ(name: str, values: tuple[str, str], reason: str) -> Difference:
        return Difference(f"native.{name}", "native", "", *values, "differs", reason, one.source, other.source)

    formulas = one.denominator_formula, other.denominator_formula
    if one.denominator_scope != other.denominator_scope:
        scopes = f"{one.denominator_scope}: {formulas[0]}", f"{other.denominator_scope}: {formulas[1]}"
        yield differ("denominator_scope", scopes, f"{though}: denominators are counted over something else")
    elif agree and a.framework == b.framework and formulas[0] != formulas[1]:
        reason = f"{though}: these versions or settings divide by something else"
        yield differ("denominator_formula", formulas, reason)
    yield from _defects(a, b)
    shuffled = "none" not in (a.spec.order.prompt_shuffle, b.spec.order.prompt_shuffle)
    sizes = [spec.rollout.prompts_per_rollout for spec in (a.spec, b.spec)]
    # One framework's words name the rollout's size, too, which is said already; without a seed no order is fixed.
    own = a.framework == b.framework and (a.spec.order.seed is None or sizes[0] != sizes[1])
    if shuffled and not own and a.spec.order.seed == b.spec.order.seed and one.order != other.order:
        reason = "native runs see the prompts in other orders, whatever the seeds are"
        yield differ("order", (one.order, other.order), reason)


def _defects(a: Reading, b: Reading) -> Iterator[Difference]:
    """Known defects that one side has alone, or that both have with other numbers; one row for each code."""
    assert a.behaviour is not None
    assert b.behaviour is not None
    one, other = ({d.code: d for d in side.defects} for side in (a.behaviour, b.behaviour))
    for code in dict.fromkeys([*one, *other]):
        left, right = one.get(code), other.get(code)
        if left is not None and right is not None and left.same_as(right):
            continue
        holders = [f"{r.framework} {r.framework_version}" for r, d in ((a, left), (b, right)) if d is not None]
        reason = f"known defect of {' and '.join(dict.fromkeys(holders))} with these settings"
        values = None if left is None else left.summary, None if right is None else right.summary
        sources = "" if left is None else left.source, "" if right is None else right.source
        yield Difference(f"native.defect.{code}", "native", "", *values, "differs", reason, *sources)


_RANKS: Mapping[str, float] = {
    **RANK,
    "dataset_size": RANK["rollout.prompts_per_rollout"] + 0.5,
    "horizon": RANK["horizon.optimizer_steps"] - 0.5,
    "native.denominator_scope": RANK["loss.policy.denominator_scope"] + 0.2,
    "native.denominator_formula": RANK["loss.policy.denominator_scope"] + 0.3,
    "native.order": RANK["order.seed"] + 0.5,
}
_DEFECT_RANK = RANK["loss.policy.denominator_scope"] + 0.4


def _rank(field: str) -> float:
    return _RANKS.get(field, len(RANK) if field.startswith("outside.") else _DEFECT_RANK)


# ---- helpers


def _derived(a: Reading, b: Reading) -> Iterator[tuple[str, str, Any, Any]]:
    one, other = a.derived, b.derived
    for name, unit in UNITS.items():
        if one.get(name) != other.get(name):
            yield name, unit, one.get(name), other.get(name)


def _prompts(a: Reading, b: Reading) -> int | None:
    """The number of prompts (prompts), where both sides have the same."""
    return a.dataset_size if a.dataset_size == b.dataset_size else None


def _origin(reading: Reading, field: str) -> str:
    """The origin of a reading's value, for a person; empty where it is the schema's own default."""
    origin: Provenance | None = reading.provenance.get(field)
    if origin is None:
        return ""
    if origin.key is None:
        return origin.detail
    return f"{origin.key} = {origin.value} ({origin.detail})"


UNIT_OF = {path: quantity.unit for path, quantity in every_field()}
"""Unit by leaf of the schema."""

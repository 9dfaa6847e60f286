"""The conversion from one framework's reading to another framework's configuration, with an account of every canonical
field.

What the target cannot say is first looked for elsewhere: the fields that its refusal names are set to the nearest value
that it takes. The account is then made by reading the written configuration back, never from what was intended, so
nothing differs that it does not name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from batchbridge.comparing.comparison import Comparison, missing
from batchbridge.comparing.differences import UNIT_OF, compare, total_steps
from batchbridge.comparing.effects import EFFECTS, FieldEffect, leaves
from batchbridge.comparing.nearest_spec import in_usual_form, project
from batchbridge.comparing.outside import OutsideReport, all_left, carry_over
from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source, Written
from batchbridge.errors import Problem
from batchbridge.frozen import dataclass
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.versions import includes, readable
from batchbridge.meaning.advantages import RULED
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.spec import Spec
from batchbridge.reading.asked import asked_for
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read, read_source
from batchbridge.reading.yaml_json import groups

FieldStatus = Literal["exact", "equivalent", "patched", "filled", "approximate", "inexpressible"]
"""The outcome for a field in a conversion. exact: the same value. equivalent: another value with the same meaning
(another split, say). patched: the configuration cannot say it, `wrap` (or `run`) brings it about. filled: the source
leaves it open, and the target's default fills it in. approximate: another number, with its factor. inexpressible:
another meaning."""
LOSSY: tuple[FieldStatus, ...] = ("approximate", "inexpressible")


@dataclass(frozen=True)
class FieldReport:
    """The outcome of a conversion for one canonical field. `source` and `target` in the field's unit; `factor` is
    target / source. rare: what is approximate or inexpressible of it acts in rare steps only (`FieldEffect.rare`)."""

    field: str
    aspect: str
    unit: str
    status: FieldStatus
    source: Any
    target: Any
    reason: str = ""
    factor: float | None = None
    rare: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Conversion:
    """A conversion and its account.

    written: the target's configuration; None where none could be written. back: what it means, read again. refused:
    problems of the target with the source's specification. outside: what became of each setting outside the schema:
    written, a variable to fill in, or left. left_behind: native keys of the source of which nothing was written; None
    where it is not known which keys were given. natively: what the target's own run would do otherwise than its
    specification (scopes, known defects). strict: differences that act in rare steps only count as lost, too.
    example_devices: where the source does not say its devices, the number for which all this holds, as an example: the
    verdict is "undecided" then.
    """

    source: Reading
    framework: str
    framework_version: str | None
    written: Written | None = None
    back: Reading | None = None
    fields: tuple[FieldReport, ...] = ()
    refused: tuple[Problem, ...] = ()
    outside: tuple[OutsideReport, ...] = ()
    left_behind: Mapping[str, Any] | None = None
    natively: tuple[str, ...] = ()
    strict: bool = False
    example_devices: int | None = None

    def __repr__(self) -> str:
        return brief(self, str(self))

    def __str__(self) -> str:
        ways = f"{self.source.framework} to {self.framework} {self.framework_version or ''}".rstrip()
        said = f"{ways}, {self.verdict}, {many(self.fields, 'field')}, {len(self.lost)} lost or approximate"
        if self.example_devices is not None:
            said += f" on {many(range(self.example_devices), 'device')}, for example"
        why = [problem.reason for problem in self.refused] if self.written is None else []
        why += [] if self.source.spec is not None else missing(self.source.findings)
        return "; ".join([said, *why])

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask

        lost = [(one.status, one.field, one.source, one.target, one.unit, one.reason) for one in self.lost + self.rare]
        filled = [(", ".join(one.keys) or one.target_key, one.variable, one.wanted) for one in self.variables]
        return notebook.fragment(
            str(self),
            notebook.table(("status", "field", "source", "target", "unit", "why"), lost),
            notebook.table(("setting", "to fill in", "what that is"), filled),
            notebook.table(("written", "value"), [] if self.written is None else settings_in(self.written.values)),
        )

    @property
    def lost(self) -> tuple[FieldReport, ...]:
        """Fields that mean something else in the target; those that do so in rare steps only where it is strict."""
        return tuple(field for field in self.fields if field.status in LOSSY and (self.strict or not field.rare))

    @property
    def rare(self) -> tuple[FieldReport, ...]:
        """Fields that mean something else in the target in rare steps only."""
        return tuple(field for field in self.fields if field.status in LOSSY and field.rare)

    @property
    def variables(self) -> tuple[OutsideReport, ...]:
        """The settings that a person has to fill in before the written configuration runs."""
        return tuple(report for report in self.outside if report.status == "fill in")

    @property
    def lossy(self) -> bool:
        """Whether anything is lost, or nothing could be written."""
        return self.written is None or bool(self.lost)

    @property
    def verdict(self) -> Literal["complete", "lossy", "invalid", "undecided"]:
        """ "invalid" and "undecided" where the source or the result is; else whether anything is lost."""
        verdicts = {reading.verdict for reading in (self.source, self.back) if reading is not None}
        if "invalid" in verdicts:
            return "invalid"
        if "undecided" in verdicts:
            return "undecided"
        return "lossy" if self.lossy else "complete"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "verdict": self.verdict,
            "from": {"framework": self.source.framework, "framework_version": self.source.framework_version},
            "to": {"framework": self.framework, "framework_version": self.framework_version},
            "values": None if self.written is None else dict(self.written.values),
            "text": None if self.written is None else dict(self.written.text),
            "fields": [field.to_dict() for field in self.fields],
            "strict": self.strict,
            "example_devices": self.example_devices,
            "refused": [problem.reason for problem in self.refused],
            "outside": [report.to_dict() for report in self.outside],
            "variables": [report.variable for report in self.variables],
            "left_behind": None if self.left_behind is None else dict(self.left_behind),
            "natively": list(self.natively),
            "findings": [finding.to_dict() for finding in (self.back or self.source).findings],
        }


def convert(
    source: object,
    to: str,
    *,
    target_version: str | None = None,
    given: Mapping[str, Any] | None = None,
    framework: str | None = None,
    version: str | None = None,
    framework_version: str | None = None,
    world_size: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    dataset_size: int | None = None,
    strict: bool = False,
) -> Conversion:
    """A configuration in another framework's form, with an account of every canonical field.

    What lies outside the schema (model, data, names, logs) is written where both frameworks have such a setting; what
    the target needs and cannot be mapped becomes a variable (`Conversion.variables`).

    Args:
        source: A `Reading`, or what `read` takes: a path, a dict, a list of arguments, a config or trainer object.
        to: The framework to write for.
        target_version: Its version; by default the newest that can say it.
        given: The native keys that the user gave, to say which are left behind; by default those of `source`, where it
            is not a `Reading`.
        framework: Whose configuration `source` is, where it is not a `Reading`; detected by default.
        version: The version of the source's framework, where `source` is not a `Reading`; by default the installed one.
        framework_version: The same, by the command's word.
        world_size: Devices that train the policy, where `source` is not a `Reading`.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        dataset_size: Prompts in the dataset, where `source` is not a `Reading`.
        strict: Differences that act in rare steps only count as lost, too.

    Returns:
        The written configuration, what it means when it is read again, and what became of every field. Where nothing
        but the devices of the source are missing, that of an example (`example_devices`), and the verdict is
        "undecided".

    Raises:
        TypeError: `source` has a type that `read` does not take, or an argument is given in two ways.
        ValueError: There is no adapter for `to`, it does not know `target_version`, the source's does not know
            `version`, or a size is below 1.
    """
    version, world_size, env = asked_for(version, framework_version, world_size, nodes, gpus)
    sizes: dict[str, Any] = {"world_size": world_size, "dataset_size": dataset_size}
    if isinstance(source, Reading):
        if version is not None:
            raise TypeError("version is the source's, which is read already; target_version is the target's")
        reading = read(source, framework=framework, **sizes)
    else:
        loaded = load_source(source, env=env, framework=framework, world_size=world_size)
        given = loaded.values if given is None and loaded.native is None else given
        reading = read(loaded, framework=framework, version=version, **sizes)
        _of_the_source(reading, version)
        if reading.framework_version is None:
            from batchbridge.comparing.releases import settled

            reading = settled(loaded, reading, **sizes)

    installed = plugins.adapters()
    if (target := plugins.named(to)) is None:
        raise ValueError(f"there is no adapter for framework {to!r}; installed: {', '.join(installed) or 'none'}")
    how: dict[str, Any] = {"version": target_version, "given": given, "strict": strict}
    example = None if isinstance(source, Reading) else of_example(installed[target], loaded, reading, sizes, **how)
    return example or convert_to(installed[target], reading, **how)


def of_example(
    adapter: Adapter, source: object, reading: Reading, sizes: Mapping[str, Any], **how: Any
) -> Conversion | None:
    """The conversion on an example of devices, where a `reading` of `source` lacks nothing else; None: of any other.
    sizes: `world_size` and `dataset_size`, as they were given. how: the arguments of `convert_to`."""
    if reading.spec is not None:  # nothing is missing, and nothing more is imported
        return None
    from batchbridge.comparing.releases import on_example_devices

    example = on_example_devices(source, reading, **sizes)
    if example is None or example.spec is None:
        return None
    found = convert_to(adapter, example, **how)
    judged = dataclasses.replace(example, findings=reading.findings)  # what is missing is still said
    return dataclasses.replace(found, source=judged, example_devices=example.spec.topology.world_size)


def _of_the_source(reading: Reading, version: str | None) -> None:
    """Refuses (ValueError) a version that the source's framework does not have: `version` was once the target's."""
    adapter = plugins.adapters().get(reading.framework)
    if version is None or adapter is None or reading.spec is not None:
        return
    if (unknown := unknown_version(adapter, plugins.release(adapter, version))) is not None:
        raise ValueError(f"{unknown}; version is the source's, and target_version the target's")


def convert_to(
    adapter: Adapter,
    reading: Reading,
    *,
    version: str | None = None,
    given: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Conversion:
    """The conversion of `convert`, with the target's adapter.

    given: the settings of the user's own file, of which the conversion then lists what it leaves behind.
    """
    reading = reading.supposed
    version = version and plugins.release(adapter, version)
    if version is not None and (unknown := unknown_version(adapter, version)) is not None:
        raise ValueError(unknown)
    left = None if given is None else left_behind(reading, given)
    start = Conversion(
        source=reading, framework=adapter.framework, framework_version=version, left_behind=left, strict=strict
    )
    found = start if reading.spec is None else _searched(adapter, reading, version, start)
    if found.fields:
        return found
    # Nothing was written, so every setting outside the schema stays behind.
    return dataclasses.replace(found, outside=all_left(reading, left or {}, _own(reading)))


def _searched(adapter: Adapter, reading: Reading, version: str | None, start: Conversion) -> Conversion:
    """`start` with what the search found for the specification of `reading`, and the account of it."""
    assert reading.spec is not None
    written, refused, nearest = project(adapter, reading.spec, version, reading.dataset_size)
    start = dataclasses.replace(start, refused=refused)
    if written is None or nearest is None:
        return start
    context = Context(
        framework_version=version or written.framework_version,
        world_size=nearest.topology.world_size,  # the target's own, where it trains on no other number
        dataset_size=reading.dataset_size,
    )

    def again(values: Mapping[str, Any]) -> Reading:
        return read_source(Source(values=values), adapter, context)

    back = again(written.values)
    if back.spec is not None:
        usual = in_usual_form(adapter, reading.spec, back.spec, written, version)
        written, back = (written, back) if usual is written else (usual, again(usual.values))
    start = dataclasses.replace(start, framework_version=back.framework_version, written=written, back=back)
    if back.spec is None:
        return start
    left = start.left_behind or {}
    written, outside = carry_over(reading, left, _own(reading), adapter, written, back, again)
    if written is not start.written:
        back = again(written.values)
    if start.left_behind is not None:
        still = {report.keys[0]: report.value for report in outside if report.status == "left"}
        start = dataclasses.replace(start, left_behind=still)
    start = dataclasses.replace(start, written=written, back=back, outside=outside)
    return dataclasses.replace(
        start, fields=tuple(account(adapter, reading, back)), natively=tuple(native_departures(back))
    )


def without_outside(found: Conversion) -> Conversion:
    """A conversion of which only what the schema has was written."""
    given = {key: place.value for key, place in found.source.given.items()}
    keys = {
        key: report.value if key == report.keys[0] else given.get(key)
        for report in found.outside
        for key in report.keys
    }
    outside = all_left(found.source, keys, _own(found.source))
    return dataclasses.replace(found, outside=outside, left_behind=None if found.left_behind is None else keys)


def _own(reading: Reading) -> Adapter | None:
    """The adapter that has made `reading`."""
    return plugins.adapters().get(reading.framework)


def unknown_version(adapter: Adapter, version: str) -> str | None:
    """The reason why nothing is written for a version: newer than all known ones, or unknown to the adapter, which then
    reads nothing at all even without any settings."""
    newest = adapter.newest_version
    if newest and readable(version, newest) != version:
        return f"{adapter.framework} {version} is newer than {newest}, the newest that is written for"
    if includes(adapter.versions, version) and version in (adapter.releases or (version,)):
        return None
    try:
        reading = adapter.read(Source(), Context(framework_version=version, world_size=1))
    except Exception:  # an adapter that cannot read an empty configuration says nothing about versions
        return None
    wrong = [found.message for found in reading.findings if found.severity == "error"]
    return wrong[0] if wrong and not reading.native and reading.spec is None else None


def left_behind(reading: Reading, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given native keys (flat, dotted) that no canonical field came from, by provenance.

    Of the keys that come second to a field's own, those that decide something outside the schema, too, are left.
    """
    own, origins = _own(reading), reading.provenance.values()
    used = {key for origin in origins for key in origin.keys if own is None or own.decides(key) is None}
    used |= {origin.key for origin in origins if origin.key}
    used |= {
        f"{key}." for key in used
    }  # a setting below a used one (`lr_scheduler_kwargs.min_lr_rate`) is used with it
    # Values of used ones are not asked for: a command's are parsed then.
    others = {key: given[key] for key in given if used.isdisjoint(_heads(key))}
    left = {key: value for key, value in settings_in(others) if used.isdisjoint(_heads(key))}
    return {key: value for key, value in left.items() if key.lstrip("+~-") not in used}


def _heads(key: str) -> tuple[str, ...]:
    """The key, and each group that it stands in, with a dot behind it."""
    return key, *(f"{group}." for group in groups(key))


# ---- the account


def account(adapter: Adapter, reading: Reading, back: Reading) -> Iterator[FieldReport]:
    """One report for each leaf of the schema, from what the written configuration means when it is read back.

    Both readings have a specification; of a critic's leaves where one of them has a critic.
    """
    assert reading.spec is not None
    assert back.spec is not None
    source, target = leaves(reading.spec), leaves(back.spec)
    # The canonical meaning is what is converted: what either framework does on its own is said apart.
    plain = _without_behaviour(reading)
    found = compare(plain, _without_behaviour(back))
    patches = _patches(adapter, back)
    meant = _wrapped(adapter, reading.spec, source, back) if patches else back
    wrapped = compare(plain, _without_behaviour(meant))
    brought = {same.field: same.reason for same in wrapped.no_difference}
    for effect in EFFECTS:
        if effect.field not in source and effect.field not in target:
            continue
        one, other = source.get(effect.field), target.get(effect.field)
        group, _, name = effect.field.partition(".")
        term = name.partition(".")[0]
        if group == "loss" and getattr(reading.spec.loss, term) is None and getattr(back.spec.loss, term) is None:
            one = other = None  # as the policy term on both sides, which has reports of its own
        status, reason, factor = _status(adapter, effect, one, other, reading, back, found, brought, patches)
        rare = status in LOSSY and effect.rare(one, other)
        unit = UNIT_OF[effect.field]
        yield FieldReport(effect.field, effect.aspect, unit, status, one, other, reason, factor, rare)


def _wrapped(adapter: Adapter, asked: Spec, source: Mapping[str, Any], back: Reading) -> Reading:
    """The meaning of the written configuration in a run that is wrapped to do as the source does."""
    assert back.spec is not None
    own = leaves(back.spec)
    patched = {
        path: value
        for path, value in source.items()
        if path in own and value != own[path] and _brings_about(adapter, path, value, asked)
    }
    return dataclasses.replace(back, spec=back.spec.replace(**patched))


def _brings_about(adapter: Adapter, path: str, value: Any, spec: Spec) -> bool:
    """Whether a wrapped run has the source's value of a field. Advantages that rewards alone do not decide are the
    framework's own, whatever is asked."""
    own = path.startswith("advantage.") and spec.advantage.baseline not in RULED
    return not own and adapter.enforces(path, value)


def _status(
    adapter: Adapter,
    effect: FieldEffect,
    one: Any,
    other: Any,
    reading: Reading,
    back: Reading,
    found: Comparison,
    brought: Mapping[str, str],
    patches: bool,
) -> tuple[FieldStatus, str, float | None]:
    """The status of a converted field. brought: what means the same once wrapped, and why. patches: `_patches`."""
    if one == other:
        return "exact", "", None
    assert reading.spec is not None
    assert back.spec is not None
    if not effect.counts(reading.spec, back.spec):
        return "equivalent", "it has no effect with these settings", None
    length = effect.field.startswith("horizon.") and effect.field != "horizon.lr_tick"
    for same in found.no_difference:
        if same.field == effect.field or (length and same.field == "horizon"):
            return "equivalent", same.reason, None
    if one is None and effect.missing == "unfixed":
        reason = f"{reading.framework} fixes nothing, and each launch has another; {adapter.framework} has {other}"
        return "filled", reason, None
    if patches and _brings_about(adapter, effect.field, one, reading.spec):
        return "patched", effect.reason, None
    if effect.field in brought:
        return "patched", f"once wrapped it means the same: {brought[effect.field]}", None
    if one is None and effect.missing == "unknown":
        return "filled", f"the source leaves it open; {adapter.framework} has {other}", None
    if length:
        totals = total_steps(reading), total_steps(back)
        if totals[0] and totals[1]:
            return "approximate", f"{totals[0]:,} optimizer steps become {totals[1]:,}", totals[1] / totals[0]
        return "inexpressible", "the length is given in another unit, and the number of prompts is open", None
    if other is None and effect.missing == "unfixed":
        reason = f"{adapter.framework} fixes nothing, and each launch has another: {effect.reason}"
        return "inexpressible", reason, None
    if other is None and effect.missing == "unknown":
        return "inexpressible", f"{adapter.framework} does not say it; {effect.reason}", None
    if _number(one) and _number(other) and one and effect.field != "order.seed":
        return "approximate", effect.reason, other / one
    return "inexpressible", effect.reason, None


def _patches(adapter: Adapter, back: Reading) -> bool:
    """Whether the trainer of a written configuration may be patched: of this version, and on code that `wrap` takes."""
    versions, version = adapter.enforced_versions, back.framework_version
    if not versions or version is None or not includes(versions, version):
        return False
    return not adapter.never_wrapped(back)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without_behaviour(reading: Reading) -> Reading:
    # What is left behind, settings outside the schema, is said apart.
    return dataclasses.replace(reading, behaviour=None, given={}, native={})


def native_departures(written: Reading) -> Iterator[str]:
    """Departures of the unwrapped run of a written configuration from what its specification says: denominators that
    are counted over less than an optimizer step, and known defects of the framework."""
    behaviour = written.behaviour
    if behaviour is None:
        return
    if behaviour.denominator_scope != "optimizer_step":
        scope = behaviour.denominator_scope.replace("_", "-")
        yield f"denominators are counted per {scope} ({behaviour.denominator_formula}), not per optimizer step"
    for defect in behaviour.defects:
        yield f"{defect.code}: {defect.summary}"

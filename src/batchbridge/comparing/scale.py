"""The run on another number of devices: the nearest legal configurations, and what each cannot keep.

Kept are completions per optimizer step, the group, and optimizer steps per rollout, by another split: micro-batches and
accumulation. Where the devices do not divide that, the nearest sizes below and above, another group size, and fewer
devices are offered side by side, three at most (`RANKING`, `MOST`). The framework's own rules judge every one
(`legal_choices`), and its refusals offer the micro-batches. Steps, groups and devices come from arithmetic, a bounded
number of each: no refusal knows which of several runs is the nearest; its way out ends one rule, while a choice keeps
the steps of a rollout, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from batchbridge.comparing.comparison import missing
from batchbridge.comparing.legal_choices import SMALLEST_MICRO_BATCH, Choice, Judge, micro_share
from batchbridge.comparing.releases import on_example_devices, settled
from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.spec import Spec
from batchbridge.reading.asked import asked_for
from batchbridge.reading.read import read
from batchbridge.rules.nearest_numbers import divisors, nearest_numbers

MAX_DEVICES = 1 << 20
_NEAR = 12
"""Sizes, and device counts, that are tried on each side."""
_SPLITS = 4
MOST = 3
"""Most choices that are offered."""
FARTHEST_STEP = Fraction(1, 2)
"""The most by which an optimizer step grows or shrinks, as a share of it, where another choice is nearer."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Scaling:
    """The choices for `world_size` devices, and last for fewer devices that keep everything; three at most. problems:
    why the devices do not hold the run, or what the framework refused first. example_devices: where nothing says the
    devices that the source is written for, as many as `reading` and the choices take for them, as an example."""

    reading: Reading
    world_size: int
    choices: tuple[Choice, ...] = ()
    problems: tuple[str, ...] = field(default=())
    example_devices: int | None = None

    def __repr__(self) -> str:
        return brief(self, str(self))

    def __str__(self) -> str:
        said = f"{self.reading.framework} on {self.world_size} devices, {self.verdict}, {many(self.choices, 'choice')}"
        why = (
            *self.problems,
            *(missing(self.reading.findings) if self.verdict == "undecided" or not self.choices else ()),
        )
        return "; ".join([said, *why])

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask

        rows = [
            (
                number,
                choice.title,
                ", ".join(f"{key} = {new}" for key, (_, new) in choice.settings.items()) or "nothing",
                ", ".join(f"{one.field}: {one.a} to {one.b}" for one in choice.lost) or "nothing",
            )
            for number, choice in enumerate(self.choices, 1)
        ]
        return notebook.fragment(str(self), notebook.table(("choice", "what", "changes", "not kept"), rows))

    @property
    def verdict(self) -> Literal["kept", "not kept", "invalid", "undecided"]:
        """ "kept" where the first choice keeps everything on the devices that were asked for."""
        if self.reading.verdict == "invalid":
            return "invalid"
        if self.example_devices is not None or self.reading.spec is None or self.reading.verdict == "undecided":
            return "undecided"
        first = self.choices[0] if self.choices else None
        kept = first is not None and not first.lost and first.spec.topology.world_size == self.world_size
        return "kept" if kept else "not kept"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "verdict": self.verdict,
            "framework": self.reading.framework,
            "framework_version": self.reading.framework_version,
            "world_size": self.world_size,
            "example_devices": self.example_devices,
            "derived": dict(self.reading.derived),
            "choices": [choice.to_dict() for choice in self.choices],
            "problems": list(self.problems),
            "findings": [finding.to_dict() for finding in self.reading.findings],
        }


def scale(
    source: object,
    world_size: int | None = None,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    present: int | None = None,
    version: str | None = None,
    framework_version: str | None = None,
    dataset_size: int | None = None,
) -> Scaling:
    """The nearest legal configurations of the same framework on another number of devices.

    Args:
        source: A `Reading`, or what `read` takes: a path, a dict, a list of arguments, a config or trainer object.
        world_size: Devices that are to train the policy, from 1 to 2**20.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        present: Devices that `source` is written for, where it is not a `Reading`; by default what it says.
        version: The framework's version, where `source` is not a `Reading`; by default the installed one.
        framework_version: The same, by the command's word.
        dataset_size: Prompts in the dataset, where `source` is not a `Reading`.

    Returns:
        The choices, the nearest first, with what each changes and loses. Where only the devices that `source` is
        written for are missing, those of an example (`example_devices`), and the verdict is "undecided".

    Raises:
        TypeError: `source` has a type that `read` does not take; or an argument is missing, or given in two ways.
        ValueError: `world_size` is out of range, or the framework has no adapter.
    """
    version, wanted, _ = asked_for(version, framework_version, world_size, nodes, gpus)
    if wanted is None:
        raise TypeError("scale needs the devices that are to train: world_size, or nodes and gpus")
    sizes: dict[str, Any] = {"world_size": present, "dataset_size": dataset_size}
    reading = settled(source, read(source, version=version, **sizes), **sizes).supposed
    return scaled(source, reading, wanted, present=present, dataset_size=dataset_size)


def scaled(
    source: object, reading: Reading, world_size: int, *, present: int | None, dataset_size: int | None
) -> Scaling:
    """The scaling of a source with its reading, which was made for `present` devices and `dataset_size` prompts."""
    adapter = plugins.adapters().get(reading.framework)
    if adapter is None and reading.spec is not None:
        raise ValueError(f"there is no adapter for framework {reading.framework!r}")
    if not 1 <= world_size <= MAX_DEVICES:
        raise ValueError(f"world_size = {world_size}: must be at least 1 and at most {MAX_DEVICES}")
    if adapter is None:
        return Scaling(reading=reading, world_size=world_size)
    example = None
    if not isinstance(source, Reading):
        example = on_example_devices(source, reading, world_size=present, dataset_size=dataset_size)
    if example is not None and example.spec is not None:
        found = scale_with(adapter, example, world_size)
        judged = dataclasses.replace(example, findings=reading.findings)  # what is missing is still said
        return dataclasses.replace(found, reading=judged, example_devices=example.spec.topology.world_size)
    return scale_with(adapter, reading, world_size)


def scale_with(adapter: Adapter, reading: Reading, world_size: int) -> Scaling:
    """The scaling of `scale`, with the framework's adapter."""
    empty = Scaling(reading=reading, world_size=world_size)
    if reading.spec is None or reading.verdict in ("invalid", "undecided"):
        return empty
    if reading.condition is not None and reading.counts_itself:
        return dataclasses.replace(empty, problems=(reading.condition.no_plan,))
    judge = Judge(adapter, reading)
    target = reading.spec.replace(**{"topology.world_size": world_size})
    kept = judge.choice("the same run", target)
    if kept is not None and kept.lost:
        kept = dataclasses.replace(kept, title="the same sizes")
    if kept is not None and _keeps_the_run(kept):
        return dataclasses.replace(empty, choices=(judge.plain(kept),))
    choices = [kept] if kept is not None else []
    sizes = _sizes(reading.spec)
    if kept is None and sizes is not None and target.topology.data_parallel_size.denominator == 1:
        resized = [*_other_sizes(judge, target, sizes)]
        choices += resized
        choices += _other_groups(judge, target, sizes, resized)
    choices += _smaller_tensor_parallel(judge, target)
    now = reading.spec.topology.world_size
    least = 1 if world_size <= now else now + bool(choices)  # whoever asks for more has the present ones already
    choices += _fewer_devices(judge, reading.spec, world_size, least)
    best = [judge.plain(choice) for choice in _best(choices, reading.spec, world_size)]
    problems = (*_not_held(target), *judge.refused)
    return dataclasses.replace(empty, choices=tuple(best), problems=tuple(dict.fromkeys(problems)))


def _keeps_the_run(choice: Choice) -> bool:
    """Whether nothing is lost but what any other number of devices costs natively."""
    return all(
        difference.field.startswith(("topology.", "micro_batch."))
        or (difference.field.startswith("native.defect.") and None not in (difference.a, difference.b))
        for difference in choice.lost
    )


def _not_held(spec: Spec) -> Iterator[str]:
    """The reason why the devices do not hold whole replicas of the model."""
    t = spec.topology
    if t.data_parallel_size.denominator == 1:
        return
    sizes = {"tensor": t.tensor_parallel, "pipeline": t.pipeline_parallel, "context": t.context_parallel}
    shape = " x ".join(f"{name} parallel {size}" for name, size in sizes.items() if size > 1)
    replica = math.prod(sizes.values())
    why = "do not hold" if t.world_size < replica else "are not a multiple of"
    yield f"{t.world_size:,} devices {why} {shape} = {replica:,} devices, which one replica of the model takes"


# ---- ranking


def _step_of(spec: Spec) -> int:
    found = _sizes(spec)
    return 0 if found is None else found.step


def _step_change(choice: Choice, before: Spec) -> Fraction:
    """The change of the optimizer step, as a share of it."""
    step = _step_of(before)
    return Fraction(abs(_step_of(choice.spec) - step), step) if step else Fraction(0)


RankingKey = Callable[[Choice, Spec, int], Any]
RANKING: tuple[tuple[str, RankingKey], ...] = (
    ("the devices that were asked for", lambda c, before, devices: c.spec.topology.world_size != devices),
    (
        "the micro-batch at least half of what it is",
        lambda c, before, _: micro_share(c, before) < SMALLEST_MICRO_BATCH,
    ),
    ("the optimizer step within half of it", lambda c, before, _: _step_change(c, before) > FARTHEST_STEP),
    ("the group", lambda c, before, _: c.spec.rollout.completions_per_prompt != before.rollout.completions_per_prompt),
    ("the optimizer step, as near as can be", lambda c, before, _: _step_change(c, before)),
    ("the micro-batch, as near as can be", lambda c, before, _: abs(1 - micro_share(c, before))),
)
"""The properties that a better choice keeps, the most important first; the second and third leave a choice out where a
better one is there."""
_LEAVE_OUT = (1, 2)
_KINDS: Mapping[str, int] = {"another group size": 1, "fewer devices": 1}
"""Most choices of one title, where others are not as good as they could be."""


def _best(choices: list[Choice], before: Spec, devices: int) -> list[Choice]:
    """The best choices, `MOST` at most, the best first, with fewer devices last."""
    ranks = {id(choice): tuple(key(choice, before, devices) for _, key in RANKING) for choice in choices}
    ordered = sorted(choices, key=lambda choice: ranks[id(choice)])
    sane = [choice for choice in ordered if not any(ranks[id(choice)][place] for place in _LEAVE_OUT)]
    found: list[Choice] = []
    for choice in sane or ordered:
        if sum(other.title == choice.title for other in found) < _KINDS.get(choice.title, MOST):
            found.append(choice)
    elsewhere = [choice for choice in found if choice.spec.topology.world_size != devices][:1]
    here = [choice for choice in found if choice.spec.topology.world_size == devices]
    return [*here[: MOST - len(elsewhere)], *elsewhere]


# ---- candidates


@dataclass(frozen=True)
class _Sizes:
    """The sizes that a choice keeps where it can: completions per optimizer step, optimizer steps per rollout (None
    where a rollout has no size), completions per prompt."""

    step: int
    steps_per_rollout: Fraction | None
    group: int

    def unit(self, replicas: int) -> int:
        """The number that an optimizer step is a multiple of: whole shares, and whole prompts in its rollout."""
        if self.steps_per_rollout is None:
            return replicas
        return math.lcm(replicas, (self.steps_per_rollout / self.group).denominator)

    def resized(self, spec: Spec, step: int) -> Spec:
        """`spec` with optimizer steps of `step` completions, and as many of them in a rollout as before."""
        changes: dict[str, Any] = {}
        if spec.optimizer_step.completions_per_step is not None:
            changes["optimizer_step.completions_per_step"] = step
        if self.steps_per_rollout is not None:
            prompts = self.steps_per_rollout * step / spec.rollout.completions_per_prompt
            changes["rollout.prompts_per_rollout"] = max(round(prompts), 1)
        if spec.critic is not None and spec.critic.completions_per_step == self.step:
            changes["critic.completions_per_step"] = step
        return spec.replace(**changes)


def _sizes(spec: Spec) -> _Sizes | None:
    """The sizes of `spec`; None where a step has no number of completions (micro-batches or tokens per step)."""
    step, rollout = spec.optimizer_step.completions_per_step, spec.completions_per_rollout
    parts = spec.optimizer_step.parts_per_rollout
    if step is None and parts and rollout and rollout % parts == 0:
        step = rollout // parts
    if not step:
        return None
    return _Sizes(step, Fraction(rollout, step) if rollout else None, spec.rollout.completions_per_prompt)


def _other_sizes(judge: Judge, target: Spec, sizes: _Sizes) -> Iterator[Choice]:
    """The nearest optimizer steps below and above that the devices can share, group and steps per rollout kept."""
    unit = sizes.unit(int(target.topology.data_parallel_size))
    for title, direction in (("a smaller optimizer step", -1), ("a larger optimizer step", 1)):
        for whole in dict.fromkeys((unit, math.lcm(unit, sizes.group))):
            nearby = (sizes.resized(target, step) for step in _around(sizes.step, whole, direction))
            choice = judge.first(title, nearby)
            if choice is not None:
                yield choice
                break


def _other_groups(judge: Judge, target: Spec, sizes: _Sizes, resized: list[Choice]) -> Iterator[Choice]:
    """Choices with another group size, where that lets the optimizer step stay nearer than with the group kept."""
    if sizes.steps_per_rollout is None:
        return
    reached = [found.step for choice in resized if (found := _sizes(choice.spec)) is not None]
    closest = min((abs(step - sizes.step) for step in reached), default=sizes.step)
    for direction in (-1, 1):
        for step in _around(sizes.step, int(target.topology.data_parallel_size), direction)[:_SPLITS]:
            total = step * sizes.steps_per_rollout
            if abs(step - sizes.step) >= closest or total.denominator != 1:
                continue
            groups = nearest_numbers(sizes.group, divides=int(total), low=2)
            regrouped = [
                target.replace(**{"rollout.completions_per_prompt": group})
                for group in groups
                if sizes.group <= 2 * group <= 3 * sizes.group  # half as much again is another experiment
            ]
            asked = [judge.choice("another group size", sizes.resized(spec, step)) for spec in regrouped]
            legal = [choice for choice in asked if choice is not None]
            if legal:
                yield from legal
                break


def _smaller_tensor_parallel(judge: Judge, target: Spec) -> Iterator[Choice]:
    """The largest part of the tensor parallel size that the devices hold whole: heads that split into 8 split into 4.

    Only where the devices make no whole replicas.
    """
    t = target.topology
    others = t.pipeline_parallel * t.context_parallel
    if t.data_parallel_size.denominator == 1 or t.world_size % others:
        return
    size = math.gcd(t.tensor_parallel, t.world_size // others)
    choice = judge.choice("a smaller tensor parallel size", target.replace(**{"topology.tensor_parallel": size}))
    if choice is not None:
        yield choice


def _fewer_devices(judge: Judge, spec: Spec, world_size: int, least: int) -> Iterator[Choice]:
    """The nearest smaller device count, from `least` on, on which the run stays what it is; more devices than there are
    help nobody."""
    sizes, t = _sizes(spec), spec.topology
    replica = t.replica_size
    shared = [] if sizes is None else [sizes.step, int(sizes.step * (sizes.steps_per_rollout or 1))]
    dividing = sorted({replica * size for number in shared for size in divisors(number)}, reverse=True)
    # For frameworks that do not share steps out evenly, plain neighbours, too.
    plain = [world_size // replica * replica - distance * replica for distance in (0, 1, 2)]
    # Half or a third of the present devices keep what else is shared out among them, generation engines say.
    alike = [size for size in dividing if world_size <= 2 * size and not (t.world_size % size and size % t.world_size)]
    beyond = [size for size in alike if size < world_size][:_SPLITS]
    beyond += [*[count for count in dividing if count < world_size][:_SPLITS], *plain]
    for count in dict.fromkeys(beyond):
        if not least <= count < world_size:
            continue
        choice = judge.choice("fewer devices", spec.replace(**{"topology.world_size": count}))
        if choice is not None and _keeps_the_run(choice):
            yield choice
            break


def _around(value: int, unit: int, direction: int) -> list[int]:
    """Multiples of `unit` (> 0) below (-1) or above (1) `value`, the nearest first."""
    start = value // unit * unit if direction < 0 else -(-value // unit) * unit
    found = [start + direction * unit * index for index in range(_NEAR)]
    return [size for size in found if size > 0 and size != value]

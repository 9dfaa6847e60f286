"""The run on another number of devices: the nearest legal configurations, and what each cannot keep.

Kept are completions per optimizer step, the group, and optimizer steps per rollout, by another split: micro-batches and
accumulation. Where the devices do not divide that, the nearest sizes below and above, another group size, and fewer
devices are offered side by side, three at most (`RANKING`, `MOST`). The framework's own rules judge every one: it is
written, read back and checked. Micro-batches are those that a refusal offers (`Problem.nearest`). Steps, groups and
devices come from arithmetic, a bounded number of each: no refusal knows which of several runs is the nearest; its way
out ends one rule, while a choice keeps the steps of a rollout, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product, zip_longest
from typing import Any, Literal

from batchbridge.comparing.comparison import Difference, missing
from batchbridge.comparing.differences import compare
from batchbridge.comparing.nearest_spec import write
from batchbridge.comparing.other_words import ProblemTuple
from batchbridge.comparing.releases import on_example_devices, settled
from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading, Source, Written
from batchbridge.errors import Problem
from batchbridge.kit.even_sizes import even_cuts
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.spec import Spec
from batchbridge.reading.asked import asked_for
from batchbridge.reading.read import read, read_again
from batchbridge.rules.nearest_numbers import divisors, nearest_numbers

MAX_JUDGED = 80
"""Most configurations that are written, read and checked in one search; a launch of the corpus takes 8, at most 27."""
MAX_DEVICES = 1 << 20
_NEAR = 12
"""Sizes, and device counts, that are tried on each side."""
_SPLITS = 4
MOST = 3
"""Most choices that are offered."""
SMALLEST_MICRO_BATCH = Fraction(1, 2)
"""The least share of the present micro-batch that is offered where another choice keeps more of it: each optimizer
step takes so many more passes through the model."""
FARTHEST_STEP = Fraction(1, 2)
"""The most by which an optimizer step grows or shrinks, as a share of it, where another choice is nearer."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice:
    """A legal configuration.

    title: what it changes. written: the configuration; settings: native keys that change, as (before, after), None
    where a key is not there. reading: what it means. lost: the differences in meaning; empty when all is kept.
    """

    title: str
    written: Written
    reading: Reading
    settings: Mapping[str, tuple[Any, Any]]
    lost: tuple[Difference, ...]

    def __repr__(self) -> str:
        return brief(self, self.title, many(self.settings, "changed setting"), f"{len(self.lost)} lost")

    @property
    def spec(self) -> Spec:
        """The specification that the configuration means."""
        assert self.reading.spec is not None, "only readings with a specification become choices"
        return self.reading.spec

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "title": self.title,
            "keeps_everything": not self.lost,
            "settings": {key: {"before": old, "after": new} for key, (old, new) in self.settings.items()},
            "lost": [difference.to_dict() for difference in self.lost],
            "derived": dict(self.reading.derived),
            "spec": self.spec.to_dict(),
            "text": dict(self.written.text),
        }


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
    judge = _Judge(adapter, reading)
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


def _micro_share(choice: Choice, before: Spec) -> Fraction:
    """The micro-batch as a share of the present one; 1 where either has none."""
    micro, now = choice.spec.micro_batch.completions_per_device, before.micro_batch.completions_per_device
    return Fraction(micro, now) if micro and now else Fraction(1)


RankingKey = Callable[[Choice, Spec, int], Any]
RANKING: tuple[tuple[str, RankingKey], ...] = (
    ("the devices that were asked for", lambda c, before, devices: c.spec.topology.world_size != devices),
    (
        "the micro-batch at least half of what it is",
        lambda c, before, _: _micro_share(c, before) < SMALLEST_MICRO_BATCH,
    ),
    ("the optimizer step within half of it", lambda c, before, _: _step_change(c, before) > FARTHEST_STEP),
    ("the group", lambda c, before, _: c.spec.rollout.completions_per_prompt != before.rollout.completions_per_prompt),
    ("the optimizer step, as near as can be", lambda c, before, _: _step_change(c, before)),
    ("the micro-batch, as near as can be", lambda c, before, _: abs(1 - _micro_share(c, before))),
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


def _other_sizes(judge: _Judge, target: Spec, sizes: _Sizes) -> Iterator[Choice]:
    """The nearest optimizer steps below and above that the devices can share, group and steps per rollout kept."""
    unit = sizes.unit(int(target.topology.data_parallel_size))
    for title, direction in (("a smaller optimizer step", -1), ("a larger optimizer step", 1)):
        for whole in dict.fromkeys((unit, math.lcm(unit, sizes.group))):
            nearby = (sizes.resized(target, step) for step in _around(sizes.step, whole, direction))
            choice = judge.first(title, nearby)
            if choice is not None:
                yield choice
                break


def _other_groups(judge: _Judge, target: Spec, sizes: _Sizes, resized: list[Choice]) -> Iterator[Choice]:
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


def _smaller_tensor_parallel(judge: _Judge, target: Spec) -> Iterator[Choice]:
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


def _fewer_devices(judge: _Judge, spec: Spec, world_size: int, least: int) -> Iterator[Choice]:
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


_SIZED = ("topology.", "micro_batch.", "optimizer_step.", "rollout.", "critic.")


def _is_of_sizes(problem: Problem) -> bool:
    """Whether a problem names one of the fields that a scaling may change."""
    return any(path.startswith(_SIZED) for path in problem.fields)


def _other_cuts(spec: Spec, problems: ProblemTuple) -> Iterator[Spec]:
    """`spec` in other micro-batches, the nearest first: one way out of every problem that changes nothing else. Nothing
    where a problem has no such way: then micro-batches do not decide it."""
    ways = []
    for problem in problems:
        cuts = [way for way in problem.nearest if all(path.startswith("micro_batch.") for path in way)]
        ways.append(cuts if problem.nearest else [*even_cuts(spec)])
    for together in zip_longest(*ways) if all(ways) else ():
        changes: dict[str, Any] = {}
        for way in filter(None, together):
            changes |= way if "micro_batch." not in changes else {}
        yield spec.replace(**({"micro_batch.": changes["micro_batch."]} if "micro_batch." in changes else changes))


# ---- the judge

_NO = object()
"""The mark of no value."""


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not _NO}


def _warned(reading: Reading) -> set[str]:
    """The rules that warn of a reading: a size that the framework rounds without a word, say."""
    return {finding.code for finding in reading.findings if finding.severity == "warning"}


class _Judge:
    """Writes, reads back and checks; at most `MAX_JUDGED` times."""

    def __init__(self, adapter: Adapter, reading: Reading) -> None:
        self.adapter, self.before = adapter, reading
        self.refused: tuple[str, ...] = ()
        self._left = MAX_JUDGED
        assert reading.spec is not None, "asked by the caller"
        written = write(adapter, reading.spec, reading.framework_version)
        self._values = dict(settings_in(written.values)) if isinstance(written, Written) else {}

    def first(self, title: str, specs: Iterator[Spec]) -> Choice | None:
        """The first legal one with a micro-batch that is not far smaller; else the first legal one."""
        assert self.before.spec is not None, "asked by the caller"
        nearest = None
        for spec in specs:
            found = self.choice(title, spec)
            if found is not None and _micro_share(found, self.before.spec) >= SMALLEST_MICRO_BATCH:
                return found
            nearest = nearest or found
        return nearest

    def plain(self, choice: Choice) -> Choice:
        """`choice` with the least settings: a key that the configuration does not have is set where it must be."""
        before = self.before
        given = {key: before.native[key] for key in before.places if key in before.native}
        told = None if before.spec is None else before.spec.topology.world_size
        # The devices may have been said beside the settings: by a launcher, or by whoever asks.
        wrong = [finding for finding in self._reading(given, told).findings if finding.severity == "error"]
        beside = {place.key for finding in wrong for place in finding.where}
        given = {key: value for key, value in given.items() if key not in beside}
        changes = {key: value for key, value in choice.written.values.items() if before.native.get(key, _NO) != value}
        # What the choice says in other words (TRL's generation_batch_size for steps_per_generation) may have to go.
        written = dict(settings_in(choice.written.values))
        others = {key: _NO for key in given if key not in written}  # in the user's order: the first ones go first
        sizes = ((None, None), (told, choice.spec.topology.world_size))
        for tried, (world, devices) in product((changes, {**changes, **others}), sizes):
            same = self._means(given, world) == before.spec
            if same and self._means({**given, **tried}, devices) == choice.spec:
                changes = tried
                break
        else:
            return choice
        told_of = _warned(choice.reading)
        for key in [*changes]:
            fewer = {other: value for other, value in changes.items() if other != key}
            read = self._reading(_there({**given, **fewer}), devices)
            if read.verdict == "valid" and read.spec == choice.spec and _warned(read) <= told_of:
                changes = fewer
        settings = {key: pair for key, pair in choice.settings.items() if key.split(".")[0] in changes}
        plain = {key: value for key, value in changes.items() if not isinstance(value, Mapping)}
        settings |= {key: (before.native.get(key), None if value is _NO else value) for key, value in plain.items()}
        return dataclasses.replace(choice, settings=settings)

    def _means(self, values: Mapping[str, Any], world: int | None) -> Spec | None:
        """The specification of settings on `world` devices; None where they are not valid."""
        reading = self._reading(_there(values), world)
        return reading.spec if reading.verdict == "valid" else None

    def _reading(self, values: Mapping[str, Any], world: int | None) -> Reading:
        return read_again(Source(values=values), self.adapter, self.before, world)

    def choice(self, title: str, spec: Spec) -> Choice | None:
        """`spec` as it is, or cut into the micro-batches that its refusals offer; None if none of these is legal."""
        if spec.topology.data_parallel_size.denominator != 1:
            return None
        tried: list[Spec] = []
        while self._left > 0:
            self._left -= 1
            tried.append(spec)
            written = write(self.adapter, spec, self.before.framework_version)
            if isinstance(written, Written):
                return self._read(title, spec, written)
            self.refused = self.refused or tuple(map(str, written))
            if any(problem.fields and not _is_of_sizes(problem) for problem in written):
                self._left = 0  # no size ends that: neither these nor any others are legal
            cut = next((other for other in _other_cuts(spec, written) if other not in tried), None)
            if cut is None:
                return None
            spec = cut
        return None

    def _read(self, title: str, spec: Spec, written: Written) -> Choice | None:
        back = self._reading(written.values, spec.topology.world_size)
        errors = [finding.message for finding in back.findings if finding.severity == "error"]
        if back.spec is None or back.verdict != "valid":
            self.refused = self.refused or tuple(errors)
            return None
        before, values = self._values, dict(settings_in(written.values))
        pairs = {key: (before.get(key), values.get(key)) for key in {**before, **values}}
        settings = {key: (old, new) for key, (old, new) in pairs.items() if old != new}
        return Choice(title=title, written=written, reading=back, settings=settings, lost=tuple(self._lost(back)))

    def _lost(self, back: Reading) -> Iterator[Difference]:
        for difference in compare(self.before, back).differences:
            if difference.aspect != "outside":  # that is not written, and stays
                yield difference

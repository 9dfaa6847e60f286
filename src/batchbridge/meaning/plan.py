"""The plan: which completions each rollout generates and each optimizer step trains on.

A pure function of a `Spec` and the number of prompts. Nothing here knows a framework, a rank or a token; every lookup
costs the same for 10 prompts and for 10^10.

The training stream is ordered by rollout, then pass, then position. It is cut into blocks of `completions_per_step`
inside *units*: a unit is one pass over one rollout, one rollout with all its passes, one epoch, or the whole run
(`step_may_span` = none, rollout, epoch, run). `last_optimizer_step` says what becomes of a unit's remainder.
Rollouts on which a critic trains alone (`critic.warmup_rollouts`) come first and have no step: step 0 is the policy's
first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from batchbridge.errors import PlanError
from batchbridge.frozen import dataclass
from batchbridge.meaning.order import Bijection, sampling_seed
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.stream import Stream

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Completion(NamedTuple):
    """One completion in one pass: the unit of membership."""

    rollout: int
    pass_index: int
    prompt: int
    sample: int


@dataclass(frozen=True)
class RolloutPlan:
    """The completions that rollout `index` generates: every sample of every prompt, prompt-major."""

    index: int
    epoch: int
    prompts: tuple[int, ...]
    completions_per_prompt: int
    generated_at_step: int
    """The optimizer step whose weights (those before its update) generate this rollout: the first that trains on it. Of
    a rollout on which a critic alone trains, 0: the policy's first."""

    @property
    def completions(self) -> tuple[tuple[int, int], ...]:
        """(prompt, sample) in generation order."""
        return tuple((prompt, sample) for prompt in self.prompts for sample in range(self.completions_per_prompt))


@dataclass(frozen=True)
class StepPlan:
    """The completions that optimizer step `index` trains on, in the order of the stream."""

    index: int
    epoch: int
    members: tuple[Completion, ...]
    positions: tuple[int, ...]
    """Each member's place in its rollout's generation order: a prompt that a rollout holds twice is told apart."""
    lr_tick: bool
    """Whether the learning rate schedule advances after this step."""

    @property
    def rollouts(self) -> tuple[int, ...]:
        """The rollouts that the step draws from, ascending."""
        return tuple(sorted({member.rollout for member in self.members}))


@dataclass(frozen=True)
class Position:
    """The place of a run after `optimizer_steps` steps: all that a resumed run needs beside the rollouts themselves."""

    optimizer_steps: int
    next_rollout: int
    """The first rollout that has not been generated yet."""
    live_rollouts: tuple[int, ...]
    """Rollouts generated before, and trained on again at or after this point: to be saved with the checkpoint."""
    epoch: int


@dataclass(frozen=True)
class _Stretch:
    """Consecutive completions of one pass over one rollout: `start` to `stop` (exclusive) of the pass."""

    rollout: int
    pass_index: int
    start: int
    stop: int


class Plan(Stream):
    """The plan of `spec` over `dataset_size` prompts. Raises `PlanError` where the spec leaves membership open."""

    members_are: ClassVar[str] = "prompt"
    """The meaning of `Completion.prompt`: a prompt of the dataset; in a `CandidatePlan` a place of the rollout."""

    def __init__(self, spec: Spec, dataset_size: int) -> None:
        if not isinstance(spec, Spec):  # an undecided reading has none
            raise PlanError(
                f"a plan is of a specification, not of {spec!r}: the reading's findings say what is missing"
            )
        rollout, step, order = spec.rollout, spec.optimizer_step, spec.order
        if obstacles := list(_obstacles(spec, dataset_size)):
            raise PlanError("; ".join(obstacles))
        assert rollout.prompts_per_rollout is not None
        assert step.completions_per_step is not None
        self.spec = self.asked = spec
        self.dataset_size = dataset_size
        self.prompts_per_rollout = rollout.prompts_per_rollout
        self.completions_per_prompt = rollout.completions_per_prompt
        self.completions_per_step = step.completions_per_step
        self.passes_per_rollout = step.passes_per_rollout
        self._span = step.step_may_span
        self._wraps = order.last_rollout == "wrap"
        remainder = dataset_size % self.prompts_per_rollout
        if order.last_rollout == "error" and remainder:
            raise PlanError(
                f"order.last_rollout = error: {dataset_size} prompts leave {remainder} of "
                f"{self.prompts_per_rollout} prompts per rollout over"
            )
        self._short_prompts = remainder if order.last_rollout in ("short", "pad") else 0
        self._shuffled = lru_cache(maxsize=4)(self._bijection)
        # A trainer asks for the step that it is at several times; looking it up again must cost nothing.
        self._step = lru_cache(maxsize=4)(self._make_step)
        whole_unit = self.passes_per_rollout * self.prompts_per_rollout * self.completions_per_prompt
        units = {"none": [whole_unit // max(self.passes_per_rollout, 1)], "rollout": [whole_unit]}.get(self._span, [])
        if self._short_prompts:
            short = self._short_prompts * self.completions_per_prompt
            units += {"none": [short], "rollout": [short * self.passes_per_rollout]}.get(self._span, [])
        if self._span == "epoch":
            units = [self._completions_per_epoch]
        self._stream_end = self._end_of_stream()
        self._steps_left_out = self._steps_of_warmup(0 if spec.critic is None else spec.critic.warmup_rollouts)
        if self._stream_end is not None:
            units += [
                self._stream_end if self._span == "run" else self._stream_end % (self._completions_per_epoch or 1)
            ]
        if order.last_optimizer_step == "error" and any(unit % self.completions_per_step for unit in units):
            raise PlanError(
                f"order.last_optimizer_step = error: {units[-1]} completions are not a multiple of "
                f"optimizer_step.completions_per_step = {self.completions_per_step}"
            )

    def __repr__(self) -> str:
        rollout = f"{self.prompts_per_rollout} x {self.completions_per_prompt} completions per rollout"
        return f"<{type(self).__name__}: {rollout}, {self.completions_per_step} per step, {self.dataset_size} prompts>"

    def _repr_html_(self) -> str:
        # No `from` import: tests/equivalence/native/digests.py counts the names that those bring in.
        import batchbridge.meaning.notebook as notebook

        sizes = ("prompts_per_rollout", "completions_per_prompt", "completions_per_step", "passes_per_rollout")
        of_epochs = ("dataset_size", "rollouts_per_epoch", "optimizer_steps_per_epoch", "prompts_dropped_per_epoch")
        rows = [(name, getattr(self, name)) for name in (*sizes, *of_epochs)]
        return notebook.fragment(repr(self), notebook.table(("number", "value"), rows))

    # ---- lookups

    def rollout(self, index: int) -> RolloutPlan:
        """The completions that rollout `index` generates. O(prompts_per_rollout), whatever the dataset's size."""
        if index < 0:
            raise IndexError(f"rollout {index} is negative")
        epoch, start, count = self._rollout_span(index)
        if self._wraps:
            prompts = tuple(
                self._prompt(*divmod(position, self.dataset_size)) for position in range(start, start + count)
            )
        elif self.spec.order.prompt_shuffle == "none":
            prompts = tuple(range(start, start + count))
        else:
            prompts = tuple(self._epoch_order(epoch).take(start, start + count))
        return RolloutPlan(index, epoch, prompts, self.completions_per_prompt, self._first_step_of(index))

    def sampling_seeds(self, rollout: int) -> tuple[int, ...]:
        """The seed of each prompt's sample 0, in the order of `rollout(rollout).prompts`; see `sampling_seed`."""
        epoch, start, count = self._rollout_span(rollout)
        epochs = [(start + place) // self.dataset_size if self._wraps else epoch for place in range(count)]
        prompts = self.rollout(rollout).prompts
        return tuple(self.sampling_seed(prompt, 0, epoch=at) for prompt, at in zip(prompts, epochs, strict=True))

    def sampling_seed(self, prompt: int, sample: int, *, epoch: int = 0) -> int:
        """The seed by which an engine that takes one per request draws this completion: below 2**31, whatever framework
        asks, in whichever batch. `epoch` is the prompt's own.

        Samples of one prompt have consecutive seeds, as an engine gives them that is asked for the whole group at once
        (vLLM: a request's seed plus the sample's number).
        """
        return sampling_seed(self.spec.order.seed or 0, epoch, prompt) + sample

    def step(self, index: int) -> StepPlan:
        """The completions that optimizer step `index` trains on. O(completions_per_step). Raises `PlanError` when the
        run has no step.

        Steps after the run's end are those of a longer run.
        """
        return self._step(index)

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[StepPlan]:
        """Steps `start` to `stop` (exclusive; the run's end if None), one at a time."""
        for index in range(start, self.total_optimizer_steps if stop is None else stop):
            yield self.step(index)

    def step_of(self, prompt: int, sample: int, *, epoch: int = 0, pass_index: int = 0) -> int | None:
        """The optimizer step that trains (prompt, sample) in this epoch and pass; None if it is dropped.

        `epoch` is the prompt's own; where rollouts wrap, a rollout's `epoch` is that of its first prompt.
        """
        if not 0 <= prompt < self.dataset_size or not 0 <= sample < self.completions_per_prompt:
            raise IndexError(f"({prompt}, {sample}) is not among {self.dataset_size} x {self.completions_per_prompt}")
        if not 0 <= pass_index < self.passes_per_rollout:
            raise IndexError(f"pass {pass_index} is not among {self.passes_per_rollout}")
        place = prompt if self.spec.order.prompt_shuffle == "none" else self._epoch_order(epoch).index(prompt)
        if self._wraps:
            rollout, ordinal = divmod(epoch * self.dataset_size + place, self.prompts_per_rollout)
        else:
            in_epoch, ordinal = divmod(place, self.prompts_per_rollout)
            per_epoch = self.rollouts_per_epoch or 0
            if in_epoch >= per_epoch:
                return None
            rollout = epoch * per_epoch + in_epoch
        prompts = self._rollout_span(rollout)[2]
        position = self._unshuffle(rollout, pass_index, ordinal, sample, prompts)
        unit, offset = self._stream_place(rollout, pass_index, position)
        end = unit.first_step + self._steps_in(unit.completions)
        step, first = unit.first_step + offset // self.completions_per_step, self._steps_left_out
        return step - first if first <= step < end and offset < unit.completions else None

    def steps_using(self, rollout: int, start: int = 0) -> Iterator[StepPlan]:
        """The steps from `start` on that train on `rollout`, in order, as if the run went on after its end."""
        for index in itertools.count(max(start, self._first_step_of(rollout))):
            step = self.step(index)
            if step.rollouts[0] > rollout:
                return
            yield step

    def seek(self, optimizer_steps: int) -> Position:
        """The place of the run after so many optimizer steps. Raises `PlanError` for a negative number."""
        steps = optimizer_steps
        if steps < 0:
            raise PlanError(f"optimizer_steps = {steps}: must be at least 0")
        if steps == 0:
            return Position(0, 0, (), 0)
        last, following = self._stretches(steps - 1), self._stretches(steps)
        next_rollout, first = last[-1].rollout + 1, following[0].rollout
        # The stream never goes back: the next step's first rollout is the oldest that is still needed.
        live = tuple(range(first, min(following[-1].rollout + 1, next_rollout)))
        return Position(steps, next_rollout, live, self._rollout_span(first)[0])

    def members_array(self, start: int, stop: int) -> NDArray[numpy.int64]:
        """Members of the steps `start` to `stop` (exclusive), as `step` gives them, computed by NumPy.

        Shape (completions, 5), columns optimizer step, rollout, pass, prompt, sample; 0 where there is no step.
        """
        import numpy as np

        stretches = [(index, stretch) for index in range(start, stop) for stretch in self._stretches(index)]
        lengths = [stretch.stop - stretch.start for _, stretch in stretches]
        rows = np.empty((sum(lengths), 5), dtype=np.int64)
        rows[:, 0] = np.repeat([index for index, _ in stretches], lengths)
        filled = 0
        for place, neighbours in itertools.groupby(stretches, lambda one: (one[1].rollout, one[1].pass_index)):
            shares = [stretch for _, stretch in neighbours]
            first, end = shares[0].start, shares[-1].stop  # what steps take from a pass lies together
            part = rows[filled : filled + end - first]
            prompts, samples = self._pass_arrays(*place)
            part[:, 1], part[:, 2] = place
            part[:, 3], part[:, 4] = prompts[first:end], samples[first:end]
            filled += end - first
        assert filled == len(rows)
        return rows

    def _make_step(self, index: int) -> StepPlan:
        members: list[Completion] = []
        positions: list[int] = []
        stretches = self._stretches(index)
        for stretch in stretches:
            prompts, passed = self.rollout(stretch.rollout).prompts, range(stretch.start, stretch.stop)
            for ordinal, sample in self._shuffle(stretch.rollout, stretch.pass_index, passed, len(prompts)):
                members.append(Completion(stretch.rollout, stretch.pass_index, prompts[ordinal], sample))
                positions.append(ordinal * self.completions_per_prompt + sample)
        epoch = self._rollout_span(stretches[0].rollout)[0]
        return StepPlan(
            index, epoch, tuple(members), tuple(positions), self._ticks_after(index + self._steps_left_out, members)
        )

    def _stretches(self, index: int) -> list[_Stretch]:
        """The parts of rollouts that step `index` takes, at least one stretch. No order is computed, so it costs next
        to nothing.

        Raises `PlanError` when the run has no step.
        """
        if index < 0:
            raise IndexError(f"step {index} is negative")
        if not self._has_steps:
            raise PlanError("no rollout fills an optimizer step: the run has none")
        index += self._steps_left_out
        unit = self._unit_of_step(index)
        start = (index - unit.first_step) * self.completions_per_step
        stop = min(start + self.completions_per_step, unit.completions)
        found = []
        while start < stop:
            rollout, pass_index, position = self._locate(unit, start)
            size = self._rollout_span(rollout)[2] * self.completions_per_prompt
            end = min(position + stop - start, size)
            found.append(_Stretch(rollout, pass_index, position, end))
            start += end - position
        assert found, "a step has at least one completion"
        return found

    def _ticks_after(self, step: int, members: list[Completion]) -> bool:
        """Whether the learning rate moves after a step. step: counted with those that a critic's warm-up leaves out."""
        if self.spec.horizon.lr_tick == "optimizer_step":
            return True
        unit = self._unit_of_step(step + 1)
        following = self._locate(unit, (step + 1 - unit.first_step) * self.completions_per_step)[0]
        return following != members[-1].rollout

    # ---- permutations

    def _prompt(self, epoch: int, position: int) -> int:
        return position if self.spec.order.prompt_shuffle == "none" else self._epoch_order(epoch)[position]

    def _epoch_order(self, epoch: int) -> Bijection:
        return self._shuffled(self.dataset_size, ("prompts", self.spec.order.seed or 0, epoch))

    def _rollout_order(self, rollout: int, pass_index: int, size: int) -> Bijection:
        return self._shuffled(size, ("rollout", self.spec.order.seed or 0, rollout, pass_index))

    @staticmethod
    def _bijection(size: int, key: tuple[int | str, ...]) -> Bijection:
        return Bijection(size, key)

    def _shuffle(self, rollout: int, pass_index: int, positions: range, prompts: int) -> list[tuple[int, int]]:
        """(ordinal of the prompt in its rollout, sample) at each of `positions` of a pass."""
        kind, group = self.spec.optimizer_step.rollout_shuffle, self.completions_per_prompt
        if kind == "completions":
            order = self._rollout_order(rollout, pass_index, prompts * group)
            return [divmod(place, group) for place in order.take(positions.start, positions.stop)]
        if kind == "groups":
            groups = self._rollout_order(rollout, pass_index, prompts)
            return [(groups[position // group], position % group) for position in positions]
        return [divmod(position, group) for position in positions]

    def _prompts_array(self, rollout: int) -> NDArray[numpy.int64]:
        """`rollout(rollout).prompts` as an array."""
        import numpy as np

        epoch, start, count = self._rollout_span(rollout)
        if self.spec.order.prompt_shuffle == "none":
            return np.arange(start, start + count, dtype=np.int64) % self.dataset_size
        parts = []
        while count:  # where rollouts wrap, `start` counts through the epochs
            epoch, position = divmod(start, self.dataset_size) if self._wraps else (epoch, start)
            taken = min(count, self.dataset_size - position)
            parts.append(self._epoch_order(epoch).take_array(position, position + taken))
            start, count = start + taken, count - taken
        return np.concatenate(parts)

    def _pass_arrays(self, rollout: int, pass_index: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
        """(prompt, sample) of every completion of a pass over a rollout, in the order of the pass."""
        import numpy as np

        kind, group = self.spec.optimizer_step.rollout_shuffle, self.completions_per_prompt
        prompts = self._prompts_array(rollout)
        count = len(prompts)
        if kind == "completions":
            ordinals, samples = np.divmod(
                self._rollout_order(rollout, pass_index, count * group).take_array(0, count * group), group
            )
            return prompts[ordinals], samples
        if kind == "groups":
            prompts = prompts[self._rollout_order(rollout, pass_index, count).take_array(0, count)]
        return np.repeat(prompts, group), np.tile(np.arange(group, dtype=np.int64), count)

    def _unshuffle(self, rollout: int, pass_index: int, ordinal: int, sample: int, prompts: int) -> int:
        kind = self.spec.optimizer_step.rollout_shuffle
        if kind == "groups":
            ordinal = self._rollout_order(rollout, pass_index, prompts).index(ordinal)
        position = ordinal * self.completions_per_prompt + sample
        if kind == "completions":
            size = prompts * self.completions_per_prompt
            position = self._rollout_order(rollout, pass_index, size).index(position)
        return position


def _obstacles(spec: Spec, dataset_size: int) -> Iterator[str]:
    """The reasons why the spec has no plan, whatever the sizes of its rollouts and steps leave over."""
    rollout, step, order = spec.rollout, spec.optimizer_step, spec.order
    prompts, portion = rollout.prompts_per_rollout, rollout.prompts_per_generation_batch
    if dataset_size < 1:
        yield f"dataset_size = {dataset_size} (prompts): must be at least 1"
    if prompts is None:
        yield "rollout.prompts_per_rollout is open: prompts are streamed, arrival decides"
    if step.completions_per_step is None:
        yield "optimizer_step.completions_per_step is open: token counts decide how much a step takes"
    if rollout.group_filter != "none":
        yield f"rollout.group_filter = {rollout.group_filter}: rewards decide what is trained"
    if prompts is not None and portion is not None and (portion < 1 or prompts % portion):
        yield (
            f"rollout.prompts_per_generation_batch = {portion}: {prompts} prompts per rollout are not a whole number "
            "of "
            "them, and what becomes of the rest is the framework's own"
        )
    if spec.staleness.mode != "sync":
        yield f"staleness.mode = {spec.staleness.mode}: timing decides what is trained"
    if order.prompt_shuffle == "weighted_sampling":
        yield "order.prompt_shuffle = weighted_sampling: prompts are drawn, not permuted"
    if order.prompt_shuffle == "epoch_permutation" and order.seed is None:
        yield "order.seed is open: the prompt order has no key"
    for name, value in (
        ("rollout.prompts_per_rollout", prompts),
        ("rollout.completions_per_prompt", rollout.completions_per_prompt),
        ("optimizer_step.completions_per_step", step.completions_per_step),
    ):
        if value is not None and value < 1:
            yield f"{name} = {value}: must be at least 1"
    if step.passes_per_rollout < 0:
        yield f"optimizer_step.passes_per_rollout = {step.passes_per_rollout}: must be at least 0"
    if order.last_rollout == "wrap" and step.step_may_span == "epoch":
        yield "order.last_rollout = wrap with step_may_span = epoch: rollouts do not end with epochs"

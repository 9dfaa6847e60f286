"""The membership of an unwrapped run, step by step: which completions a rollout has, and how often each is trained.

A framework orders prompts by a generator of its own, and deals a rollout out to steps by numbers that sampling moves.
So a step cannot be known beforehand to the completion. What the configuration says is held instead: how many
completions of which rollout and pass a step trains, which prompts a rollout has where their order is known, and that a
pass over a rollout trains each of its completions once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec

PromptsOfRollout = Callable[[int], Sequence[int]]
"""The prompts that the framework itself gives a rollout, by its number."""
_SIZES_OF = ("rollout", "optimizer_step", "order", "horizon", "staleness")


class OwnOrder:
    """The prompts of a rollout in the framework's own order, by the rollout's number. make: gives them all, from the
    first rollout on; it is asked again where an earlier one than the last `kept` is looked up."""

    kept = 8

    def __init__(self, make: Callable[[], Iterator[Sequence[int]]]) -> None:
        self._make = make
        self._rollouts = make()
        self._known: dict[int, Sequence[int]] = {}
        self._number = 0

    def __call__(self, rollout: int) -> Sequence[int]:
        """The prompts of a rollout; none after the run's last."""
        if rollout < self._number and rollout not in self._known:
            self._rollouts, self._number = self._make(), 0
        while rollout >= self._number:
            self._known[self._number] = next(self._rollouts, ())
            self._number += 1
            self._known.pop(self._number - 1 - self.kept, None)
        return self._known[rollout]


class Departure(NamedTuple):
    """One departure of a step: its aspect (`order` or `membership`), and how."""

    aspect: str
    detail: str


def same_sizes(spec: Spec, other: Spec) -> bool:
    """Whether two specifications order, generate and train the same completions, whatever each weighs."""
    return all(getattr(spec, part) == getattr(other, part) for part in _SIZES_OF)


class StockMembership:
    """The completions of an unwrapped run, as far as its steps have come.

    plan: of the run's own configuration; its sizes, passes and clock are held, its order of prompts is not. prompts_of:
    the framework's own order; None: nothing decides it, or the plan's where prompts are not shuffled. Of a
    `CandidatePlan`, prompts are places of their rollout, and which prompts have them is open. leaves_out: rewards or
    devices leave completions of a rollout out of its steps; then what a rollout trains is the same in each pass. Steps
    come in order; a run that goes on from a checkpoint begins where it likes.
    """

    def __init__(self, plan: Plan, prompts_of: PromptsOfRollout | None = None, *, leaves_out: bool = False) -> None:
        places = isinstance(plan, CandidatePlan)
        if prompts_of is None and (places or plan.spec.order.prompt_shuffle == "none"):
            prompts_of = self._in_dataset_order
        self._leaves_out, self._what = leaves_out, "places" if places else "prompts"
        self._plan, self._prompts_of = plan, prompts_of
        self._prompts = plan.prompts_per_rollout if places else plan.dataset_size
        self._repeats = plan.spec.order.last_rollout == "wrap"
        """Whether a rollout reaches from one epoch into the next, so that a prompt may stand in it twice."""
        self._trained: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
        self._begun_before: set[tuple[int, int]] = set()
        """Passes of which steps before the first that was seen trained a part."""
        self._next: int | None = None
        self._epochs: dict[int, dict[int, int]] = {}
        """The rollout that has each prompt, by epoch."""

    def _in_dataset_order(self, rollout: int) -> Sequence[int]:
        return self._plan.rollout(rollout).prompts

    def departure(self, step: int, rows: Iterable[tuple[int, int, int, int]]) -> Departure | None:
        """The first thing in which an optimizer step departs; None where it does not. rows: (rollout, pass, prompt,
        sample) of all completions that it trains."""
        trained = list(rows)
        wanted = Counter((rollout, passed) for rollout, passed, _, _ in self._plan.step(step).members)
        have = Counter((rollout, passed) for rollout, passed, _, _ in trained)
        if have - wanted or (wanted - have and not self._leaves_out) or wanted.keys() - have.keys():
            missing, extra = _told(wanted - have), _told(have - wanted)
            said = f"planned {missing or 'nothing more'}, trained {extra or 'nothing instead'}"
            return Departure("membership", f"other numbers of completions than the configuration gives: {said}")
        if self._next != step:
            self._begin_at(step)
        self._next = step + 1
        oldest = min((rollout for rollout, _ in have), default=0)
        self._trained = {key: kept for key, kept in self._trained.items() if key[0] >= oldest}
        for rollout, passed, prompt, sample in trained:
            self._trained.setdefault((rollout, passed), Counter())[prompt, sample] += 1
        for key in sorted(have):
            if (found := self._of_pass(*key)) is not None:
                return found
        return None

    def _begin_at(self, step: int) -> None:
        self._trained.clear()
        self._begun_before.clear()
        if step:
            self._begun_before = {member[:2] for member in self._plan.step(step - 1).members}

    def _of_pass(self, rollout: int, passed: int) -> Departure | None:
        """The departure of a pass over a rollout, as far as it was trained."""
        trained, group = self._trained[rollout, passed], self._plan.completions_per_prompt
        planned = self._plan.rollout(rollout)
        if self._prompts_of is not None:
            allowed = Counter(self._prompts_of(rollout))
            foreign = sorted({prompt for prompt, _ in trained if prompt not in allowed})
            if foreign:
                said = f"rollout {rollout} trains {self._what} {foreign[:4]}; in the framework's own order it has"
                return Departure("order", f"{said} {sorted(allowed)[:8]}")
        else:
            allowed = Counter({prompt: len(planned.prompts) if self._repeats else 1 for prompt, _ in trained})
            if (twice := self._twice_in_epoch(rollout, planned.epoch, allowed)) is not None:
                return twice
        for (prompt, sample), times in sorted(trained.items()):
            if not (0 <= prompt < self._prompts and 0 <= sample < group):
                said = f"rollout {rollout} trains sample {sample} of prompt {prompt}"
                has = f"{self._plan.dataset_size} prompts, and the configuration {group} samples of each"
                return Departure("membership", f"{said}; the data set has {has}")
            if times > allowed[prompt]:
                said = f"pass {passed} over rollout {rollout} trains sample {sample} of prompt {prompt} {times} times"
                return Departure("membership", f"{said}, and the configuration {allowed[prompt]}")
        if self._leaves_out:
            return self._as_before(rollout, passed)
        if sum(trained.values()) < len(planned.prompts) * group or (rollout, passed) in self._begun_before:
            return None
        for prompt in sorted({prompt for prompt, _ in trained}):
            by_sample = [trained[prompt, sample] for sample in range(group)]
            if len(set(by_sample)) > 1:
                said = f"pass {passed} over rollout {rollout} trains samples of prompt {prompt} {by_sample} times"
                return Departure("membership", f"{said}: its group is not whole")
        return None

    def _as_before(self, rollout: int, passed: int) -> Departure | None:
        """The departure of a pass that is over from the one before it."""
        before, steps = (rollout, passed - 1), self._plan.completions_per_step
        whole = self._plan.prompts_per_rollout * self._plan.completions_per_prompt <= steps
        if not whole or before not in self._trained or before in self._begun_before:
            return None
        if self._trained[before] == self._trained[rollout, passed]:
            return None
        said = f"passes {passed - 1} and {passed} over rollout {rollout} train other completions"
        return Departure("membership", f"{said}: a rollout's passes train the same")

    def _twice_in_epoch(self, rollout: int, epoch: int, prompts: Iterable[int]) -> Departure | None:
        if self._repeats:
            return None
        self._epochs = {number: kept for number, kept in self._epochs.items() if number >= epoch - 1}
        seen = self._epochs.setdefault(epoch, {})
        for prompt in prompts:
            if seen.setdefault(prompt, rollout) != rollout:
                return Departure("order", f"prompt {prompt} is in rollouts {seen[prompt]} and {rollout} of one epoch")
        return None


def _told(counts: Counter[tuple[int, int]]) -> str:
    """Numbers of completions by rollout and pass, the first three."""
    first = sorted(counts.items())[:3]
    return ", ".join(f"{number} of rollout {rollout} in pass {passed}" for (rollout, passed), number in first)

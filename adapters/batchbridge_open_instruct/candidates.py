"""Which prompts a rollout takes: the plan's, in its order, whatever answer arrives first, of weights that are no older
than the spec allows, without the groups that its filter drops.

Candidates are the prompts in the plan's order, by number; they are asked for some rollouts ahead of the training step
that begins. What a rollout took is held against the same plan in every learner. Knows nothing of Ray or torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchbridge import BatchDrift, Plan
from batchbridge.kit import CandidatePlan, StepPlan

if TYPE_CHECKING:
    from batchbridge_open_instruct.pieces import Piece


@dataclass(frozen=True)
class Taken:
    """A prompt that a rollout took. number: in the order in which prompts are asked for, from 0. position: in the
    rollout; None: dropped for its rewards. weights_of: see `feed.Piece`."""

    number: int
    prompt: int
    rewards: tuple[float, ...]
    position: int | None
    weights_of: int


class Candidates:
    """The prompts that rollouts take, numbered from 0 in the plan's order: asked for ahead, answered in any order.

    begun: the last training step that a learner began, whose weights the engines get. The candidates of a rollout are
    asked for when the training step begins that lies the spec's staleness before it: then their answers are no older.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._size, self._filter = plan, plan.prompts_per_rollout, plan.asked.rollout.group_filter
        self.bound = bound(plan)
        self.begun = -1
        self._next = {0: 0}
        self._stop, self._again = 0, list[int]()
        self._asked: dict[int, tuple[int, int]] = {}
        """By number, of what no prepared rollout took: prompt, and how often it was asked for again."""
        self._here: dict[int, Any] = {}

    def start_at(self, rollout: int, number: int) -> None:
        """The run begins at `rollout`, whose first candidate is `number`."""
        self._next[rollout], self._stop = number, number

    def next_of(self, rollout: int) -> int:
        """The first candidate of a rollout that has begun, or whose predecessor was prepared."""
        return self._next[rollout]

    def rollout(self, index: int) -> Rollout:
        """Rollout `index`, of which nothing is taken yet."""
        return Rollout(index, self.next_of(index), self._size, self._filter)

    def end(self, rollout: Rollout) -> None:
        """The next rollout's candidates begin where this one's end."""
        self._next[rollout.index + 1] = rollout.next
        for number in range(rollout.first, rollout.next):
            del self._asked[number]

    def due(self, rollout: Rollout) -> list[tuple[int, int, int]]:
        """Candidates (number, prompt, sampling seed) that shall be asked for now, while `rollout` is prepared."""
        dropped = sum(all_equal(result.reward_scores) for result in self._here.values()) if rollout.replaces else 0
        stop = rollout.block + dropped + self._size * (self.begun + self.bound + 1 - rollout.index)
        numbers, self._again = [*self._again, *range(self._stop, stop)], []
        self._stop = max(self._stop, stop)
        found = [(number, *each) for number, each in zip(numbers, offered(self._plan, numbers), strict=True)]
        for number, prompt, _ in found:
            self._asked[number] = prompt, self._asked[number][1] + 1 if number in self._asked else 0
        return found

    def name(self, number: int) -> str:
        """Of the request for a candidate: its rollout and place where no rollout takes more or fewer than planned, and
        which repetition it is."""
        tries = self._asked[number][1]
        return f"{number // self._size}.{number % self._size}" + (f".{tries}" if tries else "")

    def put(self, result: Any, rollout: Rollout) -> None:
        """An answer came while `rollout` is prepared. One that will be older than the staleness allows when it is
        trained on is asked for again. Raises `BatchDrift` where nobody asked for it."""
        name = str(result.prompt_id).partition("_")[0]
        block, _, rest = name.partition(".")
        place = rest.partition(".")[0]
        number = int(block) * self._size + int(place) if block.isdigit() and place.isdigit() else -1
        waited_for = number in self._asked and number >= rollout.next and number not in self._here
        if not waited_for or name != self.name(number):
            raise self._drift(rollout, "membership", f"the answer {result.prompt_id} came, which is not missing")
        if self._asked[number][0] != result.index:
            raise self._drift(rollout, "membership", f"the answer {result.prompt_id} is to prompt {result.index}")
        trained = rollout.index + (number - rollout.block) // self._size  # or before, where it replaces others
        if self.bound and result.model_step is not None and trained - result.model_step > self.bound:
            self._again.append(number)
        else:
            self._here[number] = result

    def arrived(self, rollout: Rollout) -> Any:
        """The answer that `rollout` takes next, or None. Raises `BatchDrift` where other weights made it than may."""
        result = self._here.pop(rollout.next, None)
        if result is None:
            return None
        step = result.model_step
        if step is None or not 0 <= rollout.index - step <= self.bound:
            wanted = f"{rollout.index}" + (f", or at most {self.bound} fewer" if self.bound else "")
            raise self._drift(
                rollout,
                "clock",
                f"prompt {result.index} of rollout {rollout.index} was answered by the weights after {step} training "
                f"steps, not {wanted}: send the weights to the engines, as model_step, before the learners' next step",
            )
        return result

    def _drift(self, rollout: Rollout, aspect: str, detail: str) -> BatchDrift:
        return BatchDrift(self._plan.rollout(rollout.index).generated_at_step, aspect, detail)


class Rollout:
    """What a rollout takes of the candidates from `first` on; taken: so far.

    Dropped are groups whose rewards are all equal, where the spec says so: then it trains what is left of its prompts,
    the next ones where nothing is; or others replace them.
    """

    def __init__(self, index: int, first: int, size: int, group_filter: str) -> None:
        self.index, self.first, self._size, self._filter = index, first, size, group_filter
        self.taken: list[Taken] = []
        self._kept = 0

    @property
    def replaces(self) -> bool:
        """Whether other candidates take the places of those that are dropped."""
        return self._filter == "replace_zero_variance"

    @property
    def next(self) -> int:
        """The candidate that it takes next."""
        return self.first + len(self.taken)

    @property
    def block(self) -> int:
        """The first candidate that is not dropped for sure."""
        if self.replaces:
            return self.next - self._kept
        return self.first + len(self.taken) // self._size * self._size

    @property
    def complete(self) -> bool:
        """Whether it takes nothing more."""
        if self.replaces:
            return self._kept == self._size
        return bool(self._kept) and not len(self.taken) % self._size

    def take(self, result: Any) -> bool:
        """Takes the next candidate's answer; returns whether it is trained."""
        rewards = tuple(float(reward) for reward in result.reward_scores)
        dropped = self._filter != "none" and all_equal(rewards)
        position = None if dropped else self._kept
        self.taken.append(Taken(self.next, int(result.index), rewards, position, int(result.model_step)))
        self._kept += not dropped
        return not dropped


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether a group has nothing to learn from. Open-Instruct asks whether the standard deviation is 0, which rounding
    may keep above 0 for equal rewards."""
    return len(set(rewards)) == 1


def offered(plan: Plan, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """(prompt, sampling seed of its sample 0) of candidates."""
    if isinstance(plan, CandidatePlan):
        return [(plan.candidates(one, one + 1)[0], plan.candidate_seeds(one, one + 1)[0]) for one in numbers]
    size = plan.prompts_per_rollout
    known = {
        rollout: list(zip(plan.rollout(rollout).prompts, plan.sampling_seeds(rollout), strict=True))
        for rollout in {number // size for number in numbers}
    }
    return [known[number // size][number % size] for number in numbers]


class Filled(CandidatePlan):
    """The plan of a run whose filter may leave places of a rollout empty; places: those of each that were filled."""

    def __init__(self, plan: CandidatePlan) -> None:
        super().__init__(plan.asked, plan.dataset_size)
        self.places: dict[int, int] = {}

    def step(self, index: int) -> StepPlan:
        """With the members that there are."""
        whole = super().step(index)
        there = [
            at
            for at, one in enumerate(whole.members)
            if one.prompt < self.places.get(one.rollout, self.prompts_per_rollout)
        ]
        return dataclasses.replace(
            whole,
            members=tuple(whole.members[at] for at in there),
            positions=tuple(whole.positions[at] for at in there),
        )


def objection(plan: Plan, taken: Sequence[Taken], pieces: Iterable[Piece], first: int | None) -> tuple[str, str] | None:
    """(aspect, why) what a rollout took is not what the plan's order, the group filter and the staleness of its spec
    say. pieces: its completions on this rank. first: the candidate that it begins with; None: open."""
    return _of_prompts(plan, taken, first) or _of_pieces(plan, taken, pieces)


def _of_prompts(plan: Plan, taken: Sequence[Taken], first: int | None) -> tuple[str, str] | None:
    size, filters = plan.prompts_per_rollout, plan.asked.rollout.group_filter
    start = taken[0].number if first is None and taken else first or 0
    numbers = range(start, start + len(taken))
    asked = [prompt for prompt, _ in offered(plan, numbers)]
    if [(one.number, one.prompt) for one in taken] != list(zip(numbers, asked, strict=True)):
        return "order", f"its prompts are not the candidates of the plan from number {start} on, in their order"
    for one in taken:
        if (one.position is None) != (filters != "none" and all_equal(one.rewards)):
            how = "was dropped" if one.position is None else "is trained"
            rule = f"rollout.group_filter = {filters}"
            return "membership", f"prompt {one.prompt} {how}, whose rewards are {[*one.rewards]}, and {rule}"
    kept = [one for one in taken if one.position is not None]
    if filters == "replace_zero_variance":
        full = len(kept) == size and taken[-1] is kept[-1]
    else:
        full = bool(kept) and len(taken) == size * ((kept[0].number - start) // size + 1)
    if not full or [one.position for one in kept] != [*range(len(kept))]:
        return "membership", f"{len(kept)} groups are left of {len(taken)} prompts, and a rollout takes {size}"
    return None


def _of_pieces(plan: Plan, taken: Sequence[Taken], pieces: Iterable[Piece]) -> tuple[str, str] | None:
    places = {one.position: one for one in taken}
    most = bound(plan)
    for piece in pieces:
        of = places.get(piece.position)
        if of is None or (of.prompt, of.rewards[piece.sample]) != (piece.prompt, piece.reward):
            return "membership", f"prompt {piece.prompt} is trained in place {piece.position}, which is another one's"
        made = piece.weights_of
        if made is None or made != of.weights_of or not 0 <= piece.rollout - made <= most:
            return "clock", (
                f"prompt {piece.prompt} of rollout {piece.rollout} was answered by the weights after {made} training "
                f"steps, and the spec allows {most} fewer than {piece.rollout}"
            )
    return None


def bound(plan: Plan) -> int:
    """Rollouts that the weights of a completion may lie behind."""
    staleness = plan.asked.staleness
    return 0 if staleness.mode == "sync" else staleness.maximum or 0

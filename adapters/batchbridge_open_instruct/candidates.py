"""The prompts of a rollout: the plan's, in its order, whatever answer arrives first, of weights that are no older than
the spec allows, without the groups that its filter drops and the prompts that were solved before.

Candidates are the prompts in the plan's order, by number; they are asked for some rollouts ahead of the training step
that begins. What a rollout took is held against the same plan in every learner. Knows nothing of Ray or torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from batchbridge import BatchDrift, Plan
from batchbridge.kit import CandidatePlan, StepPlan


@dataclass(frozen=True)
class TakenPrompt:
    """A prompt that a rollout took. number: in the order in which prompts are asked for, from 0. position: in the
    rollout; None: dropped for its rewards, or left out, which needs no answer. weights_of: see
    `feed.PackedCompletion`."""

    number: int
    prompt: int
    rewards: tuple[float, ...]
    position: int | None
    weights_of: int
    left_out: bool = False


@dataclass(frozen=True)
class PassRate:
    """The share of the highest score that a group's mean must reach for its prompt to be solved, and every later
    candidate that is the same prompt to be left out. None: never. Source: e6c3044 data_loader.process_group."""

    share: float | None
    highest_score: float

    @classmethod
    def of(cls, config: Any) -> PassRate:
        """The pass rate of a `StreamingDataLoaderConfig`."""
        return cls(config.no_resampling_pass_rate, config.max_possible_score)

    def solves(self, rewards: Sequence[float]) -> bool:
        """Whether a group's prompt is solved, rounded as Open-Instruct rounds."""
        if self.share is None:
            return False
        import numpy as np

        return bool(np.mean(rewards).item() / self.highest_score >= self.share)


NEVER = PassRate(None, 1.0)


class CandidateQueue:
    """The prompts that rollouts take, numbered from 0 in the plan's order: asked for ahead, answered in any order.

    begun: the last training step that a learner began, whose weights the engines get. The candidates of a rollout are
    asked for when the training step begins that lies the spec's staleness before it: then their answers are no older.
    What was solved in an earlier place is not asked for; an answer that was asked for before that was known is not
    taken. So rewards alone decide what is left out, whenever they come.
    """

    def __init__(self, plan: Plan, rate: PassRate = NEVER) -> None:
        self._plan, self._size, self._filter = plan, plan.prompts_per_rollout, plan.asked.rollout.group_filter
        self._rate = rate
        self.bound = bound(plan)
        self.begun = -1
        self._next = {0: 0}
        self._stop, self._again = 0, list[int]()
        self._asked: dict[int, tuple[int, int]] = {}
        """Candidates that no prepared rollout took, by number: prompt, and how often it was asked for again."""
        self._here: dict[int, Any] = {}
        self._solved: dict[int, int] = {}
        """Solved prompts, and for each the candidate that was solved."""
        self._unwanted: set[str] = set()
        """Requests whose answers will not be taken."""
        self.solved_at_start: frozenset[int] = frozenset()

    def start_at(self, rollout: int, number: int, solved: Iterable[int] = ()) -> None:
        """The run begins at `rollout`, whose first candidate is `number`; prompts that were solved before."""
        self._next[rollout], self._stop = number, number
        self.solved_at_start = frozenset(solved)
        self._solved = dict.fromkeys(self.solved_at_start, -1)

    def solved_before(self, rollout: int) -> list[int]:
        """The prompts that are left out from this rollout on."""
        stop = self.next_of(rollout)
        return sorted(prompt for prompt, number in self._solved.items() if number < stop)

    def next_of(self, rollout: int) -> int:
        """The first candidate of a rollout that has begun, or whose predecessor was prepared."""
        return self._next[rollout]

    def rollout(self, index: int) -> CandidateRollout:
        """Rollout `index`, of which nothing is taken yet."""
        return CandidateRollout(index, self.next_of(index), self._size, self._filter)

    def end(self, rollout: CandidateRollout) -> None:
        """The next rollout's candidates begin where this one's end."""
        self._next[rollout.index + 1] = rollout.next
        for number in range(rollout.first, rollout.next):
            self._asked.pop(number, None)  # what is left out may never have been asked for

    def due(self, rollout: CandidateRollout) -> list[tuple[int, int, int]]:
        """Candidates (number, prompt, sampling seed) that should be asked for now, while `rollout` is prepared."""
        flat = [number for number, result in self._here.items() if all_equal(result.reward_scores)]
        dropped = sum(not self._left_out(number) for number in flat) if rollout.replaces else 0
        wanted = dropped + self._size * (self.begun + self.bound + 1 - rollout.index) - rollout.filled
        numbers, self._again = [number for number in self._again if not self._left_out(number)], []
        stop = rollout.next
        while wanted > 0:
            if not self._left_out(stop):
                wanted -= 1
                if stop >= self._stop:
                    numbers.append(stop)
            stop += 1
        self._stop = max(self._stop, stop)
        found = [(number, *each) for number, each in zip(numbers, offered(self._plan, numbers), strict=True)]
        for number, prompt, _ in found:
            self._asked[number] = prompt, self._asked[number][1] + 1 if number in self._asked else 0
        return found

    def leave_out(self, rollout: CandidateRollout) -> None:
        """`rollout` leaves out the candidates at its place whose prompts were solved. Raises `BatchDrift` where there
        are no others."""
        if len(self._solved) == self._plan.dataset_size:
            share = self._rate.share
            detail = f"every prompt of the data set was solved: no_resampling_pass_rate = {share} leaves none to train"
            raise self._drift(rollout, "membership", detail)
        while self._left_out(number := rollout.next):
            if number in self._asked and self._here.pop(number, None) is None:
                self._unwanted.add(self.request_name(number))
            rollout.leave_out(self._prompt(number))

    def take(self, result: Any, rollout: CandidateRollout) -> bool:
        """`rollout` takes the next candidate's answer; returns whether it is trained."""
        number = rollout.next
        trained = rollout.take(result)
        if self._rate.solves(rollout.taken[-1].rewards):
            self._solved.setdefault(int(result.index), number)
        return trained

    def _left_out(self, number: int) -> bool:
        return bool(self._solved) and self._solved.get(self._prompt(number), number) < number

    def _prompt(self, number: int) -> int:
        return offered(self._plan, [number])[0][0]

    def request_name(self, number: int) -> str:
        """The name of the request for candidate `number`: "ROLLOUT.PLACE" if every rollout takes exactly the planned
        prompts, and ".REPEAT" behind it from the second request on. `put` reads the number back from it."""
        rollout, place = divmod(number, self._size)
        repeats = self._asked[number][1]
        return f"{rollout}.{place}.{repeats}" if repeats else f"{rollout}.{place}"

    def put(self, result: Any, rollout: CandidateRollout) -> None:
        """An answer came while `rollout` is prepared. One that will be older than the staleness allows when it is
        trained on is asked for again. Raises `BatchDrift` where nobody asked for it."""
        name = str(result.prompt_id).partition("_")[0]
        if name in self._unwanted:
            self._unwanted.remove(name)
            return
        block, _, rest = name.partition(".")
        place = rest.partition(".")[0]
        number = int(block) * self._size + int(place) if block.isdigit() and place.isdigit() else -1
        waited_for = number in self._asked and number >= rollout.next and number not in self._here
        if not waited_for or name != self.request_name(number):
            raise self._drift(rollout, "membership", f"the answer {result.prompt_id} came, which is not missing")
        if self._asked[number][0] != result.index:
            raise self._drift(rollout, "membership", f"the answer {result.prompt_id} is to prompt {result.index}")
        # Or before, where it replaces others, or some before it are left out.
        trained = rollout.index + (number - rollout.next + rollout.filled) // self._size
        if self.bound and result.model_step is not None and trained - result.model_step > self.bound:
            self._again.append(number)
        else:
            self._here[number] = result

    def arrived(self, rollout: CandidateRollout) -> Any:
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

    def _drift(self, rollout: CandidateRollout, aspect: str, detail: str) -> BatchDrift:
        return BatchDrift(self._plan.rollout(rollout.index).generated_at_step, aspect, detail)


class CandidateRollout:
    """The candidates from `first` on that a rollout takes; taken: so far.

    Dropped are groups whose rewards are all equal, where the spec says so: then it trains what is left of its prompts,
    the next ones where nothing is; or others replace them. What is left out is not one of its prompts.
    """

    def __init__(self, index: int, first: int, size: int, group_filter: str) -> None:
        self.index, self.first, self._size, self._filter = index, first, size, group_filter
        self.taken: list[TakenPrompt] = []
        self._kept = self._left_out = 0

    @property
    def replaces(self) -> bool:
        """Whether other candidates take the places of those that are dropped."""
        return self._filter == "replace_zero_variance"

    @property
    def next(self) -> int:
        """The candidate that it takes next."""
        return self.first + len(self.taken)

    @property
    def filled(self) -> int:
        """Prompts of the rollout that it may train: where nothing was left of its first ones, those of the next."""
        return self._kept if self.replaces else (len(self.taken) - self._left_out) % self._size

    @property
    def complete(self) -> bool:
        """Whether it takes nothing more."""
        if self.replaces:
            return self._kept == self._size
        return bool(self._kept) and not self.filled

    def leave_out(self, prompt: int) -> None:
        """Passes over the next candidate, which is `prompt`."""
        self.taken.append(TakenPrompt(self.next, prompt, (), None, -1, left_out=True))
        self._left_out += 1

    def take(self, result: Any) -> bool:
        """Takes the next candidate's answer; returns whether it is trained."""
        rewards = tuple(float(reward) for reward in result.reward_scores)
        dropped = self._filter != "none" and all_equal(rewards)
        position = None if dropped else self._kept
        self.taken.append(TakenPrompt(self.next, int(result.index), rewards, position, int(result.model_step)))
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


class FilledPlan(CandidatePlan):
    """The plan of a run whose filter may leave places of a rollout empty; places: those of each that were filled."""

    def __init__(self, plan: CandidatePlan) -> None:
        super().__init__(plan.asked, plan.dataset_size)
        self.places: dict[int, int] = {}

    def step(self, index: int) -> StepPlan:
        """The plan of a step with the members that there are."""
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


def objection(
    plan: Plan,
    taken: Sequence[TakenPrompt],
    pieces: Iterable[ScoredPiece],
    first: int | None,
    rate: PassRate = NEVER,
    solved: AbstractSet[int] = frozenset(),
) -> tuple[str, str] | None:
    """(aspect, why) what a rollout took is not what the plan's order, the group filter and the staleness of its spec
    say. pieces: its completions on this rank. first: the candidate that it begins with; None: open. solved: prompts
    that were solved before it, at `rate`."""
    return (
        _of_solved(taken, rate, solved)
        or _of_prompts(plan, taken, first)
        or _of_pieces(plan, [one for one in taken if not one.left_out], pieces)
    )


def solved_of(taken: Sequence[TakenPrompt], rate: PassRate) -> set[int]:
    """The prompts that a rollout solved."""
    return {one.prompt for one in taken if not one.left_out and rate.solves(one.rewards)}


def _of_solved(taken: Sequence[TakenPrompt], rate: PassRate, solved: AbstractSet[int]) -> tuple[str, str] | None:
    known = set(solved)
    for one in taken:
        if one.left_out != (one.prompt in known):
            how = "was left out, and was not solved" if one.left_out else "was solved before, and was not left out"
            return "membership", f"prompt {one.prompt} {how}: no_resampling_pass_rate = {rate.share}"
        known |= solved_of([one], rate)
    return None


def _of_prompts(plan: Plan, taken: Sequence[TakenPrompt], first: int | None) -> tuple[str, str] | None:
    size, filters = plan.prompts_per_rollout, plan.asked.rollout.group_filter
    start = taken[0].number if first is None and taken else first or 0
    numbers = range(start, start + len(taken))
    asked = [prompt for prompt, _ in offered(plan, numbers)]
    if [(one.number, one.prompt) for one in taken] != list(zip(numbers, asked, strict=True)):
        return "order", f"its prompts are not the candidates of the plan from number {start} on, in their order"
    taken = [one for one in taken if not one.left_out]
    for one in taken:
        if (one.position is None) != (filters != "none" and all_equal(one.rewards)):
            how = "was dropped" if one.position is None else "is trained"
            rule = f"rollout.group_filter = {filters}"
            return "membership", f"prompt {one.prompt} {how}, whose rewards are {[*one.rewards]}, and {rule}"
    kept = [one for one in taken if one.position is not None]
    if filters == "replace_zero_variance":
        full = len(kept) == size and taken[-1] is kept[-1]
    else:
        full = bool(kept) and len(taken) == size * (taken.index(kept[0]) // size + 1)
    if not full or [one.position for one in kept] != [*range(len(kept))]:
        return "membership", f"{len(kept)} groups are left of {len(taken)} prompts, and a rollout takes {size}"
    return None


def _of_pieces(plan: Plan, taken: Sequence[TakenPrompt], pieces: Iterable[ScoredPiece]) -> tuple[str, str] | None:
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


class ScoredPiece(Protocol):
    """The attributes of a `feed.PackedCompletion` that `candidates` asks for."""

    @property
    def rollout(self) -> int: ...
    @property
    def prompt(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def sample(self) -> int: ...
    @property
    def reward(self) -> float: ...
    @property
    def weights_of(self) -> int | None: ...

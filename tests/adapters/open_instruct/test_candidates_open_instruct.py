"""Which prompts a rollout takes of those that were asked for, and what a learner has against it; no Open-Instruct."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.errors import BatchDrift
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Staleness
from batchbridge.reading.read import read
from batchbridge_open_instruct import candidates
from batchbridge_open_instruct.candidates import (
    CandidateQueue,
    CandidateRollout,
    FilledPlan,
    PassRate,
    TakenPrompt,
    objection,
    solved_of,
)
from batchbridge_open_instruct.completions import PackedCompletion

PROMPTS, SIZE = 8, 3
COMMAND = (
    *("python", "open_instruct/grpo_fast.py", "--num_unique_prompts_rollout", "3", "--total_episodes", "36"),
    *("--num_samples_per_prompt_rollout", "4", "--num_learners_per_node", "1"),
)
RATE = PassRate(0.5, 2.0)
"""Solved is a group whose mean is 1."""
DROPS, REPLACES = "drop_zero_variance", "replace_zero_variance"


def plan(group_filter: str = "none", ahead: int = 0) -> Plan:
    own = read(list(COMMAND), version="2026.8.20").spec
    assert own is not None
    staleness = Staleness(mode="bounded", maximum=ahead) if ahead else Staleness()
    return plan_of(own.replace(**{"rollout.group_filter": group_filter, "staleness": staleness}), PROMPTS)


class Run:
    """Candidates of a plan, those of `flat` with equal rewards, of `solved` with high ones; `asked`: by number, in
    order."""

    def __init__(self, of: Plan, flat: Sequence[int] = (), solved: Sequence[int] = ()) -> None:
        self.plan, self.flat, self.solved, self.candidates = of, flat, solved, CandidateQueue(of, RATE)
        self.asked: list[int] = []

    def answer(self, number: int, step: int, **changed: Any) -> Any:
        prompt = candidates.offered(self.plan, [number])[0][0]
        rewards = [0.1] * 3 if number in self.flat else [1.0, 0.0, 2.0 if number in self.solved else 0.5]
        made = {"prompt_id": f"{self.candidates.request_name(number)}_{prompt}", "index": prompt, "model_step": step}
        return SimpleNamespace(**{**made, "reward_scores": rewards, **changed})

    def due(self, rollout: CandidateRollout) -> list[int]:
        found = [number for number, _, _ in self.candidates.due(rollout)]
        self.asked += found
        return found

    def fill(self, index: int, step: int) -> CandidateRollout:
        """Rollout `index`, every answer by the weights after `step` training steps, the last first."""
        rollout = self.candidates.rollout(index)
        while not rollout.complete:
            self.candidates.leave_out(rollout)
            while (result := self.candidates.arrived(rollout)) is None:
                found = self.due(rollout)
                assert found, "nothing is missing, and nothing comes"
                for number in reversed(found):
                    self.candidates.put(self.answer(number, step), rollout)
            self.candidates.take(result, rollout)
        self.candidates.end(rollout)
        return rollout


def numbers(rollout: CandidateRollout, *, kept: bool = True) -> list[int]:
    return [one.number for one in rollout.taken if (one.position is not None) == kept]


def test_a_synchronous_rollout_is_asked_for_when_its_training_step_begins() -> None:
    run = Run(plan())
    rollout = run.candidates.rollout(0)
    assert run.due(rollout) == []
    run.candidates.begun = 0
    assert numbers(run.fill(0, 0)) == [0, 1, 2]
    assert run.due(run.candidates.rollout(1)) == []


def test_as_many_rollouts_are_asked_for_ahead_as_the_staleness_allows() -> None:
    run = Run(plan(ahead=2))
    rollout = run.candidates.rollout(0)
    assert run.due(rollout) == [*range(6)]
    run.candidates.begun = 0
    assert run.due(rollout) == [6, 7, 8]


def test_members_of_a_run_that_generates_ahead_are_those_of_the_synchronous_one() -> None:
    ahead, sync = plan(ahead=2), plan()
    for index in range(3):
        span = range(index * SIZE, (index + 1) * SIZE)
        assert candidates.offered(ahead, span) == candidates.offered(sync, span)


def test_equal_rewards_are_dropped_and_the_rollout_trains_what_is_left() -> None:
    run = Run(plan(DROPS), flat=(1, 3, 4, 5))
    run.candidates.begun = 0
    first = run.fill(0, 0)
    run.candidates.begun = 1
    second = run.fill(1, 1)
    assert (numbers(first), numbers(first, kept=False)) == ([0, 2], [1])
    # Nothing was left of its three: it takes the next three.
    assert (numbers(second), numbers(second, kept=False)) == ([6, 7, 8], [3, 4, 5])
    assert run.candidates.next_of(2) == 9
    assert run.asked == [*range(9)]


@pytest.mark.parametrize("ahead", [0, 2])
def test_dropped_groups_are_replaced_by_the_next_candidates(ahead: int) -> None:
    run = Run(plan(REPLACES, ahead), flat=(1, 3, 4))
    run.candidates.begun = 0
    first = run.fill(0, 0)
    run.candidates.begun = 1
    second = run.fill(1, 0 if ahead else 1)
    assert [numbers(first), numbers(second)] == [[0, 2, 5], [6, 7, 8]]
    assert [one.position for one in first.taken] == [0, None, 1, None, None, 2]
    if not ahead:
        assert run.asked == [*range(9)], "no more than a rollout takes"


def places_of(of: Plan, number: int) -> set[int]:
    """The candidates that are the same prompt, in three epochs."""
    prompts = [prompt for prompt, _ in candidates.offered(of, range(3 * PROMPTS))]
    return {place for place, prompt in enumerate(prompts) if prompt == prompts[number]}


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("group_filter", ["none", DROPS, REPLACES])
def test_a_prompt_that_was_solved_is_left_out_from_then_on_however_far_ahead_it_was_asked_for(
    group_filter: str, ahead: int
) -> None:
    run = Run(plan(group_filter, ahead), flat=(1,), solved=(2, 6))
    solved = (places_of(run.plan, 2) | places_of(run.plan, 6)) - {2, 6}
    rollouts = []
    for index in range(5):
        run.candidates.begun = index
        rollouts.append(run.fill(index, index))
    left_in = [number for number in range(3 * PROMPTS) if number not in solved]
    trained = [number for rollout in rollouts for number in numbers(rollout)]
    if group_filter == REPLACES:
        left_in.remove(1)
    assert trained == [number for number in left_in[:15] if number != 1 or group_filter == "none"]
    assert {one.number for rollout in rollouts for one in rollout.taken if one.left_out} <= solved
    known: set[int] = set()
    first = 0
    for rollout in rollouts:
        assert objection(run.plan, rollout.taken, pieces(rollout), first, RATE, known) is None
        known |= solved_of(rollout.taken, RATE)
        first = rollout.next
    assert run.candidates.solved_before(5) == sorted(known)
    # What was asked for after it was known to be solved is not one of these.
    assert solved.isdisjoint(run.asked) or ahead > 1


def test_an_answer_that_was_asked_for_before_its_prompt_was_solved_is_not_taken() -> None:
    run = Run(plan(ahead=3), solved=(2,))
    (again,) = [number for number in places_of(run.plan, 2) if PROMPTS <= number < 2 * PROMPTS]
    run.candidates.begun = 1
    rollout = run.candidates.rollout(0)
    run.due(rollout)
    late = run.answer(again, 0)
    for index in range(4):
        run.candidates.begun = index + 1
        rollout = run.candidates.rollout(index)
        while not rollout.complete:
            run.candidates.leave_out(rollout)
            for number in run.due(rollout):
                assert number != again
            if rollout.next not in run.candidates._here:
                run.candidates.put(run.answer(rollout.next, index), rollout)
            run.candidates.take(run.candidates.arrived(rollout), rollout)
        run.candidates.end(rollout)
    rollout = run.candidates.rollout(4)
    run.candidates.put(late, rollout)
    with pytest.raises(BatchDrift, match="which is not missing"):
        run.candidates.put(late, rollout)


def test_a_run_whose_prompts_were_all_solved_ends() -> None:
    run = Run(plan(ahead=1), solved=range(PROMPTS))
    for index in range(PROMPTS // SIZE):
        run.candidates.begun = index
        run.fill(index, index)
    run.candidates.begun += 1
    with pytest.raises(BatchDrift, match="every prompt of the data set was solved: no_resampling_pass_rate = "):
        run.fill(PROMPTS // SIZE, PROMPTS // SIZE)


@pytest.mark.parametrize(("solved", "left_out"), [((), (1,)), ((1,), ())])
def test_prompts_that_are_left_out_otherwise_are_objected_to(solved: Sequence[int], left_out: Sequence[int]) -> None:
    of, rollout = full(DROPS, flat=())
    taken = [dataclasses.replace(one, left_out=one.number in left_out) for one in rollout.taken]
    known = {one.prompt for one in taken if one.number in solved}
    found = objection(of, taken, pieces(rollout), 0, RATE, known)
    assert found is not None
    assert found[0] == "membership"
    assert "no_resampling_pass_rate = 0.5" in found[1]


def test_equal_rewards_are_equal_whatever_their_standard_deviation_is_rounded_to() -> None:
    import numpy

    assert numpy.std([0.1] * 3) > 0
    assert candidates.all_equal([0.1] * 3)
    assert not candidates.all_equal([0.1, 0.1, 0.2])


def test_an_answer_that_will_be_too_old_is_asked_for_again_under_another_name() -> None:
    run = Run(plan(ahead=1))
    run.candidates.begun = 1
    run.candidates.start_at(2, 6)
    rollout = run.candidates.rollout(2)
    assert run.due(rollout) == [6, 7, 8]
    old = run.answer(7, 0)
    run.candidates.put(old, rollout)
    assert run.due(rollout) == [7]
    with pytest.raises(BatchDrift, match="which is not missing"):
        run.candidates.put(old, rollout)
    again = run.answer(7, 1)
    assert again.prompt_id.startswith("2.1.1_")
    run.candidates.put(again, rollout)
    run.candidates.put(run.answer(6, 1), rollout)
    assert run.candidates.arrived(rollout).index == run.answer(6, 1).index


@pytest.mark.parametrize(
    ("aspect", "changed"),
    [
        ("membership", {"prompt_id": "0.9_1"}),
        ("membership", {"prompt_id": "nobody's"}),
        ("membership", {"index": 99}),
        ("clock", {"model_step": 1}),
        ("clock", {"model_step": None}),
    ],
)
def test_an_answer_that_is_not_the_plans_is_a_departure(aspect: str, changed: dict[str, Any]) -> None:
    run = Run(plan())
    run.candidates.begun = 0
    rollout = run.candidates.rollout(0)
    run.due(rollout)

    def comes() -> None:
        run.candidates.put(run.answer(0, 0, **changed), rollout)
        run.candidates.arrived(rollout)

    with pytest.raises(BatchDrift) as caught:
        comes()
    assert (caught.value.step, caught.value.aspect) == (0, aspect)


# ---- in a learner


def pieces(rollout: CandidateRollout, **changed: Any) -> list[PackedCompletion]:
    made = [
        PackedCompletion(rollout.index, one.prompt, one.position, sample, 0, 0, 0, reward, one.weights_of)
        for one in rollout.taken
        if one.position is not None
        for sample, reward in enumerate(one.rewards)
    ]
    return [dataclasses.replace(made[0], **changed), *made[1:]]


def full(group_filter: str, flat: Sequence[int] = (1,), ahead: int = 1) -> tuple[Plan, CandidateRollout]:
    run = Run(plan(group_filter, ahead), flat)
    run.candidates.begun = 0
    return run.plan, run.fill(0, 0)


@pytest.mark.parametrize("group_filter", [DROPS, REPLACES])
def test_nothing_is_against_what_the_candidates_left(group_filter: str) -> None:
    of, rollout = full(group_filter)
    assert objection(of, rollout.taken, pieces(rollout), 0) is None
    assert objection(of, rollout.taken, pieces(rollout), None) is None


def dropped(taken: list[TakenPrompt]) -> list[TakenPrompt]:
    return [dataclasses.replace(taken[0], position=None), *taken[1:]]


def trained(taken: list[TakenPrompt]) -> list[TakenPrompt]:
    return [taken[0], dataclasses.replace(taken[1], position=1), *taken[2:]]


@pytest.mark.parametrize("group_filter", [DROPS, REPLACES])
@pytest.mark.parametrize(
    ("aspect", "change"),
    [
        ("membership", dropped),
        ("membership", trained),
        ("membership", lambda taken: taken[:-1]),
        ("order", lambda taken: taken[1:]),
        ("order", lambda taken: [taken[1], taken[0], *taken[2:]]),
    ],
)
def test_groups_that_are_not_those_of_the_rule_are_objected_to(aspect: str, change: Any, group_filter: str) -> None:
    of, rollout = full(group_filter)
    found = objection(of, change(rollout.taken), pieces(rollout), 0)
    assert found is not None
    assert found[0] == aspect


@pytest.mark.parametrize(
    ("aspect", "changed"),
    [
        ("membership", {"prompt": 99}),
        ("membership", {"position": 7}),
        ("membership", {"reward": 7.0}),
        ("clock", {"weights_of": None}),
        ("clock", {"weights_of": 1}),
    ],
)
def test_a_completion_of_another_prompt_or_other_weights_is_objected_to(aspect: str, changed: dict[str, Any]) -> None:
    of, rollout = full(DROPS)
    found = objection(of, rollout.taken, pieces(rollout, **changed), 0)
    assert found is not None
    assert found[0] == aspect


@pytest.mark.parametrize(("made", "said"), [(2, None), (1, None), (0, "clock"), (3, "clock")])
def test_weights_are_as_old_as_the_spec_allows(made: int, said: str | None) -> None:
    of = plan(ahead=1)
    prompts = [prompt for prompt, _ in candidates.offered(of, range(6, 9))]
    taken = [TakenPrompt(6 + place, prompt, (1.0, 0.0), place, made) for place, prompt in enumerate(prompts)]
    of_rank = [PackedCompletion(2, prompts[0], 0, 1, 0, 0, 0, 0.0, made)]
    found = objection(of, taken, of_rank, 6)
    assert (None if found is None else found[0]) == said


def test_a_step_has_the_members_of_the_places_that_were_filled() -> None:
    of = FilledPlan(plan(DROPS))  # type: ignore[arg-type]  # a filter makes a plan over places
    assert len(of.step(0).members) == 12
    of.places[0] = 2
    assert {member.prompt for member in of.step(0).members} == {0, 1}
    assert len(of.step(0).members) == len(of.step(0).positions) == 8
    assert len(of.step(1).members) == 12

"""The plan against a reference that lists the whole run, and against known numbers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchbridge.errors import PlanError
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.order import Bijection
from batchbridge.meaning.plan import Completion, Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Staleness, Topology


def make_spec(
    *,
    prompts_per_rollout: int | None = 4,
    completions_per_prompt: int = 6,
    completions_per_step: int | None = 24,
    horizon: Horizon | None = None,
    order: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    **step: Any,
) -> Spec:
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(
            prompts_per_rollout=prompts_per_rollout, completions_per_prompt=completions_per_prompt, **(rollout or {})
        ),
        optimizer_step=OptimizerStep(completions_per_step=completions_per_step, **step),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1) if horizon is None else horizon,
        order=Order(**({"seed": 7} | (order or {}))),
    )


# ---- the reference: lists, no arithmetic


@dataclass
class Listed:
    """A run as lists. rollouts: (epoch, prompts) each. steps: (completions, places in their rollouts) each."""

    rollouts: list[tuple[int, list[int]]]
    steps: list[list[tuple[Completion, int]]]


def list_run(spec: Spec, dataset_size: int) -> Listed:
    """The whole run, written down from the definitions in docs/plan.md; epochs are whole, or rollouts are given."""
    rollouts = list_rollouts(spec, dataset_size)
    passes = [
        (rollout, epoch, list_pass(spec, rollout, pass_index, prompts))
        for rollout, (epoch, prompts) in enumerate(rollouts)
        for pass_index in range(spec.optimizer_step.passes_per_rollout)
    ]
    unit_of = {
        "none": lambda item: id(item),
        "rollout": lambda item: item[0],
        "epoch": lambda item: item[1],
        "run": lambda item: "run",
    }[spec.optimizer_step.step_may_span]
    steps = []
    for _, unit in groupby(passes, unit_of):
        stream = [member for _, _, members in unit for member in members]
        size = spec.optimizer_step.completions_per_step
        assert size is not None
        blocks = [stream[start : start + size] for start in range(0, len(stream), size)]
        blocks = [block for block in blocks if len(block) == size or spec.order.last_optimizer_step != "drop"]
        steps += [block for block in blocks if block[0][0].rollout >= warmup_of(spec)]
    return Listed(rollouts, steps[: spec.horizon.optimizer_steps])


def warmup_of(spec: Spec) -> int:
    return 0 if spec.critic is None else spec.critic.warmup_rollouts


def list_rollouts(spec: Spec, dataset_size: int) -> list[tuple[int, list[int]]]:
    size, horizon = spec.rollout.prompts_per_rollout, spec.horizon
    assert size is not None
    epochs = (horizon.rollouts or 0) * (size // dataset_size + 1) + 1 if horizon.epochs is None else int(horizon.epochs)
    orders = [list_epoch(spec, dataset_size, epoch) for epoch in range(epochs)]
    if spec.order.last_rollout == "wrap":
        run = [(epoch, prompt) for epoch, prompts in enumerate(orders) for prompt in prompts]
        chunks = [run[start : start + size] for start in range(0, len(run), size)]
        found = [(chunk[0][0], [prompt for _, prompt in chunk]) for chunk in chunks if len(chunk) == size]
    else:
        found = [
            (epoch, prompts[start : start + size])
            for epoch, prompts in enumerate(orders)
            for start in range(0, dataset_size, size)
            if start + size <= dataset_size or spec.order.last_rollout in ("short", "pad")
        ]
    return found if horizon.rollouts is None else found[: horizon.rollouts]


def list_epoch(spec: Spec, dataset_size: int, epoch: int) -> list[int]:
    if spec.order.prompt_shuffle == "none":
        return list(range(dataset_size))
    return Bijection(dataset_size, ("prompts", spec.order.seed or 0, epoch)).take(0, dataset_size)


def list_pass(spec: Spec, rollout: int, pass_index: int, prompts: list[int]) -> list[tuple[Completion, int]]:
    samples = spec.rollout.completions_per_prompt
    rows = [(ordinal, sample) for ordinal in range(len(prompts)) for sample in range(samples)]
    key = ("rollout", spec.order.seed or 0, rollout, pass_index)
    kind = spec.optimizer_step.rollout_shuffle
    if kind == "completions":
        rows = [rows[place] for place in Bijection(len(rows), key).take(0, len(rows))]
    elif kind == "groups":
        groups = Bijection(len(prompts), key).take(0, len(prompts))
        rows = [(ordinal, sample) for ordinal in groups for sample in range(samples)]
    return [
        (Completion(rollout, pass_index, prompts[ordinal], sample), ordinal * samples + sample)
        for ordinal, sample in rows
    ]


_epochs, _rollouts, _steps = st.integers(0, 3), st.integers(0, 7), st.none() | st.integers(0, 9)
horizons = st.one_of(
    _epochs.map(lambda epochs: Horizon(epochs=epochs)),
    _rollouts.map(lambda rollouts: Horizon(rollouts=rollouts)),
    st.builds(Horizon, epochs=_epochs, optimizer_steps=_steps),
    st.builds(Horizon, rollouts=_rollouts, optimizer_steps=_steps),
    st.builds(Horizon, epochs=_epochs, rollouts=_rollouts, optimizer_steps=_steps),
)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    last_rollout = draw(st.sampled_from(["drop", "short", "pad", "wrap"]))
    spans = ["none", "rollout", "run"] + ["epoch"] * (last_rollout != "wrap")
    span, warmup = draw(st.sampled_from(spans)), draw(st.sampled_from([0, 0, 1, 2, 5]))
    spec = make_spec(
        prompts_per_rollout=draw(st.integers(1, 6)),
        completions_per_prompt=draw(st.integers(1, 4)),
        completions_per_step=draw(st.integers(1, 30)),
        passes_per_rollout=draw(st.integers(0, 3)),
        rollout_shuffle=draw(st.sampled_from(["none", "completions", "groups"])),
        step_may_span=span,
        horizon=draw(horizons),
        order={
            "seed": draw(st.integers(0, 3)),
            "prompt_shuffle": draw(st.sampled_from(["none", "epoch_permutation"])),
            "last_rollout": last_rollout,
            "last_optimizer_step": draw(st.sampled_from(["drop", "short", "pad"])),
        },
    )
    whole = spec.completions_per_rollout or 0  # in one pass, for tests that change their number
    at_a_step = last_rollout in ("drop", "wrap") and whole % (spec.optimizer_step.completions_per_step or 1) == 0
    critic = Critic(completions_per_step=None, aggregation="token_mean", warmup_rollouts=warmup)
    return spec.replace(critic=critic) if warmup and (at_a_step or span in ("none", "rollout")) else spec


sizes = st.integers(1, 12)


@settings(max_examples=300)
@given(specs(), sizes)
def test_steps_are_those_of_the_listed_run(spec: Spec, dataset_size: int) -> None:
    listed = list_run(spec, dataset_size).steps
    plan = plan_of(spec, dataset_size)
    assert plan.total_optimizer_steps == len(listed)
    planned = [list(zip(step.members, step.positions, strict=True)) for step in plan.steps()]
    assert planned == listed


@given(specs(), sizes)
def test_rollouts_are_those_of_the_listed_run(spec: Spec, dataset_size: int) -> None:
    listed = list_run(spec, dataset_size)
    plan = plan_of(spec, dataset_size)
    for index, (epoch, prompts) in enumerate(listed.rollouts):
        rollout = plan.rollout(index)
        assert (rollout.epoch, list(rollout.prompts)) == (epoch, prompts)
        trained_at = [k for k, step in enumerate(listed.steps) if any(member.rollout == index for member, _ in step)]
        if trained_at:
            assert rollout.generated_at_step == trained_at[0]


@given(specs(), sizes)
def test_step_of_finds_the_step_of_every_completion(spec: Spec, dataset_size: int) -> None:
    plan = plan_of(spec, dataset_size)
    for step in plan.steps():
        for member, place in zip(step.members, step.positions, strict=True):
            epoch = step_epoch(plan, member.rollout, place // plan.completions_per_prompt)
            found = plan.step_of(member.prompt, member.sample, epoch=epoch, pass_index=member.pass_index)
            assert found == step.index


def step_epoch(plan: Plan, rollout: int, ordinal: int) -> int:
    """The epoch that a rollout's prompt number `ordinal` belongs to; a wrapping rollout has prompts of several."""
    if plan.spec.order.last_rollout == "wrap":
        return (rollout * plan.prompts_per_rollout + ordinal) // plan.dataset_size
    return plan.rollout(rollout).epoch


@given(specs(), sizes)
def test_step_of_a_dropped_completion_is_none_or_after_the_run(spec: Spec, dataset_size: int) -> None:
    passes = max(spec.optimizer_step.passes_per_rollout, 1)
    spec = spec.replace(**{"horizon": Horizon(epochs=2), "optimizer_step.passes_per_rollout": passes})
    plan = plan_of(spec, dataset_size)
    assume(plan.total_optimizer_steps)
    trained = {(member.prompt, member.sample, member.pass_index) for step in plan.steps() for member in step.members}
    for prompt in range(dataset_size):
        for sample in range(plan.completions_per_prompt):
            for pass_index in range(plan.passes_per_rollout):
                if (prompt, sample, pass_index) not in trained:
                    step = plan.step_of(prompt, sample, epoch=0, pass_index=pass_index)
                    assert step is None or step >= plan.total_optimizer_steps


@given(specs(), sizes)
def test_nothing_dropped_means_every_completion_once_per_pass_and_epoch(spec: Spec, dataset_size: int) -> None:
    spec = spec.replace(
        **{"order.last_rollout": "short", "order.last_optimizer_step": "short", "horizon": Horizon(epochs=2)},
        critic=None,
    )
    plan = plan_of(spec, dataset_size)
    members = [(member, plan.rollout(member.rollout).epoch) for step in plan.steps() for member in step.members]
    counted = sorted((epoch, member.pass_index, member.prompt, member.sample) for member, epoch in members)
    assert counted == [
        (epoch, pass_index, prompt, sample)
        for epoch in range(2)
        for pass_index in range(plan.passes_per_rollout)
        for prompt in range(dataset_size)
        for sample in range(plan.completions_per_prompt)
    ]


@given(specs(), sizes)
def test_only_a_unit_s_last_step_is_short(spec: Spec, dataset_size: int) -> None:
    spec = spec.replace(**{"optimizer_step.step_may_span": "run", "order.last_optimizer_step": "short"}, critic=None)
    plan = plan_of(spec, dataset_size)
    lengths = [len(step.members) for step in plan.steps()]
    assert all(length == plan.completions_per_step for length in lengths[:-1])


@given(specs(), sizes)
def test_a_resumed_run_needs_the_live_rollouts_and_no_other(spec: Spec, dataset_size: int) -> None:
    steps = list_run(spec, dataset_size).steps
    plan = plan_of(spec, dataset_size)
    for done in range(1, len(steps)):
        seen = {member.rollout for step in steps[:done] for member, _ in step}
        ahead = {member.rollout for step in steps[done:] for member, _ in step}
        position = plan.seek(done)
        assert position.optimizer_steps == done
        assert position.next_rollout == max(seen) + 1
        assert set(position.live_rollouts) == seen & ahead


@given(specs(), sizes)
def test_the_steps_that_use_a_rollout_are_those_that_train_on_it_and_go_on_after_the_end(
    spec: Spec, dataset_size: int
) -> None:
    plan = plan_of(spec, dataset_size)
    steps = list(plan.steps())
    assume(steps)
    for rollout in {member.rollout for step in steps for member in step.members}:
        using = list(plan.steps_using(rollout))
        inside = [step for step in steps if rollout in step.rollouts]
        assert using[: len(inside)] == inside
        assert all(rollout in step.rollouts for step in using)
        assert list(plan.steps_using(rollout, inside[0].index + 1)) == using[1:]


@given(specs(), sizes)
def test_the_learning_rate_moves_once_per_rollout_where_the_clock_is_the_rollout(spec: Spec, dataset_size: int) -> None:
    plan = plan_of(spec.replace(**{"horizon.lr_tick": "rollout"}), dataset_size)
    steps = list(plan.steps())
    for step, following in pairwise(steps):
        assert step.lr_tick == (step.rollouts[-1] != following.members[0].rollout)


@given(specs(), sizes)
def test_the_learning_rate_moves_every_step_where_the_clock_is_the_step(spec: Spec, dataset_size: int) -> None:
    assert all(step.lr_tick for step in plan_of(spec, dataset_size).steps())


@given(specs(), sizes, st.integers(0, 3))
def test_arrays_hold_what_the_steps_hold(spec: Spec, dataset_size: int, start: int) -> None:
    pytest.importorskip("numpy", reason="arrays are computed by NumPy")
    plan = plan_of(spec, dataset_size)
    assume(plan.total_optimizer_steps)
    start = min(start, plan.total_optimizer_steps - 1)
    stop = min(start + 5, plan.total_optimizer_steps)
    rows = [[step.index, *member] for step in plan.steps(start, stop) for member in step.members]
    assert plan.members_array(start, stop).tolist() == rows


@given(specs(), sizes)
def test_arrays_of_no_step_are_empty(spec: Spec, dataset_size: int) -> None:
    pytest.importorskip("numpy", reason="arrays are computed by NumPy")
    assert plan_of(spec, dataset_size).members_array(0, 0).shape == (0, 5)


def test_a_place_in_ten_billion_prompts_is_found_in_microseconds() -> None:
    plan = plan_of(
        make_spec(
            prompts_per_rollout=1024, completions_per_prompt=8, completions_per_step=1024, horizon=Horizon(epochs=3)
        ),
        10**10,
    )
    places = [plan.total_optimizer_steps * k // 1000 + 1 for k in range(1000)]
    best = math.inf
    for _ in range(5):  # the best of five: another process may hold the core
        started = time.process_time()
        for place in places:
            plan.seek(place)
        best = min(best, (time.process_time() - started) / len(places))
    assert best < 50e-6


@given(specs(), sizes, st.integers(0, 5))
def test_a_horizon_in_steps_gives_the_first_steps_of_the_endless_run(spec: Spec, dataset_size: int, steps: int) -> None:
    plan = plan_of(spec.replace(horizon=Horizon(optimizer_steps=steps)), dataset_size)
    assume(plan.total_optimizer_steps)
    assert plan.total_optimizer_steps == steps
    longer = plan_of(spec.replace(horizon=Horizon(optimizer_steps=steps + 3)), dataset_size)
    assert list(plan.steps()) == list(longer.steps(0, steps))


@given(specs(), sizes)
def test_total_rollouts_covers_what_is_trained(spec: Spec, dataset_size: int) -> None:
    plan = plan_of(spec, dataset_size)
    trained = {member.rollout for step in plan.steps() for member in step.members}
    if spec.horizon.rollouts is None and (trained or not warmup_of(spec)):
        assert plan.total_rollouts == max(trained, default=-1) + 1
    elif spec.horizon.rollouts is None:
        assert plan.total_rollouts <= warmup_of(spec)
    elif len(spec.horizon.lengths) == 1:
        assert plan.total_rollouts == spec.horizon.rollouts
    else:
        assert max(trained, default=-1) + 1 <= plan.total_rollouts <= spec.horizon.rollouts


@settings(max_examples=300)
@given(specs(), sizes, st.integers(0, 9), st.sampled_from([0.4, 0.5, 1.5, 2.25]))
def test_of_several_lengths_the_one_that_ends_first_is_the_run_s(
    spec: Spec, dataset_size: int, steps: int, epochs: float
) -> None:
    for horizon in (
        spec.horizon,
        Horizon(epochs=epochs, optimizer_steps=steps),
        Horizon(epochs=epochs, rollouts=steps // 2),
        Horizon(rollouts=steps // 2, optimizer_steps=steps),
    ):
        both = plan_of(spec.replace(horizon=horizon), dataset_size)
        alone = [plan_of(spec.replace(horizon=Horizon(**{n: v})), dataset_size) for n, v in horizon.lengths.items()]
        first = min(alone, key=lambda plan: (plan.total_optimizer_steps, len(_last_members(plan))))
        assert list(both.steps()) == list(first.steps())
        assert both.total_rollouts == min(plan.total_rollouts for plan in alone)


def _last_members(plan: Plan) -> tuple[Completion, ...]:
    return plan.step(plan.total_optimizer_steps - 1).members if plan.total_optimizer_steps else ()


def test_a_remainder_that_comes_after_the_run_s_end_is_not_refused() -> None:
    order = {"last_optimizer_step": "error", "last_rollout": "wrap"}
    cut = Horizon(rollouts=3, optimizer_steps=2)  # 3 rollouts are 72 completions: two steps of 36; of 50, one and 22
    assert plan_of(make_spec(order=order, step_may_span="run", completions_per_step=36, horizon=cut), 10)
    with pytest.raises(PlanError, match="72 completions are not a multiple"):
        plan_of(make_spec(order=order, step_may_span="run", completions_per_step=50, horizon=cut), 10)
    early = Horizon(rollouts=3, optimizer_steps=1)
    assert plan_of(make_spec(order=order, step_may_span="run", completions_per_step=50, horizon=early), 10)


# ---- known numbers


@pytest.mark.parametrize(("dataset_size", "steps"), [(8000, 4000), (7999, 3998), (8003, 4000), (8004, 4002)])
def test_micro_4_accumulation_2_devices_3_generations_6(dataset_size: int, steps: int) -> None:
    completions_per_step = 4 * 2 * 3
    spec = make_spec(
        prompts_per_rollout=completions_per_step // 6,
        completions_per_step=completions_per_step,
        step_may_span="epoch",
        horizon=Horizon(epochs=2),
    )
    assert plan_of(spec, dataset_size).total_optimizer_steps == steps


@pytest.mark.parametrize(("epochs", "steps"), [(1.5, 3000), (2.3, 4600), (0.1, 200)])
def test_fractional_epochs_round_up_to_a_step(epochs: float, steps: int) -> None:
    assert plan_of(make_spec(horizon=Horizon(epochs=epochs)), 8000).total_optimizer_steps == steps


def test_a_dataset_smaller_than_a_rollout_trains_nothing() -> None:
    plan = plan_of(make_spec(), 3)
    assert (plan.total_optimizer_steps, plan.total_rollouts, plan.prompts_dropped_per_epoch) == (0, 0, 3)


@pytest.mark.parametrize("span", ["none", "rollout", "epoch", "run"])
def test_ten_billion_prompts_need_no_list(span: str) -> None:
    size = 10**10
    plan = plan_of(make_spec(step_may_span=span, passes_per_rollout=2, horizon=Horizon(epochs=3)), size)
    started = time.process_time()
    total = plan.total_optimizer_steps
    assert total == math.ceil(3 * size * 6 * 2 / 24)
    for index in (0, total // 2, total - 1):
        step = plan.step(index)
        member = step.members[0]
        epoch = plan.rollout(member.rollout).epoch
        assert plan.step_of(member.prompt, member.sample, epoch=epoch, pass_index=member.pass_index) == index
        assert plan.seek(index).optimizer_steps == index
    assert time.process_time() - started < 1.0  # seconds of CPU; a list of 10^10 would take minutes and 80 GB


def test_generation_batches_that_divide_a_rollout_change_nothing() -> None:
    whole, portions = (plan_of(make_spec(rollout={"prompts_per_generation_batch": size}), 11) for size in (None, 2))
    assert list(whole.steps()) == list(portions.steps())


# ---- what has no plan


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (make_spec(prompts_per_rollout=None), "rollout.prompts_per_rollout is open"),
        (make_spec(completions_per_step=None), "optimizer_step.completions_per_step is open"),
        (make_spec(rollout={"group_filter": "drop_zero_variance"}), "rollout.group_filter = drop_zero_variance"),
        (make_spec().replace(staleness=Staleness(mode="bounded", maximum=1)), "staleness.mode = bounded"),
        (make_spec(order={"prompt_shuffle": "weighted_sampling"}), "order.prompt_shuffle = weighted_sampling"),
        (make_spec(order={"seed": None}), "order.seed is open"),
        (
            make_spec(rollout={"prompts_per_generation_batch": 3}),
            "4 prompts per rollout are not a whole number of them",
        ),
        (make_spec(rollout={"prompts_per_generation_batch": 8}), "rollout.prompts_per_generation_batch = 8"),
        (make_spec(prompts_per_rollout=0), "rollout.prompts_per_rollout = 0: must be at least 1"),
        (make_spec(completions_per_prompt=0), "rollout.completions_per_prompt = 0: must be at least 1"),
        (make_spec(completions_per_step=0), "optimizer_step.completions_per_step = 0: must be at least 1"),
        (make_spec(passes_per_rollout=-1), "optimizer_step.passes_per_rollout = -1: must be at least 0"),
        (make_spec(order={"last_rollout": "wrap"}, step_may_span="epoch"), "order.last_rollout = wrap"),
        (make_spec(prompts_per_rollout=3, order={"last_rollout": "error"}), "10 prompts leave 1 of 3 prompts"),
        (
            make_spec(completions_per_step=7, order={"last_optimizer_step": "error"}),
            "24 completions are not a multiple",
        ),
        (
            make_spec(completions_per_step=7, order={"last_optimizer_step": "error"}, step_may_span="rollout"),
            "24 completions are not a multiple",
        ),
        (
            make_spec(completions_per_step=7, order={"last_optimizer_step": "error"}, step_may_span="epoch"),
            "48 completions are not a multiple",
        ),
        (
            make_spec(completions_per_step=7, order={"last_optimizer_step": "error"}, step_may_span="run"),
            "48 completions are not a multiple",
        ),
        (
            make_spec(
                completions_per_step=48,
                order={"last_optimizer_step": "error"},
                step_may_span="epoch",
                horizon=Horizon(rollouts=3),
            ),
            "24 completions are not a multiple",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_spec_that_leaves_membership_open_is_refused_by_name(spec: Spec, reason: str) -> None:
    with pytest.raises(PlanError) as refusal:
        Plan(spec, 10)
    assert reason in refusal.value.reason


def test_every_field_that_leaves_the_plan_open_is_named() -> None:
    changes = {"staleness.mode": "bounded", "rollout.group_filter": "drop_zero_variance", "order.seed": None}
    with pytest.raises(PlanError) as refusal:
        Plan(make_spec().replace(**{**changes, "order.prompt_shuffle": "epoch_permutation"}), 10)
    assert refusal.value.reason == (
        "rollout.group_filter = drop_zero_variance: rewards decide what is trained; "
        "staleness.mode = bounded: timing decides what is trained; order.seed is open: the prompt order has no key"
    )


def test_an_empty_dataset_has_no_plan() -> None:
    with pytest.raises(PlanError, match="dataset_size = 0"):
        plan_of(make_spec(), 0)


def test_a_horizon_is_at_least_one_of_three() -> None:
    with pytest.raises(PlanError, match="exactly one of rollouts, epochs, optimizer_steps"):
        _ = plan_of(make_spec(horizon=Horizon()), 10).total_optimizer_steps


@pytest.mark.parametrize("span", ["none", "rollout", "epoch", "run"])
@pytest.mark.parametrize("reason", ["too few prompts", "no passes"])
def test_a_run_without_steps_says_so(span: str, reason: str) -> None:
    spec = make_spec(step_may_span=span, passes_per_rollout=0 if reason == "no passes" else 1)
    plan = plan_of(spec, 3 if reason == "too few prompts" else 10)
    with pytest.raises(PlanError, match="the run has none"):
        plan.step(0)


def test_a_rollout_of_too_few_prompts_says_so() -> None:
    with pytest.raises(PlanError, match="exceeds the 3 prompts"):
        plan_of(make_spec(), 3).rollout(0)


@pytest.mark.parametrize("lookup", ["step", "rollout"])
def test_negative_indices_are_refused(lookup: str) -> None:
    with pytest.raises(IndexError, match="is negative"):
        getattr(plan_of(make_spec(), 10), lookup)(-1)


@pytest.mark.parametrize("arguments", [{"prompt": 10}, {"prompt": -1}, {"sample": 6}, {"pass_index": 1}])
def test_step_of_something_outside_the_run_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(IndexError, match="is not among"):
        plan_of(make_spec(), 10).step_of(**({"prompt": 0, "sample": 0} | arguments))


# ---- places in the run


def test_a_place_before_the_run_is_refused() -> None:
    with pytest.raises(PlanError, match="optimizer_steps = -1"):
        plan_of(make_spec(), 10).seek(-1)


def test_a_run_starts_with_nothing_live() -> None:
    position = plan_of(make_spec(), 10).seek(0)
    assert (position.next_rollout, position.live_rollouts, position.epoch) == (0, (), 0)


# ---- sampling seeds


@pytest.mark.parametrize("last", ["drop", "wrap"])
def test_a_completions_sampling_seed_is_that_of_its_prompt_sample_and_epoch(last: str) -> None:
    plan = plan_of(make_spec(order={"last_rollout": last}, horizon=Horizon(rollouts=6)), 10)
    seen: dict[tuple[int, int], int] = {}
    for rollout in range(6):
        planned = plan.rollout(rollout)
        for place, (prompt, seed) in enumerate(zip(planned.prompts, plan.sampling_seeds(rollout), strict=True)):
            epoch = (4 * rollout + place) // 10 if last == "wrap" else planned.epoch
            assert seed == plan.sampling_seed(prompt, 0, epoch=epoch)
            assert plan.sampling_seed(prompt, 3, epoch=epoch) == seed + 3
            seen[epoch, prompt] = seed
    assert len(set(seen.values())) == len(seen)


def test_sampling_seeds_follow_the_order_s_seed_alone() -> None:
    one, other = (plan_of(make_spec(order={"seed": 7}, completions_per_step=size), 10) for size in (6, 24))
    assert one.sampling_seeds(0) == other.sampling_seeds(0)
    assert one.sampling_seeds(0) != plan_of(make_spec(order={"seed": 8}), 10).sampling_seeds(0)

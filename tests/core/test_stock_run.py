"""The membership of an unwrapped run: any order that the framework may deal out passes, and every tampering is seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from batchbridge import BatchDrift, Plan, Spec
from batchbridge.kit.drift import compare_with_stock
from batchbridge.kit.workers import Orders
from batchbridge.meaning.candidates import keyed, plan_of
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Topology
from batchbridge.meaning.stock_run import OwnOrder, StockMembership, same_sizes

Rows = list[tuple[int, int, int, int]]
SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=4, passes_per_rollout=2),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2),
    order=Order(prompt_shuffle="epoch_permutation"),
)
PROMPTS = 12


def own_order() -> Iterator[Sequence[int]]:
    drawn = random.Random(5)
    while True:
        order = drawn.sample(range(PROMPTS), PROMPTS)
        yield from (order[start : start + 4] for start in range(0, PROMPTS, 4))


def native_steps(seed: int = 1) -> list[Rows]:
    """The steps of a run whose rollouts stand in another order than the plan's, and are shuffled in every pass."""
    drawn, found = random.Random(seed), []
    rollouts = own_order()
    for rollout in range(6):
        rows = [(prompt, sample) for prompt in next(rollouts) for sample in range(2)]
        for index in range(2):
            drawn.shuffle(rows)
            found += [[(rollout, index, *row) for row in rows[cut : cut + 4]] for cut in (0, 4)]
    return found


def departures(steps: Sequence[Rows], make: Callable[[], Iterator[Sequence[int]]] | None, start: int = 0) -> list[str]:
    stock = StockMembership(Plan(keyed(SPEC), PROMPTS), None if make is None else OwnOrder(make))
    found = [(index, stock.departure(index, rows)) for index, rows in enumerate(steps) if index >= start]
    return [f"{index} {said.aspect}: {said.detail}" for index, said in found if said is not None]


@pytest.mark.parametrize("make", [own_order, None], ids=["its own order", "no order"])
@pytest.mark.parametrize("start", [0, 1, 2, 5, 8])
def test_a_run_in_its_frameworks_own_order_passes_from_wherever_it_goes_on(
    make: Callable[[], Iterator[Sequence[int]]] | None, start: int
) -> None:
    assert departures(native_steps(), make, start) == []


def doubled(steps: list[Rows]) -> None:
    steps[0][1] = steps[0][0]


def exchanged_rollouts(steps: list[Rows]) -> None:
    """Rollouts 0 and 1 exchange their prompts."""
    first, second = steps[:4], steps[4:8]
    steps[:4] = [[(0, *row[1:]) for row in rows] for rows in second]
    steps[4:8] = [[(1, *row[1:]) for row in rows] for rows in first]


def dropped(steps: list[Rows]) -> None:
    steps[1].pop()


def torn(steps: list[Rows]) -> None:
    """A completion of another prompt of the rollout stands in one's place: two groups are not whole."""
    prompt = steps[0][0][2]
    at = next(place for place, row in enumerate(steps[1]) if row[2] != prompt)
    steps[1][at] = (0, 0, prompt, steps[0][0][3])


def elsewhere(steps: list[Rows]) -> None:
    """The first rollout's completions once more, as the second's."""
    steps[4:8] = [[(1, *row[1:]) for row in rows] for rows in steps[:4]]


def later_pass(steps: list[Rows]) -> None:
    steps[2] = [(0, 0, *row[2:]) for row in steps[2]]


def outside(steps: list[Rows]) -> None:
    rollout, index, prompt, _ = steps[0][0]
    steps[0][0] = (rollout, index, prompt, 2)


TAMPERED = {
    doubled: ("0 membership", "0 membership"),
    exchanged_rollouts: ("0 order", None),
    dropped: ("1 membership", "1 membership"),
    torn: ("1 membership", "1 membership"),
    elsewhere: ("4 order", "4 order"),
    later_pass: ("2 membership", "2 membership"),
    outside: ("0 membership", "0 membership"),
}


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda one: one.__name__)
@pytest.mark.parametrize("known", [True, False], ids=["its own order", "no order"])
def test_what_is_tampered_with_departs_at_its_step(tamper: Callable[[list[Rows]], None], known: bool) -> None:
    steps = native_steps()
    tamper(steps)
    found, expected = departures(steps, own_order if known else None), TAMPERED[tamper][not known]
    if expected is None:  # which rollout has which prompts, nothing decides there
        assert found == []
    else:
        assert found[0].startswith(f"{expected}: "), found


def test_a_group_that_is_not_whole_is_seen_when_its_pass_ends() -> None:
    """Without an order, five prompts in a rollout of four can only be told by their groups."""
    steps = native_steps()
    have = {row[2] for rows in steps[:2] for row in rows}
    stranger = next(prompt for prompt in range(PROMPTS) if prompt not in have)
    rollout, index, _, sample = steps[1][0]
    steps[1][0] = (rollout, index, stranger, sample)
    assert next(said.partition(":")[0] for said in departures(steps, None)) == "1 membership"
    assert departures(steps, own_order)[0].startswith("1 order: rollout 0 trains prompts")


def test_the_own_order_is_looked_up_in_any_order() -> None:
    expected = [rollout for rollout, _ in zip(own_order(), range(40), strict=False)]
    lookup = OwnOrder(own_order)
    for rollout in (0, 3, 2, 39, 38, 1, 12):
        assert lookup(rollout) == expected[rollout]
    assert OwnOrder(lambda: iter([(1, 2)]))(5) == (), "after the run's last rollout there is none"


def test_another_size_or_order_is_held_against_the_plan_itself() -> None:
    def orders(**changes: object) -> Orders:
        asked = SPEC.replace(**{"order.seed": 3, **changes})
        own = SPEC.replace(**{"order.seed": 3})
        return Orders(
            spec=asked, native=own, dataset_size=PROMPTS, planned=True, mode="verify", ledger=None,
            framework_version="1", start_id="a",
        )  # fmt: skip

    plan = orders().plan()
    assert orders().stock(plan) is not None
    assert orders(**{"horizon.epochs": 3.0}).stock(plan) is None
    assert not same_sizes(SPEC, SPEC.replace(**{"rollout.completions_per_prompt": 3}))
    assert same_sizes(SPEC, SPEC.replace(**{"loss.policy": LossTerm(aggregation="sequence_mean")}))


def test_weights_of_a_run_in_its_own_order_are_held_against_the_specification() -> None:
    plan = Plan(keyed(SPEC), PROMPTS)

    def compare(weight: float) -> None:
        rows = [(*row, 10, weight) for row in native_steps()[0]]
        compare_with_stock(StockMembership(plan), plan, 0, rows)

    compare(1 / 40)
    with pytest.raises(BatchDrift, match=r"weighs 0\.02525, 1\.01 times what the plan says") as drift:
        compare(1.01 / 40)
    assert drift.value.aspect == "weights"


# ---- rewards and timing fill rollouts

TIMED = SPEC.replace(
    **{
        "staleness.mode": "bounded",
        "staleness.maximum": 2,
        "order.last_rollout": "wrap",
        "optimizer_step.completions_per_step": 8,
        "horizon.epochs": None,
        "horizon.rollouts": 4,
    }
)
"""Whole rollouts of four places; which prompts have them is open."""


def of_places(*, dropped: Sequence[int] = ()) -> list[Rows]:
    """The steps of a run that knows its completions' places, some of which are left out."""
    rows = [(place, sample) for place in range(4) if place not in dropped for sample in range(2)]
    return [[(rollout, index, *row) for row in reversed(rows)] for rollout in range(4) for index in range(2)]


def of_timed(steps: Sequence[Rows], *, leaves_out: bool = False, prompts: int = PROMPTS) -> list[str]:
    stock = StockMembership(plan_of(keyed(TIMED), prompts), leaves_out=leaves_out)
    found = [(index, stock.departure(index, rows)) for index, rows in enumerate(steps)]
    return [f"{index} {said.aspect}: {said.detail}" for index, said in found if said is not None]


@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize("prompts", [PROMPTS, 3])
def test_a_run_whose_rollouts_timing_fills_passes_by_its_places(leaves_out: bool, prompts: int) -> None:
    assert of_timed(of_places(), leaves_out=leaves_out, prompts=prompts) == []


def test_completions_may_be_left_out_where_rewards_or_devices_do_it_and_nowhere_else() -> None:
    steps = of_places(dropped=[1])
    assert of_timed(steps, leaves_out=True) == []
    assert of_timed(steps)[0].startswith("0 membership: other numbers of completions than the configuration gives")


@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_doubled_completion_a_foreign_place_and_a_foreign_rollout_are_seen_where_places_are_open(
    leaves_out: bool,
) -> None:
    doubled, foreign, early = of_places(), of_places(), of_places()
    doubled[2][0] = doubled[2][1]
    foreign[2][0] = (1, 0, 4, 0)
    early[2][0] = (2, 0, 0, 0)
    found = [of_timed(steps, leaves_out=leaves_out)[0] for steps in (doubled, foreign, early)]
    assert found[0].startswith("2 membership: pass 0 over rollout 1 trains sample 0 of prompt 3 2 times")
    assert found[1].startswith("2 order: rollout 1 trains places [4]")
    assert found[2].startswith("2 membership: other numbers of completions")


def test_passes_over_a_rollout_of_which_something_is_left_out_train_the_same() -> None:
    steps = of_places(dropped=[1])
    steps[3] = steps[3][2:]
    (said,) = of_timed(steps, leaves_out=True)
    assert said.startswith("3 membership: passes 0 and 1 over rollout 1 train other completions")


def test_a_step_that_trains_nothing_of_its_rollout_is_seen() -> None:
    steps = of_places()
    steps[4] = []
    assert of_timed(steps, leaves_out=True)[0].startswith("4 membership: other numbers of completions")

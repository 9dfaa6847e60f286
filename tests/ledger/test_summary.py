"""A ledger as a whole: what its summary and figures say is what its steps add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import SPEC

from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import FIGURES, MOST_BINS, FigureRange, series, summarise
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.weights import Normaliser
from batchbridge.render.ledger import summary as text

Write = Callable[..., Path]
PLANNED = SPEC.replace(**{"order.prompt_shuffle": "none"})
"""What the scripted run trains: prompts 0, 1, 2, ..."""


def test_the_summary_adds_up_what_the_steps_say(ledger: Write) -> None:
    folder = ledger("a", world_size=2)
    found, steps = summarise(Ledger(folder)), list(read_steps(folder))
    assert (found.first, found.last, found.steps) == (0, 3, 4)
    assert found.completions == sum(len(step["prompt"]) for step in steps) == 16
    assert found.response_tokens == sum(sum(step["response_tokens"]) for step in steps) == 40
    assert found.masked == 4
    assert {rank: (one.completions, one.response_tokens) for rank, one in found.ranks.items()} == {
        0: (8, 20),
        1: (8, 20),
    }


def test_each_figure_of_a_step_is_what_the_step_recorded(ledger: Write) -> None:
    def older(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        for row in rows[:2]:
            row["generated_at_step"] = max(step - 1, 0)

    bins = summarise(Ledger(ledger("a", spec=PLANNED, edit=older))).bins
    of_one_rank = FIGURES.keys() - {"slowest_rank"}  # test_times
    at_2 = {name: next(one for first, _, one in series(bins, name) if first == 2) for name in of_one_rank}
    assert at_2["response_tokens"] == FigureRange(10, 10, 10)
    assert at_2["completions"] == FigureRange(4, 4, 4)
    assert at_2["denominator"] == FigureRange(10, 10, 10)  # token_mean: T
    assert at_2["staleness"] == FigureRange(0, 0.5, 1)
    assert at_2["masked"] == FigureRange(1, 1, 1)
    assert at_2["dropped"] == FigureRange(0, 0, 0)


def test_measured_weights_say_the_denominators_where_no_normaliser_does(ledger: Write) -> None:
    def measured(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        scalars["normaliser"] = None
        for row, weight in zip(rows, (0.5, 0.0, 0.25, 0.25), strict=True):
            row["weights"] = weight

    (first, *_) = summarise(Ledger(ledger("a", edit=measured))).bins
    assert first.figures["denominator"] == FigureRange(2, 10 / 3, 4)


def test_what_nothing_recorded_is_no_figure(ledger: Write) -> None:
    def unknown(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        scalars["normaliser"] = Normaliser(aggregation="token_mean", completions=4, tokens=0)
        for row in rows:
            row["response_tokens"] = 0

    found = summarise(Ledger(ledger("a", edit=unknown)))
    assert not list(series(found.bins, "denominator"))
    assert "denominator" not in text(found)


def test_a_step_that_departs_from_the_plan_is_drift(ledger: Write) -> None:

    def other(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        if step >= 2:
            rows[0]["prompt"] = 7

    def short(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        if step == 1:
            del rows[2:]

    assert [member.prompt for member in Plan(PLANNED, 8).step(1).members] == [2, 2, 3, 3]
    followed = summarise(Ledger(ledger("a", spec=PLANNED)))
    assert (followed.drift, followed.first_drift) == (0, None)
    assert "drift: none" in text(followed)
    departed = summarise(Ledger(ledger("b", spec=PLANNED, edit=other)))
    assert (departed.drift, departed.first_drift) == (2, 2)
    assert "drift: 2 steps trained other completions than planned, from 2" in text(departed)
    dropped = summarise(Ledger(ledger("c", spec=PLANNED, edit=short)))
    assert [one.mean for _, _, one in series(dropped.bins, "dropped")] == [0, 2, 0, 0]


def test_a_run_without_a_plan_says_why_it_was_not_held_against_one(ledger: Write) -> None:
    filtered = PLANNED.replace(**{"rollout.group_filter": "drop_zero_variance"})
    found = summarise(Ledger(ledger("a", spec=filtered)))
    assert found.drift is None
    assert "drift: not held against a plan: drop_zero_variance: rewards decide" in text(found)
    assert not list(series(found.bins, "dropped"))


def test_a_step_of_another_size_than_anyone_has_memory_for_is_not_planned(ledger: Write) -> None:
    vast = PLANNED.replace(**{"rollout.prompts_per_rollout": 10**15, "optimizer_step.completions_per_step": 2 * 10**15})
    found = summarise(Ledger(ledger("a", spec=vast, dataset_size=10**16)))
    assert found.no_plan == "its steps or rollouts have more than 1,048,576 completions"


def test_resumes_and_skipped_steps_are_told(ledger: Write) -> None:
    def skip(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        scalars["skipped"] = step == 1

    ledger("a", steps=2, edit=skip)
    folder = ledger("a", at_step=2, started="resumed")
    said = text(summarise(Ledger(folder)))
    assert "skipped steps: 1 (the optimizer did not step)" in said
    assert "resumed: at step 2 on 1 ranks" in said


def test_a_long_run_has_as_many_points_as_a_chart_shows_and_loses_no_extreme(ledger: Write) -> None:
    def peak(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        if step == 777:
            rows[0]["response_tokens"] = 1000

    found = summarise(Ledger(ledger("a", steps=1001, edit=peak)))
    assert len(found.bins) <= MOST_BINS
    assert (found.bins[0].first, found.bins[-1].last) == (0, 1000)
    points = list(series(found.bins, "response_tokens"))
    assert [first for first, _, _ in points[1:]] == [last + 1 for _, last, _ in points[:-1]]
    assert max(one.most for _, _, one in points) == 1007
    total = sum(one.mean * (last - first + 1) for first, last, one in points)
    assert math.isclose(total, found.response_tokens)


def test_a_ledger_without_a_complete_step_is_told_as_such(ledger: Write) -> None:
    assert "steps: none is complete" in text(summarise(Ledger(ledger("a", steps=0))))


@pytest.mark.parametrize(
    "normaliser", [{"aggregation": "token_mean"}, {"aggregation": 1, "tokens": 2, "completions": 3}]
)
def test_a_normaliser_of_another_hand_is_no_figure_and_no_error(ledger: Write, normaliser: dict[str, Any]) -> None:
    folder = ledger("a")
    file = folder / "rank-00000.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line in lines[1:]:
        line["normaliser"] = normaliser
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    assert not list(series(summarise(Ledger(folder)).bins, "denominator"))


def test_a_step_behind_the_plans_end_is_drift(ledger: Write) -> None:
    found = summarise(Ledger(ledger("a", spec=PLANNED.replace(**{"horizon.optimizer_steps": 3}))))
    assert (found.drift, found.first_drift) == (1, 3)


def test_of_a_long_run_first_and_last_are_the_first_and_the_last_step(ledger: Write) -> None:
    def growing(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        rows[0]["response_tokens"] = step

    found = summarise(Ledger(ledger("a", steps=1000, edit=growing)))
    assert found.ends["response_tokens"] == (7, 1006)
    (line,) = [line for line in text(found).splitlines() if line.startswith("response_tokens")]
    assert line.split()[1:5] == ["7", "1,006", "7", "1,006"]


def test_a_spec_with_a_number_beyond_floats_has_no_plan(ledger: Write) -> None:
    folder = ledger("a")
    file = folder / "rank-00000.jsonl"
    first, *steps = file.read_text(encoding="utf-8").splitlines(keepends=True)
    told = json.loads(first)
    told["spec"]["carried"]["learning_rate"] = 10**400
    file.write_text("".join([json.dumps(told) + "\n", *steps]), encoding="utf-8")
    assert summarise(Ledger(folder)).no_plan == "its specification cannot be read"

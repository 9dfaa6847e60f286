"""`ledger verify` recomputes what a ledger says: each number that is tampered with is named by its check and step."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import HALF, ORDERED, SCHEDULED, Edit, header, record, sound_rows

from batchbridge.cli.main import main
from batchbridge.errors import LedgerError
from batchbridge.ledger import Writer
from batchbridge.ledger.verifying import LedgerVerification, verify
from batchbridge.meaning.schedule_rates import ScheduleRates
from batchbridge.meaning.spec import Carried

Ledger = Callable[..., Path]
PASSES = SCHEDULED.replace(**{"optimizer_step.passes_per_rollout": 2})


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """The scripted ledger with advantages that its rewards give."""
    return partial(ledger, rows_of=sound_rows)


def departed(found: LedgerVerification) -> dict[str, list[int]]:
    """Check -> the steps that depart."""
    return {one.name: [step for step, _ in one.departures] for one in found.checks if one.departed}


def skipped(found: LedgerVerification) -> dict[str, list[str]]:
    return {one.name: list(one.skipped) for one in found.checks if one.skipped}


def at(step: int, change: Callable[[list[dict[str, Any]], dict[str, Any]], object]) -> Edit:
    """The change, made in one step alone."""

    def edit(number: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        if number == step:
            change(rows, scalars)

    return edit


def test_a_sound_run_agrees_in_every_number(ledger: Ledger) -> None:
    found = verify(ledger("run", world_size=2, spec=SCHEDULED))
    assert not departed(found)
    assert not skipped(found)
    assert found.decided
    held = {one.name: one.held for one in found.checks}
    assert held == {
        **dict.fromkeys(("membership", "denominators", "weights", "learning rate", "clock", "ranks"), 4),
        "advantages": 16,
        "passes": 0,
        "groups": 8,
    }


TAMPERINGS: dict[str, tuple[Callable[[list[dict[str, Any]], dict[str, Any]], object], str]] = {
    "another prompt": (lambda rows, _: [row.update(prompt=7) for row in rows[:2]], "membership"),
    "a completion twice": (lambda rows, _: rows[1].update(rows[0]), "membership"),
    "a weight, 2 % larger": (lambda rows, _: rows[0].update(weights=0.102), "weights"),
    "a weight that is no number": (lambda rows, _: rows[0].update(weights=math.nan), "weights"),
    "a token more": (lambda rows, _: rows[0].update(response_tokens=4), "denominators"),
    "a reward": (lambda rows, _: rows[0].update(reward=-3.0), "advantages"),
    "an advantage, 0.1 % larger": (lambda rows, _: rows[0].update(advantage=HALF * 1.001), "advantages"),
    "exchanged advantages": (
        lambda rows, _: [row.update(advantage=-row["advantage"]) for row in rows[:2]],
        "advantages",
    ),
    "the rate, 0.001 % larger": (lambda _, scalars: scalars.update(learning_rate=1e-3 * 1.00001), "learning rate"),
    "a schedule that stayed": (lambda _, scalars: scalars.update(lr_tick=False), "clock"),
    "an update without a token": (lambda rows, _: [row.update(response_tokens=0) for row in rows], "clock"),
    "another prompt's tokens": (lambda rows, _: rows[0].update(prompt_fingerprint="0" * 16), "groups"),
}
"""What is changed in step 2 of a sound run, and the check that must name it."""


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_was_tampered_with_is_named_by_its_check_and_step(ledger: Ledger, name: str) -> None:
    change, check = TAMPERINGS[name]
    found = verify(ledger("run", world_size=1, spec=SCHEDULED, edit=at(2, change)))
    assert 2 in departed(found)[check]
    assert all(set(steps) == {2} for steps in departed(found).values())


def test_one_rank_that_says_otherwise_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        with Writer(tmp_path / "run", header(rank, 2, spec=SCHEDULED)) as writer:
            for step in range(4):
                rate = 2e-3 if (rank, step) == (1, 3) else 1e-3
                writer.append(record(step, sound_rows(step)[rank::2], learning_rate=rate))
    assert departed(verify(tmp_path / "run")) == {"ranks": [3]}


def two_passes(folder: Path, change: Callable[[dict[str, Any]], object] = lambda row: None) -> Path:
    """A run of two rollouts, each trained in two passes; the first row of step 3 is changed."""
    with Writer(folder, header(spec=PASSES, dataset_size=8)) as writer:
        for step in range(4):
            rows = sound_rows(step // 2)
            for row in rows:
                row["pass_index"] = step % 2
            if step == 3:
                change(rows[0])
            writer.append(record(step, rows))
    return folder


def test_a_further_pass_trains_what_the_first_one_did(tmp_path: Path) -> None:
    found = verify(two_passes(tmp_path / "sound"))
    assert not departed(found)
    assert {one.name: one.held for one in found.checks}["passes"] == 8


@pytest.mark.parametrize(
    ("name", "value"), [("advantage", -HALF), ("completion_fingerprint", "0" * 16), ("reward", 0.5)]
)
def test_a_further_pass_with_another_number_departs(tmp_path: Path, name: str, value: Any) -> None:
    found = verify(two_passes(tmp_path / "run", lambda row: row.update({name: value})))
    assert departed(found)["passes"] == [3]


# ---- what cannot be recomputed is named


def test_a_run_that_was_only_observed_is_not_held_against_a_plan(ledger: Ledger) -> None:
    found = verify(ledger("run", spec=SCHEDULED, mode="observe"))
    assert not departed(found)
    assert not found.decided
    assert skipped(found)["membership"] == ["mode observe holds no step against the plan"]
    assert {one.name: one.held for one in found.checks}["advantages"] == 16


@pytest.mark.parametrize(
    ("fields", "check", "why"),
    [
        ({"rollout.group_filter": "drop_zero_variance"}, "membership", "rewards decide which candidates"),
        ({"advantage.baseline": "value"}, "advantages", "rewards do not decide it"),
        ({"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1}, "advantages", "KL penalty"),
        ({"carried.lr_schedule": "polynomial"}, "learning rate", "schedule polynomial is not recomputed"),
        ({"carried.learning_rate": None}, "learning rate", "leaves the learning rate"),
    ],
)
def test_what_the_specification_does_not_decide_is_named(
    ledger: Ledger, fields: dict[str, Any], check: str, why: str
) -> None:
    found = verify(ledger("run", spec=SCHEDULED.replace(**fields)))
    (said,) = skipped(found)[check]
    assert why in said
    assert check not in departed(found)


def test_a_group_that_is_not_whole_says_nothing_of_its_advantages(tmp_path: Path) -> None:
    with Writer(tmp_path / "run", header(spec=SCHEDULED)) as writer:
        writer.append(record(0, sound_rows(0)[1:]))
    found = verify(tmp_path / "run")
    assert skipped(found)["advantages"] == ["its group is not whole in the ledger"]
    assert departed(found)["membership"] == [0]


def test_a_ledger_that_begins_later_knows_no_tick(ledger: Ledger) -> None:
    found = verify(ledger("run", spec=SCHEDULED, at_step=2, started="resumed"))
    assert skipped(found) == {"learning rate": ["the ledger begins after the run did"]}
    assert not departed(found)


def test_a_step_behind_the_plans_end_departs(ledger: Ledger) -> None:
    short = SCHEDULED.replace(**{"horizon.optimizer_steps": 3})
    assert departed(verify(ledger("run", spec=short)))["membership"] == [3]


def test_a_header_whose_specification_was_changed_holds_nothing(ledger: Ledger) -> None:
    path = ledger("run", spec=SCHEDULED) / "rank-00000.jsonl"
    path.write_text(path.read_text().replace('"completions_per_prompt":2', '"completions_per_prompt":4', 1))
    found = verify(path.parent)
    assert not found.decided
    assert skipped(found)["membership"] == ["the header's specification has another digest than the header says"]


def test_a_ledger_without_a_step_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path / "run", header()).close()
    with pytest.raises(LedgerError, match="nothing to verify"):
        verify(tmp_path / "run")


# ---- schedules


@pytest.mark.parametrize(
    ("schedule", "fields", "rates"),
    [
        ("constant", {"warmup_steps": 2}, [0.0, 0.5, 1.0, 1.0, 1.0]),
        ("linear", {}, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ("linear", {"warmup_ratio": 0.3}, [0.0, 0.5, 1.0, 2 / 3, 1 / 3]),
        ("cosine", {}, [0.5 * (1 + math.cos(math.pi * tick / 5)) for tick in range(5)]),
        ('cosine {"num_cycles": 1.0}', {}, [0.5 * (1 + math.cos(2 * math.pi * tick / 5)) for tick in range(5)]),
        (
            'cosine_with_min_lr {"min_lr_rate": 0.1}',
            {},
            [0.1 + 0.45 * (1 + math.cos(math.pi * t / 5)) for t in range(5)],
        ),
        ('constant {"warmup_start_rate": 0.5}', {"warmup_steps": 2}, [0.5, 0.75, 1.0, 1.0, 1.0]),
    ],
)
def test_a_schedule_gives_the_rate_of_each_tick(schedule: str, fields: dict[str, Any], rates: list[float]) -> None:
    curve = ScheduleRates(Carried(learning_rate=1.0, lr_schedule=schedule, **fields), 5)
    assert [curve.rate(tick) for tick in range(5)] == pytest.approx(rates, abs=1e-12)


@pytest.mark.parametrize("schedule", ["greedy", 'cosine {"timescale": 1}', 'cosine {"num_cycles": "x"}', "linear [1]"])
def test_a_schedule_that_is_not_known_is_refused_by_name(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"is not recomputed|is not a JSON mapping"):
        ScheduleRates(Carried(learning_rate=1.0, lr_schedule=schedule), 5)


def test_a_share_of_the_run_may_be_rounded_either_way(ledger: Ledger) -> None:
    spec = SCHEDULED.replace(**{"carried.warmup_ratio": 0.4})  # 1.6 ticks
    for name, rates in (("up", [0.0, 5e-4, 1e-3, 1e-3]), ("down", [0.0, 1e-3, 1e-3, 1e-3])):
        edit = lambda step, _, scalars, rates=rates: scalars.update(learning_rate=rates[step])  # noqa: E731
        assert not departed(verify(ledger(name, spec=spec, edit=edit)))
    edit = lambda step, _, scalars: scalars.update(learning_rate=[0.0, 5e-4, 1e-3, 5e-4][step])  # noqa: E731
    assert departed(verify(ledger("neither", spec=spec, edit=edit))) == {"learning rate": [3]}


# ---- the command


def test_the_command_says_what_it_recomputed(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(ledger("run", spec=SCHEDULED))]) == 0
    out = capsys.readouterr().out
    assert "optimizer steps 0 to 3: nothing departs" in out
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"spec": SCHEDULED}, 0),
        ({"spec": SCHEDULED, "edit": at(1, TAMPERINGS["a reward"][0])}, 3),
        ({"spec": SCHEDULED, "mode": "observe"}, 4),
        ({"spec": ORDERED}, 0),
    ],
)
def test_its_exit_code_is_the_verdict(
    ledger: Ledger, fields: dict[str, Any], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ledger("run", **fields)
    assert main(["ledger", "verify", str(folder)]) == code
    capsys.readouterr()
    assert main(["ledger", "verify", str(folder), "--json"]) == code
    (told,) = json.loads(capsys.readouterr().out)["results"]
    assert told["departed"] == sum(check["departed"] for check in told["checks"])
    assert bool(told["departed"]) == (code == 3)


def test_no_ledger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(tmp_path)]) == 2
    assert "ledger verify: " in capsys.readouterr().err


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    peaks = []
    for steps in (200, 2000):
        folder = tmp_path / str(steps)
        spec = SCHEDULED.replace(**{"horizon.optimizer_steps": steps})
        with Writer(folder, header(spec=spec, dataset_size=8)) as writer:
            for step in range(steps):
                rows = [{**row, "prompt": row["prompt"] % 8, "rollout": step} for row in sound_rows(step)]
                writer.append(record(step, rows, epoch=step // 4))
        tracemalloc.start()
        verify(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_step_is_held_against_the_start_that_recorded_it(tmp_path: Path) -> None:
    """A resume with other settings that died before its first record says nothing of the steps before it."""
    with Writer(tmp_path / "run", header(spec=SCHEDULED)) as writer:
        for step in range(4):
            writer.append(record(step, sound_rows(step)))
    other = SCHEDULED.replace(**{"rollout.completions_per_prompt": 1, "rollout.prompts_per_rollout": 4})
    Writer(tmp_path / "run", header(spec=other, started="resumed", at_step=2)).close()
    found = verify(tmp_path / "run")
    assert not departed(found)
    assert {one.name: one.held for one in found.checks}["membership"] == 4


def test_denominators_alone_do_not_say_what_was_applied(tmp_path: Path) -> None:
    with Writer(tmp_path / "run", header(spec=SCHEDULED)) as writer:
        for step in range(4):
            writer.append(record(step, [{**row, "weights": None} for row in sound_rows(step)]))
    found = verify(tmp_path / "run")
    assert not found.decided
    assert skipped(found)["weights"] == ["the run recorded denominators, and did not measure its weights"]

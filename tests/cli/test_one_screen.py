"""The first screen of `check` and `explain`: the line of the file, the ways out with what they make of the run, lanes,
and nothing wider than the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import batchbridge
from batchbridge.cli._tables import _folded, _table_on_terminal
from batchbridge.meaning.findings import Fix
from batchbridge.reading import ways_out as tried_ways
from batchbridge.reading.read import read

RECIPE = """\
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
num_generations: 14
"""
UNDER = {"framework": "trl", "version": "1.16.0"}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    return file


def rows_of(text: str) -> list[list[str]]:
    """The rows of the table of ways out."""
    lines = text.partition("ways out, with")[2].splitlines()[2:]
    return [re.split(r"  +", line.strip()) for line in lines if line.startswith("      ") and "more (-v)" not in line]


def test_each_way_out_has_the_sizes_of_the_run_that_comes_of_it(recipe: Path) -> None:
    found = batchbridge.check(recipe, world_size=8, **UNDER)
    rows = rows_of(found.text(verbose=True))
    assert len(rows) == len(found.findings[0].fixes) == 7
    assert [row.pop(0) for row in rows] == [str(number) for number in range(1, 8)]
    for fix, devices, completions, prompts in rows:
        key, _, value = fix.partition(" = ")
        sizes = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14}
        sizes |= {"num_processes": 8, key: int(value)}
        step = sizes["per_device_train_batch_size"] * sizes["gradient_accumulation_steps"] * sizes["num_processes"]
        assert int(devices) == sizes["num_processes"]
        assert int(completions) == step
        assert int(prompts) * sizes["num_generations"] == step


def test_the_devices_that_were_asked_for_are_kept_first(recipe: Path) -> None:
    devices = [row[2] for row in rows_of(batchbridge.check(recipe, world_size=8, **UNDER).text(verbose=True))]
    assert devices == sorted(devices, key=lambda one: one != "8")
    assert {"7", "8", "14"} == set(devices)


def test_a_way_out_that_mends_nothing_is_no_row(recipe: Path) -> None:
    reading = read(recipe, world_size=8, **UNDER)
    tried = tried_ways.trying(recipe, reading, "BB-TRL-021", world_size=8)
    assert tried(Fix("num_generations = 16", {"num_generations": 16})) is not None
    assert tried(Fix("num_generations = 12", {"num_generations": 12})) is None


def test_a_way_out_that_breaks_another_rule_is_no_row(recipe: Path) -> None:
    """Its own rule is kept: a group of one fits every size, and TRL takes none of one."""
    reading = read(recipe, world_size=8, **UNDER)
    again = read({"per_device_train_batch_size": 16, "num_generations": 1}, world_size=8, **UNDER)
    assert again.verdict == "invalid"
    assert "BB-TRL-021" not in {one.code for one in again.findings}
    tried = tried_ways.trying(recipe, reading, "BB-TRL-021", world_size=8)
    assert tried(Fix("num_generations = 1", {"num_generations": 1})) is None


def test_an_error_shows_its_line_with_the_value_marked(recipe: Path) -> None:
    text = batchbridge.check(recipe, world_size=8, **UNDER).text()
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith("| per_device_train_batch_size: 16"))
    marked = lines[at + 1]
    assert lines[at][marked.index("^") : marked.rindex("^") + 1] == "16"


def test_no_line_is_shown_where_the_file_says_something_else_by_now(recipe: Path) -> None:
    found = batchbridge.check(recipe, world_size=8, **UNDER)
    recipe.write_text("seed: 1\n", encoding="utf-8")
    assert " | " not in found.text()


def test_a_secret_in_the_line_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    key = "hf_" + "a1B2" * 9
    file.write_text(f"{{num_generations: 1, hub_token: {key}, per_device_train_batch_size: 8}}\n", encoding="utf-8")
    assert key not in batchbridge.check(file, world_size=1, **UNDER).text(verbose=True)


def test_lanes_have_one_width_and_what_the_next_one_shows_is_filled(recipe: Path) -> None:
    text = batchbridge.explain(recipe, world_size=7, **UNDER).text()
    drawn = [line for line in text.splitlines() if "\u2588" in line or "\u2591" in line]
    bars = [re.findall("[\u2588\u2591\u2502]+", line)[0] for line in drawn]
    assert [line.split("  ")[1] for line in drawn] == ["rollout", "optimizer steps", "devices", "micro-batches"]
    assert {len(bar) for bar in bars} == {24}
    assert bars[2].startswith("\u2588\u2502\u2591")  # one of seven devices
    assert "\u2588" not in bars[-1]


def test_without_v_explain_has_what_is_set_and_with_it_everything(recipe: Path) -> None:
    explained = batchbridge.explain(recipe, world_size=7, **UNDER)
    short, long = explained.text(), explained.text(verbose=True)
    assert "num_generations = 14 (:3)" in short
    assert "objective.clip_low" not in short
    assert "objective.clip_low" in long
    assert len(short.splitlines()) <= 25


@pytest.mark.parametrize("width", [60, 80, 120])
def test_folded_lines_fit_have_all_words_and_hang(recipe: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    text = batchbridge.check("recipe.yaml", world_size=8, **UNDER).text(verbose=True)
    folded = list(_folded(text, width))
    assert max(map(len, folded)) <= width
    assert " ".join(folded).split() == text.split()
    error = next(number for number, line in enumerate(folded) if line.startswith("  error"))
    assert folded[error + 1].startswith("    ")


def test_a_word_wider_than_the_terminal_stays_whole() -> None:
    path = "/data/" + "x" * 90
    assert list(_folded(f"  at: {path} is there", 40)) == ["  at:", f"    {path}", "    is there"]


def test_a_table_that_is_too_wide_is_a_record_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("actor_rollout_ref.actor.ppo_mini_batch_size = 24", "8", "1,024")]
    monkeypatch.setenv("COLUMNS", "120")
    assert "\u2500" in _table_on_terminal(("fix", "devices", "completions"), rows)
    monkeypatch.setenv("COLUMNS", "60")
    said = _table_on_terminal(("fix", "devices", "completions"), rows)
    assert said == "actor_rollout_ref.actor.ppo_mini_batch_size = 24\n  devices 8, completions 1,024"


def test_a_step_that_takes_no_second_rollout_is_drawn_with_what_it_trains() -> None:
    """verl pads a rollout that is less than a step: the step has room for 16,384 completions, and trains on 2,048."""
    words = {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 128,
        "actor_rollout_ref.rollout.n": 16,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 1024,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    }
    explained = batchbridge.explain(words, framework="verl", version="0.9.1", dataset_size=12_800)
    text = str(explained)
    assert "An optimizer step has room for 16,384 completions, and trains on the 2,048 of one rollout." in text
    assert "which has room for 16,384 completions and trains on this rollout's" in text
    assert "An optimizer step trains on 16,384" not in text
    assert "8 for one step" not in text
    assert "3,000 optimizer steps and 3,000 rollouts in all" in text

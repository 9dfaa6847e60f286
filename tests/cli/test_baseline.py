"""`check --baseline`: findings that a project lives with for now, and new ones that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
CHECK = ("check", "recipe.yaml", "--output-format", "concise", "--baseline", "known.json")


@pytest.fixture
def uneven(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("step: 8", "step: 9"), encoding="utf-8")
    return recipe


def test_what_is_written_does_not_count_and_what_is_new_does(run: Run, uneven: Path) -> None:
    assert run(*CHECK, "--write-baseline") == (0, "", "known.json: 4 findings written\n")
    assert run(*CHECK) == (0, "", "not counted: BB-TOY-003, BB121, BB123, BB141\n")
    code, out, _ = run(*CHECK, "--set", "toy.stpe=1")
    assert (code, out) == (2, "recipe.yaml: BB-TOY-001 error: toy.stpe is unknown\n")


def test_a_line_may_move_and_a_value_may_not(run: Run, uneven: Path) -> None:
    run(*CHECK, "--write-baseline")
    text = uneven.read_text(encoding="utf-8")
    uneven.write_text("\n\n" + text, encoding="utf-8")
    assert run(*CHECK)[0] == 0
    uneven.write_text(text.replace("step: 9", "step: 11"), encoding="utf-8")
    assert run(*CHECK)[0] == 2


def test_another_file_with_the_same_fault_is_new(run: Run, uneven: Path) -> None:
    run(*CHECK, "--write-baseline")
    Path("other.yaml").write_text(uneven.read_text(encoding="utf-8"), encoding="utf-8")
    assert run("check", "other.yaml", "--baseline", "known.json")[0] == 2


def test_paths_are_seen_from_the_baseline(run: Run, uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*CHECK, "--write-baseline")
    found = json.loads(Path("known.json").read_text(encoding="utf-8"))["findings"]
    assert {one["file"] for one in found} == {"recipe.yaml"}
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert run("check", "../recipe.yaml", "--baseline", "../known.json")[0] == 0


def test_what_is_ignored_is_not_written(run: Run, uneven: Path) -> None:
    run(*CHECK, "--write-baseline", "--ignore", "BB-TOY,BB14")
    found = json.loads(Path("known.json").read_text(encoding="utf-8"))["findings"]
    assert [one["code"] for one in found] == ["BB121", "BB123"]
    assert run(*CHECK)[0] == 2


def test_writing_again_begins_anew(run: Run, uneven: Path) -> None:
    run(*CHECK, "--write-baseline")
    uneven.write_text(uneven.read_text(encoding="utf-8").replace("step: 9", "step: 8"), encoding="utf-8")
    assert run(*CHECK, "--write-baseline")[2] == "known.json: 0 findings written\n"


def test_a_file_that_cannot_be_read_is_in_no_baseline(run: Run, recipe: Path) -> None:
    recipe.write_text("toy: [8\n", encoding="utf-8")
    run(*CHECK, "--write-baseline")
    assert run(*CHECK)[0] == 2


def test_the_project_names_it_once(run: Run, uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text("[tool.batchbridge]\nbaseline = 'known.json'\n", encoding="utf-8")
    run("check", "recipe.yaml", "--write-baseline")
    assert run("check", "recipe.yaml")[0] == 0
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert run("check", "../recipe.yaml")[0] == 0


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "3", '{"batchbridge_baseline": 2, "findings": []}', '{"batchbridge_baseline": 1}', "[" * 9999],
)
def test_what_is_no_baseline_is_a_mistake(text: str, run: Run, uneven: Path) -> None:
    Path("known.json").write_text(text, encoding="utf-8")
    code, out, err = run(*CHECK)
    assert (code, out) == (64, "")
    assert "baseline known.json: this is not a baseline" in err


def test_a_baseline_that_is_not_there_is_named(run: Run, uneven: Path) -> None:
    code, _, err = run(*CHECK)
    assert (code, "--write-baseline writes it" in err) == (64, True)
    assert run("check", "recipe.yaml", "--write-baseline")[0] == 64
    assert run("check", "recipe.yaml", "--write-baseline", "--baseline", "no/where.json")[0] == 64

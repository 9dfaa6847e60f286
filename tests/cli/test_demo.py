"""`batchbridge demo` writes the recipe of the pages, and never over a file of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.cli import demo
from batchbridge.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_shipped_recipe_is_the_one_of_the_pages() -> None:
    assert demo.RECIPE.read_bytes() == (ROOT / "examples" / "recipe.yaml").read_bytes()


def test_what_it_writes_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    assert Path("examples/recipe.yaml").read_bytes() == demo.RECIPE.read_bytes()
    (next_one,) = [line.partition(" says")[0] for line in said.splitlines() if line.startswith("batchbridge ")]
    assert main([*next_one.split()[1:], "--framework-version", "1.16.0", "--gpus", "7"]) == 0
    assert "448 completions" in capsys.readouterr().out


def test_a_second_time_it_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    said = [(main(["demo", "mine.yaml"]), capsys.readouterr().out) for _ in range(2)]
    assert said[0] == said[1]
    assert said[0][0] == 0


def test_a_file_that_is_something_else_stays(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("num_generations: 4\n", encoding="utf-8")
    assert main(["demo", "mine.yaml"]) == 64
    assert Path("mine.yaml").read_text(encoding="utf-8") == "num_generations: 4\n"
    assert "mine.yaml exists already" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("", encoding="utf-8")
    assert main(["demo", "file/recipe.yaml"]) == 64
    assert "file" in capsys.readouterr().err

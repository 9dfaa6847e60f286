"""Files that commands write: nothing of the user's is replaced unasked, and no device by a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli._output import replace_own
from batchbridge.comparing.edit_file import save
from batchbridge.ledger.export import _whole

Run = Callable[..., tuple[int, str, str]]
RECIPE = "num_generations: 8\nper_device_train_batch_size: 8\n"
SAID = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "1", "--dataset-size", "10")


@pytest.fixture
def run(typed: Run) -> Run:
    return typed


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return Path("recipe.yaml")


def test_a_drawing_replaces_a_drawing_and_nothing_else(run: Run, recipe: Path) -> None:
    code, out, err = run("plan", str(recipe), *SAID, "--svg", str(recipe))
    assert (code, out) == (64, "")
    assert "--svg recipe.yaml: the file exists, and was not written by --svg has written" in err
    assert recipe.read_text(encoding="utf-8") == RECIPE
    for _ in range(2):
        assert run("plan", str(recipe), *SAID, "--svg", "plan.svg")[0] == 0


def test_a_page_replaces_a_page_and_nothing_else(run: Run, recipe: Path) -> None:
    pytest.importorskip("jinja2", reason="the extra `html` is not installed")
    code, out, err = run("explain", str(recipe), *SAID, "--html", str(recipe))
    assert (code, out) == (64, "")
    assert "--html recipe.yaml: the file exists, and was not written by --html has written" in err
    assert recipe.read_text(encoding="utf-8") == RECIPE
    for _ in range(2):
        assert run("explain", str(recipe), *SAID, "--html", "page.html")[0] == 0


def test_an_empty_file_and_what_is_no_file_are_written_to(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    replace_own("--html", str(empty), "<!doctype html>\n", lambda: "<!doctype html>\nnew")
    assert empty.read_text(encoding="utf-8") == "<!doctype html>\nnew"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_own("--html", str(pipe), "<!doctype html>\n", lambda: "new")
        assert os.read(reader, 10) == b"new"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_no_file_takes_the_place_of_a_pipe_or_a_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        save("text", pipe)
    with pytest.raises(OSError, match="not a regular file"), _whole(pipe) as begun:
        begun.write_text("text", encoding="utf-8")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_table_and_its_beginning_leave_the_files_of_others_alone(tmp_path: Path) -> None:
    beside, link = tmp_path / "run.csv.part", tmp_path / "link.csv"
    beside.write_text("mine", encoding="utf-8")
    link.symlink_to("run.csv")
    with _whole(link) as begun:
        begun.write_text("rows", encoding="utf-8")
    assert beside.read_text(encoding="utf-8") == "mine"
    assert link.is_symlink()
    assert (tmp_path / "run.csv").read_text(encoding="utf-8") == "rows"


def test_a_schema_and_a_conversion_are_written_whole_and_only_where_nothing_is(run: Run, recipe: Path) -> None:
    for words in (("schema",), ("convert", str(recipe), *SAID, "--to", "open_r1", "--allow-lossy")):
        Path("out").write_text("mine", encoding="utf-8")
        code, _, err = run(*words, "-o", "out")
        assert (code, "--overwrite replaces it" in err) == (64, True), words
        assert Path("out").read_text(encoding="utf-8") == "mine"
        assert run(*words, "-o", "out", "--overwrite")[0] == 0, words
        assert Path("out").read_text(encoding="utf-8") != "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["out", "recipe.yaml"]

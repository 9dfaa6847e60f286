"""The folders of a user's repository: to its root, and no further."""

from __future__ import annotations

from pathlib import Path

from batchbridge.reading.documents import LEVELS, folders_above, root_of


def test_folders_end_at_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "mine" / ".git").mkdir(parents=True)
    file = tmp_path / "mine" / "a" / "b" / "run.sh"
    assert [*folders_above(file)] == [file.parents[0], file.parents[1], tmp_path / "mine"]
    assert root_of(file) == tmp_path / "mine"


def test_a_work_tree_whose_git_is_a_file_is_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n", encoding="utf-8")
    assert root_of(tmp_path / "run.sh") == tmp_path


def test_without_a_root_some_folders_are_looked_through(tmp_path: Path) -> None:
    file = tmp_path.joinpath(*("a",) * (LEVELS + 2), "run.sh")
    assert len([*folders_above(file)]) == LEVELS
    assert root_of(file) is None

"""What is read from the files of an environment is what `importlib.metadata` says of it."""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge import distributions

Install = Callable[..., None]


def said(points: object) -> list[tuple[str, str, str, str]]:
    return sorted((one.name, one.value, one.dist.name, one.dist.version) for one in points)  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", ["batchbridge", "pytest11", "console_scripts", "no such group"])
def test_entry_points_are_those_of_importlib_metadata(group: str) -> None:
    assert said(distributions.entry_points(group)) == said(importlib.metadata.entry_points(group=group))


def test_plugins_are_found_without_importlib_metadata() -> None:
    assert said(distributions._read("batchbridge")) == said(importlib.metadata.entry_points(group="batchbridge"))


def test_versions_are_those_of_importlib_metadata() -> None:
    names = {one.name for one in importlib.metadata.distributions()}
    assert {name: distributions.version(name) for name in names} == {
        name: importlib.metadata.version(name) for name in names
    }
    assert distributions.version("no-such-distribution") is None


def test_a_name_is_found_however_it_is_spelled(install: Install) -> None:
    install("some_thing.more", "", module="some_thing")
    assert distributions.version("Some-Thing_More") == "1.0" == importlib.metadata.version("Some-Thing_More")


def test_the_first_distribution_of_a_name_counts(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("twice", "", module="behind")
    first = tmp_path / "first" / "twice-2.0.dist-info"
    first.mkdir(parents=True)
    (first / "METADATA").write_text("Metadata-Version: 2.1\nName: twice\nVersion: 2.0\n", encoding="utf-8")
    (first / "entry_points.txt").write_text("[batchbridge]\nbefore = before\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(first.parent))
    found = said(distributions._read("batchbridge"))
    assert ("before", "before", "twice", "2.0") in found
    assert "behind" not in {name for name, *_ in found}
    assert found == said(importlib.metadata.entry_points(group="batchbridge"))


ODD = {
    "an attribute": ("[batchbridge]\nodd = behind:plugin\n", True),
    "an extra": ("[batchbridge]\nodd = behind [more]\n", True),
    "blanks, remarks and other groups": ("# all\n[other]\nodd = x\n\n[batchbridge]\n# mine\n odd =  behind \n", False),
    "a group of a similar name": ("[batchbridge.more]\nodd = behind\n[batchbridge]\nodd = behind\n", True),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_lines_are_read_as_importlib_metadata_reads_them(install: Install, site: Path, kind: str) -> None:
    text, left = ODD[kind]
    install("odd", "plugin = object()", module="behind")
    (site / "odd-1.0.dist-info" / "entry_points.txt").write_text(text, encoding="utf-8")
    assert said(distributions.entry_points("batchbridge")) == said(importlib.metadata.entry_points(group="batchbridge"))
    if left:
        with pytest.raises(distributions._Unusual):
            list(distributions._read("batchbridge"))


def test_an_archive_on_the_path_is_left_to_importlib_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 3.0\n")
        archive.writestr("packed-3.0.dist-info/entry_points.txt", "[batchbridge]\npacked = packed\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    assert ("packed", "packed", "packed", "3.0") in said(distributions.entry_points("batchbridge"))
    assert distributions.version("packed") == "3.0"

"""Installed distributions are found as `importlib.metadata` finds them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge import distributions


def every(group: str) -> set[tuple[str, str, str, str]]:
    """Name, value, distribution and version of every entry point of a group, as found here."""
    return {
        (one.name, one.value, one.dist.metadata["Name"], one.dist.metadata["Version"])
        for one in distributions.entry_points(group)
        if one.dist is not None
    }


def in_metadata(group: str) -> set[tuple[str, str, str, str]]:
    """The same, as `importlib.metadata` finds them."""
    return {
        (one.name, one.value, one.dist.name, one.dist.version)
        for one in importlib.metadata.entry_points(group=group)
        if one.dist is not None
    }


@pytest.mark.parametrize("group", ["batchbridge", "console_scripts", "pytest11", "no such group"])
def test_entry_points_are_those_of_the_metadata(group: str) -> None:
    assert every(group) == in_metadata(group)


def test_every_distribution_has_the_version_of_its_metadata() -> None:
    for one in importlib.metadata.distributions():
        assert distributions.installed(one.name) == importlib.metadata.version(one.name)


@pytest.mark.parametrize("name", ["Some.Plugin", "some_plugin", "some--plugin"])
def test_a_name_is_found_however_it_is_spelt(install: Callable[..., None], name: str) -> None:
    install("some_plugin", "", module="some_module")
    assert distributions.installed(name) == "1.0"
    assert distributions.version(name) == "1.0"


def test_one_that_is_not_installed_has_no_version() -> None:
    assert distributions.installed("no-such-distribution") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        distributions.version("no-such-distribution")


def test_the_first_of_one_name_on_the_path_counts(site: Path, install: Callable[..., None]) -> None:
    install("pluggy", "", module="other_pluggy", entry_point="other")
    assert every("batchbridge") == in_metadata("batchbridge")
    assert ("other", "other_pluggy", "pluggy", "1.0") in every("batchbridge")
    assert distributions.installed("pluggy") == "1.0"


def test_what_an_archive_has_is_found_through_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 3.0\n")
        archive.writestr("packed-3.0.dist-info/entry_points.txt", "[batchbridge]\npacked = packed\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    assert distributions.installed("packed") == "3.0"
    assert ("packed", "packed", "packed", "3.0") in every("batchbridge")


def test_an_entry_point_loads_what_it_names() -> None:
    made = [
        importlib.metadata.EntryPoint("one", value, "group")
        for value in ("os.path:join", "os", "os:path.join", "json : JSONDecoder.decode", "os:path [extra]")
    ]
    for one in made:
        assert distributions.EntryPoint(one.name, one.value, distributions.Distribution("")).load() is one.load()


def test_looking_does_not_import_the_metadata() -> None:
    code = (
        "import sys; from batchbridge import distributions as d; "
        "print(len(list(d.entry_points('batchbridge'))), d.installed('pluggy'), 'importlib.metadata' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) >= 7
    assert said[1:] == [importlib.metadata.version("pluggy"), "False"]

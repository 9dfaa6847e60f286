"""What an installed BatchBridge has, however it was installed (wheel, source distribution, editable)."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FIRST_PARTY = {
    name: f"batchbridge_{name}" for name in ("trl", "open_r1", "openrlhf", "open_instruct", "verl", "easyr1", "history")
}


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("batchbridge")


@pytest.mark.parametrize("package", ["bashread", "pyread", "batchbridge", *FIRST_PARTY.values()])
def test_each_source_root_is_installed(package: str) -> None:
    assert find_spec(package) is not None


@pytest.mark.parametrize("package", ["bashread", "pyread", "batchbridge", *FIRST_PARTY.values()])
def test_each_package_says_that_it_is_typed(package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


@pytest.mark.parametrize("folder", ["render/pages", "playground/page"])
def test_the_files_of_pages_are_installed(folder: str) -> None:
    spec = find_spec("batchbridge")
    assert spec is not None
    assert spec.origin is not None
    installed, here = Path(spec.origin).parent / folder, Path(__file__).parents[2] / "src" / "batchbridge" / folder
    names = {file.name for file in here.iterdir() if file.is_file()}
    assert {file.name for file in installed.iterdir() if file.is_file()} == names
    assert len(names) > 2


def test_adapters_are_ordinary_entry_points(distribution: importlib.metadata.Distribution) -> None:
    found = {entry.name: entry.value for entry in distribution.entry_points if entry.group == "batchbridge"}
    assert found == FIRST_PARTY


def test_the_command_line_is_a_script(distribution: importlib.metadata.Distribution) -> None:
    scripts = distribution.entry_points.select(group="console_scripts")
    assert {script.name: script.value for script in scripts} == {"batchbridge": "batchbridge.cli.main:main"}


def test_every_entry_point_loads(distribution: importlib.metadata.Distribution) -> None:
    for entry in distribution.entry_points:
        if entry.group != "pytest11":  # loaded by the running pytest already
            entry.load()


def test_frameworks_are_extras_only(distribution: importlib.metadata.Distribution) -> None:
    plain = {line.split(";")[0] for line in distribution.requires or () if "extra ==" not in line}
    assert not [
        name for name in plain if name.startswith(("torch", "trl", "verl", "openrlhf", "hydra", "transformers"))
    ]
    extras = {"trl", "verl", "openrlhf", "try-verl", "try-openrlhf", "hydra", "speed", "html", "parquet", "remote"}
    extras |= {"editor"}
    assert set(distribution.metadata.get_all("Provides-Extra") or ()) == extras


@pytest.mark.parametrize("code", ["BB-TRL-021", "BB-VERL-004", "BB-EZR1-023", "BB-ORL-036", "BB-OI-077"])
def test_a_rule_prints_its_whole_page_without_the_documentation(code: str, tmp_path: Path) -> None:
    """The command is a rule's address: no commit has the pages, and no wheel."""
    line = [sys.executable, "-m", "batchbridge", "rule", code]
    said = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"# {code}: ")
    assert "## Versions" in said
    assert "## Example" in said

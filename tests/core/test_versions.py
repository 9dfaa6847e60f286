"""Ranges of versions."""

from __future__ import annotations

import pytest

import batchbridge
from batchbridge.findings import Where
from batchbridge.versions import holds, installed, unknown_version


@pytest.mark.parametrize("version", ["9" * 5000, "0.9." + "9" * 5000, "\0", "latest"])
@pytest.mark.parametrize("framework", ["trl", "open_r1", "verl", "easyr1", "openrlhf", "open_instruct"])
def test_a_version_that_no_release_has_is_a_finding(framework: str, version: str) -> None:
    reading = batchbridge.read({"seed": 1}, framework=framework, version=version)
    assert [finding.code.rpartition("-")[2] for finding in reading.findings] == ["002"]


@pytest.mark.parametrize(
    ("versions", "version", "expected"),
    [
        ("", "0.1", True),
        (">=1,<2", "1.9.1", True),
        (">=1,<2", "2.0", False),
        (">=0.3.2", "0.3.3.dev0", True),
        ("<0.10.1", "0.10.1.post2", False),
    ],
)
def test_a_version_lies_in_a_range(versions: str, version: str, expected: bool) -> None:
    assert holds(versions, version) == expected


def test_what_is_installed_is_told_without_importing_it() -> None:
    assert installed("pytest") == pytest.__version__
    assert installed("no-such-distribution") is None
    assert installed(None) is None


def test_a_missing_version_leaves_it_undecided_and_names_one() -> None:
    found = unknown_version(
        "toy", None, known=">=1,<3", newest="2.0", codes=("BB-TOY-001", "BB-TOY-002"), hint="; or 1.5"
    )
    assert (found.code, found.severity, found.undecided) == ("BB-TOY-001", "warning", True)
    assert found.message.endswith("known are >=1,<3; or 1.5")
    assert "2.0" in found.fixes[0].text


def test_a_version_outside_the_range_is_an_error_at_the_version() -> None:
    found = unknown_version("toy", "9.0", known=">=1,<3", newest="2.0", codes=("BB-TOY-001", "BB-TOY-002"))
    assert (found.code, found.severity, found.undecided) == ("BB-TOY-002", "error", False)
    assert found.message == "toy 9.0 is not known here; known are >=1,<3"
    assert found.where == (Where("framework version", "9.0"),)

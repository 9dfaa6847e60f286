"""Ranges of versions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from packaging.specifiers import SpecifierSet

import batchbridge
from batchbridge.kit.versions import holds, installed, release_after, unknown_version
from batchbridge.meaning.findings import Where


@pytest.mark.parametrize("version", ["9" * 5000, "0.9." + "9" * 5000, "\0", "newest"])
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


NUMBERS = ("0", "0.3.3", "0.8.1", "0.16", "0.16.0", "0.16.2", "01.2", "1.2", "1.2.0.0", "1.10", "2025.11.3")
OTHERS = (
    "1.2rc1",
    "0.16.0.dev0",
    "0.8.1.post1",
    "0.8.1.post2",
    "1.2.0.post0",
    "1.2.post10",
    "0.16.2.post1.dev0",
    "1.2+cpu",
    "v1.2",
    " 1.2",
    "1!1.2",
    "1.2.",
    "none",
    "",
)
BOUNDS = (
    *(f"{sign}{number}" for sign in (">=", "<=", "==", "!=", ">", "<", "~=", "===") for number in NUMBERS),
    *(
        ">=0.3.3.dev0",
        "<0.3.3.dev0",
        "<=0.3.3.dev0",
        *(f"{sign}0.8.1.post1" for sign in (">=", "<=", "==", "!=", ">")),
        *(f"{sign}1.2.post2" for sign in (">=", "<=", "==", "!=", ">", "<")),
        ">0.8.1.dev0",
        "<0.8.1.post1",
        "!=0.16.*",
        "==1.*",
        "==1.2.0.0.0.*",
    ),
    *("<1.2rc1", ">= 1.2", ">=", "1.2", ",", ">=1..2", ">=.1", ">=1.2.dev0.*", "<1.*"),
)


def said(ask: Callable[[], bool]) -> bool | type[Exception]:
    try:
        return ask()
    except ValueError as error:
        return type(error)


@pytest.mark.parametrize("version", [*NUMBERS, *OTHERS])
def test_ranges_hold_as_packaging_has_them(version: str) -> None:
    for versions in [*BOUNDS, *(f"{one},{other}" for one, other in itertools.pairwise(BOUNDS))]:
        expected = said(partial(packaging_says, versions, version))
        assert said(partial(holds, versions, version)) == expected, versions


def packaging_says(versions: str, version: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def test_a_missing_version_leaves_it_undecided_and_names_one() -> None:
    found = unknown_version(
        "toy", None, known=">=1,<3", newest="2.0", codes=("BB-TOY-001", "BB-TOY-002"), hint="; or 1.5"
    )
    assert (found.code, found.severity, found.undecided) == ("BB-TOY-001", "warning", True)
    assert found.message.endswith("known are >=1,<3; or 1.5")
    assert "2.0" in found.fixes[0].text


def test_a_version_outside_the_range_leaves_the_run_open_at_the_version() -> None:
    found = unknown_version("toy", "9.0", known=">=1,<3", newest="2.0", codes=("BB-TOY-001", "BB-TOY-002"))
    assert (found.code, found.severity, found.undecided) == ("BB-TOY-002", "error", True)
    assert found.message == "toy 9.0 is not known here; known are >=1,<3"
    assert found.where == (Where("framework version", "9.0"),)


ORDERED = ("0.3.0", "0.3.3.dev0", "0.3.3.dev1", "0.3.3", "0.3.3.post1", "0.4.dev0")


@pytest.mark.parametrize("sign", ["<", "<=", ">=", "==", "!=", ">"])
def test_development_releases_are_ordered_as_packaging_orders_them(sign: str) -> None:
    for bound, version in itertools.product(ORDERED, ORDERED):
        expected = SpecifierSet(sign + bound).contains(version, prereleases=True)
        assert holds(sign + bound, version) == expected, (sign + bound, version)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        *(
            (version, "0.10.2")
            for version in ("0.10.2rc1", "0.10.2.dev0", "0.10.2rc1.dev3", "0.10.2-beta.2", "0.10.2.pre1")
        ),
        ("0.10.2.dev20260101+gabcdef", "0.10.2"),
        *((version, "") for version in ("0.10.2", "0.10.2.post1", "0.10.2.post1.dev2", "0.10.2+cu128", "dev", "")),
    ],
)
def test_the_release_that_a_version_comes_before(version: str, release: str) -> None:
    assert release_after(version) == release


OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --{rollout}batch_size 64 --{train}batch_size 64"
COMMANDS = {
    "verl": "python3 -m verl.trainer.main_ppo data.train_batch_size=96 actor_rollout_ref.actor.ppo_mini_batch_size=96",
    "easyr1": "python3 -m verl.trainer.main config=examples/config.yaml",
    "open_instruct": "python open_instruct/grpo_fast.py --num_learners_per_node 2",
    "flat": OPENRLHF.format(rollout="rollout_", train="train_"),
    "dotted": OPENRLHF.format(rollout="rollout.", train="train."),
}
NEIGHBOURS = {
    "verl": ("0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1", "0.10.0"),
    "easyr1": ("0.3.0", "0.3.1", "0.3.2", "0.3.3"),
    "open_instruct": ("0.1.0", "0.2.0", "0.3.0", "2026.8.20"),
    "openrlhf": ("0.8.0", "0.9.0", "0.10.0", "0.10.1", "0.10.2", "0.10.3", "0.11.0", "0.11.2", "0.12.0"),
}


def judged(framework: str, version: str, words: str) -> tuple[str, set[str]]:
    reading = batchbridge.read(COMMANDS[words].split(), framework=framework, version=version)
    return reading.verdict, {one.code for one in reading.findings if one.severity == "error"}


@pytest.mark.parametrize("framework", NEIGHBOURS)
@pytest.mark.parametrize("suffix", ["rc1", "rc1.dev2", ".dev0", ".post1"])
def test_what_lies_beside_a_release_has_a_neighbours_verdict_or_none(framework: str, suffix: str) -> None:
    releases = NEIGHBOURS[framework]
    for words in ("flat", "dotted") if framework == "openrlhf" else (framework,):
        known = [judged(framework, release, words) for release in releases]
        for at, release in enumerate(releases):
            verdict, codes = judged(framework, f"{release}{suffix}", words)
            assert verdict == "undecided" or (verdict, codes) in known[max(at - 1, 0) : at + 2], f"{release}{suffix}"

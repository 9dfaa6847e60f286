"""One place for each bound of a version: the records of known code and the adapters' tables."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.evidence import Code
from batchbridge.kit.proven import records
from batchbridge.kit.shipped_settings import shipped
from batchbridge.kit.versions import holds
from batchbridge.reading.toml import parse_toml

EXTRAS = ("trl", "verl", "openrlhf")
ADAPTERS = (*EXTRAS, "easyr1", "open_instruct", "open_r1")


def code_of(framework: str) -> Code:
    found: Code = importlib.import_module(f"batchbridge_{framework}.proven").CODE
    return found


def bounds(code: Code) -> Iterator[str]:
    """What an extra asks for: the oldest supported version and newer ones, without the minor versions of which no
    release is known though a newer one is; without what only some runs use. A release of next week is for `wrap` to
    look at."""
    known = records(code.home)
    for package in code.used().packages:
        releases = known[package.name].known
        oldest = code.oldest if package is code.packages[0] else releases[0]
        without = "".join(f",!={minor}.*" for minor in holes(releases))
        yield f"{package.distribution}>={oldest}{without}"


def holes(releases: Sequence[str]) -> Iterator[str]:
    """Minor versions between the first and the last release that none of these is of; of a new major one from 0 on."""
    parts = [tuple(map(int, release.split(".")[:2])) for release in releases]
    for (major, minor), (next_major, next_minor) in pairwise(parts):
        for missing in range(minor + 1 if major == next_major else 0, next_minor):
            yield f"{next_major}.{missing}"


def test_minor_versions_that_are_not_known_are_holes() -> None:
    assert list(holes(["4.52.3", "4.55.0", "4.55.4", "5.2.1", "5.3.0"])) == ["4.53", "4.54", "5.0", "5.1"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_has_lower_bounds_alone(repository: Path, extra: str) -> None:
    project = parse_toml((repository / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml").value["project"]
    assert project["optional-dependencies"][extra] == list(bounds(code_of(extra)))


@pytest.mark.parametrize("framework", ADAPTERS)
def test_what_is_read_and_wrapped_has_no_upper_bound(framework: str) -> None:
    adapter = plugins.adapters()[framework]
    assert "<" not in adapter.versions
    assert "<" not in adapter.enforced_versions
    assert holds(adapter.versions, adapter.newest_version)


@pytest.mark.parametrize("framework", ADAPTERS)
def test_what_is_wrapped_begins_with_the_oldest_version_of_its_code(framework: str) -> None:
    adapter = plugins.adapters()[framework]
    code = adapter.code()
    assert code is not None
    first = records(code.home)[code.packages[0].name]
    assert adapter.enforced_versions == f">={code.oldest or first.known[0]}"
    assert first.known[0] == (code.oldest or first.known[0]), "the oldest supported version is not recorded"


def pinned(repository: Path, name: str, *environments: str) -> set[str]:
    """The versions of a package in constraints/<environment>.txt."""
    texts = ((repository / "constraints" / f"{one}.txt").read_text(encoding="utf-8") for one in environments)
    return {found for text in texts for found in re.findall(rf"(?m)^{name}==(.+)$", text)}


def releases_with(repository: Path, name: str) -> dict[str, tuple[str, ...]]:
    """A table of the noxfile: releases that a session runs, and what they run with."""
    for node in ast.parse((repository / "noxfile.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            found: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return found
    raise AssertionError(f"the noxfile has no {name}")


def with_tests(framework: str, package: str) -> set[str]:
    return set(records(f"batchbridge_{framework}")[package].tested)


def test_trls_tested_engines_are_those_that_its_sessions_install(repository: Path) -> None:
    assert with_tests("trl", "deepspeed") == pinned(repository, "deepspeed", "trl", "trl_oldest")


@pytest.mark.parametrize("package", ["trl", "transformers", "accelerate"])
def test_trls_tested_releases_are_those_that_its_sessions_install(repository: Path, package: str) -> None:
    table = releases_with(repository, "TRL_WITH")
    by_name = {"trl": set(table)} | {
        one: {beside[place] for beside in table.values()} for place, one in enumerate(("transformers", "accelerate"))
    }
    assert with_tests("trl", package) == pinned(repository, package, "trl", "trl_oldest") | by_name[package]


def test_verls_tested_releases_are_those_that_its_sessions_install(repository: Path) -> None:
    earlier = (f"verl_{release}" for release in ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0"))
    assert with_tests("verl", "verl") == pinned(repository, "verl", "verl", *earlier)


def test_openrlhfs_tested_releases_are_those_that_its_sessions_install(repository: Path) -> None:
    releases = releases_with(repository, "OPENRLHF_WITH")
    assert with_tests("openrlhf", "openrlhf") == set(releases)
    engines = {word.removeprefix("deepspeed==") for words in releases.values() for word in words if "deepspeed" in word}
    assert with_tests("openrlhf", "deepspeed") == engines


@pytest.mark.parametrize(("package", "distribution"), [("deepspeed", "deepspeed"), ("olmo_core", "ai2-olmo-core")])
def test_open_instructs_tested_engines_are_those_that_its_session_installs(
    repository: Path, package: str, distribution: str
) -> None:
    assert with_tests("open_instruct", package) == pinned(repository, distribution, "open_instruct")


@pytest.mark.parametrize("framework", ["trl", "openrlhf"])
def test_the_tables_hold_every_release_up_to_the_newest(framework: str) -> None:
    adapter = plugins.adapters()[framework]
    for name, table in shipped(f"batchbridge_{framework}").items():
        if name != "TrainingArguments" and not name.endswith("of copies"):
            assert (table.releases[-1], tuple(table.releases)) == (adapter.newest_version, tuple(adapter.releases))
        assert table.settings
        assert all(
            row[0] <= row[1] < len(table.releases) and (row[0] > before[1] + 1 or row[2:] != before[2:])
            for rows in table.settings.values()
            for before, row in pairwise([[-9, -9], *rows])
        ), "rows that overlap, or that are one"

"""docs/api.md is what the source says, and has what an adapter's author looks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import batchbridge


@pytest.fixture(scope="module")
def make_api(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", repository / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(make_api: ModuleType) -> str:
    return str(make_api.page())


def test_the_page_is_what_the_source_says(repository: Path, page: str) -> None:
    assert (repository / "docs" / "api.md").read_text(encoding="utf-8") == page, "python docs/make_api.py"


def test_every_public_name_that_is_defined_somewhere_is_there(make_api: ModuleType, page: str) -> None:
    known = {name for name, module in make_api.exported("batchbridge") if name in make_api.defined(module)}
    assert known >= {"wrap", "read", "convert", "Spec", "Plan", "Reading", "CannotAttach"}
    assert known <= set(batchbridge.__all__)
    assert [name for name in known if f"\n### {name}\n" not in page] == []


@pytest.mark.parametrize(
    "name",
    [
        "Source",
        "Context",
        "Told",
        "Finding",
        "Where",
        "Fix",
        "Variable",
        "Behaviour",
        "Key",
        "Runtime",
        "AttachContract",
    ],
)
def test_what_a_stranger_had_to_look_up_in_the_source_is_there(name: str, page: str) -> None:
    assert f"\n### {name}\n" in page

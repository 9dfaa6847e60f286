"""The built page of the API has what an adapter's author looks for, and links to what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import batchbridge
import batchbridge.kit
import batchbridge.testing


@pytest.fixture(scope="module")
def page(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as the script writes it, without anything installed."""
    file = tmp_path_factory.mktemp("site") / "api.md"
    subprocess.run([sys.executable, "-I", str(repository / "docs" / "make_api.py"), str(file)], check=True)
    return file.read_text(encoding="utf-8")


def test_every_link_of_the_page_leads_to_a_page(repository: Path, page: str) -> None:
    links = set(re.findall(r"\]\(([^)#]+\.md)", page))
    assert "plugins.md" in links
    assert [link for link in links if not (repository / "docs" / link).is_file()] == []


@pytest.mark.parametrize("package", [batchbridge, batchbridge.kit, batchbridge.testing], ids=lambda one: one.__name__)
def test_every_public_name_is_there(package: ModuleType, page: str) -> None:
    assert len(package.__all__) >= 4
    assert [name for name in package.__all__ if f"\n### {name}\n" not in page] == []


def test_every_module_of_the_kit_is_there(repository: Path, page: str) -> None:
    modules = [file.stem for file in (repository / "src" / "batchbridge" / "kit").glob("[a-z]*.py")]
    assert len(modules) > 30
    assert [name for name in modules if f"\n## batchbridge.kit.{name}\n" not in page] == []


@pytest.mark.parametrize(
    "name",
    [
        "Source",
        "Context",
        "FieldValue",
        "Finding",
        "Where",
        "Fix",
        "Phase",
        "Variable",
        "Behaviour",
        "Key",
        "Runtime",
        "AttachContract",
    ],
)
def test_what_a_stranger_had_to_look_up_in_the_source_is_there(name: str, page: str) -> None:
    assert f"\n### {name}\n" in page


@pytest.mark.parametrize(("name", "method"), [("Adapter", "enforces"), ("EvidenceContract", "native_devices")])
def test_a_method_has_its_docstring(name: str, method: str, page: str) -> None:
    entry = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    assert re.search(rf"^- `{method}`: \w.{{20,}}", entry, re.MULTILINE)


def test_every_module_of_the_kit_that_a_page_names_exists(repository: Path) -> None:
    kit = repository / "src" / "batchbridge" / "kit"
    modules = {file.stem for file in kit.glob("*.py")}
    pages = {page.name: page.read_text(encoding="utf-8") for page in (repository / "docs").glob("*.md")}
    named = {(name, word) for name, text in pages.items() for word in re.findall(r"batchbridge\.kit\.(\w+)", text)}
    assert len(named) > 20
    assert (
        sorted((name, word) for name, word in named if word not in modules and word not in batchbridge.kit.__all__)
        == []
    )

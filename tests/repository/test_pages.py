"""`nox -s pages` knows every writer of a generated page, and writes a page whole or not at all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge_on_cpu.scripts import module_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_pages() -> ModuleType:
    return module_at(ROOT / "docs" / "make_pages.py", "make_pages")


def words(make_pages: ModuleType) -> set[str]:
    return {word for step in (*make_pages.EXAMPLES, *make_pages.PAGES, *make_pages.GOLDENS) for word in step.words}


def test_every_maker_of_pages_is_started(make_pages: ModuleType) -> None:
    makers = {f"docs/{file.name}" for file in (ROOT / "docs").glob("make_*.py")} - {"docs/make_pages.py"}
    assert len(makers) >= 3
    assert makers <= words(make_pages)


def test_every_test_file_that_can_write_its_goldens_is_started(make_pages: ModuleType) -> None:
    asking = 'environ.get("BATCHBRIDGE_UPDATE_GOLDEN")'
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)]
    writing = {
        file.relative_to(ROOT).as_posix(): text
        for file in files
        if asking in (text := file.read_text(encoding="utf-8"))
    }
    assert len(writing) >= 5
    assert set(writing) <= words(make_pages)
    for name, text in writing.items():
        (*_, test) = re.findall(r"^def (test_\w+)", text.partition(asking)[0], re.MULTILINE)
        assert any(part in test for part in make_pages.COMPARING.split(" or ")), f"{name}: {test} is not selected"


def test_every_advice_of_a_test_names_a_step(make_pages: ModuleType) -> None:
    files = [*(ROOT / "tests").rglob("test_*.py")]
    advised = {
        script
        for file in files
        for script in re.findall(r'== [^\n]*, "(?:run: )?python (\S+\.py)', file.read_text(encoding="utf-8"))
    }
    assert len(advised) >= 2
    assert advised <= words(make_pages)


def test_every_file_that_a_step_writes_is_there(make_pages: ModuleType) -> None:
    for step in (*make_pages.EXAMPLES, *make_pages.PAGES, *make_pages.GOLDENS):
        assert step.writes
        for pattern in set(step.writes) - set(make_pages.BUILT):
            assert any(ROOT.glob(pattern)), pattern
    assert [step.into for step in make_pages.PAGES if step.into] == ["docs/reported_cases.md"]


def test_pages_that_the_site_builds_are_in_no_commit(make_pages: ModuleType) -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert all(any(pattern.startswith(line) for line in ignored) for pattern in make_pages.BUILT)
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    listed = subprocess.run(
        ["git", "ls-files", "docs/rules", "docs/api.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert listed.stdout == ""


def links_of(page: Path) -> list[str]:
    """Files that a page's links name, outside of blocks of code."""
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    return [name for name in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in name]


def test_no_page_links_to_one_that_only_the_site_has(make_pages: ModuleType) -> None:
    """Who reads the repository has none of those."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md", *(ROOT / "docs").rglob("*.md")]
    built = {file for pattern in make_pages.BUILT for file in ROOT.glob(pattern)}
    kept = [page for page in pages if page not in built]
    assert len(kept) > 40
    links = [(page.relative_to(ROOT).as_posix(), link) for page in kept for link in links_of(page)]
    assert len(links) > 200
    wanted = ("rules/", "api.md")
    assert [one for one in links if one[1].removeprefix("../").removeprefix("docs/").startswith(wanted)] == []


def test_a_step_that_fails_leaves_its_page_as_it_was(
    make_pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    make_pages.run(make_pages.Step(("-c", "print('new')"), (), "page.md"))
    assert page.read_text(encoding="utf-8") == "new\n"
    with pytest.raises(subprocess.CalledProcessError):
        make_pages.run(make_pages.Step(("-c", "print('half'); 1 / 0"), (), "page.md"))
    assert page.read_text(encoding="utf-8") == "new\n"

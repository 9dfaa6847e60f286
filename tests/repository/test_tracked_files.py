"""Nothing that is tracked knows the machine on which it was written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FOLDERS = ("tmp", "work", "root", "opt", "home", "mnt", "Users")
# An absolute path: not the tail of a longer path or of a URL.
MACHINE_PATH = re.compile(rf"(?<![\w.:/~}}\])-])/(?:{'|'.join(FOLDERS)})/")
# Where packages come from is the reader's business; PyTorch's own index is the one that the README may name.
REGISTRY = re.compile(
    r"(?:files\.pythonhosted|artifactory|nexus\.|devpi|/simple\b"
    r"|(?:index[-_]url|find[-_]links)\s*[= ]\s*['\"]?(?:https?|file)://(?!download\.pytorch\.org))",
    re.IGNORECASE,
)


def tracked_files(repository: Path) -> list[Path]:
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout: there are no tracked files")
    listing = subprocess.run(
        ["git", "-C", str(repository), "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout
    files = (repository / name for name in listing.split("\0") if name)
    return [path for path in files if path.is_file() and path != Path(__file__)]


def hits(repository: Path, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(repository)}:{number}: {line.strip()[:100]}"
        for path in tracked_files(repository)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_tracked_file_names_a_machine_path(repository: Path) -> None:
    assert hits(repository, MACHINE_PATH) == []


def test_no_tracked_file_names_a_package_registry(repository: Path) -> None:
    assert hits(repository, REGISTRY) == []


@pytest.mark.parametrize("line", ['open("/tmp/x")', "see /work/main/a.py", "PIP_FIND_LINKS=/opt/wheels", "(/root/a)"])
def test_machine_paths_are_recognised(line: str) -> None:
    assert MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["https://example.org/work/a", "~/work/a", "src/tmp/a", "a/opt/b", "$OUT/tmp/x"])
def test_urls_and_relative_paths_are_no_machine_paths(line: str) -> None:
    assert not MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["index-url = https://mirror.example/simple", "--find-links file:///a/b", "devpi"])
def test_registries_are_recognised(line: str) -> None:
    assert REGISTRY.search(line)


def test_pytorchs_own_index_may_be_named() -> None:
    assert not REGISTRY.search("pip install torch --index-url https://download.pytorch.org/whl/cpu")

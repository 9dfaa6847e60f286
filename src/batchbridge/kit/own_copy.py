"""Finding a user's own copy of a framework from a script's folder upwards, and telling which release it is like.

An adapter gives `CopyFacts` as data, and the digests of upstream's deciding functions in its `deciding.json`, which
tests/upstream/deciding.py writes. Nothing is imported, and only the files that the facts name are read.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchbridge.contract.own_copy import OwnCopy as OwnCopy
from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass
from batchbridge.reading.documents import folders_above, is_root, root_of

_NAMED_IN_SCRIPT = re.compile(
    r"""PYTHONPATH=([^\s;]+)|pip3?\s+install\s+(?:[^\s;&|]+\s+)*?(?:-e|--editable)\s+([^\s;&|]+)"""
    r"""|^\s*cd\s+([^\s;&|]+)""",
    re.MULTILINE,
)
_PINNED = ("requirements.txt", "requirements-dev.txt", "setup.sh", "install.sh", ".gitmodules")
"""Files of a repository that may name the folder of a copy."""
_MOST_TEXT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CopyFacts:
    """The facts by which a copy of a framework is known.

    package: its name. home: the adapter's package, which has `deciding.json`. markers: files that it has, seen from the
    package. label: file that says its version, seen from the package, and folders to look into. numbers: what a number
    of a run is called -> the functions that decide it, by file of the package.
    """

    package: str
    home: str
    markers: tuple[str, ...]
    label: tuple[str, ...]
    numbers: Mapping[str, Mapping[str, tuple[str, ...]]]
    places: tuple[str, ...] = ("", "src", "{}", "third_party/{}", "third_party", "{}-main", "packages/{}")

    @property
    def functions(self) -> dict[str, tuple[str, ...]]:
        """Every deciding function, by file."""
        found: dict[str, dict[str, None]] = {}
        for number in self.numbers.values():
            for file, names in number.items():
                found.setdefault(file, {}).update(dict.fromkeys(names))
        return {file: tuple(names) for file, names in found.items()}


def folder_of_copy(source: Source, facts: CopyFacts) -> Path | None:
    """The package's folder nearest to the script or recipe of a source; None where there is none."""
    if source.path is None:
        return None
    try:
        return next((folder for folder in _candidates(source.path, facts) if _is_copy(folder, facts)), None)
    except (OSError, ValueError, RuntimeError):  # a loop of links, a name that is too long
        return None


def _candidates(script: Path, facts: CopyFacts) -> Iterator[Path]:
    named, within = list(_named_folders(script)), root_of(script) is not None
    for folder in folders_above(script):
        yield from (folder / name / facts.package for name in named)
        if folder.name == facts.package:
            yield folder
        yield from (folder / place.format(facts.package) / facts.package for place in facts.places)
        if is_root(folder):
            for file in _PINNED:
                yield from (folder / name / facts.package for name in _named_folders(folder / file))
        if within:
            yield from _only_copy(folder, facts)


_SHELVES = ("", "external", "extern", "third_party", "submodules", "libs", "packages")
"""Folders of a project, and itself, in which other projects lie."""


def _only_copy(project: Path, facts: CopyFacts) -> list[Path]:
    """The one copy in a folder that is called after the framework, `external/verl` or `verl-0.4.x`, of those that a
    project has on a shelf: it is installed from there. Of several none is known to be the one."""
    shelves = (project / name for name in _SHELVES)
    projects = (one for shelf in shelves if shelf.is_dir() for one in sorted(shelf.iterdir()))
    named = (one / facts.package for one in projects if one.name.lower().startswith(facts.package))
    found = [folder for folder in named if _is_copy(folder, facts)]
    return found if len(found) == 1 else []


def _named_folders(file: Path) -> Iterator[str]:
    """The relative folders that a script puts on Python's path, installs editable or goes to, or git has as modules."""
    try:
        if not file.is_file() or file.stat().st_size > _MOST_TEXT:
            return
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    if file.name == ".gitmodules":
        yield from re.findall(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE)
    if file.suffix == ".txt":
        yield from re.findall(r"^-e\s+(\S+)", text, re.MULTILINE)
    for match in _NAMED_IN_SCRIPT.finditer(text):
        said = re.sub("[\"']", "", str(next(filter(None, match.groups()))))
        for path in said.split(":"):
            path = re.sub(r"^(\$\{?PWD\}?|\$\(pwd\))/?", "", path).partition("[")[0]
            if path and not path.startswith(("git+", "http")):
                yield from ends_of(path)


def ends_of(path: str) -> Iterator[str]:
    """The ends of a path that a repository may have: all of a relative one; of one that is another machine's, or that
    begins with a placeholder or a variable, what stands behind that, at most three folders."""
    if not path.startswith(("/", "~", "<")) and "$" not in path:
        yield path
        return
    parts = re.sub(r"^.*(\$\{?\w+\}?|\$\([^)]*\)|<[^>]*>)", "", path).strip("/").split("/")
    yield from ("/".join(parts[at:]) for at in range(max(0, len(parts) - 3), len(parts)) if parts[at:] != [""])


def near_folder(path: str, beside: Path | None) -> Path | None:
    """The folder that a path of another machine's may name here: the nearest one above a script that has its end."""
    places = () if beside is None else (folder / end for folder in folders_above(beside) for end in ends_of(path))
    return next((place for place in places if place.is_dir()), None)


def _is_copy(folder: Path, facts: CopyFacts) -> bool:
    return all((folder / marker).is_file() for marker in facts.markers)


def label_of(folder: Path, facts: CopyFacts) -> str:
    """The version that a copy calls itself; empty: it says none."""
    for name in facts.label:
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")[:20_000]
        except OSError:
            continue
        said = re.search(r"^__version__\s*=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
        plain = text.strip()
        if said or re.fullmatch(r"v?[0-9][\w.+-]*", plain):
            return said[1] if said else plain
    return ""


@lru_cache(maxsize=8)
def recorded_forms(home: str) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """`file: function` -> digest -> releases of upstream's that have it so; empty digest: that lack it."""
    file = Path(str(importlib.import_module(home).__file__)).with_name("deciding.json")
    made = json.loads(file.read_bytes())["functions"]
    return {key: {digest: tuple(said.split()) for digest, said in known.items()} for key, known in made.items()}


def recorded_releases(home: str) -> list[str]:
    """The releases that `recorded_forms` knows, oldest first."""
    found = {release for known in recorded_forms(home).values() for said in known.values() for release in said}
    return sorted(found, key=lambda release: [int(part) for part in re.findall(r"[0-9]+", release)])


def compared_copy(
    source: Source,
    facts: CopyFacts,
    declare: Callable[[Path], Mapping[str, Any]],
    known: Callable[[str], Collection[str]],
) -> OwnCopy | None:
    """The copy that a source's program stands in, beside the release whose deciding functions are most like its own; of
    several such releases the one with the most settings in common. None where there is no copy.

    declare: the settings of a copy in a folder; raises `ValueError` where they are not read. known: those of a release.
    """
    folder = folder_of_copy(source, facts)
    if folder is None:
        return None
    unread, declared = "", dict[str, Any]()
    try:
        declared = dict(declare(folder))
    except ValueError as error:
        unread = str(error)
    unlike = _unlike(folder, facts)
    fewest = min(map(len, unlike.values()))
    alike = [release for release, functions in unlike.items() if len(functions) == fewest]
    release = min(reversed(alike), key=lambda one: len(set(known(one)) ^ declared.keys()))
    return OwnCopy(
        folder=folder,
        place=place_of_copy(folder, source.path),
        label=label_of(folder, facts),
        release=release,
        declared=declared,
        own=frozenset(declared.keys() - set(known(release))),
        differing=differing_numbers(facts, unlike[release]),
        unread=unread,
    )


def _unlike(folder: Path, facts: CopyFacts) -> dict[str, list[str]]:
    """Recorded release, oldest first -> the deciding functions of the copy that are not that release's."""
    from batchbridge.kit.function_forms import forms_in

    known = recorded_forms(facts.home)
    have = forms_in(folder, facts.functions)
    return {
        release: [key for key, digest in have.items() if release not in known.get(key, {}).get(digest, ())]
        for release in recorded_releases(facts.home)
    }


def differing_numbers(facts: CopyFacts, differing: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The functions, without their files, that differ and decide a number, by what that is called."""
    found = {
        number: tuple(name for file, names in by_file.items() for name in names if f"{file}: {name}" in differing)
        for number, by_file in facts.numbers.items()
    }
    return {number: names for number, names in found.items() if names}


def place_of_copy(folder: Path, script: Path | None) -> str:
    """A copy's folder as seen from the working directory, else from the script's folder's nearest common one."""
    for base in (Path.cwd(), *(script.resolve().parents if script is not None else ())):
        if folder.is_relative_to(base):
            return f"{folder.relative_to(base).as_posix()}/"
    return f"{folder}/"

"""The version of a framework that the repository of a configuration pins: `trl==0.18.0` in its setup.py, say.

Files are searched as text, and nothing in them is run. Only exact pins count as one, and only where those of a folder
agree; where there is none, ranges (`trl>=1.0`) leave out the releases that they exclude.
One of git (`trl @ git+https://host/trl@REF`, `tool.uv.sources`) is the release that its tag names; a commit is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from batchbridge.contract.reading import RequiredVersions
from batchbridge.reading.documents import folders_above

FILES = (
    *("uv.lock", "poetry.lock", "requirements.txt", "requirements-dev.txt", "pyproject.toml", "setup.py", "setup.cfg"),
    "Dockerfile",
)
"""Files that may pin a version, named one by one: folders that the user did not name are not listed."""
MAX_BYTES = 4 << 20
_SHORT = 7
"""Letters of the shortest name that git gives a commit."""
_BOUND = r"(?:~=|[<>!]=|[<>])\s*[0-9]\w*(?:\.\w+)*(?:\.\*)?"
"""One bound of a range of versions. Source: PEP 440."""
_LINES = re.MULTILINE | re.IGNORECASE


_TAG = re.compile(r"v?(\d+(?:\.\d+)+(?:[.-]?(?:dev|post|a|b|rc)\d+)?)")
_COMMIT = re.compile(r"(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}|main|master|HEAD|nightly")


class VersionPin(NamedTuple):
    """A version, and the place that pins it, for a person. In place of a version may stand a reference of git's."""

    version: str
    place: str

    @property
    def unreleased(self) -> str:
        """The commit or branch that is no release, for a person; empty: it is a version."""
        return commit_of(self.version) or ""


def commit_of(version: str) -> str | None:
    """The commit or branch of git's, shortened, that a text names in place of a version: `git+https://host/trl@REF`,
    or a commit alone. None: it names a version."""
    if "git+" not in version:
        return version[:12] if _COMMIT.fullmatch(version) else None
    reference = _reference(version)
    return None if _TAG.fullmatch(reference) else reference[: 40 if "/" in reference else 12] or "its default branch"


def version_at(commits: Mapping[str, str], commit: str | None) -> str | None:
    """The version of an adapter's `commits` that a commit is, of whose name seven letters do; None: it is not known."""
    if commit is None or len(commit) < _SHORT:
        return None
    return next((known for name, known in commits.items() if name.startswith(commit) or commit.startswith(name)), None)


def version_of(text: str) -> str:
    """The version that a text says: of a reference of git's, that of its tag; else the text itself."""
    tag = _TAG.fullmatch(_reference(text)) if "git+" in text else None
    return text if tag is None else tag[1]


def _reference(text: str) -> str:
    """REF of `git+https://user@host/owner/name.git@REF#egg=name`; empty where there is none."""
    path = text.partition("git+")[2].partition("#")[0].partition("://")[2].partition("/")[2]
    return path.partition("@")[2].strip()


def pinned(
    beside: Path, distribution: str | None, checkout: tuple[str, ...] = (), releases: Collection[str] = ()
) -> VersionPin | None:
    """The pin of the nearest folder above the file `beside` for `distribution`; None where it pins nothing, or two.

    checkout: files that a checkout of the framework has, seen from its root; the first says the version that it calls
    itself, which counts where it is one of `releases`, or looks like a release.
    """
    for folder in folders_above(beside):
        found = [pin for name in FILES for pin in _pins(folder / name, distribution)] if distribution else []
        found = [VersionPin(version_of(pin.version), pin.place) for pin in found]
        found = found or _own(folder, checkout, releases)
        if found:
            return found[0] if len({pin.version for pin in found}) == 1 else None
    return None


def required(beside: Path, distribution: str) -> RequiredVersions | None:
    """The range that the nearest folder above the file `beside` asks for of `distribution`, that of its files together;
    None where it asks for none."""
    name = re.escape(distribution)
    asks = rf"^[^#\n]*?(?<![\w.-]){name}(?:\[[^\]\n]*\])?\s*\(?\s*({_BOUND}(?:\s*,\s*{_BOUND})*)"
    for folder in folders_above(beside):
        found = [
            ("".join(match[1].split()), f"{file}:{text.count(chr(10), 0, match.start(1)) + 1}")
            for file in FILES
            if not file.endswith(".lock") and (text := _text(folder / file))
            for match in re.finditer(asks, text, re.MULTILINE)
        ]
        if found:
            ranges, places = (tuple(dict.fromkeys(one)) for one in zip(*found, strict=True))
            return RequiredVersions(",".join(ranges), ", ".join(places))
    return None


def _own(folder: Path, checkout: tuple[str, ...], releases: Collection[str]) -> list[VersionPin]:
    """The release that a checkout of the framework calls itself. A state between two releases, or after the last, has
    settings of neither."""
    try:
        if not checkout or not all((folder / name).is_file() for name in checkout):
            return []
        file = folder / checkout[0]
        text = file.read_text(encoding="utf-8") if file.stat().st_size < MAX_BYTES else ""
    except (OSError, ValueError):
        return []
    said = re.search(r'^__version__ = "([^"\n]+)"', text, re.MULTILINE)
    version = said[1] if said else text.strip()
    known = version in releases or re.fullmatch(r"[0-9]+(\.[0-9]+)*", version)
    line = text.count("\n", 0, said.start()) + 1 if said else 1
    return [VersionPin(version, f"{checkout[0]}:{line}")] if known else []


def _pins(file: Path, distribution: str) -> list[VersionPin]:
    name, lock = re.escape(distribution), file.suffix == ".lock"
    locked = rf'^name = "{name}"\n(?:.*\n)?version = "([^"]+)"'
    exact = rf"^[^#\n]*?(?<![\w.-]){name}(?:\[[^\]\n]*\])?\s*==\s*([0-9][\w.+]*)"
    text = _text(file)
    found = [(match.start(1), match[1]) for match in re.finditer(locked if lock else exact, text, re.MULTILINE)]
    found += [] if lock else list(_of_git(text, name))
    return [VersionPin(said, f"{file.name}:{text.count(chr(10), 0, at) + 1}") for at, said in sorted(found)]


def _text(file: Path) -> str:
    """The text of a file; empty where it is none, or too large."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            return ""
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _of_git(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Places and references of git's for a distribution, whose name is given as a pattern: of requirements, and of the
    tables of sources in a pyproject.toml."""
    for match in re.finditer(
        rf"^[^#\n]*?(git\+[^\s\"'#]*/{name}(?:\.git)?/?(?:@[^\s\"',;#]+)?)(?=[\s\"',;#]|$)", text, _LINES
    ):
        yield match.start(1), match[1]
    for match in re.finditer(rf"^\s*\"?{name}\"?\s*=\s*(\{{[^}}\n]*\bgit\s*=[^}}\n]*\}})", text, _LINES):
        url = re.search(r"\bgit\s*=\s*[\"']([^\"']+)", match[1])
        reference = re.search(r"\b(?:rev|tag|branch)\s*=\s*[\"']([^\"']+)", match[1])
        if url is not None:
            yield match.start(1), f"git+{url[1]}" + (f"@{reference[1]}" if reference else "")

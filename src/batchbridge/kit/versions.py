"""Versions of frameworks: ranges, which tables of knowledge are keyed by; what is installed; what cannot be read."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from batchbridge.distributions import installed as found_installed
from batchbridge.distributions import version as version
from batchbridge.meaning.findings import Finding, Fix, Where


@lru_cache(maxsize=8192)
def holds(versions: str, version: str) -> bool:
    """Whether `version`, a development or pre-release included, lies in the range `versions` (PEP 440; empty: all)."""
    if not versions:
        return True
    release, bounds = _release(version), [_bound(text) for text in versions.split(",")]
    if release is None or None in bounds:
        from packaging.specifiers import SpecifierSet  # importing it takes as long as `check` itself

        return SpecifierSet(versions).contains(version, prereleases=True)
    return all(bound(release) for bound in bounds if bound is not None)


def includes(versions: str, version: str) -> bool:
    """Whether `version` is one of `versions`, as `holds`; False for a text that is not a version."""
    try:
        return holds(versions, version)
    except ValueError:  # no version, or a number of more digits than Python reads
        return False


def spanned(ranges: Iterable[str]) -> str:
    """The range from the first to the last version of several like `>=1.2,<1.4`; empty: all.

    Raises `ValueError` for a bound that is neither `>=` nor `<`.
    """
    lowest: set[str] = set()
    highest: set[str] = set()
    for versions in ranges:
        bounds = versions.split(",") if versions else []
        if any(not re.fullmatch(r"(>=|<)[0-9.]+(\.dev[0-9]+)?", bound) for bound in bounds):
            raise ValueError(f"{versions}: a range of >= and < alone can be spanned")
        lowest |= {bound[2:] for bound in bounds if bound.startswith(">=")} or {""}
        highest |= {bound[1:] for bound in bounds if bound.startswith("<")} or {""}
    first = "" if "" in lowest else f">={min(lowest, key=_numbers)}"
    last = "" if "" in highest else f"<{max(highest, key=_numbers)}"
    return ",".join(bound for bound in (first, last) if bound not in ("", ">=", "<"))


def joined_ranges(ranges: Iterable[str]) -> Iterator[str]:
    """Ranges of versions, of which those that go on where another ends are one: >=1,<2 and >=2,<3."""
    before = ""
    for versions in ranges:
        start, _, rest = versions.partition(",")
        head, _, end = before.rpartition("<")
        if end and start == f">={end}":
            before = f"{head}{rest}".rstrip(",")
        else:
            yield from [before] if before else []
            before = versions
    yield before


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@lru_cache(maxsize=1024)
def _bound(text: str) -> Callable[[_Release], bool] | None:
    """Whether a release lies within a bound like `>=1.2`, `<1.2.dev0` or `!=1.2.*`; None for any other text."""
    found = re.fullmatch(r"([<>=!]=|[<>])([0-9.]+?)(?:\.(dev|post)([0-9]{1,9})|(\.\*))?", text)
    limit = None if found is None else _release(found[2])
    if found is None or limit is None or found[1] not in _COMPARED:
        return None
    sign, compare = found[1], _COMPARED[found[1]]
    if found[5]:
        prefix = tuple(int(part) for part in found[2].split("."))
        if sign not in ("==", "!="):
            return None
        return lambda release: compare((release[0] + (0,) * len(prefix))[: len(prefix)], prefix)
    if found[3]:
        limit = limit[0], _DEVELOPED + int(found[4]) if found[3] == "dev" else int(found[4]) + 1
    elif sign == ">":  # a release's post-releases are not above it
        return lambda release: release[0] > limit[0]
    if sign == "<" and limit[1] == 0:  # nor are its own development releases below it
        return lambda release: compare(release, limit) and (release[1] >= 0 or release[0] != limit[0])
    return lambda release: compare(release, limit)


_Release = tuple[tuple[int, ...], int]
"""The numbers without zeros at the end, as 1.2 and 1.2.0 are one release; and 0, 1 and more for a post-release, and
`_DEVELOPED` and more, below 0, for a development release."""
_DEVELOPED = -(10**9)


@lru_cache(maxsize=1024)
def _release(version: str) -> _Release | None:
    """A version that is numbers alone, or a post- or development release of such a one; None for any other."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(?:\.(post|dev)([0-9]{0,9}))?", version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    rank = {"dev": _DEVELOPED, "post": 1}.get(found[2])
    return tuple(numbers), 0 if rank is None else rank + int(found[3] or 0)


def is_release(version: str) -> bool:
    """Whether a version is numbers alone: no development, pre-, post- or local release."""
    release = _release(version)
    return release is not None and release[1] == 0


_BEFORE_A_RELEASE = re.compile(
    r"([0-9]+(?:\.[0-9]+)*)"
    r"(?P<pre>[._-]?(?:a|b|c|rc|alpha|beta|pre|preview)[._-]?[0-9]*)?"
    r"(?P<dev>[._-]?dev[0-9]*)?(?:\+.*)?"
)


def release_after(version: str) -> str:
    """The release that a development, alpha, beta or candidate version comes before: 0.16.0 of 0.16.0.dev0, of
    0.16.0rc1 and of 0.16.0rc1.dev2; empty for any other version."""
    found = _BEFORE_A_RELEASE.fullmatch(version)
    return "" if found is None or not (found["pre"] or found["dev"]) else found[1]


def read_as_release(project: str, version: str, release: str, code: str) -> Finding:
    """The warning that a version before a release is read as that release."""
    text = f"{project} {version} is a version before {release}, and is read as that: its code may be another"
    fix = Fix("name the release before or after it with --framework-version")
    return Finding(code, "warning", "config", text, (Where("framework version", version),), (fix,))


def installed(distribution: str | None) -> str | None:
    """The installed version of a distribution, without importing it; None where there is none."""
    return None if distribution is None else found_installed(distribution)


def readable(version: str, newest: str) -> str:
    """The version whose tables `version` is read with: `newest` where it is newer than that, else itself."""
    return newest if includes(f">{newest}", version) else version


def newer_version(project: str, version: str, *, newest: str, code: str, difference: str = "") -> Finding:
    """The warning that a version without tables of its own is read as the newest that has them.

    difference: what its own configuration declares otherwise, where it is installed; see `batchbridge.kit.declared`.
    """
    text = f"{project} {version} is newer than the newest version known here and is read as {newest}"
    text += f"; its own configuration {difference}" if difference else ""
    fix = Fix("look for a newer batchbridge, or check the release notes for settings that decide batches")
    return Finding(code, "warning", "config", text, (Where("framework version", version),), (fix,))


def unknown_version(
    project: str, version: str | None, known: str, newest: str, codes: tuple[str, str], why: str = "", hint: str = ""
) -> Finding:
    """The finding that nothing is read: no version is named (the first of `codes`), or one outside `known` (the
    second).

    `why`: what makes an installed version doubtful. `hint`: what the input says about its version.
    """
    if version is None:
        doubt = f" ({why})" if why else ""
        text = f"the version of {project} is not known{doubt}, and the same keys mean other things in other versions; "
        fix = Fix(f"name the version, for example --framework-version {newest}")
        text += f"known are {known}{hint}"
        return Finding(codes[0], "warning", "config", text, fixes=(fix,), undecided=True)
    release = is_release(version)
    what = "not known here" if release else "not a release, so the meaning of its settings is unknown"
    named = "a known version" if release else "the release before or after it"
    return Finding(
        codes[1],
        "error",
        "config",
        f"{project} {version} is {what}; known are {known}",
        where=(Where("framework version", version),),
        fixes=(Fix(f"name {named}, the newest being {newest}"),),
        undecided=True,  # what it would do with these settings is not known, and its text is no error of theirs
    )

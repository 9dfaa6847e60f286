"""Versions of frameworks: ranges, which tables of knowledge are keyed by; what is installed; what cannot be read."""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache

from packaging.specifiers import SpecifierSet

from batchbridge.findings import Finding, Fix, Where


@lru_cache(maxsize=8192)
def holds(versions: str, version: str) -> bool:
    """Whether `version`, a development or pre-release included, lies in the range `versions` (PEP 440; empty: all)."""
    return not versions or SpecifierSet(versions).contains(version, prereleases=True)


def installed(distribution: str | None) -> str | None:
    """The installed version of a distribution, without importing it; None where there is none."""
    try:
        return None if distribution is None else importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def unknown_version(
    project: str,
    version: str | None,
    *,
    known: str,
    newest: str,
    codes: tuple[str, str],
    why: str = "",
    hint: str = "",
) -> Finding:
    """Why nothing is read: no version is named (the first of `codes`), or one outside `known` (the second).

    `why`: what makes an installed version doubtful. `hint`: what the input says about its version.
    """
    if version is None:
        doubt = f" ({why})" if why else ""
        return Finding(
            codes[0],
            "warning",
            "config",
            f"the version of {project} is not known{doubt}, and the same keys mean other things in other versions; "
            f"known are {known}{hint}",
            fixes=(Fix(f"name the version: {newest}, say"),),
            undecided=True,
        )
    return Finding(
        codes[1],
        "error",
        "config",
        f"{project} {version} is not known here; known are {known}",
        where=(Where("framework version", version),),
        fixes=(Fix(f"name a known version, the newest being {newest}"),),
    )

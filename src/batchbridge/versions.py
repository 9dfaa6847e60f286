"""Ranges of versions, which tables of knowledge are keyed by."""

from __future__ import annotations

from functools import lru_cache

from packaging.specifiers import SpecifierSet


@lru_cache(maxsize=8192)
def holds(versions: str, version: str) -> bool:
    """Whether `version`, a development or pre-release included, lies in the range `versions` (PEP 440; empty: all)."""
    return not versions or SpecifierSet(versions).contains(version, prereleases=True)

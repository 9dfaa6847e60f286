"""The shapes of tables of settings, and what they say of one version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from batchbridge.kit.versions import holds


# Rows of tables are named tuples: every command makes these classes, and making frozen dataclasses takes long.
class Setting(NamedTuple):
    """One key: its kind (`int`, `float`, `bool`, `str`, `dict`, `list`, `choice`, `scale`, `any`, or `json`: a mapping
    of plain values; `?`: null is legal), its default, and the versions in which this row holds (empty: all of
    `VERSIONS`). `fixed`: these versions have no such key; their trainer does what `default` says."""

    key: str
    kind: str
    default: Any
    versions: str = ""
    fixed: bool = False


@dataclass(frozen=True, eq=False)  # a key of `settings_of`: hashing all rows would cost more than looking up
class Group:
    """Settings of one native class; `source` is its symbol and the versions that were read."""

    name: str
    source: str
    settings: tuple[Setting, ...]


class Gone(NamedTuple):
    """A key that newer versions do not know: since when, what says it now (None: nothing), and the source."""

    key: str
    since: str
    instead: str | None
    source: str


@lru_cache(maxsize=64)
def settings_of(groups: tuple[Group, ...], version: str) -> dict[str, Setting]:
    """Key to its row in `version`, over several groups; the first group that knows a key says its default."""
    found: dict[str, Setting] = {}
    for group in groups:
        for setting in group.settings:
            if holds(setting.versions, version):
                found.setdefault(setting.key, setting)
    return found


def versions_of(groups: tuple[Group, ...], key: str) -> set[str]:
    """The ranges of versions in which `key` is a setting; empty where it never was, or is one in every version."""
    return {row.versions for group in groups for row in group.settings if row.key == key and not row.fixed} - {""}

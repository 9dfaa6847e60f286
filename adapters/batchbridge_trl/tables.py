"""The shapes of tables of settings, and what they say of one version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from batchbridge.kit.key_table import Key
from batchbridge.kit.versions import holds


@dataclass(frozen=True, eq=False)  # a key of `settings_of`: hashing all rows would cost more than looking up
class Group:
    """Keys of one native class; `source` is its symbol and the versions that were read."""

    source: str
    settings: tuple[Key, ...]


class Gone(NamedTuple):
    """A key that newer versions do not know: since when, what says it now (None: nothing), and the source."""

    key: str
    since: str
    instead: str | None
    source: str

    @property
    def message(self) -> str:
        """What a finding and an editor say."""
        return f"{self.key} is gone since {self.since}" + (f"; {self.instead} says it now" if self.instead else "")


@lru_cache(maxsize=64)
def settings_of(groups: tuple[Group, ...], version: str) -> dict[str, Key]:
    """Key to its row in `version`, over several groups; the first group that knows a key says its default."""
    found: dict[str, Key] = {}
    for group in groups:
        for setting in group.settings:
            if holds(setting.versions, version):
                found.setdefault(setting.key, setting)
    return found


def versions_of(groups: tuple[Group, ...], key: str) -> set[str]:
    """The ranges of versions in which `key` is a setting; empty where it never was, or is one in every version."""
    return {row.versions for group in groups for row in group.settings if row.key == key and not row.fixed} - {""}

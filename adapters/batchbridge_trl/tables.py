"""The shapes of tables of settings, and what they say of one version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from batchbridge import Fix
from batchbridge.kit.key_table import Key
from batchbridge.kit.records import dataclass
from batchbridge.kit.versions import holds, joined_ranges


@dataclass(frozen=True, eq=False)  # a key of `settings_of`: hashing all rows would cost more than looking up
class SettingGroup:
    """Keys of one native class; `source` is its symbol and the versions that were read."""

    source: str
    settings: tuple[Key, ...]


class RemovedKey(NamedTuple):
    """A key that newer versions do not know: since when, what says it now (None: nothing), and the source.

    same: the key that means the same with the same value, where there is one. unread: nothing ever read its value.
    """

    key: str
    since: str
    instead: str | None
    source: str
    same: str | None = None
    unread: bool = False

    @property
    def of_transformers(self) -> bool:
        """Whether TRL's newest versions also run with a transformers that has the key: they take 4.56.2 and later."""
        return self.since.startswith("transformers 5")

    def fix(self, value: Any, takes: Mapping[str, Key], given: Mapping[str, Any]) -> Fix:
        """The fix for the key and its value: safe where `same` is a setting that is not given as well and takes the
        value, or where the key was never read."""
        if (new := self.new_name(value, takes, given)) is not None:
            return Fix(f"use {self.instead}", {self.key: None, new: value}, safe=True)
        text = f"use {self.instead}" if self.instead else f"remove {self.key}"
        return Fix(text, {self.key: None}, safe=self.unread)

    def new_name(self, value: Any, takes: Mapping[str, Key], given: Mapping[str, Any]) -> str | None:
        """The setting that means the same with the same value; None: there is none, or it is given as well."""
        row = None if self.same is None or self.same in given else takes.get(self.same)
        return row.key if row is not None and not row.fixed and self._alike(value) else None

    def _alike(self, value: Any) -> bool:
        """Whether a value means under the new name what it meant. transformers 5 reads warmup_steps below 1 as a share
        of all steps, and 1 as one step, where warmup_ratio 1 was all of them."""
        if self.key != "warmup_ratio":
            return value is not None
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1

    @property
    def message(self) -> str:
        """The message of a finding and an editor."""
        return f"{self.key} is gone since {self.since}" + (f"; {self.instead} says it now" if self.instead else "")


@lru_cache(maxsize=512)  # a file is asked about under every release, with two lists of groups
def settings_of(groups: tuple[SettingGroup, ...], version: str) -> dict[str, Key]:
    """Key to its row in `version`, over several groups; the first group that knows a key says its default."""
    found: dict[str, Key] = {}
    for group in groups:
        for setting in group.settings:
            if holds(setting.versions, version):
                found.setdefault(setting.key, setting)
    return found


def versions_of(groups: tuple[SettingGroup, ...], key: str) -> set[str]:
    """The ranges of versions in which `key` is a setting; empty where it never was, or is one in every version."""
    rows = (row for group in groups for row in group.settings)
    return {*joined_ranges(row.versions for row in rows if row.key == key and not row.fixed)} - {""}

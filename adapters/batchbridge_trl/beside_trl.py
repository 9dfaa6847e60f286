"""The transformers that a repository pins beside TRL: which of the settings that newer ones lost it still has.

TRL's newest versions run with transformers 4.56.2 and later; the tables assume the newest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge import Finding, Source
from batchbridge.kit import pinned
from batchbridge.kit.key_table import Key
from batchbridge.kit.versions import holds
from batchbridge_trl.settings import GONE
from batchbridge_trl.tables import RemovedKey

_PACKAGE = "transformers"


class PinnedTransformers(NamedTuple):
    """A release of transformers, and the place that pins it, for a person."""

    version: str
    place: str

    def has(self, gone: RemovedKey) -> bool:
        """Whether it still has a setting that transformers lost later."""
        return holds(f"<{gone.since.removeprefix(_PACKAGE).strip()}", self.version)

    def spelled(self, given: Mapping[str, Any], rows: Mapping[str, Key]) -> dict[str, str | None]:
        """The settings that it has and the tables lack: the one that means the same there, or None: it decides nothing
        that is read."""
        found: dict[str, str | None] = {}
        for gone in GONE:
            if gone.of_transformers and gone.key in given and gone.key not in rows and self.has(gone):
                new = gone.new_name(given[gone.key], rows, given)
                if new is not None or gone.instead is None:
                    found[gone.key] = new
        return found

    def decided(self, unknown: Finding, key: str) -> Finding:
        """The finding about a setting that transformers lost, certain where this release has lost it, too."""
        gone = next((one for one in GONE if one.key == key and one.of_transformers), None)
        if gone is None or self.has(gone):
            return unknown
        message = f"{gone.message}; {self.place} pins transformers {self.version}"
        return dataclasses.replace(unknown, message=message, undecided=False)


def pinned_transformers(source: Source) -> PinnedTransformers | None:
    """The release that a notebook's cell pins, or the repository; None: none, or a state between releases."""
    built = source.construction
    if built is not None and (cell := built.pins.get(_PACKAGE)) is not None:
        return None if "git+" in cell else PinnedTransformers(cell, "a cell")
    pin = None if source.path is None else pinned(source.path, _PACKAGE)
    return None if pin is None or pin.unreleased else PinnedTransformers(pin.version, pin.place)

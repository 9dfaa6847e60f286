"""The release of another project, Unsloth or ms-swift, whose settings stand in the place of TRL's with other defaults.
Nothing is imported.
"""

from __future__ import annotations

from typing import NamedTuple

from batchbridge import Source
from batchbridge.kit import pinned
from batchbridge.kit.versions import includes, installed

ELSEWHERE = "BB-TRL-100"
"""The code of a finding that such a release takes no TRL of the version that is read."""


class ReleaseInPlace(NamedTuple):
    """The release of a project that stands in TRL's place. title: the project's name in a sentence. named: whether
    anything says the version; else it is the newest one known."""

    title: str
    version: str
    named: bool

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        said = f"{self.title} {self.version}"
        return said if self.named else f"{said} (the newest; none is named)"

    def has(self, releases: str) -> bool:
        """Whether it is one of some releases."""
        return includes(releases, self.version)


def release_in_place(source: Source, distribution: str, title: str, newest: str) -> ReleaseInPlace:
    """The release that is installed here, that a cell pins, or the repository; the first of these counts, as for
    TRL."""
    built = source.construction
    version = installed(distribution) or (built.pins.get(distribution) if built is not None else None)
    if version is None and source.path is not None and (pin := pinned(source.path, distribution)) is not None:
        version = pin.version
    if version is not None and version.startswith("git+") and "@" not in version.partition("://")[2]:
        version = None  # the newest code
    return ReleaseInPlace(title, newest if version is None else version, named=version is not None)

"""A copy of a framework that lies beside a configuration, and is what the configuration's run starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding, Fix, Where

SHOWN = 4
"""Names of one kind that a message has."""


@dataclass(frozen=True, kw_only=True)
class OwnCopy:
    """A user's own copy of a framework.

    folder: its package. place: the same, for a person. label: the version that it calls itself, which decides nothing.
    release: the known release whose deciding functions are most like its own. declared: its settings, in whatever form
    the adapter reads them. own: settings that the release lacks. differing: what a number of a run is called -> the
    functions, of those that decide it, that are not the release's. unread: why its settings are not read; empty: they
    are.
    """

    folder: Path
    place: str
    label: str
    release: str
    declared: Mapping[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: str = ""

    def title(self, framework: str) -> str:
        """`verl 0.2.0.dev, your copy`."""
        return f"{framework} {self.label}".rstrip() + ", your copy"

    def findings(self, framework: str, given: Mapping[str, Where]) -> Iterator[Finding]:
        """The note of what this copy is taken for, and what of its code is not known."""
        own = [key for key in given if key in self.own]
        batches = "no release's batches" if self.differing else f"{self.release}'s batches"
        text = f"{self.title(framework)} in {self.place}: {batches}; its own settings and defaults are taken"
        if own:
            text += f"; {len(own)} {'setting' if len(own) == 1 else 'settings'} of its own, not judged: {_named(own)}"
        fix = Fix("name a release with --framework-version to judge by that")
        yield Finding("BB038", "note", "config", text, (Where(None, None, self.place),), (fix,))
        if self.unread:
            text = f"the settings of your copy in {self.place} are not read: {self.unread}; {self.release}'s are taken"
            yield Finding("BB039", "error", "config", text, (Where(None, None, self.place),), undecided=True)
        if self.differing:
            numbers = ", ".join(self.differing)
            text = f"{numbers}: as {framework} {self.release} would; {self.changed(*self.differing)} here"
            fix = Fix("compare these functions with the release's")
            yield Finding("BB039", "error", "config", text, (Where(None, None, self.place),), (fix,), undecided=True)

    def changed(self, *numbers: str) -> str:
        """`your fit differs`, of the functions that decide one of these numbers; empty: none differs."""
        found = dict.fromkeys(name for one in numbers for name in self.differing.get(one, ()))
        return f"your {_named(found)} {'differs' if len(found) == 1 else 'differ'}" if found else ""

    def opened(self, finding: Finding) -> Finding:
        """A finding of the release's rules, left undecided where it is an error and the copy's code differs from the
        release's."""
        if not self.differing or finding.severity != "error" or finding.undecided:
            return finding
        return replace(finding, message=f"as {self.release} would: {finding.message}", undecided=True)


def _named(names: Mapping[str, Any] | list[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more

"""The hooks. An implementation is a function of the same name, marked with `batchbridge.hookimpl`, in a module or
object that a distribution registers under the entry-point group `batchbridge`.

Its own file: pluggy takes the hooks of a whole module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter
    from batchbridge.contract.detection import AdapterEntry
    from batchbridge.contract.reading import Reading
    from batchbridge.meaning.findings import Finding

hookspec = pluggy.HookspecMarker("batchbridge")
hookimpl = pluggy.HookimplMarker("batchbridge")


@hookspec
def batchbridge_adapters() -> Iterable[type[Adapter] | AdapterEntry]:  # type: ignore[empty-body]  # specs have no body
    """The hook for a plugin's adapters, called by every command, once. Return an `AdapterEntry` for each adapter that
    the plugin provides, which is then imported when its framework is needed, or the `Adapter` class itself; two of the
    same framework are both refused."""


@hookspec
def batchbridge_check(reading: Reading) -> Iterable[Finding]:  # type: ignore[empty-body]  # see above
    """The hook for further findings, called for every reading, after the adapter's own `check`. Return further findings
    (a site's own policy, say); an error among them makes the verdict invalid. All plugins are asked."""


@hookspec
def batchbridge_rules(framework: str, version: str) -> Iterable[Any]:  # type: ignore[empty-body]  # see above
    """Called by an adapter's `check`. Return further rows (`batchbridge.kit.rule_table.Rule`) about a version of a
    framework, over the facts that its adapter's own rows are asked about; nothing for any other framework. They count
    as the adapter's: conversions keep them, too, and those that are defects are among `Behaviour.defects`."""


@hookspec
def batchbridge_optimizer_step(record: Mapping[str, Any]) -> None:
    """The hook of every optimizer step, called in every process of a wrapped run after it, with the record that goes
    into the ledger (see docs/ledger.md). What is returned is ignored; all plugins are called."""

"""The differences of what a framework declares from the tables of its newest known release, as text.

Declarations are read by `declared_settings`, and never evaluated; nothing is imported. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchbridge.kit.declared_settings import DeclaredSetting

NAMED = 6
"""Settings of one kind that a message names."""


def default_texts(declared: Mapping[str, DeclaredSetting]) -> dict[str, str]:
    """Setting to its default as text, as `ShippedTable.defaults` has it; without names that begin with _, which no
    parser takes."""
    return {
        name: repr(list(one.default) if isinstance(one.default, tuple) else one.default)
        for name, one in declared.items()
        if not name.startswith("_")
    }


def difference(known: Mapping[str, str], have: Mapping[str, str]) -> str:
    """The settings that `have` adds, lacks and has with another default than `known`, as text; empty where nothing."""
    added = [f"{name} ({have[name]})" for name in have if name not in known]
    gone = [name for name in known if name not in have]
    changed = [
        f"{name} ({have[name]}, was {known[name]})" for name in have if known.get(name, have[name]) != have[name]
    ]
    parts = (("adds", added), ("no longer has", gone), ("has other defaults for", changed))
    return "; ".join(f"{what} {_listed(names)}" for what, names in parts if names)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more

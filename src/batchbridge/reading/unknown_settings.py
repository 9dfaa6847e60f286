"""Findings on settings whose value only running the script or the program would tell, and the ways to give it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from batchbridge.contract.reading import Source
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading.machine_facts import DEVICES, machine_settings

if TYPE_CHECKING:
    from bashread import Unknown

PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./-]*>")
"""The pattern of what a published script has where its reader's own value belongs: `<path_to_your_model>`."""


def names_of(unknown: Iterable[Unknown]) -> tuple[str, ...]:
    """The names that unknown values depend on, each once."""
    return tuple(dict.fromkeys(name for one in unknown for name in (one.names or (one.shown,))))


def ways_to_give(names: Iterable[str]) -> tuple[Fix, ...]:
    """The options by which a user answers these names."""
    names = tuple(names)
    machine = tuple(Fix("say how many devices a node has: --gpus DEVICES") for name in names if name == DEVICES)
    ways = (Fix(f"give it: --env {name}=VALUE") for name in names if name.isidentifier() or name.isdigit())
    return (*machine, *ways)


def in_words(names: Iterable[str]) -> str:
    """The names in a sentence: `NODE_RANK, $2`; an argument of the script as the script has it."""
    return ", ".join(f"${name}" if name.isdigit() else name for name in names)


_OPEN = re.compile(r"\$\{[^{}]*\}|\$\([^()]*\)|\$\w+|`[^`]*`|<[^<>]*>")
"""The parts of a value that a script leaves open: `$NAME`, `${NAME}`, `$(command)`, `<placeholder>`."""


def is_given(value: object) -> bool:
    """Whether a value that is open in part is surely a text that is not empty: `$ROOT/agent.py`."""
    left, before = value if isinstance(value, str) else "", ""
    while left != before:  # from the inside outwards
        left, before = _OPEN.sub("", left), left
    return re.search(r"\w", left) is not None and "$" not in left and "`" not in left


def _unknown_arguments(source: Source, matter: set[str]) -> Iterable[Finding]:
    """Findings on arguments of a call that a Python program leaves open: one for all that depend on the same names."""
    together: dict[tuple[str, ...], list[str]] = {}
    for key, names in source.unknown.items():
        if key in matter:
            together.setdefault(names, []).append(key)
    for names, keys in together.items():
        where = tuple(Where(key, source.values.get(key), source.file_of(key), source.lines.get(key)) for key in keys)
        ways = tuple(Fix(f"give it: --env {name}=VALUE") for name in names if name.isidentifier() and name.isupper())
        options = tuple(Fix(f"give it behind the file: -- {name} VALUE") for name in names if name.startswith("--"))
        fixes = (*ways, *options, Fix(f"say the setting itself: --set {keys[0]}=VALUE"))
        listed = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if keys[4:] else "")
        verb = "depends" if len(keys) == 1 else "depend"
        message = f"{listed} {verb} on what only running the program would tell: {', '.join(names)}"
        yield Finding("BB011", "error", "config", message, where, fixes, undecided=True)


def unknown_values(source: Source, keys_that_matter: Iterable[str]) -> list[Finding]:
    """Findings on settings whose value only running the script would tell: undecided where the setting matters."""
    from batchbridge.reading.arguments import spellings

    matter = set(keys_that_matter)
    if source.construction is not None:
        return list(_unknown_arguments(source, matter))
    file = None if source.path is None else str(source.path)
    found, idle = [], []
    for key, names in source.unknown.items():
        left = [name for name in names if PLACEHOLDER.fullmatch(name)]
        matters = not matter.isdisjoint(spellings(key))
        if not matters and left:
            message = f"{key} still has a placeholder, {left[0]}"
            found.append(Finding("BB018", "note", "config", message, (Where(key, None, file, source.lines.get(key)),)))
        elif not matters:
            idle.append(key)
        if not matters:
            continue
        where = (Where(key, source.values.get(key), file, source.lines.get(key)),)
        machine = (Fix("say how many devices train: --world-size DEVICES"),) if key in machine_settings() else ()
        fixes = (*machine, *ways_to_give(names), Fix(f"say the setting itself: --set {key}=VALUE"))
        message = f"{key} depends on what only running the script would tell: {in_words(names)}"
        if left:
            message = f"{key} still has a placeholder, {left[0]}"
        found.append(Finding("BB011", "error", "config", message, where, fixes, undecided=True))
    if idle:
        many = "1 setting that does" if len(idle) == 1 else f"{len(idle)} settings that do"
        message = f"{many} not matter here depend{'s' * (len(idle) == 1)} on the environment: {', '.join(idle)}"
        found.append(Finding("BB017", "note", "config", message, (Where(file=file),)))
    return found

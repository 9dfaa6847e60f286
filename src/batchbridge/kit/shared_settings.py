"""Readers and writers for rows of `SharedSetting`: from a native value to the shared one, and back.

Each gives None where there is nothing that another framework could take.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from batchbridge.contract.outside import SharedSetting
from batchbridge.contract.reading import Reading


def as_text(value: Any, reading: Reading) -> Any:
    """A text that says something; None otherwise."""
    return value if isinstance(value, str) and value.strip() else None


def as_flag(value: Any, reading: Reading) -> Any:
    """A flag; None where the value is none."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def as_count(value: Any, reading: Reading) -> Any:
    """A whole number of at least 1; None otherwise."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def as_names(value: Any, reading: Reading) -> Any:
    """Texts as a tuple, one alone too; None where some value is none."""
    names = (value,) if isinstance(value, str) else value
    plain = isinstance(names, (list, tuple)) and bool(names) and all(isinstance(name, str) for name in names)
    return tuple(names) if plain else None


def loggers(known: Collection[str]) -> SharedSetting:
    """The row of a list of loggers that names the console and files, too; `known` are those that may stand beside."""

    def read(value: Any, reading: Reading) -> Any:
        names = as_names(value, reading)
        return None if names is None else tuple(name for name in names if name not in ("console", "file"))

    def write(value: Any, reading: Reading) -> Any:
        return ["console", *value] if set(value) <= set(known) else None

    return SharedSetting("loggers", "", read, write)


def rollouts(value: Any, reading: Reading) -> Any:
    """Rollouts between two checkpoints where the setting counts them; what is not above 0 says that none is saved."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return Fraction(max(value, 0))


def whole_rollouts(value: Any, reading: Reading) -> Any:
    """The setting that counts rollouts between two checkpoints, -1 for never; None where they are not a whole
    number."""
    return None if value.denominator != 1 else int(value) or -1


def from_hub(value: Any, reading: Reading) -> Any:
    """A data set's name on the Hugging Face Hub; None for files, folders, and several at once."""
    return value if isinstance(value, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", value) and not _file(value) else None


def _file(name: str) -> bool:
    return name.lower().endswith((".parquet", ".json", ".jsonl", ".csv")) or name.startswith(".")


def never(value: Any, reading: Reading) -> Any:
    """None for any value: what the shared word says has another form here."""
    return None


def generator() -> SharedSetting:
    """The row of a setting that names the engine that generates."""

    def engine(value: Any, reading: Reading) -> Any:
        return value if value == "vllm" else None

    return SharedSetting("generator", "", engine, engine)

"""The fields that TRL's and transformers' own configuration classes declare, against those of the newest tables.

Nothing is imported.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batchbridge.kit import declared
from batchbridge.kit.declared_settings import declared_fields
from batchbridge.kit.proven import folder_of
from batchbridge.kit.shipped_settings import shipped

_CLASSES = {
    "TrainingArguments": ("transformers", "training_args.py"),
    "GRPOConfig": ("trl", "trainer/grpo_config.py"),
}
"""Class to its package and file; a later one's defaults count before an earlier one's."""


def declared_in(folders: Mapping[str, Path | None]) -> dict[str, str]:
    """Field to default of `GRPOConfig` and its bases, in the folders of `trl` and `transformers`."""
    found: dict[str, str] = {}
    for name, (package, file) in _CLASSES.items():
        folder = folders.get(package)
        if folder is not None:
            found |= declared.default_texts(declared_fields(folder.parent, folder / file, name, nested=False))
    return found


def known() -> dict[str, str]:
    """Field to default as the tables' newest releases declare it."""
    tables = shipped("batchbridge_trl")
    return {key: text for name in _CLASSES for key, text in tables[name].defaults(tables[name].releases[-1]).items()}


def difference() -> str:
    """The installed classes' declarations that differ, as text."""
    return declared.difference(known(), declared_in({name: folder_of(name) for name in ("trl", "transformers")}))

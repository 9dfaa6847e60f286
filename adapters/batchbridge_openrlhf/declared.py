"""The options that OpenRLHF's own parser declares, against those of the newest table.

Nothing is imported.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batchbridge.kit import declared
from batchbridge.kit.declared_settings import declared_options
from batchbridge.kit.proven import folder_of
from batchbridge.kit.shipped_settings import shipped


def declared_in(folders: Mapping[str, Path | None]) -> dict[str, str]:
    """Option to default of `openrlhf.cli.train_ppo_ray`, in the folder of `openrlhf`."""
    folder = folders.get("openrlhf")
    return {} if folder is None else declared.default_texts(declared_options(folder / "cli" / "train_ppo_ray.py"))


def known() -> dict[str, str]:
    """Option to default as the table's newest release declares it."""
    table = shipped("batchbridge_openrlhf")["train_ppo_ray"]
    return table.defaults(table.releases[-1])


def difference() -> str:
    """The installed parser's declarations that differ, as text."""
    return declared.difference(known(), declared_in({"openrlhf": folder_of("openrlhf")}))

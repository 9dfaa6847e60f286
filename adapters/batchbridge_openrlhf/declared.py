"""The options that OpenRLHF's own parser declares, against those of the newest table.

`declared.json` beside this file records them; tests/upstream/record.py writes it. Nothing is imported.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batchbridge.kit import declared
from batchbridge.kit.proven import folder_of


def declared_in(folders: Mapping[str, Path | None]) -> dict[str, str]:
    """Option to default of `openrlhf.cli.train_ppo_ray`, in the folder of `openrlhf`."""
    folder = folders.get("openrlhf")
    return {} if folder is None else declared.of_arguments(folder / "cli" / "train_ppo_ray.py")


def difference() -> str:
    """The installed parser's declarations that differ, as text."""
    known = declared.recorded(Path(__file__).with_name("declared.json").read_bytes())
    return declared.difference(known, declared_in({"openrlhf": folder_of("openrlhf")}))

"""The fields that TRL's and transformers' own configuration classes declare, against those of the newest tables.

`declared.json` beside this file records them; tests/upstream/record.py writes it. Nothing is imported.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from batchbridge.kit import declared
from batchbridge.kit.proven import folder_of


def declared_in(folders: Mapping[str, Path | None]) -> dict[str, str]:
    """Field to default of `GRPOConfig` and its bases, in the folders of `trl` and `transformers`."""
    parts = []
    for package, file, names in (
        ("transformers", "training_args.py", ("TrainingArguments",)),
        ("trl", "trainer/base_config.py", ("_BaseConfig",)),
        ("trl", "trainer/grpo_config.py", ("GRPOConfig",)),
    ):
        folder = folders.get(package)
        parts.append({} if folder is None else declared.of_classes(folder / file, names))
    return declared.merged(parts)


def difference() -> str:
    """The installed classes' declarations that differ, as text."""
    known = declared.recorded(Path(__file__).with_name("declared.json").read_bytes())
    return declared.difference(known, declared_in({name: folder_of(name) for name in ("trl", "transformers")}))

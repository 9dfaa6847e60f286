"""The fields of verl's dataclasses: which keys the actor's and the critic's groups take.

verl makes dataclasses of both groups before any worker starts, and a dataclass takes no key that is not a field of it.
The fields are the keys of the composed configuration and those of `fields.json`: class to field to [first version, last
version], by index into the versions of `defaults.json`.

Its own file: it reads the recorded `fields.json`, which only unknown keys need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchbridge_verl.composed import ComposedDefaults
from batchbridge_verl.settings import ACTOR, CRITIC, holds, index_of

INSTANTIATE = ("_convert_", "_recursive_", "_partial_", "_args_")
"""Words of hydra's own in a group that it instantiates. Source: hydra-core 1.3.2 _instantiate2._Keys."""


def stranger(key: str, version: str, defaults: ComposedDefaults) -> str | None:
    """The group whose dataclass refuses `key`; None where none does.

    Source: verl 0.6.0 to 0.9.1 utils/config.py omega_conf_to_dataclass (hydra's instantiate) in validate_config.
    """
    if holds("<0.6.0", version) or not key.startswith((ACTOR, CRITIC)):
        return None
    known, groups, parts = defaults.values, defaults.groups, key.split(".")
    for at in range(len(parts) - 1, 0, -1):
        group, name = ".".join(parts[:at]), parts[at]
        if f"{group}.{name}" in known or f"{group}.{name}" in groups:
            return None
        target = known.get(f"{group}._target_")
        if target is not None:
            first, last = _fields().get(str(target).rpartition(".")[2], {}).get(name, (1, 0))
            return None if first <= index_of(version) <= last or name in INSTANTIATE else group
        if group in known or group in groups:
            return None  # a plain mapping, or a field that is one
    return None


@lru_cache(maxsize=1)
def _fields() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(Path(__file__).with_name("fields.json").read_bytes())["classes"]
    return table

"""EasyR1's own configuration object, constructed in a child process of `batchbridge check --native`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from batchbridge import Reading
from batchbridge.kit import NativeCheck
from batchbridge_easyr1.installed import installed_version

_LEFT_OUT = ("trust_remote_code", "config")


def question(reading: Reading) -> NativeCheck:
    """The user's settings for `build`; those that were not understood, as they are written."""
    native = reading.native
    said = {key: place.value if native.get(key) is None else native[key] for key, place in reading.given.items()}
    kept = {
        key: value
        for key, value in said.items()
        if key.split(".")[-1] not in _LEFT_OUT and "${" not in json.dumps(value, default=str)
    }
    left_out = sorted(said.keys() - kept.keys())
    without = (f"EasyR1 was asked without {', '.join(left_out)}",) if left_out else ()
    return NativeCheck(
        place="batchbridge_easyr1.constructed:build",
        settings=kept,
        installed=installed_version(),
        differences=("PPOConfig was constructed, and nothing that stands behind it: sizes are checked later", *without),
    )


def build(settings: Mapping[str, Any], world_size: int | None) -> None:
    """Constructs `PPOConfig` as `verl.trainer.main` does."""
    from omegaconf import OmegaConf
    from verl.trainer.config import PPOConfig

    said = OmegaConf.create()
    for key, value in settings.items():
        OmegaConf.update(said, key, value, force_add=True)
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PPOConfig()), said))
    made.deep_post_init()

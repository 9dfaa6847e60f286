"""TRL's own configuration object, constructed in a child process of `batchbridge check --native`.

Its own file: a child process imports it, and only for `check --native`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import Reading
from batchbridge.kit import NativeCheck
from batchbridge.kit.versions import installed

_ELSEWHERE = ("deepspeed", "output_dir", "logging_dir", "tf32", "use_cpu", "no_cuda", "hub_token", "push_to_hub_token")
"""Settings that name a file, a secret or a device: neither is there."""
_FILES_OR_MAPPINGS = ("fsdp_config", "accelerator_config")
"""Settings that may name a file."""


def question(reading: Reading) -> NativeCheck:
    """The user's settings for `build`, without those that name files or devices."""
    said = {key: reading.native[key] for key in reading.given if key in reading.native}
    left_out = [key for key in said if key in _ELSEWHERE or (key in _FILES_OR_MAPPINGS and isinstance(said[key], str))]
    differences = ["GRPOConfig was constructed with use_cpu: whether the device can do bf16 or tf32 is not asked"]
    if left_out:
        differences.append(f"GRPOConfig was constructed without {', '.join(sorted(left_out))}")
    return NativeCheck(
        place="batchbridge_trl.constructed:build",
        settings={key: value for key, value in said.items() if key not in left_out},
        installed=installed("trl"),
        world_size=reading.spec.topology.world_size if reading.spec is not None else None,
        differences=tuple(differences),
    )


def build(settings: Mapping[str, Any], world_size: int | None) -> None:
    """Constructs `GRPOConfig` as TRL's parser does, as on `world_size` devices."""
    from transformers import HfArgumentParser
    from trl import GRPOConfig

    own = {} if world_size is None else {"world_size": property(lambda self: world_size)}
    made = type("GRPOConfig", (GRPOConfig,), own)
    said = {**settings, "output_dir": "output", "use_cpu": True}
    HfArgumentParser((made,)).parse_dict(said, allow_extra_keys=True)

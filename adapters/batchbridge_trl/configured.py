"""The parts of a configuration that refusals look at, where there is no trainer yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from batchbridge import Reading
from batchbridge.kit.model_files import ASSUMED, Model, model_of
from batchbridge.kit.refusals import setting
from batchbridge.kit.versions import holds
from batchbridge_trl.rules.facts import facts_of
from batchbridge_trl.starting import StartOfRun

KNOW_THE_MODEL = "; where its config.json is not here, download it or name its folder"


def start_in(reading: Reading) -> StartOfRun | None:
    """The way in which the run is started; None for settings of an object."""
    facts = facts_of(reading)
    return None if facts is None else facts.start


def model_in(reading: Reading) -> Model:
    """The known facts of the policy; nothing where the settings are an object's, which do not name it."""
    return Model() if start_in(reading) is None else model_of(setting(reading, "model_name_or_path"))


def sharded(reading: Reading, sharding: str | None, *dimensions: str) -> bool | None:
    """Whether parameters are sharded so, or a dimension of the device mesh has more than one device."""
    start = start_in(reading)
    if start is None:
        return None
    sizes = [start.mesh.get(f"{name}_size") for name in dimensions]
    if any(size not in (None, 1) for size in sizes) or (start.sharding is not None and start.sharding == sharding):
        return True
    return None if start.sharding is None and sharding is not None else False


def scales_gradients(reading: Reading) -> bool | None:
    """Whether gradients are scaled for fp16: by the arguments, or by the launcher where they leave it open.

    Source: transformers 5.23.0 TrainingArguments; trl 0.19 GRPOConfig, where bf16 is on unless fp16 is.
    """
    start = start_in(reading)
    if reading.native["fp16"]:
        return True
    if start is not None and start.sharding == "deepspeed" and start.engine is None:
        return None
    if start is not None and _said(start.engine, "fp16", "enabled") is True:  # DeepSpeed's own word decides
        return True
    bf16 = setting(reading, "bf16")
    if bf16 or (bf16 is None and holds(">=0.19", str(reading.framework_version))):
        return False
    return None if start is None or start.sharding is None else start.mixed_precision == "fp16"


def would_use(reading: Reading) -> Collection[str]:
    """The optional packages whose code the run depends on."""
    start = start_in(reading)
    return ("deepspeed",) if start is not None and start.sharding == "deepspeed" else ()


def _said(config: Any, *path: str) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def assumed(reading: Reading) -> Sequence[str]:
    """Assumptions about what a recipe alone leaves to the command, and one without a model's name to the script."""
    start = start_in(reading)
    if start is None:
        return ()
    alone = () if start.is_known else ("a start without DeepSpeed, FSDP or a custom script",)
    if setting(reading, "model_name_or_path") is None:
        return (*alone, ASSUMED)
    return (*alone, WITH_IMAGES) if model_in(reading).images else alone


WITH_IMAGES = "no tools beside images, and an image in every prompt or none where ZeRO-3 or FSDP shards the model"

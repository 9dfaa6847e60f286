"""FSDP's and ZeRO's files in a checkpoint: whether they come back on another number of ranks, and whether the
optimizer's state has come back at all.

torch.distributed.checkpoint knows of each part of a tensor where it lies in the whole one, and puts together what a
rank needs; a full state dict is whole. What a rank writes by itself (LOCAL_STATE_DICT) is its own alone. Source:
accelerate 1.15.0 utils/fsdp_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchbridge import CannotAttach
from batchbridge_trl.sharding import deepspeed_configuration

OWN_FILES = (
    "with state_dict_type {kind} under FSDP{version} it is not proven that the files come back in other shards; proven "
    "are SHARDED_STATE_DICT and, under FSDP2, FULL_STATE_DICT; the weights alone go on in a new run"
)


UNIVERSAL_OF_ZERO_3 = (
    "ZeRO-3 loads a universal checkpoint otherwise than it was saved (checkpoint.load_universal): parts of the "
    "optimizer's state share one count of updates, and every group gets the first one's settings; go on with as many "
    "ranks and without load_universal, or with the weights alone in a new run"
)


def other_shards(trainer: Any) -> str | None:
    """The reason why FSDP's files do not come back on another number of ranks; None: they do, or there are none."""
    if not trainer.is_fsdp_enabled:
        return None
    version, kind = _version(trainer), _kind(trainer)
    if kind == "SHARDED_STATE_DICT" or (kind == "FULL_STATE_DICT" and version == 2):
        return None
    return OWN_FILES.format(kind=kind, version=version)


def loads_otherwise(trainer: Any) -> str | None:
    """The reason why DeepSpeed does not load what it was given; None: it does.

    Seen on one rank and on two: deepspeed 0.19.6, load_hp_checkpoint_state_from_checkpoint_dir_stage3.
    """
    configuration = deepspeed_configuration(trainer)
    if not (configuration.get("checkpoint") or {}).get("load_universal"):
        return None
    stage = trainer.accelerator.state.deepspeed_plugin.zero_stage
    return UNIVERSAL_OF_ZERO_3 if int(stage) == 3 else None


def prepare(trainer: Any) -> None:
    """Makes the state of FSDP1's optimizer, for its shards to be loaded into. Collective.

    Accelerate asks a new optimizer for its state, which is empty, and has that filled from the files: nothing is
    loaded, and no word is said of it. torch's own function makes the state first, by an update of zeros at a learning
    rate of zero, as it does for FSDP2. Seen on two ranks: accelerate 1.15.0, load_fsdp_optimizer.
    """
    if not trainer.is_fsdp_enabled or _version(trainer) != 1 or _kind(trainer) != "SHARDED_STATE_DICT":
        return
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    get_optimizer_state_dict(trainer.model_wrapped, _optimizer(trainer))


def check_loaded(trainer: Any, folder: Path) -> None:
    """Refusal (`CannotAttach`) of a resume whose optimizer has no state after it was loaded, and the files have one."""
    if not trainer.is_fsdp_enabled or any(_optimizer(trainer).state.values()) or not _holds_state(folder):
        return
    reason = (
        f"{folder} holds the optimizer's state, and this version of Accelerate has loaded none of it: resume with the "
        "version that wrote it, or start a new run from the weights"
    )
    raise CannotAttach({"resume": reason})


def _holds_state(folder: Path) -> bool:
    """Whether a checkpoint of FSDP has a state of any parameter in the optimizer's files."""
    import torch

    for part in sorted(folder.glob("optimizer*")):
        if part.is_dir():
            from torch.distributed.checkpoint import FileSystemReader

            names = FileSystemReader(part).read_metadata().state_dict_metadata
            if any(name.startswith("optimizer.state.") for name in names):
                return True
        elif torch.load(part, weights_only=True, map_location="meta", mmap=True)["state"]:
            return True
    return False


def _version(trainer: Any) -> int:
    return int(getattr(trainer.accelerator.state.fsdp_plugin, "fsdp_version", 1))


def _kind(trainer: Any) -> str:
    return str(trainer.accelerator.state.fsdp_plugin.state_dict_type.name)


def _optimizer(trainer: Any) -> Any:
    """The optimizer itself, without Accelerate's wrapper."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)

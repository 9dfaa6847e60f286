"""Checkpoints whose state is whole: of another framework, or put together from the files of another number of ranks.

`python -m batchbridge_verl.whole global_step_N` puts FSDP2's shards together, once, with all of them at hand; a run on
any number of ranks then goes on from that checkpoint. verl's own manager opens `model_world_size_N_rank_R.pt` of its
own number alone: where a rank's file is not there and a whole state is, that is loaded. FSDP1, which shards the
optimizer's state by flat pieces and does not run on CPUs, is refused. Source: verl 0.9.1
utils/checkpoint/fsdp_checkpoint_manager.py, workers/engine/fsdp/transformer_impl.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit import checkpoints
from batchbridge.kit.patches import Patches
from batchbridge.kit.whole_state import WHOLE, WholeState, load, of_adamw, refusal

ROLES = ("actor", "critic")
"""Models that a checkpoint of verl's has a folder for."""
OF_ANOTHER_NUMBER = (
    f"{checkpoints.FSDP_SHARDS}; or, once, `python -m batchbridge_verl.whole global_step_N` puts the shards of FSDP2 "
    "together, and any number of ranks goes on"
)
"""The reason why a checkpoint of another number of ranks is not loaded as it is, and what to do."""
RANDOM = "its random states are those of a new start: dropout goes on from other ones"
FSDP1 = (
    "FSDP1 keeps the optimizer's state in pieces that only its own model can put together, and whole states were never "
    "loaded into it; set actor_rollout_ref.actor.strategy=fsdp2 (critic.strategy, too), or go on with the weights in a "
    "new run"
)


def place_of(folder: Path) -> Path | None:
    """The place of the whole state of a model, whose folder in a checkpoint this is; None: there is none. One that
    another framework left is the policy's."""
    places = (folder, folder.parent) if folder.name == ROLES[0] else (folder,)
    return next((place for place in places if (place / WHOLE).is_file()), None)


def lies_in(checkpoint: Path, roles: Sequence[str]) -> bool:
    """Whether a checkpoint has the whole state of every model."""
    return all(place_of(checkpoint / role) is not None for role in roles)


def has_shards(checkpoint: Path, ranks: int) -> bool:
    """Whether verl itself can load a checkpoint on so many ranks."""
    return (checkpoint / ROLES[0] / f"model_world_size_{ranks}_rank_0.pt").is_file()


def check(checkpoint: Path, saved: Mapping[str, Any], *, legacy: bool) -> None:
    """Refusal (`CannotAttach`) of a whole state that verl would not go on from as it was saved."""
    if legacy:
        raise refusal(f"{checkpoint}: legacy workers do not load {WHOLE}; set trainer.use_legacy_worker_impl=disable")
    rollouts = saved.get("rollouts")
    if checkpoint.name != f"global_step_{rollouts}":
        reason = f"{checkpoint} was written after {rollouts} rollouts: name it global_step_{rollouts}, as verl counts"
        raise refusal(reason)


class WholeLoads:
    """The loading of whole states by an engine's checkpoint manager."""

    def __init__(self, manager: Any, patches: Patches) -> None:
        self._manager = manager
        what, why = "a whole state, where the rank has no file of its own", "exact resume"
        self._native = patches.set(manager, "load_checkpoint", self._load, what=what, why=why)

    def _load(self, local_path: str | None, *arguments: Any, **options: Any) -> Any:
        manager = self._manager
        place = None if local_path is None else place_of(Path(local_path))
        own = f"model_world_size_{manager.world_size}_rank_{manager.rank}.pt"
        if place is None or local_path is None or (Path(local_path) / own).is_file():
            return self._native(local_path, *arguments, **options)
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(manager.model, FSDPModule):
            raise refusal(f"{place}: {FSDP1}")
        load(WholeState.read(place), manager.model, manager.optimizer, manager.lr_scheduler, where=str(place))
        return None


def gathered(folder: Path) -> WholeState:
    """The whole state of a model of which FSDP2's shards lie in `folder`. Raises `CannotAttach`."""
    ranks = _ranks(folder)
    models = [_read(folder / f"model_world_size_{ranks}_rank_{rank}.pt") for rank in range(ranks)]
    optimizers = [_read(folder / f"optim_world_size_{ranks}_rank_{rank}.pt") for rank in range(ranks)]
    extra = _read(folder / f"extra_state_world_size_{ranks}_rank_0.pt")
    weights = {name: _whole(folder, [model[name] for model in models]) for name in models[0]}
    state = {
        number: {key: _whole(folder, [one["state"][number][key] for one in optimizers]) for key in kept}
        for number, kept in optimizers[0]["state"].items()
    }
    names = list(weights)
    if json.loads((folder / "huggingface" / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings"):
        names = [name for name in names if not name.endswith("lm_head.weight")]
    optimizer = {"state": state, "param_groups": optimizers[0]["param_groups"]}
    adamw = of_adamw(folder, names, optimizer, extra["lr_scheduler"] or {})
    for name, moments in adamw["moments"].items():
        if moments["exp_avg"].shape != weights[name].shape:
            raise refusal(f"{folder}: the optimizer's parameters are not the weights in their order ({name})")
    return WholeState(weights=weights, **adamw)


def _ranks(folder: Path) -> int:
    """The ranks that wrote a model's folder, all of them at hand, under FSDP2."""
    try:
        config = json.loads((folder / "fsdp_config.json").read_text(encoding="utf-8"))
        version, ranks = int(config["FSDP_version"]), int(config["world_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refusal(f"{folder}: fsdp_config.json cannot be read ({error!s:.200})") from None
    if version != 2:
        raise refusal(f"{folder}: {FSDP1}")
    for rank in range(ranks):
        for part in ("model", "optim", "extra_state"):
            if not (file := folder / f"{part}_world_size_{ranks}_rank_{rank}.pt").is_file():
                raise refusal(f"{file} is missing: copy every node's files into one folder")
    return ranks


def _read(file: Path) -> Any:
    import torch

    return torch.load(file, weights_only=False, map_location="cpu")  # distributed tensors; as verl reads its own


def _whole(folder: Path, parts: Sequence[Any]) -> Any:
    """A tensor of which every rank has a part."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    if first.device_mesh.ndim != 1 or first.placements != (Shard(0),):
        raise refusal(
            f"{folder}: sharded as {first.placements} over {first.device_mesh.ndim} dimensions, not FSDP2's one"
        )
    found = torch.cat([part.to_local() for part in parts])
    if found.shape != first.shape:
        raise refusal(f"{folder}: parts of all ranks make {tuple(found.shape)}, and not {tuple(first.shape)}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m batchbridge_verl.whole", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="a global_step_N that a wrapped run wrote")
    asked = parser.parse_args(arguments)
    try:
        if checkpoints.read(asked.checkpoint) is None:
            raise refusal(f"{asked.checkpoint} was not written by a wrapped run")
        checkpoints.check_files(asked.checkpoint)
        folders = [asked.checkpoint / role for role in ROLES if (asked.checkpoint / role).is_dir()]
        states = {folder: gathered(folder) for folder in folders}
    except CannotAttach as error:
        print("; ".join(error.reasons.values()), file=sys.stderr)
        return 2
    for folder, state in states.items():
        state.write(folder)
        print(folder / WHOLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

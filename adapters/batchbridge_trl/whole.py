"""A TRL checkpoint that goes on in another framework: `python -m batchbridge_trl.whole CHECKPOINT FOLDER`.

FOLDER gets the weights, AdamW's moments by the parameters' names, the place in the schedule and the place in the plan
(`batchbridge.kit.whole_state`). What a checkpoint has beyond these, and another framework would not go on with, is
refused by name. Source: transformers 5.23.0 Trainer._save_checkpoint, _save_optimizer_and_scheduler.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from batchbridge import CannotAttach, Plan, Spec
from batchbridge.kit import checkpoints
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.kit.whole_state import WholeState, of_adamw, refusal
from batchbridge_trl.finished import REFERENCE, read_rows, rows_file

NAMES = "optimizer_names"
"""The entry of a checkpoint's state that names the optimizer's parameters, in the order of its groups."""
_NEEDED = ("optimizer.pt", "scheduler.pt", "trainer_state.json")


def names_of(trainer: Any) -> dict[str, list[str]]:
    """The entry `NAMES` of a checkpoint; nothing where files of FSDP's or DeepSpeed's, or adapters alone, are saved."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or hasattr(model, "peft_config"):
        return {}
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = trainer.optimizer.param_groups
    return {NAMES: [named.get(id(parameter), "") for group in groups for parameter in group["params"]]}


def of_checkpoint(folder: Path) -> tuple[WholeState, dict[str, Any]]:
    """The whole state of a checkpoint, and its place in the plan with the number of rollouts done. Raises
    `CannotAttach`."""
    saved = checkpoints.read(folder)
    if saved is None or "schema" not in saved:
        raise refusal(f"{folder} has no {STATE_FILE} of this version: it was not written by a wrapped run of it")
    if not all(saved.get(NAMES) or [""]):
        reason = (
            f"{folder} does not name the optimizer's parameters: it was written by an earlier version, sharded, or "
            "with adapters; start a new run from the weights"
        )
        raise refusal(reason)
    if missing := [name for name in _NEEDED if not (folder / name).is_file()]:
        raise refusal(f"{folder}: {missing[0]} is missing")
    checkpoints.check_files(folder)
    if (folder / REFERENCE).is_file():
        raise refusal(f"{folder}: its reference model has moved (sync_ref_model), and stands nowhere else")
    if any(read_rows(rows_file(folder, rank)).get("terms") for rank in range(saved["ranks"])):
        raise refusal(f"{folder}: its entropy bonus adapts, which is TRL's own")
    position = Plan(Spec.from_dict(saved["spec"]), saved["dataset_size"]).seek(saved["optimizer_steps"])
    if position.live_rollouts:
        reason = (
            f"{folder} lies inside rollout {', '.join(map(str, position.live_rollouts))}, whose completions another "
            "framework has no place for: take a checkpoint between two rollouts"
        )
        raise refusal(reason)
    optimizer, schedule = (
        torch.load(folder / name, weights_only=True, map_location="cpu") for name in ("optimizer.pt", "scheduler.pt")
    )
    adamw = of_adamw(folder, saved.pop(NAMES), optimizer, schedule)
    return WholeState(weights=_weights(folder), **adamw), saved | {"rollouts": position.next_rollout}


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise refusal(f"{folder}: model.safetensors is missing")
    return {name: value for file in files for name, value in load_file(file).items()}


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m batchbridge_trl.whole", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="a checkpoint-N that a wrapped run wrote between two rollouts")
    parser.add_argument("folder", type=Path, help="a new folder; for verl: named global_step_ROLLOUTS")
    asked = parser.parse_args(arguments)
    try:
        state, saved = of_checkpoint(asked.checkpoint)
        if asked.folder.exists():
            raise refusal(f"{asked.folder} exists already")
    except CannotAttach as error:
        print("; ".join(error.reasons.values()), file=sys.stderr)
        return 2
    state.write(asked.folder)
    checkpoints.write(asked.folder, saved)
    print(f"{asked.folder}: after {saved['optimizer_steps']} optimizer steps, {saved['rollouts']} rollouts")
    return 0


if __name__ == "__main__":
    sys.exit(main())

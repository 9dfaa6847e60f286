"""A `GRPOTrainer` whose config turns FSDP on, in one process on CPU, where Accelerate shards nothing.

    fsdp_run.py FOLDER SETTINGS

SETTINGS, and what it prints, are JSON; the environment has MASTER_PORT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, settings: dict[str, Any]) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is marked experimental
    import torch

    from batchbridge import CannotAttach, wrap
    from batchbridge_trl.testing import scripted_trainer

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for mode in ("observe", "verify"):
        trainer = scripted_trainer(folder / mode, fsdp=True, **settings)
        found["fsdp"] = str(trainer.args.fsdp)
        native, trainer.is_fsdp_enabled = trainer.is_fsdp_enabled, True  # as it is on GPUs
        try:
            wrap(trainer)
        except CannotAttach as error:
            found["refused"] = list(error.reasons)
        trainer.is_fsdp_enabled = native
        wrap(trainer, mode=mode, ledger=folder / f"ledger-{mode}").train()
        found[mode] = trainer.state.global_step
    print(json.dumps(found))
    from batchbridge.testing.leaving import leave

    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

"""Which micro-batches verl's engine made: import this module in every process beside `cpu`.

`BATCHBRIDGE_CUTS`: folder where every training process leaves a line of JSON for each batch that it cut, in PID.jsonl:
train (False: a forward-only pass), budget (tokens; null: fixed micro-batches), tokens (of each row, by micro-batch).
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from batchbridge.running.launch import call_after_import


def record(module: Any) -> None:
    """After verl.workers.engine.utils, before an engine takes its names. Source: verl 0.8.0 to 0.9.1."""
    import torch

    native = module.prepare_micro_batches

    @functools.wraps(native)
    def prepare_micro_batches(data: Any, *arguments: Any, **options: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        made, places = native(data, *arguments, **options)
        dynamic = tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True)
        line = {
            "train": torch.is_grad_enabled(),
            "budget": int(tu.get(data, "max_token_len_per_gpu")) if dynamic else None,
            "tokens": [[len(row) for row in part["input_ids"].unbind()] for part in made],
        }
        folder = Path(os.environ["BATCHBRIDGE_CUTS"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return made, places

    module.prepare_micro_batches = prepare_micro_batches


def cuts_in(folder: Path) -> list[dict[str, Any]]:
    """What all processes left in `folder`."""
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]


if os.environ.get("BATCHBRIDGE_CUTS"):
    call_after_import({"verl.workers.engine.utils": f"{__name__}:record"})

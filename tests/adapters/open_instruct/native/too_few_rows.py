"""What the real functions of Open-Instruct make of fewer completions than replicas: `python too_few_rows.py FOLDER`.

Left in `rows.json`: the packed rows of each replica, by completions, and the optimizer steps that grpo.py's own
`train_batch` takes on a replica's share.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "upstream_values"))

import record  # found by the line above
from open_instruct import data_loader, grpo_utils
from open_instruct.rl_utils import pack_sequences

REPLICAS = 8


def shares_of(completions: int) -> list[int]:
    """Packed rows of each replica."""
    made = pack_sequences(
        queries=[[9, 9]] * completions,
        responses=[[10, 11, 12]] * completions,
        masks=[[1] * 3] * completions,
        pack_length=64,
        pad_token_id=0,
        vllm_logprobs=[[-1.0] * 3] * completions,
        min_num_batches=REPLICAS,
    )
    made.advantages = [torch.zeros(len(row)) for row in made.query_responses]
    shared = data_loader.prepare_collated_data_for_workers(made, REPLICAS, 1, 0, pin_memory=False)
    return [len(one.query_responses) for one in shared]


def steps_on(rows: int) -> int:
    """Optimizer steps of grpo.py's learner on as many rows."""
    made = record.Recorded()
    grpo_utils.forward_for_logprobs = made.forward
    record.olmo(made, record.arguments_of(1, 1, "24.0"), rows)
    return len(made.steps)


shares = {completions: shares_of(completions) for completions in (REPLICAS - 1, REPLICAS)}
steps = {completions: steps_on(share[0]) for completions, share in shares.items()}
(Path(sys.argv[1]) / "rows.json").write_text(json.dumps({"shares": shares, "steps": steps}), encoding="utf-8")

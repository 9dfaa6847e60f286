"""Run by torchrun in each of two processes: records real runs and writes, per case, whether they went as predicted.

    torchrun --nproc_per_node 2 two_process_run.py FOLDER

Each rank leaves `rank-R.json` in FOLDER: standard output is shared, and lines of two ranks can run together.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
warnings.simplefilter("ignore")

import test_behaviour_against_grpo_trainer as one_process

from batchbridge.contract.reading import Context, Source
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.config import TrlAdapter

ALIKE = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_generations": 4, "seed": 7}
CASES = (
    (9, {**ALIKE, "steps_per_generation": 4, "num_train_epochs": 2, "loss_type": "dapo"}),
    (6, {**ALIKE, "num_iterations": 2, "num_train_epochs": 1, "loss_type": "bnpo"}),
)


def main() -> None:
    rank = int(os.environ["RANK"])
    results = []
    for prompts, settings in CASES:
        with tempfile.TemporaryDirectory() as folder:
            config, recorded = one_process.record(folder, prompts, settings)
        context = Context(framework_version=one_process.trl.__version__, dataset_size=prompts)
        reading = TrlAdapter().read(Source(native=config), context)
        tokens = {(p, s): one_process.response_length(p, s) for p in range(prompts) for s in range(4)}
        predicted, weights = [], []
        for step in TrlAdapter().native_steps(reading, prompts, tokens):
            batches: dict[int, list] = {}
            for row in (row for row in step.rows if row.rank == rank):
                batches.setdefault(row.micro_batch, []).append(row)
            rows = [batches[index] for index in sorted(batches)]
            predicted.append([[(row.prompt, row.sample) for row in batch] for batch in rows])
            # Ranks are averaged natively; weights are shares of the sum.
            weights += [2 * float(sum(r.weight * tokens[r.prompt, r.sample] for r in batch)) for batch in rows]
        seen = [[rows for rows, _ in step] for step in recorded]
        losses = [loss for step in recorded for _, loss in step]
        error = max((abs(a - b) / b for a, b in zip(weights, losses, strict=False)), default=1.0)
        results.append([settings["loss_type"], rank, predicted == seen, error < 1e-5])
    Path(sys.argv[1], f"rank-{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main()

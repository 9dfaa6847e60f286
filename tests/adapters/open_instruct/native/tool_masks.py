"""What `test_tools_open_instruct` runs, one process per rank: the real learner over completions in which a tool's
tokens stand, which the loss leaves out, every optimizer step against the float64 oracle.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 tool_masks.py FOLDER

Rank 0 leaves what it measured in FOLDER/measured.json; oi_proofs.py says what is asked of it.
"""

from __future__ import annotations

import gradients  # first: it makes CPU's stand-ins

# isort: split
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import relative_error
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.open_instruct.job import prepare

CASES = (
    dataclasses.replace(gradients.CASES[0], name="tools", splits=("32 x 1", "48 x 2")),
    gradients.Case("tools, k3", gradients.TWO, {**gradients.KL, "kl_estimator": 2}, splits=("48 x 2",)),
)


class WithTools(ScriptedRollouts):
    """Completions of which every second one has a tool's tokens between its own: behind the second token, three of
    them where there are as many."""

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        """0 where a tool's tokens stand."""
        whole = super().loss_mask(prompt, sample)
        tool = range(2, min(5, len(whole) - 1)) if (prompt + sample) % 2 == 0 else range(0)
        return [0 if place in tool else trained for place, trained in enumerate(whole)]


class Bench(gradients.Bench):
    """As that of the gradients, and how far each gradient is from what it would be, were a tool's tokens trained."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.script = WithTools()
        self.trained: list[Any] = []

    def oracle(
        self, spec: Spec, step: int, first: int, members: Sequence[tuple[int, int]], case: gradients.Case
    ) -> tuple[Any, float, float]:
        """As there, of the masked completions."""
        self.script = ScriptedRollouts()
        whole, _, _ = super().oracle(spec, step, first, members, case)
        self.script = WithTools()
        self.trained.append(relative_error(self.gradients[step], whole))
        found: tuple[Any, float, float] = super().oracle(spec, step, first, members, case)
        return found


def main(folder: Path) -> None:
    os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "sgd")
    bench = Bench(folder)
    if bench.rank == 0 and not bench.policy.exists():
        prepare(folder)
    while not (bench.policy / "tokenizer_config.json").exists():
        pass
    results = gradients.wrapped(bench, CASES)
    for result, error in zip(results, bench.trained, strict=True):
        result["error_with_tool_tokens"] = error
    if bench.rank == 0:
        measured = {"ranks": bench.ranks, "wrapped": results}
        (folder / "measured.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
        (folder / "finished").touch()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the package would keep the process

"""What `test_sequences_open_instruct` runs, one process per rank, two of which share the tokens of every row: the real
learner with DeepSpeed's Ulysses on gloo, every optimizer step against the float64 oracle. The kernel of attention is
ours (`batchbridge_on_cpu.open_instruct.packed`).

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 sequences.py FOLDER

Rank 0 leaves what it measured in FOLDER/measured.json; oi_proofs.py says what is asked of it.
"""

from __future__ import annotations

import gradients  # first: it makes CPU's stand-ins

# isort: split
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from batchbridge.errors import BatchDrift
from batchbridge.reading.read import read
from batchbridge.running.wrap import wrap
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.open_instruct.job import Job, prepare

SHARED = {"sequence_parallel_size": 2}
KL = {**SHARED, **gradients.KL, "kl_estimator": 2}
CASES = (
    gradients.Case("shared rows", gradients.ALL, SHARED, splits=("32 x 1", "200 x 1"), stage=3),
    gradients.Case("shared rows, k3", gradients.TWO, KL, splits=("32 x 1",), stage=3),
    gradients.Case(
        "shared rows, corrected",
        ("token_mean",),
        {**SHARED, "use_rho_correction": True},
        gradients._corrected,
        splits=("32 x 1",),
        stage=3,
    ),
)


class Bench(gradients.Bench):
    """As that of the gradients; every job shares rows."""

    @contextmanager
    def job(self, *, args: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Job]:
        """As there."""
        with super().job(args={**SHARED, "deepspeed_stage": 3, **(args or {})}, **more) as made:
            yield made


def natively(bench: Bench) -> list[dict[str, Any]]:
    """The first step of unwrapped jobs against their rollout's gradient, by pack_length."""
    results = []
    for pack in (40, 200):
        with bench.job(settings={"pack_length": pack}, args={"num_epochs": 1}, rollouts=1) as job:
            spec = read(job.learner, framework="open_instruct").spec
            assert spec is not None
            job.train()
            members = [(prompt, sample) for prompt in job.engine.asked[:3] for sample in range(gradients.GROUP)]
            expected, floor, _ = bench.oracle(spec, 0, 0, members, CASES[0])
            error = relative_error(bench.gradients[0], expected)
            results.append({"pack_length": pack, "error": error, "floor": floor})
    return results


def lost(layer: Any) -> None:
    """The token behind a piece is not a target."""
    native = layer._sequences.cut

    def cut(split: Any, data: Any) -> Any:
        made = native(split, data)
        masks = [mask.clone() for mask in made.response_masks]
        for mask in masks:
            mask[:, -1] = 0
        return dataclasses.replace(made, response_masks=masks)

    layer._sequences.cut = cut


def doubled(layer: Any) -> None:
    """Of the last rank, the loss counts twice."""
    if layer._sequences.place:
        engine = layer._learner.model
        native = engine.backward
        engine.backward = lambda loss, *arguments, **options: native(2 * loss, *arguments, **options)


HANDS: Mapping[str, Callable[[Any], None]] = {"nothing": lambda layer: None, "lost": lost, "doubled": doubled}
"""What has a hand in the weights of a step."""


def tampered(bench: Bench) -> dict[str, Any]:
    """What a run says in which something has a hand, by rank, and how far its parameters moved."""
    said: dict[str, Any] = {}
    for name, hand in HANDS.items():
        with bench.job() as job:
            wrap(job.learner, like=gradients.wanted(job, "token_mean", {}))
            hand(job.learner.batchbridge_layer)
            before = torch.cat([value.flatten() for value in gradients.values(job.learner.model)])
            try:
                job.train()
                mine = ""
            except BatchDrift as error:
                mine = str(error)
            after = torch.cat([value.flatten() for value in gradients.values(job.learner.model)])
            everyone: list[Any] = [None] * bench.ranks
            torch.distributed.all_gather_object(everyone, mine)
            said[name] = {"said": everyone, "moved": float((after - before).norm())}
    return said


def main(folder: Path) -> None:
    os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "sgd")
    bench = Bench(folder)
    if bench.rank == 0 and not bench.policy.exists():
        prepare(folder)
    while not (bench.policy / "tokenizer_config.json").exists():
        pass
    measured: dict[str, Any] = {"ranks": bench.ranks, "natively": natively(bench), "tampered": tampered(bench)}
    measured["wrapped"] = gradients.wrapped(bench, CASES)
    if bench.rank == 0:
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

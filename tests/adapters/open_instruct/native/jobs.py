"""What `test_jobs_open_instruct` runs, one process per rank: whole jobs of the real learner, wrapped and not, and one
that goes on from DeepSpeed's checkpoint.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 jobs.py FOLDER

Rank 0 leaves a ledger's summary and the parameters of each in FOLDER; oi_proofs.py says what is asked of them.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import oi_proofs as proofs

from batchbridge.errors import CannotAttach
from batchbridge.meaning.spec import Staleness
from batchbridge.reading.read import read
from batchbridge.running.wrap import wrap
from batchbridge_on_cpu.open_instruct.job import Job, prepare
from batchbridge_open_instruct import feed

PROMPTS, ROLLOUTS = 12, 3
ARGS = {"num_epochs": 2, "lr_scheduler_type": "linear", "learning_rate": 0.06}
ADAM = {**ARGS, "learning_rate": 0.0015}
SCENARIOS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    # name -> (mode, optimizer, arguments)
    "enforced": ("enforce", "sgd", ARGS),
    "adamw": ("enforce", "adamw", ADAM),
    "observed": ("observe", "sgd", ARGS),
    "started": ("enforce", "adamw", ADAM),
    "resumed": ("enforce", "adamw", {**ADAM, "max_grad_norm": 1e8}),
}
"""`started` ends after one rollout, `resumed` goes on from its checkpoint, with another clip norm that nothing
reaches either."""


def flat(learner: Any) -> torch.Tensor:
    return torch.cat([one.detach().float().flatten().clone() for one in learner.model.module.parameters()])


def run(folder: Path, name: str) -> None:
    """One scenario on this rank."""
    mode, optimizer, args = SCENARIOS[name]
    os.environ["BATCHBRIDGE_OPTIMIZER"] = optimizer
    rank, ledger, checkpoint = int(os.environ["RANK"]), folder / name, folder / "checkpoint"
    if name == "resumed":
        ledger, args = folder / "started", {**args, "checkpoint_state_dir": str(checkpoint)}
    elif rank == 0:
        shutil.rmtree(ledger, ignore_errors=True)
        if name == "started":
            shutil.rmtree(checkpoint, ignore_errors=True)
    dist.barrier() if dist.is_initialized() else None
    job = Job(folder / "policy", prompts=PROMPTS, rollouts=ROLLOUTS, args=args)
    like = read(job.learner, framework="open_instruct").spec
    assert like is not None
    if mode == "enforce":
        like = like.replace(staleness=Staleness())
    first = flat(job.learner)
    wrap(job.learner, like=like, mode=mode, ledger=ledger)  # type: ignore[arg-type]  # a mode of SCENARIOS
    done = 0
    if name == "resumed":
        states = job.loaded["checkpoint_state"]
        state = states["data_prep_actor_state"]
        foreign = {**state, "iter_dataloader_state": {**state["iter_dataloader_state"], "ranks": 3}}
        try:
            job.actor.set_state(foreign)
            raise AssertionError("a checkpoint of other ranks was taken")
        except CannotAttach as error:
            (folder / "foreign.txt").write_text(str(error), encoding="utf-8")
        prompts = feed.digest_of_prompts(job.actor)
        assert prompts is not None
        assert state["iter_dataloader_state"]["prompts"] == prompts, "what the checkpoint holds"
        others = {**state["iter_dataloader_state"], "prompts": {**prompts, "whole": "0" * 16}}
        with pytest.raises(CannotAttach, match="other prompts"):
            job.actor.set_state({**state, "iter_dataloader_state": others})
        job.actor.set_state(states["data_prep_actor_state"])
        job.learner.load_dataloader_state(states["dataloader_state"])
        done = job.engine.model_step = int(states["training_step"])
    for _ in range(done, 1 if name == "started" else ROLLOUTS):
        job.train()
    if name == "started":
        state = {
            "training_step": 1,
            "dataloader_state": job.learner.get_dataloader_state(),
            "data_prep_actor_state": job.actor.get_state(),
        }
        job.learner.save_checkpoint_state(str(checkpoint), state)
    last = flat(job.learner)
    if name == "resumed":
        (folder / f"report-{rank}.txt").write_text(job.learner.batchbridge.report(), encoding="utf-8")
    dist.barrier()
    if rank == 0:
        torch.save({"first": first, "last": last}, folder / f"{name}.pt")
        summary = proofs.summary(ledger)
        (folder / f"{name}.json").write_text(json.dumps(summary), encoding="utf-8")
    job.close()
    job.learner.model.destroy()


def main(folder: Path) -> None:
    if int(os.environ["RANK"]) == 0 and not (folder / "policy").exists():
        prepare(folder)
    while not (folder / "policy" / "tokenizer_config.json").exists():
        pass
    for name in SCENARIOS:
        run(folder, name)


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

"""What `test_jobs_open_instruct` runs: the job of `jobs.py` with two learners and the data preparation actor as Ray's
actors, wrapped as a driver of one's own wraps them (docs/open_instruct.md; the engine is scripted); and one whose
learner is killed.

    PYTHONPATH=CHECKOUT python ray_job.py FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

RANKS, ROLLOUTS = 2, 3


def wrap_here(learner: Any, ledger: str) -> str:
    """In a learner's process."""
    from batchbridge import wrap
    from batchbridge.meaning.spec import Staleness
    from batchbridge.reading.read import read

    own = read(learner, framework="open_instruct").spec
    assert own is not None
    wrap(learner, like=own.replace(staleness=Staleness()), ledger=ledger)
    return str(learner.batchbridge.report())


def kill(learner: Any) -> None:
    """In a learner's process."""
    os.kill(os.getpid(), 9)


def job(folder: Path, ledger: Path, *, killed: bool) -> None:
    """A driver: loads, wraps, starts, and after every training step sends the weights."""
    import ray

    from batchbridge_on_cpu.open_instruct import job as kit

    handles = kit.ray_job(
        folder / "policy",
        prompts=12,
        rollouts=ROLLOUTS,
        ranks=RANKS,
        args={"num_epochs": 2, "learning_rate": 0.06, "lr_scheduler_type": "linear"},
    )
    learners, actor = handles
    print(ray.get([one.__ray_call__.remote(wrap_here, str(ledger)) for one in learners])[0], flush=True)
    ray.get(actor.start.remote())
    for rollout in range(ROLLOUTS):
        if killed and rollout == 1:
            learners[1].__ray_call__.remote(kill)
        ray.get([one.step.remote() for one in learners])
        ray.get(actor.__ray_call__.remote(kit.weights_sent))


def main(folder: Path) -> None:
    from batchbridge_on_cpu.open_instruct import cpu

    os.environ["BATCHBRIDGE_OPTIMIZER"] = "sgd"
    cpu.start()
    import oi_proofs as proofs
    import ray

    from batchbridge_on_cpu.open_instruct import job as kit

    kit.prepare(folder)
    hook = f"{cpu.__name__}.start"
    for name, killed in (("ray", False), ("killed", True)):
        ledger = folder / name
        shutil.rmtree(ledger, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="o") as short:
            ray.init(
                num_cpus=8,
                include_dashboard=False,
                object_store_memory=200_000_000,
                _temp_dir=short,
                runtime_env={"worker_process_setup_hook": hook},
            )
            try:
                job(folder, ledger, killed=killed)
                said = "the job ended well"
            except ray.exceptions.RayError as error:
                said = str(error)
            finally:
                ray.shutdown()
        (folder / f"{name}.json").write_text(json.dumps(proofs.summary(ledger)), encoding="utf-8")
        (folder / f"{name}.txt").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

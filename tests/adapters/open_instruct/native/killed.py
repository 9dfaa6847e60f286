"""What `test_jobs_open_instruct` runs: a job of two learners without Ray, the second of which is killed in its second
rollout.

    PYTHONPATH=CHECKOUT python killed.py FOLDER

Leaves the ledger's summary, and the error with which the other learner ends.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import oi_proofs as proofs
from open_instruct import grpo_fast  # noqa: F401 - before the fork, once for both learners

from batchbridge.meaning.spec import Staleness
from batchbridge.reading.read import read
from batchbridge.running.wrap import wrap
from batchbridge_on_cpu.open_instruct.job import Job, prepare


def learn(folder: Path, rank: int, port: int) -> None:
    """One learner's process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0")
    job = Job(folder / "policy", prompts=12, rollouts=3, args={"num_epochs": 2, "learning_rate": 0.01})
    own = read(job.learner, framework="open_instruct").spec
    assert own is not None
    wrap(job.learner, like=own.replace(staleness=Staleness()), ledger=folder / "ledger")
    job.train()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    job.train()


def main(folder: Path) -> None:
    from open_instruct.utils import find_free_port

    os.environ["BATCHBRIDGE_OPTIMIZER"] = "sgd"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "ledger", ignore_errors=True)
    prepare(folder)
    port, processes = find_free_port(), []
    for rank in (0, 1):
        process = os.fork()
        if not process:
            try:
                learn(folder, rank, port)
                said = "the job ended well"
            except BaseException:
                said = traceback.format_exc()
            (folder / f"rank{rank}.txt").write_text(said, encoding="utf-8")
            os._exit(1)  # threads of the package would keep the process
        processes.append(process)
    ended = [os.waitpid(process, 0)[1] for process in processes]
    assert os.WIFSIGNALED(ended[1])
    (folder / "killed.json").write_text(json.dumps(proofs.summary(folder / "ledger")), encoding="utf-8")
    (folder / "killed.txt").write_text((folder / "rank0.txt").read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

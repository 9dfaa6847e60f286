"""What `test_critic_openrlhf` runs beside `critics.py`: a critic whose backward pass is DeepSpeed's own again after the
layer was installed, and one that is left alone.

    torchrun --nproc_per_node 1 critic_undone.py FOLDER

What each was told is left in FOLDER/measured.pt; empty: it was trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from critics import PROMPTS, CriticBench, critic_spec
from gradients import clean

from batchbridge.errors import BatchDrift
from batchbridge.meaning.plan import Plan
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_critic, save_policy
from batchbridge_openrlhf.critic_engine import OpenRlhfCriticLayer
from batchbridge_openrlhf.engine import install


def main(folder: Path) -> None:
    policy, critic = folder / "policy", folder / "critic"
    save_policy(policy)
    save_critic(policy, critic)
    bench, spec, told = CriticBench(folder, policy, critic), critic_spec("fixed 2"), {}
    trainer = bench.trainer(2, False)
    native = trainer.critic.backward
    for name in ("left alone", "undone"):
        trainer.critic.global_steps = 0  # a run of its own
        install(trainer, bench.critic_orders(spec), OpenRlhfCriticLayer)
        if name == "undone":
            trainer.critic.backward = native
        bench.fill(trainer, Plan(spec, PROMPTS), 0)
        told[name] = ""
        try:
            bench.run(trainer)
        except BatchDrift as drift:
            told[name] = str(drift)
        clean(trainer)
    torch.save(told, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What `test_packed_openrlhf` runs, one process per rank: `gradients.py` with packed samples (`ds.packing_samples`).

    torchrun --nproc_per_node 2 packed.py FOLDER

Attention is torch's own (sdpa), which transformers keeps inside of each completion by the position numbers that
OpenRLHF gives it; flash attention needs a GPU. Everything else is OpenRLHF's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from gradients import CASES, EVERYWHERE, KL_COEFFICIENT, PROMPTS, Bench, natively, spec_of, tampered, wrapped

from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy
from batchbridge_openrlhf.engine import install, remove

gradients.SHARED.update({"ds.packing_samples": True, "ds.attn_implementation": "sdpa"})
TRAINERS: tuple[tuple[int, bool, tuple[str, ...], tuple[str, ...]], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, splits, cases
    (2, False, ("fixed 8", "budget 60"), tuple(CASES)),
    (1, True, ("budget 24",), EVERYWHERE),
    (3, True, ("budget 24",), EVERYWHERE),
)


def looking_across(bench: Bench, trainer: Any) -> float:
    """The control: a wrapped step whose completions see those before them in the row, which transformers lets them
    where it is told to keep a cache. Error over the bar."""
    case = CASES["token_mean"]
    spec = spec_of(case, "fixed 8")
    plan, config = Plan(spec, PROMPTS), trainer.actor.model.module.config
    install(trainer, bench.orders(spec, settings={**case.loss, KL_COEFFICIENT: case.coefficient}))
    config.use_cache = True
    bench.fill(trainer, plan, 0)
    bench.run(trainer, 0.0)
    config.use_cache = False
    remove(trainer)
    members = [(member.prompt, member.sample) for member in plan.step(0).members]
    expected, floor, _ = bench.expected(case, members)
    return relative_error(bench.gradients[0], expected) / max(1e-6, 3 * floor)


def packs(trainer: Any) -> list[int]:
    """Rows of the policy's input in one pass of two completions: packed, one."""
    seen: list[int] = []
    hook = trainer.actor.model.module.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[0]))
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]])
    with torch.no_grad():
        trainer.actor(ids, attention_mask=(ids != 0).long(), return_logprobs=True)
    hook.remove()
    return seen


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Bench(folder, policy)
    found: dict[str, Any] = {"wrapped": [], "natively": {}}
    for zero, dynamic, splits, cases in TRAINERS:
        trainer = bench.trainer(zero, dynamic)
        found["packs"] = packs(trainer)
        found["natively"][f"ZeRO-{zero}{', dynamic' if dynamic else ''}"] = natively(bench, trainer, zero, dynamic)
        found["wrapped"] += wrapped(bench, trainer, zero, dynamic, splits, cases)
        if zero == 2:
            found["tampered"] = {"enforce": tampered(bench, trainer, "enforce")}
            found["looking across"] = looking_across(bench, trainer)
        del trainer
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

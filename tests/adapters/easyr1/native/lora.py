"""What `test_lora_easyr1` runs, one process per rank: EasyR1's real `FSDPWorker.update_actor` with LoRA.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 lora.py FOLDER [SETTINGS]

As gradients.py; the oracle is peft's own model of the same policy. EasyR1 rounds the frozen weights to bf16, so the
oracle's are. Rank 0 leaves what it measured in FOLDER/lora.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradients
import peft
import torch
import verl
from gradients import CASES, Bench
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import double, relative_error, step_gradient
from batchbridge_easyr1.engine import install, probe, remove
from batchbridge_on_cpu.steps import PROMPTS, bar, spec_of

RANK, ALPHA = 4, 8
SETTINGS = {"worker.actor.model.lora.rank": RANK, "worker.actor.model.lora.alpha": ALPHA}
SPLITS, MEASURED = ("fixed 1", "fixed 2", "budget 4"), (2, 3, 4)
AGGREGATIONS = ("token_mean", "sequence_mean")


def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
    """An adapter's weights; B not at zero, where A has no gradient."""
    seed = sum(map(ord, name))
    return 0.1 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


class Adapted(Bench):
    """A bench whose policy has adapters."""

    def __init__(self, folder: Path) -> None:
        gradients.full_gradient = trained
        super().__init__(folder, SETTINGS)
        base = copy.deepcopy(self.policy)
        for parameter in base.parameters():
            parameter.data = parameter.data.bfloat16().float()
        config = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
        self.policy = peft.get_peft_model(base, config)
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(drawn(name, parameter))
            with FSDP.summon_full_params(self.worker.fsdp_module, writeback=True):
                for name, parameter in self.worker.fsdp_module.named_parameters():
                    if parameter.requires_grad:
                        parameter.copy_(drawn(name.replace("_fsdp_wrapped_module.", ""), parameter))
        self.exact, self.rough = double(self.policy), copy.deepcopy(self.policy).eval()


def trained(worker: Any) -> torch.Tensor:
    """The gradient of the adapters; nothing else may have one."""
    found = []
    with FSDP.summon_full_params(worker.fsdp_module, with_grads=True):
        for name, parameter in worker.fsdp_module.named_parameters():
            if parameter.requires_grad:
                found.append(parameter.grad.detach().double().flatten().clone())
            elif parameter.grad is not None:
                raise AssertionError(f"{name} is frozen and has a gradient")
    return torch.cat(found)


def wrapped(bench: Adapted) -> Iterator[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    for case in CASES[:2]:
        for aggregation in AGGREGATIONS:
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            for split in SPLITS:
                install(bench.worker, bench.orders(spec, case))
                probe(bench.worker)
                try:
                    for index in MEASURED:
                        samples, members = bench.step(plan, index)
                        bench.send(samples, members, index, split)
                        yield {"split": split, **bench.measure(case, spec, index, samples, bench.gradient)}
                finally:
                    remove(bench.worker)


def control(bench: Adapted) -> float:
    """The gradient of a step against an oracle with other adapters. Error over the bar."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 2)
    install(bench.worker, bench.orders(spec, CASES[0]))
    bench.send(samples, members, 2, "fixed 2")
    remove(bench.worker)
    _, floor, _ = bench.expected(CASES[0], spec, 2, samples)
    other = copy.deepcopy(bench.exact)
    for parameter in other.parameters():
        if parameter.requires_grad:
            parameter.data *= 1.01
    expected = step_gradient(other, samples, term=spec.loss.policy, objective=spec.objective)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


def main(folder: Path) -> None:
    bench = Adapted(folder)
    found = {"version": verl.__version__, "wrapped": list(wrapped(bench)), "control": control(bench)}
    if bench.rank == 0:
        (folder / "lora.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

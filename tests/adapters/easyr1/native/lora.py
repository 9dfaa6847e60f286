"""What `test_lora_easyr1` runs, one process per rank: EasyR1's real `FSDPWorker.update_actor` with LoRA.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 lora.py FOLDER FAMILY [SETTINGS]

As gradients.py, or with a FAMILY of models as images.py; the oracle is peft's own model of the same policy. EasyR1
rounds the frozen weights to bf16, so the oracle's are. SETTINGS: as JSON. Rank 0 leaves what it measured in
FOLDER/lora.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import copy
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gradients
import peft
import torch
import verl
from gradients import CASES, Bench
from images import OWN, Plain, Seeing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

sys.path.insert(0, str(Path(__file__).parent.parent))

from lora_proofs import ALPHA, LORA, RANK

from batchbridge.errors import BatchDrift
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import double, relative_error, step_gradient
from batchbridge_easyr1.engine import install, probe, remove
from batchbridge_on_cpu.easyr1 import pictures
from batchbridge_on_cpu.steps import PROMPTS, bar, spec_of

SPLITS, MEASURED = ("fixed 1", "fixed 2", "budget 4"), (2, 3, 4)
AGGREGATIONS = ("token_mean", "sequence_mean")
MODEL = "worker.actor.model."


def drawn(name: str, like: torch.Tensor) -> torch.Tensor:
    """An adapter's weights; B not at zero, where A has no gradient."""
    seed = sum(map(ord, name))
    return 0.1 * torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def adapted(base: Any, settings: Mapping[str, Any]) -> Any:
    """peft's model of a policy whose weights are rounded as EasyR1 rounds those that it freezes."""
    for parameter in base.parameters():
        parameter.data = parameter.data.bfloat16().float()
    asked = settings.get(f"{MODEL}lora.target_modules", "all-linear")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=asked if asked == "all-linear" else asked.split(","),
        exclude_modules=settings.get(f"{MODEL}lora.exclude_modules"),
    )
    made = peft.get_peft_model(base, config)
    if settings.get(f"{MODEL}freeze_vision_tower"):
        for name, parameter in made.named_parameters():
            parameter.requires_grad = parameter.requires_grad and "visual" not in name
    return made


def adapt(bench: Bench, settings: Mapping[str, Any]) -> None:
    """Puts the same adapters into the worker and into the oracle, which has the policy without them."""
    inner = bench.policy.model if isinstance(bench.policy, Plain) else bench.policy
    made = adapted(copy.deepcopy(inner), settings)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if ".lora_" in name:
                parameter.copy_(drawn(name, parameter))
        with FSDP.summon_full_params(bench.worker.fsdp_module, writeback=True):
            for name, parameter in bench.worker.fsdp_module.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(drawn(name.replace("_fsdp_wrapped_module.", ""), parameter))
    bench.policy = Plain(made, bench.policy._ours) if isinstance(bench.policy, Plain) else made
    bench.exact, bench.rough = double(bench.policy), copy.deepcopy(bench.policy).eval()
    if isinstance(bench, Seeing):
        bench.trained = torch.ones(())  # the oracle has gradients of adapters alone


def trained(worker: Any) -> torch.Tensor:
    """The gradient of the adapters, zeros where a step gives one none; nothing else may have one."""
    found = []
    with FSDP.summon_full_params(worker.fsdp_module, with_grads=True):
        for name, parameter in worker.fsdp_module.named_parameters():
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                found.append(gradient.detach().double().flatten().clone())
            elif parameter.grad is not None:
                raise AssertionError(f"{name} is frozen and has a gradient")
    return torch.cat(found)


def wrapped(bench: Bench) -> Iterator[dict[str, Any]]:
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


def control(bench: Bench) -> float:
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


# ---- a hand in a step


def dropped(worker: Any) -> Callable[[], None]:
    """The first micro-batch's gradient is lost."""
    native, seen = worker.actor._forward_micro_batch, []

    def forward(*given: Any, **options: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            worker.optimizer.zero_grad()
        return native(*given, **options)

    worker.actor._forward_micro_batch = forward
    return lambda: setattr(worker.actor, "_forward_micro_batch", native)


def tripled(worker: Any) -> Callable[[], None]:
    """Every gradient, by a hook of the optimizer."""

    def triple(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad *= 3

    return worker.optimizer.register_step_pre_hook(triple).remove  # type: ignore[no-any-return]  # torch is untyped here


def times_seven(worker: Any) -> Callable[[], None]:
    """The policy's loss."""
    scope = worker.batchbridge._native_update.__func__.__globals__
    native = scope["compute_policy_loss"]

    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return 7 * value, metrics

    scope["compute_policy_loss"] = loss
    return lambda: None  # of this attachment alone


HANDS: Mapping[str, Callable[[Any], Callable[[], None]]] = {
    "nothing": lambda worker: lambda: None,
    "one gradient dropped": dropped,
    "gradients times 3": tripled,
    "loss times 7": times_seven,
}


def tampered(bench: Bench) -> dict[str, Any]:
    """What each of `HANDS` in step 3 comes to on every rank, and how many updates there were."""
    spec, found = spec_of(CASES[0], "token_mean"), {}
    samples, members = bench.step(Plan(spec, PROMPTS), 3)
    for name, hand in HANDS.items():
        install(bench.worker, bench.orders(spec, CASES[0]))
        undo, before, said = hand(bench.worker), bench.updates, ""
        try:
            bench.send(samples, members, 3, "fixed 1")
        except BatchDrift as drift:
            said = str(drift)
        finally:
            undo()
            remove(bench.worker)
            bench.worker.optimizer.zero_grad()
        everyone: list[Any] = [None] * bench.ranks
        torch.distributed.all_gather_object(everyone, said)
        found[name] = {"said": everyone, "updates": bench.updates - before}
    return found


def main(folder: Path, family: str, words: str = "{}") -> None:
    settings = {**LORA, **json.loads(words)}
    gradients.full_gradient = trained
    pictures.every_prompt_shown()  # EasyR1's forward fails where a micro-batch has none
    bench = Seeing(folder, family, {**OWN, **settings}) if family else Bench(folder, settings)
    adapt(bench, settings)
    found = {
        "version": verl.__version__,
        "peft": peft.__version__,
        "wrapped": list(wrapped(bench)),
        "control": control(bench),
        "tampered": tampered(bench),
    }
    if bench.rank == 0:
        (folder / "lora.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""What `test_tampering_easyr1` runs, one process per rank: steps of EasyR1's real `FSDPWorker.update_actor` that
something else than the plan has a hand in.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 tampering.py FOLDER [SETTINGS]

As gradients.py; rank 0 leaves FOLDER/tampering.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import verl
from gradients import CASES, PROMPTS, Bench, spec_of
from verl.trainer.core_algos import average_loss
from verl.workers.actor import dp_actor

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.probing import TOKENS
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge_easyr1.engine import install, probe, remove

TAMPERED = 3
"""The optimizer step that something else has a hand in."""
Tamper = Callable[[Bench], None]


def last_rank(bench: Bench) -> bool:
    return bench.rank == bench.ranks - 1


def forward(bench: Bench, change: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
    """In the way of every forward pass."""
    native = bench.worker.actor._forward_micro_batch
    bench.worker.actor._forward_micro_batch = lambda micro, **options: change(native, micro, options)


def loss_times_seven(bench: Bench) -> None:
    scope = bench.worker.batchbridge._native_update.__func__.__globals__
    native = scope["compute_policy_loss"]

    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return value * 7, metrics

    if last_rank(bench):
        scope["compute_policy_loss"] = loss


def loss_of_another_value(bench: Bench) -> None:
    """1.001 times its value, and its own gradient."""
    scope = bench.worker.batchbridge._native_update.__func__.__globals__
    native = scope["compute_policy_loss"]

    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return value + 0.001 * value.detach(), metrics

    if last_rank(bench):
        scope["compute_policy_loss"] = loss


def loss_that_is_no_number(bench: Bench) -> None:
    scope = bench.worker.batchbridge._native_update.__func__.__globals__
    native = scope["compute_policy_loss"]

    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return value * float("nan"), metrics

    if last_rank(bench):
        scope["compute_policy_loss"] = loss


def mask_touched(bench: Bench) -> None:
    def change(native: Any, micro: Any, options: dict[str, Any]) -> Any:
        mask = micro["response_mask"]
        mask[mask.sum(1) > 1, 0] = 0
        return native(micro, **options)

    if last_rank(bench):
        forward(bench, change)


def advantages_touched(bench: Bench) -> None:
    def change(native: Any, micro: Any, options: dict[str, Any]) -> Any:
        micro["advantages"] *= 1.01
        return native(micro, **options)

    if last_rank(bench):
        forward(bench, change)


def gradient_dropped(bench: Bench) -> None:
    """Of the first micro-batch."""
    seen = []

    def change(native: Any, micro: Any, options: dict[str, Any]) -> Any:
        seen.append(1)
        if len(seen) == 2:
            bench.worker.optimizer.zero_grad()
        return native(micro, **options)

    forward(bench, change)


def loss_detached(bench: Bench) -> None:
    forward(bench, lambda native, micro, options: native(micro, **options).detach().requires_grad_())


def gradients_times_three(bench: Bench) -> None:
    native = bench.worker.actor._optimizer_step

    def step() -> Any:
        triple(bench)
        return native()

    bench.worker.actor._optimizer_step = step


def hook_of_the_optimizer(bench: Bench) -> None:
    bench.handles.append(bench.worker.optimizer.register_step_pre_hook(lambda *_: triple(bench)))


def hooks_on(bench: Bench, factor: float, owners: Callable[[Any], bool]) -> None:
    """A hook on the weights of modules, as FSDP1 makes them anew in each forward pass."""

    def before(module: Any, _: Any) -> None:
        for name in ("weight", "bias"):
            weight = getattr(module, name, None)
            if torch.is_grad_enabled() and isinstance(weight, torch.Tensor) and weight.requires_grad:
                bench.handles.append(weight.register_hook(lambda gradient: factor * gradient))

    for module in bench.worker.fsdp_module.modules():
        if owners(module):
            bench.handles.append(module.register_forward_pre_hook(before))


def hook_on_one(bench: Bench) -> None:
    (first, *_) = [one for one in bench.worker.fsdp_module.modules() if isinstance(one, torch.nn.Linear)]
    hooks_on(bench, 1.05, lambda module: module is first)


def hook_on_all(bench: Bench) -> None:
    hooks_on(bench, 0.1, lambda module: not list(module.children()))


def triple(bench: Bench) -> None:
    for parameter in bench.worker.fsdp_module.parameters():
        if parameter.grad is not None:
            parameter.grad *= 3


TAMPERS: dict[str, Tamper | None] = {
    "nothing": None,
    "loss times 7": loss_times_seven,
    "value of the loss": loss_of_another_value,
    "a loss that is not a number": loss_that_is_no_number,
    "mask": mask_touched,
    "advantages": advantages_touched,
    "one gradient dropped": gradient_dropped,
    "loss detached": loss_detached,
    "gradients times 3": gradients_times_three,
    "gradients times 3, by a hook of the optimizer": hook_of_the_optimizer,
    "a hook on one weight": hook_on_one,
    "a hook on all weights": hook_on_all,
}


def tampered(bench: Bench, name: str, folder: Path) -> dict[str, Any]:
    """Steps up to the one that is tampered with: what ended it on each rank, and how many updates there were."""
    spec, tamper = spec_of(CASES[0], "sequence_mean"), TAMPERS[name]
    plan, before, said = Plan(spec, PROMPTS), bench.updates, ""
    bench.handles = []
    ledger = folder / f"tampered {name}"
    # Clipping by the norm is not a tampering.
    own, bench.config.max_grad_norm = bench.config.max_grad_norm, 0.05
    install(bench.worker, bench.orders(spec, CASES[0], ledger=ledger))
    untouched = {name: vars(bench.worker.actor)[name] for name in ("_optimizer_step", "_forward_micro_batch")}
    try:
        for index in range(TAMPERED + 1):
            if index == TAMPERED and tamper is not None:
                tamper(bench)
            samples, members = bench.step(plan, index)
            bench.send(samples, members, index, "fixed 1")
    except BatchDrift as drift:
        said = str(drift)
    finally:
        for handle in bench.handles:
            handle.remove()
        vars(bench.worker.actor).update(untouched)
        remove(bench.worker)
        bench.worker.optimizer.zero_grad()
        bench.config.max_grad_norm = own
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, said)
    return {"said": everyone, "updates": bench.updates - before, "recorded": sum(1 for _ in read_steps(ledger))}


def unreadable(bench: Bench, place: str, folder: Path) -> dict[str, Any]:
    """Two native steps that are observed, where one rank, of those that write, does not find a field of the second:
    how far their gradients are from those of EasyR1 alone, and what the ledger says. place: the function of ours that
    fails."""
    spec, config, ledger = spec_of(CASES[0], "token_mean"), bench.config, folder / f"unreadable {place}"
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    share = len(samples) // bench.ranks
    own, config.global_batch_size_per_device = config.global_batch_size_per_device, share * config.ulysses_size
    bench.cut("fixed 1")
    mine = list(range(bench.rank * share, (bench.rank + 1) * share))

    def gradients(before_second: Tamper) -> list[torch.Tensor]:
        found = []
        for index in range(2):
            if index:
                before_second(bench)
            # EasyR1 counts rollouts, and each is one step here.
            bench.send_rows(samples, [(index, *member[1:]) for member in members], mine, index)
            assert bench.gradient is not None
            found.append(bench.gradient.clone())
        return found

    def lacking(*_: Any) -> Any:
        raise KeyError("a field that is not there")

    def fails(bench: Bench) -> None:
        layer = bench.worker.batchbridge
        if layer.ranks.writes and layer.ranks.replica == bench.replicas - 1:
            setattr(*{"_expected": (layer, "_expected"), "look": (layer._watch, "look")}[place], lacking)

    alone = gradients(lambda _: None)
    install(bench.worker, bench.orders(spec, CASES[0], mode="observe", ledger=ledger))
    try:
        observed = gradients(fails)
    finally:
        remove(bench.worker)
        config.global_batch_size_per_device = own
    torch.distributed.barrier()
    steps = read_steps(ledger)
    return {
        "apart": max(relative_error(one, other) for one, other in zip(observed, alone, strict=True)),
        "seen": [step["step"] for step in steps],
        "incomplete": steps.incomplete,
    }


def own_loss(how: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """A user's own loss, in place of EasyR1's: PPO's surrogate, averaged in some way. native: gives the metrics,
    which 0.3.2 reads by name."""

    def loss(
        log_probs: Any, old_log_probs: Any, advantages: Any, response_mask: Any, loss_avg_mode: str, **options: Any
    ) -> Any:
        ratio = (log_probs - old_log_probs).exp()
        value = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        value = torch.where(advantages < 0, torch.minimum(value, -3.0 * advantages), value)
        factor = {
            "as EasyR1": 1,
            "times 7": 7,
            "own tokens": TOKENS / response_mask.sum(),
            "mean over rows": 1 / len(response_mask),
        }[how]
        with torch.no_grad():
            _, metrics = native(
                log_probs, old_log_probs, advantages, response_mask, loss_avg_mode=loss_avg_mode, **options
            )
        return average_loss(value, response_mask, mode=loss_avg_mode) * factor, metrics

    return loss


def probed(bench: Bench) -> dict[str, list[str]]:
    """Reasons against attaching with a custom loss, by what that does."""
    found = {}
    native = dp_actor.compute_policy_loss
    for how in ("as EasyR1", "times 7", "own tokens", "mean over rows"):
        dp_actor.compute_policy_loss = own_loss(how, native)
        before = dict(vars(bench.config))
        try:
            install(bench.worker, bench.orders(spec_of(CASES[0], "token_mean"), CASES[0]))
            probe(bench.worker)
            found[how] = []
        except CannotAttach as refusal:
            found[how] = [f"{name}: {reason}" for name, reason in refusal.reasons.items()]
        finally:
            dp_actor.compute_policy_loss = native
            remove(bench.worker)
        if vars(bench.config) != before:
            raise AssertionError("probing left settings behind")
    return found


def probed_objectives(bench: Bench) -> list[str]:
    """Everything that is enforced passes: what did not."""
    failed = []
    known = hasattr(bench.config, "loss_type")
    for case in CASES:
        for aggregation in case.aggregations if case.loss_mode == "default" or known else ():
            install(bench.worker, bench.orders(spec_of(case, aggregation), case))
            try:
                probe(bench.worker)
            except CannotAttach as refusal:
                failed.append(f"{case.name} {aggregation}: {refusal}")
            finally:
                remove(bench.worker)
    return failed


def main(folder: Path, settings: str = "{}") -> None:
    bench = Bench(folder, json.loads(settings))
    unread = {place: unreadable(bench, place, folder) for place in ("_expected", "look")}
    bench.keeps_gradients = False  # there are none where the loss is detached
    found = {
        "unreadable": unread,
        "version": verl.__version__,
        "probed": probed(bench),
        "failed": probed_objectives(bench),
        "tampered": {name: tampered(bench, name, folder) for name in TAMPERS},
    }
    if bench.rank == 0:
        (folder / "tampering.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Part of what `processes.py` runs: an engine that has nothing of FSDP's, behind verl's own interface and registry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, PROMPTS, SPLITS, Bench, spec_of, wrapped
from tampering import TAMPERED, altered, as_it_was, last_rank, losses
from tampering import refused as loss_refused

import batchbridge_on_cpu.verl.own_engine  # noqa: F401 - registers itself
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.meaning.plan import Plan
from batchbridge_verl.engine import install, probe, remove
from batchbridge_verl.other_engines import ALLOWED

WRONG = "times seven"
COMPARED = tuple(case for case in CASES if case.name in ("vanilla", "vanilla, k3", "gspo"))


class Own(Bench):
    """A worker with the engine, which is allowed. Its optimizer has no hooks: its own step is looked into."""

    def __init__(self, folder: Path, backend: str = "own") -> None:
        self.allowed = frozenset({ALLOWED})
        super().__init__(folder, f"actor_rollout_ref.actor.strategy={backend}")

    def hook_updates(self) -> None:
        optimizer = self.worker.engine.optimizer
        native = optimizer.step

        def step() -> Any:
            gradients = [one.grad.detach().double().flatten() for one in optimizer.parameters]
            self.gradient = torch.cat(gradients)
            self.updates += 1
            return native()

        optimizer.step = step

    def orders(self, *arguments: Any, **more: Any) -> Any:
        return super().orders(*arguments, **{"allow": self.allowed, **more})


def step_function(bench: Bench, change: Callable[[Any], None]) -> None:
    """In the way of every micro-batch that the schedule asks for."""
    native = bench.worker.engine.forward_step

    def forward_step(batches: Any, module: Any) -> Any:
        batch = next(batches)
        change(batch)
        return native(iter([batch]), module)

    bench.worker.engine.forward_step = forward_step


def loss_of_the_last(bench: Bench) -> None:
    """The engine's own scaling: it multiplies what verl's loss gives."""
    native = bench.worker.engine._loss

    def _loss(batch: Any, *given: Any) -> Any:
        loss, output = native(batch, *given)
        return loss * 3, output

    if last_rank(bench):
        bench.worker.engine._loss = _loss


def left_out(bench: Bench) -> None:
    """The first micro-batch is trained twice, the second one never."""
    native, first = bench.worker.engine.forward_step, []

    def forward_step(batches: Any, module: Any) -> Any:
        first.append(next(batches))
        return native(iter([first[0] if len(first) == 2 else first[-1]]), module)

    if last_rank(bench):
        bench.worker.engine.forward_step = forward_step


def mask(bench: Bench) -> None:
    def change(batch: Any) -> None:
        batch["response_mask"].values()[0] = 0

    if last_rank(bench):
        step_function(bench, change)


def advantages(bench: Bench) -> None:
    if last_rank(bench):
        step_function(bench, lambda batch: batch["advantages"].values().mul_(1.01))


TAMPERS: dict[str, Callable[[Bench], None]] = {
    "nothing": lambda bench: None,
    "the engine's scaling": loss_of_the_last,
    "the mask": mask,
    "the advantages": advantages,
    "a micro-batch that is left out": left_out,
}


def tampered(bench: Bench, tamper: Callable[[Bench], None], mode: str) -> dict[str, Any]:
    """As `tampering.tampered`."""
    spec = spec_of(CASES[0], "token_mean")
    plan, before, said = Plan(spec, PROMPTS), bench.updates, ""
    install(bench.worker, bench.orders(spec, CASES[0], mode=mode))
    probe(bench.worker)
    try:
        with as_it_was(bench):
            for index in (TAMPERED - 1, TAMPERED):
                if index == TAMPERED:
                    tamper(bench)
                samples, members = bench.step(plan, index)
                bench.send(samples, members, index, SPLITS["fixed 1"])
    except BatchDrift as drift:
        said = str(drift)
    finally:
        remove(bench.worker)
    everyone: list[Any] = [None] * bench.processes
    torch.distributed.all_gather_object(everyone, said)
    if set(everyone) != {said}:
        raise AssertionError(f"the ranks say {everyone}")
    return {"said": said, "updates": bench.updates - before}


def refused(bench: Own) -> dict[str, str]:
    """The reasons against the engine as it is."""
    spec = spec_of(CASES[0], "token_mean")
    try:
        install(bench.worker, bench.orders(spec, CASES[0]))
        probe(bench.worker)
    except CannotAttach as error:
        return dict(error.reasons)
    finally:
        remove(bench.worker)
    return {}


def unseen_update(bench: Own) -> str:
    """What is said to an engine whose class trains a batch in a way of its own."""
    kind = type(bench.worker.engine)
    own = type(kind.__name__, (kind,), {"train_batch": functools.partialmethod(kind.train_batch)})
    bench.worker.engine.__class__ = own
    try:
        return refused(bench).get(ALLOWED, "")
    finally:
        bench.worker.engine.__class__ = kind


def other_clock(bench: Own) -> str:
    """What is said to a schedule that was built for another number of ticks than the plan's."""
    spec = spec_of(CASES[0], "token_mean")
    try:
        install(bench.worker, bench.orders(spec, CASES[0], ticks=11))
    except CannotAttach as error:
        return error.reasons.get(ALLOWED, "")
    finally:
        remove(bench.worker)
    return ""


def another_engine(folder: Path) -> dict[str, Any]:
    """Everything that is measured of it."""
    bench = Own(folder)
    install(bench.worker, bench.orders(spec_of(CASES[0], "token_mean"), CASES[0], ledger=folder / "ledger"))
    samples, members = bench.step(Plan(spec_of(CASES[0], "token_mean"), PROMPTS), 0)
    bench.send(samples, members, 0, SPLITS["fixed 2"])
    remove(bench.worker)
    found = {
        "wrapped": wrapped(bench, COMPARED),
        "losses": losses(bench),
        "unseen": unseen_update(bench),
        "clock": other_clock(bench),
        "enforce": {name: tampered(bench, one, "enforce") for name, one in TAMPERS.items()},
    }
    if bench.processes > 1:
        found["staged"] = staged(folder)
    bench.allowed = frozenset()
    found["verify"] = {name: tampered(bench, one, "verify") for name, one in TAMPERS.items()}
    found["observe"] = {name: tampered(bench, TAMPERS[name], "observe") for name in ("nothing", "the engine's scaling")}
    return {**found, "refused": refused(bench)}


def staged(folder: Path) -> dict[str, Any]:
    """An engine whose processes are one replica, of which one has the loss."""
    bench = Own(folder, "own_staged")
    native = bench.worker.loss_fn.func
    return {
        "wrapped": wrapped(bench, CASES[:1]),
        "losses": {how: loss_refused(bench, functools.partial(altered, how, native)) for how in ("itself", WRONG)},
        "enforce": {name: tampered(bench, one, "enforce") for name, one in TAMPERS.items()},
    }

"""What `test_tampering_open_instruct` runs, one process per rank: custom losses, and optimizer steps that
something else than the plan has a hand in, with the real learner on DeepSpeed.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 tampering.py FOLDER

As gradients.py; rank 0 leaves FOLDER/tampering.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from gradients import ROLLOUTS, Bench, of_this_rank, wanted

from batchbridge.contract.reading import Mode
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.running.wrap import unwrap, wrap
from batchbridge.testing.oracle import relative_error
from batchbridge_on_cpu.open_instruct.job import Job, prepare
from batchbridge_open_instruct.learners import learner_of

TAMPERED = 3
"""The optimizer step that something else has a hand in: the second pass over the second rollout."""
Undo = Callable[[], None]


class Tampers:
    """What has a hand in a job's step; every method returns what takes it back."""

    def __init__(self, job: Job, rank: int, ranks: int) -> None:
        from open_instruct import grpo_utils

        self.job, self.module, self.last_rank = job, grpo_utils, rank == ranks - 1
        self.engine, self.layer = job.learner.model, job.learner.batchbridge_layer

    @property
    def parameters(self) -> list[Any]:
        """The weights that are trained."""
        return list(self.engine.module.parameters())

    @property
    def now(self) -> bool:
        return bool(self.layer._first_step + self.layer._steps == TAMPERED)

    def around(self, target: Any, name: str, change: Callable[..., Any]) -> Undo:
        native = getattr(target, name)
        setattr(target, name, lambda *values, **options: change(native, *values, **options))
        return lambda: setattr(target, name, native)

    def loss(self) -> Undo:
        def change(native: Any, *values: Any, **options: Any) -> Any:
            policy, clipped, penalty = native(*values, **options)
            return policy * 7 if self.now and self.last_rank else policy, clipped, penalty

        return self.around(self.module, "compute_grpo_loss", change)

    def value(self) -> Undo:
        """1.001 times the loss's value, and its own gradient."""

        def change(native: Any, *values: Any, **options: Any) -> Any:
            policy, clipped, penalty = native(*values, **options)
            more = 0.001 * policy.detach() if self.now and self.last_rank else 0.0
            return policy + more, clipped, penalty

        return self.around(self.module, "compute_grpo_loss", change)

    def constant(self) -> Undo:
        """A constant is added to the loss."""

        def change(native: Any, *values: Any, **options: Any) -> Any:
            policy, clipped, penalty = native(*values, **options)
            return policy + (0.1 if self.now and self.last_rank else 0.0), clipped, penalty

        return self.around(self.module, "compute_grpo_loss", change)

    def not_a_number(self) -> Undo:
        """The loss is not a number."""

        def change(native: Any, *values: Any, **options: Any) -> Any:
            policy, clipped, penalty = native(*values, **options)
            return policy * (float("nan") if self.now and self.last_rank else 1.0), clipped, penalty

        return self.around(self.module, "compute_grpo_loss", change)

    def groups(self, name: str, change: Callable[[Any], Any]) -> Undo:
        """A value of every group of the optimizer, written before the engine's step."""

        def written(native: Any, *values: Any, **options: Any) -> Any:
            for group in self.engine.optimizer.param_groups if self.now else ():
                group[name] = change(group[name])
            return native(*values, **options)

        return self.around(self.engine, "step", written)

    def rate(self) -> Undo:
        return self.groups("lr", lambda rate: 1.5 * rate)

    def decay(self) -> Undo:
        return self.groups("weight_decay", lambda decay: decay + 0.5)

    def mask(self) -> Undo:
        def change(native: Any, old: Any, sampled: Any, mask: torch.Tensor, *values: Any) -> Any:
            if self.now and self.last_rank:
                for row in mask:
                    row[row.nonzero()[:1, 0]] = False
            return native(old, sampled, mask, *values)

        return self.around(self.module, "compute_rho_correction", change)

    def advantages(self) -> Undo:
        def change(native: Any, old: Any, sampled: Any, mask: Any, advantages: torch.Tensor, *values: Any) -> Any:
            if self.now and self.last_rank:
                advantages *= 1.01
            return native(old, sampled, mask, advantages, *values)

        return self.around(self.module, "compute_rho_correction", change)

    def no_backward(self) -> Undo:
        def change(native: Any, loss: torch.Tensor, *values: Any, **options: Any) -> Any:
            if self.now and self.layer._open == [] and self.last_rank:
                loss = loss * 0  # the first micro-batch's gradient
            return native(loss, *values, **options)

        return self.around(self.engine, "backward", change)

    def dropped(self) -> Undo:
        def zero(gradient: torch.Tensor) -> torch.Tensor | None:
            return torch.zeros_like(gradient) if self.now and len(self.layer._open) == 1 else None

        handles = [one.register_hook(zero) for one in self.engine.module.parameters()]
        return lambda: [handle.remove() for handle in handles] and None

    def hooked(self) -> Undo:
        """A hook on every weight."""

        def smaller(gradient: torch.Tensor) -> torch.Tensor | None:
            return 0.1 * gradient if self.now else None

        handles = [one.register_hook(smaller) for one in self.parameters]
        return lambda: [handle.remove() for handle in handles] and None

    def one_hooked(self) -> Undo:
        """A hook on one weight alone, on every rank."""

        def larger(gradient: torch.Tensor) -> torch.Tensor | None:
            return 1.05 * gradient if self.now else None

        handle = max(self.parameters, key=lambda one: int(one.numel())).register_hook(larger)
        return lambda: handle.remove() and None

    def tripled(self, native: Any, *values: Any, **options: Any) -> Any:
        """`native`, once DeepSpeed's gradients are three times what they are."""
        if self.now:
            for group in self.engine.optimizer.averaged_gradients.values():
                for gradient in group:
                    gradient *= 3
        return native(*values, **options)

    def triple(self) -> Undo:
        return self.around(self.engine, "step", self.tripled)

    def triple_inside(self) -> Undo:
        """Inside of the engine's step."""
        return self.around(self.engine, "_take_model_step", self.tripled)

    # ---- between the actor that prepares data and the loss

    def sent(self, change: Callable[[Any], None]) -> Undo:
        """In the way of the second rollout, on the last rank."""
        handle = learner_of(self.job.learner).loader.data_prep_actor
        native = handle.get_data

        def get_data(rank: int, step: int) -> Any:
            found = native.remote(rank, step)
            if step == 1 and self.last_rank:
                change(found["batch"])
            return found

        handle.get_data = SimpleNamespace(remote=get_data)
        return lambda: setattr(handle, "get_data", native)

    def sent_advantages(self) -> Undo:
        def larger(batch: Any) -> None:
            for values in batch.advantages:
                values *= 1.05

        return self.sent(larger)

    def sent_exchanged(self) -> Undo:
        """Two completions exchange their advantages."""

        def exchange(batch: Any) -> None:
            table = vars(batch)["batchbridge"]
            found = [
                (batch.advantages[index][row], slice(piece.start + piece.prompt_tokens, end_of(piece)))
                for index, rows in enumerate(table.micro_batches)
                for row, pieces in enumerate(rows)
                for piece in pieces
            ]
            each = [float(values[inside].abs().max()) * float(values[inside].sum().sign()) for values, inside in found]
            first = next(number for number, one in enumerate(each) if one)
            other = next(number for number, one in enumerate(each) if one not in (0.0, each[first]))
            for mine, theirs in ((first, other), (other, first)):
                values, inside = found[mine]
                values[inside] = torch.where(values[inside] != 0, each[theirs], values[inside])

        return self.sent(exchange)

    def sent_tokens(self) -> Undo:
        def other(batch: Any) -> None:
            batch.query_responses[0][0, 1] = batch.query_responses[0][0, 1] % 50 + 3

        return self.sent(other)

    def sent_logprobs(self) -> Undo:
        def smaller(batch: Any) -> None:
            for values in batch.vllm_logprobs:
                values -= 0.05

        return self.sent(smaller)

    def model_tokens(self) -> Undo:
        def change(native: Any, model: Any, ids: torch.Tensor, *values: Any, **options: Any) -> Any:
            if self.now and self.last_rank:
                ids = ids.clone()
                ids[0, 1] = ids[0, 1] % 50 + 3
            return native(model, ids, *values, **options)

        return self.around(self.module, "forward_for_logprobs", change)

    def temperature(self) -> Undo:
        def change(native: Any, model: Any, ids: Any, mask: Any, places: Any, pad: int, heat: float, *rest: Any) -> Any:
            return native(model, ids, mask, places, pad, heat * (1.05 if self.now and self.last_rank else 1.0), *rest)

        def keyword(native: Any, *values: Any, **options: Any) -> Any:
            return change(lambda *given: native(*given, **options), *values)

        return self.around(self.module, "forward_for_logprobs", keyword)

    def setting(self) -> Undo:
        """Before the first rollout is taken."""
        native = self.job.actor.generation_config
        self.job.actor.generation_config = dataclasses.replace(native, temperature=1.3)
        return lambda: setattr(self.job.actor, "generation_config", native)

    def setting_later(self) -> Undo:
        """Between the first rollout and the second one."""
        feed, undone = vars(self.job.actor)["batchbridge"], []

        def change(native: Any, *values: Any) -> Any:
            found = native(*values)
            undone.append(self.setting())
            return found

        handed = self.around(feed, "_identify", change)
        return lambda: [undo() for undo in (handed, *reversed(undone))] and None


def end_of(piece: Any) -> int:
    return int(piece.start + piece.prompt_tokens + piece.completion_tokens)


PACKS: Mapping[Mode, int] = {"enforce": 32, "verify": 48}
"""Tokens of a packed row; natively rows that ranks do not divide are dropped."""
ON_EVERY_LEARNER = (
    *("nothing", "loss", "value", "constant", "not_a_number", "mask", "advantages", "no_backward", "dropped"),
    *("hooked", "one_hooked", "triple", "sent_advantages", "sent_exchanged", "sent_tokens", "sent_logprobs"),
    *("model_tokens", "temperature", "setting", "setting_later"),
)
TAMPERS = (*ON_EVERY_LEARNER, "triple_inside", "rate", "decay")
"""Those of grpo_fast.py's learner, which DeepSpeed trains."""


class Planned:
    """A loader of prompts of one's own, in the plan's order: with it, and packed so that no row is dropped, the native
    job trains what the plan says."""

    _epoch = 0

    def __init__(self, dataset: Any, plan: Plan) -> None:
        first = [prompt for index in range(plan.total_rollouts) for prompt in plan.rollout(index).prompts]
        self._dataset, self._coming = dataset, itertools.cycle(dict.fromkeys([*first, *range(len(dataset))]))

    def __next__(self) -> dict[str, Any]:
        index = next(self._coming)
        return {**self._dataset[index], "index": index}

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints, from which nothing goes on here."""
        return {}


def tampered(bench: Bench, mode: Mode, name: str) -> dict[str, Any]:
    """A job to its end, or to the step that is tampered with: what ended it on each rank, its updates and records."""
    said, undo = "", None
    ledger = bench.folder / f"tampered-{mode}-{name}-{bench.ranks}"
    if bench.rank == 0:
        shutil.rmtree(ledger, ignore_errors=True)
    dist.barrier()
    with bench.job(settings={"pack_length": PACKS[mode]}, args={"learning_rate": 0.012}) as job:
        wrap(job.learner, like=wanted(job, "token_mean", {}), mode=mode, ledger=ledger)
        if mode == "verify":
            job.actor.iter_dataloader = Planned(job.actor.dataset, job.learner.batchbridge.plan)
        if name != "nothing":
            undo = getattr(Tampers(job, bench.rank, bench.ranks), name)()
        try:
            for _ in range(ROLLOUTS):
                job.train()
        except BatchDrift as drift:
            said = str(drift)
        if undo is not None:
            undo()
        updates = len(bench.weights)
        with contextlib.suppress(BatchDrift):
            job.actor._prep_future.result(timeout=60)
        dist.barrier()
        unwrap(job.learner)
    everyone: list[Any] = [None] * bench.ranks
    dist.all_gather_object(everyone, said)
    recorded = sum(1 for _ in read_steps(ledger)) if any(ledger.glob("rank-*")) else 0
    return {"said": everyone, "updates": updates, "recorded": recorded}


def strange(bench: Bench) -> dict[str, Any]:
    """A job one of whose weights is another object than the one that the optimizer was built with."""
    said = []
    with bench.job(settings={"pack_length": PACKS["enforce"]}, rollouts=1) as job:
        layer = next(one for one in job.learner.model.module.modules() if isinstance(one, torch.nn.Linear))
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
        wrap(job.learner, like=wanted(job, "token_mean", {}))
        try:
            job.train()
        except BatchDrift as drift:
            said.append(str(drift))
        updates = len(bench.weights)
        with contextlib.suppress(BatchDrift):
            job.actor._prep_future.result(timeout=60)
        dist.barrier()
        unwrap(job.learner)
    everyone: list[Any] = [None] * bench.ranks
    dist.all_gather_object(everyone, said)
    return {"said": everyone, "updates": updates}


STOCK = ("as it is", "zero-variance groups dropped", "advantages on their way")


def stock(bench: Bench, name: str) -> dict[str, Any]:
    """A stock job in mode verify, against its own configuration: what ended it on each rank, and its records."""
    said = ""
    ledger = bench.folder / f"stock-{name.replace(' ', '-')}-{bench.ranks}"
    if bench.rank == 0:
        shutil.rmtree(ledger, ignore_errors=True)
    dist.barrier()
    settings = {"pack_length": PACKS["verify"], "filter_zero_std_samples": name == STOCK[1]}
    with bench.job(settings=settings, args={"learning_rate": 0.012}) as job:
        wrap(job.learner, mode="verify", ledger=ledger)
        undo = Tampers(job, bench.rank, bench.ranks).sent_advantages() if name == STOCK[2] else None
        try:
            for _ in range(ROLLOUTS):
                job.train()
        except BatchDrift as drift:
            said = str(drift)
        if undo is not None:
            undo()
        job.actor._prep_future.result(timeout=60)
        dist.barrier()
        unwrap(job.learner)
    everyone: list[Any] = [None] * bench.ranks
    dist.all_gather_object(everyone, said)
    return {"said": everyone, "recorded": sum(1 for _ in read_steps(ledger))}


UNREADABLE = ("_known", "look", "_located")
"""Functions of ours: of a rollout on a learner, of a step there, of a rollout in data preparation."""


def unreadable(bench: Bench, place: str) -> dict[str, Any]:
    """A job that is observed, where a function of ours fails in its second rollout, on the last rank or in the actor:
    how far its gradients are from those of Open-Instruct alone, and what the ledger says."""
    ledger = bench.folder / f"unreadable-{place}-{bench.ranks}"
    if bench.rank == 0:
        shutil.rmtree(ledger, ignore_errors=True)
    dist.barrier()
    found: list[list[torch.Tensor]] = []

    def lacking(*_: Any, **options: Any) -> Any:
        raise KeyError("a field that is not there")

    def fails_later(native: Callable[..., Any]) -> Callable[..., Any]:
        calls = itertools.count()
        return lambda *given: (native if next(calls) < 1 else lacking)(*given)

    for observed in (False, True):
        with bench.job(settings={"pack_length": PACKS["verify"]}, args={"learning_rate": 0.012}) as job:
            if observed:
                wrap(job.learner, mode="observe", ledger=ledger)
                layer, feed = job.learner.batchbridge_layer, vars(job.actor)["batchbridge"]
                owner = {"_known": layer, "look": layer._watch, "_located": feed}[place]
                fails = bench.rank == bench.ranks - 1 or place == "_located"
                if place == "_located":
                    feed._located = fails_later(feed._located)
            for rollout in range(ROLLOUTS):
                if observed and rollout and fails and place != "_located":
                    setattr(owner, place, lacking)
                job.train()
            job.actor._prep_future.result(timeout=60)
            dist.barrier()
            if observed:
                unwrap(job.learner)
        found.append(bench.gradients)
    alone, seen = found
    steps = read_steps(ledger)
    return {
        "steps": [len(alone), len(seen)],
        "apart": max(relative_error(one, other) for one, other in zip(seen, alone, strict=True)),
        "seen": [step["step"] for step in steps],
        "incomplete": steps.incomplete,
    }


def probed(bench: Bench) -> dict[str, list[str]]:
    """Rank 0's reasons against wrapping where the last rank's loss averages otherwise, or its code is another: what one
    rank cannot be made to do, none is."""
    from open_instruct import grpo_fast, grpo_utils

    native, counts, found = grpo_fast.masked_mean, grpo_utils.calculate_token_counts, {}

    def other(how: str, parameters: Any) -> Callable[..., Any]:
        def mean(values: Any, mask: Any, axis: Any = None, denominator: Any = None) -> Any:
            if how == "a term of its own" and values.requires_grad:
                return native(values, mask, axis, denominator) + sum(one.square().sum() for one in parameters)
            by = {"own tokens": mask.sum(), "mean over rows": float(len(mask))}.get(how, denominator)
            return native(values, mask, axis, by) * (7 if how == "times 7" else 1)

        return mean

    for how in ("as Open-Instruct", "times 7", "own tokens", "mean over rows", "a term of its own", "code of its own"):
        with bench.job() as job:
            spec = wanted(job, "token_mean", {})
            before = {name: dict(vars(one)) for name, one in (("learner", job.learner), ("engine", job.learner.model))}
            # A term of one's own ends the rehearsal in its middle, where others would wait.
            if bench.rank == bench.ranks - 1 or how == "a term of its own":
                if how == "code of its own":
                    grpo_utils.calculate_token_counts = of_this_rank
                else:
                    grpo_fast.masked_mean = other(how, list(job.learner.model.module.parameters()))
            try:
                wrap(job.learner, like=spec)
                found[how] = []
                unwrap(job.learner)
            except CannotAttach as refusal:
                found[how] = [f"{name}: {reason}" for name, reason in refusal.reasons.items()]
            finally:
                grpo_fast.masked_mean, grpo_utils.calculate_token_counts = native, counts
            for name, one in (("learner", job.learner), ("engine", job.learner.model)):
                changed = {key for key, value in before[name].items() if vars(one).get(key) is not value}
                if changed or vars(one).keys() - before[name].keys():
                    raise AssertionError(f"probing left {changed or vars(one).keys() - before[name].keys()} behind")
    return found


def main(folder: Path) -> None:
    os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "sgd")
    bench = Bench(folder)
    if bench.rank == 0 and not bench.policy.exists():
        prepare(folder)
    while not (bench.policy / "tokenizer_config.json").exists():
        pass
    measured: dict[str, Any] = {"probed": probed(bench)}
    measured["unreadable"] = {place: unreadable(bench, place) for place in UNREADABLE}
    measured["tampered"] = {mode: {name: tampered(bench, mode, name) for name in TAMPERS} for mode in PACKS}
    measured["strange"] = strange(bench)
    measured["stock"] = {name: stock(bench, name) for name in STOCK}
    if bench.rank == 0:
        (folder / "tampering.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")


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

"""What `test_gradients_easyr1` runs, one process per rank: EasyR1's real `FSDPWorker.update_actor`, FSDP on gloo.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 gradients.py FOLDER [SETTINGS]

FOLDER/policy is the tiny policy (`batchbridge_on_cpu.easyr1.scripted.prepare`). SETTINGS: as JSON, Ulysses' among them.
Rank 0 leaves what it measured in FOLDER/measured.json; the comparing process asserts.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import verl
from verl.workers.actor import dp_actor

from batchbridge.errors import BatchDrift
from batchbridge.kit.ranks import layout
from batchbridge.kit.workers import Orders
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Objective, Spec
from batchbridge.testing.oracle import Sample, double, relative_error, step_gradient
from batchbridge.testing.snapshots import watched
from batchbridge_easyr1.engine import install, remove
from batchbridge_on_cpu.easyr1.workers import actor_worker, batch, full_gradient
from batchbridge_on_cpu.steps import GROUP, PROMPTS, Case, Steps, bar, spec_of

SPLITS: dict[str, tuple[bool, int]] = {
    # name -> (dynamic_batching, micro_batch_size_per_device_for_update)
    "fixed 2": (False, 2),
    "budget 1": (True, 1),
    "fixed 1": (False, 1),
    "budget 4": (True, 4),
}
MORE_SPLITS = ("fixed 1", "budget 4")
"""On one rank, for the first objective."""
MEASURED = (2, 3, 4)
"""A short step, a whole one, and one with a completion that trains no token."""
BEYOND_CLAMP = 3
"""Of them, one with a token whose k3 is beyond 10."""
CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_dual": 3.0}


def dual_clipped(ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return torch.minimum(loss, torch.full_like(loss, -3.0 * advantage)) if advantage < 0 else loss


def gspo_token(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """GSPO-token (arXiv 2507.18071, equation 13)."""
    return dual_clipped(((new - old).mean().detach() + new - new.detach()).exp(), advantage)


def sapo(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """SAPO (arXiv 2511.20347) with EasyR1's default temperatures."""
    tau = 1.0 if advantage >= 0 else 1.05
    return -advantage * 4.0 / tau * torch.sigmoid(tau * ((new - old).exp() - 1.0))


PPO = Objective(surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.2, dual_clip=3.0)
TWO = ("token_mean", "sequence_sum_over_constant")


def with_kl(estimator: str, native: str, aggregations: Sequence[str] = TWO) -> Case:
    objective = dataclasses.replace(
        PPO,
        kl_placement="loss",
        kl_coefficient=0.1,
        kl_estimator=estimator,
        kl_clamp=10.0 if estimator == "k3" else None,  # as EasyR1 always does
    )
    settings = {"use_kl_loss": True, "kl_coef": 0.1, "kl_penalty": native}
    return Case(f"default, {estimator}", "default", objective, settings, aggregations=aggregations)


CASES = (
    Case("default", "default", PPO),
    with_kl("k3", "low_var_kl", Case("", "", PPO).aggregations),
    with_kl("k1", "kl"),
    with_kl("k2", "mse"),
    with_kl("abs", "abs"),
    Case("gspo", "gspo", dataclasses.replace(PPO, ratio_level="sequence")),
    Case(
        "gspo_token",
        "gspo_token",
        dataclasses.replace(PPO, surrogate="gspo_token", ratio_level="sequence"),
        surrogate=gspo_token,
    ),
    Case("cispo", "cispo", dataclasses.replace(PPO, surrogate="cispo", dual_clip=None)),
    Case("sapo", "sapo", dataclasses.replace(PPO, surrogate="sapo"), surrogate=sapo),
)


class Bench(Steps):
    """The worker, the completions, and the oracle's answers."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.worker = actor_worker(
            folder / "policy",
            {
                **(settings or {}),
                "worker.actor.global_batch_size": 2 * GROUP,
                "worker.rollout.n": GROUP,
                "worker.actor.micro_batch_size_per_device_for_update": 1,
                "worker.actor.max_grad_norm": 1e9,
                "worker.actor.optim.lr": 0.0,
            },
        )
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.gradient: torch.Tensor | None = None
        self.config = self.worker.config.actor
        self.replicas = self.ranks // self.config.ulysses_size
        actor = self.worker.actor

        self.updates, self.keeps_gradients = 0, True

        def keep(actor: Any) -> None:
            self.gradient = full_gradient(self.worker) if self.keeps_gradients else None

        def updated(*_: Any) -> None:
            self.updates += 1

        self.worker.optimizer.register_step_post_hook(updated)
        # Of the class: the layer refuses an instance that is patched already.
        type(actor)._optimizer_step = watched(type(actor)._optimizer_step, keep)

    def cut(self, split: str) -> None:
        self.config.dynamic_batching, self.config.micro_batch_size_per_device_for_update = SPLITS[split]

    def send(self, samples: Sequence[Sample], members: Sequence[Any], step: int, split: str) -> Any:
        """This rank's part of one call, as the driver lays it out."""
        self.cut(split)
        costs = [len(sample.prompt) + len(sample.completion) for sample in samples]
        rows = math.lcm(1 if SPLITS[split][0] else SPLITS[split][1], self.config.ulysses_size)
        order = layout(costs, ranks=self.replicas, rows_per_micro_batch=rows)
        size = len(order) // self.ranks
        return self.send_rows(samples, members, order[self.rank * size : (self.rank + 1) * size], step)

    def send_rows(
        self, samples: Sequence[Sample], members: Sequence[Any], mine: Sequence[int | None], step: int
    ) -> Any:
        rows = [None if row is None else samples[row] for row in mine]
        if not any(rows):
            rows = [dataclasses.replace(samples[0], loss_mask=[0] * len(samples[0].completion))] * len(mine)
        references = [torch.zeros(1) if sample is None else self.reference_logprobs(sample) for sample in rows]
        places = [None if row is None else members[row] for row in mine]
        return self.worker.update_actor(self.batch(rows, places, step, references))

    def batch(self, rows: Sequence[Sample | None], places: Sequence[Any], step: int, references: Any) -> Any:
        return batch(rows, places, step=step, reference_logprobs=references)

    def orders(self, spec: Spec, case: Case, **more: Any) -> Orders:
        loss_type = {"loss_type": case.loss_mode} if hasattr(self.config, "loss_type") else {}
        return Orders(
            spec=spec,
            dataset_size=PROMPTS,
            planned=True,
            mode=more.pop("mode", "enforce"),
            ledger=more.pop("ledger", None),
            framework_version=verl.__version__,
            start_id="test",
            ticks=10,
            settings={"use_kl_loss": False, **CLIPS, **loss_type, **case.settings},
            **more,
        )


def wrapped(bench: Bench) -> list[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    results = []
    known = hasattr(bench.config, "loss_type")
    few = bench.ranks > 2 or (bench.replicas < bench.ranks and not bench.config.padding_free)
    for case, split in itertools.product(CASES[:2] if few else CASES, SPLITS):
        if case.loss_mode != "default" and not known:
            continue
        if split in MORE_SPLITS and (case is not CASES[0] or bench.replicas > 1):
            continue
        for aggregation in case.aggregations:
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            install(bench.worker, bench.orders(spec, case))
            for index in MEASURED:
                samples, members = bench.step(plan, index)
                bench.send(samples, members, index, split)
                results.append({"split": split, **bench.measure(case, spec, index, samples, bench.gradient)})
            remove(bench.worker)
    return results


def natively(bench: Bench, folder: Path) -> dict[str, float]:
    """The negative controls: EasyR1 alone on the same rows. Error over the bar."""
    config, ratios = bench.config, {}
    own = config.global_batch_size_per_device
    for name, value in CLIPS.items():
        setattr(config, name, value)
    plan = Plan(spec_of(CASES[0], "token_mean"), PROMPTS)
    samples, members = bench.step(plan, 0)
    whole = len(samples) // bench.ranks * bench.ranks
    for name, mode, split, rows in (
        ("seq", "seq", "fixed 1", whole),
        ("seq, two per micro-batch", "seq", "fixed 2", 4),
        ("seq, by token budget", "seq", "budget 1", 4),
        ("floors", "token", "fixed 1", len(samples)),
        ("positive control: token", "token", "fixed 1", whole),
    ):
        aggregation = {"seq": "sequence_mean", "token": "token_mean"}[mode]
        spec = spec_of(CASES[0], aggregation)
        config.loss_avg_mode = mode
        bench.cut(split)
        share = rows // bench.ranks  # floored, as FSDPWorker does
        config.global_batch_size_per_device = share * config.ulysses_size
        mine = list(range(bench.rank * share, (bench.rank + 1) * share))
        ledger = folder / f"natively-{name.split()[0]}-{mode}-{split}".replace(" ", "_")
        install(bench.worker, bench.orders(spec, CASES[0], mode="observe", ledger=ledger))
        bench.send_rows(samples, members, mine, 0)
        remove(bench.worker)
        torch.distributed.barrier()
        assert bench.gradient is not None
        case = dataclasses.replace(CASES[0], name=f"control {name}")
        expected, floor, _ = bench.expected(case, spec, 0, samples[:rows])
        ratios[name] = relative_error(bench.gradient, expected) / bar(floor)
        ratios[f"weights of {name}"] = _by_recorded_weights(bench, ledger, spec, samples, members) / bar(floor)
    config.global_batch_size_per_device, config.loss_avg_mode = own, "token"
    return ratios


def _by_recorded_weights(
    bench: Bench, ledger: Path, spec: Spec, samples: Sequence[Sample], members: Sequence[Any]
) -> float:
    """The native gradient against the oracle's with the weights that the ledger of the native step has."""
    (step,) = read_steps(ledger)
    weights = dict(zip(zip(step["prompt"], step["sample"], strict=True), step["weights"], strict=True))
    given = [weights.get((prompt, sample), 0.0) for _, prompt, _, sample in members]
    expected = step_gradient(bench.exact, samples, term=spec.loss.policy, objective=spec.objective, weights=given)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected)


def detached(bench: Bench) -> dict[str, float]:
    """Old log-probabilities of the current policy, whatever the batch carries."""
    spec = spec_of(CASES[0], "token_mean").replace(**{"objective.old_logprobs": "detached"})
    install(bench.worker, bench.orders(spec, CASES[0], detached=True))
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    bench.send(samples, members, 0, "fixed 2")
    remove(bench.worker)
    expected, floor = bench.detached(spec, samples)
    assert bench.gradient is not None
    return {"error": relative_error(bench.gradient, expected), "floor": floor}


def unclamped(bench: Bench) -> float:
    """The gradient of a step with a token whose k3 is beyond EasyR1's clamp, against an oracle without the clamp. Error
    over the bar."""
    case = CASES[1]
    spec = spec_of(case, "token_mean")
    install(bench.worker, bench.orders(spec, case))
    samples, members = bench.step(Plan(spec, PROMPTS), BEYOND_CLAMP)
    bench.send(samples, members, BEYOND_CLAMP, "fixed 2")
    remove(bench.worker)
    _, floor, _ = bench.expected(case, spec, BEYOND_CLAMP, samples)
    free = dataclasses.replace(spec.objective, kl_clamp=None)
    reference = double(bench.reference)
    expected = step_gradient(bench.exact, samples, term=spec.loss.policy, objective=free, reference=reference)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


def unscaled(bench: Bench) -> float:
    """The gradient of a step whose gathering leaves out the factor that makes up for the average over the ranks that
    share a row's tokens: nothing that is measured in a run sees a model's own backward. Error over the bar."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 2)
    install(bench.worker, bench.orders(spec, CASES[0]))
    native = dp_actor.gather_outputs_and_unpad
    dp_actor.gather_outputs_and_unpad = functools.partial(native, grad_scaler=False)
    try:
        bench.send(samples, members, 2, "fixed 2")
    finally:
        remove(bench.worker)
        dp_actor.gather_outputs_and_unpad = native
    expected, floor, _ = bench.expected(CASES[0], spec, 2, samples)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


def counted_by_ranks(bench: Bench) -> str:
    """A step whose weights are read as if every rank had rows of its own: what it says."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    install(bench.worker, bench.orders(spec, CASES[0]))
    bench.worker.batchbridge._watch._scale = bench.ranks
    try:
        bench.send(samples, members, 0, "fixed 2")
    except BatchDrift as drift:
        return str(drift)
    finally:
        remove(bench.worker)
        bench.worker.optimizer.zero_grad()
    return "trained"


def _one_percent_more(native: Any) -> Any:
    def loss(**given: Any) -> Any:
        value, metrics = native(**given)
        return value * 1.01, metrics

    return loss


def drifts(bench: Bench) -> list[str]:
    """What a step says that is not the plan's: other members, then weights that something else has changed."""
    spec = spec_of(CASES[0], "sequence_sum")
    said, before = [], bench.updates
    for change in ("members", "weights"):
        samples, members = bench.step(Plan(spec, PROMPTS), 1 if change == "members" else 0)
        install(bench.worker, bench.orders(spec, CASES[0]))
        if change == "weights":  # a policy loss in place of ours
            scope = bench.worker.batchbridge._native_update.__func__.__globals__
            scope["compute_policy_loss"] = _one_percent_more(scope["compute_policy_loss"])
        try:
            bench.send(samples, members, 0, "fixed 2")
        except BatchDrift as drift:
            said.append(str(drift))
        finally:
            remove(bench.worker)
            bench.worker.optimizer.zero_grad()
    said.append("nothing applied" if bench.updates == before else "applied")
    return said


def empty(bench: Bench, folder: Path) -> dict[str, Any]:
    """A step without a token: no update, and the ledger says so; the clock moves as planned."""
    spec = spec_of(CASES[0], "token_mean").replace(**{"horizon.lr_tick": "rollout"})
    install(bench.worker, bench.orders(spec, CASES[0], ledger=folder / "empty_ledger"))
    before = bench.worker.lr_scheduler.last_epoch
    plan = Plan(spec, PROMPTS)
    samples, members = bench.step(plan, 0)
    bench.gradient = None
    silent = [dataclasses.replace(sample, loss_mask=[0] * len(sample.completion)) for sample in samples]
    bench.send(silent, members, 0, "fixed 2")
    untouched = bench.gradient is None
    ticks = []
    for index in (1, 2, 3):
        samples, members = bench.step(plan, index)
        bench.send(samples, members, index, "fixed 2")
        ticks.append(bench.worker.lr_scheduler.last_epoch - before)
    planned = [sum(plan.step(index).lr_tick for index in range(last + 1)) for last in (1, 2, 3)]
    remove(bench.worker)
    return {"untouched": untouched, "ticks": ticks, "planned_ticks": planned}


def refused(bench: Bench) -> str:
    """A batch without our columns."""
    from batchbridge.errors import CannotAttach

    spec = spec_of(CASES[0], "token_mean")
    install(bench.worker, bench.orders(spec, CASES[0]))
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    data = batch(samples[:4], members[:4], step=0)
    data.non_tensor_batch.clear()
    try:
        bench.worker.update_actor(data)
    except CannotAttach as refusal:
        return str(refusal)
    finally:
        remove(bench.worker)
    return "trained"


def main(folder: Path, settings: str = "{}") -> None:
    bench = Bench(folder, json.loads(settings))
    found: dict[str, Any] = {
        "version": verl.__version__,
        "wrapped": wrapped(bench),
        "natively": natively(bench, folder),
        "detached": detached(bench),
        "drifts": drifts(bench),
        "empty": empty(bench, folder),
        "refused": refused(bench),
    }
    if bench.ranks == 1:
        found["unclamped"] = unclamped(bench)
    if bench.replicas < bench.ranks:
        found |= {"unscaled": unscaled(bench), "counted by ranks": counted_by_ranks(bench)}
    if bench.rank == 0:
        (folder / "measured.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

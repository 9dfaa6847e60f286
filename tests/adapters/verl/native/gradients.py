"""Part of what `processes.py` runs: gradients of verl's real `TrainingWorker` and FSDP engine on gloo."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)

from batchbridge.errors import BatchDrift
from batchbridge.kit.carried_rows import told_by_batch
from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.ranks import layout
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.versions import holds
from batchbridge.kit.workers import Orders
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Objective, Spec
from batchbridge.testing.oracle import Sample, relative_error
from batchbridge_on_cpu.steps import PROMPTS, Case, Steps, bar, spec_of
from batchbridge_on_cpu.verl.scripted import packed
from batchbridge_on_cpu.verl.workers import as_v0_sends, batch, full_gradient, training_worker
from batchbridge_verl.columns import CARRIED
from batchbridge_verl.driver import together
from batchbridge_verl.engine import install, probe, remove
from batchbridge_verl.terms import KL_CLAMP, LOSS_MODES, aggregations_of

VERSION = importlib.metadata.version("verl")
PADDED_ALONE = holds("<0.8.0", VERSION)
"""0.7.1 has no trainer but V0, and its loss takes responses of one width."""
AGGREGATIONS = {
    "token_mean": "token-mean",
    "token_sum": "token-sum",
    "sequence_mean": "seq-mean-token-mean",
    "sequence_sum": "seq-mean-token-sum",
    "sequence_sum_over_constant": "seq-mean-token-sum-norm",
}
SPLITS: dict[str, dict[str, Any]] = {
    "fixed 1": {"micro_batch_size_per_gpu": 1},
    "fixed 2": {"micro_batch_size_per_gpu": 2},
    "budget 40": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 40},
    "budget 200": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 200},
}
DRO_BETA = 0.5
STEPS = (2, 3, 4)
"""Of the plan: a short step, whole groups, a cut group with a completion whose loss mask is all zero."""


def dro(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """Source: verl 0.9.1 core_algos.compute_policy_loss_dro."""
    return -(new * advantage - 0.5 * DRO_BETA * (new - old) ** 2)


def gpg(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """Source: verl 0.9.1 core_algos.compute_policy_loss_gpg."""
    return -new * advantage


TAU_POSITIVE, TAU_NEGATIVE = 1.0, 1.5


def sapo(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """Soft gates instead of clips, one for gains and one for losses (arXiv 2511.20347)."""
    tau = TAU_POSITIVE if advantage > 0 else TAU_NEGATIVE
    return -advantage * 4 / tau / (1 + (-tau * ((new - old).exp() - 1)).exp())


def gmpo(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """Geometric mean of the clipped ratios, one value per sequence (arXiv 2507.20673)."""
    sign = 1.0 if advantage >= 0 else -1.0
    kl = new - old
    clipped = sign * torch.minimum(sign * kl, sign * kl.clamp(-0.2, 0.2))
    return (-advantage * clipped.mean().exp()).expand_as(new)


def measured(case: Case) -> list[str]:
    """The aggregations that the installed verl has for this objective."""
    can = aggregations_of(LOSS_MODES[case.loss_mode], VERSION)
    return [aggregation for aggregation in case.aggregations if aggregation in can]


PPO = Objective(surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.2, dual_clip=3.0)
GSPO = dataclasses.replace(PPO, surrogate="gspo", ratio_level="sequence", dual_clip=None)
KL: dict[str, Any] = {"kl_placement": "loss", "kl_coefficient": 0.1, "old_logprobs": "rollout_start"}
K3 = {**KL, "kl_estimator": "k3", "kl_clamp": KL_CLAMP}
CASES = (
    Case("vanilla", "vanilla", PPO),
    Case(
        "vanilla, k3",
        "vanilla",
        dataclasses.replace(PPO, **K3),
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"},
    ),
    Case(
        "vanilla, k2",
        "vanilla",
        dataclasses.replace(PPO, kl_estimator="k2", **KL),
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "mse"},
        aggregations=("token_mean", "sequence_sum_over_constant"),
    ),
    Case("gspo", "gspo", GSPO),
    Case(
        "gspo, k3",
        "gspo",
        dataclasses.replace(GSPO, **K3),
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"},
        aggregations=("sequence_mean",),
    ),
    Case("cispo", "cispo", dataclasses.replace(PPO, surrogate="cispo", dual_clip=None)),
    Case("dro", "dro", dataclasses.replace(PPO, surrogate="dro"), {"policy_loss.dro_beta": DRO_BETA}, dro),
    Case("gpg", "gpg", dataclasses.replace(PPO, surrogate="gpg", ratio_level=None, dual_clip=None), {}, gpg),
    Case(
        "sapo",
        "sapo",
        dataclasses.replace(PPO, surrogate="sapo", dual_clip=None),
        {"tau_pos": TAU_POSITIVE, "tau_neg": TAU_NEGATIVE},
        sapo,
    ),
)
INSISTING = next(
    case for case in CASES if case.name == ("sapo" if holds(LOSS_MODES["sapo"].versions, VERSION) else "gspo")
)
"""Takes the mean over sequences, whatever it is told."""


class Bench(Steps):
    """The worker, the completions, and the oracle's answers."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.worker = self.started(
            folder / "policy",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.actor.optim.lr=0.0",
            "actor_rollout_ref.actor.optim.clip_grad=1000000000.0",
            *more,
        )
        super().__init__()
        self.process, self.processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.rank, self.ranks = self.place()
        self.gradient: torch.Tensor | None = None
        self.updates = 0
        self.padding = "padded"
        self.hook_updates()

    # ---- what legacy workers have in another place

    def started(self, policy: Path, *overrides: str) -> Any:
        return training_worker(policy, *(packed(attention="sdpa") if PADDED_ALONE else ()), *overrides)

    def place(self) -> tuple[int, int]:
        """The number of this rank among those that have rows of their own, and how many there are."""
        engine = self.worker.engine
        return engine.get_data_parallel_rank(), engine.get_data_parallel_size()

    @property
    def optimizer(self) -> Any:
        return self.worker.engine.optimizer

    @property
    def module(self) -> Any:
        return self.worker.engine.module

    @property
    def config(self) -> Any:
        """What the loss reads."""
        return self.worker.loss_fn.keywords["config"]

    def install(self, orders: Orders) -> Any:
        return install(self.worker, orders)

    def spoil(self) -> None:
        """Keeps the layer from weighing as the plan does."""
        layer = self.worker.batchbridge
        layer._set_step = lambda data, step, planned, normaliser: None

    def update(self, data: Any) -> Any:
        """One call of the worker, of rows as they are made here."""
        sent = told(data)
        return self.worker.train_mini_batch(as_v0_sends(sent) if PADDED_ALONE else sent)

    # ---- the same on all workers

    def hook_updates(self) -> None:
        """Has every update leave its gradient here."""

        def before(*_: Any) -> None:
            self.gradient = full_gradient(self.worker)

        def after(*_: Any) -> None:
            self.updates += 1

        self.optimizer.register_step_pre_hook(before)
        self.optimizer.register_step_post_hook(after)

    def send(
        self, samples: Sequence[Sample], members: Sequence[Any], step: int, split: dict[str, Any], **more: Any
    ) -> Any:
        """This rank's part of one call, as the driver lays it out."""
        costs = [len(sample.prompt) + len(sample.completion) for sample in samples]
        fixed = split.get("micro_batch_size_per_gpu")
        order = layout(costs, ranks=self.ranks, rows_per_micro_batch=fixed)
        if self.padding != "padded":
            numbered = [(member[2], row) for row, member in enumerate(members)]
            dealt = together(numbered, self.ranks, multiple=fixed or 1, costs=costs)
            order = [None if one is None else one[1] for one in dealt]
        size = len(order) // self.ranks
        mine = order[self.rank * size : (self.rank + 1) * size]
        rows = [self.filler(samples) if row is None else samples[row] for row in mine]
        references = [torch.zeros(1) if sample is None else self.reference_logprobs(sample) for sample in rows]
        data = batch(
            rows,
            [None if row is None else members[row] for row in mine],
            step=step,
            reference_logprobs=references,
            mini_batch_size=len(order),
            global_batch_size=len(order),
            **split,
            **more,
        )
        return self.update(self.sent(data, rows))

    def filler(self, samples: Sequence[Sample]) -> Sample | None:
        """A filler row's sample; None: that of `batch`."""
        return None

    def sent(self, data: Any, rows: Sequence[Sample | None]) -> Any:
        """What is added to a call's columns."""
        return data

    def orders(self, spec: Spec, case: Case, ledger: Path | None = None, **more: Any) -> Orders:
        settings = {
            "loss_agg_mode": AGGREGATIONS[spec.loss.policy.aggregation],
            "loss_scale_factor": spec.loss.policy.constant,
            "policy_loss.loss_mode": case.loss_mode,
            **case.settings,
        }
        own: dict[str, Any] = {"mode": "enforce", "ledger": ledger, "ticks": 10, "padding": self.padding}
        return Orders(
            spec=spec,
            dataset_size=PROMPTS,
            planned=True,
            framework_version=VERSION,
            start_id="test",
            settings=settings,
            **{**own, "temperature": 1.0, **more},
        )


def told(data: Any) -> Any:
    """The batch with the digests of its rows, as the trainer's process makes them."""
    from verl.utils import tensordict_utils as tu

    digests = told_by_batch(data, CARRIED, data[POSITION].tolist(), data[SAMPLE].tolist())
    tu.assign_non_tensor(data, **{ROW_DIGESTS: digests})
    return data


def wrapped(bench: Bench, cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    results = []
    splits = list(SPLITS) if bench.processes == 1 else ["fixed 2", "budget 40"]
    has = [case for case in cases if holds(LOSS_MODES[case.loss_mode].versions, VERSION)]
    for case, split in itertools.product(has, splits):
        for aggregation in measured(case):
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            bench.install(bench.orders(spec, case))
            probe(bench.worker)
            for index in STEPS:
                samples, members = bench.step(plan, index)
                bench.send(samples, members, index, SPLITS[split])
                silent = sum(not any(sample.loss_mask) for sample in samples)
                found = bench.measure(case, spec, index, samples, bench.gradient)
                results.append({"split": split, "rows": len(samples), "silent": silent, **found})
            remove(bench.worker)
    return results


def natively(bench: Bench) -> dict[str, float]:
    """The negative controls: verl's own loss without the layer, on the same rows. Error over the bar."""
    config = bench.config
    ratios = {}
    for name, loss_mode, aggregation, surrogate, split in (
        ("seq-mean-token-sum-norm, null factor", "vanilla", "sequence_sum_over_constant", None, SPLITS["fixed 1"]),
        ("geo_mean", "geo_mean", "sequence_mean", gmpo, SPLITS["fixed 1"]),
        ("seq-mean-token-sum, filler rows in B", "vanilla", "sequence_sum", None, {"micro_batch_size_per_gpu": 2}),
        ("positive control: token-mean", "vanilla", "token_mean", None, SPLITS["fixed 2"]),
    ):
        object.__setattr__(config, "loss_agg_mode", AGGREGATIONS[aggregation])
        object.__setattr__(config, "loss_scale_factor", None)
        object.__setattr__(config.policy_loss, "loss_mode", loss_mode)
        case = Case(f"control {name}", loss_mode, PPO, surrogate=surrogate)
        spec = spec_of(case, aggregation)
        samples, members = bench.step(Plan(spec, PROMPTS), 0)
        bench.send(samples, members, 0, split)
        expected, floor, _ = bench.expected(case, spec, 0, samples)
        assert bench.gradient is not None
        ratios[name] = relative_error(bench.gradient, expected) / bar(floor)
    object.__setattr__(config.policy_loss, "loss_mode", "vanilla")
    return ratios


def terms_apart(bench: Bench) -> float:
    """verl alone, told gspo, KL and token-mean: the KL term takes token-mean, the policy's what the release insists on.
    Error over the bar."""
    config = bench.config
    told = {"loss_agg_mode": "token-mean", "use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}
    before = {name: getattr(config, name) for name in told}
    for name, value in told.items():
        object.__setattr__(config, name, value)
    object.__setattr__(config.policy_loss, "loss_mode", "gspo")
    whole, policy = (next(case for case in CASES if case.name == name) for name in ("gspo, k3", "gspo"))
    insisted = LOSS_MODES["gspo"].insists_on(VERSION) or "token_mean"
    # A step of two rows, which needs no filler row: natively those count.
    samples, members = bench.step(Plan(spec_of(whole, "token_mean"), PROMPTS), 2)
    bench.send(samples, members, 2, SPLITS["fixed 1"])
    (both, first, _), (without, second, _), (own, third, _) = (
        bench.expected(case, spec_of(case, aggregation), 2, samples)
        for case, aggregation in ((whole, "token_mean"), (policy, "token_mean"), (policy, insisted))
    )
    assert bench.gradient is not None
    for name, value in before.items():
        object.__setattr__(config, name, value)
    object.__setattr__(config.policy_loss, "loss_mode", "vanilla")
    return relative_error(bench.gradient, both - without + own) / bar(max(first, second, third))


def detached(bench: Bench) -> dict[str, float]:
    """Old log-probabilities of the current policy, whatever the batch carries."""
    case = CASES[0]
    spec = spec_of(case, "token_mean").replace(**{"objective.old_logprobs": "detached"})
    bench.install(bench.orders(spec, case, detached=True))
    probe(bench.worker)
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    bench.send(samples, members, 0, SPLITS["fixed 2"])
    remove(bench.worker)
    expected, floor = bench.detached(spec, samples)
    assert bench.gradient is not None
    return {"error": relative_error(bench.gradient, expected), "floor": floor}


def drifts(bench: Bench) -> list[str]:
    """What a step says that is not the plan's: other members, weights that something else has changed, and those of a
    loss mode that takes another aggregation than it is told."""
    case = CASES[0]
    spec = spec_of(case, "sequence_sum")
    samples, members = bench.step(Plan(spec, PROMPTS), 1)
    said, before = [], bench.updates
    for change in ("members", "weights", "loss mode"):
        bench.install(bench.orders(spec, INSISTING if change == "loss mode" else case))
        if change != "members":
            samples, members = bench.step(Plan(spec, PROMPTS), 0)
        if change == "weights":
            bench.spoil()
        try:
            bench.send(samples, members, 0, SPLITS["fixed 2"])
        except BatchDrift as drift:
            said.append(str(drift))
        else:
            said.append("no drift")
        finally:
            remove(bench.worker)
    said.append("nothing applied" if bench.updates == before else "applied")
    return said


def empty(bench: Bench, folder: Path) -> dict[str, Any]:
    """A step without a token: no update, and the ledger says so."""
    case = CASES[0]
    spec = spec_of(case, "token_mean")
    bench.install(bench.orders(spec, case, ledger=folder / "empty_ledger"))
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    before = bench.updates
    silent = [dataclasses.replace(sample, loss_mask=[0] * len(sample.completion)) for sample in samples]
    bench.send(silent, members, 0, SPLITS["fixed 2"])
    samples, members = bench.step(Plan(spec, PROMPTS), 1)
    untouched = bench.updates == before
    bench.send(samples, members, 1, SPLITS["fixed 2"])
    remove(bench.worker)
    return {"untouched": untouched}


def read_of(bench: Bench) -> dict[str, bool]:
    """What verl made of `use_prefix_grouper`: whether its loss's configuration has it, the package was imported, and
    transformers' attention functions were patched for it."""
    from verl.models.transformers import monkey_patch

    return {
        "configured": bool(bench.worker.loss_fn.keywords["config"].use_prefix_grouper),
        "imported": "prefix_grouper" in sys.modules,
        "patched": bool(monkey_patch._PREFIX_GROUPER_PATCHED),
    }


def of_padded_rows(folder: Path) -> float:
    """verl 0.7.1 alone, on rows that it pads, with the denominators that are right. Error over the bar."""
    bench = Bench(folder, "actor_rollout_ref.model.use_remove_padding=False")
    case = dataclasses.replace(CASES[0], name="padded rows")
    spec = spec_of(case, "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    bench.send(samples, members, 0, SPLITS["fixed 2"])
    expected, floor, _ = bench.expected(case, spec, 0, samples)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


PACKED = tuple(case for case in CASES if case.name in ("vanilla", "vanilla, k3", "gspo"))


def gradients(bench: Bench, folder: Path) -> dict[str, Any]:
    return {
        "wrapped": wrapped(bench),
        "natively": natively(bench),
        "terms apart": terms_apart(bench),
        "detached": detached(bench),
        "drifts": drifts(bench),
        "empty": empty(bench, folder),
    }

"""Part of what `processes.py` runs: gradients of verl's legacy worker (`DataParallelPPOActor.update_policy`), and steps
that something else than the plan has a hand in. Until 0.7.1."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from gradients import (
    AGGREGATIONS,
    CARRIED,
    CASES,
    PPO,
    PROMPTS,
    SPLITS,
    Bench,
    Case,
    bar,
    detached,
    drifts,
    empty,
    relative_error,
    spec_of,
    wrapped,
)
from tampering import (
    RAISED,
    SHORT,
    TAMPERS,
    Tamper,
    betas_changed,
    decay_changed,
    forward,
    last_rank,
    rate_raised,
    sent,
    tampered,
)
from verl.trainer.ppo import core_algos

from batchbridge.errors import CannotAttach
from batchbridge.kit.carried_rows import told_by_batch
from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.workers import Orders
from batchbridge.meaning.plan import Plan
from batchbridge_on_cpu.verl.workers import as_legacy_workers_get, legacy_worker, module_of
from batchbridge_verl.legacy import install, probe, remove

NAMES = {
    "micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
    "use_dynamic_bsz": "use_dynamic_bsz",
    "max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}
"""Names of a split's values -> the actor's settings."""


class ActorAsEngine:
    """The actor under the names that an engine has, for tampering with either."""

    NAMES: ClassVar[Mapping[str, str]] = {
        "forward_step": "_forward_micro_batch",
        "optimizer_step": "_optimizer_step",
        "optimizer": "actor_optimizer",
        "module": "actor_module",
    }

    def __init__(self, actor: Any) -> None:
        vars(self)["actor"] = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, self.NAMES.get(name, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.actor, self.NAMES.get(name, name), value)


class LegacyBench(Bench):
    """A bench whose worker is the legacy one."""

    def __init__(self, folder: Path, *more: str) -> None:
        super().__init__(folder, "actor_rollout_ref.actor.grad_clip=1000000000.0", *more)

    def started(self, policy: Path, *overrides: str) -> Any:
        worker = legacy_worker(policy, *overrides)
        worker.engine = ActorAsEngine(worker.actor)
        worker.train_mini_batch = worker.update_actor  # the name that a training worker has for it
        self.targets = worker, worker.actor
        return worker

    def place(self) -> tuple[int, int]:
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    @property
    def module(self) -> Any:
        return module_of(self.worker)

    @property
    def config(self) -> Any:
        return self.worker.actor.config

    def tell(self, **values: Any) -> None:
        """Gives the actor settings, which verl freezes."""
        for name, value in values.items():
            object.__setattr__(self.config, name, value)

    def install(self, orders: Orders) -> Any:
        return install(self.worker, orders)

    def spoil(self) -> None:
        scope = self.worker.batchbridge._native_update.__func__.__globals__
        scope["get_policy_loss_fn"] = core_algos.get_policy_loss_fn

    def send(self, samples: Any, members: Any, step: int, split: dict[str, Any], **more: Any) -> Any:
        self.tell(**{NAMES[name]: value for name, value in {"use_dynamic_bsz": False, **split}.items()})
        return super().send(samples, members, step, split, **more)

    def update(self, data: Any) -> Any:
        made = as_legacy_workers_get(data)
        marks = made.non_tensor_batch[POSITION], made.non_tensor_batch[SAMPLE]
        made.meta_info[ROW_DIGESTS] = told_by_batch(made.batch, CARRIED, *marks)
        return self.worker.train_mini_batch(made)


# ---- verl alone


def natively(bench: LegacyBench) -> dict[str, float]:
    """verl's own loss without the layer, on the rows of one step. Error over the bar."""
    ratios = {}
    for name, aggregation, index in (
        ("token-mean of each micro-batch", "token_mean", 0),
        ("seq-mean-token-sum, filler rows in a micro-batch", "sequence_sum", 0),
        ("positive control: seq-mean-token-sum", "sequence_sum", 2),
    ):
        case = Case(f"control {name}", "vanilla", PPO)
        spec = spec_of(case, aggregation)
        samples, members = bench.step(Plan(spec, PROMPTS), index)
        split = SPLITS["fixed 2" if "filler" in name else "fixed 1"]
        rows = -(-len(samples) // bench.ranks)
        rows += -rows % split["micro_batch_size_per_gpu"]
        bench.tell(
            loss_agg_mode=AGGREGATIONS[aggregation],
            loss_scale_factor=None,
            ppo_mini_batch_size=rows,
            use_rollout_log_probs=True,  # else one step takes the current policy's
        )
        bench.send(samples, members, index, split)
        expected, floor, _ = bench.expected(case, spec, index, samples)
        assert bench.gradient is not None
        ratios[name] = relative_error(bench.gradient, expected) / bar(floor)
    return ratios


# ---- tampering


def of_loss(bench: LegacyBench, change: Callable[[Any], Any]) -> None:
    """In the way of every policy loss."""
    scope = bench.worker.batchbridge._native_update.__func__.__globals__
    find = scope["get_policy_loss_fn"]

    def found(name: str) -> Any:
        native = find(name)

        def loss(**given: Any) -> Any:
            value, metrics = native(**given)
            return change(value), metrics

        return loss

    if last_rank(bench):
        scope["get_policy_loss_fn"] = found


def detached_once(bench: LegacyBench) -> None:
    """The log-probabilities of the first micro-batch no longer hang on the model. On every rank, as FSDP needs it."""
    seen: list[int] = []

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        result, first = native(micro_batch, **options), not seen
        seen.append(1)
        pair = isinstance(result, tuple)  # before 0.7.1
        made = result[1] if pair else result["log_probs"]
        cut = made.detach().requires_grad_() + 0 * made.detach() if first else made
        return (result[0], cut) if pair else {**result, "log_probs": cut}

    forward(bench, change)


def mask_touched(bench: LegacyBench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        mask = micro_batch["response_mask"]
        mask[mask.sum(1) > 1, 0] = 0
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def hotter(bench: LegacyBench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        return native(micro_batch, **{**options, "temperature": 1.05})

    if last_rank(bench):
        forward(bench, change)


def other_last_token(ids: torch.Tensor, attended: torch.Tensor) -> None:
    row, place = attended.nonzero()[0].tolist()
    ids[row, place] = ids[row, place] % 50 + 3


def model_tokens(bench: LegacyBench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        other_last_token(micro_batch["input_ids"], micro_batch["attention_mask"])
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def column_sent(name: str, change: Callable[[torch.Tensor], Any]) -> Tamper:
    return lambda bench: sent(bench, lambda data: change(data.batch[name]))


def rows_exchanged(bench: LegacyBench) -> None:
    """The advantages of two rows."""

    def exchange(data: Any) -> None:
        values = data.batch["advantages"]
        first, second = float(values[0, 0]), float(values[1, 0])
        values[0], values[1] = second, first

    sent(bench, exchange)


def tokens_sent(bench: LegacyBench) -> None:
    sent(bench, lambda data: other_last_token(data.batch["input_ids"], data.batch["attention_mask"]))


OWN: dict[str, Tamper] = {
    "the loss": lambda bench: of_loss(bench, lambda value: value * 7),
    "the value of the loss": lambda bench: of_loss(bench, lambda value: value + 0.001 * value.detach()),
    "a constant in the loss": lambda bench: of_loss(bench, lambda value: value + 0.1),
    "the mask": mask_touched,
    "a micro-batch that is detached": detached_once,
    "advantages on their way": column_sent("advantages", lambda values: values.mul_(1.05)),
    "advantages that are exchanged": rows_exchanged,
    "old log-probabilities on their way": column_sent("old_log_probs", lambda values: values.add_(0.05)),
    "log-probabilities of the reference on their way": column_sent("ref_log_prob", lambda values: values.add_(0.05)),
    "tokens on their way": tokens_sent,
    "the tokens that the policy is run on": model_tokens,
    "the temperature": hotter,
}
"""Tampering whose place in legacy workers is another one."""
ALL = {**TAMPERS, **OWN}


@contextlib.contextmanager
def bound(bench: LegacyBench, norm: float) -> Any:
    native = bench.config.grad_clip
    bench.tell(grad_clip=norm)
    try:
        yield
    finally:
        bench.tell(grad_clip=native)


def refused(bench: LegacyBench, change: Callable[[Any], Any]) -> str:
    """The reason against a worker with a changed aggregation of verl's; empty where it is taken."""
    native = core_algos.POLICY_LOSS_REGISTRY["vanilla"]

    def loss(**given: Any) -> Any:
        return change((native, given))

    core_algos.POLICY_LOSS_REGISTRY["vanilla"] = loss
    try:
        bench.install(bench.orders(spec_of(CASES[0], "token_mean"), CASES[0]))
        probe(bench.worker)
    except CannotAttach as error:
        return " ".join(error.reasons)
    finally:
        remove(bench.worker)
        core_algos.POLICY_LOSS_REGISTRY["vanilla"] = native
    return ""


def side_effects(bench: LegacyBench) -> bool:
    """Whether a probe leaves gradients, optimizer, configuration and random state alone."""
    actor = bench.worker.actor

    def state() -> str:
        return repr(
            (
                [parameter.grad is None for parameter in bench.module.parameters()],
                bench.optimizer.state_dict(),
                {name: getattr(actor.config, name) for name in actor.config},
                torch.get_rng_state().tolist(),
                sorted(vars(actor)),
                actor.actor_module.training,
            )
        )

    bench.install(bench.orders(spec_of(CASES[1], "token_mean"), CASES[1]))
    bench.optimizer.zero_grad(set_to_none=True)
    bench.module.train()
    actor.gradient_accumulation = 1  # which verl leaves behind
    before = state()
    probe(bench.worker)
    actor.gradient_accumulation = 1
    after = state()
    remove(bench.worker)
    return before == after


def in_bfloat16(bench: LegacyBench) -> dict[str, Any]:
    bench.worker.actor.param_dtype = torch.bfloat16
    try:
        return {name: tampered(bench, ALL[name]) for name in ("nothing", *SHORT)}
    finally:
        bench.worker.actor.param_dtype = torch.float32


def tampering(bench: LegacyBench, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "another loss": refused(bench, lambda made: made[0](**made[1])),
        "no side effects": side_effects(bench),
        "enforce": {name: tampered(bench, tamper) for name, tamper in ALL.items()},
    }
    with bound(bench, 1e-3):
        found["clipped"] = {name: tampered(bench, ALL[name]) for name in ("nothing", "the gradient after clipping")}
    found["rate"] = tampered(bench, rate_raised)
    found["decay"] = tampered(bench, decay_changed)
    found["betas"] = tampered(bench, betas_changed)
    lost = tampered(bench, lambda bench: of_loss(bench, lambda value: value * math.nan), ledger=folder / "not_a_number")
    found["not a number"] = lost
    found["bfloat16"] = in_bfloat16(bench)
    found["raised"] = RAISED
    return found


def legacy(bench: LegacyBench, folder: Path) -> dict[str, Any]:
    found = {
        "wrapped": wrapped(bench),
        "detached": detached(bench),
        "drifts": drifts(bench),
        "empty": empty(bench, folder),
        "tampering": tampering(bench, folder),
    }
    return {**found, "natively": natively(bench)}  # last: it leaves settings behind

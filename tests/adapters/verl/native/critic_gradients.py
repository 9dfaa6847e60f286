"""Part of what `processes.py` runs: a critic's gradients in verl's real `TrainingWorker` and FSDP engine on gloo."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import AGGREGATIONS, CASES, SPLITS, STEPS, VERSION
from tampering import altered, as_it_was, forward, gradients_multiplied, last_rank, loss_times_seven

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.ranks import layout
from batchbridge.kit.workers import Orders
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.critic_run import run_of_critic
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import double, relative_error
from batchbridge_on_cpu.steps import CONSTANT, GROUP, PROMPTS, STEP_SIZE, Steps, bar, moved, spec_of
from batchbridge_on_cpu.value_oracle import ValueSample, clipped_share, value_gradient, values
from batchbridge_on_cpu.verl.critic import PACKED, critic_worker, tiny_critic, value_batch
from batchbridge_on_cpu.verl.workers import full_gradient
from batchbridge_verl.critic_engine import VerlCriticLayer
from batchbridge_verl.engine import install, probe, remove

CLIP = 0.05
ALL = [name for name in AGGREGATIONS if name != "token_sum" or not VERSION.startswith("0.8")]


def critic_spec(aggregation: str, clip: float | None = CLIP) -> Spec:
    """The run as a critic of the tests trains."""
    critic = Critic(
        completions_per_step=STEP_SIZE,
        aggregation=aggregation,  # type: ignore[arg-type]  # one of AGGREGATIONS
        constant=CONSTANT if aggregation == "sequence_sum_over_constant" else None,
        value_clip=clip,
    )
    return run_of_critic(spec_of(CASES[0], "token_mean").replace(critic=critic))


class CriticBench(Steps):
    """The worker, the completions with returns and old values, and the oracle's answers."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.worker = critic_worker(
            folder / "critic", "critic.optim.lr=0.0", "critic.optim.clip_grad=1000000000.0", *more
        )
        super().__init__()
        self.critic = tiny_critic().eval()
        self.exact_critic, self.before = double(self.critic), moved(self.critic, 3, 0.02)
        engine = self.worker.engine
        self.process, self.processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.rank, self.ranks = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
        self.gradient: torch.Tensor | None = None
        self.updates = 0

        def before(*_: Any) -> None:
            self.gradient = full_gradient(self.worker)

        def after(*_: Any) -> None:
            self.updates += 1

        engine.optimizer.register_step_pre_hook(before)
        engine.optimizer.register_step_post_hook(after)

    def value_step(self, plan: Plan, index: int) -> tuple[list[ValueSample], list[tuple[int, int, int, int]]]:
        """Samples of an optimizer step, and (rollout, prompt, position, sample) of each."""
        step = plan.step(index)
        members = [
            (member.rollout, member.prompt, position // GROUP, member.sample)
            for member, position in zip(step.members, step.positions, strict=True)
        ]
        return [self.value_sample(plan, *member) for member in members], members

    def value_sample(self, plan: Plan, rollout: int, prompt: int, position: int, row: int) -> ValueSample:
        """A completion with the values of a critic that is a little behind, and returns of its own."""
        made = self.made(plan, rollout, position, row)
        drawn = torch.Generator().manual_seed(100 * prompt + row)
        bare = ValueSample(
            prompt=made.prompt,
            completion=made.completion,
            loss_mask=made.loss_mask,
            group=made.group,
            returns=made.advantage + 0.3 * torch.randn(len(made.completion), generator=drawn),
            old_values=torch.zeros(len(made.completion)),
        )
        with torch.no_grad():
            return ValueSample(**{**vars(bare), "old_values": values(self.before, bare)})

    def send_values(
        self, samples: Sequence[ValueSample], members: Sequence[Any], step: int, split: dict[str, Any]
    ) -> Any:
        """This rank's part of one call, as the driver lays it out."""
        costs = [len(sample.prompt) + len(sample.completion) for sample in samples]
        order = layout(costs, ranks=self.ranks, rows_per_micro_batch=split.get("micro_batch_size_per_gpu"))
        size = len(order) // self.ranks
        mine = order[self.rank * size : (self.rank + 1) * size]
        data = value_batch(
            [None if row is None else samples[row] for row in mine],
            [None if row is None else members[row] for row in mine],
            step=step,
            mini_batch_size=len(order),
            global_batch_size=len(order),
            **split,
        )
        return self.worker.train_mini_batch(data)

    def critics_orders(self, spec: Spec, clip: float | None = CLIP, ledger: Path | None = None, **more: Any) -> Orders:
        settings: dict[str, Any] = {"loss_agg_mode": AGGREGATIONS[spec.loss.policy.aggregation]}
        settings["cliprange_value"] = 1e9 if clip is None else clip
        if not VERSION.startswith("0.8"):
            settings["loss_scale_factor"] = spec.loss.policy.constant
        told: dict[str, Any] = {"mode": "enforce", "ledger": ledger, "ticks": 10, **more}
        return Orders(
            spec=spec,
            dataset_size=PROMPTS,
            planned=True,
            framework_version=VERSION,
            start_id="test",
            settings=settings,
            **told,
        )

    def answer(
        self, spec: Spec, samples: Sequence[ValueSample], clip: float | None = CLIP
    ) -> tuple[torch.Tensor, float]:
        """The oracle's gradient, and the same code's error in float32."""
        exact, rough = (
            value_gradient(model, samples, term=spec.loss.policy, clip=clip)
            for model in (self.exact_critic, self.critic)
        )
        return exact, relative_error(rough, exact)


@contextlib.contextmanager
def attached(bench: CriticBench, orders: Orders) -> Iterator[None]:
    install(bench.worker, orders, layer=VerlCriticLayer)
    try:
        yield
    finally:
        remove(bench.worker)


def wrapped(bench: CriticBench, aggregations: Sequence[str] = ALL) -> list[dict[str, Any]]:
    """Every aggregation, split, and clipping on and off, step by step."""
    results = []
    splits = list(SPLITS) if bench.processes == 1 else ["fixed 2", "budget 40"]
    for split, aggregation, clip in itertools.product(splits, aggregations, (CLIP, None)):
        spec = critic_spec(aggregation, clip)
        plan = Plan(spec, PROMPTS)
        with attached(bench, bench.critics_orders(spec, clip)):
            probe(bench.worker)
            for index in STEPS:
                samples, members = bench.value_step(plan, index)
                bench.send_values(samples, members, index, SPLITS[split])
                exact, floor = bench.answer(spec, samples, clip)
                assert bench.gradient is not None
                results.append(
                    {
                        "split": split,
                        "aggregation": aggregation,
                        "clip": clip,
                        "rows": len(samples),
                        "silent": sum(not any(sample.loss_mask) for sample in samples),
                        "error": relative_error(bench.gradient, exact),
                        "floor": floor,
                        "norm": float(exact.norm()),
                        "clipped": clipped_share(bench.critic, samples, CLIP),
                    }
                )
    return results


def per_micro_batch(*, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    """verl's own value loss as verl 0.8.0 calls it: averaged over each micro-batch and rank alone."""
    from verl.trainer.ppo.core_algos import compute_value_loss
    from verl.workers.utils.padding import no_padding_2_padding

    predicted = no_padding_2_padding(model_output["values"], data)
    rows = data.select("values", "returns", "response_mask").to_padded_tensor()
    loss, _ = compute_value_loss(
        vpreds=predicted,
        values=rows["values"],
        returns=rows["returns"],
        response_mask=rows["response_mask"].to(bool),
        cliprange_value=config.cliprange_value,
        loss_agg_mode=config.loss_agg_mode,
    )
    return loss, {}


def natively(bench: CriticBench) -> dict[str, float]:
    """The negative controls: verl's own losses without the layer, on the same rows. Error over the bar."""
    native = bench.worker.loss_fn
    config, ratios = native.keywords["config"], {}
    own = native.func
    object.__setattr__(config, "cliprange_value", CLIP)
    for name, loss, aggregation, split in (
        ("mean of each micro-batch", per_micro_batch, "token_mean", SPLITS["fixed 2"]),
        ("seq-mean-token-sum, filler rows in B", own, "sequence_sum", SPLITS["fixed 2"]),
        ("control: token-mean", own, "token_mean", SPLITS["fixed 2"]),
    ):
        object.__setattr__(config, "loss_agg_mode", AGGREGATIONS[aggregation])
        spec = critic_spec(aggregation)
        samples, members = bench.value_step(Plan(spec, PROMPTS), 0)
        bench.worker.set_loss_fn(functools.partial(loss, config=config))
        bench.send_values(samples, members, 0, split)
        bench.worker.set_loss_fn(native)
        exact, floor = bench.answer(spec, samples)
        assert bench.gradient is not None
        ratios[name] = relative_error(bench.gradient, exact) / bar(floor)
    return ratios


def refused(bench: CriticBench) -> dict[str, str]:
    """What is said at attach to a critic's loss that does not weigh as the plan does; empty where it is taken."""
    spec, native = critic_spec("token_mean"), bench.worker.loss_fn
    ways: dict[str, Any] = {
        how: functools.partial(altered, how, native.func) for how in ("itself", "times seven", "over its own tokens")
    }
    ways["mean of each micro-batch"] = per_micro_batch
    found = {}
    for how, loss in ways.items():
        bench.worker.set_loss_fn(functools.partial(loss, config=native.keywords["config"]))
        found[how] = ""
        try:
            with attached(bench, bench.critics_orders(spec)):
                probe(bench.worker)
        except CannotAttach as error:
            found[how] = error.reasons.get("weight_probe", str(error))
        finally:
            bench.worker.set_loss_fn(native)
    return found


def touched(name: str, factor: float) -> Callable[[Any], None]:
    """A tampering: a column of every micro-batch of the last rank, multiplied."""

    def tamper(bench: Any) -> None:
        def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
            micro_batch[name].values().mul_(factor)
            return native(micro_batch, **options)

        if last_rank(bench):
            forward(bench, change)

    return tamper


TAMPERS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda bench: None,
    "the returns": touched("returns", 1.5),
    "the old values": touched("values", 3.0),
    "the loss": loss_times_seven,
    "the gradient after backward": gradients_multiplied,
}


def tampered(bench: CriticBench, tamper: Callable[[Any], None]) -> dict[str, Any]:
    """Two steps; before the second something has a hand in it."""
    spec = critic_spec("token_mean")
    plan, before, said = Plan(spec, PROMPTS), bench.updates, ""
    with attached(bench, bench.critics_orders(spec)), as_it_was(bench):  # type: ignore[arg-type]  # a worker is all it needs
        try:
            for index in (0, 1):
                if index:
                    tamper(bench)
                samples, members = bench.value_step(plan, index)
                bench.send_values(samples, members, index, SPLITS["fixed 1"])
        except BatchDrift as drift:
            said = str(drift)
    return {"said": said, "updates": bench.updates - before}


def members_drift(bench: CriticBench) -> str:
    """What a step says whose rows are another step's."""
    spec = critic_spec("token_mean")
    samples, members = bench.value_step(Plan(spec, PROMPTS), 1)
    with attached(bench, bench.critics_orders(spec)):
        try:
            bench.send_values(samples, members, 0, SPLITS["fixed 2"])
        except BatchDrift as drift:
            return str(drift)
    return ""


def ledger(bench: CriticBench, folder: Path) -> None:
    """Two steps, written down."""
    spec = critic_spec("token_mean")
    with attached(bench, bench.critics_orders(spec, ledger=folder / "critics_ledger")):
        for index in (0, 1):
            samples, members = bench.value_step(Plan(spec, PROMPTS), index)
            bench.send_values(samples, members, index, SPLITS["fixed 2"])


def critic(bench: CriticBench, folder: Path) -> dict[str, Any]:
    found = {
        "wrapped": wrapped(bench),
        "natively": natively(bench),
        "refused": refused(bench),
        "tampered": {name: tampered(bench, tamper) for name, tamper in TAMPERS.items()},
        "members": members_drift(bench),
    }
    ledger(bench, folder)
    if bench.processes == 1:
        found["packed"] = wrapped(CriticBench(folder, *PACKED), ["token_mean"])
    return found

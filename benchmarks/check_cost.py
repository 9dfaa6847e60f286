"""What measuring a wrapped trainer costs: the share of an optimizer step that goes into its checks, on a CPU.

    python benchmarks/check_cost.py [--framework trl|verl|openrlhf|easyr1] [--write] [--json FILE]

The time inside every function that measures (hooks on the log-probabilities and on every parameter, the comparison with
the objective's own gradient, the comparison with the plan) over the time of the steps that they are part of, generation
left out; also with completions so short that nearly nothing else is computed. Processor time of one process with one
thread, so that other work on the machine changes little. --write puts the framework's part into
check_cost.json and .md beside this file. A report, never a gate. Needs what trl_runs.py needs; of the frameworks
the one that is measured (for the others than TRL what their tests need; EasyR1's checkout is on PYTHONPATH).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if "easyr1" in sys.argv:  # it asks torch for CUDA when it is imported
    from batchbridge_on_cpu.easyr1 import cpu

    cpu.start()

import torch
import trl_runs as runs

from batchbridge import wrap
from batchbridge.kit import gradient_sketches, measuring
from batchbridge.kit.workers import Orders
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import (
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)
from batchbridge.testing.oracle import Sample
from batchbridge.testing.tiny import tiny_tokenizer

EVERYWHERE: tuple[tuple[Any, str], ...] = (
    (measuring.Tap, "watch"),
    (measuring._MicroBatch, "arrive"),
    (gradient_sketches.Sketches, "arrive"),
    (gradient_sketches.Sketches, "compare"),
)


@dataclass(frozen=True)
class Work:
    """A step that is measured: completions, tokens per micro-batch (budget), tokens of every completion; of what policy
    (see `trl_runs.SHAPES`), on what device. Of TRL alone: whether a ledger is written, precision, checkpointing."""

    completions: int
    budget: int
    tokens: int
    policy: str = "small"
    device: str = "cpu"
    ledger: bool = False
    bf16: bool = False
    checkpointing: bool = False

    @property
    def setting(self) -> runs.Setting:
        """The same for TRL."""
        names = ("completions", "policy", "device", "bf16", "checkpointing")
        made = runs.Setting(**{name: getattr(self, name) for name in names}, lengths="equal", steps=STEPS)
        return replace(made, tokens_per_device=self.budget, mean=self.tokens)

    def clock(self) -> float:
        """Processor time on a CPU; elsewhere a clock that waits for the device, so that its work counts."""
        return time.process_time() if self.device == "cpu" else runs.clock(self.device)


ROWS = {
    "64 completions of 150 tokens": Work(64, 608, 150),
    "16 completions of 150 tokens": Work(16, 608, 150),
    "16 completions of 8 tokens": Work(16, 160, 8),
}
LARGE = {"8 completions of 150 tokens, a model of 0.5B": Work(8, 1216, 150, policy="0.5B")}
"""The shape of Qwen2-0.5B, a step of one micro-batch or two; needs 20 GiB and ten minutes, and is asked for by name."""
STEPS = 4
Spent = dict[str, float]
"""checks: seconds inside of functions that measure, since it was last set to zero. depth: of them, one in another."""


def measure(framework: str, work: Work, own: Functions | None = None) -> dict[str, float]:
    """own: the functions whose time counts; None: all that measure in this framework."""
    spent = {"checks": 0.0, "depth": 0.0}

    def timed(native: Any) -> Any:
        if isinstance(native, classmethod):
            return classmethod(timed(native.__func__))

        def function(*arguments: Any, **options: Any) -> Any:
            spent["depth"] += 1
            started = work.clock()
            try:
                return native(*arguments, **options)
            finally:
                spent["depth"] -= 1
                if not spent["depth"]:  # one measured function inside another counts once
                    spent["checks"] += work.clock() - started

        return function

    run, measuring_there = FRAMEWORKS[framework]
    places = [(_found(place), name) for place, name in (measuring_there if own is None else own)]
    native = [(owner, name, vars(owner)[name]) for owner, name in (*(EVERYWHERE if own is None else ()), *places)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            ready = run(Path(folder), work)
            for owner, name, function in native:
                setattr(owner, name, timed(function))
            seconds = ready(spent)
    finally:
        for owner, name, function in native:
            setattr(owner, name, function)
    checks = spent["checks"]
    return {
        "milliseconds_a_step": 1e3 * checks / STEPS,
        "step_milliseconds": 1e3 * seconds / STEPS,
        "share": checks / seconds,
    }


def _found(place: str) -> Any:
    """A module, or its class after a colon."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


# ---- TRL


def trl(folder: Path, work: Work) -> Callable[[Spent], float]:
    """A wrapped `GRPOTrainer`."""
    trainer = runs.build(folder, work.setting)
    wrap(trainer, tokens_per_device=work.budget, ledger=folder / "ledger" if work.ledger else None)
    return lambda spent: step_seconds(trainer, spent, work)


def step_seconds(trainer: Any, spent: dict[str, float], work: Work) -> float:
    """Seconds of all steps but the first, from the forward pass to the end of the update; generation left out."""
    clock = {"total": 0.0, "generation": 0.0, "started": 0.0}
    generate = trainer._generate

    def timed_generate(*arguments: Any, **options: Any) -> Any:
        started = work.clock()
        output = generate(*arguments, **options)
        clock["generation"] += work.clock() - started
        return output

    trainer._generate = timed_generate

    class Clock(runs.transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock["started"], clock["generation"] = work.clock(), 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
            if state.global_step == 1:
                spent["checks"] = 0.0
            else:
                clock["total"] += work.clock() - clock["started"] - clock["generation"]

    trainer.add_callback(Clock())
    trainer.train()
    return clock["total"]


# ---- of several frameworks


def spec_of(completions: int) -> Spec:
    """One optimizer step of so many completions per rollout."""
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=completions // runs.GROUP, completions_per_prompt=runs.GROUP),
        optimizer_step=OptimizerStep(completions_per_step=completions),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1.0),
        order=Order(seed=5),
        objective=Objective(
            surrogate="ppo",
            ratio_level="token",
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=3.0,
            old_logprobs="rollout_start",
        ),
    )


def prompts_of(completions: int) -> int:
    """Of a dataset for one step that is not measured and those that are."""
    return (STEPS + 1) * completions // runs.GROUP


def trained(plan: Plan, step: int, script: runs.Lengths) -> tuple[list[Sample], list[tuple[int, int, int, int]]]:
    """A step's completions, and of each its rollout, prompt, position and sample."""
    planned = plan.step(step)
    samples, members = [], []
    for member, position in zip(planned.members, planned.positions, strict=True):
        completion = script.completion(member.prompt, member.sample)
        sample = Sample(
            prompt=[5] * script.prompt_tokens,
            completion=completion,
            loss_mask=[1] * len(completion),
            group=member.prompt,
            advantage=1.0 if member.sample % 2 else -1.0,
            old_logprobs=torch.full((len(completion),), -9.0),  # a random policy's, about
        )
        samples.append(sample)
        members.append((member.rollout, member.prompt, position // runs.GROUP, member.sample))
    return samples, members


def orders(framework: str, spec: Spec, settings: dict[str, Any]) -> Orders:
    """What the layer of a training worker is told."""
    assert spec.completions_per_rollout is not None
    return Orders(
        spec=spec,
        dataset_size=prompts_of(spec.completions_per_rollout),
        planned=True,
        mode="enforce",
        ledger=None,
        framework_version=runs.installed(framework) or "",
        start_id="benchmark",
        ticks=STEPS + 1,
        settings=settings,
    )


def stepped(train: Callable[[int], Callable[[], Any]], work: Work) -> Callable[[Spent], float]:
    """Seconds of all optimizer steps but the first. train: what trains a step, once its batch is there."""

    def ready(spent: Spent) -> float:
        total = 0.0
        for index in range(STEPS + 1):
            step = train(index)
            started = work.clock()
            step()
            if index:
                total += work.clock() - started
            else:
                spent["checks"] = 0.0
        return total

    return ready


def policy_in(folder: Path, work: Work) -> Path:
    """The policy and a tokenizer."""
    runs.policy(work.setting).save_pretrained(folder / "policy")
    tiny_tokenizer().save_pretrained(folder / "policy")
    return folder / "policy"


# ---- verl


def verl(folder: Path, work: Work) -> Callable[[Spent], float]:
    """verl's own `TrainingWorker` with its FSDP2 engine, in which the layer that `wrap` puts there is installed."""
    from batchbridge_on_cpu.verl.workers import batch, training_worker
    from batchbridge_verl.engine import install, probe

    overrides = {"model.override_config.attn_implementation": "sdpa", "actor.ppo_micro_batch_size_per_gpu": 4}
    worker = training_worker(
        policy_in(folder, work), *(f"actor_rollout_ref.{name}={value}" for name, value in overrides.items())
    )
    spec = spec_of(work.completions)
    install(worker, orders("verl", spec, {"loss_agg_mode": "token-mean", "policy_loss.loss_mode": "vanilla"}))
    probe(worker)
    plan = Plan(spec, prompts_of(work.completions))

    def train(index: int) -> Callable[[], Any]:
        samples, members = trained(plan, index, work.setting.script)
        cut = {"use_dynamic_bsz": True, "max_token_len_per_gpu": work.budget}
        sizes = {"mini_batch_size": work.completions, "global_batch_size": work.completions}
        rows = batch(samples, members, step=index, **cut, **sizes)
        return lambda: worker.train_mini_batch(rows)

    return stepped(train, work)


# ---- EasyR1


def easyr1(folder: Path, work: Work) -> Callable[[Spent], float]:
    """EasyR1's own `FSDPWorker`, in which the layer that `wrap` puts there is installed; micro-batches of four."""
    from batchbridge_easyr1.engine import install, probe
    from batchbridge_on_cpu.easyr1 import workers

    workers.RESPONSE_TOKENS = work.tokens
    sizes = {
        "worker.actor.global_batch_size": work.completions // runs.GROUP,
        "worker.rollout.n": runs.GROUP,
        "worker.actor.micro_batch_size_per_device_for_update": 4,
    }
    worker = workers.actor_worker(policy_in(folder, work), sizes)
    spec = spec_of(work.completions)
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_dual": 3.0}
    install(worker, orders("verl", spec, {"use_kl_loss": False, "loss_type": "default", **clips}))
    probe(worker)
    plan = Plan(spec, prompts_of(work.completions))

    def train(index: int) -> Callable[[], Any]:
        rows = workers.batch(*trained(plan, index, work.setting.script), step=index)
        return lambda: worker.update_actor(rows)

    return stepped(train, work)


# ---- OpenRLHF


def openrlhf(folder: Path, work: Work) -> Callable[[Spent], float]:
    """OpenRLHF's own `ActorPPOTrainer` under its DeepSpeed strategy (ZeRO-2), in which the layer that `wrap` puts there
    is installed."""
    from batchbridge_on_cpu.openrlhf.workers import actor_trainer, experience
    from batchbridge_openrlhf.engine import install

    sizes = {"rollout.batch_size": work.completions // runs.GROUP, "rollout.n_samples_per_prompt": runs.GROUP}
    trainer = actor_trainer(
        policy_in(folder, work),
        steps=STEPS + 1,
        dataset_size=prompts_of(work.completions),
        **{"ds.zero_stage": 2, "ds.attn_implementation": "sdpa", "train.batch_size": work.completions, **sizes},
    )
    spec = spec_of(work.completions).replace(micro_batch=MicroBatch(tokens_per_device=work.budget, cap="soft"))
    settings = {"loss.token_level_loss": True, "loss.policy_loss_type": "ppo", "loss.dual_clip": 3.0}
    install(trainer, orders("openrlhf", spec, settings))
    plan = Plan(spec, prompts_of(work.completions))

    def train(index: int) -> Callable[[], Any]:
        trainer.replay_buffer.clear()
        for sample, member in zip(*trained(plan, index, work.setting.script), strict=True):
            trainer.replay_buffer.append(experience(sample, member))
        return lambda: trainer.ppo_train(0.0)

    return stepped(train, work)


Functions = tuple[tuple[str, str], ...]
"""Where functions are: module or module:class, and name."""
FRAMEWORKS: dict[str, tuple[Callable[[Path, Work], Callable[[Spent], float]], Functions]] = {
    # its run, up to where steps begin, and what measures in it beside EVERYWHERE
    "trl": (trl, (("batchbridge_trl.recording:TrlLayer", "look"),)),
    "verl": (
        verl,
        (
            ("batchbridge_verl.watching", "responses_of"),
            ("batchbridge_verl.watching:VerlStepInputs", "rows"),
            ("batchbridge_verl.engine:VerlEngineLayer", "_given"),
            ("batchbridge.kit.worker_layer:WorkerLayer", "look"),
        ),
    ),
    "easyr1": (
        easyr1,
        (
            ("batchbridge_easyr1.watching:EasyR1StepInputs", "of"),
            ("batchbridge_easyr1.watching:EasyR1StepInputs", "rows"),
            ("batchbridge_easyr1.watching:EasyR1StepProbe", "look"),
            ("batchbridge.kit.workers:Recorder", "compare"),
        ),
    ),
    "openrlhf": (
        openrlhf,
        (
            ("batchbridge_openrlhf.watching:OpenRlhfStepInputs", "of"),
            ("batchbridge_openrlhf.watching:OpenRlhfStepInputs", "is_of"),
            ("batchbridge_openrlhf.watching:OpenRlhfStepProbe", "rows"),
            ("batchbridge_openrlhf.engine:OpenRlhfEngineLayer", "_row"),
            ("batchbridge_openrlhf.engine:OpenRlhfEngineLayer", "measure"),
            ("batchbridge.kit.workers:Recorder", "compare"),
        ),
    ),
}


def page(results: dict[str, Any]) -> Iterator[str]:
    """The tables, a line at a time."""
    yield "# What measuring a step costs\n"
    yield "Written by `python benchmarks/check_cost.py --framework NAME --write`, a table at a time: 4 layers of width"
    yield "256, or where a table is called large the shape of Qwen2-0.5B; one process,"
    yield f"{STEPS} steps a row, processor time, generation left out.\n"
    for framework, result in sorted(results.items()):
        versions = ", ".join(f"{name} {said}" for name, said in result["versions"].items())
        yield f"## {framework}\n"
        yield f"{result['machine']}; {versions}.\n"
        yield "| optimizer step | its time, ms | of which checks, ms | share |"
        yield "|---|---|---|---|"
        for name, row in result["rows"].items():
            times = (f"{row['step_milliseconds']:.0f}", f"{row['milliseconds_a_step']:.1f}", f"{row['share']:.2%}")
            yield f"| {' | '.join((name, *times))} |"
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=tuple(FRAMEWORKS), default="trl")
    parser.add_argument("--write", action="store_true", help="put it into check_cost.json and check_cost.md")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--rows", nargs="+", choices=(*ROWS, *LARGE), default=tuple(ROWS))
    options = parser.parse_args()
    if set(options.rows) & LARGE.keys() and set(options.rows) & ROWS.keys():
        parser.error("rows of a large model are measured alone")
    names = ("batchbridge", {"easyr1": "verl"}.get(options.framework, options.framework), "transformers", "torch")
    result = {
        "machine": runs.machine("cpu"),
        "versions": {name: runs.installed(name) for name in names},
        "rows": {name: measure(options.framework, (ROWS | LARGE)[name]) for name in options.rows},
    }
    for name, row in result["rows"].items():
        print(f"{name}: {row['share']:.2%} ({row['milliseconds_a_step']:.1f} of {row['step_milliseconds']:.0f} ms)")
    here = Path(__file__)
    if options.write:
        file = here.with_suffix(".json")
        results = json.loads(file.read_text(encoding="utf-8"))
        large = set(options.rows) & LARGE.keys()
        place = f"{options.framework}, {'large' if large else ''}".rstrip(", ")
        results[place] = {"measured_on": runs.measured_on(), **result}
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        here.with_suffix(".md").write_text("\n".join(page(results)), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What `test_fits_openrlhf` runs, in one process without Ray's: OpenRLHF's real `PPOTrainer.fit` on one rank.

    python fits.py FOLDER

Real: `PPOTrainer`, its sample generator and experience maker, `PolicyModelActor`, DeepSpeed, checkpoints. Replaced:
Ray's calls, by calls in this process; vLLM's engines, by scripted ones whose answers are taken in another order.
Float32 and SGD are injected. What was measured is left in FOLDER/measured.pt; the comparing process asserts.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["BATCHBRIDGE_OPTIMIZER"] = "sgd"

from batchbridge_on_cpu.openrlhf import engines
from batchbridge_openrlhf.on_cpu import cpu

cpu.start(engines.HOOKS)

import torch

from batchbridge_on_cpu.openrlhf.workers import arguments, full_gradient, full_parameters, save_policy

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

import ray

from batchbridge import wrap
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import MicroBatch, Spec
from batchbridge.testing.oracle import ScriptedRun, advantages, double, relative_error
from batchbridge.testing.snapshots import watched
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

PROMPTS, GROUP = 12, 3
SETTINGS: dict[str, Any] = {
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0,
    "reward.remote_url": ["scripted"],
    "data.input_key": "input",
    "data.label_key": "label",
    "data.max_len": 64,
    "rollout.max_new_tokens": 24,
    "vllm.num_engines": 1,
    "vllm.sync_backend": "gloo",
    "ds.zero_stage": 2,
    "actor.adam.lr": 6e-2,
    "actor.adam.weight_decay": 0.0,
    "actor.lr_scheduler": "constant",
    "actor.lr_warmup_ratio": 0.0,
    "actor.max_norm": 0.0,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": GROUP,
    "rollout.micro_batch_size": 2,
    "rollout.vllm_generate_batch_size": 4,
    "train.batch_size": 6,
    "train.micro_batch_size": 1,
    "train.seed": 3,
}
BUDGETS = {True: 60, False: 100}
"""Tokens of a micro-batch, in training and in forward-only passes."""
WHOLE = {
    "rollout.batch_size": 4,
    "rollout.vllm_generate_batch_size": 4,
    "train.batch_size": 12,
    "train.micro_batch_size": 12,
    "data.max_samples": 4,
}
"""One optimizer step that is the whole episode: what upstream's own order leaves decided."""


class Ref:
    """An answer that is there already; compared by identity, as Ray's references are by theirs."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Handle:
    """An actor of this process: `handle.method.remote(...)`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name == "__ray_call__":
            return _Remote(lambda function, *given: function(self._target, *given))
        return _Remote(getattr(self._target, name))


class _Remote:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def remote(self, *given: Any, **options: Any) -> Ref:
        given = tuple(each.value if isinstance(each, Ref) else each for each in given)
        result = self._function(*given, **options)
        return Ref(asyncio.run(result) if asyncio.iscoroutine(result) else result)


def _get(refs: Any, **options: Any) -> Any:
    return [_get(ref) for ref in refs] if isinstance(refs, list) else refs.value if isinstance(refs, Ref) else refs


def _wait(refs: Sequence[Any], **options: Any) -> tuple[list[Any], list[Any]]:
    """The last one is ready first."""
    return list(refs[-1:]), list(refs[:-1])


ray.get, ray.put, ray.wait = _get, Ref, _wait


class Bench:
    """One `PPOTrainer` with its one training process, and what each of its steps applied."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        from openrlhf.trainer.ppo_trainer import PPOTrainer
        from openrlhf.trainer.ray.launcher import RayActorGroup
        from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
        from openrlhf.utils.utils import get_strategy

        self.args = arguments(
            **{
                **SETTINGS,
                "actor.model_name_or_path": str(folder / "policy"),
                "data.prompt_dataset": str(folder / "prompts.jsonl"),
                **changes,
            }
        )
        strategy = get_strategy(self.args)
        handles = [Handle(engines.LateEngine())]
        self.worker = object.__new__(PolicyModelActor.__ray_metadata__.modified_class)
        group = object.__new__(RayActorGroup)
        group._actor_handlers, group.duplicate_actors = [Handle(self.worker)], 1
        generation = {"max_len": 64, "max_new_tokens": 24, "temperature": 1.0, "top_p": 1.0, "do_sample": True}
        kind = PPOTrainer.__ray_metadata__.modified_class
        path = str(folder / "policy")
        # The driver's process has no process group; here an earlier run may have left one.
        with mock.patch.object(torch.distributed, "is_initialized", return_value=False):
            self.trainer = kind(path, strategy, group, self.critic_group(), None, None, handles, **generation)
        self.gradients: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []
        self.passes: list[tuple[bool, int, int]] = []
        """Of every forward pass of the policy: whether it trains, completions, width (tokens)."""
        self.strategy = strategy
        self._start = lambda: self.worker.init_model_from_pretrained(strategy, path, self.trainer.max_steps, handles)

    def critic_group(self) -> Any:
        """Of a critic's training process; None without one."""
        return None

    def fit(self) -> Bench:
        """As `openrlhf.cli.train_ppo_ray.train` goes on."""
        self._start()
        engine = self.worker.trainer.actor.model

        def keep(*given: Any, **options: Any) -> None:
            if engine.is_gradient_accumulation_boundary():
                self.weights.append(full_parameters(self.worker.trainer))
                self.gradients.append(full_gradient(self.worker.trainer))

        def see(module: Any, given: tuple[Any, ...], options: dict[str, Any]) -> None:
            tokens = options["input_ids"] if "input_ids" in options else given[0]
            self.passes.append((torch.is_grad_enabled(), *tokens.shape))

        engine.step = watched(engine.step, keep)
        engine.module.register_forward_pre_hook(see, with_kwargs=True)
        self.trainer.fit()
        self.weights.append(full_parameters(self.worker.trainer))
        return self


def policy_of(weights: torch.Tensor) -> Any:
    """The tiny policy with these weights, float64."""
    model, start = double(tiny_policy()), 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(weights[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
    return model


def plan_of(ledger: Path) -> Plan:
    header = read_headers(ledger)[0]
    return Plan(Spec.from_dict(header["spec"]), header["dataset_size"])


def against_the_oracle(bench: Bench, ledger: Path) -> list[dict[str, Any]]:
    """Each step's gradient, membership and learning-rate tick against what its plan says."""
    tokenizer, plan, found = tiny_tokenizer(), plan_of(ledger), []
    for rough in (False, True):
        scripted = ScriptedRun(
            spec=plan.spec,
            script=ScriptedRollouts(),
            tokenize=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            policy_at=lambda step, rough=rough: (
                policy_of(bench.weights[step]).float() if rough else policy_of(bench.weights[step])
            ),
        )
        found.append([scripted.gradient(scripted.planned(plan, step), step) for step in range(len(bench.gradients))])
    results = []
    for step, exact, rough, gradient in zip(read_steps(ledger), *found, bench.gradients, strict=True):
        planned = plan.step(step["step"])
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        results.append(
            {
                "error": relative_error(gradient, exact),
                "floor": relative_error(rough, exact),
                "norm": float(exact.norm()),
                "logged_norm": step["gradient_norm"],
                "planned": trained == sorted(tuple(member) for member in planned.members),
                "size": len(trained),
                "tick": step["lr_tick"] == planned.lr_tick,
                "advantages": _advantages_agree(step, plan),
            }
        )
    return results


def _advantages_agree(step: Any, plan: Plan) -> bool:
    script = ScriptedRollouts()
    for prompt, sample, found, tokens in zip(
        step["prompt"], step["sample"], step["advantage"], step["response_tokens"], strict=True
    ):
        values = advantages([script.reward(prompt, other) for other in range(GROUP)], GROUP, plan.spec.advantage)
        if tokens and abs(found - values[sample]) > 1e-6:
            return False
    return True


def enforced(folder: Path, name: str, spec: Callable[[Spec], Spec] | None = None, **changes: Any) -> tuple[Any, Path]:
    """A run on its own configuration, or on `spec` of it."""
    bench, ledger = Bench(folder, **changes), folder / name
    like = None
    if spec is not None:
        from batchbridge.reading.read import read

        own = read(bench.trainer, framework="openrlhf").spec
        assert own is not None
        like = spec(own)
    wrap(bench.trainer, like, ledger=ledger)
    return bench.fit(), ledger


def two_passes(own: Spec) -> Spec:
    """Nothing divides: rollouts of 4 prompts of 3, steps of 5, leave-one-out, two passes, a tick per rollout."""
    return own.replace(
        **{
            "order.seed": 9,
            "optimizer_step.completions_per_step": 5,
            "optimizer_step.passes_per_rollout": 2,
            "optimizer_step.step_may_span": "none",
            "order.last_optimizer_step": "short",
            "horizon.lr_tick": "rollout",
            "advantage.baseline": "leave_one_out",
            "advantage.scale": "none",
            "advantage.epsilon": None,
            "advantage.ddof": None,
            "objective.clip_high": 0.3,
        }
    )


def by_budget(folder: Path) -> dict[str, Any]:
    """The run of fixed micro-batches with budgets from a spec: every pass, and where it ends."""
    from batchbridge.reading.read import read

    bench = Bench(folder)
    own = read(bench.trainer, framework="openrlhf").spec
    assert own is not None
    assert (own.micro_batch.completions_per_device, own.micro_batch.tokens_per_device) == (1, None)
    micro = MicroBatch(tokens_per_device=BUDGETS[True], forward_tokens_per_device=BUDGETS[False], cap="soft")
    wrap(bench.trainer, own.replace(micro_batch=micro), ledger=folder / "budget")
    bench.fit()
    return {"passes": bench.passes, "end": bench.weights[-1]}


def refusals(folder: Path) -> list[str]:
    """What a run says that gets fewer completions than planned, continues another plan, or misses a receipt."""
    said = []
    plan = plan_of(folder / "own")
    os.environ["BATCHBRIDGE_SHORT"] = str(plan.rollout(0).prompts[1])
    bench = Bench(folder)
    wrap(bench.trainer, ledger=folder / "short")
    try:
        bench.fit()
    except BatchDrift as drift:
        said.append(str(drift))
    del os.environ["BATCHBRIDGE_SHORT"]
    for changes in ({"train.seed": 4}, {}):
        continued = {"ckpt.path": str(folder / "checkpoints"), "ckpt.load_enable": True, **changes}
        bench = Bench(folder, **continued)
        wrap(bench.trainer)
        if not changes:
            bench.trainer.actor_model_group._actor_handlers *= 2
        try:
            bench.fit()
        except CannotAttach as refused:
            said.append(str(refused))
    said.append(str((folder / "short").exists()))
    return said


def unwrapped_without_a_token(folder: Path) -> str:
    """What upstream alone says of a micro-batch whose one completion has no token to train."""
    try:
        Bench(folder).fit()
    except ZeroDivisionError:
        return traceback.format_exc()
    return ""


Samples = list[Any]


def doubled(samples: Samples) -> None:
    """The last completions of a rollout are its first ones once more."""
    samples[-1] = samples[0]


def left_out(samples: Samples) -> None:
    """One prompt's completions less in a rollout."""
    del samples[-GROUP:]


def verified(folder: Path, settings: dict[str, Any], tamper: Callable[[Samples], None]) -> str:
    """What mode verify says of a stock run whose rollouts are tampered with."""
    bench = Bench(folder, **settings)
    wrap(bench.trainer, mode="verify")
    generator = bench.trainer.samples_generator
    native = generator.generate_samples

    def generate(**options: Any) -> Any:
        found = native(**options)
        tamper(found[0])
        return found

    generator.generate_samples = generate
    try:
        bench.fit()
    except BatchDrift as drift:
        return str(drift)
    return "ended well"


TOUCHED = ("advantages", "old log-probabilities", "setting")


def touched(folder: Path, settings: dict[str, Any], name: str) -> str:
    """What mode verify says of a stock run in whose second rollout something has a hand in its inputs."""
    bench = Bench(folder, **settings)
    trainer, maker = bench.trainer, bench.trainer.experience_maker
    wrap(trainer, mode="verify")
    ours, calls = maker.compute_advantages_and_returns, itertools.count()

    def compute(experiences: list[Any]) -> list[Any]:
        made: list[Any] = ours(experiences)
        if next(calls) == 1 and name != "setting":
            columns = {"advantages": "advantages", "old log-probabilities": "action_log_probs"}
            for experience in made:
                column = columns[name]
                setattr(experience, column, getattr(experience, column) * 1.05)
        if name == "setting":
            trainer.args.rollout.temperature = 1.3
        return made

    maker.compute_advantages_and_returns = compute
    try:
        bench.fit()
    except BatchDrift as drift:
        return str(drift)
    return "ended well"


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29513")
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {}

    checkpoints = {"ckpt.path": str(folder / "checkpoints"), "ckpt.save_steps": 1, "ckpt.max_num": 9}
    own, ledger = enforced(folder, "own", **checkpoints)
    found["own"] = against_the_oracle(own, ledger)
    found["start"] = own.weights[0]
    found["ends"] = {"own": own.weights[-1]}
    print("own", flush=True)

    bench, _ = enforced(folder, "micro", **{"train.micro_batch_size": 3, "rollout.micro_batch_size": 5})
    found["ends"]["micro"] = bench.weights[-1]
    found["budget"] = by_budget(folder)
    bench, ledger = enforced(folder, "passes", two_passes, **{"ds.zero_stage": 1, "actor.lr_scheduler": "linear"})
    found["passes"] = against_the_oracle(bench, ledger)
    found["rates"] = [step["learning_rate"] for step in read_steps(ledger)]
    print("passes", flush=True)

    # As if the run had been killed after its second rollout.
    latest = folder / "checkpoints" / "_actor" / "latest"
    latest.write_text("global_step2", encoding="utf-8")
    bench, ledger = enforced(folder, "resumed", **{**checkpoints, "ckpt.load_enable": True})
    found["resumed"] = {
        "steps": [step["step"] for step in read_steps(ledger)],
        "equal": bool(torch.equal(bench.weights[-1], own.weights[-1])),
    }
    latest.write_text("global_step2", encoding="utf-8")
    found["refusals"] = refusals(folder)
    print("resumed", flush=True)

    found["alone"] = unwrapped_without_a_token(folder)
    pairs = {"train.micro_batch_size": 2}
    bench = Bench(folder, **pairs)
    wrap(bench.trainer, mode="observe", ledger=folder / "observed")
    bench.fit()
    found["ends"]["observed"] = bench.weights[-1]
    bench = Bench(folder, **pairs, **{"data.max_samples": 10})
    wrap(bench.trainer, mode="observe", ledger=folder / "tail")
    bench.fit()
    bench = Bench(folder, **WHOLE)
    wrap(bench.trainer, mode="observe", ledger=folder / "whole")
    bench.fit()
    bench = Bench(folder, **pairs)
    wrap(bench.trainer, mode="verify", ledger=folder / "verified")
    bench.fit()
    found["verify"] = [verified(folder, pairs, tamper) for tamper in (doubled, left_out)]
    found["touched"] = {name: touched(folder, pairs, name) for name in TOUCHED}
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

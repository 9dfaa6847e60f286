"""What gpu.py measures: a function for each kind of row, from its options to its figures. Never a gate: a figure that
misses its bar, or a control that meets it, is written as that.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import check_cost
import torch
import trl_runs as runs

from batchbridge import Plan, wrap
from batchbridge.testing.oracle import Sample, ScriptedRun, double, logprobs, relative_error, step_gradient
from batchbridge.testing.tiny import tiny_tokenizer
from batchbridge_trl import rows as trl_rows
from batchbridge_trl.recording import TrlLayer
from batchbridge_trl.testing import Captured, sampling

sys.path.append(str(Path(__file__).parents[1] / "tests" / "on_cpu"))  # verl's worker without Ray is the tests' own

LEAST_BAR = 1e-6
"""No bar is below: what float32 sums come to in another order."""
NOISE = 3.0
"""A bar is so many times what the native run itself is off, or moves by rounding."""
SLOWER = 0.02
"""The share of a step that the control of the costs adds."""
LEDGER = (("batchbridge_trl.recording:TrlLayer", "write"), ("batchbridge_trl.engine", "facts_of"))
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
"""What a launcher would tell a lone process."""


def measure(kind: str, options: Mapping[str, Any], *, device: str, tiny: bool) -> dict[str, Any]:
    """A row's figures. options: of `trl_runs.Setting`, and of the kind's function. tiny: everything is small, and means
    nothing."""
    return KINDS[kind](dict(options), device, tiny)


def judged(found: float, noise: float, control: float) -> dict[str, Any]:
    """A measured distance, its bar, and a control's distance that must miss it."""
    bar = max(LEAST_BAR, NOISE * noise)
    return {"bar": bar, "held": found <= bar, "control": control, "control_missed": control > bar}


def setting_of(options: Mapping[str, Any], device: str, tiny: bool) -> runs.Setting:
    """The run of a row; without a budget it has that of a native micro-batch, so that both sides' memory is alike."""
    made = runs.Setting(**{"tf32": False, **options}, device=device)
    if tiny:
        sizes = {"completions": 8, "micro": 2, "cap": 24, "mean": 8, "steps": 1}
        made = replace(made, policy="tiny", prompt_tokens=min(made.prompt_tokens, 10), **sizes)
    return made if made.tokens_per_device else replace(made, tokens_per_device=made.native_tokens)


# ---- gradients against the float64 oracle


def gradient(options: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """The first step's gradient of a wrapped and of a native run, each against the oracle. The control is a native run
    whose loss is normalised by micro-batches (bnpo): what a split does to a gradient."""
    setting = replace(setting_of(options, device, tiny), steps=0)
    product = float32_product_error(device)
    with tempfile.TemporaryDirectory() as name:
        wrapped, plan = trained(Path(name) / "wrapped", setting, wrapped=True)
        if setting.tf32 is not None:  # the trainer sets it
            product = float32_product_error(device)
            if device == "cuda" and setting.tf32 != (product > 1e-5):
                raise RuntimeError(f"tf32={setting.tf32}, and a float32 product is {product:.1e} off")
        native, _ = trained(Path(name) / "native", setting, wrapped=False)
        control, _ = trained(Path(name) / "control", replace(setting, loss_type="bnpo"), wrapped=False)
    exact, rough = (oracle_gradient(wrapped, plan, setting, kind) for kind in (torch.float64, precision(setting)))
    error, own, other = (relative_error(one.gradients[0], exact) for one in (wrapped, native, control))
    return {
        "wrapped": error,
        "native": own,
        "oracle_s_own_code": relative_error(rough, exact),
        "float32_product": product,
        **judged(error, own, other),
    }


def trained(folder: Path, setting: runs.Setting, *, wrapped: bool) -> tuple[Captured, Any]:
    """The gradients and states of a run, and its plan if it is wrapped."""
    runs.forget(setting.device)
    trainer = runs.build(folder, setting)
    if wrapped:
        wrap(trainer, tokens_per_device=setting.tokens_per_device, **setting.wrap)
    captured = Captured(trainer.model)
    trainer.add_callback(captured)
    trainer.train()
    return captured, trainer.batchbridge.plan if wrapped else None


def oracle_gradient(captured: Captured, plan: Plan, setting: runs.Setting, precision: torch.dtype) -> torch.Tensor:
    """The first step's gradient by the oracle, with an attention that knows float64."""
    model = runs.policy(replace(setting, attention="sdpa"))
    if setting.lora:
        from peft import get_peft_model

        model = get_peft_model(model, runs.adapters(setting))
    model.load_state_dict(captured.states[0])
    model, tokenizer = model.to(precision).eval(), tiny_tokenizer()
    run = ScriptedRun(
        spec=plan.spec,
        script=setting.script,
        tokenize=lambda text: tokenizer(text)["input_ids"],
        policy_at=lambda step: model,
    )
    return run.gradient(run.planned(plan, 0), 0)


def precision(setting: runs.Setting) -> torch.dtype:
    """Of the run."""
    return torch.bfloat16 if setting.bf16 else torch.float32


def float32_product_error(device: str) -> float:
    """How far a product of float32 matrices is from the float64 one: what tells whether TF32 is on."""
    torch.manual_seed(0)
    one = torch.randn(256, 256, device=device)
    return relative_error(one @ one, one.double() @ one.double())


# ---- gradients of what a policy draws


def drawn(options: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """The first gradient of a wrapped run whose completions an engine draws from the policy, by the oracle on what it
    drew; the control has the completions' advantages in the reverse order. vllm: the engine, colocated, whose own
    log-probabilities correct the weights; without it TRL's generation draws."""
    vllm = options.pop("vllm", False)
    setting = replace(setting_of(options, device, tiny), steps=0)
    arguments: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, rollouts() as seen, environment():
        policy = runs.policy(setting)
        if vllm:
            os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
            policy.save_pretrained(Path(name) / "policy")
            tiny_tokenizer().save_pretrained(Path(name) / "policy")
            policy.config._name_or_path = str(Path(name) / "policy")  # where TRL has the engine load it from
            arguments = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_mode": "token_truncate"}
            arguments |= {"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 2 * runs.CAP}
        trainer = sampling(runs.build(Path(name) / "run", setting, policy=policy, **arguments))
        trainer.reward_funcs = [distinct]
        wrap(trainer, tokens_per_device=setting.tokens_per_device, ledger=Path(name) / "ledger", **setting.wrap)
        captured = Captured(trainer.model)
        trainer.add_callback(captured)
        trainer.train()
    spec = trainer.batchbridge.plan.spec
    exact, rough = double(runs.policy(setting)), runs.policy(setting)
    for model in (exact, rough):
        model.load_state_dict(captured.states[0])
    samples = samples_of(seen[0], exact)
    others = [
        Sample(**{**vars(one), "advantage": other.advantage}) for one, other in zip(samples, samples[::-1], strict=True)
    ]
    wanted = step_gradient(exact, samples, term=spec.loss.policy, objective=spec.objective)
    floor = step_gradient(rough, samples, term=spec.loss.policy, objective=spec.objective)
    control = step_gradient(exact, others, term=spec.loss.policy, objective=spec.objective)
    found, own = relative_error(captured.gradients[0], wanted), relative_error(floor, wanted)
    return {
        "wrapped": found,
        "oracle_s_own_code": own,
        "completion_tokens": sum(len(sample.completion) for sample in samples),
        "greatest_correction": max(float((one.multiplier - 1).abs().max()) for one in samples) if vllm else None,
        **judged(found, own, relative_error(captured.gradients[0], control)),
    }


def distinct(prompts: Any, completions: Any, completion_ids: list[list[int]], **others: Any) -> list[float]:
    """A reward."""
    return [len(set(ids)) + 0.1 * (ids[0] % 7) for ids in completion_ids]


@contextmanager
def rollouts() -> Iterator[list[dict[str, torch.Tensor]]]:
    """What each rollout comes to, as TRL hands it to training."""
    native, seen = trl_rows.columns_of, []

    def kept(output: Any, count: int) -> Any:
        seen.append({name: value.clone() for name, value in output.items() if isinstance(value, torch.Tensor)})
        return native(output, count)

    trl_rows.columns_of = kept
    try:
        yield seen
    finally:
        trl_rows.columns_of = native


def samples_of(rollout: Mapping[str, torch.Tensor], policy: Any) -> list[Sample]:
    """A rollout's completions for the oracle; with an engine's own log-probabilities in it, TRL's correction of them,
    which is at most 3."""
    samples = []
    for row in range(len(rollout["completion_ids"])):
        prompt = rollout["prompt_ids"][row][rollout["prompt_mask"][row].bool()].tolist()
        completion = rollout["completion_ids"][row][rollout["completion_mask"][row].bool()].tolist()
        made = Sample(
            prompt=prompt,
            completion=completion,
            loss_mask=[1] * len(completion),
            group=row // runs.GROUP,
            advantage=float(rollout["advantages"][row]),
        )
        if "sampling_per_token_logps" in rollout:
            with torch.no_grad():
                old = logprobs(policy, made)
            said = rollout["sampling_per_token_logps"][row][: len(completion)].to(old)
            made = replace(made, old_logprobs=old, multiplier=(old - said).exp().clamp(max=3.0))
        samples.append(made)
    return samples


# ---- time and memory of a step


def step(options: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """Wrapped and native steps in pairs within this process: time, memory, tokens read, and how far their gradients
    are apart, beside what the native one moves by another split and by other completions."""
    count = 1 if tiny else options.pop("pairs", 3)
    options.pop("pairs", None)
    setting = setting_of(options, device, tiny)
    with environment(**(ALONE if setting.sharded else {})):
        if setting.sharded and device == "cpu":
            from sharded_on_cpu import zero_on_the_cpu

            zero_on_the_cpu()
        found = runs.pairs(setting, count, print)
        own = runs.own_noise(setting, print)
    seconds = {"native": found["native_step_seconds"], "wrapped": found["wrapped_step_seconds"]}
    return {
        **found,
        "tokens_per_second": {side: found["step_tokens"] / each for side, each in seconds.items()},
        # Of what the policy reads; below zero where prompts that a group shares are read once.
        "padding_share": {side: 1 - found["step_tokens"] / each for side, each in found["step_places"].items()},
        "noise": own["noise"],
        **judged(found["gradients_apart"], own["noise"], own["control"]),
    }


# ---- what measuring and recording cost


def cost(options: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """The shares of a step that its checks and its ledger take, and a wrapped step with the native split over a native
    one: all that wrapping costs. The control: one check, alone, made slower by a fiftieth of a step, must be seen."""
    sizes = {"policy": "tiny", "completions": 8, "tokens": 8} if tiny else options
    as_trained = dict.fromkeys(("bf16", "checkpointing"), device == "cuda")
    fixed = {"budget": 8 * (runs.PROMPT + sizes["tokens"]), "device": device, "ledger": True, **as_trained}
    work = check_cost.Work(**fixed, **sizes)
    plain = check_cost.measure("trl", work, ())["step_milliseconds"]
    checks = check_cost.measure("trl", work)["milliseconds_a_step"]
    ledger = check_cost.measure("trl", work, LEDGER)["milliseconds_a_step"]
    with slower(TrlLayer, "hold", SLOWER * plain, work):
        one = (("batchbridge_trl.recording:TrlLayer", "hold"),)
        slowed = check_cost.measure("trl", work, one)["milliseconds_a_step"]
    same_split = replace(work.setting, tokens_per_device=0, micro=4 if tiny else 8)
    whole = runs.pairs(same_split, 1 if tiny else 3, print)
    return {
        "step_milliseconds": plain,
        "checks_share": checks / plain,
        "ledger_share": ledger / plain,
        "slowed_share": slowed / plain,
        "control_missed": slowed >= 0.99 * SLOWER * plain,
        "same_split_ratio": whole["ratio_median"],
        "same_split_spread": whole["ratio_spread"],
    }


@contextmanager
def slower(owner: Any, name: str, milliseconds: float, work: check_cost.Work) -> Iterator[None]:
    """A function that takes so much longer, on the clock of `work`."""
    native = vars(owner)[name]

    def function(*arguments: Any, **options: Any) -> Any:
        until = work.clock() + milliseconds / 1e3
        while work.clock() < until:
            pass
        return native(*arguments, **options)

    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, native)


# ---- another framework's step


def framework(options: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """A wrapped step of another framework's own worker, float32, equal lengths, for TRL's beside it."""
    name = options.pop("name")
    sizes = {"policy": "tiny", "completions": 8, "tokens": 8} if tiny else options
    work = check_cost.Work(**sizes, budget=8 * (runs.PROMPT + sizes["tokens"]), device=device)
    return {"step_milliseconds": check_cost.measure(name, work, ())["step_milliseconds"]}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """The process's variables, and these; as before afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


KINDS: dict[str, Callable[[dict[str, Any], str, bool], dict[str, Any]]] = {
    "gradient": gradient,
    "drawn": drawn,
    "step": step,
    "cost": cost,
    "framework": framework,
}

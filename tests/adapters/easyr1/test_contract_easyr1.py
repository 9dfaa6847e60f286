"""EasyR1's adapter keeps the contract that every adapter keeps; see `batchbridge.testing`."""

from __future__ import annotations

from typing import ClassVar

from batchbridge.contract.reading import Context, Source
from batchbridge.meaning.spec import (
    Advantage,
    Carried,
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
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_easyr1.config import EasyR1Adapter

VERSION = "0.3.3.dev0"
ACTOR, ROLLOUT = "worker.actor.", "worker.rollout."
RUN = {
    "data.rollout_batch_size": 64,
    "data.seed": 7,
    f"{ACTOR}global_batch_size": 16,
    f"{ACTOR}micro_batch_size_per_device_for_update": 2,
    f"{ACTOR}micro_batch_size_per_device_for_experience": 2,
    f"{ACTOR}dynamic_batching": False,
    f"{ROLLOUT}n": 8,
    "algorithm.disable_kl": True,
    "trainer.total_epochs": 2,
}
MEANING = Spec(
    topology=Topology(world_size=8),
    rollout=Rollout(prompts_per_rollout=64, completions_per_prompt=8),
    optimizer_step=OptimizerStep(completions_per_step=128),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2.0, lr_tick="rollout"),
    micro_batch=MicroBatch(completions_per_device=2),
    advantage=Advantage(epsilon=1e-6, ddof=1),
    order=Order(seed=7, last_optimizer_step="error"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=3.0,
        old_logprobs="rollout_start",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="skip",
    ),
    carried=Carried(
        learning_rate=1e-6,
        lr_schedule="constant",
        warmup_steps=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-8,
        weight_decay=0.01,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        dropout="on",
        max_prompt_tokens=512,
        max_completion_tokens=512,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
"""`RUN` on one node of 8 GPUs, every field written out by hand."""


def context(version=VERSION, dataset_size=256):
    return Context(framework_version=version, world_size=8, dataset_size=dataset_size)


def valid(name, values=(), *, spec=None, **said):
    source = Source(values={**RUN, **dict(values)})
    return ValidCase(name=name, source=source, context=context(**said), spec=spec, source_has_world_size=True)


def older(version, values):
    """A run of a release before the newest one, which lacks some settings of `RUN`."""
    base = {key: value for key, value in RUN.items() if key not in (f"{ACTOR}dynamic_batching", "trainer.total_epochs")}
    return ValidCase(
        name=f"EasyR1 {version}",
        source=Source(values={**base, **values}),
        context=context(version=version),
        source_has_world_size=True,
    )


def invalid(name, values, *codes, **said):
    return InvalidCase(name=name, source=Source(values={**RUN, **values}), context=context(**said), codes=codes)


MODEL = f"{ACTOR}model.model_path"
REFUSED = {
    "critic": {"algorithm.adv_estimator": "gae"},
    "value_baseline": {"algorithm.adv_estimator": "gae"},
    "critic_warmup": {"trainer.critic_warmup": 3},
    "adaptive_kl": {"algorithm.disable_kl": False, "algorithm.kl_type": "adaptive"},
    "sequence_parallel": {MODEL: "Qwen/Qwen2.5-VL-7B-Instruct", f"{ACTOR}ulysses_size": 2},
    "hybrid_sharding": {f"{ACTOR}fsdp.fsdp_size": 2},
    "multi_modal": {MODEL: "llava-hf/llava-1.5-7b-hf"},
    "lora": {
        MODEL: "Qwen/Qwen2.5-VL-7B-Instruct",
        f"{ACTOR}model.lora.rank": 8,
        f"{ACTOR}model.freeze_vision_tower": True,
    },
}
"""Refusal to settings whose trainer is refused by it."""


REFUSED_CASES = {
    **{name: valid(name, {MODEL: "Qwen/Qwen2.5-7B-Instruct", **values}) for name, values in REFUSED.items()},
    "no_step": valid("no_step", dataset_size=3),
}


class TestEasyR1(AdapterContract):
    adapter_class = EasyR1Adapter
    framework_modules = ("omegaconf", "ray", "torch", "transformers", "verl")
    unknown_version = "0.2.0"
    written_version = VERSION
    refused = REFUSED_CASES
    refused_otherwise = (
        *("batch_scale", "tokens_per_device", "group_filter", "surrogate", "aggregation", "denominator_scope"),
        *("loss_per_term", "kl_without_reference", "kl_in_reward", "sampler_logprobs", "truncated_completions"),
        *("step_crosses_rollouts", "entropy", "kl_estimator", "group_size", "videos", "lora_rollouts"),
        "advantages",
    )
    meanings = (
        (
            {"algorithm.disable_kl": None},
            {"objective.kl_placement": "reward", "objective.kl_estimator": "k1", "objective.kl_coefficient": 0.001},
        ),
        ({"data.seed": None, "trainer.total_epochs": None}, {"order.seed": 1, "horizon.epochs": 15.0}),
        (
            {f"worker.actor.micro_batch_size_per_device_for_{kind}": None for kind in ("update", "experience")},
            {"micro_batch.completions_per_device": 4, "micro_batch.forward_completions_per_device": 16},
        ),
    )
    excused: ClassVar = dict.fromkeys(
        ("algorithm.filter_low", "algorithm.filter_high"), "bounds that change a filter which has no word but custom"
    )
    idle: ClassVar = {"worker.actor.padding_free": "asked of a running trainer whose prompts have images"}
    valid = (
        valid("64 prompts x 8 in steps of 16 prompts", spec=MEANING),
        valid(
            "token budgets",
            {f"{ACTOR}dynamic_batching": True, f"{ACTOR}micro_batch_size_per_device_for_experience": 4},
            spec=MEANING.replace(
                micro_batch=MicroBatch(tokens_per_device=2048, forward_tokens_per_device=4096),
            ),
        ),
        valid(
            "KL in the loss",
            {"algorithm.disable_kl": False, "algorithm.use_kl_loss": True, "algorithm.kl_penalty": "low_var_kl"},
            spec=MEANING.replace(
                **{
                    "objective.kl_placement": "loss",
                    "objective.kl_estimator": "k3",
                    "objective.kl_coefficient": 0.001,
                    "objective.kl_clamp": 10.0,
                }
            ),
        ),
        valid("KL in the reward", {"algorithm.disable_kl": False}),
        valid("sequence parallel", {f"{ACTOR}ulysses_size": 2}),
        valid("gspo over sequences", {f"{ACTOR}loss_type": "gspo", f"{ACTOR}loss_avg_mode": "seq"}),
        valid("sapo for 10 rollouts", {f"{ACTOR}loss_type": "sapo", "trainer.max_steps": 10}),
        valid("filtered groups", {"algorithm.online_filtering": True, "data.mini_rollout_batch_size": 32}),
        valid(
            "one device",
            {"trainer.n_gpus_per_node": 1, f"{ROLLOUT}tensor_parallel_size": 1, "algorithm.adv_estimator": "rloo"},
        ),
        valid("cosine", {f"{ACTOR}optim.lr_scheduler_type": "cosine", f"{ACTOR}optim.lr_warmup_steps": 10}),
        older("0.3.0", {"worker.actor.ulysses_sequence_parallel_size": 2, "trainer.total_episodes": 3}),
        older("0.3.1", {f"{ACTOR}loss_avg_mode": "seq", "data.mini_rollout_batch_size": 32, "trainer.total_epochs": 2}),
        older("0.3.2", {f"{ACTOR}dynamic_batching": True, "trainer.max_steps": 4}),
        ValidCase(
            name="a launch command",
            source=Source(argv=("python3", "-m", "verl.trainer.main", *(f"{k}={v}" for k, v in RUN.items()))),
            context=context(),
            spec=MEANING,
            source_has_world_size=True,
        ),
    )
    invalid = (
        invalid("a rollout of no whole steps", {"data.rollout_batch_size": 60}, "BB-EZR1-011"),
        invalid("one completion per prompt", {f"{ROLLOUT}n": 1}, "BB-EZR1-013"),
        invalid("nothing for a device", {f"{ACTOR}global_batch_size": 1, f"{ROLLOUT}n": 4}, "BB-EZR1-014"),
        invalid("micro-batches that do not fit", {f"{ACTOR}micro_batch_size_per_device_for_update": 3}, "BB-EZR1-015"),
        invalid("offload with accumulation", {f"{ACTOR}fsdp.enable_cpu_offload": True}, "BB-EZR1-016"),
        invalid("gae", {"algorithm.adv_estimator": "gae"}, "BB-EZR1-024"),
        invalid("an unknown mode", {f"{ACTOR}loss_avg_mode": "mean"}, "BB-EZR1-027"),
        invalid("a misspelt key", {"data.rollout_batchsize": 64}, "BB-EZR1-003"),
        invalid("text for a number", {f"{ROLLOUT}n": "eight"}, "BB-EZR1-006"),
        invalid("no prompt", {"data.rollout_batch_size": 0}, "BB-EZR1-010"),
    )
    foreign = (
        Source(values={"per_device_train_batch_size": 4, "num_generations": 6}),
        Source(values={"data": {"train_batch_size": 64}, "actor_rollout_ref": {"rollout": {"n": 8}}}),
        Source(argv=("python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=64")),
    )
    unwritable = (
        MEANING.replace(**{"optimizer_step.completions_per_step": 30}),
        MEANING.replace(**{"topology.tensor_parallel": 2}),
        MEANING.replace(**{"advantage.scale": "none"}),
    )

"""OpenRLHF's adapter keeps the contract of every adapter."""

from __future__ import annotations

import json
from pathlib import Path
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
from batchbridge.testing.contract import AdapterContract, InvalidCase, ValidCase
from batchbridge_openrlhf.config import OpenRlhfAdapter

WHOLE_EPISODE = {
    "actor.num_gpus_per_node": 1,
    "rollout.batch_size": 8,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 4,
    "train.batch_size": 32,
    "train.micro_batch_size": 32,
    "train.max_epochs": 2,
    "algo.advantage.estimator": "group_norm",
}
"""One optimizer step holds an episode of 8 prompts: the only kind of run that OpenRLHF decides."""

DYNAMIC = {
    "actor.num_nodes": 2,
    "actor.num_gpus_per_node": 8,
    "ds.zero_stage": 3,
    "ds.ring_attn_size": 2,
    "train.dynamic_batch_enable": True,
    "train.max_tokens_per_gpu": 8192,
    "rollout.max_tokens_per_gpu": 16384,
    "rollout.batch_size": 128,
    "rollout.n_samples_per_prompt": 8,
    "train.batch_size": 256,
    "vllm.num_engines": 1,
    "data.max_len": 4096,
    "rollout.max_new_tokens": 3072,
    "algo.advantage.estimator": "reinforce_baseline",
    "algo.kl.use_loss": True,
    "algo.kl.estimator": "k2",
    "actor.loss_agg_mode": "seq-mean-token-mean",
    "algo.advantage.is_correction_level": "token",
}

FLAT = {
    "actor_num_gpus_per_node": 8,
    "rollout_batch_size": 128,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 8,
    "train_batch_size": 128,
    "micro_train_batch_size": 4,
    "advantage_estimator": "rloo",
    "init_kl_coef": 1e-3,
}

CORRECTED = {
    "use_kl_loss": True,
    "kl_estimator": "k2",
    "param_dtype": "fp16",
}
GATED = {"algo.advantage.is_correction_enable": True, "algo.advantage.is_correction_type": "icepop"}
EARLY = {"enable_vllm_is_correction": True, "use_icepop": True, "vllm_is_truncated_threshold": [0.5, 2.0]}
"""Of releases with other words for the KL term, the precision and the correction of the sampler."""

COMMAND = (
    *("ray", "job", "submit", "--address=http://127.0.0.1:8265", "--", "python3", "-m", "openrlhf.cli.train_ppo_ray"),
    *("--actor.num_gpus_per_node", "4", "--rollout.batch_size=64", "--rollout.n_samples_per_prompt", "2"),
    *("--train.batch_size", "32", "--algo.advantage.estimator", "rloo", "--reward.clip_range", "-5", "5"),
)

NEW = Context(framework_version="0.11.2")


MEANING = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=4),
    optimizer_step=OptimizerStep(
        completions_per_step=32, passes_per_rollout=2, rollout_shuffle="completions", step_may_span="run"
    ),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
    micro_batch=MicroBatch(completions_per_device=32, forward_completions_per_device=4),
    advantage=Advantage(epsilon=1e-09, ddof=1),
    order=Order(last_rollout="short", last_optimizer_step="drop"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        kl_placement="reward",
        kl_estimator="k1",
        kl_coefficient=0.01,
        kl_clamp=10.0,
        reward_clip=10.0,
        entropy_coefficient=0.0,
    ),
    carried=Carried(
        learning_rate=1e-06,
        lr_schedule='cosine_with_min_lr {"min_lr_rate": 0.1}',
        warmup_ratio=0.03,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.95,
        optimizer_epsilon=1e-08,
        weight_decay=0.0,
        weight_decay_excludes="biases_and_norms",
        max_gradient_norm=1.0,
        dropout="on",
        router_loss_coefficient=0.0,
        max_prompt_tokens=2047,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
)
"""`a whole episode`, every field written down, from the framework's documented defaults."""


def case(name, source, context=NEW, spec=None):
    return ValidCase(name=name, source=source, context=context, spec=spec, source_has_world_size=True)


REFUSED = {
    "asynchronous": {"train.async_enable": True},
    "agent": {"train.agent_func_path": "agent.py", "data.max_images_per_prompt": 1},
    "critic_warmup": {"critic.freezing_steps": 3, "algo.advantage.estimator": "reinforce"},
    "ema": {"train.enable_ema": True},
    "adaptive_kl": {"algo.kl.target": 0.1},
    "sequence_parallel": {"ds.ring_attn_size": 2, "actor.num_gpus_per_node": 2, "algo.advantage.estimator": "gae"},
    "tensor_parallel": {"ds.tensor_parallel_size": 2, "actor.num_gpus_per_node": 2, "ds.zero_stage": 3},
    "fp16": {"ds.param_dtype": "fp16"},
    "router_loss": {"actor.aux_loss_coef": 0.01},
    "sampler_correction": {
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_gating": "binary_kl",
        "algo.advantage.is_correction_threshold": [0.01],
    },
    "kl_estimator": {"algo.kl.use_loss": True, "algo.kl.estimator": "k3", "algo.kl.unbiased_gradient": True},
    "step_crosses_rollouts": {"train.batch_size": 96},
}
"""Refusal to settings whose trainer is refused by it."""


REFUSED_CASES = {
    **{name: case(name, Source(values={**WHOLE_EPISODE, **values})) for name, values in REFUSED.items()},
    "no_step": case("no_step", Source(values=WHOLE_EPISODE), Context(framework_version="0.11.2", dataset_size=1)),
}


IDLE = json.loads((Path(__file__).parents[1] / "idle_settings.json").read_text(encoding="utf-8"))
"""Adapter -> reason -> settings that upstream declares, and of which no case shows that they decide anything."""


class TestOpenRlhfAdapter(AdapterContract):
    adapter_class = OpenRlhfAdapter
    framework_modules = ("openrlhf", "torch", "transformers", "deepspeed", "ray", "vllm")
    unknown_version = "0.7.5"
    written_version = "0.11.2"
    dataset_size = 8
    refused = REFUSED_CASES
    refused_otherwise = (
        "advantages",  # of a live function
        *("batch_scale", "advantage_with_kl", "surrogate", "sequence_ratio", "aggregation", "denominator_scope"),
        *("loss_per_term", "kl_placement", "old_logprobs", "truncated_completions", "group_size", "other_correction"),
        *("group_filter", "staleness", "critic", "critic_advantages", "critic_steps", "critic_aggregation"),
    )
    meanings = (
        (
            dict.fromkeys(("rollout.batch_size", "train.batch_size", "train.max_epochs")),
            {
                "rollout.prompts_per_rollout": 1024,
                "optimizer_step.completions_per_step": 128,
                "optimizer_step.passes_per_rollout": 1,
            },
        ),
        (
            {"train.micro_batch_size": None, "rollout.micro_batch_size": None},
            {"micro_batch.completions_per_device": 1, "micro_batch.forward_completions_per_device": None},
        ),
        (
            {"actor.policy_loss_type": "gspo"},
            {
                "objective.ratio_level": "sequence",
                "loss.policy.aggregation": "sequence_mean",
                "loss.policy.count_empty": False,
            },
        ),
        (
            {"actor.optim": "muon", "actor.muon.lr": 0.5},
            {
                "carried.optimizer": "muon",
                "carried.learning_rate": 0.5,
                "carried.weight_decay_excludes": "nothing",
            },
        ),
    )
    idle: ClassVar = {key: why for why, keys in IDLE["openrlhf"].items() for key in keys}
    excused: ClassVar = {
        "algo.advantage.estimator": "gae: the default has a critic, whose settings have tests of their own",
        "train.agent_func_path": "code of the user's own, whose trajectories no setting asks for",
    }
    valid = (
        case("a whole episode", Source(values=WHOLE_EPISODE), spec=MEANING),
        case("dynamic batches", Source(values=DYNAMIC)),
        case("a critic", Source(values={**WHOLE_EPISODE, "algo.advantage.estimator": "gae"})),
        case("flat names", Source(values=FLAT), Context(framework_version="0.10.1.post2")),
        case("flat names, a KL term", Source(values={**FLAT, **CORRECTED}), Context(framework_version="0.10.1.post2")),
        case(
            "flat names, a correction",
            Source(values={**FLAT, "enable_vllm_is_correction": True, "vllm_is_correction_type": "icepop"}),
            Context(framework_version="0.10.1.post2"),
        ),
        case(
            "flat names, asynchronous",
            Source(values={**FLAT, "async_train": True, "async_queue_size": 3}),
            Context(framework_version="0.10.1.post2"),
        ),
        case("icepop", Source(values={**FLAT, **EARLY}), Context(framework_version="0.9.2")),
        case("a gated correction", Source(values={**WHOLE_EPISODE, **GATED}), Context(framework_version="0.11.1")),
        case(
            "a critic with Muon",
            Source(
                values={
                    **WHOLE_EPISODE,
                    "algo.advantage.estimator": "gae",
                    "critic.optim": "muon",
                    "critic.muon.lr": 0.5,
                }
            ),
        ),
        case("a command", Source(argv=COMMAND)),
        case("a tail", Source(values=WHOLE_EPISODE), Context(framework_version="0.11.2", dataset_size=20)),
    )
    invalid = (
        InvalidCase(
            name="micro-batch that does not divide",
            source=Source(values={**WHOLE_EPISODE, "train.micro_batch_size": 3}),
            context=NEW,
            codes=("BB-ORL-034",),
        ),
        InvalidCase(
            name="zero devices",
            source=Source(values={**WHOLE_EPISODE, "actor.num_gpus_per_node": 0}),
            context=NEW,
            codes=("BB-ORL-010",),
        ),
        InvalidCase(
            name="flat names after the break",
            source=Source(values=FLAT),
            context=NEW,
            codes=("BB-ORL-003",),
        ),
        InvalidCase(
            name="no value, a stray word, another program's option",
            source=Source(argv=(*COMMAND, "stray", "--zero_stage", "3", "--train.seed")),
            context=NEW,
            codes=("BB-ORL-003", "BB-ORL-004"),
        ),
        InvalidCase(
            name="a reference model on other devices",
            source=Source(values={**WHOLE_EPISODE, "ref.num_gpus_per_node": 3}),
            context=NEW,
            codes=("BB-ORL-052",),
        ),
    )
    foreign = (
        Source(values={"num_generations": 8, "per_device_train_batch_size": 4, "learning_rate": 1e-6}),
        Source(values={"data": {"rollout_batch_size": 8}, "worker": {"actor": {"global_batch_size": 8}}}),
        Source(
            argv=("python", "open_instruct/grpo_fast.py", "--seed", "1", "--lr_scheduler", "linear", "--gamma", "1")
        ),
        Source(argv=("python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=1024")),
    )
    unwritable = (
        Spec(
            topology=Topology(world_size=8, pipeline_parallel=2),
            rollout=Rollout(prompts_per_rollout=None, completions_per_prompt=8, group_filter="drop_zero_variance"),
            optimizer_step=OptimizerStep(tokens_per_step=4096),
            loss=Loss(policy=LossTerm(aggregation="sequence_sum")),
            advantage=Advantage(scale="batch", baseline="leave_one_out"),
            horizon=Horizon(rollouts=3),
        ),
    )

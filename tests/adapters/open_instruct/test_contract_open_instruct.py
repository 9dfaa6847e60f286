"""The contract of every adapter, kept by Open-Instruct's: once for the GRPO scripts, once for the PPO script."""

from __future__ import annotations

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
    Staleness,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_open_instruct.config import OpenInstructAdapter
from batchbridge_open_instruct.rules.grpo_refused import GRPO_REFUSED
from batchbridge_open_instruct.rules.ppo import PPO_REFUSED

GRPO = Context(framework_version="2026.8.20")
FIRST = Context(framework_version="2025.10.20")
PPO = Context(framework_version="2025.11.3")
SIZES = {"num_unique_prompts_rollout": 8, "num_samples_per_prompt_rollout": 4, "num_learners_per_node": [2]}
OLD_SIZES = {"local_rollout_batch_size": 4, "local_mini_batch_size": 2, "actor_num_gpus_per_node": [2]}
FRAMEWORK = ("open_instruct", "vllm", "ray", "deepspeed", "torch", "transformers", "tree_sitter")
FOREIGN = (
    Source(values={"num_generations": 8, "steps_per_generation": 2}),
    Source(argv=("python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=8")),
    Source(argv=("python", "open_instruct/finetune.py", "--num_epochs", "1")),
    Source(argv=("python", "grpo.py", "--num_generations", "8")),
)


def grpo(**values: object) -> Source:
    return Source(values={**SIZES, **values})


def spec(source: Source, context: Context, **changes: object) -> Spec:
    made = OpenInstructAdapter().read(source, context).spec
    assert made is not None
    return made.replace(**changes)


OF_GRPO = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=4, group_filter="drop_zero_variance"),
    optimizer_step=OptimizerStep(completions_per_step=32, rollout_shuffle="completions"),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(rollouts=3125),
    micro_batch=MicroBatch(tokens_per_device=512),
    advantage=Advantage(scale="none"),
    order=Order(seed=42, last_rollout="wrap"),
    staleness=Staleness(mode="bounded", maximum=8),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.272,
        old_logprobs="detached",
        sampler_correction="token_truncate [-, 2.0]",
        kl_placement="loss",
        kl_estimator="k3",
        kl_coefficient=0.05,
        kl_log_ratio_clamp=40.0,
        entropy_coefficient=0.0,
    ),
    carried=Carried(
        learning_rate=2e-05,
        lr_schedule="linear",
        warmup_ratio=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-08,
        weight_decay=0.0,
        weight_decay_excludes="biases_and_norms",
        max_gradient_norm=1.0,
        dropout="off",
        max_prompt_tokens=256,
        max_completion_tokens=256,
        temperature=1.0,
        top_p=1.0,
        precision="bf16",
    ),
)
"""`defaults`, every field written down, from the framework's documented defaults."""

OF_PPO = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=1),
    optimizer_step=OptimizerStep(completions_per_step=4, passes_per_rollout=4, rollout_shuffle="completions"),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(rollouts=12500),
    micro_batch=MicroBatch(completions_per_device=1),
    advantage=Advantage(baseline="value", scale="batch", epsilon=1e-08, ddof=1),
    order=Order(seed=1, last_optimizer_step="error"),
    staleness=Staleness(mode="lookahead", maximum=1),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        kl_placement="reward",
        kl_estimator="k1",
        kl_coefficient=0.05,
        entropy_coefficient=0.0,
    ),
    carried=Carried(
        learning_rate=2e-05,
        lr_schedule="linear",
        warmup_ratio=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-08,
        weight_decay=0.01,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        dropout="off",
        max_prompt_tokens=256,
        max_completion_tokens=53,
        temperature=0.7,
        top_p=1.0,
        precision="bf16",
    ),
)
"""`defaults`, every field written down, from the framework's documented defaults."""


REFUSED = {
    "mini_batches": {"num_mini_batches": 2},
    "loss_denominator": {"filter_zero_std_samples": True, "loss_denominator": "64"},
    "mask_truncated_completions": {"mask_truncated_completions": True},
    "truncated_completions": {"mask_truncated_completions": True},
    "sequence_parallel": {"sequence_parallel_size": 2, "deepspeed_stage": 3, "attn_implementation": "torch"},
    "recurrent_layers": {"model_name_or_path": "Qwen/Qwen3.5-4B-Base"},
    "old_logprobs": {"num_epochs": 2, "use_vllm_logprobs": True},
    "sampler_logprobs": {"num_epochs": 2, "use_vllm_logprobs": True},
    "rho_by_row": {"rho_mask_sequence_level": True},
    "layers": {"script": "grpo.py", "model_name_or_path": "allenai/OLMoE-1B-7B-0924"},
}
"""Refusal to settings of grpo_fast.py, or the script that they name, whose learner is refused by it."""
REFUSED_CASES = {
    "script": ValidCase(name="script", source=Source(values=OLD_SIZES), context=PPO),
    **{
        name: ValidCase(name=name, source=grpo(**{"filter_zero_std_samples": False, **values}), context=GRPO)
        for name, values in REFUSED.items()
    },
}
REFUSED_OTHERWISE = (
    *("tokens_per_device", "passes", "value_baseline", "aggregation", "surrogate", "sampler_correction", "entropy"),
    *(
        "advantages",
        "group_size",
        "prompts_per_rollout",
        "short_rollout",
        "clock",
        "denominator_scope",
        "loss_per_term",
        "no_step",
    ),
    *(
        "kl_estimator",
        "no_resampling",
        "kl_without_reference",
        "kl_in_reward",
        "step_crosses_rollouts",
        "staleness",
        "group_filter",
    ),
)


class TestGrpo(AdapterContract):
    adapter_class = OpenInstructAdapter
    rules = GRPO_REFUSED
    framework_modules = FRAMEWORK
    refused = REFUSED_CASES
    refused_otherwise = REFUSED_OTHERWISE
    unknown_version = "2024.1.1"
    written_version = "2026.8.20"
    foreign = FOREIGN
    unwritable = (
        spec(grpo(), GRPO, **{"rollout.prompts_per_rollout": None}),
        spec(grpo(), GRPO, **{"optimizer_step.completions_per_step": 8}),
        spec(grpo(), GRPO, **{"staleness.mode": "sync", "staleness.maximum": 0}),
        spec(grpo(), GRPO, **{"advantage.ddof": 1}),
    )
    meanings = (
        (
            {"num_samples_per_prompt_rollout": None, "num_unique_prompts_rollout": None, "num_learners_per_node": None},
            {
                "topology.world_size": 1,
                "rollout.prompts_per_rollout": 16,
                "optimizer_step.completions_per_step": 64,
                "horizon.rollouts": 1562,
            },
        ),
    )
    valid = (
        ValidCase(name="defaults", source=grpo(), context=GRPO, spec=OF_GRPO, source_has_world_size=True),
        ValidCase(
            name="sequence parallel, several mini-batches",
            source=grpo(
                num_learners_per_node=[8, 8], sequence_parallel_size=2, deepspeed_stage=3, num_mini_batches=4, beta=0.0
            ),
            context=GRPO,
            source_has_world_size=True,
        ),
        ValidCase(
            name="active sampling, cispo, standard",
            source=grpo(
                active_sampling=True, loss_fn="cispo", advantage_normalization_type="standard", warmup_ratio=0.1
            ),
            context=GRPO,
            source_has_world_size=True,
        ),
        ValidCase(
            name="a constant denominator",
            source=grpo(loss_denominator="3200", filter_zero_std_samples=False, use_rho_correction=False, num_epochs=2),
            context=GRPO,
            source_has_world_size=True,
        ),
        ValidCase(
            name="grpo.py",
            source=grpo(script="grpo.py", num_mini_batches=2, ref_policy_update_freq=3, max_grad_norm=None),
            context=GRPO,
            source_has_world_size=True,
        ),
        ValidCase(
            name="before the first release",
            source=grpo(kl_estimator="kl4", truncated_importance_sampling_ratio_cap=2.0, warm_up_steps=5),
            context=FIRST,
            source_has_world_size=True,
        ),
        ValidCase(
            name="the first release",
            source=grpo(beta=0.0, load_ref_policy=False, loss_fn="cispo"),
            context=Context(framework_version="2026.1.26"),
            source_has_world_size=True,
        ),
        ValidCase(
            name="the third release",
            source=grpo(mask_truncated_completions=True),
            context=Context(framework_version="2026.6.10"),
            source_has_world_size=True,
        ),
        ValidCase(
            name="a command line",
            source=Source(
                values=dict(SIZES, num_learners_per_node=4),
                argv=("python", "open_instruct/grpo_fast.py", "--num_learners_per_node", "4", "4"),
            ),
            context=GRPO,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(name="pack", source=grpo(pack_length=300), context=GRPO, codes=("BB-OI-010",)),
        InvalidCase(
            name="one sample", source=grpo(num_samples_per_prompt_rollout=1), context=GRPO, codes=("BB-OI-012",)
        ),
        InvalidCase(
            name="no samples", source=grpo(num_samples_per_prompt_rollout=0), context=GRPO, codes=("BB-OI-011",)
        ),
        InvalidCase(name="synchronous", source=grpo(async_steps=0), context=GRPO, codes=("BB-OI-013",)),
        InvalidCase(
            name="active sampling alone",
            source=grpo(active_sampling=True, async_steps=1, filter_zero_std_samples=False),
            context=GRPO,
            codes=("BB-OI-014", "BB-OI-015"),
        ),
        InvalidCase(name="idle ranks", source=grpo(num_learners_per_node=[64]), context=GRPO, codes=("BB-OI-016",)),
        InvalidCase(
            name="sequence parallel",
            source=grpo(sequence_parallel_size=2, deepspeed_stage=2),
            context=GRPO,
            codes=("BB-OI-017",),
        ),
        InvalidCase(name="denominator", source=grpo(loss_denominator="-1"), context=GRPO, codes=("BB-OI-018",)),
        InvalidCase(name="no reference", source=grpo(load_ref_policy=False), context=GRPO, codes=("BB-OI-019",)),
        InvalidCase(name="two corrections", source=grpo(use_vllm_logprobs=True), context=GRPO, codes=("BB-OI-020",)),
        InvalidCase(
            name="small dataset",
            source=grpo(),
            context=Context(framework_version="2026.8.20", dataset_size=63),
            codes=("BB-OI-021",),
        ),
        InvalidCase(
            name="normalization", source=grpo(advantage_normalization_type="x"), context=GRPO, codes=("BB-OI-022",)
        ),
        InvalidCase(name="no steps", source=grpo(total_episodes=31), context=GRPO, codes=("BB-OI-023",)),
        InvalidCase(name="no prompts", source=grpo(num_unique_prompts_rollout=0), context=GRPO, codes=("BB-OI-024",)),
        InvalidCase(name="shards", source=grpo(fsdp_shard_degree=3), context=GRPO, codes=("BB-OI-025",)),
        InvalidCase(name="loss", source=grpo(loss_fn="grpo"), context=GRPO, codes=("BB-OI-026",)),
        InvalidCase(name="estimator", source=grpo(kl_estimator=4), context=GRPO, codes=("BB-OI-027",)),
        InvalidCase(
            name="odd replicas",
            source=grpo(num_learners_per_node=[3], sequence_parallel_size=2, deepspeed_stage=3),
            context=GRPO,
            codes=("BB-OI-028",),
        ),
        *(
            InvalidCase(name=f"grpo.py, {name}", source=grpo(script="grpo.py", **values), context=GRPO, codes=(code,))
            for name, code, values in (
                ("attention", "BB-OI-069", {"attn_implementation": "torch"}),
                ("schedule", "BB-OI-070", {"lr_scheduler_type": "inverse_sqrt"}),
                ("model", "BB-OI-071", {"model_name_or_path": "meta-llama/Llama-3.1-8B"}),
                ("no gradients", "BB-OI-076", {"max_grad_norm": 0.0}),
            )
        ),
        *(
            InvalidCase(name=name, source=grpo(**values), context=GRPO, codes=(code,))
            for name, code, values in (
                ("bounds of the ratio", "BB-OI-072", {"rho_clamp_upper_bound": 0.5, "rho_mask_lower_bound": 2.0}),
                ("evaluation", "BB-OI-073", {"eval_on_step_0": True, "local_eval_every": 0}),
                ("evaluation's top-p", "BB-OI-074", {"eval_top_p": 2.0}),
                ("no reward", "BB-OI-075", {"apply_verifiable_reward": False}),
                ("a schedule of a metric", "BB-OI-077", {"lr_scheduler_type": "reduce_lr_on_plateau"}),
                ("a schedule with arguments", "BB-OI-077", {"lr_scheduler_type": "warmup_stable_decay"}),
                ("a stage of ZeRO", "BB-OI-078", {"deepspeed_stage": 5}),
            )
        ),
        *(
            InvalidCase(name=name, source=grpo(**values), context=FIRST, codes=(code,))
            for name, code, values in (
                ("a later schedule", "BB-OI-079", {"lr_scheduler_type": "inverse_sqrt"}),
                ("cap", "BB-OI-065", {"use_vllm_logprobs": True, "truncated_importance_sampling_ratio_cap": 2.0}),
                ("masked mean", "BB-OI-066", {"masked_mean_denominator": 0.0}),
                ("one sample before", "BB-OI-068", {"num_samples_per_prompt_rollout": 1}),
            )
        ),
        InvalidCase(name="unknown key", source=grpo(number_samples_per_prompt=4), context=GRPO, codes=("BB-OI-003",)),
        InvalidCase(name="wrong value", source=grpo(pack_length="many"), context=GRPO, codes=("BB-OI-004",)),
        InvalidCase(
            name="another world",
            source=grpo(),
            context=Context(framework_version="2026.8.20", world_size=3),
            codes=("BB-OI-005",),
        ),
        InvalidCase(
            name="another script",
            source=grpo(script="ppo.py"),
            context=GRPO,
            codes=("BB-OI-006",),
            verdict="undecided",
        ),
        InvalidCase(
            name="a deleted script",
            source=Source(values=OLD_SIZES),
            context=GRPO,
            codes=("BB-OI-002",),
            verdict="undecided",
        ),
    )


class TestPpo(AdapterContract):
    adapter_class = OpenInstructAdapter
    rules = PPO_REFUSED
    framework_modules = FRAMEWORK
    refused = REFUSED_CASES
    refused_otherwise = REFUSED_OTHERWISE
    unknown_version = "2024.1.1"
    written_version = "2025.11.3"
    foreign = FOREIGN
    unwritable = (
        spec(Source(values=OLD_SIZES), PPO, **{"optimizer_step.completions_per_step": 3}),
        spec(Source(values=OLD_SIZES), PPO, **{"carried.weight_decay": 0.0}),
    )
    meanings = (
        (
            {"actor_num_gpus_per_node": None, "local_rollout_batch_size": None},
            {
                "topology.world_size": 1,
                "rollout.prompts_per_rollout": 64,
                "optimizer_step.completions_per_step": 2,
                "horizon.rollouts": 1562,
            },
        ),
    )
    valid = (
        ValidCase(
            name="defaults", source=Source(values=OLD_SIZES), context=PPO, spec=OF_PPO, source_has_world_size=True
        ),
        ValidCase(
            name="synchronous, no KL, warm-up",
            source=Source(values={**OLD_SIZES, "async_mode": False, "beta": 0.0, "warm_up_steps": 3, "num_epochs": 1}),
            context=PPO,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(
            name="micro-batch",
            source=Source(values={**OLD_SIZES, "per_device_train_batch_size": 4}),
            context=PPO,
            codes=("BB-OI-030",),
        ),
        InvalidCase(
            name="mini-batch",
            source=Source(values={**OLD_SIZES, "local_mini_batch_size": 3}),
            context=PPO,
            codes=("BB-OI-031",),
        ),
        InvalidCase(
            name="whitening",
            source=Source(values={**OLD_SIZES, "whiten_rewards": True}),
            context=PPO,
            codes=("BB-OI-032",),
        ),
        InvalidCase(
            name="no steps",
            source=Source(values={**OLD_SIZES, "total_episodes": 7}),
            context=PPO,
            codes=("BB-OI-034",),
        ),
    )

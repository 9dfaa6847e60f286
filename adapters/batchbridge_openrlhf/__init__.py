"""OpenRLHF's PPO for BatchBridge. Importing this module imports neither OpenRLHF nor anything else that takes time."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

TRAINER = r"(^|[./])train_ppo_ray(\.py)?$"
"""The pattern of a word that names the trainer in a command: a module or a file."""
OTHER_PROGRAM = r"(^|[./])openrlhf[./]cli[./]\w+(\.py)?$"
"""The pattern of OpenRLHF's other programs, which train by other rules."""
TELLS = DetectionFacts(
    programs={TRAINER: 1.0, OTHER_PROGRAM: 0.9},
    unknown_program=0.0,
    own=dict.fromkeys(
        (
            *("rollout_batch_size", "micro_rollout_batch_size", "micro_train_batch_size", "n_samples_per_prompt"),
            *("num_episodes", "init_kl_coef", "advantage_estimator", "zero_stage", "colocate_all_models"),
            *("generate_max_len", "use_dynamic_batch", "remote_rm_url", "vllm_num_engines"),
            *("vllm.num_engines", "ref.num_gpus_per_node", "ds.zero_stage", "ds.packing_samples"),
            *("train.colocate_all", "train.async_enable", "train.dynamic_batch_enable"),
            *("rollout.n_samples_per_prompt", "algo.advantage.estimator", "algo.kl.init_coef"),
        ),
        0.4,  # two of them are needed
    ),
    shared={"actor_num_gpus_per_node": 0.15}
    | dict.fromkeys(
        ("train.batch_size", "train.micro_batch_size", "rollout.batch_size", "rollout.micro_batch_size"), 0.05
    )
    | dict.fromkeys(
        (
            *("pretrain", "reward_pretrain", "critic_pretrain", "prompt_data", "prompt_max_len", "input_key"),
            *("max_samples", "max_epochs", "train_batch_size", "eps_clip", "kl_estimator", "use_kl_loss"),
            *("freezing_actor_steps", "packing_samples", "ring_attn_size", "save_path", "ckpt_path"),
            *("dynamic_filtering", "vllm_generate_batch_size"),
        ),
        0.01,
    ),
    # Source: openrlhf 0.11.2.
    trainers=(
        ("openrlhf.trainer.ppo_trainer", "BasePPOTrainer"),
        ("openrlhf.trainer.ppo_trainer_async", "PPOTrainerAsync"),
        ("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer"),
    ),
    machine={
        **dict.fromkeys(("actor_num_nodes", "actor.num_nodes"), "--nodes"),
        **dict.fromkeys(("actor_num_gpus_per_node", "actor.num_gpus_per_node"), "--gpus"),
    },
)
"""The facts by which a configuration is known to be one of OpenRLHF's: of its dotted options (all stand in `settings`)
those that hardly a launch is without."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `openrlhf`, which is imported when it is needed."""
    return [AdapterEntry("openrlhf", "batchbridge_openrlhf.config:OpenRlhfAdapter", TELLS)]

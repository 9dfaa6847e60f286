"""OpenRLHF's PPO for BatchBridge. Importing this module imports neither OpenRLHF nor anything else that takes time."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

TRAINER = r"(^|[./])train_ppo_ray(\.py)?$"
"""The pattern of a word that names the trainer in a command: a module or a file."""
OTHER_PROGRAM = r"(^|[./])openrlhf[./]cli[./]\w+(\.py)?$"
"""The pattern of OpenRLHF's other programs, which train by other rules."""
GROUPS = {
    "ref": "num_nodes num_gpus_per_node offload",
    "reward": """
        num_nodes num_gpus_per_node normalize_enable clip_range overlong_buffer_len overlong_penalty_factor
        stop_properly_penalty_coef model_name_or_path remote_url offload
    """,
    "train": """
        colocate_actor_ref colocate_critic_reward colocate_all async_enable async_queue_size partial_rollout_enable
        enable_ema ema_beta dynamic_batch_enable max_tokens_per_gpu num_episodes max_epochs micro_batch_size
        batch_size seed full_determinism_enable agent_func_path
    """,
    "actor": """
        num_nodes num_gpus_per_node gradient_checkpointing_enable gradient_checkpointing_reentrant eps_clip
        eps_clip_low_high dual_clip policy_loss_type loss_agg_mode aux_loss_coef entropy_coef optim muon adam
        lr_scheduler lr_warmup_ratio min_lr_ratio max_norm model_name_or_path freeze_visual_encoder
    """,
    "critic": """
        num_nodes num_gpus_per_node value_clip freezing_steps save_value_network optim muon adam lr_scheduler
        lr_warmup_ratio min_lr_ratio max_norm model_name_or_path
    """,
    "vllm": """
        num_engines tensor_parallel_size sync_backend sync_with_ray enable_prefix_caching enforce_eager enable_sleep
        gpu_memory_utilization
    """,
    "algo": """
        advantage.estimator advantage.gamma advantage.lambd advantage.no_std_norm advantage.is_correction_enable
        advantage.is_correction_type advantage.is_correction_level advantage.is_correction_mode
        advantage.is_correction_gating advantage.is_correction_threshold kl.init_coef kl.target kl.horizon kl.estimator
        kl.use_loss kl.unbiased_gradient dynamic_filtering_enable dynamic_filtering_range
    """,
    "eval": "steps dataset split temperature n_samples_per_prompt",
    "ckpt": "save_steps path save_hf disable_ds max_num max_mem load_enable best_metric_key output_dir",
    "logger": "logging_steps wandb tensorboard_dir",
    "ds": """
        use_universal_ckpt zero_stage deepcompile param_dtype zpg adam_offload attn_implementation
        experts_implementation use_liger_kernel grad_accum_dtype overlap_comm enable_sleep tensor_parallel_size
        packing_samples load_in_4bit lora ring_attn_size ring_attn_head_stride value_head_prefix
    """,
    "data": """
        disable_fast_tokenizer dataloader_num_workers max_len max_samples prompt_dataset prompt_probs prompt_split
        input_key label_key input_template apply_chat_template image_key max_images_per_prompt
    """,
    "rollout": """
        max_tokens_per_gpu batch_size vllm_generate_batch_size micro_batch_size max_new_tokens top_p temperature
        n_samples_per_prompt
    """,
}
"""Groups of options with the options, or groups, in them. Source: openrlhf 0.10.2 to 0.11.2 cli/train_ppo_ray.py."""
_NAMES = """
    num_nodes num_gpus_per_node offload normalize_enable micro_batch_size batch_size seed num_episodes max_epochs optim
    adam muon lr_scheduler lr_warmup_ratio min_lr_ratio max_norm model_name_or_path entropy_coef tensor_parallel_size
    enforce_eager gpu_memory_utilization steps dataset split temperature save_steps path output_dir max_num
    logging_steps wandb tensorboard_dir lora attn_implementation param_dtype max_len max_samples top_p max_new_tokens
    dataloader_num_workers remote_url load_enable gradient_checkpointing_enable value_clip
"""
_ANYBODYS = frozenset(_NAMES.split())
"""Names of options that the groups of anybody's configuration may have."""
TELLS = DetectionFacts(
    programs={TRAINER: 1.0, OTHER_PROGRAM: 0.9},
    unknown_program=0.0,
    own=dict.fromkeys(
        (
            *("rollout_batch_size", "micro_rollout_batch_size", "micro_train_batch_size", "n_samples_per_prompt"),
            *("num_episodes", "init_kl_coef", "advantage_estimator", "zero_stage", "colocate_all_models"),
            *("generate_max_len", "use_dynamic_batch", "remote_rm_url", "vllm_num_engines"),
            *(f"{group}.{name}" for group, names in GROUPS.items() for name in names.split() if name not in _ANYBODYS),
        ),
        0.4,  # two of them are needed
    ),
    shared={"actor_num_gpus_per_node": 0.15}
    | dict.fromkeys(
        (
            *("pretrain", "reward_pretrain", "critic_pretrain", "prompt_data", "prompt_max_len", "input_key"),
            *("max_samples", "max_epochs", "train_batch_size", "eps_clip", "kl_estimator", "use_kl_loss"),
            *("freezing_actor_steps", "packing_samples", "ring_attn_size", "save_path", "ckpt_path"),
            *("dynamic_filtering", "vllm_generate_batch_size"),
        ),
        0.01,
    ),
    machine={
        **dict.fromkeys(("actor_num_nodes", "actor.num_nodes"), "--nodes"),
        **dict.fromkeys(("actor_num_gpus_per_node", "actor.num_gpus_per_node"), "--gpus"),
    },
)
"""The facts by which a configuration is known to be one of OpenRLHF's."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `openrlhf`, which is imported when it is needed."""
    return [AdapterEntry("openrlhf", "batchbridge_openrlhf.config:OpenRlhfAdapter", TELLS)]

"""What settings of verl decide that the schema has no field for; see `Adapter.decides`."""

MODEL = (
    "*.model.path",
    "*.model.lora*",
    "*.model.target_modules",
    "*.model.exclude_modules",
    "*.model.override_config.*",
)
PROMPTS = ("data.train_files", "data.*_key", "data.custom_cls.*", "data.truncation", "data.apply_chat_template_kwargs*")
REWARDS = ("custom_reward_function.*", "reward_model.*", "reward.*", "distillation.*", "*.multi_turn.*")
NOTHING = (
    *("trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.save_freq", "trainer.test_freq"),
    *("trainer.val_*", "trainer.log_*", "trainer.default_local_dir", "trainer.max_*_ckpt_to_keep", "trainer.device"),
    *("*.val_kwargs.*", "data.val_*", "data.validation_shuffle", "global_profiler.*", "*.profiler.*", "ray_kwargs.*"),
    *("*_offload", "*.offload_policy", "*.enable_gradient_checkpointing", "*.use_torch_compile", "*.nccl_timeout"),
    *(
        "*.reshard_after_forward",
        "*.forward_prefetch",
        "*.entropy_checkpointing",
        "*.entropy_from_logits_with_chunking",
    ),
    *(
        "*.gpu_memory_utilization",
        "*.free_cache_engine",
        "*.enforce_eager",
        "*.enable_chunked_prefill",
        "*.load_format",
    ),
    *("*.max_num_batched_tokens", "*.max_num_seqs", "*.layered_summon", "*.update_weights_bucket_megabytes"),
    *("*.disable_log_stats", "*.trust_remote_code", "*.cudagraph_*", "*.mm_processor_cache_gb", "*_workers"),
)

OUTSIDE = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of keys to what they decide; the first that fits counts. Source: the comments of verl 0.4.0 to 0.9.1
trainer/config/*.yaml."""

"""What settings of EasyR1 decide that the schema has no field for; see `Adapter.decides`."""

MODEL = ("worker.actor.model.*",)
PROMPTS = ("data.train_files", "data.*_key", "data.image_dir", "data.video_fps", "data.*_pixels", "data.format_prompt")
REWARDS = ("worker.reward.*", "algorithm.filter_*")
NOTHING = (
    *("trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.val_*", "trainer.save_*"),
    *("data.val_*", "worker.rollout.val_override_config.*", "*.enable_gradient_checkpointing", "*.trust_remote_code"),
    *("worker.*.fsdp.enable_*", "worker.*.offload.*", "worker.rollout.gpu_memory_utilization", "*.disable_tqdm"),
    *("worker.rollout.enforce_eager", "worker.rollout.enable_chunked_prefill", "*.max_num_batched_tokens"),
    *("worker.rollout.tensor_parallel_size", "worker.rollout.limit_images"),
)

OUTSIDE = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys((*PROMPTS, "data.override_chat_template"), "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of keys to what they decide; the first that fits counts. Source: EasyR1 0.3.2 examples/config.yaml."""

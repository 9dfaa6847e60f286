"""What options of OpenRLHF decide that the schema has no field for; see `Adapter.decides`."""

MODEL = ("actor.model_name_or_path", "ds.lora.*", "ds.load_in_4bit", "actor.freeze_visual_encoder")
PROMPTS = ("data.*",)
REWARDS = ("reward.*", "train.agent_func_path")
NOTHING = (
    *("logger.*", "eval.*", "local_rank", "ckpt.save_*", "ckpt.path", "ckpt.output_dir", "ckpt.max_*"),
    *("reward.num_*", "reward.offload", "data.dataloader_num_workers", "*.gradient_checkpointing_*"),
)

OUTSIDE = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    "*": "",  # every option is in the tables by its newest name, and what the others mean is read
}
"""Pattern of options to what they decide; the first that fits counts. Source: the help of OpenRLHF 0.8.0 to 0.11.2
cli/train_ppo_ray.py."""

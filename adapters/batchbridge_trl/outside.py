"""What settings of TRL and Open-R1 decide that the schema has no field for; see `Adapter.decides`."""

from batchbridge_trl.meaning import UNCARRIED

MODEL = (
    "model_name_or_path",
    "model_revision",
    "use_peft",
    "lora_*",
    "use_rslora",
    "use_dora",
    "load_in_*bit",
    "peft_*",
)
PROMPTS = ("dataset_*", "datasets*", "streaming", "system_prompt", "chat_template*", "tools", "num_prompts")
REWARDS = (
    "reward_*",
    "cosine_*",
    "repetition_*",
    "max_completion_len",
    "soft_punish_cache",
    "code_*",
    "parallel_code_*",
)
NOTHING = (
    *("output_dir", "overwrite_output_dir", "run_name", "project", "trackio_*", "wandb_*", "report_to", "log_*"),
    *("logging_*", "num_completions_to_print", "save_*", "hub_*", "push_to_hub*", "benchmarks", "callbacks"),
    *("do_train", "do_eval", "do_predict", "per_device_eval_batch_size", "config", "trust_remote_code"),
    *("gradient_checkpointing*", "dataloader_num_workers", "dataloader_pin_memory", "disable_tqdm", "ddp_timeout"),
)

OUTSIDE = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(UNCARRIED, "what BB-TRL-075 names"),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of keys to what they decide; the first that fits counts. Source: the docstrings of trl 0.18.0 to 1.16.0
GRPOConfig, ScriptArguments and ModelConfig, and of open_r1/configs.py 1416fa0."""

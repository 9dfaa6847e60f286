"""What settings of Open-Instruct decide that the schema has no field for; see `Adapter.decides`."""

MODEL = ("model_name_or_path", "model_revision", "use_peft", "lora_*", "load_in_*bit")
PROMPTS = ("dataset_*", "chat_template*", "tokenizer_*", "system_prompt*", "max_*token_length")
REWARDS = ("reward_*", "*_reward", "verification_*", "*_verifier*", "llm_judge_*", "code_api_url", "tools", "tool_*")
NOTHING = (
    *("output_dir", "exp_name", "run_name", "wandb_*", "with_tracking", "save_*", "push_to_hub", "hf_*", "eval_*"),
    *("try_*", "oe_eval_*", "dataset_*eval*", "dataset_local_cache_dir", "dataset_cache_mode", "dataset_skip_cache"),
    *("gradient_checkpointing", "gs_*", "cache_*", "local_eval_*", "num_evals", "keep_last_n_checkpoints", "verbose"),
    *("checkpoint_state_*", "send_slack_alerts", "vllm_gpu_memory_utilization", "vllm_enforce_eager"),
)

OUTSIDE = {
    **dict.fromkeys(NOTHING, ""),
    **dict.fromkeys(MODEL, "the model"),
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
}
"""Pattern of settings to what they decide; the first that fits counts. Source: the docstrings of the arguments in
open_instruct/grpo_fast.py, dataset_transformation.py and model_utils.py."""

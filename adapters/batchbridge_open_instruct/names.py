"""Names of settings that are known and say nothing about batches, by the checkouts that have them.

Source: the fields of the dataclasses that each script hands to its parser (Args or GRPOExperimentConfig,
TokenizerConfig, DatasetConfig, ModelConfig, StreamingDataLoaderConfig, VLLMConfig, EnvsConfig). Each table: a range of
checkouts, empty for all, to names between blanks.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "": """
        apply_verifiable_reward attn_implementation bnb_4bit_quant_type exp_name gather_whole_model
        gradient_checkpointing ground_truths_key hf_entity hf_repo_id hf_repo_revision hf_repo_url load_in_4bit
        load_in_8bit lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_task_type
        model_name_or_path model_revision non_stop_penalty num_training_steps oe_eval_tasks output_dir
        push_to_hub run_name save_freq sft_messages_key trust_remote_code try_launch_beaker_eval_jobs_on_weka
        use_bnb_nested_quant use_cache use_peft vllm_num_engines vllm_sync_backend vllm_tensor_parallel_size
        wandb_entity with_tracking world_size
    """,
    ">=2025": """
        add_bos cache_dataset_only chat_template_name code_api_url code_apply_perf_penalty
        code_max_execution_time code_pass_rate_reward_threshold dataset_cache_mode dataset_config_eval_hash
        dataset_config_hash dataset_local_cache_dir dataset_mixer_eval_list dataset_mixer_eval_list_splits
        dataset_mixer_list dataset_mixer_list_splits dataset_skip_cache dataset_transform_fn eval_priority
        get_tokenizer_fn gs_bucket_path llm_judge_max_context_length llm_judge_max_tokens llm_judge_model
        llm_judge_temperature llm_judge_timeout oe_eval_max_length r1_style_format_reward remap_verifier
        single_gpu_mode stop_strings tokenizer_files_hash tokenizer_name tokenizer_name_or_path
        tokenizer_revision try_auto_save_to_beaker use_fast use_slow_tokenizer verification_reward
        vllm_enforce_eager vllm_gpu_memory_utilization
    """,
}
"""Names of the settings of every script."""
GRPO_NAMES: Mapping[str, str] = {
    "": """
        additive_format_reward apply_r1_style_format_reward backend_timeout checkpoint_state_dir
        checkpoint_state_freq enable_queue_dashboard eval_on_step_0 fused_optimizer gs_checkpoint_state_dir
        inflight_updates keep_last_n_checkpoints local_eval_every mask_tool_use max_length_verifier_max_length
        non_stop_penalty_value oe_eval_beaker_image only_reward_good_outputs queue_dashboard_port record_entropy
        save_traces tools verbose vllm_enable_prefix_caching
    """,
    "<2026": """
        code_tool_api_endpoint inference_batch_size max_token_length number_documents_to_search
        search_api_endpoint torch_dtype update_progress_every use_fp8_kv_cache
    """,
    "<2026.3.1": """
        max_tool_calls shuffle_eval_dataset
    """,
    "<2026.6.10": """
        wandb_project_name
    """,
    ">=2026": """
        deepspeed_offload_optimizer deepspeed_offload_param deepspeed_zpg dtype eval_workspace
        max_possible_score no_resampling_pass_rate num_nodes oe_eval_gpu_multiplier pass_tools_to_chat_template
        rollouts_save_path send_slack_alerts system_prompt_override_file tool_call_names tool_configs
        tool_parser_type
    """,
    ">=2026.3.1": """
        apply_evolving_rubric_reward cache_evolving_rubric_data_dir max_active_rubrics max_steps
        per_turn_max_tokens pool_size reward_aggregator
    """,
    ">=2026.6.10": """
        activation_checkpointing_mode activation_checkpointing_modules activation_memory_budget
        checkpointing_steps compile_model cp_degree cp_strategy data_loader_seed
        deepspeed_checkpoint_load_universal ephemeral_save_interval eval_pass_at_k eval_response_length
        eval_top_p logging_steps max_seq_length max_train_steps model_dtype report_to resume_from_checkpoint
        rho_mask_sequence_level rho_mask_tv_divergence vllm_attention_backend wandb_group_name wandb_project
    """,
}
"""Names of the settings of grpo_fast.py and grpo.py, beside `NAMES`."""
PPO_NAMES: Mapping[str, str] = {
    "": """
        checkpoint_output_dir enable_prefix_caching eps init_value_from_scratch local_dataloader_batch_size
        local_rollout_forward_batch_size max_token_length micro_batch_size min_response_length mini_batch_size
        num_evals penalty_reward_value per_device_eval_batch_size reward_model_multiplier reward_model_path
        reward_model_revision rollout_batch_size stop_token stop_token_id torch_dtype
        try_launch_beaker_eval_jobs wandb_project_name
    """,
    "<2025.11.3": """
        answer_extraction_model batched binary_messages_key chat_template convert_preference_to_binary_dataset
        dataset_eval_mixer dataset_eval_mixer_dict dataset_eval_splits dataset_mixer dataset_mixer_dict
        dataset_source_key dataset_train_splits eval_freq hf_metadata_dataset label load_from_cache_file ncols
        num_proc num_train_epochs preference_chosen_key preference_rejected_key sanity_check
        sanity_check_max_samples train_only_on_prompt
    """,
    ">=2025.11.3": """
        add_r1_style_format_reward local_eval_freq local_total_prompts save_value_model
    """,
}
"""Names of the settings of the PPO script, beside `NAMES`."""
TYPES: Mapping[str, str] = {
    "int": """
        backend_timeout checkpoint_state_freq checkpointing_steps cp_degree data_loader_seed deepspeed_zpg
        ephemeral_save_interval eval_freq eval_pass_at_k eval_response_length inference_batch_size
        keep_last_n_checkpoints llm_judge_max_context_length llm_judge_max_tokens llm_judge_timeout
        local_dataloader_batch_size local_eval_every local_eval_freq local_rollout_forward_batch_size
        local_total_prompts logging_steps lora_alpha lora_r max_active_rubrics max_length_verifier_max_length
        max_seq_length max_token_length max_train_steps micro_batch_size min_response_length
        mini_batch_size ncols num_evals num_nodes num_proc num_train_epochs num_training_steps
        number_documents_to_search oe_eval_gpu_multiplier oe_eval_max_length per_device_eval_batch_size
        per_turn_max_tokens pool_size queue_dashboard_port rollout_batch_size sanity_check_max_samples
        save_freq stop_token_id update_progress_every vllm_num_engines vllm_tensor_parallel_size world_size
    """,
    "float": """
        activation_memory_budget code_max_execution_time code_pass_rate_reward_threshold eps eval_top_p
        llm_judge_temperature lora_dropout max_possible_score no_resampling_pass_rate non_stop_penalty_value
        penalty_reward_value r1_style_format_reward reward_model_multiplier verification_reward
        vllm_gpu_memory_utilization
    """,
    "bool": """
        add_bos add_r1_style_format_reward additive_format_reward apply_evolving_rubric_reward
        apply_r1_style_format_reward apply_verifiable_reward batched cache_dataset_only
        code_apply_perf_penalty compile_model convert_preference_to_binary_dataset dataset_skip_cache
        deepspeed_checkpoint_load_universal deepspeed_offload_optimizer deepspeed_offload_param
        enable_prefix_caching enable_queue_dashboard eval_on_step_0 fused_optimizer gather_whole_model
        gradient_checkpointing inflight_updates init_value_from_scratch load_in_4bit load_in_8bit
        mask_tool_use non_stop_penalty only_reward_good_outputs pass_tools_to_chat_template push_to_hub
        record_entropy rho_mask_sequence_level rho_mask_tv_divergence sanity_check save_traces
        save_value_model send_slack_alerts shuffle_eval_dataset single_gpu_mode train_only_on_prompt
        trust_remote_code try_auto_save_to_beaker try_launch_beaker_eval_jobs
        try_launch_beaker_eval_jobs_on_weka use_bnb_nested_quant use_cache use_fast use_fp8_kv_cache use_peft
        use_slow_tokenizer verbose vllm_enable_prefix_caching vllm_enforce_eager with_tracking
    """,
    "positive": "max_steps",
    "budget|selected_modules": "activation_checkpointing_mode",
    "eos|period": "stop_token",
    "hf|local": "dataset_cache_mode",
    "last|sum": "reward_aggregator",
    "llama3|zig_zag|ulysses": "cp_strategy",
    "low|normal|high|urgent": "eval_priority",
}
"""Names that take more than text, by what the parser takes for them: a number, a flag, or words; every checkout
that has one of them takes the same."""
ATTENTION: Mapping[str, str] = {
    "<2026": "flash_attention_2",
    ">=2026,<2026.6.10": "flash_attention_2|sdpa",
    ">=2026.6.10": "torch|flash_2|flash_3|flash_4|te",
}
"""Words of `attn_implementation`. Source: model_utils.py, ModelConfig; AttentionBackendName of OLMo-core."""

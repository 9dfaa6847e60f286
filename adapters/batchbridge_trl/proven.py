"""The functions of TRL, transformers and Accelerate that a wrapped `GRPOTrainer` depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
from batchbridge.kit.proven import methods
from batchbridge_trl.settings import OLDEST_ENFORCED

DEEPSPEED = Package(
    "deepspeed",
    "deepspeed",
    control={},
    loss={
        **ENGINE.control,
        "runtime/bf16_optimizer.py": methods("BF16_Optimizer", "_update_hp_grad", "get_grads_for_reduction", "step"),
        "runtime/zero/stage3.py": methods(
            "DeepSpeedZeroOptimizer_Stage3",
            *("independent_gradient_partition_epilogue", "partition_grads"),
            *("reduce_independent_p_g_buckets_and_remove_grads", "step", "unscale_and_clip_grads"),
        ),
    },
    optional=True,
)
"""The DeepSpeed code that acts on gradients between backward and the update. All of it counts as what can be measured:
each update is held against the plan before it is made, and a weight's whole gradient against what its backward passes
gave."""
MS_SWIFT = Package(
    "swift",
    "ms-swift",
    control={
        "rlhf_trainers/grpo_trainer.py": methods(
            "GRPOTrainer",
            *("_compute_advantages", "_compute_rewards_per_func", "_get_data_collator", "_get_train_sampler"),
            *("_log_rollout", "_postprocess_batch", "_prepare_algorithm_params", "_prepare_batch_inputs"),
            *("_prepare_inputs", "_prepare_metrics", "_rollout_samples", "_score_completions", "compute_loss"),
            "training_step",
        ),
        "rlhf_trainers/rollout_mixin.py": methods(
            "RolloutTrainerMixin",
            *("_add_prompt_id_to_inputs", "_colocate_rollout", "_engine_infer", "_generate_and_score_completions"),
            *("_generate_completions", "_get_request_config", "_infer_single_or_multi_turn"),
            *("_postprocess_rollout_outputs", "_prepare_rollout_params", "_prepare_vllm", "_preprocess_inputs"),
            *("_rollout", "split_by_mini_batches"),
        ),
        "rlhf_trainers/base_rollout_mixin.py": methods(
            "BaseRolloutTrainerMixin", "_set_inputs_system", "_split_data_by_steps", "to_samples"
        ),
        "rlhf_trainers/rlhf_mixin.py": methods(
            "RLHFTrainerMixin", "_get_train_sampler", "_prepare_inputs", "compute_loss", "get_train_dataloader"
        ),
        "rlhf_trainers/utils.py": (
            *("build_completion_mask_and_seq_lengths", "collate_to_grpo_micro_batch", "encode_sample"),
            *("get_even_process_data", "identity_data_collator", "replace_assistant_response_with_ids"),
        ),
        "rl_core/advantage.py": ("compute_advantages", "expand_advantage_to_per_token"),
        "rl_core/data.py": methods("OnPolicySample", "apply_rollout_output", "from_row", "to_template_dict"),
        "rl_core/grpo_algorithm.py": ("score_completions",),
        "trainers/mixin.py": methods(
            "SwiftMixin",
            *("_fix_grad_norm_nan", "_load_optimizer_and_scheduler", "_load_rng_state", "_maybe_log_save_evaluate"),
            *("_save_checkpoint", "create_optimizer", "create_scheduler", "train"),
        ),
    },
    loss={
        "rlhf_trainers/grpo_trainer.py": methods(
            "GRPOTrainer",
            *("_compute_loss", "_compute_loss_and_metrics", "_compute_loss_single", "_get_logps_via_local_forward"),
            *("_get_per_token_logps_and_entropies", "_get_per_token_logps_and_entropies_single"),
            *("_undo_gradient_accumulation_scaling", "compute_liger_loss"),
        ),
    },
    part="ms_swift",
)
"""The functions of ms-swift that its `GRPOTrainer` has in the place of TRL's, and what they call of its own."""
ACCELERATOR, SCHEDULER, REWARDS = "create_accelerator_and_postprocess", "create_scheduler", "_calculate_rewards"
BY_EFFECT = frozenset({ACCELERATOR, SCHEDULER, REWARDS})
"""Methods of a derived trainer's own that are taken; `own_methods` holds what they do."""
TRANSFORMERS = Package(
    "transformers",
    "transformers",
    control={
        "trainer.py": methods(
            "Trainer",
            *("_clip_grad_norm", "_finalize_training", "_get_grad_norm", "_get_num_items_in_batch"),
            *("_get_output_dir", "_init_training_state", "_inner_training_loop", "_load_from_checkpoint"),
            *("_load_optimizer_and_scheduler", "_maybe_log_save_evaluate", "_prepare_for_training"),
            *("_run_epoch", "_save_checkpoint", "_save_optimizer_and_scheduler", "_wrap_model"),
            *("create_accelerator_and_postprocess", "create_scheduler", "get_batch_samples"),
            *("set_initial_training_values", "train", "training_step"),
        ),
        "trainer_callback.py": methods(
            "CallbackHandler", "call_event", "on_optimizer_step", "on_pre_optimizer_step", "on_step_end"
        ),
    },
)
ACCELERATE = Package(
    "accelerate",
    "accelerate",
    control={
        "accelerator.py": methods("Accelerator", "backward", "clip_grad_norm_", "gather", "no_sync"),
        "optimizer.py": methods("AcceleratedOptimizer", "step", "zero_grad"),
        "scheduler.py": ("AcceleratedScheduler.step",),
    },
)
OF_COPIES = Code(framework="trl", home="batchbridge_trl", packages=(TRANSFORMERS, ACCELERATE, DEEPSPEED))
"""The code below a copy of `GRPOTrainer`, whose own functions are not recorded."""
CODE = Code(
    framework="trl",
    home="batchbridge_trl",
    oldest=OLDEST_ENFORCED,
    packages=(
        Package(
            "trl",
            "trl",
            control={
                "trainer/grpo_trainer.py": (
                    *methods("GRPOTrainer", "_calculate_rewards", "_generate_and_score_completions"),
                    *methods("GRPOTrainer", "_get_train_sampler", "_load_optimizer_and_scheduler", "_prepare_inputs"),
                    *methods("GRPOTrainer", "_save_checkpoint", "get_train_dataloader", "training_step"),
                    "shuffle_sequence_dict",  # here up to 0.21, then in utils.py
                    "shuffle_tensor_dict",  # up to 0.19
                    "split_tensor_dict",  # here up to 0.21
                ),
                "trainer/utils.py": ("shuffle_sequence_dict", "split_tensor_dict"),
            },
            loss={
                "trainer/grpo_trainer.py": (
                    *methods("GRPOTrainer", "_chunked_logps", "_compute_loss", "_full_logits_logps"),
                    # The first up to 0.19.
                    *methods("GRPOTrainer", "_get_per_token_logps", "_get_per_token_logps_and_entropies"),
                    *methods("GRPOTrainer", "compute_liger_loss", "compute_loss", "get_gamma_weights"),
                    *methods("GRPOTrainer", "get_high_entropy_mask", "get_off_policy_mask"),
                ),
                "trainer/utils.py": ("entropy_from_logits", "selective_log_softmax"),
            },
        ),
        TRANSFORMERS,
        ACCELERATE,
        DEEPSPEED,
    ),
    by_effect=BY_EFFECT,
    parts=(MS_SWIFT,),
)

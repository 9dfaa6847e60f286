"""The functions of TRL, transformers and Accelerate that a wrapped `GRPOTrainer` depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
from batchbridge_trl.settings import OLDEST_ENFORCED

DEEPSPEED = Package(
    "deepspeed",
    "deepspeed",
    control={},
    loss={
        **ENGINE.control,
        "runtime/bf16_optimizer.py": (
            "BF16_Optimizer._update_hp_grad",
            "BF16_Optimizer.get_grads_for_reduction",
            "BF16_Optimizer.step",
        ),
        "runtime/zero/stage3.py": (
            "DeepSpeedZeroOptimizer_Stage3.independent_gradient_partition_epilogue",
            "DeepSpeedZeroOptimizer_Stage3.partition_grads",
            "DeepSpeedZeroOptimizer_Stage3.reduce_independent_p_g_buckets_and_remove_grads",
            "DeepSpeedZeroOptimizer_Stage3.step",
            "DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads",
        ),
    },
    optional=True,
)
"""What becomes of gradients between backward and the update. All of it counts as what can be measured: each update is
held against the plan before it is made, and a weight's whole gradient against what its backward passes gave."""
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
                    "GRPOTrainer._calculate_rewards",
                    "GRPOTrainer._generate_and_score_completions",
                    "GRPOTrainer._get_train_sampler",
                    "GRPOTrainer._load_optimizer_and_scheduler",
                    "GRPOTrainer._prepare_inputs",
                    "GRPOTrainer._save_checkpoint",
                    "GRPOTrainer.get_train_dataloader",
                    "GRPOTrainer.training_step",
                    "shuffle_sequence_dict",  # here up to 0.21, then in utils.py
                    "shuffle_tensor_dict",  # up to 0.19
                    "split_tensor_dict",  # here up to 0.21
                ),
                "trainer/utils.py": ("shuffle_sequence_dict", "split_tensor_dict"),
            },
            loss={
                "trainer/grpo_trainer.py": (
                    "GRPOTrainer._chunked_logps",
                    "GRPOTrainer._compute_loss",
                    "GRPOTrainer._full_logits_logps",
                    "GRPOTrainer._get_per_token_logps",  # up to 0.19
                    "GRPOTrainer._get_per_token_logps_and_entropies",
                    "GRPOTrainer.compute_liger_loss",
                    "GRPOTrainer.compute_loss",
                    "GRPOTrainer.get_gamma_weights",
                    "GRPOTrainer.get_high_entropy_mask",
                    "GRPOTrainer.get_off_policy_mask",
                ),
                "trainer/utils.py": ("entropy_from_logits", "selective_log_softmax"),
            },
        ),
        Package(
            "transformers",
            "transformers",
            control={
                "trainer.py": (
                    "Trainer._clip_grad_norm",
                    "Trainer._finalize_training",
                    "Trainer._get_grad_norm",
                    "Trainer._get_num_items_in_batch",
                    "Trainer._get_output_dir",
                    "Trainer._init_training_state",
                    "Trainer._inner_training_loop",
                    "Trainer._load_from_checkpoint",
                    "Trainer._load_optimizer_and_scheduler",
                    "Trainer._maybe_log_save_evaluate",
                    "Trainer._prepare_for_training",
                    "Trainer._run_epoch",
                    "Trainer._save_checkpoint",
                    "Trainer._save_optimizer_and_scheduler",
                    "Trainer._wrap_model",
                    "Trainer.create_accelerator_and_postprocess",
                    "Trainer.create_scheduler",
                    "Trainer.get_batch_samples",
                    "Trainer.set_initial_training_values",
                    "Trainer.train",
                    "Trainer.training_step",
                ),
                "trainer_callback.py": (
                    "CallbackHandler.call_event",
                    "CallbackHandler.on_optimizer_step",
                    "CallbackHandler.on_pre_optimizer_step",
                    "CallbackHandler.on_step_end",
                ),
            },
        ),
        Package(
            "accelerate",
            "accelerate",
            control={
                "accelerator.py": (
                    "Accelerator.backward",
                    "Accelerator.clip_grad_norm_",
                    "Accelerator.gather",
                    "Accelerator.no_sync",
                ),
                "optimizer.py": ("AcceleratedOptimizer.step", "AcceleratedOptimizer.zero_grad"),
                "scheduler.py": ("AcceleratedScheduler.step",),
            },
        ),
        DEEPSPEED,
    ),
)

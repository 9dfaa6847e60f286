"""The functions of verl that a wrapped trainer depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit import Code, Package
from batchbridge_verl.settings import OLDEST_ENFORCED

_MARKER = "version/version"
ONE_STEP_OFF, FULLY_ASYNC = "one_step_off", "fully_async"
"""The programs of verl.experimental whose trainers are observed; see `apart` and `queued`."""
_SEPARATION = {
    "experimental/separation/ray_trainer.py": (
        "SeparateRayPPOTrainer._fit_compute_log_prob",
        "SeparateRayPPOTrainer._fit_update_actor",
        "SeparateRayPPOTrainer._fit_update_weights",
        "SeparateRayPPOTrainer._init_resource_pools",
        "SeparateRayPPOTrainer.init_workers",
    ),
}
"""Of the class that both trainers are made from."""
_ONE_STEP_OFF = {
    "experimental/one_step_off_policy/ray_trainer.py": (
        "OneStepOffRayTrainer._async_gen_next_batch",
        "OneStepOffRayTrainer._create_continuous_iterator",
        "OneStepOffRayTrainer._fit_generate",
        "OneStepOffRayTrainer.fit",
        "OneStepOffRayTrainer.fit_step",
    ),
}
_FULLY_ASYNC = {
    "experimental/fully_async_policy/fully_async_trainer.py": (
        "FullyAsyncTrainer._compute_old_log_prob",
        "FullyAsyncTrainer._fit_generate",
        "FullyAsyncTrainer._fit_update_local_step",
        "FullyAsyncTrainer._fit_update_weights",
        "FullyAsyncTrainer._get_samples_from_queue",
        "FullyAsyncTrainer._save_checkpoint",
        "FullyAsyncTrainer._setup_checkpoint_manager",
        "FullyAsyncTrainer.fit",
        "FullyAsyncTrainer.fit_step",
        "FullyAsyncTrainer.init_workers",
        "FullyAsyncTrainer.load_checkpoint",
        "FullyAsyncTrainer.set_rollouter",
    ),
    "experimental/fully_async_policy/fully_async_rollouter.py": (
        "FullyAsyncAgentLoopManager.generate_sequences_single",
        "FullyAsyncRollouter._create_continuous_iterator",
        "FullyAsyncRollouter._feed_samples",
        "FullyAsyncRollouter._process_single_sample_streaming",
    ),
    "experimental/fully_async_policy/detach_utils.py": (
        "assemble_batch_from_rollout_samples",
        "prepare_single_generation_data",
    ),
}


def _part(name: str, functions: Mapping[str, tuple[str, ...]]) -> Package:
    return Package("verl", "verl", marker=_MARKER, control={**_SEPARATION, **functions}, part=name)


CODE = Code(
    framework="verl",
    home="batchbridge_verl",
    oldest=OLDEST_ENFORCED,
    packages=(
        Package(
            "verl",
            "verl",
            marker=_MARKER,
            control={
                "trainer/ppo/v1/trainer_base.py": (
                    "PPOTrainer._add_batch_to_generate",
                    "PPOTrainer._add_prompts_to_generate",
                    "PPOTrainer._balance_batch",
                    "PPOTrainer._compute_advantage",
                    "PPOTrainer._compute_old_log_prob",
                    "PPOTrainer._compute_ref_log_prob",
                    "PPOTrainer._compute_values",
                    "PPOTrainer._fetch_one_gen_batch",
                    "PPOTrainer._get_required_batch_multiple",
                    "PPOTrainer._init_dataloader",
                    "PPOTrainer._load_checkpoint",
                    "PPOTrainer._next_train_batch",
                    "PPOTrainer._save_checkpoint",
                    "PPOTrainer._setup",
                    "PPOTrainer._step_once",
                    "PPOTrainer._submit_batch_to_rollout",
                    "PPOTrainer._update_actor",
                    "PPOTrainer._update_critic",
                    "PPOTrainer.fit",
                    "PPOTrainer.init",
                    "PPOTrainer.step",
                ),
                "trainer/ppo/v1/trainer_sync.py": ("PPOTrainerSync.on_sample_end", "PPOTrainerSync.on_step_end"),
                "trainer/ppo/v1/trainer_colocate_async.py": (
                    "PPOTrainerColocateAsync.on_sample_end",
                    "PPOTrainerColocateAsync.on_step_end",
                    "PPOTrainerColocateAsync.on_train_begin",
                ),
                "trainer/ppo/v1/replay_buffer.py": (
                    "ReplayBuffer._materialize_batch",
                    "ReplayBuffer._select_prompt_uids",
                    "ReplayBuffer.sample",
                    "ReplayBufferAsync.sample",
                ),
                "trainer/ppo/ray_trainer.py": (
                    "RayPPOTrainer._balance_batch",
                    "RayPPOTrainer._compute_old_log_prob",
                    "RayPPOTrainer._compute_ref_log_prob",
                    "RayPPOTrainer._compute_values",
                    "RayPPOTrainer._get_gen_batch",
                    "RayPPOTrainer._load_checkpoint",
                    "RayPPOTrainer._save_checkpoint",
                    "RayPPOTrainer._update_actor",
                    "RayPPOTrainer._update_critic",
                    "RayPPOTrainer.fit",
                    "RayPPOTrainer.init_workers",
                    "apply_kl_penalty",
                    "compute_advantage",
                ),
                "trainer/ppo/padding_utils.py": ("upsample_batch_to_divisible_size",),
                "workers/engine_workers.py": (
                    "ActorRolloutRefWorker.init_model",
                    "ActorRolloutRefWorker.update_actor",
                    "TrainingWorker._postprocess_output",
                    "TrainingWorker.infer_batch",
                    "TrainingWorker.set_loss_fn",
                    "TrainingWorker.train_batch",
                    "TrainingWorker.train_mini_batch",
                ),
                "workers/engine/base.py": ("BaseEngine.train_batch",),
                "workers/engine/fsdp/transformer_impl.py": (
                    "FSDPEngine._build_lr_scheduler",
                    "FSDPEngine._gradient_sync_context",
                    "FSDPEngine.forward_backward_batch",
                    "FSDPEngine.load_checkpoint",
                    "FSDPEngine.lr_scheduler_step",
                    "FSDPEngine.optimizer_step",
                    "FSDPEngine.optimizer_zero_grad",
                    "FSDPEngine.save_checkpoint",
                ),
                "workers/engine/utils.py": ("postprocess_batch_func", "prepare_micro_batches"),
            },
            loss={
                "workers/utils/losses.py": ("ppo_loss", "value_loss"),
                "workers/engine/fsdp/transformer_impl.py": (
                    "FSDPEngineWithLMHead.forward_step",
                    "FSDPEngineWithLMHead.prepare_model_inputs",
                    "FSDPEngineWithLMHead.prepare_model_outputs",
                    "FSDPEngineWithValueHead.prepare_model_outputs",
                ),
                "trainer/ppo/core_algos.py": (
                    "agg_loss",
                    "compute_gae_advantage_return",
                    "compute_policy_loss_cispo",
                    "compute_policy_loss_dro",
                    "compute_policy_loss_gspo",
                    "compute_policy_loss_vanilla",
                    "compute_value_loss",
                    "kl_penalty",
                    "kl_penalty_forward",
                ),
            },
        ),
    ),
    parts=(_part(ONE_STEP_OFF, _ONE_STEP_OFF), _part(FULLY_ASYNC, _FULLY_ASYNC)),
)

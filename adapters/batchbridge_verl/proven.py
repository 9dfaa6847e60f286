"""The functions of verl that a wrapped trainer depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit import Code, Package
from batchbridge.kit.proven import methods
from batchbridge_verl.settings import OLDEST_ENFORCED

_MARKER = "version/version"
ONE_STEP_OFF, FULLY_ASYNC = "one_step_off", "fully_async"
"""The programs of verl.experimental whose trainers are observed; see `apart` and `queued`."""
COLOCATE_ASYNC = "colocate_async"
"""The mode of the V1 trainer whose replay buffer hands out groups of several versions of the weights."""


_SEPARATION = {
    "experimental/separation/ray_trainer.py": methods(
        "SeparateRayPPOTrainer",
        *("_fit_compute_log_prob", "_fit_update_actor", "_fit_update_weights", "_init_resource_pools", "init_workers"),
    ),
}
"""Methods of the class that both trainers are made from."""
_ONE_STEP_OFF = {
    "experimental/one_step_off_policy/ray_trainer.py": methods(
        "OneStepOffRayTrainer",
        *("_async_gen_next_batch", "_create_continuous_iterator", "_fit_generate", "fit", "fit_step"),
    ),
}
_FULLY_ASYNC = {
    "experimental/fully_async_policy/fully_async_trainer.py": methods(
        "FullyAsyncTrainer",
        *("_compute_old_log_prob", "_fit_generate", "_fit_update_local_step", "_fit_update_weights"),
        *("_get_samples_from_queue", "_save_checkpoint", "_setup_checkpoint_manager", "fit", "fit_step"),
        *("init_workers", "load_checkpoint", "set_rollouter"),
    ),
    "experimental/fully_async_policy/fully_async_rollouter.py": (
        *methods("FullyAsyncAgentLoopManager", "generate_sequences_single"),
        *methods(
            "FullyAsyncRollouter", "_create_continuous_iterator", "_feed_samples", "_process_single_sample_streaming"
        ),
    ),
    "experimental/fully_async_policy/detach_utils.py": (
        "assemble_batch_from_rollout_samples",
        "prepare_single_generation_data",
    ),
}


_COLOCATE_ASYNC = {
    "trainer/ppo/v1/trainer_colocate_async.py": methods(
        "PPOTrainerColocateAsync", "on_sample_end", "on_step_end", "on_train_begin"
    ),
    "trainer/ppo/v1/replay_buffer.py": methods("ReplayBufferAsync", "sample"),
}


def _part(name: str, functions: Mapping[str, tuple[str, ...]]) -> Package:
    return Package("verl", "verl", marker=_MARKER, control=functions, part=name)


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
                "trainer/ppo/v1/trainer_base.py": methods(
                    "PPOTrainer",
                    *("_add_batch_to_generate", "_add_prompts_to_generate", "_balance_batch", "_compute_advantage"),
                    *("_compute_old_log_prob", "_compute_ref_log_prob", "_compute_values", "_fetch_one_gen_batch"),
                    *("_get_required_batch_multiple", "_init_dataloader", "_load_checkpoint", "_next_train_batch"),
                    *("_save_checkpoint", "_setup", "_step_once", "_submit_batch_to_rollout", "_update_actor"),
                    *("_update_critic", "fit", "init", "step"),
                ),
                "trainer/ppo/v1/trainer_sync.py": ("PPOTrainerSync.on_sample_end", "PPOTrainerSync.on_step_end"),
                "trainer/ppo/v1/replay_buffer.py": methods(
                    "ReplayBuffer", "_materialize_batch", "_select_prompt_uids", "sample"
                ),
                "trainer/ppo/ray_trainer.py": (
                    *methods(
                        "RayPPOTrainer",
                        *("_balance_batch", "_compute_old_log_prob", "_compute_ref_log_prob", "_compute_values"),
                        *("_get_gen_batch", "_load_checkpoint", "_save_checkpoint", "_update_actor", "_update_critic"),
                        *("fit", "init_workers"),
                    ),
                    "apply_kl_penalty",
                    "compute_advantage",
                ),
                "trainer/ppo/padding_utils.py": ("upsample_batch_to_divisible_size",),
                "workers/engine_workers.py": (
                    *methods("ActorRolloutRefWorker", "init_model", "update_actor"),
                    *methods(
                        "TrainingWorker",
                        *("_postprocess_output", "infer_batch", "set_loss_fn", "train_batch", "train_mini_batch"),
                    ),
                ),
                "workers/fsdp_workers.py": methods(
                    "ActorRolloutRefWorker",
                    *("__init__", "_build_model_optimizer", "compute_log_prob", "compute_ref_log_prob", "init_model"),
                    *("load_checkpoint", "save_checkpoint", "update_actor"),
                ),
                "workers/actor/dp_actor.py": methods(
                    "DataParallelPPOActor", "__init__", "_optimizer_step", "compute_log_prob", "update_policy"
                ),
                "workers/engine/base.py": ("BaseEngine.train_batch",),
                "workers/engine/fsdp/transformer_impl.py": methods(
                    "FSDPEngine",
                    *("_build_lr_scheduler", "_gradient_sync_context", "forward_backward_batch", "load_checkpoint"),
                    *("lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "save_checkpoint"),
                ),
                "workers/engine/utils.py": ("postprocess_batch_func", "prepare_micro_batches"),
            },
            loss={
                "workers/utils/losses.py": ("ppo_loss", "value_loss"),
                "workers/actor/dp_actor.py": ("DataParallelPPOActor._forward_micro_batch",),
                "workers/engine/fsdp/transformer_impl.py": (
                    *methods("FSDPEngineWithLMHead", "forward_step", "prepare_model_inputs", "prepare_model_outputs"),
                    *methods("FSDPEngineWithValueHead", "prepare_model_outputs"),
                ),
                "trainer/ppo/core_algos.py": (
                    *("agg_loss", "compute_gae_advantage_return", "compute_policy_loss_cispo"),
                    *("compute_policy_loss_dro", "compute_policy_loss_gspo", "compute_policy_loss_vanilla"),
                    *("compute_value_loss", "kl_penalty", "kl_penalty_forward"),
                ),
            },
        ),
    ),
    parts=(
        _part(COLOCATE_ASYNC, _COLOCATE_ASYNC),
        _part(ONE_STEP_OFF, {**_SEPARATION, **_ONE_STEP_OFF}),
        _part(FULLY_ASYNC, {**_SEPARATION, **_FULLY_ASYNC}),
    ),
)

"""The functions of OpenRLHF and DeepSpeed that a wrapped trainer depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
from batchbridge.kit.proven import methods
from batchbridge_openrlhf.settings import OLDEST_ENFORCED

ASYNCHRONOUS = "asynchronous"
"""The feature of `train.async_enable`; see the module `asynchronous`."""
CODE = Code(
    framework="openrlhf",
    home="batchbridge_openrlhf",
    oldest=OLDEST_ENFORCED,
    packages=(
        Package(
            "openrlhf",
            "openrlhf",
            control={
                "trainer/ppo_trainer.py": (
                    *methods("BasePPOTrainer", "__init__", "init_checkpoint_states", "ppo_train"),
                    *methods("BasePPOTrainer", "save_logs_and_checkpoints", "train_step"),
                    *methods("PPOTrainer", "__init__", "fit"),
                ),
                "trainer/ppo_utils/samples_generator.py": (
                    *methods("SamplesGenerator", "_dispatch_prompts_to_vllm", "_generate_vllm"),
                    *methods("SamplesGenerator", "_process_response_into_experience", "generate_samples"),
                ),
                "trainer/ppo_utils/experience_maker.py": (
                    *methods("RemoteExperienceMaker", "compute_advantages_and_returns", "make_experience"),
                    *methods("RemoteExperienceMaker", "make_experience_batch", "split_rollout_samples"),
                ),
                "trainer/ppo_utils/experience.py": (
                    "Experience.concat_experiences",
                    "make_experience_batch",
                    "remove_padding_in_sequences",
                    "split_experience_batch",
                ),
                "trainer/ppo_utils/replay_buffer.py": (
                    *methods("NaiveReplayBuffer", "__getitem__", "__init__", "append", "clear", "collate_fn"),
                    *methods("NaiveReplayBuffer", "setup_dynamic_batch"),
                ),
                "trainer/ray/ppo_actor.py": (
                    *methods("ActorPPOTrainer", "ppo_train", "training_step"),
                    *methods("PolicyModelActor", "append", "fit", "save_checkpoint"),
                ),
                "trainer/ray/ppo_critic.py": (
                    *methods("CriticModelActor", "append", "fit", "save_checkpoint"),
                    *methods("CriticPPOTrainer", "ppo_train", "training_step"),
                ),
                "trainer/ray/launcher.py": (
                    "BaseModelActor.execute_batch",
                    "RayActorGroup.async_run_method_batch",
                ),
                "utils/deepspeed/deepspeed.py": (
                    *methods("DeepspeedStrategy", "backward", "load_ckpt", "optimizer_step", "save_ckpt"),
                    *methods("DeepspeedStrategy", "setup_dataloader", "setup_distributed", "setup_ring_attn"),
                ),
            },
            loss={
                "models/loss.py": ("PolicyLoss.forward", "ValueLoss.forward", "aggregate_loss"),
                "models/model.py": ("_get_critic_model",),
                "models/utils.py": ("compute_approx_kl", "log_probs_from_logits", "masked_mean"),
                "models/actor.py": ("Actor.forward",),
                "models/ring_attn_utils.py": (
                    "gather_and_pad_tensor",
                    "get_tensor_in_current_ring_attn_rank",
                    "unpad_and_slice_tensor",
                ),
                "trainer/ppo_utils/experience_maker.py": ("RemoteExperienceMaker.get_advantages_and_returns",),
                "utils/loss_utils.py": ("get_loss_batch_info",),
            },
        ),
        ENGINE,
    ),
    parts=(
        Package(
            "openrlhf",
            "openrlhf",
            control={
                "trainer/ppo_trainer.py": ("BasePPOTrainer.broadcast_to_vllm",),
                "trainer/ppo_trainer_async.py": (
                    *methods("GenerateSamplesActor", "__init__", "fit"),
                    *methods("PPOTrainerAsync", "__init__", "fit"),
                    *methods("TrainingActor", "__init__", "broadcast_to_vllm", "fit"),
                    *methods("VLLMLock", "acquire", "release"),
                ),
                "trainer/ray/ppo_actor.py": (
                    "ActorPPOTrainer.broadcast_to_vllm",
                    "PolicyModelActor.broadcast_to_vllm",
                ),
                "trainer/ray/vllm_engine.py": methods(
                    "RolloutRayActor", "generate_responses", "update_weight", "update_weight_cuda_ipc"
                ),
            },
            part=ASYNCHRONOUS,
        ),
    ),
)

"""The functions of OpenRLHF and DeepSpeed that a wrapped trainer depends on.

`proven.json` beside this file records them by release; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
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
                    "BasePPOTrainer.__init__",
                    "BasePPOTrainer.init_checkpoint_states",
                    "BasePPOTrainer.ppo_train",
                    "BasePPOTrainer.save_logs_and_checkpoints",
                    "BasePPOTrainer.train_step",
                    "PPOTrainer.__init__",
                    "PPOTrainer.fit",
                ),
                "trainer/ppo_utils/samples_generator.py": (
                    "SamplesGenerator._dispatch_prompts_to_vllm",
                    "SamplesGenerator._generate_vllm",
                    "SamplesGenerator._process_response_into_experience",
                    "SamplesGenerator.generate_samples",
                ),
                "trainer/ppo_utils/experience_maker.py": (
                    "RemoteExperienceMaker.compute_advantages_and_returns",
                    "RemoteExperienceMaker.make_experience",
                    "RemoteExperienceMaker.make_experience_batch",
                    "RemoteExperienceMaker.split_rollout_samples",
                ),
                "trainer/ppo_utils/experience.py": (
                    "Experience.concat_experiences",
                    "make_experience_batch",
                    "remove_padding_in_sequences",
                    "split_experience_batch",
                ),
                "trainer/ppo_utils/replay_buffer.py": (
                    "NaiveReplayBuffer.__getitem__",
                    "NaiveReplayBuffer.__init__",
                    "NaiveReplayBuffer.append",
                    "NaiveReplayBuffer.clear",
                    "NaiveReplayBuffer.collate_fn",
                    "NaiveReplayBuffer.setup_dynamic_batch",
                ),
                "trainer/ray/ppo_actor.py": (
                    "ActorPPOTrainer.ppo_train",
                    "ActorPPOTrainer.training_step",
                    "PolicyModelActor.append",
                    "PolicyModelActor.fit",
                    "PolicyModelActor.save_checkpoint",
                ),
                "trainer/ray/ppo_critic.py": (
                    "CriticModelActor.append",
                    "CriticModelActor.fit",
                    "CriticModelActor.save_checkpoint",
                    "CriticPPOTrainer.ppo_train",
                    "CriticPPOTrainer.training_step",
                ),
                "trainer/ray/launcher.py": (
                    "BaseModelActor.execute_batch",
                    "RayActorGroup.async_run_method_batch",
                ),
                "utils/deepspeed/deepspeed.py": (
                    "DeepspeedStrategy.backward",
                    "DeepspeedStrategy.load_ckpt",
                    "DeepspeedStrategy.optimizer_step",
                    "DeepspeedStrategy.save_ckpt",
                    "DeepspeedStrategy.setup_dataloader",
                    "DeepspeedStrategy.setup_distributed",
                    "DeepspeedStrategy.setup_ring_attn",
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
                    "GenerateSamplesActor.__init__",
                    "GenerateSamplesActor.fit",
                    "PPOTrainerAsync.__init__",
                    "PPOTrainerAsync.fit",
                    "TrainingActor.__init__",
                    "TrainingActor.broadcast_to_vllm",
                    "TrainingActor.fit",
                    "VLLMLock.acquire",
                    "VLLMLock.release",
                ),
                "trainer/ray/ppo_actor.py": (
                    "ActorPPOTrainer.broadcast_to_vllm",
                    "PolicyModelActor.broadcast_to_vllm",
                ),
                "trainer/ray/vllm_engine.py": (
                    "RolloutRayActor.generate_responses",
                    "RolloutRayActor.update_weight",
                    "RolloutRayActor.update_weight_cuda_ipc",
                ),
            },
            part=ASYNCHRONOUS,
        ),
    ),
)

"""Open-Instruct's GRPO and PPO scripts for BatchBridge."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

TELLS = DetectionFacts(
    programs={
        # grpo.py is a common name.
        r"\A((?!.*\.py$).*\n){0,3}((.*/)?(grpo_fast|(ppo|grpo)_vllm_thread_ray_gtrl|(.*/)?open_instruct/grpo)\.py"
        r"|open_instruct\.(grpo_fast|grpo|ppo_vllm_thread_ray_gtrl|grpo_vllm_thread_ray_gtrl))$": 0.99,
        r"\A((?!.*\.py$).*\n){0,3}.*\.py$": 0.0,
    },
    own=dict.fromkeys(
        (
            *("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_learners_per_node", "async_steps"),
            *("local_mini_batch_size", "local_rollout_batch_size", "actor_num_gpus_per_node"),
            *("number_samples_per_prompt", "advantage_normalization_type", "pack_length", "filter_zero_std_samples"),
        ),
        0.4,
    ),
    most=0.9,
    trainers=(
        ("open_instruct.grpo_fast", "PolicyTrainerRayProcess"),
        ("__main__", "PolicyTrainerRayProcess"),
        ("open_instruct.grpo_olmo_core_actor", "PolicyTrainerOLMoCoreProcess"),
    ),
)
"""The facts by which a configuration is known to be one of Open-Instruct's."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `open_instruct`, which is imported when it is needed."""
    return [AdapterEntry("open_instruct", "batchbridge_open_instruct.config:OpenInstructAdapter", TELLS)]

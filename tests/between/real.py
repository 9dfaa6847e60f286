"""Plain configurations as people start them, in each framework's own form; sizes as published scripts have them."""

from __future__ import annotations

from collections.abc import Mapping

DATASET = 7_680
"""Prompts: whole rollouts for every size below."""

RECIPE = """\
# GRPO on 8 devices: 64 completions of 8 prompts
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
num_generations: 8
max_completion_length: 1024
num_train_epochs: 1
learning_rate: 1.0e-06
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs:
  min_lr_rate: 0.1
warmup_ratio: 0.1
beta: 0.04
seed: 42
bf16: true
output_dir: data/run
reward_weights: [1.0, 0.5]
"""

SHELL: Mapping[str, str] = {
    "verl": """\
set -x
GPUS=${GPUS:-8}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.optim.lr_scheduler_type=cosine \\
    actor_rollout_ref.actor.optim.min_lr_ratio=0.1 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \\
    trainer.n_gpus_per_node=$GPUS \\
    trainer.experiment_name=grpo \\
    trainer.total_epochs=15 "$@"
""",
    "easyr1": """\
python3 -m verl.trainer.main \\
    data.rollout_batch_size=512 \\
    data.max_prompt_length=2048 \\
    data.max_response_length=2048 \\
    worker.actor.global_batch_size=128 \\
    worker.actor.micro_batch_size_per_device_for_update=4 \\
    worker.rollout.n=5 \\
    worker.actor.loss_avg_mode=token \\
    algorithm.kl_coef=1.0e-2 \\
    trainer.experiment_name=grpo \\
    trainer.n_gpus_per_node=8
""",
    "openrlhf": """\
python3 -m openrlhf.cli.train_ppo_ray \\
    --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
    --train.batch_size 128 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 \\
    --train.micro_batch_size 2 --rollout.micro_batch_size 4 \\
    --data.max_len 2048 --rollout.max_new_tokens 1024 \\
    --algo.advantage.estimator group_norm --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3 \\
    --actor.adam.lr 5e-7 --train.num_episodes 1 --ckpt.output_dir ckpt
""",
    "open_instruct": """\
python open_instruct/grpo_fast.py \\
    --num_unique_prompts_rollout 64 --num_samples_per_prompt_rollout 16 \\
    --num_learners_per_node 8 --async_steps 1 --pack_length 4096 \\
    --max_prompt_token_length 1024 --response_length 2048 \\
    --per_device_train_batch_size 1 --learning_rate 5e-7 --lr_scheduler_type constant \\
    --beta 0.01 --kl_estimator 2 --total_episodes 102400 --exp_name grpo
""",
}

VERSIONS: Mapping[str, str] = {
    "trl": "1.16.0",
    "open_r1": "0.18.0",
    "verl": "0.9.1",
    "easyr1": "0.3.3.dev0",
    "openrlhf": "0.11.2",
    "open_instruct": "2026.8.20",
}


def text_of(framework: str) -> str:
    """The configuration of `framework`: a recipe for TRL and Open-R1, a launch script elsewhere."""
    if framework == "trl":
        return RECIPE.replace("warmup_ratio", "warmup_steps")  # transformers 5 takes a share there
    if framework == "open_r1":
        return RECIPE + "max_prompt_length: 512\ndataset_name: open-r1/OpenR1-Math-220k\n"
    return SHELL[framework]


def name_of(framework: str) -> str:
    """A file name for it."""
    return "recipe.yaml" if framework in ("trl", "open_r1") else "run.sh"

"""What is mutated: small configurations of every framework, and this repository's own fixtures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from batchbridge.kit.config_texts import as_groups

TESTS = Path(__file__).parents[1]

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "trl": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_generations": 8,
        "num_iterations": 2,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "beta": 0.04,
        "epsilon": 0.2,
        "learning_rate": 1e-6,
        "num_train_epochs": 2,
        "max_completion_length": 256,
        "seed": 1,
    },
    "open_r1": {
        "model_name_or_path": "m",
        "dataset_name": "d",
        "system_prompt": "Think in <think>",
        "reward_funcs": ["accuracy", "format"],
        "reward_weights": [1.0, 1.0],
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 16,
        "max_completion_length": 2048,
        "num_train_epochs": 1,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "learning_rate": 2e-5,
        "use_vllm": True,
    },
    "verl": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "data.train_batch_size": 64,
        "data.max_prompt_length": 512,
        "data.max_response_length": "${data.max_prompt_length}",
        f"{_ROLLOUT}name": "vllm",
        f"{_ROLLOUT}n": 4,
        f"{_ACTOR}ppo_mini_batch_size": 16,
        f"{_ACTOR}ppo_micro_batch_size_per_gpu": 2,
        f"{_ACTOR}loss_agg_mode": "token-mean",
        f"{_ACTOR}use_kl_loss": True,
        f"{_ACTOR}optim.lr": "1e-6",
        f"{_ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2,
        "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": 1,
        "trainer.total_epochs": 15,
    },
    "easyr1": {
        "data.rollout_batch_size": 512,
        "data.max_response_length": 2048,
        "worker.actor.global_batch_size": 128,
        "worker.actor.micro_batch_size_per_device_for_update": 4,
        "worker.actor.micro_batch_size_per_device_for_experience": 16,
        "worker.actor.optim.lr": 1e-6,
        "worker.actor.fsdp.enable_cpu_offload": False,
        "worker.rollout.n": 5,
        "worker.rollout.tensor_parallel_size": 2,
        "algorithm.adv_estimator": "grpo",
        "algorithm.kl_coef": 1e-2,
        "trainer.n_gpus_per_node": 8,
        "trainer.max_steps": 100,
    },
    "openrlhf": {
        "train.batch_size": 128,
        "train.micro_batch_size": 2,
        "train.max_epochs": 1,
        "train.num_episodes": 2,
        "rollout.batch_size": 256,
        "rollout.n_samples_per_prompt": 8,
        "rollout.micro_batch_size": 4,
        "rollout.max_new_tokens": 1024,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 8,
        "actor.adam.lr": "5e-7",
        "algo.kl.init_coef": "1e-3",
        "algo.kl.estimator": "k2",
        "algo.advantage.estimator": "group_norm",
        "ds.zero_stage": 3,
    },
    "openrlhf_flat": {
        "train_batch_size": 128,
        "micro_train_batch_size": 2,
        "max_epochs": 1,
        "num_episodes": 2,
        "rollout_batch_size": 256,
        "n_samples_per_prompt": 8,
        "micro_rollout_batch_size": 4,
        "generate_max_len": 1024,
        "actor_num_nodes": 1,
        "actor_num_gpus_per_node": 8,
        "actor_learning_rate": "5e-7",
        "init_kl_coef": "1e-3",
        "kl_estimator": "k2",
        "advantage_estimator": "group_norm",
        "zero_stage": 3,
    },
    "open_instruct_ppo": {
        "beta": 0.05,
        "learning_rate": "3e-7",
        "total_episodes": 100000,
        "per_device_train_batch_size": 2,
        "local_rollout_batch_size": 32,
        "local_mini_batch_size": 32,
        "local_rollout_forward_batch_size": 32,
        "actor_num_gpus_per_node": [8],
        "number_samples_per_prompt": 1,
        "num_epochs": 4,
        "seed": 3,
    },
    "open_instruct": {
        "num_unique_prompts_rollout": 32,
        "num_samples_per_prompt_rollout": 8,
        "num_mini_batches": 2,
        "num_epochs": 1,
        "per_device_train_batch_size": 1,
        "num_learners_per_node": [8],
        "pack_length": 4096,
        "response_length": 2048,
        "beta": 0.01,
        "total_episodes": 10000,
        "learning_rate": 1e-6,
        "loss_denominator": "token",
        "seed": 1,
    },
}
"""Small runs in each framework's own keys: sizes, and what the objective and the clock read. By dialect."""

FRAMEWORK = {dialect: dialect.removesuffix("_flat").removesuffix("_ppo") for dialect in SETTINGS}
"""Whose dialect it is."""

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "trl": ("1.16.0", "1.12.0", "1.9.1", "0.24.0", "0.18.0", "0.15.0"),
    "open_r1": ("1.16.0", "1.9.1", "0.18.0"),
    "verl": ("0.9.1", "0.8.0", "0.7.0", "0.5.0", "0.4.0"),
    "easyr1": ("0.3.3.dev0", "0.3.2", "0.3.0"),
    "openrlhf": ("0.11.2", "0.10.4", "0.10.2"),
    "openrlhf_flat": ("0.10.1", "0.9.0", "0.8.0"),
    "open_instruct": ("2026.8.20", "2026.3.1", "2026.1.26"),
    "open_instruct_ppo": ("2025.11.3", "2024.11.20"),
}

_PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "trl": ("accelerate", "launch", "--num_processes", "8", "grpo.py"),
    "open_r1": ("accelerate", "launch", "--num_processes=8", "src/open_r1/grpo.py"),
    "verl": ("python3", "-m", "verl.trainer.main_ppo"),
    "easyr1": ("python3", "-m", "verl.trainer.main", "config=examples/config.yaml"),
    "openrlhf": ("ray", "job", "submit", "--", "python3", "-m", "openrlhf.cli.train_ppo_ray"),
    "openrlhf_flat": ("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    "open_instruct": ("python", "open_instruct/grpo_fast.py"),
    "open_instruct_ppo": ("python", "open_instruct/ppo_vllm_thread_ray_gtrl.py"),
}

_HYDRA = ("verl", "easyr1")


def command(dialect: str) -> list[str]:
    """The launch command that says the settings."""
    argv = list(_PROGRAMS[dialect])
    for key, value in SETTINGS[dialect].items():
        if dialect in _HYDRA:
            argv.append(f"{key}={value}")
        elif isinstance(value, list):
            argv += [f"--{key}", *map(str, value)]
        else:
            argv += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return argv


@cache
def yaml_texts(framework: str) -> tuple[str, ...]:
    """The settings as YAML: nested, and with an anchor, a comment and a flow mapping."""
    values = as_groups(SETTINGS[framework]) if framework in _HYDRA else dict(SETTINGS[framework])
    plain = yaml.safe_dump(values, sort_keys=False)
    marked = "base: &base {a: 1, b: [1, 2]}\nother:\n  <<: *base\n" + plain.replace("\n", "  # said here\n", 1)
    return plain, plain, marked, yaml.safe_dump(values, default_flow_style=True)


@cache
def commands(framework: str) -> tuple[tuple[str, ...], ...]:
    """The settings as a command, and published commands where they are fixtures of ours."""
    own = tuple(command(framework))
    folder = TESTS / "adapters" / framework  # the fixtures of a framework's newest dialect
    found = [own, own, own, own]
    for name in ("commands.json", "launch_commands.json"):
        if (folder / name).is_file():
            listed = json.loads((folder / name).read_text(encoding="utf-8"))
            rows = [row["argv"] for row in listed.values()] if isinstance(listed, dict) else listed
            found.append(tuple(min(rows, key=len)))
    return tuple(found)


@cache
def scripts(dialect: str | None) -> tuple[str, ...]:
    """The bash reader's own fixtures; for a dialect its command with variables, an array and a function."""
    if dialect is not None:
        return tuple(_scripts_of(dialect))
    return tuple(path.read_text(encoding="utf-8") for path in sorted((TESTS / "core" / "scripts").glob("*.sh")))


def _scripts_of(framework: str) -> Sequence[str]:
    argv = command(framework)
    at = len(_PROGRAMS[framework])
    program, settings = shlex.join(argv[:at]), argv[at:]
    lines = " \\\n    ".join(shlex.quote(word) for word in settings)
    return (
        f'#!/bin/bash\nset -x\nN=${{N:-8}}\nSIZE=$((N * 4))\n{program} \\\n    {lines} "$@"\n',
        f'args=(\n  {lines.replace(" " + chr(92), "")}\n)\nrun() {{ {program} "${{args[@]}}" $1; }}\nrun "$EXTRA"\n',
    )


DOCTOR = (
    'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n',
    "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m AssertionError: only support equal chunk. Got size of\n"
    "(TaskRunner pid=123) DataProto 512 and chunk 6.\n",
    "ValueError: The global train batch size (7 x 1) must be evenly divisible by the number of generations per prompt "
    "(8). Given the current train batch size, the valid values for the number of generations are: [7].",
    "The effective train batch size (1 x 1 x 4) must be evenly divisible by the number of generations per prompt (8).",
    "generation_batch_size (12) must be divisible by num_generations (8).",
    "normalized ppo_mini_batch_size 20 should be divisible by ppo_micro_batch_size_per_gpu 8",
    "real_train_batch_size (20) must be divisible by minimal possible batch size (8)",
    "rollout world_size: 1 is not divisible by infer_tp: 2",
    "len(batch_lst) (14) != chunks (15)",
    "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7",
    "Gradient accumulation steps: 0 has to be greater than 0",
    "data batch size must be divisible by mini_batch_size, got 1032 and 512",
    "We will change the batch size of 1 to the `num_generations` of 8",
    "ZeroDivisionError: integer division or modulo by zero",
)
"""Error texts; the fragments are facts of the adapters' `error_texts`."""

OVERRIDES = (
    "data.train_batch_size=64",
    "+trainer.extra=[1, 2, {a: b}]",
    "++actor_rollout_ref.actor.optim.lr=1e-6",
    "~trainer.logger",
    "trainer.logger=['console','wandb']",
    'trainer.name="a b\\"c"',
    'data.path="${data.root}/x"',
    "a=${oc.env:HOME}",
    "a={b: {c: [true, null, 0x1, 1_0, .5, inf]}}",
    "a=x:y/z@w%20-v",
)

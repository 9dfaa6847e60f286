"""Random configurations of EasyR1, about half of them legal: settings by dotted key, and the prompts of the dataset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

ACTOR, ROLLOUT, CRITIC = "worker.actor.", "worker.rollout.", "worker.critic."
VERSIONS = ("0.3.0", "0.3.1", "0.3.2", "0.3.3.dev0")


def configurations(version: str, seed: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Endless; the same for the same seed. Rollouts stay below some 1,500 completions: the real code moves them."""
    draw = random.Random(f"{version} {seed}")
    age = VERSIONS.index(version)
    while True:
        nodes, gpus = draw.choice(
            [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 8), (1, 8), (2, 8), (3, 4), (4, 8)]
        )
        world, ulysses = nodes * gpus, draw.choice([1, 1, 1, 1, 1, 2, 2, 3, 4])
        replicas = max(world // ulysses, 1)
        group = draw.choice([1, 2, 2, 3, 4, 4, 5, 6, 8])
        batch = draw.choice([replicas, world, 2 * replicas, draw.randint(1, 24), draw.randint(1, 24)])
        prompts = batch * draw.randint(1, 4) if draw.random() < 0.9 else draw.randint(1, 64)
        if draw.random() < 0.4:
            prompts = -(-prompts // world) * world
        if prompts * group > 1500:
            continue
        share = max(batch * group // replicas, 1)
        micro = draw.choice([1, 1, 1, share, draw.choice(_divisors(share)), draw.randint(1, 6)])
        forward = draw.choice(
            [1, 1, draw.choice(_divisors(prompts * group)), draw.choice(_divisors(prompts * group // world or 1))]
        )
        settings: dict[str, Any] = {
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": gpus,
            "data.rollout_batch_size": prompts,
            f"{ACTOR}global_batch_size": batch,
            f"{ACTOR}micro_batch_size_per_device_for_update": micro,
            f"{ACTOR}micro_batch_size_per_device_for_experience": forward,
            f"{ACTOR}ulysses_size" if age else f"{ACTOR}ulysses_sequence_parallel_size": ulysses,
            f"{ROLLOUT}n": group,
            f"{ROLLOUT}tensor_parallel_size": draw.choice([1] * 9 + [2, 3]),
            "trainer.total_epochs" if age else "trainer.total_episodes": draw.randint(1, 4),
            f"{ACTOR}ppo_epochs": draw.choice([1, 1, 1, 2, 3]),
        }
        rare: list[tuple[float, str, list[Any], int]] = [
            # how often, key, values, the first of VERSIONS that has it
            (0.5, f"{ACTOR}dynamic_batching", [True, False, False], 2),
            (0.2, "data.mini_rollout_batch_size", [prompts, max(prompts // 2, 1), world, draw.randint(1, 80), 1], 1),
            (0.1, "trainer.max_try_make_batch", [1, 2, -1, 0, 100], 1),
            (0.15, "trainer.max_steps", [None, 1, 7], 0),
            (
                0.3,
                "algorithm.adv_estimator",
                ["rloo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus", "gae", "mine"],
                0,
            ),
            (0.03, "algorithm.adv_estimator", ["grpo_passk"], 0),
            (0.1, f"{CRITIC}global_batch_size", [batch, prompts, 7], 0),
            (0.1, f"{CRITIC}micro_batch_size_per_device_for_experience", [1, 3], 0),
            (0.06, f"{ACTOR}fsdp.enable_cpu_offload", [True], 0),
            (0.3, "algorithm.disable_kl", [True, False], 0),
            (0.4, "algorithm.use_kl_loss", [True, False], 0),
            (0.3, "algorithm.kl_penalty", ["kl", "abs", "mse", "low_var_kl", "full", "k9"], 0),
            (0.06, "algorithm.kl_type", ["adaptive", "none"], 0),
            (0.04, "algorithm.kl_horizon", [0.0, 100.0], 0),
            (0.2, f"{ACTOR}loss_avg_mode", ["token", "seq", "seq", "mean"], 1),
            (0.2, f"{ACTOR}loss_type", ["default", "gspo", "gspo_token", "cispo", "sapo", "ppo"], 3),
            (0.06, f"{ACTOR}optim.strategy", ["adamw_bf16", "sgd"], 0),
            (0.1, f"{ACTOR}optim.lr_scheduler_type", ["constant", "cosine", "linear"], 3),
            (0.06, "data.max_response_length", [7680, 7681, 20_000], 0),
            (0.05, f"{ROLLOUT}max_num_batched_tokens", [1023, 1024], 0),
            (0.03, f"{ACTOR}kl_coef", [0.5], 0),
            (0.03, f"{ACTOR}loss_type", ["gspo"], 0),
            (0.02, "data.system_prompt", ["x"], 0),
        ]
        for often, key, values, since in rare:
            if draw.random() < often and since <= age:
                settings[key] = draw.choice(values)
        dataset = draw.choice([1000, 1000, 1000, prompts, prompts * 3 + draw.randint(0, 5), draw.randint(1, 99)])
        yield settings, dataset


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]

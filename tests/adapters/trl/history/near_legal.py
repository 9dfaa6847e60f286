"""Random sizes, mostly near legal ones: what the comparisons with TRL's own construction draw from."""

from __future__ import annotations

import random


def sizes(rng: random.Random) -> tuple[dict[str, object], int]:
    """Settings of small divisors, now and then zero, negative, or both exclusive keys; and the processes."""

    def small() -> int:
        return rng.choice([1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, rng.randint(1, 64)])

    def odd(value: int) -> int:
        return rng.choice([0, -1, -value]) if rng.random() < 0.03 else value

    micro = odd(small())
    settings: dict[str, object] = {"per_device_train_batch_size": micro}
    world = small()
    if rng.random() < 0.9:
        settings["num_generations"] = odd(rng.choice([1, 2, 2, 3, 4, 4, 6, 8, 8, 14, 16]))
    if rng.random() < 0.7:
        settings["gradient_accumulation_steps"] = odd(small())
    if rng.random() < 0.25:
        settings["steps_per_generation"] = odd(small())
    if rng.random() < 0.3:
        whole = micro * world * small()
        settings["generation_batch_size"] = odd(rng.choice([whole, whole, whole + 1, small() * 8]))
    if rng.random() < 0.2:
        settings |= {"eval_strategy": rng.choice(["no", "steps", "epoch"]), "eval_steps": 10}
        settings["per_device_eval_batch_size"] = small()
        if rng.random() < 0.5:
            settings["num_generations_eval"] = rng.choice([0, 1, 2, 3, 8])
    return settings, world

"""One number under the name that each framework's users call the batch size by: what an optimizer step then trains on.

Its own file: the page and the picture of README share it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from batchbridge.reading.read import read


class SameNumber(NamedTuple):
    """A framework with the number. title: with its version. setting: the native key, counts: what it counts.
    completions: that one optimizer step trains on, None where that is not said. reason: why such a run is not valid,
    empty where it is."""

    title: str
    setting: str
    counts: str
    completions: int | None
    reason: str = ""


def settings(number: int, group: int, devices: int) -> dict[str, tuple[str, str, str, dict[str, Any]]]:
    """Title -> framework, version, what the number counts, and a configuration whose first setting has the number;
    group: completions per prompt."""
    micro = "actor_rollout_ref.{}_micro_batch_size_per_gpu"
    verl = {
        "data.train_batch_size": number,
        "actor_rollout_ref.actor.ppo_mini_batch_size": number,
        "actor_rollout_ref.rollout.n": group,
        "trainer.n_gpus_per_node": devices,
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.name": "vllm",
        **{micro.format(place): 8 for place in ("actor.ppo", "rollout.log_prob", "ref.log_prob")},
    }
    easyr1 = {
        "worker.actor.global_batch_size": number,
        "data.rollout_batch_size": number,
        "worker.rollout.n": group,
        "trainer.n_gpus_per_node": devices,
    }
    openrlhf = {
        "train.batch_size": number,
        "rollout.n_samples_per_prompt": group,
        "actor.num_gpus_per_node": devices,
    }
    open_instruct = {
        "num_unique_prompts_rollout": number,
        "num_samples_per_prompt_rollout": group,
        "num_learners_per_node": [devices],
    }
    trl = {"per_device_train_batch_size": number, "num_generations": group}
    return {
        "TRL 1.16": ("trl", "1.16.0", "completions on each GPU", trl),
        "verl 0.9.1": ("verl", "0.9.1", "prompts", verl),
        "EasyR1 0.3.2": ("easyr1", "0.3.2", "prompts", easyr1),
        "OpenRLHF 0.11.2": ("openrlhf", "0.11.2", "completions", openrlhf),
        "Open-Instruct": ("open_instruct", "2026.8.20", "prompts", open_instruct),
    }


def same_number(number: int, group: int, devices: int) -> list[SameNumber]:
    """The number in every framework, as its adapter reads it."""
    found = []
    for title, (framework, version, counts, said) in settings(number, group, devices).items():
        reading = read(said, framework=framework, version=version, world_size=devices)
        setting = next(iter(said)).rpartition(".")[2]
        size = None if reading.spec is None else reading.spec.optimizer_step.completions_per_step
        reason = reading.wrong[0].message if reading.wrong else ""
        found.append(SameNumber(title, setting, counts, size, reason))
    return found

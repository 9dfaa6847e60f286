"""verl's PPO trainer for BatchBridge. Importing this module imports neither verl nor anything else that takes time."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

ENTRIES: Mapping[str, str] = {
    "verl.trainer.main_ppo": "main_ppo",
    "verl.trainer.main_ppo_sync": "main_ppo_sync",
    "verl.experimental.one_step_off_policy.main_ppo": "one_step_off",
    "recipe.one_step_off_policy.main_ppo": "one_step_off",
    "verl.experimental.fully_async_policy.fully_async_main": "fully_async",
}
"""Modules that start the trainers read here. Source: verl 0.4.0 to 0.9.1."""

CONFIGS: Mapping[str, str | None] = {
    # shipped configuration -> its engine (None: the default one, or as model_engine says)
    "ppo_trainer": None,
    "ppo_megatron_trainer": "megatron",
    "one_step_off_ppo_trainer": None,
    "one_step_off_ppo_megatron_trainer": "megatron",
    "fully_async_ppo_trainer": None,
    "fully_async_ppo_megatron_trainer": "megatron",
}
_FINE_TUNES = "is supervised fine-tuning, which has no rollouts: no batch rule of PPO speaks of it"
OTHERS: Mapping[str, str] = {
    "verl.trainer.sft_trainer": _FINE_TUNES,
    "verl.trainer.fsdp_sft_trainer": _FINE_TUNES,
    "verl.trainer.main_generation": "generates, and trains nothing",
    "verl.trainer.main_eval": "evaluates, and trains nothing",
    "verl.model_merger": "merges checkpoints, and trains nothing",
}
UNREAD: Mapping[str, str] = {
    "recipe.fully_async_policy": "trains while it generates, with sizes of its own, and is in no release",
    "verl.experimental.vla": "trains robots' models with a trainer of its own, and is not read",
}
"""Beginnings of verl's other programs. Source: verl 0.4.0 to 0.9.1, and upstream 1dda039."""
_NOT_READ = "|".join((*OTHERS, *UNREAD))
TELLS = DetectionFacts(
    programs={
        rf"^([^=\n]*[./])?({'|'.join(entry.replace('.', '[./]') for entry in ENTRIES)})": 1.0,
        rf"^-m\n({_NOT_READ})|^[./]*({_NOT_READ.replace('.', '/')})[^=\n]*\.py$": 0.4,
    },
    own={
        "actor_rollout_ref": 0.9,
        "data.train_batch_size": 0.4,
        **{f"defaults.{name}": 0.5 for name in CONFIGS},
    },
    most=0.97,  # actor_rollout_ref is nobody else's; groups of a whole configuration have keys that others have, too
    # V0 and V1; EasyR1's stands in verl.trainer.ray_trainer.
    trainers=(("verl.trainer.ppo.ray_trainer", "RayPPOTrainer"), ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer")),
    functions={"verl.trainer.main_ppo.run_ppo": "verl.trainer.main_ppo"},
    machine={"trainer.nnodes": "--nodes", "trainer.n_gpus_per_node": "--gpus"},
)
"""The facts by which a configuration is known to be one of verl's."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `verl`, which is imported when it is needed."""
    return [AdapterEntry("verl", "batchbridge_verl.config:VerlAdapter", TELLS)]

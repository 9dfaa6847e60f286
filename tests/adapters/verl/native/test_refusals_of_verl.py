"""A refusal that settings decide says the same of a command, as `check` reads it, and of the configuration that Hydra
composes of it, as `wrap` reads it off a trainer."""

from __future__ import annotations

import random
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from batchbridge import Reading
from batchbridge.kit import Request
from batchbridge.meaning.candidates import plan_of
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_verl import runtime
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import package_folder

VERSION, PROMPTS = metadata.version("verl"), 1024
ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "algorithm.rollout_correction."
BASE = {
    "data.train_batch_size": 256,
    f"{ACTOR}ppo_mini_batch_size": 64,
    f"{ROLLOUT}n": 8,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 4,
    "critic.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}name": "vllm",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 3,
}
DRAWN = {
    "algorithm.adv_estimator": ("grpo", "gae", "rloo"),
    "critic.strategy": ("fsdp", "fsdp2"),
    f"+{CORRECTION}rollout_is": ("token", "null"),
    f"+{CORRECTION}rollout_rs": ("token_k1", "null"),
    f"+{CORRECTION}bypass_mode": ("true", "false"),
    f"{ROLLOUT}calculate_log_probs": ("true", "false"),
    "trainer.critic_warmup": ("0", "2"),
    "trainer.v1.sampler.sync_refill_failed_groups": ("true", "false"),
    f"{ACTOR}policy_loss.loss_mode": ("vanilla", "gspo", "geo_mean", "dro"),
    f"{ACTOR}use_kl_loss": ("true", "false"),
    f"{ACTOR}loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
}
TRAINER = type("PPOTrainer", (SimpleNamespace,), {"__module__": "verl.trainer.ppo.v1.trainer_base"})
pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other


def request_of(reading: Reading) -> Request | None:
    if reading.spec is None:
        return None
    return Request(spec=reading.spec, plan=plan_of(reading.spec, PROMPTS), reading=reading, mode="enforce")


def test_a_refusal_of_settings_says_the_same_of_a_command_and_of_a_trainer() -> None:
    rows = [row for row in runtime.REFUSALS if row.live is None]
    adapter, met, compared = VerlAdapter(), set[str](), 0
    with initialize_config_dir(str(package_folder(VERSION) / "trainer" / "config"), version_base=None):
        known = compose("ppo_trainer")
        for seed in range(24):
            draw = random.Random(seed)
            drawn = {key: draw.choice(values) for key, values in DRAWN.items() if draw.random() < 0.5}
            words = [f"{_said(key, known)}={value}" for key, value in {**BASE, **drawn}.items()]
            trainer = TRAINER(config=compose("ppo_trainer", overrides=words), train_dataset=range(PROMPTS))
            source, context = runtime.source_of(trainer)
            command = load_source(["python3", "-m", "verl.trainer.main_ppo", *words])
            told = request_of(read_source(command, adapter, context))
            own = request_of(read_source(source, adapter, context))
            assert (told is None) is (own is None), words
            if told is None or own is None:
                continue
            compared += 1
            says = {row.name: row.foreseen(own) for row in rows}
            assert {row.name: row.foreseen(told) for row in rows} == says, words
            met |= {name for name, applies in says.items() if applies}
    assert compared >= 12
    assert met >= {"rejection", "sampler_correction", "bypass_mode", "surrogate", "critic_warmup"}, met


def _said(key: str, known: Any) -> str:
    """A key as Hydra takes it: with a plus where its configuration does not have it."""
    from omegaconf import OmegaConf

    plain, absent = key.removeprefix("+"), object()
    return plain if OmegaConf.select(known, key.removeprefix("+"), default=absent) is not absent else f"+{plain}"

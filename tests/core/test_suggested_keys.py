"""Suggestions come from meanings and from slips of the pen, never from looks across units."""

from __future__ import annotations

import random

import pytest

import batchbridge
from batchbridge.contract import plugins
from batchbridge.kit.suggested_keys import is_slip, suggested_keys

VALID = {
    "trl": ("1.16.0", {"num_generations": 8, "per_device_train_batch_size": 8, "max_completion_length": 64}),
    "verl": (
        "0.9.1",
        {
            "data.train_batch_size": 64,
            "actor_rollout_ref.rollout.n": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
            "actor_rollout_ref.rollout.name": "vllm",
        },
    ),
    "easyr1": ("0.3.2", {"data.rollout_batch_size": 64, "worker.rollout.n": 4, "worker.actor.global_batch_size": 32}),
}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("num_generation", "num_generations"),
        ("max_prompt_lenght", "max_prompt_length"),
        ("kl_coef", "beta"),
        ("group_size", "num_generations"),
        ("max_response_length", "max_completion_length"),
    ],
)
def test_a_slip_and_another_word_are_answered(wrong: str, right: str) -> None:
    known = ["beta", "num_generations", "max_completion_length", "max_prompt_length", "learning_rate"]
    assert suggested_keys([wrong], known, 0.6)[wrong] == [right]


@pytest.mark.parametrize(
    ("wrong", "alike"),
    [
        ("num_iterations", "num_generations"),
        ("data.gen_batch_size", "data.train_batch_size"),
        ("data.gen_batch_size", "data.image_patch_size"),
        ("warmup_style", "lr_warmup_steps"),
        ("local_mini_batch_size", "num_mini_batches"),
        ("eval_dataset_names", "dataset_name"),
        ("max_prompt_length", "max_completion_length"),
    ],
)
def test_what_only_looks_alike_is_no_suggestion(wrong: str, alike: str) -> None:
    assert suggested_keys([wrong], [alike], 0.1)[wrong] == []
    assert not is_slip(wrong, alike)


def test_a_setting_that_is_said_already_is_not_overwritten() -> None:
    assert suggested_keys(["kl_coef"], ["beta"], 0.6, taken=["beta"]) == {"kl_coef": []}


@pytest.mark.parametrize("framework", VALID)
def test_every_suggested_key_exists_and_its_fix_breaks_nothing_else(framework: str) -> None:
    """Over 60 random slips: the fix is tried, the finding is gone, and no other error has come."""
    version, valid = VALID[framework]
    chance = random.Random(40)
    offered = 0
    for _ in range(60):
        key = chance.choice(list(valid))
        place = chance.randrange(len(key) - 6, len(key))
        wrong = key[:place] + key[place + 1 :]
        if wrong in valid:
            continue
        config = {**{name: value for name, value in valid.items() if name != key}, wrong: valid[key]}
        before = batchbridge.read(config, framework=framework, version=version, world_size=8)
        for finding in before.findings:
            for fix in finding.fixes:
                written = {name for name, value in fix.changes.items() if value is not None}
                if wrong not in fix.changes or not written:
                    continue
                offered += 1
                assert written <= set(before.native) | set(plugins.adapters()[framework].shared_settings()), fix
                fixed = {name: value for name, value in {**config, **fix.changes}.items() if value is not None}
                after = batchbridge.read(fixed, framework=framework, version=version, world_size=8)
                errors = {one.code for one in after.findings if one.severity == "error"}
                assert errors <= {one.code for one in before.findings if one.severity == "error"} - {finding.code}, fix
    assert offered > 20

"""`check --native` with verl's real validator."""

from importlib import metadata

from batchbridge import read
from batchbridge.contract import plugins
from batchbridge.native_check import native_findings

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    f"{ACTOR}ppo_mini_batch_size": 16,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
}


def said(values):
    settings = {key: value for key, value in {**RUN, **values}.items() if value is not None}
    reading = read(settings, framework="verl", version=metadata.version("verl"))
    return native_findings(plugins.adapters()["verl"], reading)


def errors(values):
    return [one.message for one in said(values) if one.severity == "error"]


def test_a_legal_run_has_no_error():
    assert errors({}) == []


def test_the_validator_says_what_the_retired_rules_said():
    (rollout,) = errors({f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": None})
    assert "[actor_rollout_ref.rollout] Please set at least one of" in rollout
    (reference,) = errors({f"{ACTOR}use_kl_loss": True})
    assert "[actor_rollout_ref.ref] Please set at least one of" in reference


def test_code_of_the_user_is_left_out_and_that_is_said():
    found = said({"actor_rollout_ref.model.external_lib": "of_the_user"})
    assert not [one for one in found if one.severity == "error"]

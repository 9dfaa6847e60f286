"""verl's rules and silent effects, by version; reported cases come out as reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchbridge.contract.reading import Context
from batchbridge.meaning.findings import verdict
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge.rules import core_rules
from batchbridge_history import verl as history
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.rules import RULES

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "data.seed": 1,
    "data.dataloader_num_workers": 0,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}ppo_mini_batch_size": 64,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
}
MEGATRON = {"model_engine": "megatron"}
CORRECTION = "algorithm.rollout_correction."
BYPASS = {f"{CORRECTION}bypass_mode": True}
CRITIC = {"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 2}
GROUPER = {f"{ACTOR}use_prefix_grouper": True}
UNEVEN = {"data.train_batch_size": 36, f"{ACTOR}ppo_mini_batch_size": 36, f"{ACTOR}ppo_micro_batch_size_per_gpu": 1}
"""36 groups on 8 replicas."""
NO_MICRO = "BB-VERL-013"
WORKERS, FORWARD = f"{ROLLOUT}agent.num_workers", f"{ROLLOUT}log_prob_micro_batch_size"
REMOVE_PADDING = "actor_rollout_ref.model.use_remove_padding"
REFERENCE_FORWARD = "actor_rollout_ref.ref.log_prob_micro_batch_size"
PER_GPU = f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"


def judge(values, *, version="0.9.1", world=None, prompts=None):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return read_source(load_source({**RUN, **values}), VerlAdapter(), context).findings


def codes(values, **said):
    return [finding.code for finding in judge(values, **said)]


def test_a_plain_run_of_the_newest_version_has_no_finding():
    assert codes({}) == []


SCORED = {"reward.reward_model.enable": True}
CASES = [
    # (setting, version, code)
    ({"data.train_batch_size": 63}, "0.9.1", "BB-VERL-004"),
    ({"data.train_batch_size": 32}, "0.9.1", "BB-VERL-012"),
    ({"data.train_batch_size": 32}, "0.4.0", "BB-VERL-012"),
    ({f"{ACTOR}ppo_micro_batch_size_per_gpu": None}, "0.9.1", "BB-VERL-013"),
    ({f"{ACTOR}ppo_micro_batch_size": 8}, "0.9.1", "BB-VERL-014"),
    ({f"{ACTOR}ppo_micro_batch_size": 7, f"{ACTOR}ppo_micro_batch_size_per_gpu": None}, "0.7.1", "BB-VERL-015"),
    ({f"{ACTOR}ulysses_sequence_parallel_size": 3}, "0.9.1", "BB-VERL-017"),
    ({f"{ROLLOUT}tensor_model_parallel_size": 3}, "0.9.1", "BB-VERL-019"),
    ({f"{ACTOR}ppo_mini_batch_size": 33, "trainer.use_v1": False}, "0.9.1", "BB-VERL-020"),
    ({f"{ACTOR}ppo_mini_batch_size": 1, f"{ROLLOUT}n": 1}, "0.7.1", "BB-VERL-020"),
    ({f"{ACTOR}ppo_micro_batch_size_per_gpu": 5}, "0.9.1", "BB-VERL-021"),
    ({f"{ACTOR}ppo_mini_batch_size": 48, "trainer.use_v1": False}, "0.9.1", "BB-VERL-022"),
    ({f"{ACTOR}ppo_mini_batch_size": 48}, "0.8.0", "BB-VERL-022"),
    ({f"{ACTOR}ppo_mini_batch_size": 48}, "0.9.1", "BB-VERL-023"),
    ({f"{ACTOR}ppo_mini_batch_size": 48}, "0.7.1", "BB-VERL-023"),
    ({f"{ACTOR}loss_agg_mode": "token-sum"}, "0.8.0", "BB-VERL-024"),
    ({f"{ACTOR}policy_loss.loss_mode": "cispo"}, "0.6.1", "BB-VERL-025"),
    ({"algorithm.adv_estimator": "gdpo"}, "0.7.0", "BB-VERL-026"),
    ({"algorithm.adv_estimator": "mine"}, "0.9.1", "BB-VERL-026"),
    ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "0.9.1", "BB-VERL-027"),
    ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "0.6.1", "BB-VERL-027"),
    ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"}, "0.7.0", "BB-VERL-027"),
    ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 7}, "0.7.1", "BB-VERL-027"),
    ({f"{ACTOR}policy_loss.loss_mode": "geo_mean"}, "0.9.1", "BB-VERL-028"),
    ({f"{ACTOR}policy_loss.loss_mode": "kl_cov"}, "0.9.1", "BB-VERL-029"),
    (
        {f"{ACTOR}policy_loss.loss_mode": "sapo", f"{ACTOR}loss_agg_mode": "token-mean"},
        "0.9.1",
        "BB-VERL-030",
    ),
    ({"trainer.balance_batch": False}, "0.9.1", "BB-VERL-031"),
    ({"data.dataloader_num_workers": 8}, "0.9.1", "BB-VERL-032"),
    ({f"{ACTOR}ppo_epochs": 2}, "0.9.1", "BB-VERL-033"),
    ({f"{ROLLOUT}name": "???"}, "0.9.1", "BB-VERL-035"),
    ({f"{ACTOR}ppo_mini_batch_size": 32}, "0.9.1", "BB-VERL-036"),
    ({f"{ROLLOUT}n": 1}, "0.9.1", "BB-VERL-037"),
    ({f"{ACTOR}clip_ratio": 0.1}, "0.9.1", "BB-VERL-038"),
    (
        {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.max_num_gen_batches": 9},
        "0.9.1",
        "BB-VERL-039",
    ),
    ({"data.gen_batch_size": 192}, "0.9.1", "BB-VERL-040"),
    ({f"{ACTOR}ppo_mini_batch_size": 15, f"{ACTOR}ppo_micro_batch_size_per_gpu": 1}, "0.7.1", "BB-VERL-041"),
    ({}, "0.7.1", "BB-VERL-042"),
    ({f"{ACTOR}grad_clip": 0.5}, "0.9.1", "BB-VERL-043"),
    ({f"{ACTOR}optim.clip_grad": 0.5}, "0.7.1", "BB-VERL-043"),
    (
        {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"},
        "0.9.1",
        "BB-VERL-044",
    ),
    ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "0.9.1", "BB-VERL-045"),
    ({"data.seed": None}, "0.9.1", "BB-VERL-046"),
    ({f"{ACTOR}use_kl_loss": True, "algorithm.use_kl_in_reward": True}, "0.9.1", "BB-VERL-047"),
    ({f"{ROLLOUT}log_prob_use_dynamic_bsz": True}, "0.9.1", "BB-VERL-048"),
    ({f"{ACTOR}ppo_micro_batch_size": 8, f"{ACTOR}ppo_micro_batch_size_per_gpu": None}, "0.9.1", "BB-VERL-050"),
    (
        {f"{ACTOR}ulysses_sequence_parallel_size": 2, "actor_rollout_ref.model.use_remove_padding": False},
        "0.9.1",
        "BB-VERL-051",
    ),
    ({"trainer.v1.trainer_mode": "separate_async"}, "0.9.1", "BB-VERL-052"),
    ({"trainer.use_legacy_worker_impl": "disable"}, "0.6.1", "BB-VERL-053"),
    ({"trainer.critic_warmup": 2}, "0.9.1", "BB-VERL-097"),
    ({"trainer.critic_warmup": 2}, "0.4.0", "BB-VERL-097"),
    ({f"{ACTOR}clip_ratio_c": 1.0}, "0.9.1", "BB-VERL-054"),
    (
        {f"{ACTOR}use_dynamic_bsz": True, "data.train_batch_size": 32, "trainer.use_v1": False},
        "0.9.1",
        "BB-VERL-055",
    ),
    ({f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 1000}, "0.9.1", "BB-VERL-056"),
    ({f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 1000}, "0.7.1", "BB-VERL-056"),
    ({f"{ROLLOUT}n": 0}, "0.9.1", "BB-VERL-010"),
    ({"trainer.n_gpus_per_node": 0}, "0.9.1", "BB-VERL-010"),
    ({**MEGATRON, f"{ACTOR}megatron.tensor_model_parallel_size": 3}, "0.9.1", "BB-VERL-017"),
    ({**MEGATRON, f"{ACTOR}ppo_micro_batch_size": 8, f"{ACTOR}ppo_micro_batch_size_per_gpu": None}, "0.9.1", NO_MICRO),
    ({f"{ROLLOUT}data_parallel_size": 8}, "0.9.1", "BB-VERL-019"),
    ({f"{ACTOR}optim.lr_scheduler_type": "linear"}, "0.9.1", "BB-VERL-057"),
    ({f"{ACTOR}optim.warmup_style": "linear"}, "0.6.0", "BB-VERL-057"),
    ({**CRITIC, "critic.optim.lr_scheduler_type": "linear"}, "0.9.1", "BB-VERL-057"),
    ({**MEGATRON, f"{ACTOR}megatron.dtype": "float32"}, "0.9.1", "BB-VERL-058"),
    ({**CRITIC, **MEGATRON, "critic.megatron.dtype": "float32"}, "0.9.1", "BB-VERL-058"),
    ({**CRITIC, "critic.ppo_micro_batch_size_per_gpu": None}, "0.9.1", "BB-VERL-059"),
    ({**CRITIC, "critic.ppo_micro_batch_size": 8}, "0.4.0", "BB-VERL-059"),
    ({**CRITIC, "critic.ppo_micro_batch_size": 7, "critic.ppo_micro_batch_size_per_gpu": None}, "0.9.1", "BB-VERL-060"),
    ({**CRITIC, "critic.ppo_micro_batch_size": 4, "critic.ppo_micro_batch_size_per_gpu": None}, "0.9.1", "BB-VERL-060"),
    (
        {**CRITIC, "critic.ulysses_sequence_parallel_size": 2, "critic.model.use_remove_padding": False},
        "0.7.1",
        "BB-VERL-061",
    ),
    ({**CRITIC, "critic.ppo_mini_batch_size": 65}, "0.9.1", "BB-VERL-062"),
    ({f"{ROLLOUT}val_kwargs.do_sample": True, f"{ROLLOUT}temperature": 0}, "0.9.1", "BB-VERL-063"),
    ({f"{ROLLOUT}multi_turn.enable": True}, "0.4.1", "BB-VERL-065"),
    (
        {
            f"{ROLLOUT}multi_turn.enable": True,
            f"{ROLLOUT}multi_turn.tool_config_path": "tools.yaml",
            "algorithm.adv_estimator": "rloo",
        },
        "0.4.0",
        "BB-VERL-065",
    ),
    ({**MEGATRON, f"{ACTOR}megatron.router_replay.mode": "R4"}, "0.9.1", "BB-VERL-066"),
    (
        {
            **MEGATRON,
            f"{ACTOR}megatron.router_replay.mode": "R2",
            "algorithm.rollout_correction.bypass_mode": True,
        },
        "0.9.1",
        "BB-VERL-066",
    ),
    ({**CRITIC, "critic.ppo_mini_batch_size": 9}, "0.9.1", "BB-VERL-067"),
    ({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": None}, "0.9.1", "BB-VERL-068"),
    ({f"{ROLLOUT}mode": "sync"}, "0.9.1", "BB-VERL-069"),
    ({f"{ROLLOUT}pipeline_model_parallel_size": 2}, "0.9.1", "BB-VERL-069"),
    ({f"{ROLLOUT}expert_parallel_size": 4}, "0.9.1", "BB-VERL-069"),
    ({"trainer.v1.trainer_mode": "mine"}, "0.9.1", "BB-VERL-070"),
    ({"data.filter_overlong_prompts": True}, "0.9.1", "BB-VERL-071"),
    ({f"{ACTOR}shuffle": True}, "0.9.1", "BB-VERL-076"),
    ({**BYPASS, "algorithm.rollout_correction.rollout_is": "token"}, "0.9.1", "BB-VERL-095"),
    ({**BYPASS, "algorithm.rollout_correction.loss_type": "reinforce"}, "0.9.1", "BB-VERL-095"),
    ({f"{ACTOR}fsdp_config.dtype": "float32"}, "0.9.1", "BB-VERL-077"),
    ({PER_GPU: 3}, "0.9.1", "BB-VERL-098"),
    ({WORKERS: 7}, "0.7.1", "BB-VERL-099"),
    ({**BYPASS, f"{ROLLOUT}top_k": 20}, "0.9.1", "BB-VERL-102"),
    ({f"{CORRECTION}rollout_is": "token", f"{ROLLOUT}top_p": 0.9}, "0.9.1", "BB-VERL-102"),
    ({f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_p": 0.9}, "0.9.1", "BB-VERL-103"),
    ({FORWARD: 7, PER_GPU: None}, "0.7.1", "BB-VERL-100"),
    ({"data.train_batch_size": 60}, "0.4.1", "BB-VERL-104"),
    ({**SCORED, "reward.num_workers": 7}, "0.7.1", "BB-VERL-105"),
    ({PER_GPU: 3, "trainer.use_v1": False}, "0.9.1", "BB-VERL-098"),
    (GROUPER, "0.9.1", "BB-VERL-091"),
    ({**GROUPER, **MEGATRON, "trainer.use_v1": False}, "0.9.1", "BB-VERL-091"),
    ({**GROUPER, f"{ACTOR}use_dynamic_bsz": True}, "0.7.1", "BB-VERL-091"),
    ({**GROUPER, "trainer.use_v1": False, **UNEVEN}, "0.9.1", "BB-VERL-092"),
    ({**GROUPER, **UNEVEN}, "0.7.1", "BB-VERL-092"),
    ({f"{ROLLOUT}log_prob_micro_batch_size": 8, PER_GPU: None}, "0.9.1", "BB-VERL-050"),
    ({"data.gen_batch_size": 2, "trainer.v1.sampler.sync_refill_failed_groups": True}, "0.9.1", "BB-VERL-040"),
    (
        {f"{ACTOR}use_dynamic_bsz": True, f"{ROLLOUT}log_prob_max_token_len_per_gpu": 1000},
        "0.9.1",
        "BB-VERL-056",
    ),
    ({**CRITIC, "critic.ppo_mini_batch_size": 48}, "0.9.1", "BB-VERL-023"),
    ({"algorithm.filter_groups.enable": True, "trainer.use_v1": False}, "0.9.1", "BB-VERL-086"),
    ({"algorithm.adv_estimator": "remax"}, "0.9.1", "BB-VERL-088"),
    ({"algorithm.adv_estimator": "gdpo"}, "0.9.1", "BB-VERL-088"),
    ({"algorithm.adv_estimator": "optimal_token_baseline"}, "0.8.0", "BB-VERL-088"),
    ({"algorithm.adv_estimator": "grpo_passk", f"{ROLLOUT}n": 1}, "0.9.1", "BB-VERL-088"),
    ({f"{ACTOR}optim.clip_grad": 0.0}, "0.9.1", "BB-VERL-087"),
    ({f"{ACTOR}grad_clip": 0.0}, "0.7.1", "BB-VERL-087"),
    ({f"{ACTOR}optim.optimizer": "adamw"}, "0.9.1", "BB-VERL-081"),  # a module of torch.optim
    ({f"{ACTOR}optim.optimizer": "LBFGS"}, "0.9.1", "BB-VERL-081"),
    ({f"{ACTOR}optim.optimizer": "muon", **MEGATRON}, "0.8.0", "BB-VERL-081"),
    (
        {f"{ACTOR}optim.optimizer": "SGD", f"{ACTOR}optim.override_optimizer_config": {"eps": 1e-6}},
        "0.9.1",
        "BB-VERL-081",
    ),
    ({f"{ACTOR}optim.warmup_style": "linear"}, "0.5.0", "BB-VERL-082"),
    ({f"{ACTOR}optim.lr_decay_style": "exponential", **MEGATRON}, "0.9.1", "BB-VERL-082"),
    ({f"{ACTOR}fsdp_config.mixed_precision.param_dtype": "half"}, "0.9.1", "BB-VERL-083"),
    ({f"{ACTOR}fsdp_config.dtype": "half"}, "0.6.1", "BB-VERL-083"),
    ({f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "full"}, "0.9.1", "BB-VERL-084"),
    ({f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "k3+"}, "0.7.1", "BB-VERL-084"),
    ({"algorithm.rollout_correction.rollout_is": "group"}, "0.9.1", "BB-VERL-085"),
    (
        {
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": "0.5_2.0",
        },
        "0.7.1",
        "BB-VERL-085",
    ),
    ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "0.9.1", "BB-VERL-085"),  # without bounds
    (
        {
            "algorithm.rollout_correction.rollout_rs": "geometric",
            "algorithm.rollout_correction.rollout_rs_threshold": 2,
        },
        "0.7.1",
        "BB-VERL-085",
    ),
]
STANDING = [
    # what holds for every run of its kind: shown by explain, not by check
    ({}, "0.9.1", "BB-VERL-072"),
    ({}, "0.9.1", "BB-VERL-073"),
    ({"trainer.use_v1": False, f"{ACTOR}ppo_mini_batch_size": 32}, "0.9.1", "BB-VERL-074"),
    (
        {"trainer.use_v1": False, "trainer.balance_batch": False, f"{ACTOR}ppo_mini_batch_size": 32},
        "0.9.1",
        "BB-VERL-075",
    ),
    ({"algorithm.adv_estimator": "reinforce_plus_plus"}, "0.9.1", "BB-VERL-078"),
]


@pytest.mark.parametrize(("values", "version", "code"), CASES)
def test_a_rule_speaks_where_it_is_broken(values, version, code):
    assert code in codes(values, version=version)


@pytest.mark.parametrize(
    ("more", "version", "speaks"),
    [
        ({}, "0.7.0", True),
        ({}, "0.7.1", True),
        ({"trainer.use_legacy_worker_impl": "disable"}, "0.7.1", False),
        ({f"{ACTOR}loss_scale_factor": 1024}, "0.7.1", False),
        ({f"{ACTOR}loss_scale_factor": None}, "0.7.1", False),
        ({f"{ACTOR}loss_agg_mode": "seq-mean-token-sum"}, "0.7.1", False),
        ({f"{ACTOR}policy_loss.loss_mode": "gspo"}, "0.7.1", False),
        ({}, "0.8.0", False),
    ],
)
def test_a_factor_that_legacy_workers_do_not_read_is_told(more, version, speaks):
    """Source: verl 0.7.0 and 0.7.1 compute_policy_loss_vanilla gives one value with any factor (run by hand)."""
    norm = {f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor": 7}
    values = {**norm, "data.max_response_length": 1024, **more}
    said = [finding.message for finding in judge(values, version=version) if finding.code == "BB-VERL-027"]
    assert any("is not read by these workers" in message for message in said) == speaks


def test_every_rule_has_a_case():
    outside = {"BB-VERL-034", "BB-VERL-049", "BB-VERL-096"}  # a key that is left out, and datasets: below
    outside |= {"BB-VERL-101"}  # a dataset: below
    outside |= {"BB-VERL-093", "BB-VERL-094"}  # another program: test_ahead_verl.py
    judged = {rule.code for rule in (*RULES, *history.ROWS) if not rule.retired}
    assert judged - outside == {code for _, _, code in [*CASES, *STANDING]}


@pytest.mark.parametrize(("values", "version", "code"), STANDING)
def test_what_holds_for_every_run_of_its_kind_is_a_defect_and_no_finding(values, version, code):
    reading = VerlAdapter().read(load_source({**RUN, **values}), Context(framework_version=version))
    assert code in [defect.code for defect in reading.behaviour.defects]
    assert code not in codes(values, version=version)


def padding(values):
    (finding,) = [one for one in judge(values) if one.code == "BB-VERL-023"]
    return finding.message.partition("; they")[0]


def test_rollouts_are_padded_to_whole_steps_of_the_actor_only_once_it_is_trained():
    short = {f"{ACTOR}ppo_mini_batch_size": 48}
    assert padding(short) == (
        "a rollout of 256 completions is padded with 128 rows to a multiple of lcm(8 replicas, 192 completions per "
        "step) = 192"
    )
    assert padding(short | {"trainer.critic_warmup": 1}) == padding(short)
    assert padding(short | CRITIC | {"trainer.critic_warmup": 5, "critic.ppo_mini_batch_size": 40}) == (
        "a rollout of 256 completions is padded with 704 rows from rollout 5 on (trainer.critic_warmup; 64 rows "
        "before) to a multiple of lcm(8 replicas, 192 completions per step, 160 per step of the critic) = 960"
    )


def test_every_row_names_its_source_what_verl_does_and_a_way_out():
    without = {
        "BB-VERL-010",  # any size of at least 1
        "BB-VERL-026",  # an estimator with words of the schema is another objective
        "BB-VERL-025",
    }
    assert all(rule.source and rule.native for rule in RULES)
    for values, version, code in CASES:
        for finding in judge(values, version=version):
            if finding.code == code and code not in without:
                assert finding.fixes, (code, values)


@pytest.mark.parametrize(
    ("values", "version", "said"),
    [
        (GROUPER, "0.9.1", "is read by no worker: the prompt is computed once for each completion of a group"),
        ({**GROUPER, "trainer.use_v1": False}, "0.9.1", "of a group; balancing alone reads it, and deals whole groups"),
        (GROUPER, "0.7.1", "is left out beside actor_rollout_ref.model.use_remove_padding"),
        ({**GROUPER, "actor_rollout_ref.model.use_remove_padding": False}, "0.7.1", ""),
    ],
)
def test_the_prefix_grouper_is_used_by_the_workers_of_0_7_1_alone_and_there_beside_padded_rows(values, version, said):
    found = [finding.message for finding in judge(values, version=version) if finding.code == "BB-VERL-091"]
    assert said in found[0] if said else found == []


def test_the_prefix_grouper_balances_whole_groups_and_so_as_many_on_each_replica():
    values = {**GROUPER, **UNEVEN, "trainer.use_v1": False}
    assert "BB-VERL-092" not in codes({**values, "trainer.balance_batch": False})
    assert "BB-VERL-092" not in codes({**values, "data.train_batch_size": 40, f"{ACTOR}ppo_mini_batch_size": 40})
    reading = VerlAdapter().read(load_source({**RUN, **values}), Context(framework_version="0.9.1"))
    assert "whole groups are balanced" in reading.behaviour.membership
    assert "BB-VERL-074" not in [defect.code for defect in reading.behaviour.defects]


def test_rejected_tokens_are_counted_by_the_v1_trainer_alone_and_not_beside_bypass_mode():
    rejecting = {f"{CORRECTION}rollout_rs": "token_k1"}
    assert "BB-VERL-045" in codes(rejecting)
    assert "BB-VERL-045" not in codes({**rejecting, "trainer.use_v1": False})
    assert "BB-VERL-045" not in codes(rejecting, version="0.8.0")
    assert "BB-VERL-045" not in codes({**rejecting, **BYPASS})


def test_no_rollout_and_no_step_of_0_prompts_is_a_way_out():
    found = judge({**CRITIC, "data.train_batch_size": 0})
    sizes = [fix.changes for one in found if one.code in ("BB-VERL-012", "BB-VERL-062") for fix in one.fixes]
    assert sizes == [{"data.train_batch_size": 64}] * 2


def test_bypass_mode_leaves_nothing_out_where_nothing_is_asked_for_beside_it():
    assert "BB-VERL-095" not in codes(BYPASS)
    assert "BB-VERL-095" not in codes({f"{CORRECTION}rollout_is": "token"})
    assert "BB-VERL-095" not in codes({**BYPASS, f"{ACTOR}policy_loss.loss_mode": "bypass_mode"})


def test_the_engine_workers_of_a_critic_read_neither_its_micro_batch_nor_its_own_sequence_parallelism():
    assert "BB-VERL-067" not in codes({**CRITIC, "critic.ppo_micro_batch_size_per_gpu": 3})
    uneven = {**CRITIC, "critic.ppo_mini_batch_size": 9}  # 36 completions on 8 devices
    assert "BB-VERL-067" in codes({**uneven, "critic.ulysses_sequence_parallel_size": 2})
    assert "BB-VERL-067" not in codes({**uneven, "critic.fsdp.ulysses_sequence_parallel_size": 2})


def test_the_default_estimator_trains_a_critic():
    values = {key: value for key, value in RUN.items() if key != "algorithm.adv_estimator"}
    found = read_source(load_source(values), VerlAdapter(), Context(framework_version="0.9.1")).findings
    assert "BB-VERL-034" in [finding.code for finding in found]


@pytest.mark.parametrize(
    ("epochs", "steps", "fires"), [(2, 7, True), (2, 6, False), (3, 7, False), (2, None, False), (0, 7, False)]
)
def test_steps_that_the_epochs_do_not_reach_are_said_where_the_prompts_are_known(epochs, steps, fires):
    values = {"trainer.total_epochs": epochs, "trainer.total_training_steps": steps}
    assert ("BB-VERL-096" in codes(values, prompts=200)) is fires  # 3 rollouts of 64
    assert "BB-VERL-096" not in codes(values)


def test_a_warm_up_of_no_rollout_and_one_of_a_critic_are_read():
    assert "BB-VERL-097" not in codes({"trainer.critic_warmup": 1})
    assert "BB-VERL-097" not in codes({**CRITIC, "trainer.critic_warmup": 9})


def test_a_dataset_that_fills_no_rollout_trains_nothing():
    assert "BB-VERL-049" in codes({}, prompts=63)
    assert "BB-VERL-049" not in codes({}, prompts=64)


def test_a_token_budget_is_shared_by_a_sequence_parallel_group():
    values = {
        f"{ACTOR}use_dynamic_bsz": True,
        f"{ACTOR}ppo_max_token_len_per_gpu": 512,
        f"{ACTOR}ulysses_sequence_parallel_size": 2,
        f"{ACTOR}ppo_mini_batch_size": 64,
    }
    found = codes(values)
    assert "BB-VERL-056" not in found
    assert "BB107" not in found


@pytest.mark.parametrize(
    "values", [case[0] for case in CASES if case[2] in ("BB-VERL-004", "BB-VERL-012", "BB-VERL-021")]
)
def test_a_proposed_size_mends_the_rule(values):
    version = "0.9.1"
    for finding in judge(values, version=version):
        if finding.code in ("BB-VERL-004", "BB-VERL-012", "BB-VERL-021"):
            assert finding.fixes
            for fix in finding.fixes:
                assert finding.code not in codes({**values, **fix.changes}, version=version), fix.text


def test_128_devices_need_a_rollout_of_128_completions():
    (finding,) = [
        f for f in judge({"data.train_batch_size": 32, f"{ROLLOUT}n": 1}, world=128) if f.code == "BB-VERL-004"
    ]
    assert {fix.text for fix in finding.fixes} >= {
        "data.train_batch_size = 128",
        "trainer.nnodes x n_gpus_per_node = 32",
    }


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        ({}, "0.9.1", True),
        ({}, "0.7.1", False),  # whose workers split into what they get
        (BYPASS, "0.9.1", False),  # the sampler's are taken
        ({f"{ACTOR}use_dynamic_bsz": True}, "0.9.1", False),
        # 66 x 4 = 264 completions are padded to 288 by the V1 trainer, and to nothing else by the other.
        ({"data.train_batch_size": 66, f"{ACTOR}ppo_mini_batch_size": 24, PER_GPU: 12}, "0.9.1", False),
    ],
)
def test_log_probabilities_are_computed_in_whole_micro_batches_by_engine_workers(values, version, fires):
    found = [one for one in judge({PER_GPU: 3, **values}, version=version, world=8) if one.code == "BB-VERL-098"]
    assert bool(found) is fires
    assert [fix.changes for one in found for fix in one.fixes] == [{PER_GPU: 2}, {PER_GPU: 4}] * fires


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        ({}, "0.7.1", True),
        ({}, "0.8.0", True),
        ({}, "0.9.1", False),  # the V1 trainer deals with what is left
        ({"trainer.use_v1": False}, "0.9.1", True),
        ({}, "0.6.1", False),  # whose rollouts are not those of the agent loop by default
        ({f"{ROLLOUT}mode": "async"}, "0.6.1", True),
        ({f"{ROLLOUT}mode": "async"}, "0.5.0", True),
        ({}, "0.4.1", False),
        ({WORKERS: 5}, "0.7.1", False),
        ({f"{ROLLOUT}n": 6}, "0.7.1", False),
        # 100 rows and 20 greedy ones are 120, dealt together from 0.8.0 on
        ({"algorithm.adv_estimator": "remax"}, "0.8.0", False),
        ({"algorithm.adv_estimator": "remax", WORKERS: 10}, "0.7.1", False),
        ({"algorithm.adv_estimator": "remax", WORKERS: 25}, "0.7.1", True),
    ],
)
def test_workers_of_the_agent_loop_share_a_rollout_evenly(values, version, fires):
    """20 prompts x 5 = 100 completions, of 8 workers."""
    micro = {f"{ACTOR}ppo_micro_batch_size_per_gpu": 1, PER_GPU: 1}
    run = {"data.train_batch_size": 20, f"{ACTOR}ppo_mini_batch_size": 20, f"{ROLLOUT}n": 5, **micro, **values}
    found = [one for one in judge(run, version=version, world=4) if one.code == "BB-VERL-099"]
    assert bool(found) is fires
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-099" not in codes({**run, **fix.changes}, version=version, world=4)


@pytest.mark.parametrize(
    "values",
    [
        {f"{CORRECTION}rollout_is": "sequence"},
        {f"{ROLLOUT}top_p": 0.9},
        {f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_p": 0.9, f"{ROLLOUT}name": "sglang"},
        {f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_p": 0.9, f"{ROLLOUT}logprobs_mode": "raw_logprobs"},
        {f"{CORRECTION}rollout_is": "sequence", f"{ROLLOUT}top_k": 0},
    ],
)
def test_nothing_is_said_of_limits_where_none_of_vllms_is_compared(values):
    assert not {"BB-VERL-102", "BB-VERL-103"} & set(codes(values))


@pytest.mark.parametrize(
    ("version", "saves", "epochs", "prompts", "said"),
    [
        # 64 prompts a rollout, 128 prompts: 2 rollouts an epoch
        ("0.7.1", 2, 2, 128, "no rollout is left"),
        ("0.7.1", 2, 3, 128, "the next epoch is left out"),
        ("0.7.0", 4, 3, 128, "no rollout is left"),
        ("0.7.1", 4, 2, 128, None),  # the last step ends the run
        ("0.7.1", 3, 2, 128, None),
        ("0.7.1", -1, 2, 128, None),
        ("0.6.1", 2, 2, 128, None),
        ("0.8.0", 2, 2, 128, None),
        ("0.7.1", 2, 2, None, None),
    ],
)
def test_a_checkpoint_of_an_epochs_end_leaves_an_epoch_out(version, saves, epochs, prompts, said):
    values = {"trainer.save_freq": saves, "trainer.total_epochs": epochs}
    found = [one for one in judge(values, version=version, prompts=prompts) if one.code == "BB-VERL-101"]
    assert [said in one.message for one in found] == ([True] if said else [])
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-101" not in codes({**values, **fix.changes}, version=version, prompts=prompts)


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        ({FORWARD: 3}, "0.4.1", True),
        ({FORWARD: 3}, "0.7.1", True),
        ({FORWARD: 4}, "0.7.1", False),
        ({FORWARD: 3, f"{ROLLOUT}log_prob_use_dynamic_bsz": True}, "0.7.1", False),
        ({REFERENCE_FORWARD: 3}, "0.7.1", False),  # no reference: nothing is computed of it
        ({REFERENCE_FORWARD: 3, f"{ACTOR}use_kl_loss": True}, "0.7.1", True),
        ({FORWARD: 3, f"{ACTOR}ulysses_sequence_parallel_size": 2, REMOVE_PADDING: True}, "0.7.1", False),
    ],
)
def test_a_micro_batch_of_all_devices_leaves_something_for_each(values, version, fires):
    run = {PER_GPU: None if FORWARD in values else 2, **values}
    found = [one for one in judge(run, version=version, world=4) if one.code == "BB-VERL-100"]
    assert bool(found) is fires
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-100" not in codes({**run, **fix.changes}, version=version, world=4)


@pytest.mark.parametrize(
    ("values", "version", "prompts", "rollouts"),
    [
        ({}, "0.7.1", 128, 300),
        ({}, "0.8.0", 128, 300),
        ({"trainer.use_v1": False}, "0.9.1", 128, 300),
        ({}, "0.9.1", 64, None),  # the V1 trainer gathers its rollout
    ],
)
def test_a_rollout_is_what_the_data_loader_fetches_except_in_the_v1_trainer(values, version, prompts, rollouts):
    source = load_source({**RUN, "data.gen_batch_size": 128, **values})
    reading = read_source(source, VerlAdapter(), Context(framework_version=version, dataset_size=1280))
    assert reading.spec.rollout.prompts_per_rollout == prompts
    assert reading.derived["total_rollouts"] == rollouts
    assert any(one.code == "BB-VERL-040" for one in reading.findings)


OF_CRITIC = {**CRITIC, "critic.ppo_micro_batch_size": 64, "critic.ppo_micro_batch_size_per_gpu": None}
OF_REWARDS = {"reward_model.enable": True, "reward_model.micro_batch_size": 3}
OF_MEGATRON = {**MEGATRON, f"{ACTOR}use_kl_loss": True, PER_GPU: 2}


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        ({**OF_CRITIC, "critic.forward_micro_batch_size": 3}, "0.4.1", True),
        ({**OF_CRITIC, "critic.forward_micro_batch_size": 3}, "0.7.1", True),
        ({**OF_CRITIC, "critic.forward_micro_batch_size": 4}, "0.7.1", False),
        ({**OF_CRITIC, "critic.forward_micro_batch_size": 3, "critic.use_dynamic_bsz": True}, "0.7.1", False),
        # read beside critic.ppo_micro_batch_size alone
        ({**CRITIC, "critic.forward_micro_batch_size": 3}, "0.7.1", False),
        (OF_REWARDS, "0.4.1", True),
        (OF_REWARDS, "0.6.1", True),
        ({**OF_REWARDS, "reward_model.enable": False}, "0.6.1", False),
        (OF_REWARDS, "0.7.0", False),  # the reward loop's server cuts nothing
        ({**OF_REWARDS, "reward_model.use_reward_loop": False}, "0.7.0", True),
        ({**OF_MEGATRON, REFERENCE_FORWARD: 3}, "0.7.1", True),
        ({**OF_MEGATRON, REFERENCE_FORWARD: 4}, "0.7.1", False),
        ({**OF_MEGATRON, FORWARD: 3}, "0.7.1", False),
        ({**OF_MEGATRON, FORWARD: 3, f"{ACTOR}ppo_micro_batch_size": 8}, "0.7.1", True),
    ],
)
def test_every_role_s_micro_batch_of_all_devices_leaves_something_for_each(values, version, fires):
    found = [one for one in judge(values, version=version, world=4) if one.code == "BB-VERL-100"]
    assert bool(found) is fires
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-100" not in codes({**values, **fix.changes}, version=version, world=4)


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        ({}, "0.4.0", True),  # 20 prompts of 16 devices
        ({}, "0.4.1", True),
        ({f"{ROLLOUT}mode": "async"}, "0.4.1", False),
        ({"data.train_batch_size": 32}, "0.4.1", False),
        ({}, "0.5.0", False),  # repeated before they are dealt out
        ({"algorithm.adv_estimator": "remax"}, "0.5.0", True),
        # engines of 2 devices: 20 greedy rows of 8, from 0.6.0 on
        ({"algorithm.adv_estimator": "remax"}, "0.6.1", True),
        ({"algorithm.adv_estimator": "remax", f"{ROLLOUT}tensor_model_parallel_size": 4}, "0.6.1", False),
        ({"algorithm.adv_estimator": "remax", f"{ROLLOUT}tensor_model_parallel_size": 4}, "0.5.0", True),
        ({"algorithm.adv_estimator": "remax"}, "0.7.0", False),  # the agent loop's workers: BB-VERL-099
    ],
)
def test_prompts_that_are_dealt_out_by_themselves_are_a_multiple_of_the_engines(values, version, fires):
    run = {"data.train_batch_size": 20, f"{ACTOR}ppo_mini_batch_size": 20, f"{ROLLOUT}n": 8, **values}
    found = [one for one in judge(run, version=version, world=16) if one.code == "BB-VERL-104"]
    assert bool(found) is fires
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-104" not in codes({**run, **fix.changes}, version=version, world=16)


@pytest.mark.parametrize(
    ("values", "version", "fires"),
    [
        (SCORED, "0.7.1", True),  # 100 rows of 8 workers
        ({"reward_model.enable": True}, "0.8.0", True),  # as it was written before 0.7.1, and still counts
        ({}, "0.8.0", False),  # no reward model: rows are scored one by one
        ({**SCORED, "reward.reward_model.enable_resource_pool": True}, "0.8.0", False),
        ({**SCORED, "reward.num_workers": 5}, "0.8.0", False),
        ({**SCORED, "reward.num_workers": 5, "reward_model.num_workers": 8}, "0.8.0", True),
        ({**SCORED, "reward.num_workers": 25, "algorithm.adv_estimator": "remax"}, "0.7.1", True),
        ({**SCORED, f"{ROLLOUT}agent.agent_loop_manager_class": "mine.Manager"}, "0.8.0", False),
        ({"reward_model.enable": True}, "0.7.0", False),  # one worker by default
        ({"reward_model.enable": True, "reward_model.num_workers": 8}, "0.7.0", True),
        ({**SCORED, "trainer.use_v1": False}, "0.9.1", False),  # which pads
    ],
)
def test_workers_that_score_a_rollout_share_it_evenly(values, version, fires):
    micro = {f"{ACTOR}ppo_micro_batch_size_per_gpu": 1, PER_GPU: 1, WORKERS: 4}
    run = {"data.train_batch_size": 20, f"{ACTOR}ppo_mini_batch_size": 20, f"{ROLLOUT}n": 5, **micro, **values}
    found = [one for one in judge(run, version=version, world=4) if one.code == "BB-VERL-105"]
    assert bool(found) is fires
    for fix in (fix for one in found for fix in one.fixes):
        assert "BB-VERL-105" not in codes({**run, **fix.changes}, version=version, world=4)


@pytest.mark.parametrize(("bound", "offered"), [(0.5, 0.5), (0.0, 1e9)])
def test_a_bound_of_gradients_that_is_not_read_is_offered_where_it_is(bound, offered):
    values = {f"{ACTOR}grad_clip": bound}
    (finding,) = [one for one in judge(values) if one.code == "BB-VERL-043"]
    assert [fix.changes for fix in finding.fixes] == [{f"{ACTOR}optim.clip_grad": offered}]
    assert "BB-VERL-087" not in codes({**values, **finding.fixes[0].changes})


def test_replicas_that_do_not_share_out_the_devices_have_other_sizes_or_other_devices():
    values = {f"{ACTOR}ulysses_sequence_parallel_size": 3}
    (finding,) = [f for f in judge(values, world=8) if f.code == "BB-VERL-017"]
    assert [fix.changes.get(f"{ACTOR}ulysses_sequence_parallel_size") for fix in finding.fixes] == [None, None, 2, 4]
    for fix in finding.fixes[2:]:
        assert "BB-VERL-017" not in codes({**values, **fix.changes}, world=8)


def test_a_large_run_is_searched_for_in_no_time():
    values = {"data.train_batch_size": 1_000_003, f"{ACTOR}ppo_mini_batch_size": 7}
    assert "BB-VERL-004" in codes(values, world=4096)


# Reported in issue threads, with their outcomes.


def test_reported_fewer_prompts_than_a_mini_batch_is_an_error():
    # insait-institute/open-proof-corpus issue 2; the version is not said.
    values = {"data.train_batch_size": 16, f"{ACTOR}ppo_mini_batch_size": 128}
    for version in ("0.4.0", "0.5.0", "0.6.1", "0.9.1"):
        found = judge(values, version=version)
        (finding,) = [f for f in found if f.code == "BB-VERL-012"]
        assert verdict(found) == "invalid"
        assert finding.phase == "config"
        assert "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size" in finding.native


def test_the_core_shares_a_token_budget_among_context_parallel_devices():
    spec = (
        VerlAdapter()
        .read(load_source({**RUN, f"{ACTOR}use_dynamic_bsz": True}), Context(framework_version="0.9.1"))
        .spec
    )
    short = spec.replace(**{"micro_batch.tokens_per_device": 512})
    shared = short.replace(**{"topology.context_parallel": 2})
    assert ["BB107" in [f.code for f in core_rules.check(each)] for each in (short, shared)] == [True, False]


# ---- verl's own validator


VERDICTS = [json.loads(row) for row in (Path(__file__).parent / "validator_verdicts.jsonl").read_text().splitlines()]
"""Recorded in environments with these versions: `python tests/adapters/verl/native/validator.py COUNT`. 0.9.1 runs in
nox's session `verl`."""


@pytest.mark.parametrize("version", sorted({row["version"] for row in VERDICTS}))
def test_recorded_verdicts_of_verls_own_validator_and_the_first_rule_that_speaks(version):
    retired = {rule.code for rule in RULES if rule.retired}  # may hide a later rule
    rows = [row for row in VERDICTS if row["version"] == version and row["code"] not in retired]
    different = []
    for row in rows:
        context = Context(framework_version=version)
        findings = read_source(load_source(row["values"]), VerlAdapter(), context).findings
        refused = [finding.code for finding in findings if finding.severity == "error" and finding.phase == "config"]
        if next(iter(refused), None) != row["code"]:
            different.append((refused, row))
    assert different == []
    assert None in {row["code"] for row in rows}
    assert len({row["code"] for row in rows}) >= 10

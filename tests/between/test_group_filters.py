"""Filters of groups: what replaces a group is written as what replaces one; what leaves it out is told as a change."""

from __future__ import annotations

import pytest
from registered import adapters

from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.contract.reading import Reading
from batchbridge.reading.read import read

VERSIONS = {"verl": "0.9.1", "open_instruct": "2026.8.20", "openrlhf": "0.11.2", "easyr1": "0.3.3.dev0"}
COMMANDS = {
    "verl": "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=16"
    " actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=16 trainer.total_epochs=1"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.name=vllm"
    " algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc",
    "open_instruct": "python open_instruct/grpo_fast.py --num_unique_prompts_rollout 16 --total_episodes 38400"
    " --num_samples_per_prompt_rollout 8 --pack_length 4096 --response_length 1024 --active_sampling True",
    "openrlhf": "python3 -m openrlhf.cli.train_ppo_ray --reward.remote_url math.py --train.batch_size 128"
    " --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8 --rollout.batch_size 16"
    " --algo.dynamic_filtering_enable",
    "easyr1": "python3 -m verl.trainer.main worker.rollout.n=8 data.rollout_batch_size=16 trainer.total_epochs=1"
    " worker.actor.global_batch_size=16 algorithm.online_filtering=true",
}
"""Each replaces groups."""
WRITTEN = {
    "verl": {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"},
    "open_instruct": {"active_sampling": True, "filter_zero_std_samples": True},
    "openrlhf": {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0.0, 1.0)},
    "easyr1": {"algorithm.online_filtering": True, "algorithm.filter_low": 0.0, "algorithm.filter_high": 1.0},
}
FILTER = "rollout.group_filter"


def reading_of(framework: str, *more: str) -> Reading:
    words = [*COMMANDS[framework].split(), *more]
    reading = read(words, framework=framework, version=VERSIONS[framework], dataset_size=4800)
    assert reading.spec is not None, reading.findings
    return reading


def filter_of(framework: str, *more: str) -> str:
    spec = reading_of(framework, *more).spec
    assert spec is not None
    return spec.rollout.group_filter


def converted(reading: Reading, target: str) -> Conversion:
    return convert_to(adapters()[target], reading, version=VERSIONS[target])


@pytest.mark.parametrize("target", COMMANDS)
@pytest.mark.parametrize("source", COMMANDS)
def test_what_replaces_groups_is_written_as_what_replaces_them_and_read_as_it(source: str, target: str) -> None:
    assert filter_of(source) == "replace_zero_variance"
    reading = reading_of(source)
    found = converted(reading, target)
    (account,) = (field for field in found.fields if field.field == FILTER)
    assert account.status == "exact"
    assert found.written is not None
    assert {key: found.written.values[key] for key in WRITTEN[target]} == WRITTEN[target]
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.rollout.group_filter == "replace_zero_variance"


def test_towards_active_sampling_generation_is_as_little_ahead_as_it_can_be() -> None:
    found = converted(reading_of("verl"), "open_instruct")
    account = {field.field: (field.status, field.source, field.target) for field in found.fields}
    assert account["staleness.maximum"] == ("patched", 0, 2)


@pytest.mark.parametrize("target", ["verl", "easyr1", "openrlhf"])
def test_groups_that_are_left_out_are_told_as_a_change_where_they_would_be_replaced(target: str) -> None:
    reading = reading_of("open_instruct", "--active_sampling", "False")
    found = converted(reading, target)
    (account,) = (field for field in found.fields if field.field == FILTER)
    assert (account.status, account.source) == ("inexpressible", "drop_zero_variance")
    assert account.target == "replace_zero_variance"
    assert account.reason == "groups without a signal are trained, masked, dropped or replaced"
    assert found.verdict == "lossy"


@pytest.mark.parametrize(
    ("framework", "more", "word"),
    [
        ("openrlhf", (), "replace_zero_variance"),
        ("openrlhf", ("--algo.dynamic_filtering_range", "0.1", "0.9"), "replace_zero_variance"),
        ("openrlhf", ("--algo.dynamic_filtering_range", "0.2", "0.9"), "custom"),
        ("openrlhf", ("--algo.dynamic_filtering_range", "0", "0.8"), "custom"),
        ("openrlhf", ("--algo.dynamic_filtering_range", "-1", "1"), "custom"),
        ("openrlhf", ("--algo.dynamic_filtering_range", "0", "1.5"), "custom"),
        ("easyr1", (), "replace_zero_variance"),
        ("easyr1", ("worker.rollout.n=128", "worker.actor.global_batch_size=1"), "custom"),
        ("easyr1", ("algorithm.filter_low=0.2",), "custom"),
        ("easyr1", ("algorithm.filter_high=2.0",), "custom"),
    ],
)
def test_a_range_of_mean_scores_is_said_where_of_scores_0_and_1_it_drops_the_groups_that_are_all_alike(
    framework: str, more: tuple[str, ...], word: str
) -> None:
    assert filter_of(framework, *more) == word


def test_a_range_that_the_schema_cannot_say_is_lost_by_name() -> None:
    found = converted(reading_of("openrlhf", "--algo.dynamic_filtering_range", "0.2", "0.9"), "verl")
    (account,) = (field for field in found.fields if field.field == FILTER)
    assert (account.status, account.source) == ("inexpressible", "custom")
    assert found.verdict == "lossy"

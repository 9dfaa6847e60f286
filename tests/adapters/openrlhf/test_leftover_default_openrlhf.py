"""What a wrapped run of OpenRLHF makes of completions that fill no optimizer step, where no specification says it."""

from __future__ import annotations

from typing import Any

import pytest

import batchbridge
from batchbridge.contract import plugins
from batchbridge.contract.enforcement import Enforcement
from batchbridge.contract.reading import Reading
from batchbridge.meaning.plan import Plan
from batchbridge_openrlhf.critic_words import FORGOTTEN, KEPT
from batchbridge_openrlhf.runtime import SAID

COMMAND = {
    "actor.num_gpus_per_node": 2,
    "ref.num_gpus_per_node": 2,
    "reward.remote_url": "http://rewards",
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 3,
    "rollout.micro_batch_size": 1,
    "train.micro_batch_size": 1,
    "train.seed": 7,
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.0,
}


def read(size: int | None = 10, **options: Any) -> Reading:
    words = ["python", "-m", "openrlhf.cli.train_ppo_ray"]
    for name, value in (COMMAND | options).items():
        words += [f"--{name}", *([] if value is True else [str(value)])]
    reading = batchbridge.read(words, framework="openrlhf", version="0.11.2", dataset_size=size)
    assert reading.spec is not None, reading.findings
    return reading


def started(reading: Reading) -> tuple[str, str | None]:
    spec = plugins.adapters()["openrlhf"].started(reading).spec
    assert spec is not None
    return spec.optimizer_step.step_may_span, spec.order.last_optimizer_step


def enforcement(reading: Reading) -> Enforcement:
    return plugins.adapters()["openrlhf"].enforcement(reading)


def test_leftovers_become_a_shorter_step_and_the_reading_itself_stays_what_openrlhf_does() -> None:
    reading = read(**{"train.batch_size": 8})
    assert started(reading) == ("none", "short")
    assert reading.spec is not None
    assert (reading.spec.optimizer_step.step_may_span, reading.spec.order.last_optimizer_step) == ("run", "drop")
    found = enforcement(reading)
    assert (found.verdict, SAID in found.assumes) == ("enforced", True)


def test_every_completion_is_trained_once_in_the_steps_of_its_own_rollout() -> None:
    spec = plugins.adapters()["openrlhf"].started(read(**{"train.batch_size": 8})).spec
    assert spec is not None
    plan = Plan(spec, 10)
    assert [len(step.members) for step in plan.steps()] == [8, 4, 8, 4, 6]
    assert all(len(step.rollouts) == 1 for step in plan.steps())
    trained = sorted((member.prompt, member.sample) for step in plan.steps() for member in step.members)
    assert trained == [(prompt, sample) for prompt in range(10) for sample in range(3)]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (8, {"train.batch_size": 6}),  # sizes divide
        (8, {"train.batch_size": 8, "train.max_epochs": 2}),  # a rollout's passes together fill steps
        (10, {"train.batch_size": 8, "train.dynamic_batch_enable": True, "vllm.num_engines": 1}),  # it drops them
    ],
)
def test_where_no_step_would_draw_from_two_rollouts_nothing_is_decided(size: int, options: dict[str, Any]) -> None:
    reading = read(size, **options)
    assert reading.spec is not None
    assert started(reading) == (reading.spec.optimizer_step.step_may_span, reading.spec.order.last_optimizer_step)
    assert SAID not in enforcement(reading).assumes


@pytest.mark.parametrize(("size", "batch"), [(10, 16), (3, 10)])
def test_a_run_whose_rollouts_fill_no_step_is_refused_with_the_way_out(size: int, batch: int) -> None:
    reading = read(size, **{"train.batch_size": batch})
    assert started(reading) == ("run", "drop")
    reasons = {one.name: one.reason for one in enforcement(reading).obstacles}
    assert "Give rollouts of at least train.batch_size completions" in reasons["step_crosses_rollouts"]


def test_a_dataset_of_unknown_size_may_leave_a_remainder() -> None:
    """openrlhf 0.11 trains an episode's last prompts, 0.10.4 drops them."""
    reading = read(None, **{"train.batch_size": 6})
    assert started(reading) == ("none", "short")
    assert enforcement(reading).verdict == "enforced"


def test_rollouts_of_a_critics_warm_up_are_not_kept_in_a_wrapped_run() -> None:
    reading = read(**{"algo.advantage.estimator": "gae", "critic.freezing_steps": 0, "train.batch_size": 8})
    assert reading.spec is not None
    assert reading.spec.open_terms == (KEPT,)
    spec = plugins.adapters()["openrlhf"].started(reading).spec
    assert spec is not None
    assert (spec.open_terms, spec.optimizer_step.step_may_span) == ((), "none")
    assert spec.critic is not None
    assert spec.critic.warmup_rollouts == 1
    assert FORGOTTEN in enforcement(reading).assumes

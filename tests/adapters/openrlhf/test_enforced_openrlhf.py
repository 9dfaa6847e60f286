"""What a conversion to OpenRLHF may call patched: what `run` and `wrap` really bring about, and no more."""

from __future__ import annotations

import pytest

from batchbridge.comparing.differences import UNIT_OF
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_openrlhf.enforced import ENFORCED
from batchbridge_openrlhf.proven import CODE
from batchbridge_openrlhf.runtime import PLANNED, SETTABLE


@pytest.mark.parametrize("path", ENFORCED)
def test_every_field_is_one_that_the_runtime_plans_or_sets(path: str) -> None:
    assert path in UNIT_OF
    assert path in SETTABLE or path.startswith(PLANNED)


def test_the_adapter_and_the_record_of_its_code_have_the_same_oldest_version() -> None:
    assert OpenRlhfAdapter.enforced_versions == f">={CODE.oldest}"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("order.seed", 7, True),
        ("order.seed", None, False),  # a plan needs a key
        ("order.last_rollout", "short", True),
        ("order.last_rollout", "wrap", False),  # no run of it was made
        ("order.prompt_shuffle", "weighted_sampling", False),  # there is no plan
        ("optimizer_step.step_may_span", "none", True),
        ("optimizer_step.step_may_span", "run", False),  # refusal "step_crosses_rollouts"
        ("horizon.lr_tick", "rollout", True),
        ("horizon.epochs", None, True),  # the length is given in another unit
        ("loss.policy.aggregation", "sequence_mean", True),
        ("loss.policy.aggregation", "sequence_sum", False),  # refusal "aggregation"
        ("loss.kl.aggregation", "sequence_mean", False),  # refusal "loss_per_term"
        ("objective.clip_high", None, True),  # off, which the options have no word for
        ("objective.old_logprobs", "detached", False),  # refusal "old_logprobs"
        ("advantage.baseline", "leave_one_out", True),
        ("advantage.baseline", "value", False),  # refusal "critic"
        ("advantage.scale", "batch", False),  # refusal "batch_scale"
        ("staleness.mode", "bounded", False),
        ("rollout.group_filter", "drop_zero_variance", False),  # refusal "group_filter"
        ("rollout.truncated_completions", "mask", False),  # refusal "truncated_completions"
        ("objective.kl_placement", "loss", False),  # refusal "kl_placement"
        ("objective.kl_clamp", None, False),
        ("carried.learning_rate", 1e-6, False),
    ],
)
def test_a_value_is_promised_only_where_it_is_not_refused(path: str, value: object, expected: bool) -> None:
    assert OpenRlhfAdapter().enforces(path, value) is expected

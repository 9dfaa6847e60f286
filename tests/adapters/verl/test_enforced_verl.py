"""What a conversion to verl may call patched: what `run` and `wrap` really bring about, and no more."""

from __future__ import annotations

import pytest

from batchbridge.comparing.differences import UNIT_OF
from batchbridge.kit.enforced_fields import PLANNED_FIELDS
from batchbridge.kit.refusals import PLANNED
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.proven import CODE
from batchbridge_verl.runtime import SETTABLE


@pytest.mark.parametrize("path", PLANNED_FIELDS)
def test_every_field_is_one_that_the_runtime_plans_or_sets(path: str) -> None:
    assert path in UNIT_OF
    assert path in SETTABLE or path.startswith(PLANNED)


def test_the_adapter_and_the_record_of_its_code_have_the_same_oldest_version() -> None:
    assert VerlAdapter.enforced_versions == f">={CODE.oldest}"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("order.seed", 7, True),
        ("order.seed", None, False),  # a plan needs a key
        ("order.last_rollout", "wrap", True),
        ("order.last_rollout", "error", False),
        ("order.prompt_shuffle", "weighted_sampling", False),  # there is no plan
        ("horizon.lr_tick", "optimizer_step", True),
        ("horizon.epochs", None, True),  # the length is given in another unit
        ("objective.clip_high", None, True),  # off, which verl's configuration has no word for
        ("objective.old_logprobs", "detached", True),
        ("objective.old_logprobs", "sampler", False),  # refusal "sampler_logprobs"
        ("advantage.baseline", "leave_one_out", True),
        ("advantage.baseline", "value", False),  # refusal "value_baseline"
        ("advantage.scale", "batch", False),  # refusal "batch_scale"
        ("staleness.mode", "bounded", False),
        ("rollout.group_filter", "replace_zero_variance", False),
        ("rollout.truncated_completions", "mask", False),  # refusal "truncated_completions"
        ("optimizer_step.step_may_span", "epoch", False),  # refusal "step_crosses_rollouts"
        ("objective.kl_placement", "reward", False),  # refusal "kl_in_reward"
        ("objective.kl_clamp", None, False),
        ("carried.learning_rate", 1e-6, False),
    ],
)
def test_a_value_is_promised_only_where_it_is_not_refused(path: str, value: object, expected: bool) -> None:
    assert VerlAdapter().enforces(path, value) is expected

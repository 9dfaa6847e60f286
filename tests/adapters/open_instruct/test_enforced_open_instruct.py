"""What a conversion to Open-Instruct may call patched: what `run` and `wrap` really bring about, and no more."""

from __future__ import annotations

import pytest

from batchbridge.comparing.differences import UNIT_OF
from batchbridge.kit.refusals import PLANNED
from batchbridge_open_instruct.config import OpenInstructAdapter
from batchbridge_open_instruct.enforced import ENFORCED
from batchbridge_open_instruct.runtime import SETTABLE


@pytest.mark.parametrize("path", ENFORCED)
def test_every_field_is_one_that_the_runtime_plans_or_sets(path: str) -> None:
    assert path in UNIT_OF
    assert path in SETTABLE or path.startswith(PLANNED)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("staleness.mode", "sync", True),
        ("staleness.mode", "bounded", True),
        ("staleness.mode", "lookahead", False),  # refusal "staleness"
        ("staleness.maximum", 0, True),
        ("staleness.maximum", 1, True),
        ("order.seed", 7, True),
        ("order.last_rollout", "wrap", True),
        ("order.last_rollout", "short", False),  # refusal "short_rollout"
        ("loss.policy.aggregation", "sequence_sum_over_constant", True),
        ("loss.policy.aggregation", "sequence_mean", False),  # refusal "aggregation"
        ("loss.policy.constant", None, True),
        ("advantage.ddof", 1, True),
        ("advantage.scale", "batch", True),
        ("advantage.baseline", "value", False),  # refusal "value_baseline"
        ("objective.clip_high", None, True),  # off, for which Open-Instruct has no word
        ("objective.dual_clip", 3.0, False),  # refusal "surrogate"
        ("objective.entropy_coefficient", 0.1, False),  # refusal "entropy"
        ("optimizer_step.completions_per_step", 8, False),  # refusal "mini_batches"
        ("optimizer_step.passes_per_rollout", 2, False),  # refusal "passes"
        ("rollout.prompts_per_rollout", 8, False),  # refusal "prompts_per_rollout"
        ("rollout.completions_per_prompt", 8, False),  # refusal "group_size"
        ("horizon.epochs", 2, False),  # refusal "clock"
        ("carried.learning_rate", 1e-6, False),
    ],
)
def test_a_value_is_promised_only_where_it_is_not_refused(path: str, value: object, expected: bool) -> None:
    assert OpenInstructAdapter().enforces(path, value) is expected

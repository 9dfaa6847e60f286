"""How micro-batches are compared, and what a changed configuration would cut by."""

from __future__ import annotations

import pytest

from batchbridge.kit.token_budgets import cut_of, objection
from batchbridge.meaning.spec import MicroBatch
from batchbridge.reading.read import read

FIXED = MicroBatch(completions_per_device=2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (MicroBatch(tokens_per_device=64), MicroBatch(tokens_per_device=64, cap="soft"), True),
        (MicroBatch(tokens_per_device=64), MicroBatch(tokens_per_device=64, forward_tokens_per_device=64), True),
        (MicroBatch(tokens_per_device=64), MicroBatch(tokens_per_device=64, forward_tokens_per_device=128), False),
        (MicroBatch(tokens_per_device=64), MicroBatch(tokens_per_device=64, completions_per_device=2), True),
        (FIXED, MicroBatch(tokens_per_device=2), False),
        (FIXED, MicroBatch(completions_per_device=3), False),
        (FIXED, MicroBatch(completions_per_device=2, forward_completions_per_device=2), True),
        (
            MicroBatch(completions_per_device=2),
            MicroBatch(completions_per_device=2, forward_tokens_per_device=9),
            False,
        ),
    ],
)
def test_two_cuts_are_one_where_the_same_rows_run_together(one: MicroBatch, other: MicroBatch, same: bool) -> None:
    assert (cut_of(one) == cut_of(other)) is same


SETTINGS = {
    "data.rollout_batch_size": 6,
    "worker.rollout.n": 4,
    "worker.actor.global_batch_size": 3,
    "worker.actor.micro_batch_size_per_device_for_update": 2,
    "worker.actor.micro_batch_size_per_device_for_experience": 2,
    "worker.actor.dynamic_batching": False,
    "trainer.n_gpus_per_node": 2,
    "worker.rollout.tensor_parallel_size": 1,
}
ASKED = MicroBatch(tokens_per_device=3 * 1024)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"worker.actor.dynamic_batching": True, **dict.fromkeys(("update", "experience"), 3)}, None),
        (dict.fromkeys(("update", "experience"), 3), "would cut by"),
        ({"worker.actor.dynamic_batching": True, **dict.fromkeys(("update", "experience"), 4)}, "BB-EZR1-"),
        ({"worker.actor.dynamic_batching": "maybe"}, "BB-EZR1-"),
    ],
)
def test_the_changed_configuration_is_read_and_checked_as_any_other(
    changed: dict[str, object], reason: str | None
) -> None:
    own = read(SETTINGS, framework="easyr1", version="0.3.2", dataset_size=12)
    assert own.verdict == "valid", own.findings
    prefix = "worker.actor.micro_batch_size_per_device_for_"
    settings = {key if "." in key else prefix + key: value for key, value in changed.items()}
    found = objection(own, settings, ASKED)
    assert found is None if reason is None else reason in (found or "")

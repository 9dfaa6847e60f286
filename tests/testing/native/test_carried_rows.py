"""What rows carry, in batches of verl's form: digests that padding and order do not change and values do, and what a
model is run on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.errors import BatchDrift
from batchbridge.kit.carried_rows import ComputedRows, carried, hold_sent, row_objections, told_by_batch
from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.model_inputs import HeldModelInputs, SeenModelInputs
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.workers import TrainedRow
from batchbridge.meaning.spec import Advantage

NAMES = ("input_ids", "response_mask", "advantages", "old_log_probs", "ref_log_prob")
LENGTHS = ((2, 3), (1, 4), (3, 1), (2, 2))
"""Tokens of prompt and response."""
POSITIONS, SAMPLES = (0, 0, 1, 1), (0, 1, 0, 1)
REWARDS = (1.0, 0.0, 2.0, 5.0)
GRPO = Advantage(baseline="group_mean", scale="none")


def batch(prompt_width: int = 4, width: int = 5) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, responses on the right."""
    rows: dict[str, list[torch.Tensor]] = {}
    for row, (prompt, response) in enumerate(LENGTHS):
        mean = sum(REWARDS[row // 2 * 2 : row // 2 * 2 + 2]) / 2
        ids = torch.arange(1, prompt + response + 1) + 10 * row
        mask = torch.ones(response, dtype=torch.long)
        values = {
            "responses": ids[prompt:],
            "response_mask": mask,
            "advantages": mask * (REWARDS[row] - mean),
            "old_log_probs": -0.1 * ids[prompt:],
            "token_level_rewards": torch.nn.functional.pad(torch.tensor([REWARDS[row]]), (response - 1, 0)),
        }
        after = width - response
        for name, value in values.items():
            rows.setdefault(name, []).append(torch.nn.functional.pad(value, (0, after)))
        around = (prompt_width - prompt, after)
        rows.setdefault("input_ids", []).append(torch.nn.functional.pad(ids, around))
        rows.setdefault("attention_mask", []).append(torch.nn.functional.pad(torch.ones_like(ids), around))
    return {name: torch.stack(values) for name, values in rows.items()}


def told(data: dict[str, torch.Tensor]) -> Any:
    return told_by_batch(data, NAMES, POSITIONS, SAMPLES)


def test_padding_and_nested_tensors_and_the_order_of_rows_change_no_digest() -> None:
    plain = told(batch())
    assert plain == told(batch(prompt_width=7, width=9))
    data, order = batch(), [2, 0, 3, 1]
    turned = {name: values[order] for name, values in data.items()}
    assert told_by_batch(turned, NAMES, [POSITIONS[at] for at in order], [SAMPLES[at] for at in order]) == plain
    rows = [*carried(data, NAMES)]
    nested = {name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged) for name in rows[0]}
    assert told(nested) == plain
    assert {name for found in plain.values() for name in found} == {*NAMES} - {"ref_log_prob"}


@pytest.mark.parametrize("name", ["input_ids", "response_mask", "advantages", "old_log_probs"])
def test_a_value_that_changed_is_named_with_its_row_by_the_worker(name: str) -> None:
    data, digests = batch(), told(batch())
    data[name][1, 3] += 1
    places = enumerate(zip(POSITIONS, SAMPLES, strict=True))
    rows = [TrainedRow(0, 7, position, sample, 1, place) for place, (position, sample) in places]
    assert row_objections(digests, batch(), rows, NAMES) == {}
    assert row_objections(None, data, rows, NAMES) == {}
    found = row_objections(digests, data, rows, NAMES)
    assert found.keys() == {1}
    assert found[1].startswith(f"{name} of prompt 7 sample 1 is not what the trainer's process sent")
    assert row_objections({}, data, rows, NAMES) == {}


def made(data: dict[str, torch.Tensor], **marks: Any) -> Any:
    return SimpleNamespace(batch=data, non_tensor_batch=marks)


def test_rows_that_are_sent_are_those_of_which_advantages_were_computed_and_rewards_give_them() -> None:
    marks: dict[str, Any] = {POSITION: POSITIONS, SAMPLE: SAMPLES}
    held = HeldAdvantages(GRPO, GRPO, 2)
    rows = ComputedRows(NAMES)
    rows.computed(made(batch(), **marks))
    assert hold_sent(rows, held, batch(), POSITIONS, SAMPLES, 4) == told(batch())
    other = batch()
    other["advantages"][[0, 1]] = other["advantages"][[1, 0]]
    rows.computed(made(batch(), **marks))
    with pytest.raises(BatchDrift, match=r"step 4 .* inputs: advantages of the rollout's prompt 0 sample 0 is not"):
        hold_sent(rows, held, other, POSITIONS, SAMPLES, 4)
    larger = batch()
    larger["advantages"] *= 1.05
    rows = ComputedRows(NAMES)
    rows.computed(made(batch()))  # of another trainer: its rows are not told apart
    with pytest.raises(BatchDrift, match=r"step 4 .* advantages: completion 0 of the rollout has the advantage 0.525"):
        hold_sent(rows, held, larger, POSITIONS, SAMPLES, 4)
    hold_sent(rows, HeldAdvantages(GRPO, GRPO, 2, allowed=True), larger, POSITIONS, SAMPLES, 4)


def test_advantages_are_replaced_by_the_requested_rule_unless_an_own_function_is_allowed() -> None:
    asked = Advantage(baseline="none", scale="none")
    assert HeldAdvantages(GRPO, asked, 2).replacing(REWARDS) == [*REWARDS]
    assert HeldAdvantages(GRPO, asked, 2, allowed=True).replacing(REWARDS) is None
    assert HeldAdvantages(GRPO, Advantage(baseline="value"), 2).replacing(REWARDS) is None
    assert not HeldAdvantages(Advantage(baseline="value"), Advantage(baseline="value"), 2).looks


def test_what_a_model_is_run_on_is_compared_with_the_row_that_it_should_be() -> None:
    data = batch()
    given, seen = HeldModelInputs.of(data, ("input_ids",), 1.0), SeenModelInputs()
    names = {0: "prompt 0 sample 0", 2: "prompt 1 sample 0"}
    seen.compare(given, [2, 0], {"input_ids": data["input_ids"][[2, 0]]}, 1.0)
    assert seen.objections(names) == []
    data["input_ids"][2, 3] += 1
    seen.compare(given, [2, 0], {"input_ids": data["input_ids"][[2, 0]]}, torch.tensor([1.0, 1.05]))
    assert seen.objections(names) == [
        "the model was run with another input_ids than prompt 1 sample 0 has",
        "the model was run with another temperature than prompt 0 sample 0 has",
    ]
    seen.compare(given, [1], {"input_ids": data["input_ids"][[2]]}, 1.0)
    assert seen.objections(names) == [], "a filler row"
    seen.compare(given, [2], {"input_ids": data["input_ids"][[2]]}, 1.0)
    seen.drop()
    assert seen.objections(names) == []

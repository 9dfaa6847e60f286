"""The formulas by which Open-Instruct's gradients are measured, against the derivatives of its own losses and KL
estimates."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.kit.objectives import kl_losses, policy_losses
from batchbridge.kit.probing import ADVANTAGES, batches
from batchbridge.reading.read import read
from batchbridge_on_cpu.upstream_values import read as record_of
from batchbridge_open_instruct import probe

VALUES = record_of(Path(__file__).parents[1] / "values.json")["values"]


def objective_of(*more: str) -> Any:
    command = ["python", "open_instruct/grpo_fast.py", "--num_unique_prompts_rollout", "2", "--total_episodes", "16"]
    command += ["--num_samples_per_prompt_rollout", "4", "--clip_lower", "0.2", "--clip_higher", "0.3"]
    reading = read([*command, *more], version="2026.8.20", dataset_size=8)
    assert reading.spec is not None, reading.findings
    return reading.spec.objective


@pytest.mark.parametrize("case", [name for name in VALUES["losses"] if name != "ratios"])
def test_a_loss_that_is_read_off_the_command_line_has_open_instructs_own_derivative(case: str) -> None:
    name, advantage = case.split()
    objective = objective_of("--loss_fn", name)
    new = torch.tensor(VALUES["losses"]["ratios"])[:, None].requires_grad_()
    ones = torch.ones_like(new)
    policy_losses(objective, new, torch.zeros_like(new), ones, float(advantage) * ones).sum().backward()
    assert new.grad is not None
    assert new.grad[:, 0].tolist() == pytest.approx(VALUES["losses"][case], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("number", range(4))
def test_a_kl_term_that_is_read_off_the_command_line_is_open_instructs_own(number: int) -> None:
    objective = objective_of("--beta", "0.5", "--load_ref_policy", "True", "--kl_estimator", str(number))
    new = torch.tensor(VALUES["divergences"]["differences"])[:, None].requires_grad_()
    found = kl_losses(objective, new, new.detach(), torch.zeros_like(new), torch.ones_like(new))
    assert found is not None
    found.sum().backward()
    values, gradients = VALUES["divergences"][str(number)]
    assert new.grad is not None
    assert (found[:, 0] / 0.5).tolist() == pytest.approx(values, rel=1e-5, abs=1e-6)
    assert (new.grad[:, 0] / 0.5).tolist() == pytest.approx(gradients, rel=1e-5, abs=1e-6)


@dataclasses.dataclass
class CollatedBatchData:
    """A stand-in for Open-Instruct's class of this name: columns that a test reads."""

    query_responses: list[torch.Tensor]
    attention_masks: list[torch.Tensor]
    position_ids: list[torch.Tensor]
    advantages: list[torch.Tensor]
    response_masks: list[torch.Tensor]
    vllm_logprobs: list[torch.Tensor]


def test_the_probes_batch_gives_a_token_its_rows_advantage_where_open_instructs_loss_looks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss takes columns from the second place on, as packed rows were recorded: the first token is no target."""
    monkeypatch.setitem(sys.modules, "open_instruct", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "open_instruct.data_types", SimpleNamespace(CollatedBatchData=CollatedBatchData))
    made = list(batches(objective_of(), off_policy=True))
    batch = probe._batch(made)
    rows = 0
    for part, *columns in zip(
        made, batch.response_masks, batch.advantages, batch.vllm_logprobs, batch.query_responses, strict=True
    ):
        mask, advantages, old, ids = (column[:, 1:] for column in columns)
        assert not columns[0][:, 0].any()
        for row, tokens in enumerate(part.lengths):
            assert mask[row].tolist() == [place < tokens for place in range(mask.shape[1])]
            assert advantages[row, :tokens].tolist() == [pytest.approx(ADVANTAGES[rows])] * tokens
            assert old[row].tolist() == part.old[row].tolist()
            rows += 1
        assert ids.shape == mask.shape
    assert rows == len(ADVANTAGES)
    assert len(set(ADVANTAGES)) > 2, "another row's advantage shows"

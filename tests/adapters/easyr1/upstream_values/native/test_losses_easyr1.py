"""The formulas by which EasyR1's gradients are measured, against the derivatives of its own losses and KL estimates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.kit.objectives import kl_losses, policy_losses
from batchbridge.reading.read import read
from batchbridge_easyr1.watching import surrogates
from batchbridge_on_cpu.upstream_values import read as record_of

VALUES = record_of(Path(__file__).parents[1] / "values.json")["values"]
CONFIG = SimpleNamespace(tau_positive=1.0, tau_negative=1.05)


def objective_of(*more: str) -> Any:
    command = ["python3", "-m", "verl.trainer.main", "trainer.n_gpus_per_node=1", "trainer.max_steps=2"]
    command += [
        "worker.actor.clip_ratio_low=0.2",
        "worker.actor.clip_ratio_high=0.3",
        "worker.actor.clip_ratio_dual=3.0",
    ]
    reading = read([*command, *more], version="0.3.3.dev0", dataset_size=512)
    assert reading.spec is not None, reading.findings
    return reading.spec.objective


@pytest.mark.parametrize("case", [name for name in VALUES["losses"] if name != "ratios"])
def test_a_loss_that_is_read_off_the_configuration_has_easyr1s_own_derivative(case: str) -> None:
    name, advantage = case.split()
    objective = objective_of(f"worker.actor.loss_type={name}", "algorithm.disable_kl=true")
    new = (torch.tensor(VALUES["losses"]["ratios"])[:, None] - 1.0).requires_grad_()
    ones = torch.ones_like(new)
    own = surrogates(CONFIG, objective).get(objective.surrogate or "")
    policy_losses(objective, new, -ones, ones, float(advantage) * ones, own).sum().backward()
    assert new.grad is not None
    assert new.grad[:, 0].tolist() == pytest.approx(VALUES["losses"][case], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", ["kl", "abs", "mse", "low_var_kl"])
def test_a_kl_term_that_is_read_off_the_configuration_is_easyr1s_own(name: str) -> None:
    objective = objective_of("algorithm.use_kl_loss=true", f"algorithm.kl_penalty={name}", "algorithm.kl_coef=0.5")
    new = torch.tensor(VALUES["divergences"]["differences"])[:, None].requires_grad_()
    found = kl_losses(objective, new, new.detach(), torch.zeros_like(new), torch.ones_like(new))
    assert found is not None
    found.sum().backward()
    values, gradients = VALUES["divergences"][name]
    assert new.grad is not None
    assert (found[:, 0] / 0.5).tolist() == pytest.approx(values, rel=1e-5, abs=1e-6)
    assert (new.grad[:, 0] / 0.5).tolist() == pytest.approx(gradients, rel=1e-5, abs=1e-6)

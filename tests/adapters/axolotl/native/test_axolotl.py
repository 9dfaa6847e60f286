"""axolotl's `AxolotlGRPOTrainer`, as axolotl makes it: wrapped and enforced without a word of `allow`. By name:
`nox -s axolotl`; what is refused and noticed of any derived class is in TRL's own tests (test_own_methods.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from axolotl.core.trainers.grpo.args import AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import AxolotlAsyncGRPOTrainer, AxolotlGRPOTrainer
from axolotl.integrations.base import BasePlugin, PluginManager

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.ledger import diff
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.scripts import module_at
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, scripted_trainer

tampering = module_at(Path(__file__).parents[2] / "trl" / "native" / "tampering.py", "trl_tampering")

SPLIT = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
SCHEDULES: dict[str, dict[str, Any]] = {
    "transformers' own": {"lr_scheduler_type": "linear"},
    "rex": {"alternate_lr_scheduler_type": "rex"},
    "one_cycle": {"alternate_lr_scheduler_type": "one_cycle", "lr_scheduler_kwargs": {}},
    "cosine with a floor": {"lr_scheduler_type": "cosine", "cosine_min_lr_ratio": 0.1},
    "jagged restarts": {"lr_scheduler_type": "cosine", "jagged_restart_steps": 3},
}
"""axolotl's own schedules, by the settings that choose them."""
ASKS = pytest.mark.filterwarnings("ignore:To get the last learning rate computed:UserWarning")
"""Its jagged restarts ask the schedule within for its rate, as torch warns of."""


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds axolotl's trainer, of its own configuration, in the place of TRL's."""
    monkeypatch.setattr(trl, "GRPOTrainer", AxolotlGRPOTrainer)
    monkeypatch.setattr(trl, "GRPOConfig", AxolotlGRPOConfig)
    torch.manual_seed(0)

    def build(folder: str = "out", **arguments: Any) -> Any:
        built = scripted_trainer(tmp_path / folder, **arguments)
        assert type(built) is AxolotlGRPOTrainer
        return built

    return build


@ASKS
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_step_has_the_oracles_gradient(trainer: Callable[..., Any], schedule: str, loss_type: str) -> None:
    reference = tiny_policy(seed=1)
    arguments = {"loss_type": loss_type, "beta": 0.1, "reference": reference, "num_train_epochs": 2, **SPLIT}
    built = wrap(trainer(**arguments | SCHEDULES[schedule]))
    assert built.batchbridge.evidence.control == ()
    assert len(built.batchbridge.evidence.by_effect) == 2
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    assert built.state.global_step == plan.total_optimizer_steps == len(captured.gradients)
    for found in gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4):
        assert found.error <= found.bar, found


def test_negative_control_as_axolotl_starts_it_the_gradients_are_others(trainer: Callable[..., Any]) -> None:
    built = trainer(loss_type="bnpo", num_train_epochs=2, **SPLIT)
    plan = wrap(trainer("wrapped", loss_type="bnpo", num_train_epochs=2, **SPLIT)).batchbridge.plan
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    found = gradient_errors(captured, plan.spec, plan=plan, steps=4)
    assert max(each.error for each in found) > 0.1, found


@pytest.mark.parametrize("way", tampering.WAYS)
def test_a_step_that_is_tampered_with_is_not_applied(trainer: Callable[..., Any], way: str) -> None:
    tamper, aspect = tampering.WAYS[way]
    found = tampering.stopped(tamper(wrap(trainer(**tampering.RUN))))
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, aspect, False), found


class Planted(BasePlugin):  # type: ignore[misc]  # axolotl is untyped here
    """A plugin of axolotl's that makes the schedule, and does something more."""

    more: Callable[[Any], None]

    def create_lr_scheduler(self, cfg: Any = None, trainer: Any = None, optimizer: Any = None, **others: Any) -> Any:
        """A constant schedule."""
        type(self).more(trainer)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def _doubles_the_loss(trainer: Any) -> None:
    native = trainer.compute_loss
    trainer.compute_loss = lambda *words, **options: 2 * native(*words, **options)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (_doubles_the_loss, "changed compute_loss"),
        (lambda trainer: setattr(trainer.args, "num_iterations", 3), r"changed args\.num_iterations"),
    ],
)
def test_a_plugin_whose_schedule_changes_the_run_beside_ends_it(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, more: Any, said: str
) -> None:
    monkeypatch.setattr(Planted, "more", more, raising=False)
    monkeypatch.setattr(PluginManager.get_instance(), "plugins", {"planted": Planted()})
    with pytest.raises(BatchDrift, match=said) as drift:
        wrap(trainer(max_steps=2)).train()
    assert drift.value.step == 0


def test_a_plugins_schedule_alone_is_followed(trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planted, "more", lambda trainer: None, raising=False)
    monkeypatch.setattr(PluginManager.get_instance(), "plugins", {"planted": Planted()})
    built = wrap(trainer(max_steps=2))
    built.train()
    assert built.state.global_step == 2


@ASKS
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_goes_on_from_a_checkpoint_inside_a_rollout_as_if_nothing_had_happened(
    trainer: Callable[..., Any], tmp_path: Path, schedule: str
) -> None:
    run = {**SPLIT, "num_iterations": 2, "num_train_epochs": 1, "optim": "adamw_torch", "learning_rate": 3e-3}
    run |= {"save_strategy": "steps", "save_steps": 5, **SCHEDULES[schedule]}
    whole = wrap(trainer("whole", **run), ledger=tmp_path / "whole_ledger")
    whole.train()
    resumed = wrap(trainer("resumed", **run), ledger=tmp_path / "resumed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    compared = diff(tmp_path / "whole_ledger", tmp_path / "resumed_ledger", exact=True)
    assert compared.equal, compared.text()


def test_two_ranks_under_ddp_have_the_oracles_gradient(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone")
    script = str(Path(__file__).with_name("two_ranks_run.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    ran = subprocess.run([*words, script, str(tmp_path)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["class"] == ["AxolotlGRPOTrainer", "DistributedDataParallel"]
    assert found["steps"] == [3, 3, 3]
    assert max(found["errors"]) <= 1, found


def test_its_asynchronous_trainer_stays_refused(trainer: Callable[..., Any]) -> None:
    built = trainer()
    built.__class__ = AxolotlAsyncGRPOTrainer
    with pytest.raises(CannotAttach) as refused:
        wrap(built)
    assert "unproven_code" in refused.value.reasons

"""The whole state of a checkpoint: what another framework goes on from, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import CannotAttach, wrap
from batchbridge.kit import checkpoints
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.kit.whole_state import WHOLE, WholeState, load
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has
from batchbridge_trl.testing import scripted_trainer
from batchbridge_trl.whole import main, of_checkpoint

pytestmark = pytest.mark.skipif(not has(">=1.16"), reason="the newest release: others were not run")

RUN: dict[str, Any] = {
    # rollouts of 2 prompts, 2 optimizer steps over each
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_train_epochs": 1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": None,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    wrap(scripted_trainer(folder / "out", **RUN), ledger=folder / "ledger").train()
    return folder / "out"


def linear(policy: torch.nn.Module) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """An optimizer with one group, and a schedule, at their beginning."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1.0, weight_decay=0.5, fused=False)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6))


def saved(run: Path, step: int) -> dict[str, Any]:
    names = ("optimizer.pt", "scheduler.pt")
    return {name: torch.load(run / f"checkpoint-{step}" / name, weights_only=True) for name in names}


def test_a_state_between_rollouts_is_named_and_comes_back(run: Path, tmp_path: Path) -> None:
    """In a model, an optimizer and a schedule of one group, at their beginning."""
    assert main([str(run / "checkpoint-2"), str(tmp_path / "global_step_1")]) == 0
    state = checkpoints.read(tmp_path / "global_step_1")
    assert state is not None
    assert (state["optimizer_steps"], state["rollouts"]) == (2, 1)
    policy = tiny_policy(seed=5)
    optimizer, schedule = linear(policy)
    load(WholeState.read(tmp_path / "global_step_1"), policy, optimizer, schedule, where="here")

    there = type(policy).from_pretrained(run / "checkpoint-2")
    for (name, one), (_, other) in zip(policy.named_parameters(), there.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    own, native = optimizer.state_dict(), saved(run, 2)
    groups = native["optimizer.pt"]["param_groups"]
    assert len(groups) == 2, "transformers has one for what is decayed, and one for the rest"
    order = names_in_order(groups, policy)
    for number, (name, _) in enumerate(policy.named_parameters()):
        for kept, value in native["optimizer.pt"]["state"][order.index(name)].items():
            assert torch.equal(own["state"][number][kept], value), (name, kept)
    (group,) = own["param_groups"]
    assert (group["lr"], group["weight_decay"], group["fused"]) == (groups[0]["lr"], 0.0, False)
    place = schedule.state_dict()
    assert (place["last_epoch"], place["base_lrs"], place["_last_lr"]) == (2, [3e-3], [groups[0]["lr"]])
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(3e-3 * (1 - 3 / 6))


def names_in_order(groups: list[dict[str, Any]], policy: Any) -> list[str]:
    """The parameters in the order of transformers' groups, from the sizes of what it decays: matrices first."""
    names = [name for name, _ in policy.named_parameters()]
    first = [name for name in names if "norm" not in name]
    assert len(first) == len(groups[0]["params"])
    return [*first, *(name for name in names if name not in first)]


def test_a_checkpoint_inside_a_rollout_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run / "checkpoint-3"), str(tmp_path / "global_step_1")]) == 2
    assert (
        "checkpoint-3 lies inside rollout 1, whose completions another framework has no place"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "global_step_1").exists()


def test_a_folder_that_is_there_is_left_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run / "checkpoint-2"), str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def without_names(folder: Path) -> None:
    state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    del state["optimizer_names"]
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")


def change(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        state = torch.load(folder / "optimizer.pt", weights_only=True)
        change(state)
        torch.save(state, folder / "optimizer.pt")

    return changed


def adapting(folder: Path) -> None:
    (file,) = (folder / "batchbridge").glob("rank-*.pt")
    torch.save(torch.load(file, weights_only=True) | {"terms": {"coefficient": 1.0}}, file)


@pytest.mark.parametrize(
    ("tampered", "said"),
    [
        (without_names, "does not name the optimizer's parameters: it was written by an earlier version"),
        (lambda folder: (folder / STATE_FILE).unlink(), "it was not written by a wrapped run"),
        (lambda folder: (folder / "scheduler.pt").unlink(), "scheduler.pt is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: torch.save({}, folder / "batchbridge" / "reference.pt"), "its reference model has moved"),
        (adapting, "its entropy bonus adapts"),
        (change(lambda state: state["param_groups"][0].update(weight_decay=0.1)), "groups differ in weight_decay"),
        (change(lambda state: state["state"][3].pop("exp_avg_sq")), "keeps exp_avg, step of .*, and AdamW step"),
        (change(lambda state: state["param_groups"].pop()), "16 parameters in the optimizer, and 21 names"),
    ],
)
def test_what_another_framework_would_not_go_on_with_is_refused(
    run: Path, tmp_path: Path, tampered: Callable[[Path], None], said: str
) -> None:
    folder = Path(shutil.copytree(run / "checkpoint-2", tmp_path / "checkpoint-2"))
    tampered(folder)
    with pytest.raises(CannotAttach, match=said):
        of_checkpoint(folder)


def test_a_state_of_another_model_is_refused_before_a_value_changes(run: Path, tmp_path: Path) -> None:
    state, _ = of_checkpoint(run / "checkpoint-2")
    policy = tiny_policy(seed=5)
    before = [parameter.clone() for parameter in policy.parameters()]
    optimizer, schedule = linear(policy)
    lacking = WholeState(**vars(state) | {"weights": {n: v for n, v in state.weights.items() if "norm" not in n}})
    with pytest.raises(
        CannotAttach, match=r"weights there and here differ in model\.layers\.0\.input_layernorm\.weight"
    ):
        load(lacking, policy, optimizer, schedule, where="here")
    fewer = WholeState(**vars(state) | {"moments": dict(list(state.moments.items())[1:])})
    with pytest.raises(
        CannotAttach, match=r"the optimizer's parameters there and here differ in model\.embed_tokens\.weight"
    ):
        load(fewer, policy, optimizer, schedule, where="here")
    wider = WholeState(
        **vars(state) | {"weights": {n: v.repeat(2, *[1] * (v.dim() - 1)) for n, v in state.weights.items()}}
    )
    with pytest.raises(CannotAttach, match="has other sizes there: it is of another model"):
        load(wider, policy, optimizer, schedule, where="here")
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), before, strict=True))


def test_a_file_that_is_cut_off_is_refused(run: Path, tmp_path: Path) -> None:
    state, _ = of_checkpoint(run / "checkpoint-2")
    state.write(tmp_path)
    file = tmp_path / WHOLE
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CannotAttach, match=r"cannot be read .*; make it anew"):
        WholeState.read(tmp_path)

"""`wrap(trainer, tokens_per_device="auto")`: a budget that is found meanwhile trains the same gradient, and no error of
a full memory reaches the user. One process, and two (torchrun, gloo), which run `found_budget_run.py`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from found_budgets import LIMIT, ONE_STEP, STEPS, lost, run, script

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.kit import device_memory
from batchbridge.kit.found_budgets import SHARE
from batchbridge.ledger import read_steps
from batchbridge_on_cpu.limited_memory import LimitedMemory
from batchbridge_trl import releases
from batchbridge_trl.found_budget import PROVEN
from batchbridge_trl.testing import scripted_trainer

pytestmark = pytest.mark.skipif(not releases.has(PROVEN), reason="this TRL is refused")
SCRIPT = Path(__file__).parent / "found_budget_run.py"


def test_a_cold_start_fills_the_memory_and_trains_the_plans_gradients(tmp_path: Path) -> None:
    memory = LimitedMemory(LIMIT, lost)
    seen = run(tmp_path, memory)
    assert len(seen.captured.gradients) == STEPS
    for found in seen.errors(None if STEPS <= 12 else 12):
        assert found.error <= found.bar, found
    assert {*memory.failed_in} == {"forward", "backward"}, "the memory was lost in some passes"
    assert not any(memory.left_behind), "nothing of a failed pass is in the way of its repeat"
    told = [one for step in read_steps(tmp_path / "ledger") for one in (step["halved_budgets"] or [[]])[0]]
    assert len(told) == len(memory.failed_in)
    assert all(passes in ("training", "scoring") and after <= before for passes, before, after in told)
    assert memory.most > 0.75 * SHARE * LIMIT


def test_completions_that_lie_end_to_end_train_the_plans_gradients(tmp_path: Path) -> None:
    memory = LimitedMemory(LIMIT, lost)
    seen = run(tmp_path, memory, padding="auto", max_steps=4)
    assert "completions lie end to end" in seen.trainer.batchbridge.notes
    assert memory.failed_in
    for found in seen.errors():
        assert found.error <= found.bar, found


def test_a_budget_that_is_found_logs_what_a_given_one_does(tmp_path: Path) -> None:
    found, given = (run(tmp_path / str(how), LimitedMemory(LIMIT), how, max_steps=4) for how in ("auto", 100))
    assert_logged_alike(found.logged(), given.logged())


def assert_logged_alike(found: list[dict[str, float]], given: list[dict[str, float]]) -> None:
    assert len(found) == len(given)
    for mine, its in zip(found, given, strict=True):
        assert mine.keys() == its.keys() > {"loss", "kl"}
        for name, value in its.items():
            assert mine[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("what", ["gradients_apart", "attempt"])
def test_a_repeat_that_leaves_half_a_gradient_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The control: nothing of a failed pass is undone; or the gradients are, and what was seen of them is not."""
    if what == "gradients_apart":
        monkeypatch.setattr(device_memory, "gradients_apart", lambda parameters: contextlib.nullcontext())
    else:
        monkeypatch.setattr("batchbridge.kit.step_probe.StepProbe.attempt", lambda probe: contextlib.nullcontext())
    with pytest.raises(BatchDrift, match="in its gradient"):
        run(tmp_path, LimitedMemory(LIMIT, lost), max_steps=3)


def test_a_completion_that_does_not_fit_alone_ends_the_run_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"tokens .* cannot be cut: shorten completions"):
        run(tmp_path, LimitedMemory(LIMIT // 6))


def test_a_pass_that_failed_leaves_random_numbers_and_gradients_as_they_were() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    inputs, cpu = torch.ones(4, 3), torch.device("cpu")

    def once(*, fails: bool) -> None:
        with device_memory.gradients_apart(layer.parameters()), device_memory.same_random(cpu):
            layer(inputs).sum().backward()
            if fails:
                raise torch.cuda.OutOfMemoryError

    torch.manual_seed(1)
    once(fails=False)
    once(fails=False)
    expected = [one.grad.clone() for one in layer.parameters() if one.grad is not None]
    layer.zero_grad()
    torch.manual_seed(1)
    once(fails=False)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        once(fails=True)
    once(fails=False)
    assert all(torch.equal(one.grad, want) for one, want in zip(layer.parameters(), expected, strict=True))


def test_without_a_limit_nothing_is_found(trainer: Callable[..., Any]) -> None:
    with pytest.raises(CannotAttach, match=r"found_budget.*CPU.*give a number of tokens"):
        wrap(trainer(), tokens_per_device="auto")
    for mode in ("verify", "observe"):
        with pytest.raises(ValueError, match="tokens_per_device"):
            wrap(trainer(), mode=mode, tokens_per_device="auto")


def test_hooks_on_parameters_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "memory_of", lambda device: LimitedMemory(LIMIT))
    built = scripted_trainer(tmp_path, script=script(), **{**ONE_STEP, "beta": 0.0})
    next(built.model.parameters()).register_post_accumulate_grad_hook(_looks)
    with pytest.raises(CannotAttach, match=r"found_budget.*hooks on parameters.*_looks"):
        wrap(built, tokens_per_device="auto")


def _looks(parameter: torch.Tensor) -> None:
    pass


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("found_budget")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-20000:]
    return [
        {**json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")), "folder": folder} for rank in (0, 1)
    ]


def test_two_ranks_of_different_memory_run_as_many_turns(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    assert first["turns"] == second["turns"]
    assert second["failed_in"]
    assert not first["failed_in"]
    assert first["most"] < LIMIT < second["most"], "each rank has a budget of its own"
    for rank in ranks:
        for one in rank["errors"]:
            assert one["error"] <= one["bar"], one
    told = [step["halved_budgets"] for step in read_steps(first["folder"] / "found" / "ledger")]
    assert any(told)
    assert sum(len(of_step[1]) for of_step in told if of_step) == len(second["failed_in"])
    assert all(of_step[0] is None for of_step in told if of_step)


def test_two_ranks_log_what_a_given_budget_does(ranks: list[dict[str, Any]]) -> None:
    assert_logged_alike(*ranks[0]["logged"])

"""Mode "observe" never ends a run: where our reading fails, at any step of it, the run goes on as it would without us,
and the terminal and the ledger say from which step on nothing was observed, and why."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from batchbridge import CannotAttach, wrap
from batchbridge.kit import measuring
from batchbridge.ledger import Writer, diff, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge_trl import observe, recording
from batchbridge_trl.testing import flat_parameters
from batchbridge_trl.watching import TrlStepProbe

RUN = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "max_steps": 6,
    "max_grad_norm": 0.5,
}
SEEN_BEFORE = 3
READERS: Mapping[str, tuple[Any, str]] = {
    "the training step": (observe.TrlObserver, "_training_step"),
    "the loss": (observe.TrlObserver, "_loss"),
    "the rows of the loss": (observe, "rows_of"),
    "generation": (observe.TrlObserver, "_generate"),
    "the facts of a rollout": (observe, "facts_of"),
    "the rewards": (recording.RewardTap, "_keep"),
    "the batches": (observe._RecordedBatches, "_keep"),
    "the log-probabilities": (TrlStepProbe, "_expecting_reference"),
    "a gradient, inside of backward": (measuring._MicroBatch, "arrive"),
    "the norm": (TrlStepProbe, "_clip"),
    "the measuring": (recording.TrlLayer, "measure"),
    "the writing": (Writer, "append"),
}
"""Each kind of our reading code: where it stands."""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights of the run without BatchBridge."""
    from batchbridge_trl.testing import scripted_trainer

    torch.manual_seed(0)
    plain = scripted_trainer(tmp_path_factory.mktemp("plain"), **RUN)
    plain.train()
    return flat_parameters(plain.model)


def failing(monkeypatch: pytest.MonkeyPatch, built: Any, reader: str, error: Exception) -> None:
    """Lets one of our functions fail from optimizer step `SEEN_BEFORE` on."""
    owner, name = READERS[reader]
    ours = getattr(owner, name)

    def fails(*arguments: Any, **options: Any) -> Any:
        if built.state.global_step >= SEEN_BEFORE:
            raise error
        return ours(*arguments, **options)

    monkeypatch.setattr(owner, name, fails)


@pytest.mark.parametrize("reader", READERS)
def test_a_failure_of_ours_ends_the_observing_and_not_the_run(
    trainer: Callable[..., Any],
    native: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    reader: str,
) -> None:
    built = trainer(**RUN)
    failing(monkeypatch, built, reader, KeyError("a field that is not there"))
    wrap(built, mode="observe", ledger=tmp_path / "ledger").train()
    assert built.state.global_step == 6
    assert torch.equal(flat_parameters(built.model), native)
    said = capsys.readouterr().err
    assert said.count("batchbridge: the observing has ended, and the run goes on: KeyError: 'a field") == 1
    steps = read_steps(tmp_path / "ledger")
    seen = len(list(steps))
    assert 0 < seen <= SEEN_BEFORE + 1
    assert f"nothing was observed from optimizer step {seen} on, the run went on: KeyError" in (steps.incomplete or "")


@pytest.mark.parametrize("reader", ["the loss", "the measuring"])
def test_the_same_failure_stops_a_run_that_is_verified_or_enforced(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    built = trainer(max_steps=6, loss_type="grpo", shuffle_dataset=False, per_device_train_batch_size=4)
    failing(monkeypatch, built, reader, KeyError("a field that is not there"))
    with pytest.raises(KeyError, match="a field"):
        wrap(built, mode="verify").train()
    assert built.state.global_step == SEEN_BEFORE
    monkeypatch.undo()
    enforced = trainer("enforced", max_steps=6)
    failing(monkeypatch, enforced, "the measuring", KeyError("a field that is not there"))
    with pytest.raises(KeyError, match="a field"):
        wrap(enforced).train()


def test_an_error_of_the_users_own_code_passes_as_it_is(trainer: Callable[..., Any], tmp_path: Path) -> None:
    """Through all of our functions, the innermost first; and the ledger ends where the run does."""
    built = trainer(**RUN)
    loss = built._compute_loss

    def broken(model: Any, inputs: Any) -> Any:
        if built.state.global_step == SEEN_BEFORE:
            raise ZeroDivisionError("the user's own")
        return loss(model, inputs)

    built._compute_loss = broken
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        wrap(built, mode="observe", ledger=tmp_path / "ledger").train()
    steps = read_steps(tmp_path / "ledger")
    assert ([step["step"] for step in steps], steps.incomplete) == ([0, 1, 2], None)


class Renamed(GRPOTrainer):  # type: ignore[misc]  # trl is untyped here
    """A trainer with a batch of its own: a column has another name between generation and loss."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        output["question_mask"] = output.pop("prompt_mask")
        return output

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, {**inputs, "prompt_mask": inputs["question_mask"]})


def test_a_trainer_with_a_batch_of_its_own_trains_as_it_would(trainer: Callable[..., Any], tmp_path: Path) -> None:
    plain = trainer("plain", **RUN)  # the constructor seeds the global random state: one after the other
    plain.__class__ = Renamed
    plain.train()
    built = trainer("observed", **RUN)
    built.__class__ = Renamed
    wrap(built, mode="observe", ledger=tmp_path / "ledger", allow=["unproven_code"]).train()
    assert torch.equal(flat_parameters(built.model), flat_parameters(plain.model))
    steps = read_steps(tmp_path / "ledger")
    assert not list(steps)
    assert "nothing was observed from optimizer step 0 on" in (steps.incomplete or "")


def test_a_full_disk_ends_the_observing(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What cannot be written cannot say so in the ledger; the terminal does."""
    built = trainer(**RUN)
    failing(monkeypatch, built, "the writing", OSError(errno.ENOSPC, "No space left on device"))
    ours = Writer.end

    def fails(self: Any, why: str) -> None:
        from batchbridge import LedgerError

        raise LedgerError(why, self.path)

    monkeypatch.setattr(Writer, "end", fails)
    wrap(built, mode="observe", ledger=tmp_path / "ledger").train()
    assert ours is not Writer.end
    assert built.state.global_step == 6
    assert "No space left" in capsys.readouterr().err


def test_readers_never_call_such_a_ledger_whole(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, short = trainer("whole", **RUN), trainer("short", **RUN)
    wrap(whole, mode="observe", ledger=tmp_path / "whole").train()
    failing(monkeypatch, short, "the loss", KeyError("a field that is not there"))
    wrap(short, mode="observe", ledger=tmp_path / "short").train()
    found = diff(tmp_path / "whole", tmp_path / "short")
    assert not found.equal
    assert "nothing was observed from optimizer step 3 on" in found.text()
    assert "nothing was observed from" in (verify(tmp_path / "short").incomplete or "")
    shown = subprocess.run(
        [sys.executable, "-m", "batchbridge", "ledger", "show", str(tmp_path / "short")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "incomplete: nothing was observed from optimizer step 3 on, the run went on: KeyError" in shown


TWO_RANKS = """
    import os, sys
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from batchbridge import wrap
    from batchbridge_trl import observe
    from batchbridge_trl.testing import flat_parameters, scripted_trainer

    folder = sys.argv[1]
    run = dict(per_device_train_batch_size=1, gradient_accumulation_steps=2, steps_per_generation=4, max_steps=4)
    built = scripted_trainer(folder + "/out", **run)
    native = observe.rows_of
    def rows_of(trainer, inputs):
        if os.environ["RANK"] == "1" and trainer.state.global_step == 2:
            raise KeyError("on one rank alone")
        return native(trainer, inputs)
    observe.rows_of = rows_of
    wrap(built, mode="observe", ledger=folder + "/ledger", report_to="trainer").train()
    assert built.state.global_step == 4
"""


def test_a_failure_on_one_rank_ends_the_observing_on_both(tmp_path: Path) -> None:
    """Nobody waits for the rank that has stopped looking."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TWO_RANKS), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    ran = subprocess.run(
        [*command, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    assert ran.stderr.count("the observing has ended") == 1
    steps = read_steps(tmp_path / "ledger")
    assert [step["step"] for step in steps] == [0, 1]
    assert "from optimizer step 2 on, the run went on: KeyError: 'on one rank alone'" in (steps.incomplete or "")
    for rank in (0, 1):
        assert "observing_ended" in (tmp_path / "ledger" / f"rank-{rank:05d}.jsonl").read_text(encoding="utf-8")


class WrapsItself(GRPOTrainer):  # type: ignore[misc]  # trl is untyped here
    """A trainer whose own `train` wraps it first."""

    allowed: tuple[str, ...] = ()

    def train(self, *arguments: Any, **options: Any) -> Any:
        wrap(self, allow=self.allowed)
        return super().train(*arguments, **options)


def test_wrap_inside_of_a_trainers_own_train_is_told_what_holds(trainer: Callable[..., Any]) -> None:
    built = trainer(max_steps=2)
    built.__class__ = WrapsItself
    with pytest.raises(CannotAttach) as refusal:
        built.train()
    assert list(refusal.value.reasons) == ["unproven_code"]
    assert "train" in refusal.value.reasons["unproven_code"]
    assert "batchbridge" not in vars(built)
    built.allowed = ("unproven_code",)
    built.train()
    assert built.state.global_step == 2
    assert built.batchbridge.mode == "enforce"


def refused(built: Any, **asked: Any) -> dict[str, str]:
    """The reasons of a refused `wrap`, which leaves the trainer as it was."""
    before, callbacks = dict(vars(built)), [*built.callback_handler.callbacks]
    with pytest.raises(CannotAttach) as refusal:
        wrap(built, **asked)
    assert vars(built) == before
    assert built.callback_handler.callbacks == callbacks
    return dict(refusal.value.reasons)


@pytest.mark.parametrize("mode", ["enforce", "verify", "observe"])
def test_a_copy_is_refused_by_its_name_before_its_configuration_is_read(trainer: Callable[..., Any], mode: str) -> None:
    """As ms-swift 4.6.0 builds it: a setting that no TRL takes, and attributes that its constructor never sets."""
    built = trainer()
    built.args.vllm_server_port = [8000]
    del built.multi_objective_aggregation
    built.__class__ = type("GRPOTrainer", (GRPOTrainer,), {"__module__": "swift.rlhf_trainers.grpo_trainer"})
    assert list(refused(built, mode=mode)) == ["ms_swift"]


@pytest.mark.parametrize(
    ("lacks", "named", "said"),
    [
        ("data_collator", "data_collator", "it cannot be told whether this holds"),
        ("use_vllm", "seam", "has no attribute 'use_vllm'"),
        ("beta", "weight_probe", "has no attribute 'beta'"),
    ],
)
def test_a_trainer_that_lacks_something_is_refused_by_a_name(
    trainer: Callable[..., Any], lacks: str, named: str, said: str
) -> None:
    """Asked for by a row, while it is patched, and by the probe."""
    built = trainer()
    delattr(built, lacks)
    reasons = refused(built)
    assert list(reasons) == [named]
    assert said in reasons[named]

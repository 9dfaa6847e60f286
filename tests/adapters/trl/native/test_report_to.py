"""`report_to="trainer"`: what TRL's own loggers get of every optimizer step is what the ledger says of it."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tampering import STEP, altered_loss
from transformers import TrainerCallback

from batchbridge import BatchDrift, unwrap, wrap
from batchbridge.kit import Row, token_weights
from batchbridge.kit.measuring import TOLERANCE
from batchbridge.ledger import read_headers, read_steps
from batchbridge.ledger.verifying import WIDEST_TOLERANCE, verify
from batchbridge.meaning.spec import Spec
from batchbridge_trl import releases
from batchbridge_trl.testing import undivided

SCRIPT = Path(__file__).with_name("reporting_script.py")
BIN = Path(sys.executable).parent
LOGGED = {"logging_strategy": "steps", "logging_steps": 1}
NAMES = ("batchbridge/completions", "batchbridge/response_tokens", "batchbridge/drift", "batchbridge/padding_saved")


def of_ledger(folder: Path) -> list[dict[str, float]]:
    """What each step should be logged as, without padding: from the ledger's columns and the definition alone."""
    term = Spec.from_dict(read_headers(folder)[0]["spec"]).loss.policy
    found = []
    for step in read_steps(folder):
        tokens = step["response_tokens"]
        groups = zip(step["rollout"], step["prompt"], strict=True)
        planned = token_weights(term, [Row(tokens=n, group=group) for n, group in zip(tokens, groups, strict=True)])
        off = [
            abs(Fraction(measured) / weight - 1)
            for measured, weight in zip(step["weights"], planned, strict=True)
            if weight and measured is not None
        ]
        found.append(
            {
                "batchbridge/completions": len(tokens),
                "batchbridge/response_tokens": sum(tokens),
                "batchbridge/drift": pytest.approx(float(max(off)), abs=1e-12),
            }
        )
    return found


def history(trainer: Any) -> list[dict[str, float]]:
    """The numbers in what the trainer logged, by log."""
    logs = [{name: log[name] for name in NAMES if name in log} for log in trainer.state.log_history]
    return [log for log in logs if log]


# ---- one process


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_the_logs_of_every_step_say_what_the_ledger_says(
    trainer: Callable[..., Any], tmp_path: Path, mode: Any
) -> None:
    # bnpo is natively a mean over each micro-batch's tokens.
    cut = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "loss_type": "bnpo"}
    built = undivided(trainer(**LOGGED, **cut, num_train_epochs=1))
    wrap(built, mode=mode, ledger=tmp_path / "ledger", report_to="trainer")
    built.train()
    assert history(built) == of_ledger(tmp_path / "ledger")
    assert len(history(built)) == built.state.global_step > 3
    assert all(0 <= log["batchbridge/drift"] < 1e-5 for log in history(built)) == (mode == "enforce")


def test_several_steps_between_two_logs_are_one_mean_and_the_largest_drift(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    built = trainer(logging_strategy="steps", logging_steps=4, num_train_epochs=1, gradient_accumulation_steps=1)
    wrap(built, ledger=tmp_path / "ledger", report_to="trainer")
    built.train()
    steps, (log,) = of_ledger(tmp_path / "ledger"), history(built)
    assert len(steps) == 3  # fewer than four: what is left goes into the log at the end of training
    assert log["batchbridge/response_tokens"] == sum(step["batchbridge/response_tokens"] for step in steps) / 3
    assert any(log["batchbridge/drift"] == step["batchbridge/drift"] for step in steps)


def test_a_loss_that_is_doubled_shows_as_a_drift_of_one(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = undivided(trainer(**LOGGED, loss_type="bnpo", gradient_accumulation_steps=1))
    native = built._compute_loss
    built._compute_loss = lambda model, inputs: 2 * native(model, inputs)
    wrap(built, mode="observe", ledger=tmp_path / "ledger", report_to="trainer")
    built.train()
    assert [log["batchbridge/drift"] for log in history(built)] == [pytest.approx(1.0)] * built.state.global_step
    assert history(built) == of_ledger(tmp_path / "ledger")


def test_the_drift_that_ends_a_run_is_logged_under_its_own_step(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = trainer(**LOGGED)
    wrap(built, ledger=tmp_path / "ledger", report_to="trainer")
    altered_loss(built)
    with pytest.raises(BatchDrift):
        built.train()
    *sound, last = history(built)
    assert sound == of_ledger(tmp_path / "ledger")
    assert len(sound) == STEP
    assert last["batchbridge/drift"] == pytest.approx(6.0)
    assert built.state.log_history[-1]["step"] == STEP + 1


@pytest.mark.parametrize("budget", [None, 40])
def test_the_padding_that_a_token_budget_saves_is_logged_and_else_nothing_of_it(
    trainer: Callable[..., Any], budget: int | None
) -> None:
    built = trainer(**LOGGED, num_train_epochs=1)
    seen: list[tuple[Any, Any]] = []
    native = built._compute_loss

    def spy(model: Any, inputs: Any) -> Any:
        seen.append((inputs["prompt_mask"].tolist(), inputs["completion_mask"].tolist()))
        return native(model, inputs)

    built._compute_loss = spy
    wrap(built, tokens_per_device=budget, report_to="trainer")
    seen.clear()  # the probe's
    ends = []
    log = built.log

    def at_a_log(logs: Any, *arguments: Any, **options: Any) -> None:
        ends.append(len(seen))
        log(logs, *arguments, **options)

    built.log = at_a_log
    built.train()
    saved = [each.get("batchbridge/padding_saved") for each in history(built)]
    if budget is None:
        assert saved == [None] * built.state.global_step
        return
    expected, start = [], 0
    for end in ends[: len(saved)]:
        computed = completions = prompt = response = 0
        for prompts, responses in seen[start:end]:
            computed += len(prompts) * (len(prompts[0]) + len(responses[0]))
            completions += sum(any(row) for row in responses)
            prompt = max(prompt, *map(sum, prompts))
            response = max(response, *map(sum, responses))
        expected.append(1 - computed / (completions * (prompt + response)))
        start = end
    assert saved == pytest.approx(expected)
    assert max(expected) > 0.2


def test_unwrap_and_another_wrap_take_it_away(trainer: Callable[..., Any]) -> None:
    built = trainer(**LOGGED, num_train_epochs=1)
    wrap(built, tokens_per_device=40, report_to="trainer")
    attachment = built.batchbridge
    assert "log" in vars(built)
    assert wrap(built, tokens_per_device=40, report_to="trainer").batchbridge is attachment
    wrap(built)
    assert "log" not in vars(built)
    built.train()
    assert history(built) == []
    wrap(built, report_to="trainer")
    unwrap(built)
    assert "log" not in vars(built)


def test_the_drift_that_is_rounding_for_a_reader_of_ledgers_is_the_widest_that_a_step_passes_with() -> None:
    assert max(TOLERANCE.values()) == WIDEST_TOLERANCE


def closeness(folder: Path) -> dict[str, tuple[int, int, float | None]]:
    """Each check's (held, departed, largest difference), where it looked at anything."""
    checks = verify(folder).checks
    return {check.name: (check.held, check.departed, check.largest) for check in checks if check.held or check.departed}


@pytest.mark.parametrize("schedule", ["linear", "cosine", "cosine_with_min_lr", "constant_with_warmup"])
def test_every_number_of_a_wrapped_run_is_recomputed(
    trainer: Callable[..., Any], tmp_path: Path, schedule: str
) -> None:
    arguments = {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}} if schedule == "cosine_with_min_lr" else {}
    clock = {"lr_scheduler_type": schedule, "warmup_steps": 2, **arguments}
    built = wrap(trainer(num_train_epochs=1, num_iterations=2, **clock), ledger=tmp_path / "ledger")
    built.train()
    steps, found = built.state.global_step, closeness(tmp_path / "ledger")
    for name in ("membership", "denominators", "weights", "learning rate", "clock", "ranks"):
        assert found[name][:2] == (steps, 0), name
    for name in ("advantages", "passes"):
        assert found[name][0] > 0
        assert found[name][1] == 0
    assert found["learning rate"][2] == 0.0  # the same formula in float64
    assert found["advantages"][2] == pytest.approx(0.0, abs=1e-6)


def test_a_rate_that_a_callback_wrote_departs_from_the_schedule(trainer: Callable[..., Any], tmp_path: Path) -> None:
    built = trainer(num_train_epochs=1, lr_scheduler_type="constant")
    wrap(built, ledger=tmp_path / "ledger", allow=["learning_rate"])

    class Doubles(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            if state.global_step == 1:
                optimizer.param_groups[0]["lr"] *= 2

    built.add_callback(Doubles())
    built.train()
    found = verify(tmp_path / "ledger")
    departed = {check.name: [step for step, _ in check.departures] for check in found.checks if check.departed}
    assert departed == {"learning rate": [1]}


def test_a_schedule_that_stays_for_a_step_departs_by_the_rate_that_it_gives(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """An enforced run records the plan's ticks: what tells is the rate that the optimizer had."""
    built = wrap(trainer(num_train_epochs=1, lr_scheduler_type="linear"), ledger=tmp_path / "ledger")

    class Stays(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
            native, calls = lr_scheduler.step, iter(range(100))
            lr_scheduler.step = lambda *given: None if next(calls) == 0 else native(*given)

    built.add_callback(Stays())
    built.train()
    found = verify(tmp_path / "ledger")
    departed = {check.name: [step for step, _ in check.departures] for check in found.checks if check.departed}
    assert departed == {"learning rate": list(range(1, built.state.global_step))}


def test_another_place_to_report_to_is_refused(trainer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match='must be "trainer" or None'):
        wrap(trainer(), report_to="wandb")  # type: ignore[arg-type]  # what a user may try


# ---- real loggers, of launched commands


def launched(folder: Path, *words: str) -> None:
    """`batchbridge run --report-to trainer` of the script, in a process tree of its own."""
    command = [str(BIN / "batchbridge"), "run", "--report-to", "trainer", "--tokens-per-device", "40"]
    ran = subprocess.run(
        [*command, "--ledger", str(folder / "ledger"), "--", *words, str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]


def tensorboard(folder: Path) -> Iterator[dict[str, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    columns = {name: events.Scalars(f"train/{name}") for name in NAMES}
    for step in range(1, 1 + len(columns[NAMES[0]])):
        yield {name: value.value for name, values in columns.items() for value in values if value.step == step}


def trackio(folder: Path) -> Iterator[dict[str, float]]:
    with sqlite3.connect(folder / "trackio" / "batchbridge.db") as database:
        for (text,) in database.execute("select metrics from metrics order by id"):
            yield named(json.loads(text))


def wandb(folder: Path) -> Iterator[dict[str, float]]:
    """Records of W&B's offline file: a LevelDB log of protocol buffers, with a header of 7 bytes before each."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/wandb/offline-run-*/*.wandb")
    data, position, whole = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if not kind:
            break
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a record's whole, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            items = record.history.item
            yield named({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})


def named(logged: Mapping[str, Any]) -> dict[str, float]:
    return {name: logged[f"train/{name}"] for name in NAMES if f"train/{name}" in logged}


@pytest.mark.skipif(not releases.has(">=1.16"), reason="trackio, TensorBoard and W&B are in the newest TRL's session")
@pytest.mark.parametrize("ranks", [1, 2])
def test_tensorboard_trackio_and_wandb_get_the_ledgers_numbers_of_all_ranks(tmp_path: Path, ranks: int) -> None:
    torchrun = (str(BIN / "torchrun"), f"--nproc_per_node={ranks}", "--standalone")
    launched(tmp_path, *(torchrun if ranks > 1 else (sys.executable,)))
    assert {header["world_size"] for header in read_headers(tmp_path / "ledger")} == {ranks}
    expected = of_ledger(tmp_path / "ledger")
    assert expected[0]["batchbridge/completions"] == 4 * ranks
    for read, exact in ((tensorboard, False), (trackio, True), (wandb, True)):
        steps = [step for step in read(tmp_path) if step]
        saved = [step.pop("batchbridge/padding_saved") for step in steps]
        if exact:
            assert steps == expected, read.__name__
        else:  # its events are float32
            assert [list(step) for step in steps] == [list(step) for step in expected]
            for step, want in zip(steps, expected, strict=True):
                assert step["batchbridge/drift"] == want["batchbridge/drift"]
                assert step["batchbridge/response_tokens"] == want["batchbridge/response_tokens"]
        assert all(0 <= share < 1 for share in saved)
        assert max(saved) > 0.1


@pytest.mark.parametrize(("name", "factor"), [("lr", 1.5), ("weight_decay", 0.5), ("eps", 10)])
def test_a_value_of_a_group_that_a_callback_wrote_ends_the_run_before_the_update(
    trainer: Callable[..., Any], name: str, factor: float
) -> None:
    built = wrap(trainer(num_train_epochs=1, optim="adamw_torch", weight_decay=0.1, lr_scheduler_type="linear"))

    class Writes(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            if state.global_step == 1:
                optimizer.param_groups[0][name] *= factor

    built.add_callback(Writes())
    with pytest.raises(BatchDrift) as caught:
        built.train()
    aspect = {"lr": "learning_rate", "eps": "optimizer_settings"}.get(name, name)
    assert (caught.value.step, caught.value.aspect) == (1, aspect)
    assert f'allow=("{aspect}",)' in str(caught.value)

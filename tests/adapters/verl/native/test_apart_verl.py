"""L3: `python -m verl.experimental.one_step_off_policy.main_ppo`, observed: whose weights generated every completion.

CPU, gloo; four rollouts of two optimizer steps. verl's own are the trainer, its worker groups, the replicas with the
workers beside their engines, and who hands weights over and when; stand-ins are the engine, which keeps the weights
that it is given and generates nothing, and the transport, in place of NCCL (`batchbridge_on_cpu.verl.apart`). What
an engine held when a completion began is noted by the stand-ins alone, over all bytes of all weights.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge_on_cpu.verl.scripted import APART, ONE_STEP_OFF, apart, command, environment, prepare

pytestmark = [
    pytest.mark.by_hand,
    pytest.mark.skipif(importlib.metadata.version("verl") != "0.9.1", reason="observed on 0.9.1"),
]
ROLLOUTS, STEPS, GROUP, SIZE = 4, 2, 4, 24
"""Of a run; optimizer steps and completions of a rollout."""


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger, and the folder of what the stand-ins saw."""

    code: int
    text: str
    ledger: Path
    seen: Path

    def lines(self, name: str) -> list[list[str]]:
        return [line.split() for line in (self.seen / name).read_text(encoding="utf-8").splitlines()]

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        return list(read_steps(self.ledger))


def run(folder: Path, ranks: int, *more: str, **env: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    stock = command(folder, ranks, *apart(folder, ranks), f"trainer.total_training_steps={ROLLOUTS}", *more)
    words = [
        *(sys.executable, "-m", "batchbridge", "run", "--mode", "observe", "--ledger", str(folder / "ledger"), "--"),
        *(ONE_STEP_OFF if word == "verl.trainer.main_ppo" else word for word in stock),
    ]
    own = environment(os.environ)
    own["VERL_USE_EXTERNAL_MODULES"] += f",{APART}"
    own |= {"BATCHBRIDGE_APART": str(folder / "seen"), "BATCHBRIDGE_JITTER": "1", **env}
    ran = subprocess.run(
        words, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Run(ran.returncode, ran.stdout, folder / "ledger", folder / "seen")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Short: paths of Ray's sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="v", ignore_cleanup_errors=True) as folder:  # Ray may still be ending
        yield Path(folder)


@pytest.fixture(scope="module")
def observed(place: Path) -> Run:
    """On two ranks and an engine, evaluated before and between."""
    return run(place / "a", 2, "trainer.val_before_train=True", "trainer.test_freq=2")


@pytest.fixture(scope="module")
def tampered(place: Path) -> Run:
    """verl hands weights over as number 2, and nothing arrives; number 3 are changed on the way. Completions say that
    they are of version 99."""
    manager = f"+actor_rollout_ref.rollout.checkpoint_manager_class={APART}.Faulty"
    faults = {"BATCHBRIDGE_SKIP": "2", "BATCHBRIDGE_BEND": "3", "BATCHBRIDGE_STAMP": "99"}
    return run(place / "b", 1, manager, **faults)


def told(run: Run) -> dict[tuple[int, int, int], int]:
    """(rollout, prompt, sample) -> the optimizer step that the ledger says its weights are from."""
    names = ("rollout", "prompt", "sample", "generated_at_step")
    return {
        (rollout, prompt, sample): step
        for record in run.steps
        for rollout, prompt, sample, step in zip(*(record[name] for name in names), strict=True)
    }


def truth(run: Run) -> dict[tuple[int, int, int], int]:
    """The same, as the stand-ins saw it: what the engine held when the completion began, among all that the trainer
    sent. verl hands over number n after n - 1 rollouts, and number 0 before the first."""
    versions = {digest: STEPS * max(int(number) - 1, 0) for number, digest in reversed(run.lines("sent"))}
    made = run.lines("made")
    return {
        (place // SIZE, int(prompt), int(sample)): versions[digest]
        for place, (prompt, sample, digest) in enumerate(made)
    }


def test_the_ledger_says_of_every_completion_whose_weights_generated_it(
    observed: Run, record: Callable[..., None]
) -> None:
    assert observed.code == 0, observed.text[-20000:]
    found = told(observed)
    assert len(found) == ROLLOUTS * SIZE
    assert found == truth(observed)
    assert {rollout: step for (rollout, _, _), step in found.items()} == {0: 0, 1: 0, 2: 2, 3: 4}
    ages = [step["step"] - made for step in observed.steps for made in step["generated_at_step"]]
    assert sorted(set(ages)) == [0, 1, 2, 3]
    header = read_headers(observed.ledger)[0]
    assert (header["mode"], header["spec"]["staleness"]["mode"]) == ("observe", "lookahead")
    for step in observed.steps:
        assert step["ranks"] == 2
        assert step["gradient_norm"] > 1e-2
    record("one_step_off", "2 ranks", completions=len(found), oldest=max(ages))


def test_weights_that_never_arrived_are_no_version_whatever_says_so(tampered: Run, record: Callable[..., None]) -> None:
    assert [int(number) for number, _ in tampered.lines("given")] == [0, 1, 3]
    found = told(tampered)
    assert len(found) == 3 * SIZE
    assert found == truth(tampered)
    assert {rollout: step for (rollout, _, _), step in found.items()} == {0: 0, 1: 0, 2: 0}, "2 of it, had they arrived"
    ages = [step["step"] - made for step in tampered.steps for made in step["generated_at_step"]]
    record("one_step_off", "a hand-over that is left out", completions=len(found), oldest=max(ages))


def test_weights_that_were_changed_on_the_way_end_the_observing_and_not_the_run(tampered: Run) -> None:
    assert tampered.code == 0, tampered.text[-20000:]
    said = "weights_version: an engine that generates holds weights that this trainer did not hand over"
    assert said in tampered.text
    assert [step["step"] for step in tampered.steps] == [*range(3 * STEPS)]  # what was generated before is trained
    assert len(tampered.lines("made")) == ROLLOUTS * SIZE
    assert f"from optimizer step {3 * STEPS} on, the run went on" in (read_steps(tampered.ledger).incomplete or "")

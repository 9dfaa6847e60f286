"""L3: `python -m verl.experimental.fully_async_policy.fully_async_main`, observed: whose weights generated every
completion that comes out of its queue.

CPU, gloo; six rollouts of two optimizer steps, weights handed over after every second one. verl's own are trainer,
rollouter and queue, each in its process, and who hands weights over and when; stand-ins as in `test_apart_verl`. What
an engine held when a completion began is noted by the stand-ins alone, over all bytes of all weights. Between the
rollouter's look and the stand-in's beginning weights may arrive: the ledger may then have the older, never the newer.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge_on_cpu.verl.scripted import FULLY_ASYNC, QUEUED, command, environment, prepare, queued

pytestmark = [
    pytest.mark.by_hand,
    pytest.mark.skipif(importlib.metadata.version("verl") != "0.9.1", reason="observed on 0.9.1"),
]
PROMPTS, GROUP, SIZE, STEPS, SYNCHRONISED = 36, 4, 24, 2, 2
"""Of a run; completions of a prompt and of a rollout; optimizer steps of a rollout; rollouts per hand-over."""
AHEAD = 3
"""Rollouts whose prompts the rollouter begins before it waits for weights: half more than `SYNCHRONISED`."""


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


def run(
    folder: Path, ranks: int, *more: str, prompts: int = PROMPTS, total: int = 0, mode: str = "observe", **env: str
) -> Run:
    """prompts: of the dataset. total: those that are asked for; 0: each once."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, prompts=prompts)
    stock = command(folder, ranks, *queued(folder, ranks, total or prompts), *more)
    words = [
        *(sys.executable, "-m", "batchbridge", "run", "--mode", mode, "--ledger", str(folder / "ledger"), "--"),
        *(FULLY_ASYNC if word == "verl.trainer.main_ppo" else word for word in stock),
    ]
    own = environment(os.environ)
    own["VERL_USE_EXTERNAL_MODULES"] += f",{QUEUED}"
    own |= {"BATCHBRIDGE_APART": str(folder / "seen"), "BATCHBRIDGE_JITTER": "1", **env}
    ran = subprocess.run(
        words, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Run(ran.returncode, ran.stdout, folder / "ledger", folder / "seen")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Short: paths of Ray's sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="q", ignore_cleanup_errors=True) as folder:  # Ray may still be ending
        yield Path(folder)


@pytest.fixture(scope="module")
def observed(place: Path) -> Run:
    """On two ranks and an engine, evaluated before and between."""
    return run(place / "a", 2, "trainer.val_before_train=True", "trainer.test_freq=2")


@pytest.fixture(scope="module")
def tampered(place: Path) -> Run:
    """verl counts a hand-over of weights as number 1, and none are sent; number 2 are sent, and the engine takes none;
    number 3 are changed on the way. Completions say that they are of version 99."""
    faults = {"BATCHBRIDGE_SKIP": "1", "BATCHBRIDGE_LOSE": "2", "BATCHBRIDGE_BEND": "3", "BATCHBRIDGE_STAMP": "99"}
    return run(place / "b", 1, prompts=60, **faults)


@pytest.fixture(scope="module")
def resumed(place: Path) -> Run:
    """Two hand-overs, saved; the run goes on from there in other processes."""
    half = PROMPTS * 2 // 3
    first = run(place / "d", 1, "trainer.save_freq=2", total=half)
    assert first.code == 0, first.text[-20000:]
    return run(place / "d", 1, "trainer.resume_mode=auto")


def told(run: Run) -> dict[tuple[int, int], int]:
    """(prompt, sample) -> the optimizer step that the ledger says its weights are from; every prompt is there once."""
    names = ("prompt", "sample", "generated_at_step")
    rows = [row for record in run.steps for row in zip(*(record[name] for name in names), strict=True)]
    found = {(prompt, sample): step for prompt, sample, step in rows}
    assert len(found) == len(rows)
    return found


def truth(run: Run) -> dict[tuple[int, int], int]:
    """The same, as the stand-ins saw it."""
    versions = {digest: STEPS * SYNCHRONISED * int(number) for number, digest in reversed(run.lines("sent"))}
    made = run.lines("made")
    return {(int(prompt), int(sample)): versions[digest] for prompt, sample, digest in made if digest in versions}


def oldest(run: Run) -> int:
    """Of the run's completions, in optimizer steps."""
    return max(step["step"] - made for step in run.steps for made in step["generated_at_step"])


def stale(run: Run) -> int:
    """Completions of older weights that verl counted, by what they say of themselves."""
    return int(float(re.findall(r"stale_trajectory_processed:([\d.]+)", run.text)[-1]))


def hold(found: Mapping[tuple[int, int], int], true: Mapping[tuple[int, int], int]) -> int:
    """How many completions the ledger has with the version that the stand-ins saw; no other is newer there."""
    assert all(step <= true[who] for who, step in found.items())
    same = sum(step == true[who] for who, step in found.items())
    assert same >= 0.9 * len(found)
    return same


def test_the_ledger_says_of_every_completion_whose_weights_generated_it(
    observed: Run, record: Callable[..., None]
) -> None:
    assert observed.code == 0, observed.text[-20000:]
    found = told(observed)
    assert len(found) == PROMPTS * GROUP
    same = hold(found, truth(observed))
    assert {0, STEPS * SYNCHRONISED} <= {*found.values()}
    assert [step["step"] for step in observed.steps] == [*range(PROMPTS * GROUP * STEPS // SIZE)]
    header = read_headers(observed.ledger)[0]
    assert (header["mode"], header["spec"]["staleness"]["mode"]) == ("observe", "unbounded")
    assert all(step["ranks"] == 2 and step["gradient_norm"] > 1e-2 for step in observed.steps)
    record("fully_async", "2 ranks", completions=len(found), same=same, oldest=oldest(observed))


def test_weights_that_never_arrived_are_no_version_whatever_says_so(
    tampered: Run, observed: Run, record: Callable[..., None]
) -> None:
    assert [number for number, _ in tampered.lines("sent")] == ["0", "2", "3"]
    assert [number for number, _ in tampered.lines("given")] == ["0", "3"]
    found = told(tampered)
    assert set(found.values()) == {0}, "4 and 8 of some, had they arrived"
    # What is trained before number 3 is more than what can have begun before number 2.
    assert len(found) >= 3 * SYNCHRONISED * SIZE > (SYNCHRONISED + AHEAD) * SIZE
    assert found == {who: step for who, step in truth(tampered).items() if who in found}
    assert (stale(tampered), stale(observed) > 0) == (0, True), "verl believes what the completions say"
    record(
        "fully_async", "hand-overs that are left out", completions=len(found), same=len(found), oldest=oldest(tampered)
    )


def test_weights_that_were_changed_on_the_way_end_the_observing_and_not_the_run(tampered: Run) -> None:
    assert tampered.code == 0, tampered.text[-20000:]
    said = "weights_version: an engine that generates holds weights that this trainer did not hand over"
    assert said in tampered.text
    assert "the run went on" in (read_steps(tampered.ledger).incomplete or "")


def test_a_run_that_goes_on_counts_from_the_hand_over_that_was_saved(resumed: Run, record: Callable[..., None]) -> None:
    assert resumed.code == 0, resumed.text[-20000:]
    found = told(resumed)
    assert len(found) == PROMPTS * GROUP
    same = hold(found, truth(resumed))
    assert [step["step"] for step in resumed.steps] == [*range(PROMPTS * GROUP * STEPS // SIZE)]
    late = {made for step in resumed.steps[-SYNCHRONISED * STEPS :] for made in step["generated_at_step"]}
    assert late == {2 * STEPS * SYNCHRONISED}
    record("fully_async", "resumed", completions=len(found), same=same, oldest=oldest(resumed))


def test_enforcing_it_is_refused_before_a_worker_starts(place: Path) -> None:
    refused = run(place / "c", 1, mode="enforce")
    assert refused.code != 0
    assert "fully_async: " in refused.text
    assert "take --mode observe" in refused.text
    assert "WorkerDict" not in refused.text

"""L1, L3, faults and resume: `python -m openrlhf.cli.train_ppo_ray` through `batchbridge run`.

CPU, gloo, scripted rollouts that arrive out of order; three rollouts of two optimizer steps. Every run is a process of
its own with a Ray of its own, started once. Minutes each, so by hand: `nox -s openrlhf_runs`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from batchbridge import plugins
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.plan import Plan
from batchbridge.reading import read
from batchbridge.spec import Spec
from batchbridge.testing.tiny import Script
from batchbridge_openrlhf.testing.scripted import command, environment, prepare

BAR = 1e-5
PROMPTS, GROUP, ROLLOUTS = 12, 3, 3
WHOLE = {"rollout__batch_size": "4", "train__batch_size": "12", "train__micro_batch_size": "12"}
"""One optimizer step that is the whole episode of 4 prompts: what upstream's own order leaves decided."""


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger, and the folder."""

    code: int
    text: str
    ledger: Path
    folder: Path

    def weights(self, name: str = "trained") -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self.folder / name / "model.safetensors")

    def moved(self) -> torch.Tensor:
        """All parameters at the end minus at the start, flat."""
        first, last = self.weights("policy"), self.weights()
        return torch.cat([(last[name].double() - first[name].double()).flatten() for name in sorted(first)])


def run(
    folder: Path,
    ranks: int,
    *flags: str,
    options: tuple[str, ...] = (),
    optimizer: Literal["sgd", "adamw"] = "sgd",
    prompts: int = PROMPTS,
    env: dict[str, str] | None = None,
    **changes: str,
) -> Run:
    """Runs the command line in `folder`; `options` are those of `batchbridge run`, `changes` those of OpenRLHF."""
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, prompts=prompts)
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger")]
    words = [*launcher, *options, "--", *command(folder, ranks, *flags, **changes)]
    own = {**environment(folder, ranks, optimizer=optimizer), "BATCHBRIDGE_JITTER": "0.5", **(env or {})}
    key = hashlib.sha256(json.dumps([words, optimizer, env]).encode()).hexdigest()[:8]
    answer, ledger = folder / f"{key}.json", folder / f"ledger-{key}"  # a folder may see several runs
    if not answer.exists():
        for _ in range(3):  # on a busy machine Ray gives up its own start
            ran = subprocess.run(
                words, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if ran.returncode == 0 or "timed out during startup" not in ran.stdout:
                break
        if (folder / "ledger").exists():
            shutil.copytree(folder / "ledger", ledger)
        answer.write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
    code, text = json.loads(answer.read_text(encoding="utf-8"))
    return Run(code, text, ledger, folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short: Ray's sockets have paths of at most 107 bytes. `BATCHBRIDGE_OPENRLHF_RUNS`: a folder that keeps finished
    runs, for work on a single test."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return tmp_path_factory.mktemp("o") if kept is None else Path(kept)


@pytest.fixture(scope="module")
def two_ranks(place: Path) -> Run:
    return run(place / "a", 2, env={"BATCHBRIDGE_JITTER_SEED": "1"}, ckpt__save_steps="1")


@pytest.fixture(scope="module")
def one_rank(place: Path) -> Run:
    """Other micro-batches, another order of arrival."""
    return run(place / "b", 1, env={"BATCHBRIDGE_JITTER_SEED": "2"}, train__micro_batch_size="2")


@pytest.fixture(scope="module")
def zero_3(place: Path) -> Run:
    """Forward micro-batches that the ranks do not share evenly."""
    changes = {"ds__zero_stage": "3", "rollout__micro_batch_size": "4"}
    return run(place / "c", 2, env={"BATCHBRIDGE_JITTER_SEED": "3"}, **changes)


@pytest.fixture(scope="module")
def killed(place: Path) -> Run:
    """Rank 1 dies after optimizer step 4, the first of the third rollout."""
    return run(place / "d", 2, ckpt__save_steps="1", env={"BATCHBRIDGE_KILL": "1/4"})


@pytest.fixture(scope="module")
def resumed(place: Path, killed: Run) -> Run:
    assert killed.code != 0
    return run(place / "d", 2, "--ckpt.load_enable", ckpt__save_steps="1")


def plan_of(run: Run) -> Plan:
    header = read_headers(run.ledger)[0]
    return Plan(Spec.from_dict(header["spec"]), header["dataset_size"])


def test_the_ledger_of_a_run_on_two_ranks_is_the_plan(two_ranks: Run) -> None:
    assert two_ranks.code == 0, two_ranks.text[-20000:]
    plan = plan_of(two_ranks)
    steps = list(read_steps(two_ranks.ledger))
    assert len(steps) == plan.total_optimizer_steps == 2 * ROLLOUTS
    for step in steps:
        planned = plan.step(step["step"])
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert trained == sorted(tuple(member) for member in planned.members)
        assert step["ranks"] == 2
        assert set(step["rank"]) == {0, 1}
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick


@pytest.mark.parametrize("other", ["one_rank", "zero_3"])
def test_ranks_micro_batches_and_zero_stages_do_not_change_the_run(
    two_ranks: Run, other: str, request: pytest.FixtureRequest
) -> None:
    found: Run = request.getfixturevalue(other)
    assert found.code == 0, found.text[-20000:]
    compared = diff(two_ranks.ledger, found.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    moved = two_ranks.moved()
    assert moved.norm() >= 0.01 * torch.cat([value.flatten() for value in two_ranks.weights("policy").values()]).norm()
    assert (found.moved() - moved).norm() / moved.norm() <= BAR


def test_negative_control_the_same_run_unwrapped_trains_other_steps_and_ends_elsewhere(
    two_ranks: Run, place: Path
) -> None:
    observed = run(place / "n", 2, options=("--mode", "observe"))
    assert observed.code == 0, observed.text[-20000:]
    compared = diff(two_ranks.ledger, observed.ledger, rtol=1e-4)
    assert not compared.equal
    planned, native = (
        [set(zip(step["rollout"], step["prompt"], step["sample"], strict=True)) for step in read_steps(found.ledger)]
        for found in (two_ranks, observed)
    )
    assert len(planned) == len(native)
    assert planned != native
    moved = two_ranks.moved()
    assert (observed.moved() - moved).norm() / moved.norm() > 10 * BAR


def test_what_is_decided_of_an_unwrapped_run_is_predicted_completion_by_completion(place: Path) -> None:
    """L1: the adapter's prediction against the recorded steps."""
    observed = run(place / "l", 1, options=("--mode", "observe"), prompts=4, **WHOLE)
    assert observed.code == 0, observed.text[-20000:]
    words = command(Path("x"), 1, **WHOLE)[1:]
    reading = read(words, framework="openrlhf", version="0.11.2", dataset_size=4)
    script = Script()
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(4) for sample in range(GROUP)
    }
    predicted = list(plugins.adapters()["openrlhf"].native_steps(reading, 4, lengths))
    recorded = list(read_steps(observed.ledger))
    assert len(predicted) == len(recorded) == 1
    (native,), (step,) = predicted, recorded
    want: dict[tuple[Any, ...], float] = {
        (row.rollout, row.pass_index, row.prompt, row.sample, row.rank): float(row.weight or 0) for row in native.rows
    }
    columns = ("rollout", "pass", "prompt", "sample", "rank", "weights")
    have = {tuple(key): weight for *key, weight in zip(*(step[name] for name in columns), strict=True)}
    assert have.keys() == want.keys()
    for row, weight in have.items():
        assert weight == pytest.approx(want[row], rel=1e-6), row


def test_a_killed_process_ends_the_run_and_leaves_a_readable_ledger(killed: Run) -> None:
    assert killed.code != 0
    assert "died" in killed.text or "killed" in killed.text.lower()
    steps = read_steps(killed.ledger)
    assert [step["step"] for step in steps] == [0, 1, 2, 3, *([4] if not steps.incomplete else [])]


def test_the_resumed_run_continues_the_plan_exactly(two_ranks: Run, resumed: Run) -> None:
    assert resumed.code == 0, resumed.text[-20000:]
    compared = diff(two_ranks.ledger, resumed.ledger, exact=True)
    assert compared.equal, compared.text()
    for name, value in two_ranks.weights().items():
        assert torch.equal(value, resumed.weights()[name]), name


def test_another_number_of_ranks_cannot_resume(place: Path, resumed: Run) -> None:
    other = run(place / "d", 1, "--ckpt.load_enable")
    assert other.code != 0
    assert "Train epoch" not in other.text


def test_a_missing_completion_ends_the_run_before_the_step(place: Path, two_ranks: Run) -> None:
    prompt = plan_of(two_ranks).rollout(0).prompts[0]
    failed = run(place / "e", 1, env={"BATCHBRIDGE_SHORT": str(prompt)})
    assert failed.code != 0
    assert f"2 completions of prompt {prompt} arrived, not 3" in failed.text
    assert not failed.ledger.exists()


def test_a_plan_that_divides_nothing_is_followed_in_two_passes(place: Path) -> None:
    """Rollouts of 4, 4 and 3 prompts of 3 completions, steps of 5: 5 + 5 + 2 and 5 + 4, each twice."""
    folder = place / "u"
    if not folder.exists():
        folder.mkdir(parents=True)
        prepare(folder, prompts=11)
    changes = {"train__max_epochs": "2"}
    reading = read(command(folder, 2, **changes)[1:], framework="openrlhf", version="0.11.2", dataset_size=11)
    assert reading.spec is not None
    spec = reading.spec.replace(
        **{
            "order.seed": 3,
            "optimizer_step.completions_per_step": 5,
            "optimizer_step.step_may_span": "none",
            "order.last_optimizer_step": "short",
        }
    )
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    found = run(folder, 2, options=("--spec", str(folder / "spec.json")), prompts=11, **changes)
    assert found.code == 0, found.text[-20000:]
    plan, steps = plan_of(found), list(read_steps(found.ledger))
    assert [len(step["prompt"]) for step in steps] == [5, 5, 2] * 4 + [5, 4] * 2
    for step in steps:
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert trained == sorted(tuple(member) for member in plan.step(step["step"]).members)


def test_what_cannot_be_followed_is_refused_before_any_training_process_has_a_model(place: Path) -> None:
    refused = run(place / "f", 1, "--train.enable_ema")
    assert refused.code != 0
    assert "ema: train.enable_ema moves its average" in refused.text
    assert "Train epoch" not in refused.text

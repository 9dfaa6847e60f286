"""The fixtures that pytest finds for everybody, as a project without a conftest would use them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology
from batchbridge.meaning.weights import Normaliser
from batchbridge.testing.equivalence import FinishedRun, RunDistance

SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=2, completions_per_prompt=1),
    optimizer_step=OptimizerStep(completions_per_step=2),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1),
)


def written(folder: Path, prompts: tuple[int, int] = (3, 5), weight: float = 0.1) -> None:
    """A ledger of one optimizer step."""
    header = Header(
        framework="toy", framework_version="1.0", mode="observe", spec=SPEC, dataset_size=8, world_size=1, rank=0
    )
    record = StepRecord(
        step=0,
        epoch=0,
        normaliser=Normaliser(aggregation="token_mean", completions=2, tokens=10),
        learning_rate=0.1,
        gradient_norm=1.0,
        skipped=False,
        lr_tick=True,
        rollout=[0, 0],
        pass_index=[0, 0],
        prompt=list(prompts),
        sample=[0, 0],
        prompt_fingerprint=["a" * 16] * 2,
        completion_fingerprint=["b" * 16] * 2,
        response_tokens=[4, 6],
        reward=[1.0, 0.0],
        advantage=[1.0, -1.0],
        old_logprobs=["c" * 16] * 2,
        generated_at_step=[0, 0],
        weights=[weight] * 2,
    )
    with Writer(folder, header) as writer:
        writer.append(record)


def test_pytest_finds_the_fixtures_by_themselves() -> None:
    (entry,) = (
        entry for entry in importlib.metadata.entry_points(group="pytest11") if entry.value.startswith("batchbridge")
    )
    assert entry.value == "batchbridge.testing.plugin"


def test_the_plugin_imports_nothing_that_is_heavy() -> None:
    heavy = (
        "{'torch', 'transformers', 'numpy', 'yaml', 'pydantic', 'batchbridge.meaning.spec', 'batchbridge.testing.tiny'}"
    )
    code = f"import sys, batchbridge.testing.plugin; sys.exit(', '.join({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_two_runs_with_the_same_ledger_are_equivalent(
    ledger: Any, assert_equivalent: Callable[..., RunDistance]
) -> None:
    written(ledger["a"])
    written(ledger["b"])
    assert assert_equivalent(ledger.run("a"), ledger.run("b")) == RunDistance(None)
    assert [step["prompt"] for step in ledger.steps("a")] == [[3, 5]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"prompts": (3, 4)}, "different at optimizer step 0"), ({"weight": 0.2}, "weights")],
)
def test_the_first_difference_is_in_the_assertion(
    ledger: Any, assert_equivalent: Callable[..., RunDistance], changes: dict[str, Any], said: str
) -> None:
    written(ledger["a"])
    written(ledger["b"], **changes)
    with pytest.raises(AssertionError, match=said):
        assert_equivalent(ledger.run("a"), ledger.run("b"))


def test_steps_that_only_one_run_kept_are_no_comparison(
    ledger: Any, assert_equivalent: Callable[..., RunDistance]
) -> None:
    written(ledger["a"])
    written(ledger["b"])
    (ledger.run("b") / "steps").mkdir()
    with pytest.raises(ValueError, match="this run kept no steps, the other did"):
        assert_equivalent(ledger.run("a"), ledger.run("b"))


def test_a_run_is_named_by_its_folder_its_ledger_or_itself(ledger: Any) -> None:
    written(ledger["a"])
    folder = ledger.run("a")
    assert FinishedRun.at(folder) == FinishedRun.at(folder / "ledger") == FinishedRun(folder / "ledger")
    assert FinishedRun.at(FinishedRun(folder)) == FinishedRun(folder)


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (RunDistance(None, (2e-5, 1e-7), 1e-7, 0.5), "optimizer step 0: gradients differ by 2.00e-05"),
        (RunDistance(None, (1e-7,), float("nan"), 0.5), "trajectories differ by nan"),
        (RunDistance(None, (1e-7,), 1e-7, 1e-3), "too little to compare"),
    ],
)
def test_what_is_measured_is_held_against_its_bar(apart: RunDistance, said: str) -> None:
    (problem,) = apart.problems()
    assert said in problem
    assert RunDistance(None, (1e-7, 2e-5), 1e-7, 0.5).problems() == []


def test_scripted_rollouts_are_the_same_for_everybody(scripted_rollouts: Any) -> None:
    assert scripted_rollouts.prompt_index(scripted_rollouts.prompt(77)) == 77
    assert scripted_rollouts.completion(3, 1) == scripted_rollouts.completion(3, 1)

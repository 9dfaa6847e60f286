"""L2: gradients of OpenRLHF's real `ActorPPOTrainer` under DeepSpeed's ZeRO (gloo) against the float64 oracle, on one
and two ranks.

The processes run `gradients.py`; this one compares. Ragged lengths, a completion whose loss mask is all zero, ranks of
which one holds a fifth of the completions, short last steps, micro-batches of 1 to 8 completions and token budgets,
trainers of which one half was configured for dynamic batches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from tampering import LOSSES, STEP, WAYS

from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import gradient_bar

SCRIPT = Path(__file__).parent / "gradients.py"
ONE_TRAINER = ("sequence_mean", "sequence_mean, empty ones counted", "dual clip", "gspo", "token_mean, k3 and entropy")
EVERY_TRAINER = ("token_mean", "sequence_mean, k2 and entropy")
LOSES = ("ZeRO-1, dynamic", "ZeRO-2, dynamic")
KEEPS = ("ZeRO-1", "ZeRO-2", "ZeRO-3", "ZeRO-3, dynamic")


class Folders(dict[int, Path]):
    """World size -> the folder where it left what it measured; each runs when it is first asked for."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place

    def __missing__(self, ranks: int) -> Path:
        folder = self._place / f"gradients_{version('openrlhf')}_{ranks}"
        if not (folder / "measured.pt").exists():
            folder.mkdir(exist_ok=True)
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
            ran = subprocess.run(
                [*command, str(SCRIPT), str(folder)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            assert ran.returncode == 0, ran.stderr[-20000:]
        self[ranks] = folder
        return folder


class Measured(dict[int, dict[str, Any]]):
    """World size -> what it measured."""

    def __init__(self, folders: Folders) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, ranks: int) -> dict[str, Any]:
        self[ranks] = torch.load(self._folders[ranks] / "measured.pt", weights_only=True)
        return self[ranks]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """`BATCHBRIDGE_OPENRLHF_RUNS`: a folder that keeps what was measured, for work on a single test."""
    kept = os.environ.get("BATCHBRIDGE_OPENRLHF_RUNS")
    return Folders(tmp_path_factory.mktemp("gradients") if kept is None else Path(kept))


@pytest.fixture(scope="module")
def measured(folders: Folders) -> Measured:
    return Measured(folders)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.smoke), 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


@pytest.mark.parametrize("case", [*ONE_TRAINER, *EVERY_TRAINER])
def test_every_step_has_the_oracles_gradient(
    measured: dict[int, dict[str, Any]], ranks: int, case: str, record: Callable[..., None]
) -> None:
    results = [result for result in measured[ranks]["wrapped"] if result["case"] == case]
    worst = max(results, key=lambda result: float(result["error"]))
    bar = gradient_bar(*(result["floor"] for result in results))
    share = worst["error"] / bar
    record(f"gradient of {case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"], of_the_bar=share)
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
    runs = Counter((result["trainer"], result["split"]) for result in results)
    assert set(runs.values()) == {6}
    assert len({trainer for trainer, _ in runs}) == (6 if case in EVERY_TRAINER else 1)
    assert len(runs) == (10 if case in EVERY_TRAINER else 3)


@pytest.mark.parametrize("case", ["token_mean", "sequence_mean", "gspo"])
def test_enough_tokens_are_clipped_for_clipping_to_be_tested(measured: dict[int, dict[str, Any]], case: str) -> None:
    shares = [result["clipped"] for result in measured[1]["wrapped"] if result["case"] == case]
    assert max(shares) >= 0.05


@pytest.mark.parametrize("trainer", LOSES)
def test_negative_control_dynamic_batches_alone_miss_the_bar_tenfold(
    measured: dict[int, dict[str, Any]], ranks: int, trainer: str, record: Callable[..., None]
) -> None:
    record(f"alone, {trainer}, ranks: {ranks}", bars=measured[ranks]["natively"][trainer]["canonical"])
    assert measured[ranks]["natively"][trainer]["canonical"] > 10


@pytest.mark.parametrize("trainer", KEEPS)
def test_positive_control_openrlhf_alone_meets_the_bar_where_it_loses_nothing(
    measured: dict[int, dict[str, Any]], ranks: int, trainer: str
) -> None:
    assert measured[ranks]["natively"][trainer]["canonical"] <= 1


@pytest.mark.parametrize("trainer", [*LOSES, *KEEPS])
def test_the_ledger_of_an_observed_run_has_the_weights_that_were_really_applied(
    measured: dict[int, dict[str, Any]], ranks: int, trainer: str
) -> None:
    found = measured[ranks]["natively"][trainer]
    assert found["recorded"] <= 1
    assert found["steps"] == 2
    assert found["untouched"], "measuring changes no bit of a gradient"


@pytest.mark.parametrize("trainer", [*LOSES, *KEEPS])
def test_a_field_that_is_not_there_ends_the_observing_and_not_the_run(
    measured: dict[int, dict[str, Any]], ranks: int, trainer: str
) -> None:
    """On one rank alone, in the second step; gradients stay those of a run without BatchBridge, to the bit."""
    found = measured[ranks]["natively"][trainer]["unread"]
    assert found["untouched"]
    assert found["seen"] == 1
    assert "the run went on: KeyError" in found["incomplete"]


@pytest.mark.parametrize("trainer", LOSES)
def test_verify_stops_where_deepspeed_loses_the_gradients_of_planned_rows(
    measured: dict[int, dict[str, Any]], ranks: int, trainer: str
) -> None:
    said = measured[ranks]["natively"][trainer]["verified"]
    assert said.startswith("optimizer step 0 departs from the plan in its gradient: the gradients that the optimizer")


def test_verify_accepts_the_same_native_run_where_nothing_is_lost(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    assert measured[ranks]["natively"]["ZeRO-3, dynamic"]["verified"] == "trained to its end"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_weighs_otherwise_is_refused_and_the_trainer_is_as_it_was(
    measured: dict[int, dict[str, Any]], ranks: int, loss: str
) -> None:
    """The first rank says so, whichever rank has the loss."""
    said = measured[ranks]["refused"][loss]
    assert said.removeprefix("on rank 1: ").startswith("the trainer's own "), said
    assert not said.endswith("; changed"), said
    assert ("has a term that does not come from the log-probabilities" in said) == (loss == "with a term of its own")


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_is_tampered_with_is_applied_on_no_rank(
    measured: dict[int, dict[str, Any]], ranks: int, way: str, mode: str
) -> None:
    """On two ranks the second one alone, where one alone can be tampered with."""
    told = measured[ranks]["tampered"][mode][way]["ranks"]
    assert [(one["step"], one["aspect"], one["applied"]) for one in told] == [(STEP, WAYS[way][1], STEP)] * ranks, told


@pytest.mark.parametrize(("mode", "steps"), [("enforce", 6), ("verify", 4)])
def test_the_same_run_is_trained_to_its_end_where_nobody_tampers(
    measured: dict[int, dict[str, Any]], ranks: int, mode: str, steps: int
) -> None:
    told = measured[ranks]["tampered"][mode]["nobody"]["ranks"]
    assert [(one["detail"], one["applied"]) for one in told] == [("trained to its end", steps)] * ranks


def test_other_rows_or_weights_than_planned_are_refused_before_the_update(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    members, weights, applied = measured[ranks]["drifts"]
    assert members.startswith("optimizer step 3 departs from the plan in its membership: rollout 1 came without")
    assert weights.startswith("optimizer step 0 departs from the plan in its weights")
    assert applied == "0 applied"


def test_an_optimizer_of_other_weights_ends_the_run_before_its_first_update(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    said, applied = measured[ranks]["strange"]
    assert said.startswith("optimizer step 0 departs from the plan in its gradient: 1 of the ")
    assert "parameters that the optimizer updates are not the trained model's" in said
    assert applied == "0 applied"


def test_wrap_follows_the_trainers_own_configuration_and_unwrap_restores_it(
    measured: dict[int, dict[str, Any]], folders: dict[int, Path], ranks: int
) -> None:
    found = measured[ranks]["wrap"]
    assert found["report"].startswith(f"openrlhf {version('openrlhf')}, mode enforce")
    assert "left different" not in found["report"]
    assert found["changed"] == []
    assert found["seed"] == 5
    folder = folders[ranks] / "wrap_ledger"
    header = read_headers(folder)[0]
    plan = Plan(Spec.from_dict(header["spec"]), header["dataset_size"])
    steps = list(read_steps(folder))
    assert len(steps) == plan.total_optimizer_steps == 4
    for step in steps:
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert trained == sorted(tuple(member) for member in plan.step(step["step"]).members)


def test_a_schedule_of_another_length_is_refused_and_verify_stops_at_the_first_departure(
    measured: dict[int, dict[str, Any]], ranks: int
) -> None:
    found = measured[ranks]["wrap"]
    assert "built for 9 steps, the plan ticks 4 times" in found["clock"]
    assert found["drift"] in ("membership", "order")


def test_steps_without_a_token_update_nothing_and_the_ledger_says_so(
    measured: dict[int, dict[str, Any]], folders: dict[int, Path], ranks: int
) -> None:
    assert measured[ranks]["empty"] == [0, 3]
    steps = list(read_steps(folders[ranks] / "empty_ledger"))
    assert [step["skipped"] for step in steps] == [True] * 3 + [False] * 3
    assert [step["normaliser"]["tokens"] for step in steps][:3] == [0, 0, 0]
    assert [len(step["prompt"]) for step in steps] == [5, 5, 2] * 2


def test_one_and_two_ranks_write_the_same_ledger(folders: dict[int, Path]) -> None:
    compared = diff(folders[1] / "empty_ledger", folders[2] / "empty_ledger", rtol=1e-5)
    assert compared.equal, compared.text()

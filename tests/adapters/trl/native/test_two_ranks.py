"""L2, L3 and resume on two processes (torchrun, gloo); the processes run `two_ranks.py`, this one compares."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge import CannotAttach, wrap
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.ledger import diff, read_steps
from batchbridge.testing.equivalence import TRAJECTORY_BAR
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.trajectories import assert_same_end
from batchbridge_trl.testing import flat_parameters

SCRIPT = Path(__file__).parent / "two_ranks.py"
FLOAT32_STORED = 2**-24 / math.sqrt(3)
"""What storing a parameter in float32 at a step adds to a run's end, root mean square, relative to the parameter."""


def _cases() -> Any:
    """The script as a module: the cases stand in one place."""
    spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.copy()
    spec.loader.exec_module(module)
    os.environ.clear()
    os.environ.update(before)
    return module


TWO_RANKS = _cases()


def torchrun(
    what: str, folder: Path, *, check: bool = True, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    ran = subprocess.run(
        [*command, str(SCRIPT), what, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=timeout_s,
    )
    assert not check or ran.returncode == 0, ran.stderr[-20000:]
    return ran


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two_ranks")


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    torchrun("gradients", folder)
    result: dict[str, Any] = torch.load(folder / "measured.pt", weights_only=True)
    return result


def test_every_step_on_two_ranks_has_the_oracles_gradient(measured: dict[str, Any]) -> None:
    errors = measured["errors"]
    assert (
        len(errors)
        == len(TWO_RANKS.GRADIENTS) + len(TWO_RANKS.CORRECTED) + len(TWO_RANKS.ROUTED) + len(TWO_RANKS.PICTURED) + 1
    )
    for name, steps in errors.items():
        assert steps, name
        for each in steps:
            assert each["error"] <= each["bar"], (name, each)
            assert each["steps"][0] == each["steps"][1], (name, "clock")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
def test_one_and_two_ranks_lead_to_the_same_policy(
    measured: dict[str, Any], folder: Path, tmp_path: Path, optimizer: str
) -> None:
    alone = TWO_RANKS.TRAJECTORIES[optimizer] | {"gradient_accumulation_steps": 4}
    built = wrap(TWO_RANKS.build(tmp_path / "out", **alone), ledger=tmp_path / "ledger")
    start = flat_parameters(built.model)
    built.train()
    assert_same_end(
        f"trl, {optimizer}: two ranks and one", start, measured["ends"][optimizer], flat_parameters(built.model)
    )
    compared = diff(tmp_path / "ledger", folder / f"{optimizer}_ledger", rtol=1e-4)
    assert compared.equal, compared.text()


def test_two_ranks_resume_exactly_after_one_was_killed(measured: dict[str, Any], folder: Path) -> None:
    crashed = torchrun("crash", folder, check=False)
    assert crashed.returncode != 0
    torchrun("resume", folder)
    assert torch.equal(torch.load(folder / "resumed.pt", weights_only=True), measured["whole"])
    compared = diff(folder / "whole_ledger", folder / "killed_ledger", exact=True)
    assert compared.equal, compared.text()


def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(
    measured: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    crashed = torchrun("crash_saving", folder, check=False)
    assert crashed.returncode != 0
    unfinished = folder / "saving" / "checkpoint-16"
    assert not (unfinished / "trainer_state.json").exists()
    one_rank = TWO_RANKS.RUN | {"gradient_accumulation_steps": 4, "steps_per_generation": 8}
    reason = (
        r"batchbridge\.json is missing: the checkpoint was not finished when the run was "
        r"killed; resume from .*saving/checkpoint-8"
    )
    with pytest.raises(CannotAttach, match=reason):
        wrap(TWO_RANKS.build(tmp_path, **one_rank)).train(resume_from_checkpoint=str(unfinished))
    torchrun("resume_before", folder)
    assert torch.equal(torch.load(folder / "resumed_before.pt", weights_only=True), measured["whole"])
    compared = diff(folder / "whole_ledger", folder / "saving_ledger", exact=True)
    assert compared.equal, compared.text()


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, torch.Tensor]:
    """Parameters after the cases of OTHER_RANKS: "case, ranks, whether resumed"."""
    found = {f"{case}, 1, False": TWO_RANKS.run_on(1, folder, case) for case in TWO_RANKS.OTHER_RANKS}
    torchrun("other_ranks", folder)
    for case in TWO_RANKS.OTHER_RANKS:
        with pytest.warns(UserWarning, match="topology.world_size: 2 in the checkpoint, 1 now") as caught:
            found[f"{case}, 1, True"] = TWO_RANKS.run_on(1, folder, case, resume=True)
        assert any("dropout and TRL's own sampling go on from other ones" in str(each.message) for each in caught)
    result = {name: flat_parameters(built.model) for name, built in found.items()}
    for name, parameters in torch.load(folder / "two.pt", weights_only=True).items():
        case, _, resumed = name.rpartition(", ")
        result[f"{case}, 2, {resumed}"] = parameters
    return result


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", TWO_RANKS.OTHER_RANKS)
def test_another_number_of_ranks_goes_on_as_if_nothing_had_happened(
    ends: dict[str, torch.Tensor], folder: Path, case: str, ranks: int
) -> None:
    """Resumed on `ranks` what the others began, against uninterrupted runs of both."""
    start = flat_parameters(tiny_policy())
    for uninterrupted in (1, 2):
        whole_end = ends[f"{case}, {uninterrupted}, False"]
        named = f"trl, {case}: resumed on {ranks}, whole on {uninterrupted}"
        apart = assert_same_end(named, start, ends[f"{case}, {ranks}, True"], whole_end)
        steps = sum(1 for _ in read_steps(folder / case / f"{uninterrupted}" / "ledger"))
        stored = FLOAT32_STORED * math.sqrt(2 * steps) / apart.moved
        assert apart.parameters <= TRAJECTORY_BAR + stored, (named, apart)
        whole, ledger = (folder / case / f"{each}" for each in (uninterrupted, ranks))
        compared = diff(whole / "ledger", ledger / "resumed_ledger", rtol=1e-4)
        assert compared.equal, compared.text()
    step = TWO_RANKS.OTHER_RANKS[case][2]
    assert next(iter(read_steps(folder / case / f"{ranks}" / "resumed_ledger")))["step"] == step


@pytest.mark.skipif(not TWO_RANKS.PACKS, reason="this transformers makes masks inside of its models")
@pytest.mark.parametrize("case", TWO_RANKS.OTHER_RANKS)
def test_two_ranks_go_on_without_padding_as_if_nothing_had_happened(
    ends: dict[str, torch.Tensor], folder: Path, case: str
) -> None:
    """Each rank holds the rows of the padded run's shares alone, and the others are cut otherwise."""
    start, step = flat_parameters(tiny_policy()), TWO_RANKS.OTHER_RANKS[case][2]
    apart = assert_same_end(f"trl, {case}: without padding", start, ends[f"{case}, 2, free"], ends[f"{case}, 2, False"])
    steps = sum(1 for _ in read_steps(folder / case / "2" / "ledger"))
    assert apart.parameters <= TRAJECTORY_BAR + FLOAT32_STORED * math.sqrt(2 * steps) / apart.moved, apart
    compared = diff(folder / case / "2" / "ledger", folder / case / "2" / "free_ledger", rtol=1e-4)
    assert compared.equal, compared.text()
    assert next(iter(read_steps(folder / case / "2" / "free_ledger")))["step"] == step


@pytest.mark.parametrize("case", TWO_RANKS.OTHER_RANKS)
def test_negative_control_rows_of_one_rank_alone_are_refused(
    ends: dict[str, torch.Tensor], folder: Path, tmp_path: Path, case: str
) -> None:
    """A checkpoint that is said to be of one rank, and lacks what the other trained, or generated for a step that waits
    for the next rollout."""
    common, own, step = TWO_RANKS.OTHER_RANKS[case]
    checkpoint = tmp_path / f"checkpoint-{step}"
    shutil.copytree(folder / case / "2" / "whole" / checkpoint.name, checkpoint)
    saved = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    (checkpoint / STATE_FILE).write_text(json.dumps(saved | {"ranks": 1}), encoding="utf-8")
    (checkpoint / "rng_state_0.pth").rename(checkpoint / "rng_state.pth")
    arguments = TWO_RANKS.DESCENT | common | own[1] | {"max_steps": step + 2}
    budget = arguments.pop("tokens_per_device", None)
    built = wrap(TWO_RANKS.build(tmp_path / "out", **arguments), tokens_per_device=budget)
    with pytest.raises(CannotAttach, match=r"does not hold the completion \(prompt \d, sample \d\)"):
        built.train(resume_from_checkpoint=str(checkpoint))


def test_what_one_rank_refuses_is_refused_on_every_rank(tmp_path: Path) -> None:
    """No rank is left waiting in a collective of the probe's, or of training."""
    torchrun("refusals", tmp_path, timeout_s=300)
    ranks = [json.loads((tmp_path / f"refusals-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    for found in ranks:
        for case, (_, name) in TWO_RANKS.ONE_RANK.items():
            assert list(found[case]) == [name], (case, found[case])
            assert name in ("ranks_differ", "data") or found[case][name].startswith("on rank 1: "), found[case]
        assert "dataset_size is 6 on rank 0, 4 on rank 1" in found["fewer prompts"]["ranks_differ"]
        assert "rank 1 has other prompts than rank 0 (all 6" in found["prompts in another order"]["data"]
        assert found["sound"]["steps"] == "3"

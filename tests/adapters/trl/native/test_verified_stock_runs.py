"""Stock runs of TRL in mode verify: each ends well, or stops in what docs/measured.md lists; a tampered one stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl.trainer import grpo_trainer
from verified import CASES, CUTS, build, departs_in, outcome

from batchbridge import BatchDrift, wrap
from batchbridge.ledger.verifying import verify
from batchbridge_trl.releases import has

SCRIPT = Path(__file__).with_name("verified.py")
SHUFFLED = {"loss_type": "grpo", "num_iterations": 2, **CUTS["two steps a rollout"]}


@pytest.mark.parametrize("name", CASES)
def test_a_stock_run_passes_or_stops_by_the_listed_name(tmp_path: Path, name: str) -> None:
    assert outcome(tmp_path, CASES[name]) == departs_in(CASES[name], 1)


def test_stock_runs_of_two_ranks_pass_or_stop_by_the_listed_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ran = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (tmp_path / "said.json").is_file(), ran.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text(encoding="utf-8"))
    assert said.pop("tampered on the second rank") == "weights"
    assert said == {name: departs_in(settings, 2) for name, settings in CASES.items()}


def other_order(built: Any) -> None:
    """Another seed of the sampler, which nothing in the configuration says."""
    native = built._get_train_sampler

    def seeded(*args: Any, **kwargs: Any) -> Any:
        sampler = native(*args, **kwargs)
        sampler.generator.manual_seed(1)
        return sampler

    built._get_train_sampler = seeded


def _resampled(built: Any, change: Callable[[list[int]], list[int]]) -> None:
    native = built._get_train_sampler

    class Resampled:
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __len__(self) -> int:
            return len(self.sampler)

        def __iter__(self) -> Any:
            return iter(change(list(self.sampler)))

    built._get_train_sampler = lambda *args, **kwargs: Resampled(native(*args, **kwargs))


def exchanged_rollouts(built: Any) -> None:
    """The two rollouts of an epoch change places."""
    _resampled(built, lambda rows: rows[len(rows) // 2 :] + rows[: len(rows) // 2])


def without_a_rollout(built: Any) -> None:
    """The second rollout of an epoch is left out, and the first one's prompts are generated for twice."""
    _resampled(built, lambda rows: 2 * rows[: len(rows) // 2])


def doubled(built: Any) -> None:
    """The first completion of every rollout stands in the place of the last one."""
    native = built._generate_and_score_completions

    def doubling(inputs: Any) -> Any:
        output = native(inputs)
        return {
            name: column if not hasattr(column, "dim") or not column.dim() else column[[*range(len(column) - 1), 0]]
            for name, column in output.items()
        }

    built._generate_and_score_completions = doubling


def louder(built: Any) -> None:
    native = built.compute_loss
    built.compute_loss = lambda *args, **kwargs: native(*args, **kwargs) * 1.01


TAMPERED: dict[Callable[[Any], None], str] = {
    other_order: "order",
    exchanged_rollouts: "order",
    without_a_rollout: "order",
    doubled: "membership",
    louder: "weights",
}


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda one: one.__name__)
def test_a_tampered_stock_run_stops(tmp_path: Path, tamper: Callable[[Any], None]) -> None:
    assert outcome(tmp_path, SHUFFLED) is None
    assert outcome(tmp_path / "tampered", SHUFFLED, tamper) == TAMPERED[tamper]


@pytest.mark.skipif(not hasattr(grpo_trainer, "RepeatSampler"), reason="this TRL has another sampler")
def test_the_ledger_of_a_verified_stock_run_is_right_by_itself(tmp_path: Path) -> None:
    assert outcome(tmp_path, SHUFFLED) is None
    found = verify(tmp_path / "ledger")
    assert (found.departed, found.decided) == (0, True)
    (membership,) = [check for check in found.checks if check.name == "membership"]
    assert (membership.of, membership.held) == ("the configuration", found.stop)


@pytest.mark.skipif(not has(">=0.20"), reason="0.18 and 0.19 promise more steps than come")
def test_a_native_resume_passes_in_the_first_epoch_and_stops_where_trl_begins_its_order_anew(tmp_path: Path) -> None:
    settings = {"loss_type": "grpo", "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}
    wrap(build(tmp_path, **settings), mode="verify").train()
    for step in (2, 4):  # of three rollouts an epoch
        built = wrap(build(tmp_path, **settings), mode="verify")
        if step == 2:
            built.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
            assert built.state.global_step == 6
            continue
        with pytest.raises(BatchDrift, match="in the framework's own order it has") as drift:
            built.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert (drift.value.step in (4, 5), drift.value.aspect) == (True, "order")

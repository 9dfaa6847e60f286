"""Models that FSDP shards, on two ranks and gloo: the processes run `fsdp_run.py`, this one compares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from accelerate.state import AcceleratorState
from representative import WHOLE
from tampering import STEP, WAYS

from batchbridge.ledger import diff
from batchbridge_trl.releases import has

SCRIPT = Path(__file__).parent / "fsdp_run.py"
FSDP2 = hasattr(AcceleratorState, "is_fsdp2")
LOADS = hasattr(transformers.Trainer, "_defer_fsdp_gradient_reduction")
"""Whether transformers shards at load time."""
needs_fsdp2 = pytest.mark.skipif(not FSDP2, reason="this Accelerate has FSDP1 only")
KINDS = [pytest.param("fsdp1"), pytest.param("fsdp2", marks=needs_fsdp2)]


def torchrun(what: str, folder: Path, ranks: int = 2) -> str:
    """What the ranks said, where they left no result."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--master_port=0"]
    ran = subprocess.run(
        [*command, "--standalone", str(SCRIPT), what, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONWARNINGS": "ignore"},
        timeout=900,
    )
    said = [line for line in ran.stderr.splitlines() if "When using FSDP, prefer" not in line]  # once a trainer
    assert (folder / f"{what}.json").exists(), "\n".join(said[-120:])
    return ran.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What the ranks measured, by version of FSDP, and the folder."""
    folder = tmp_path_factory.mktemp("fsdp")
    results: dict[str, Any] = {"folder": folder}
    for what in ("fsdp1", "fsdp2") if FSDP2 else ("fsdp1",):
        torchrun(what, folder)
        results[what] = json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))
    return results


def require_exact(name: str, case: Mapping[str, Any], wrapper: str, bar: float = 1) -> None:
    """The case was sharded, went to its end, and every gradient and its norm were the oracle's."""
    assert wrapper in case["wrapped"], (name, case["wrapped"])
    assert case["steps"][0] == case["steps"][1] > 0, (name, "clock")
    assert case["errors"], name
    assert max(case["errors"]) <= bar, (name, case["errors"])
    assert all(abs(norm - 1) <= 1e-5 for norm in case["norms"]), (name, case["norms"])


def cases(results: Mapping[str, Any]) -> dict[str, Any]:
    return {name: case for name, case in results.items() if "errors" in case and name != "lone head"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_has_the_oracles_gradient(found: Mapping[str, Any], kind: str) -> None:
    wrapper = {"fsdp1": "FullyShardedDataParallel", "fsdp2": "FSDPModule"}[kind]
    measured = cases(found[kind])
    assert {"2x2", "2x2, derived", "24 tokens, two passes, kl"} <= set(measured)
    assert ("at load time" in measured) is (kind == "fsdp2" and LOADS)
    for name, case in measured.items():
        if "bf16" not in name:
            require_exact(name, case, wrapper)
    assert min(measured["2x2"]["one swapped"]) > 10, "a negative control"


def test_fsdp1s_cases_are_sharded_as_their_names_say(found: Mapping[str, Any]) -> None:
    ways = {name: case["strategies"] for name, case in cases(found["fsdp1"]).items() if "bf16" not in name}
    assert "no_shard" in ways
    for name, strategies in ways.items():
        way = name if name in ("no_shard", "shard_grad_op", "hybrid_shard") else "full_shard"
        assert strategies == [f"ShardingStrategy.{way.upper()}"], name


@pytest.mark.skipif(not WHOLE, reason="nox -s trl_full")
def test_in_bf16_the_gradient_is_as_near_to_the_oracle_as_under_ddp(found: Mapping[str, Any]) -> None:
    plain = found["fsdp2"]["bf16 under DDP"]
    require_exact("bf16 under DDP", plain, "DistributedDataParallel", bar=1)
    require_exact("bf16", found["fsdp2"]["bf16"], "FSDPModule", bar=3 * max(plain["errors"]))


@pytest.mark.skipif(not WHOLE, reason="nox -s trl_full")
def test_fsdp1_with_flat_parameters_ends_where_it_does_without(found: Mapping[str, Any]) -> None:
    assert found["fsdp1"]["flat parameters"]["equal"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_tampering_ends_in_a_drift_before_the_update(found: Mapping[str, Any], kind: str) -> None:
    ended = found[kind]["tampered"]
    assert set(ended) == {name for name, (_, aspect) in WAYS.items() if WHOLE or aspect == "gradient"}
    for name, end in ended.items():
        assert (end["step"], end["aspect"], end["changed"]) == (STEP, WAYS[name][1], False), (name, end)


@needs_fsdp2
def test_what_a_derived_trainers_schedule_changes_on_one_rank_ends_the_run(found: Mapping[str, Any]) -> None:
    step, aspect, detail = found["fsdp2"]["changed by a schedule of its own"]
    assert (step, aspect) == (0, "settings")
    assert "Derived.create_scheduler (overrides) changed args.num_iterations" in detail


@needs_fsdp2
def test_whole_gradients_wait_as_natively_and_not_at_all_where_they_are_reduced_in_each(
    found: Mapping[str, Any],
) -> None:
    waited, each = (found["fsdp2"][name]["waited"] for name in ("2x2", "2x2, reduced in each"))
    assert set(waited) == {0, 4 * found["fsdp2"]["2x2"]["parameters"]}
    assert set(each) == {0}


@needs_fsdp2
def test_where_nothing_is_sharded_it_is_said_and_can_be_allowed(found: Mapping[str, Any]) -> None:
    assert found["fsdp2"]["refused"] == {"": ["not_sharded"], "not_sharded": ["bool"]}, "fsdp: true is legal"


@pytest.mark.skipif(not has(">=1.14"), reason="before TRL 1.14 the loss runs the head")
def test_a_head_that_is_a_unit_of_its_own_is_refused_and_natively_wrong(found: Mapping[str, Any]) -> None:
    alone = found["fsdp2"]["lone head"]
    assert alone["refused"] == ["lone_head"]
    assert min(alone["errors"]) > 10


@needs_fsdp2
def test_a_killed_run_resumes_exactly(found: Mapping[str, Any]) -> None:
    folder = found["folder"]
    assert not (folder / "killed" / "checkpoint-14").exists(), "it was killed after step 9"
    for files, end in found["fsdp2"]["resumed"].items():
        assert "FSDPModule" in end["wrapped"]
        assert end["equal"], files
        assert end["steps"] == 12
    compared = diff(folder / "fsdp2" / "SHARDED_STATE_DICT" / "ledger", folder / "killed" / "ledger", exact=True)
    assert compared.equal, compared.text()


@pytest.mark.skipif(not WHOLE, reason="four processes: nox -s trl_full")
def test_replicas_of_shards_have_the_oracles_gradient(tmp_path: Path) -> None:
    torchrun("hsdp", tmp_path, ranks=4)
    for name, case in json.loads((tmp_path / "hsdp.json").read_text(encoding="utf-8")).items():
        require_exact(name, case, "FSDPModule")
        assert case["mesh"] == [[2, 2]]

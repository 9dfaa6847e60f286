"""Sharded models that go on with another number of ranks: `elastic.py` runs them, this one compares."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import elastic
import pytest
import torch

from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.trajectories import assert_other_end, assert_same_end
from batchbridge_trl.releases import has
from batchbridge_trl.testing import flat_parameters

pytestmark = pytest.mark.skipif(not has(">=1.16"), reason="the newest release: others were not run")


def ran(folder: Path, what: str) -> Path:
    words = [sys.executable, str(Path(elastic.__file__)), str(folder), what]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr[-20000:]
    return folder


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("fsdp"), "fsdp")


def said(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "said.json").read_text(encoding="utf-8"))
    return found


def end(run: Path) -> torch.Tensor:
    """The parameters of the policy at the end of a run; of one that trained adapters, with these in it."""
    found: torch.Tensor = torch.load(run / "end.pt", weights_only=True)
    if "PeftModelForCausalLM" not in said(run)["wrapped"]:
        return found
    from peft import LoraConfig, get_peft_model

    policy = get_peft_model(tiny_policy(), LoraConfig(**elastic.LORA))
    adapters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter, values in zip(adapters, found.split([one.numel() for one in adapters]), strict=True):
            parameter.copy_(values.view_as(parameter))
    merged = policy.merge_and_unload()
    return torch.cat([parameter.detach().flatten() for parameter in merged.parameters()])


def require_sharded(run: Path, wrapper: str, ranks: int) -> None:
    found = said(run)
    assert not found["refused"], found
    assert wrapper in found["wrapped"], found["wrapped"]
    assert found["ranks"] == ranks


def require_goes_on(folder: Path, name: str, wrapper: str) -> None:
    """What each number of ranks made of the other's checkpoint ends as either's uninterrupted run, by `ledger diff` and
    by what the policy says, and tells of the other number."""
    for ranks in (1, 2):
        require_sharded(folder / f"{ranks}", wrapper, ranks)
    for other, ranks in ((2, 1), (1, 2)):
        again = folder / f"{other}to{ranks}"
        require_sharded(again, wrapper, ranks)
        (warned,) = said(again)["warned"]
        assert f"topology.world_size: {other} in the checkpoint, {ranks} now" in warned
        began = int(elastic.checkpoint(folder / f"{other}").name.partition("-")[2])
        assert next(iter(read_steps(again / "ledger")))["step"] == began
        assert {header["world_size"] for header in read_headers(again / "ledger")} == {ranks}
        for uninterrupted in (1, 2):
            whole = folder / f"{uninterrupted}"
            assert_same_end(
                f"trl, {name}: resumed on {ranks}, whole on {uninterrupted}",
                flat_parameters(tiny_policy()),
                end(again),
                end(whole),
            )
            compared = diff(whole / "ledger", again / "ledger", rtol=1e-4)
            assert compared.equal, compared.text()


@pytest.mark.parametrize("name", elastic.FSDP)
def test_under_fsdp_another_number_of_ranks_goes_on_as_if_nothing_had_happened(fsdp: Path, name: str) -> None:
    require_goes_on(fsdp / name, name, "FSDPModule" if "FSDP2" in name else "FullyShardedDataParallel")


def test_under_fsdp1_the_same_number_of_ranks_goes_on_bit_equal(fsdp: Path) -> None:
    """Natively its optimizer comes back without its state."""
    assert torch.equal(end(fsdp / "FSDP1, sharded" / "2to2"), end(fsdp / "FSDP1, sharded" / "2"))


@pytest.mark.parametrize("name", elastic.CONTROLLED)
def test_negative_control_an_optimizer_that_came_back_without_its_state(fsdp: Path, name: str) -> None:
    """It is refused; and where nobody looks, the run ends elsewhere, on the same completions."""
    refused = said(fsdp / name / "refused")["refused"]
    assert "holds the optimizer's state, and this version of Accelerate has loaded none" in refused
    lost = fsdp / name / "without moments"
    assert_other_end(f"trl, {name}: without moments", flat_parameters(tiny_policy()), end(lost), end(fsdp / name / "2"))
    assert diff(fsdp / name / "2" / "ledger", lost / "ledger", rtol=1e-4).equal


def test_what_each_rank_writes_by_itself_is_refused_by_name(fsdp: Path) -> None:
    refused = said(fsdp / "LOCAL_STATE_DICT")["refused"]
    assert "written by 2 ranks, this run has 1: start as many" in refused
    assert "with state_dict_type LOCAL_STATE_DICT under FSDP1 it is not proven" in refused


needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="a session without DeepSpeed"
)


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("zero"), "zero")


@needs_deepspeed
def test_under_zero_2_another_number_of_ranks_goes_on_from_a_universal_checkpoint(zero: Path) -> None:
    require_goes_on(zero / "ZeRO-2", "ZeRO-2", "DeepSpeedEngine")


@needs_deepspeed
def test_negative_control_a_universal_checkpoint_without_first_moments(zero: Path) -> None:
    lost, whole = end(zero / "ZeRO-2" / "without moments"), end(zero / "ZeRO-2" / "2")
    assert_other_end("trl, ZeRO-2: without moments", flat_parameters(tiny_policy()), lost, whole)


@needs_deepspeed
def test_under_zero_3_a_universal_checkpoint_is_refused_and_would_end_elsewhere(zero: Path) -> None:
    assert "ZeRO-3 loads a universal checkpoint otherwise" in said(zero / "ZeRO-3" / "refused")["refused"]
    let, whole = end(zero / "ZeRO-3" / "let"), end(zero / "ZeRO-3" / "2")
    assert_other_end("trl, ZeRO-3: universal", flat_parameters(tiny_policy()), let, whole)

"""The recorded functions of the installed verl: what one trainer mode alone depends on stops no other one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch

from batchbridge.kit import proven
from batchbridge_on_cpu.next_release import with_a_statement_more
from batchbridge_on_cpu.scripts import module_at
from batchbridge_verl.attaching import parts_of
from batchbridge_verl.proven import CODE, COLOCATE_ASYNC

BUFFER = "trainer/ppo/v1/replay_buffer.py"
pytest.importorskip("verl.trainer.ppo.v1")

from verl.protocol import DataProto, pad_dataproto_to_divisor  # after the line above


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The installed verl's recorded files, with another `ReplayBufferAsync.sample`."""
    for package in (*CODE.packages, *CODE.parts):
        with_a_statement_more(package, tmp_path, BUFFER, "ReplayBufferAsync.sample")
    return tmp_path


def test_a_change_of_the_asynchronous_buffer_leaves_the_synchronous_trainer_proven(changed: Path) -> None:
    found = proven.evidence(CODE.used(), {"verl": changed})
    assert found.grade == "proven", found


def test_the_trainer_that_uses_it_is_refused_by_its_name(changed: Path) -> None:
    found = proven.evidence(CODE.used((COLOCATE_ASYNC,)), {"verl": changed})
    assert found.grade == "refused"
    assert [name.rpartition(": ")[2] for name in found.control] == ["ReplayBufferAsync.sample"]


def test_a_release_of_next_week_is_measured_where_its_loss_is_written_otherwise(tmp_path: Path) -> None:
    (package,) = CODE.packages
    changed = with_a_statement_more(package, tmp_path, "trainer/ppo/core_algos.py", "agg_loss")
    found = proven.evidence(CODE.used(), {"verl": changed}, installed={"verl": "0.10.0"})
    assert (found.grade, found.loss) == ("measured", ("verl trainer/ppo/core_algos.py: agg_loss",))


def test_a_release_of_next_week_is_refused_where_its_control_flow_is_written_otherwise(tmp_path: Path) -> None:
    (package,) = CODE.packages
    file, (function, *_) = next(iter(package.control.items()))
    found = proven.evidence(CODE.used(), {"verl": with_a_statement_more(package, tmp_path, file, function)})
    assert (found.grade, found.control) == ("refused", (f"verl {file}: {function}",))


def test_each_mode_of_the_v1_trainer_names_its_own_part() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    parts = {name: parts_of(object.__new__(get_trainer_cls(name))) for name in ("sync", "colocate_async")}
    assert parts == {"sync": (), "colocate_async": (COLOCATE_ASYNC,)}


def test_the_installed_release_splits_rows_where_and_as_it_is_recorded() -> None:
    """A release that splits otherwise has other sizes that do not come out even: see tests/upstream/splits.py."""
    splits = module_at(Path(__file__).parents[3] / "upstream" / "splits.py", "splits")
    (package,) = CODE.packages
    home = proven.package_folder(package)
    assert home is not None
    assert splits.splits_in(home, "verl") == splits.recorded_of("verl", importlib.metadata.version("verl"))


def test_rows_that_workers_cannot_share_evenly_are_refused_by_verl_itself() -> None:
    """What BB-VERL-099, 104 and 105 quote, and 105's way out from 0.9.0 on."""
    rows = DataProto.from_dict({"x": torch.zeros(100, 1)})
    assert len(rows.chunk(5)) == 5
    with pytest.raises(AssertionError, match=r"only support equal chunk\. Got size of DataProto 100 and chunk 8"):
        rows.chunk(8)
    padded, added = pad_dataproto_to_divisor(rows, 8)
    assert (added, len(padded.chunk(8))) == (4, 8)


def test_a_micro_batch_of_no_rows_is_an_error_of_verl_itself() -> None:
    """What BB-VERL-100 quotes."""
    with pytest.raises(ValueError, match=r"range\(\) arg 3 must not be zero"):
        DataProto.from_dict({"x": torch.zeros(4, 1)}).split(0)

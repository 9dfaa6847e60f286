"""The recorded functions of the installed verl: what one trainer mode alone depends on stops no other one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from batchbridge.kit import proven
from batchbridge_verl.attaching import parts_of
from batchbridge_verl.proven import CODE, COLOCATE_ASYNC

BUFFER = "trainer/ppo/v1/replay_buffer.py"
pytest.importorskip("verl.trainer.ppo.v1")


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The installed verl's recorded files, with another `ReplayBufferAsync.sample`."""
    (package,) = CODE.packages
    home = proven.package_folder(package)
    assert home is not None
    for file in {name for one in (package, *CODE.parts) for name in one.functions}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(home / file, tmp_path / file)
    head, found, tail = (tmp_path / BUFFER).read_text().partition("class ReplayBufferAsync")
    assert found
    place = tail.index(":\n", tail.index("    def sample(")) + 2
    (tmp_path / BUFFER).write_text(f"{head}{found}{tail[:place]}        changed = True\n{tail[place:]}")
    return tmp_path


def test_a_change_of_the_asynchronous_buffer_leaves_the_synchronous_trainer_proven(changed: Path) -> None:
    found = proven.evidence(CODE.used(), {"verl": changed})
    assert found.grade == "proven", found


def test_the_trainer_that_uses_it_is_refused_by_its_name(changed: Path) -> None:
    found = proven.evidence(CODE.used((COLOCATE_ASYNC,)), {"verl": changed})
    assert found.grade == "refused"
    assert [name.rpartition(": ")[2] for name in found.control] == ["ReplayBufferAsync.sample"]


def test_each_mode_of_the_v1_trainer_names_its_own_part() -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    parts = {name: parts_of(object.__new__(get_trainer_cls(name))) for name in ("sync", "colocate_async")}
    assert parts == {"sync": (), "colocate_async": (COLOCATE_ASYNC,)}

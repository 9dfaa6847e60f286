"""A wrapped trainer, its model with it, is freed once nobody has it: its run may have been one of many in a process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge import wrap


class Stopped(Exception):
    pass


def stop(*_: Any) -> None:
    raise Stopped


@pytest.mark.parametrize("raises", [False, True])
def test_a_wrapped_trainer_is_freed_after_its_run(trainer: Callable[..., Any], tmp_path: Path, raises: bool) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1} if raises else {}
    built = wrap(trainer(max_steps=2, **saving), ledger=tmp_path / "ledger")
    built._save_checkpoint = stop
    kept = [weakref.ref(one) for one in (built, built.model, built.batchbridge)]
    if raises:
        with pytest.raises(Stopped):
            built.train()
    else:
        built.train()
    assert len((tmp_path / "ledger" / "rank-00000.jsonl").read_bytes().splitlines()) > 1
    del built
    gc.collect()
    assert [one() for one in kept] == [None, None, None]

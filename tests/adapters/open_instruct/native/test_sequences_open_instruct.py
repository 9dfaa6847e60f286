"""L2 and L3 of rows whose tokens two ranks share: on two and on four ranks, and grpo_fast.py itself. `oi_proofs.py`
says what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import oi_proofs as proofs
import pytest

Ran = Callable[..., Path]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_rows_train_the_plans_gradient(ran: Ran, ranks: int) -> None:
    measured = json.loads((ran("sequences", ranks, "finished") / "measured.json").read_text(encoding="utf-8"))
    assert measured["ranks"] == ranks
    proofs.check_sequences(measured)


def test_the_launched_script_whose_learners_share_rows_is_the_plan(ran: Ran) -> None:
    runs = ran("launched_shared", 0, "initial.txt")
    said = json.loads((runs / "shared-2.json").read_text(encoding="utf-8"))
    proofs.check_plan(said["run"], ranks=1)
    proofs.check_sent(said["run"], said["asked"], (runs / "initial.txt").read_text(encoding="utf-8"))

"""The exchange after generation: a rank receives the rows that it trains and no other, without their padding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batchbridge_trl.exchange import FACTS_BYTES, CompletionPlaces, pack_facts, unpack_facts
from batchbridge_trl.rows import COLUMNS, TrlRolloutRows, assemble

SCRIPT = Path(__file__).parent / "exchange_run.py"
CASES = (
    "1x2, generation above accumulation, two passes, kl",
    "1x3, steps straddle rollouts, seven prompts",
    "24 tokens, two passes, kl",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks received and trained."""
    folder = tmp_path_factory.mktemp("exchange")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-20000:]
    return [json.loads((folder / f"exchange-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


def planned_bytes(of: dict[str, Any]) -> int:
    """Bytes of the rows of a rollout that a rank trains and another one generated, each row without padding."""
    total = 0
    for position in set(of["trained"]) - set(of["generated"]):
        total += FACTS_BYTES
        for name, (size, by_token) in of["columns"].items():
            tokens = of["prompt_tokens"] if COLUMNS[name][0] == "prompt" else of["completion_tokens"]
            total += size * (tokens[position] if by_token else 1)
    return total


@pytest.mark.parametrize("case", CASES)
def test_a_rank_receives_exactly_the_rows_that_it_trains(ranks: list[dict[str, Any]], case: str) -> None:
    moved = 0
    for found in ranks:
        for of in found[case]["rollouts"][:-1]:  # the last one's steps after the run's end are not trained
            assert set(of["arrived"]) == set(of["trained"]) - set(of["generated"]), of
            assert len(of["arrived"]) == len(set(of["arrived"])), "a row comes once"
            assert of["bytes"] == planned_bytes(of)
            moved += of["bytes"]
    assert moved, "nothing travelled"
    for each in ranks[0][case]["errors"]:
        assert each["error"] <= each["bar"], each


def test_tampering_a_rank_that_receives_the_whole_rollout_is_noticed(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        apart = [of["bytes"] - planned_bytes(of) for of in found["whole"]["rollouts"][:-1]]
        assert min(apart) >= 0
        assert max(apart) > 0


def test_tampering_rows_that_change_places_on_their_way_are_noticed(ranks: list[dict[str, Any]]) -> None:
    assert any(each["error"] > 10 * each["bar"] for each in ranks[0]["swapped"]["errors"])


POSITIONS = 12


@given(
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    trained_by=st.lists(
        st.tuples(st.integers(0, POSITIONS - 1), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)), max_size=30
    ),
)
def test_every_rank_holds_what_it_trains_whenever_shares_become_known(
    ranks: int, trained_by: list[tuple[int, int, int, int]]
) -> None:
    """trained_by: (position, rank, the round in which that is known, rounds until it is trained), all ranks alike."""
    places = [CompletionPlaces.generated(POSITIONS, ranks) for _ in range(ranks)]
    held = [places[0].waiting(set(range(POSITIONS)), rank) for rank in range(ranks)]
    for now in range(8):
        wanted: list[set[int]] = [set() for _ in range(ranks)]
        later = set()
        for position, rank, known, lasts in trained_by:
            if known <= now <= known + lasts:
                wanted[rank % ranks].add(position)
            elif known > now:
                later.add(position)
        routes = [each.share_out(wanted, rank) for rank, each in enumerate(places)]
        assert len({route is None for route in routes}) == 1, "all take part, or none"
        for rank, route in enumerate(routes):
            if route is not None:
                for other, sent in enumerate(route.sent):
                    assert sent == routes[other].received[rank]  # type: ignore[union-attr]  # none is None
                    assert set(sent) <= held[rank], "a rank sends what it holds"
                assert not set(route.arriving) & held[rank], "nothing comes twice"
                assert set(route.arriving) <= wanted[rank], "nothing comes that is not trained"
        held = [
            (wanted[rank] | places[rank].waiting(later, rank)) & (held[rank] | set(route.arriving if route else ()))
            for rank, route in enumerate(routes)
        ]
        assert all(wanted[rank] <= held[rank] for rank in range(ranks))


def test_facts_travel_to_the_last_bit() -> None:
    facts = {
        "prompt_fingerprint": "00ff00ff00ff00ff",
        "completion_fingerprint": "123456789abcdef0",
        "reward": 0.1,
        "advantage": -1 / 3,
        "old_logprobs": None,
        "generated_at_step": 2**40,
    }
    for changed in ({}, {"old_logprobs": "0000000000000000"}, {"reward": -0.0}):
        assert unpack_facts(pack_facts(facts | changed)) == facts | changed
    assert str(unpack_facts(pack_facts(facts | {"reward": float("nan")}))["reward"]) == "nan"
    assert len(pack_facts(facts)) == FACTS_BYTES


def test_what_pads_a_row_gives_no_kl_term_that_is_not_finite() -> None:
    """TRL multiplies by the mask only after exp(reference - policy): infinite where a policy of low temperature gives
    the padding token e^-200, and the reference's padding were 0."""
    columns = {
        "prompt_ids": torch.ones((2, 2), dtype=torch.long),
        "prompt_mask": torch.ones((2, 2), dtype=torch.long),
        "completion_ids": torch.ones((2, 4), dtype=torch.long),
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "advantages": torch.ones(2),
    }
    long, short = (
        {name: column[row : row + 1] for name, column in columns.items()}
        | {"ref_per_token_logps": torch.zeros(1, width)}
        for row, width in ((0, 4), (1, 2))
    )
    rollouts = [
        TrlRolloutRows(index, tensors, {0: 0}, [width], [2], [width], {0: {}})
        for index, (tensors, width) in enumerate(((long, 4), (short, 2)))
    ]
    batch = assemble([(rollouts[0], 0), (rollouts[1], 0)], (rollouts[0], 0), 0, None)
    policy = torch.where(batch["completion_mask"].bool(), -1.0, -200.0)
    apart = batch["ref_per_token_logps"] - policy
    kl = (torch.exp(apart) - apart - 1) * batch["completion_mask"]
    assert torch.isfinite(kl).all()
    assert not torch.isfinite(torch.exp(0 - policy)).all(), "the control: what 0 would give"

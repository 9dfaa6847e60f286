"""Small scripted ledgers: a run of 2 prompts x 2 samples per rollout, one optimizer step per rollout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge.ledger import Header, StepRecord, Writer, fingerprint
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology
from batchbridge.meaning.weights import Normaliser

SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=2, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=4),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(optimizer_steps=4),
)

ORDERED = SPEC.replace(**{"order.prompt_shuffle": "none", "order.last_rollout": "drop"})
"""The same with the prompts in the dataset's order: the scripted rows are what its plan trains."""

SCHEDULED = ORDERED.replace(**{"carried.learning_rate": 1e-3, "carried.lr_schedule": "constant"})
"""The same with a schedule of the learning rate."""

HALF = 0.5**0.5
"""The advantage, by the schema's default rule, of the better one of two rewards."""

Edit = Callable[[int, list[dict[str, Any]], dict[str, Any]], None]
"""Changes the rows and scalars of one step, given its number."""


def header(rank: int = 0, world_size: int = 1, **fields: Any) -> Header:
    defaults: dict[str, Any] = {
        "framework": "trl",
        "framework_version": "1.16.0",
        "mode": "enforce",
        "spec": SPEC,
        "dataset_size": 8,
    }
    return Header(**{**defaults, **fields}, rank=rank, world_size=world_size)


def rows_of(step: int) -> list[dict[str, Any]]:
    """The completions of a step, all ranks, in order; the second has no response token."""
    rows = []
    for position in range(4):
        prompt, sample = 2 * step + position // 2, position % 2
        rows.append(
            {
                "rollout": step,
                "pass_index": 0,
                "prompt": prompt,
                "sample": sample,
                "prompt_fingerprint": fingerprint([prompt]),
                "completion_fingerprint": fingerprint([prompt, sample]),
                "response_tokens": [3, 0, 2, 5][position],
                "reward": [1.0, 0.0, 0.25, 0.5][position],
                "advantage": [0.7, -0.7, -0.5, 0.5][position],
                "old_logprobs": None,
                "generated_at_step": step,
                "weights": 0.1,
            }
        )
    return rows


def sound_rows(step: int) -> list[dict[str, Any]]:
    """`rows_of` with the advantages that the rewards give."""
    values = [HALF, -HALF, -HALF, HALF]
    return [{**row, "advantage": value} for row, value in zip(rows_of(step), values, strict=True)]


def record(step: int, rows: list[dict[str, Any]], **fields: Any) -> StepRecord:
    names = (
        "rollout", "pass_index", "prompt", "sample", "prompt_fingerprint", "completion_fingerprint", "response_tokens",
        "reward", "advantage", "old_logprobs", "generated_at_step", "weights",
    )  # fmt: skip
    scalars: dict[str, Any] = {
        "normaliser": Normaliser(aggregation="token_mean", completions=4, tokens=10, prompts=2),
        "learning_rate": 1e-3, "gradient_norm": 0.5, "skipped": False, "lr_tick": True, "epoch": 0,
    }  # fmt: skip
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in names}
    if columns["weights"] and None in columns["weights"]:
        columns["weights"] = None
    return StepRecord(step=step, **{**scalars, **columns, **fields})


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Path]:
    """`ledger("a", world_size=2, steps=4, edit=...)` writes a ledger and returns its folder."""

    def write(
        name: str,
        *,
        world_size: int = 1,
        steps: int = 4,
        at_step: int = 0,
        edit: Edit | None = None,
        rows_of: Callable[[int], list[dict[str, Any]]] = rows_of,
        **header_fields: Any,
    ) -> Path:
        folder = tmp_path / name
        for rank in range(world_size):
            with Writer(folder, header(rank, world_size, at_step=at_step, **header_fields)) as writer:
                for step in range(at_step, steps):
                    rows, scalars = rows_of(step), {}
                    if edit is not None:
                        edit(step, rows, scalars)
                    writer.append(record(step, rows[rank::world_size], **scalars))
        return folder

    return write

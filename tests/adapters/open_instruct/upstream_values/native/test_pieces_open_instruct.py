"""What a learner's side makes of the rows that Open-Instruct was recorded to pack: whose tokens are whose, whole and in
pieces that ranks share, and the weight that is watched."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.ledger.records import fingerprint
from batchbridge_on_cpu.upstream_values import read as record_of
from batchbridge_open_instruct import engine, sequences, watching, weights
from batchbridge_open_instruct.feed import PackedCompletion

VALUES = record_of(Path(__file__).parents[1] / "values.json")["values"]


def batch_of(one: dict[str, Any], row: int) -> Any:
    """A micro-batch of one recorded row, collated; its values are their places."""
    ids, mask = (torch.tensor(one[name][row])[None] for name in ("rows", "response_masks"))
    places = torch.arange(ids.shape[1], dtype=torch.float32)[None]
    return SimpleNamespace(query_responses=[ids], response_masks=[mask], advantages=[places], vllm_logprobs=[-places])


def pieces_of(one: dict[str, Any], row: int) -> list[PackedCompletion]:
    """The row's completions, by where their own tokens stand in what was recorded."""
    ids, found = one["rows"][row], []
    for number in dict.fromkeys(value - 1 for value in one["response_masks"][row] if value):
        prompt, answer = one["sizes"][number]
        start = ids.index(10 + number) - prompt
        found.append(PackedCompletion(0, number, number, 0, start, prompt, answer, 0.5, 0))
    return found


ROWS = [(one, row) for one in VALUES["packs"] for row in range(len(one["rows"]))]
EACH = pytest.mark.parametrize(
    ("one", "row"), ROWS, ids=lambda value: value if isinstance(value, int) else str(value["ranks"])
)


@EACH
def test_the_ledger_has_every_completions_own_tokens(one: dict[str, Any], row: int) -> None:
    for piece in pieces_of(one, row):
        found, told = engine.trained(batch_of(one, row), 0, 0, piece)
        answer = [10 + piece.prompt] * piece.completion_tokens
        assert (found.tokens, found.prompt) == (piece.completion_tokens, piece.prompt)
        assert told["completion_fingerprint"] == fingerprint(answer)
        assert told["prompt_fingerprint"] == fingerprint([9] * piece.prompt_tokens)


@EACH
@pytest.mark.parametrize("width", [None, 5])
def test_a_log_probability_is_that_of_the_next_token_of_its_own_completion(
    one: dict[str, Any], row: int, width: int | None
) -> None:
    pieces, numbers = pieces_of(one, row), torch.tensor(one["response_masks"][row][1:])
    total = numbers.numel()
    for place in range(1 if width is None else -(-total // width)):
        start = place * (width or 0)
        own = numbers[start : start + (width or total)]
        given = watching.OpenInstructStepInputs.of(batch_of(one, row), 0, [pieces], place, width)
        taken = [[at for at in each.tolist() if at >= 0] for each in given.places]
        assert taken[:-1] == [[at for at, number in enumerate(own) if number == piece.prompt + 1] for piece in pieces]
        assert given.mask[0, : len(own)].tolist() == [bool(number) for number in own]
        assert given.advantages[0, : len(own)].tolist() == [start + at + 1.0 for at in range(len(own))]


@dataclasses.dataclass
class Batch:
    """A collated batch of one column."""

    query_responses: list[torch.Tensor]


@pytest.mark.parametrize("one", VALUES["shards"], ids=lambda one: f"{one['widths']} on {one['ranks']}")
def test_every_token_is_a_target_on_one_of_the_ranks_that_open_instruct_cuts_a_row_for(one: dict[str, Any]) -> None:
    """A piece is followed by the next rank's first token, and the last by none: a rank's log-probabilities are those of
    its piece's places, and the row's tokens but the first are targets once each."""
    rows = [torch.arange(1, width + 1)[None] for width in one["widths"]]
    targets: list[list[int]] = [[] for _ in rows]
    for place, pieces in enumerate(one["pieces"]):
        shared: Any = object.__new__(sequences.SequenceGroup)
        shared.place = place
        made = shared.cut(lambda batch, own=pieces: Batch([torch.tensor([ids]) for ids in own]), Batch(rows))
        for number, (longer, own) in enumerate(zip(made.query_responses, pieces, strict=True)):
            assert longer[0, :-1].tolist() == own
            targets[number] += longer[0, 1:].tolist()
    assert [[token for token in each if token] for each in targets] == [
        list(range(2, width + 1)) for width in one["widths"]
    ]


def test_the_watched_weight_has_the_gradient_that_the_optimizer_finds() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    watched = weights.of_module(module)
    assert watched is not None
    module(torch.ones(1, 3)).sum().backward()
    found = watched.gradient()
    assert found is not None
    assert any(found is one.grad for one in module.parameters())
    watched.witness.remove()

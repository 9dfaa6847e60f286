"""What a learner's side makes of the rows that Open-Instruct was recorded to pack: whose tokens are whose, whole and in
pieces that ranks share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.errors import BatchDrift
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.ledger.records import fingerprint
from batchbridge.meaning.spec import Advantage
from batchbridge_on_cpu.upstream_values import read as record_of
from batchbridge_open_instruct import engine, inputs, sequences, watching
from batchbridge_open_instruct.completions import PackedCompletion
from batchbridge_open_instruct.feed import ATTRIBUTE, ActorFeed, KnownPermutations

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


# ---- what completions carry from where data are prepared to a learner

GROUPED = next(one for one in VALUES["packs"] if len(one["sizes"]) % 2 == 0 and len(one["rows"]) > 1)
"""A recorded rollout, taken as groups of two."""
RULE = Advantage(baseline="group_mean", scale="none")


def feed_of(one: dict[str, Any], held: HeldAdvantages) -> Any:
    """A feed whose loop has packed a rollout, and computed its advantages; what is packed."""
    made: Any = object.__new__(ActorFeed)
    made._held, made._plan, made._taken, made._permutations, made._patches = held, None, (), [], Patches()
    made._orders = SimpleNamespace(spec=SimpleNamespace(digest=lambda: "spec"), steps_per_rollout=2)
    rows = [pieces_of(one, row) for row in range(len(one["rows"]))]
    made._rows = [
        tuple(
            dataclasses.replace(
                piece, rollout=1, position=piece.prompt // 2, sample=piece.prompt % 2, reward=piece.prompt
            )
            for piece in pieces
        )
        for pieces in rows
    ]
    made._pieces = sorted((piece for row in made._rows for piece in row), key=lambda piece: piece.prompt)
    numbers = [torch.tensor(mask) for mask in one["response_masks"]]
    packed = SimpleNamespace(
        query_responses=[torch.tensor(row) for row in one["rows"]],
        response_masks=[number.bool() for number in numbers],
        advantages=[torch.tensor([0.0, *[-0.5, 0.5] * (len(one["sizes"]) // 2)])[number] for number in numbers],
        vllm_logprobs=[-0.1 * number for number in numbers],
    )

    def native(packed: Any, ranks: int, size: int, pad: int, **more: Any) -> list[Any]:
        known = KnownPermutations(made._permutation).random.permutation(len(packed.query_responses))
        names = ("query_responses", "response_masks", "advantages", "vllm_logprobs")
        return [SimpleNamespace(**{name: [getattr(packed, name)[at][None].clone() for at in known] for name in names})]

    made._native_collate = native
    return made, packed


def test_completions_carry_to_a_learner_what_their_digests_are_of() -> None:
    made, packed = feed_of(GROUPED, HeldAdvantages(RULE, RULE, 2))
    (batch,) = made._collate(packed, 1, 1, 0)
    table = vars(batch)[ATTRIBUTE]
    assert len(table.digests) == len(GROUPED["sizes"])
    assert inputs.changed(batch, table) == [[] for _ in GROUPED["rows"]]
    for name in ("query_responses", "response_masks", "advantages", "vllm_logprobs"):
        piece = table.micro_batches[1][0][0]
        values = getattr(batch, name)[1][0]
        before = values.clone()
        values[piece.start + piece.prompt_tokens] = 0 if name == "response_masks" else 7
        (first, (said,), *others) = inputs.changed(batch, table)
        assert not first
        assert not any(others)
        assert said.startswith(
            f"{name} of prompt {piece.prompt} sample {piece.sample} is not what the trainer's process"
        )
        assert said.aspect == "inputs"
        values.copy_(before)


def test_rows_that_exchange_their_advantages_are_named() -> None:
    made, packed = feed_of(GROUPED, HeldAdvantages(RULE, RULE, 2))
    (batch,) = made._collate(packed, 1, 1, 0)
    for values in batch.advantages:
        values *= -1
    found = inputs.changed(batch, vars(batch)[ATTRIBUTE])
    assert sum(map(len, found)) == len(GROUPED["sizes"])


def test_advantages_that_rewards_do_not_give_end_the_preparation_unless_they_are_allowed() -> None:
    made, packed = feed_of(GROUPED, HeldAdvantages(RULE, RULE, 2))
    packed.advantages = [1.05 * values for values in packed.advantages]
    with pytest.raises(BatchDrift, match=r"step 2 .* advantages: completion . of the rollout has the advantage -0.525"):
        made._collate(packed, 1, 1, 0)
    made, packed = feed_of(GROUPED, HeldAdvantages(RULE, RULE, 2, allowed=True))
    packed.advantages = own = [1.05 * values for values in packed.advantages]
    (batch,) = made._collate(packed, 1, 1, 0)
    order = made._permutations[0]
    assert all(torch.equal(mine[0], own[at]) for mine, at in zip(batch.advantages, order, strict=True))
    assert inputs.changed(batch, vars(batch)[ATTRIBUTE]) == [[] for _ in GROUPED["rows"]]


def test_a_setting_that_changes_ends_the_preparation_before_its_rollout() -> None:
    made, _ = feed_of(GROUPED, HeldAdvantages(RULE, RULE, 2))
    actor = SimpleNamespace(
        config=SimpleNamespace(advantage_normalization_type="centered"),
        generation_config=SimpleNamespace(temperature=1.0),
    )
    made._settings = ProducerSettings(lambda: inputs.settings_read(actor))
    made._hold_settings(1)
    actor.config.advantage_normalization_type = "standard"
    with pytest.raises(BatchDrift, match=r"step 2 .* settings: advantage_normalization_type was centered .* standard"):
        made._hold_settings(1)

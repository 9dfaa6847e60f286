"""The rows of a rollout on their way from the ranks that generated them to the ranks that train them.

Every rank knows who generated each completion, how long it is and who will train it, so that both ends of a transfer
know its size. A row goes to the ranks that train it and to no other, without its padding; of what a rank does not hold
it knows three lengths. One collective moves one column (or one kind of image tensor) of one rollout, as bytes: a rank
needs memory for its own rows and for one column on its way.

Source: torch 2.13.0, torch.distributed.all_to_all_single, under gloo and NCCL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class RowRoute(NamedTuple):
    """The rows that one rank sends and receives, by their positions in the rollout: for each other rank, ascending."""

    sent: list[list[int]]
    received: list[list[int]]

    @property
    def arriving(self) -> list[int]:
        """Positions of the rows that come, in the order in which they lie in a received buffer."""
        return [position for positions in self.received for position in positions]


@dataclass
class CompletionPlaces:
    """The ranks that hold the completions of a rollout, known alike on every rank.

    generated_by: by position, the rank that keeps the row until every step that trains it is shared out: the one that
    generated it. delivered: by rank, positions of the rows that it holds because it trains them.
    """

    generated_by: list[int]
    delivered: list[set[int]]

    @classmethod
    def generated(cls, completions: int, ranks: int) -> CompletionPlaces:
        """The places of a rollout of which each rank has generated its contiguous part; no row has moved yet."""
        return cls([position * ranks // completions for position in range(completions)], [set() for _ in range(ranks)])

    @classmethod
    def everywhere(cls, completions: int, ranks: int) -> CompletionPlaces:
        """The places of a rollout all whose rows are on every rank, as after a resume on another number of ranks."""
        places = cls.generated(completions, ranks)
        places.delivered = [set(range(completions)) for _ in range(ranks)]
        return places

    def waiting(self, positions: set[int], rank: int) -> set[int]:
        """The part of `positions` that stays on `rank` until it is known who trains them."""
        return {position for position in positions if self.generated_by[position] == rank}

    def share_out(self, wanted: Sequence[set[int]], rank: int) -> RowRoute | None:
        """The rows that `rank` sends and receives so that every rank holds what it trains; None where no rank sends
        anything.

        wanted: positions, by rank, of all rows that the rank trains in steps whose shares are known. A rank forgets
        what it was sent for steps that are over.
        """
        sent: list[list[int]] = [[] for _ in wanted]
        received: list[list[int]] = [[] for _ in wanted]
        moves = False
        for target, positions in enumerate(wanted):
            for position in sorted(positions - self.delivered[target]):
                source = self.generated_by[position]
                if source == target:
                    continue
                moves = True
                if source == rank:
                    sent[target].append(position)
                if target == rank:
                    received[source].append(position)
        self.delivered = [set(positions) for positions in wanted]
        return RowRoute(sent, received) if moves else None

    def state(self) -> dict[str, Any]:
        """Plain values: what a checkpoint stores."""
        return {"generated_by": self.generated_by, "delivered": [sorted(positions) for positions in self.delivered]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CompletionPlaces:
        """The places that `state` stored."""
        return cls(list(state["generated_by"]), [set(positions) for positions in state["delivered"]])


def move(
    route: RowRoute, piece: Callable[[int], torch.Tensor], size: Callable[[int], int], device: torch.device
) -> dict[int, torch.Tensor]:
    """One tensor of every row on the route. Collective. Position of a row that came -> its tensor's bytes.

    piece: the tensor at a position that this rank sends. size: bytes of the tensor at any position of the route.
    """
    pieces = [_bytes(piece(position)) for positions in route.sent for position in positions]
    sent = torch.cat(pieces).to(device) if pieces else torch.empty(0, dtype=torch.uint8, device=device)
    inward, outward = ([sum(map(size, each)) for each in side] for side in (route.received, route.sent))
    received = torch.empty(sum(inward), dtype=torch.uint8, device=device)
    torch.distributed.all_to_all_single(received, sent, inward, outward)
    sizes = [size(position) for position in route.arriving]
    return dict(zip(route.arriving, received.split(sizes) if sizes else (), strict=True))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


_FACTS = struct.Struct("<8s8s8s?ddq")
FACTS_BYTES = _FACTS.size
"""Bytes of one completion's facts for the ledger while they travel."""


def pack_facts(facts: Mapping[str, Any]) -> torch.Tensor:
    """A completion's facts for the ledger (see `recording.facts_of`), and the step that generated it, as bytes."""
    old = facts["old_logprobs"]
    digests = (facts["prompt_fingerprint"], facts["completion_fingerprint"], old or "")
    numbers = (old is not None, facts["reward"], facts["advantage"], facts["generated_at_step"])
    return torch.frombuffer(bytearray(_FACTS.pack(*map(bytes.fromhex, digests), *numbers)), dtype=torch.uint8)


def unpack_facts(packed: torch.Tensor) -> dict[str, Any]:
    """The facts that `pack_facts` packed, to the last bit."""
    prompt, completion, old, has_old, reward, advantage, step = _FACTS.unpack(bytes(packed.cpu().tolist()))
    return {
        "prompt_fingerprint": prompt.hex(),
        "completion_fingerprint": completion.hex(),
        "reward": reward,
        "advantage": advantage,
        "old_logprobs": old.hex() if has_old else None,
        "generated_at_step": step,
    }

"""Learners that share the tokens of rows (sequence_parallel_size), and the tokens at which rows are cut between them.

A row's tokens lie on S ranks, one piece each, and DeepSpeed's Ulysses exchanges them inside of attention alone. The
log-probability at a place is that of the next token, and Open-Instruct looks for it in the rank's own piece: the first
token of every piece but the first is not a target. So a piece is cut with one token more, which is a target and
nothing else: the model sees the piece as it was.

Open-Instruct multiplies the loss with the number of replicas, by which DeepSpeed were to average; with ZeRO-3, which it
asks for, and gradients that are reduced by scattering, as they are by default, DeepSpeed averages over all ranks.

Source: open-instruct e6c3044 utils.UlyssesSPSplitter, grpo_utils.forward_for_logprobs,
grpo_fast.PolicyTrainerRayProcess.step; deepspeed 0.19.6 runtime/sequence_parallel/ulysses_sp.py,
runtime/comm/coalesced_collectives.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from batchbridge.kit.measuring import Measured
from batchbridge.kit.replicas import Replicas, gathered
from batchbridge.kit.workers import TrainedRow
from batchbridge_open_instruct.learners import Learner


class SequenceGroup(Replicas):
    """The ranks of one run, S of which are a replica: they hold the same rows, each a piece of every one.

    place: of this rank's piece in a row. ranks: all of them.
    """

    def __init__(self, learner: Learner) -> None:
        self.size = learner.ranks_per_row
        rank, self.ranks = int(dist.get_rank()), int(dist.get_world_size())
        self.place = rank % self.size
        self._splitter: Any = learner.trainer.splitter if self.size > 1 else None
        across: Any = None
        if self.size > 1:
            groups = [dist.new_group(range(place, self.ranks, self.size)) for place in range(self.size)]
            across = groups[self.place]
        # What the ranks of a replica saw of their pieces is put together before it is compared.
        super().__init__(across, replica=rank // self.size, writes=not self.place)

    def put_together(self, rows: Iterable[TrainedRow], objections: Sequence[str]) -> list[str]:
        """Gives every row what all ranks of the replica saw of it; returns what any of them objects. Collective."""
        if self.size == 1:
            return list(objections)
        rows = list(rows)
        mine = [(row.weight, row.departure, row.tolerance) for row in rows]
        found = gathered([(mine, list(objections))], self._splitter.sp_group)
        for row, *seen in zip(rows, *(part for part, _ in found), strict=True):
            row.measured(together([Measured(*one) for one in seen]))
        return [text for _, said in found for text in said]

    # ---- rows in pieces

    def cut(self, native: Callable[[Any], Any], data: Any) -> Any:
        """`UlyssesSPSplitter.split_collated_batch`, and behind each piece the token that follows it; 0 behind the last
        one's, which trains nothing."""
        made = native(data)
        longer = {}
        for name in (field.name for field in dataclasses.fields(made)):
            pairs = zip(getattr(made, name), getattr(data, name), strict=True)
            longer[name] = [torch.cat([piece, self._next(piece, row)], dim=1) for piece, row in pairs]
        return dataclasses.replace(made, **longer)

    def _next(self, piece: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        end = piece.shape[1] * (self.place + 1)
        return row[:, end : end + 1] if end < row.shape[1] else torch.zeros_like(piece[:, :1])

    def of_pieces(self, model: Any) -> Any:
        """A model for `forward_for_logprobs`, which takes pieces as `cut` makes them."""
        return model if self.size == 1 else _OfPieces(model)


def together(seen: Sequence[Measured]) -> Measured:
    """The measurement of a row by the ranks that share it: one weight, or a departure where they saw several."""
    weights = [one.weight for one in seen if one.weight is not None]
    tolerance, departure = max(one.tolerance for one in seen), max(one.departure for one in seen)
    if not weights:
        return Measured(None, departure, tolerance)
    apart = max(weights) - min(weights)
    size = max(abs(weight) for weight in weights)
    return Measured(weights[0], max(departure, apart / size if size else 0.0), tolerance)


class _OfPieces:
    """A model that is not given a piece's last token, which is the next rank's."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, *, input_ids: Any, attention_mask: Any, position_ids: Any) -> _Logits:
        made = self._model(
            input_ids=input_ids[:, :-1], attention_mask=attention_mask, position_ids=position_ids[:, :-1]
        )
        return _Logits(getattr(made, "logits", made))


class _Logits:
    """Logits every one of which predicts a token that is there: `forward_for_logprobs` leaves out the last, and should
    not. No copy of them is made for that."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __truediv__(self, temperature: float) -> _Logits:
        return _Logits(self._values / temperature)

    def __getitem__(self, places: Any) -> Any:
        assert places == (slice(None), slice(None, -1)), "forward_for_logprobs leaves out the last, and nothing else"
        return self._values

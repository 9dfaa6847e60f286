"""Micro-batches that are measured at once: their rows one below the other, so that many small ones take few calls.

Imports torch; knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from batchbridge.kit.rounding import Rows

AT_ONCE = 2**18
"""Tokens of micro-batches that are measured at once: few calls of torch's for many small ones, little memory for large
ones."""


@dataclass(frozen=True)
class JoinedRows:
    """Micro-batches that are measured at once. Log-probabilities and gradients have shape (rows, tokens), and the rows'
    multiplier is numbers. coarsest: the type that rounds most of what the gradients were computed in. part: the number
    of each row's micro-batch among them."""

    logprobs: torch.Tensor
    gradient: torch.Tensor
    rows: Rows
    coarsest: torch.dtype
    part: torch.Tensor
    parts: int = 1

    @property
    def kind(self) -> tuple[Any, ...]:
        """The types and the device, which micro-batches that are measured at once share."""
        kinds = [None if one is None else one.dtype for one in self.tensors()]
        return (self.logprobs.dtype, self.logprobs.device, self.gradient.dtype, self.coarsest, *kinds)

    def tensors(self) -> list[torch.Tensor | None]:
        """The tensors of the rows, in the order of their fields."""
        return [getattr(self.rows, field.name) for field in fields(Rows)]

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest value of each row's own micro-batch. values: not negative, one for each row."""
        if self.parts == 1:
            return values.amax().expand(values.shape)
        return values.new_zeros(self.parts).scatter_reduce(0, self.part, values, "amax")[self.part]


def joined(each: Iterable[JoinedRows]) -> Iterator[JoinedRows]:
    """Micro-batches in their order, as many at once as `AT_ONCE` has room for: with padding, which no mask has."""
    some: list[JoinedRows] = []
    for one in each:
        width = max(seen.logprobs.shape[1] for seen in (*some, one))
        tokens = width * sum(len(seen.logprobs) for seen in (*some, one))
        if some and (some[0].kind != one.kind or tokens > AT_ONCE):
            yield _below(some)
            some = []
        some.append(one)
    if some:
        yield _below(some)


def _below(some: Sequence[JoinedRows]) -> JoinedRows:
    if len(some) == 1:
        return some[0]
    width = max(one.logprobs.shape[1] for one in some)

    def below(values: Iterable[torch.Tensor]) -> torch.Tensor:
        # A column that holds for a whole row is written out: of another micro-batch it may be one of many.
        whole = (value.expand(one.logprobs.shape) for value, one in zip(values, some, strict=True))
        return torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in whole])

    columns = zip(*(one.tensors() for one in some), strict=True)
    named = zip(fields(Rows), columns, strict=True)
    rows = Rows(**{field.name: None if column[0] is None else below(column) for field, column in named})
    sizes = torch.tensor([len(one.logprobs) for one in some], device=some[0].part.device)
    part = torch.arange(len(some), device=sizes.device).repeat_interleave(sizes)
    logprobs, gradient = below(one.logprobs for one in some), below(one.gradient for one in some)
    return JoinedRows(logprobs, gradient, rows, some[0].coarsest, part, len(some))

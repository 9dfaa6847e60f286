"""The attributes that `candidates` asks of `feed.Piece`, which it cannot name, as `feed` imports it."""

from __future__ import annotations

from typing import Protocol


class Piece(Protocol):
    """The attributes of a `feed.Piece` that `candidates` asks for."""

    @property
    def rollout(self) -> int: ...
    @property
    def prompt(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def sample(self) -> int: ...
    @property
    def reward(self) -> float: ...
    @property
    def weights_of(self) -> int | None: ...

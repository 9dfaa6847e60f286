"""The inputs that a model is run on in a training process, held against the rows that arrived:
tokens, their positions, and the temperature of log-probabilities. Knows no framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from batchbridge.kit.row_digests import InputObjection


@dataclasses.dataclass(frozen=True)
class HeldModelInputs:
    """The rows as a model should be run on them: copies. columns: of each row, by name. temperature: of the
    log-probabilities; None: not held."""

    columns: Mapping[str, Sequence[torch.Tensor]]
    temperature: float | None = None

    @classmethod
    def of(cls, data: Any, names: Sequence[str], temperature: float | None) -> HeldModelInputs:
        """Those of a batch that has columns by name."""
        return cls({name: [row.clone() for row in data[name].unbind()] for name in names}, temperature)


class SeenModelInputs:
    """The comparisons of an optimizer step. Tensors, so that nobody waits for a device before the step is whole."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, str, torch.Tensor | bool]] = []

    def drop(self) -> None:
        """Forgets what was seen since the last step."""
        self._seen = []

    def compare(self, given: HeldModelInputs, places: Sequence[int], micro_batch: Any, temperature: Any) -> None:
        """The comparison of a micro-batch that a model is about to be run on. places: of its rows among those that
        arrived. temperature: one number, or one of each row."""
        for name, rows in given.columns.items():
            for place, found in zip(places, micro_batch[name].unbind(), strict=True):
                row = rows[place]
                alike = found.shape == row.shape and (found == row.to(found.device)).all()
                self._seen.append((place, name, alike))
        if given.temperature is not None:
            values = torch.as_tensor(temperature, dtype=torch.float64).expand(len(places))
            for place, value in zip(places, values, strict=True):
                alike = (value - given.temperature).abs() <= 1e-6 * given.temperature
                self._seen.append((place, "temperature", alike))

    def objections(self, names: Mapping[int, str]) -> list[str]:
        """The objections of the step, which is over. names: of its rows as a user knows them, by place; others are
        fillers."""
        seen, self._seen = self._seen, []
        return [
            InputObjection(f"the model was run with another {name} than {names[place]} has")
            for place, name, alike in seen
            if place in names and not bool(alike)
        ]

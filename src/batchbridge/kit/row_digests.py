"""Digests of what a row carries to its loss: made in the trainer's process when all of it is there, and compared in the
process that trains the row, right before the loss is computed.

A digest is of a row's values without padding: how a framework pads, packs or orders rows changes none. Floats are
digested as float32, integers and masks as 64-bit integers, so that another layout of the same values is no departure,
and another value of the last bit is one. Knows no framework, and imports no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from batchbridge.errors import BatchDrift

ROW_DIGESTS = "batchbridge_row_digests"
"""The name by which the digests of a step's rows ride with a batch."""


class InputObjection(str):
    """An objection to what a row carries. aspect: of the step, as in `BatchDrift`."""

    aspect = "inputs"


def digest_of(values: Any) -> int:
    """A number of 56 bits for a row's values: a tensor of any device, or a sequence of integers or of floats."""
    if hasattr(values, "detach"):
        # A zero has two signs, and multiplying with a mask gives either.
        values = values.detach().cpu()
        values = values.float() + 0.0 if values.is_floating_point() else values.long()
        data = values.contiguous().numpy().tobytes()
    else:
        held = list(values)
        whole = all(isinstance(one, int) for one in held)
        data = array("q" if whole else "f", held if whole else [one + 0.0 for one in held]).tobytes()
    return int.from_bytes(blake2b(data, digest_size=7).digest(), "little")


def digests_of(columns: Mapping[str, Any]) -> dict[str, int]:
    """The digests of a row's columns by their names; a column that is None has none."""
    return {name: digest_of(values) for name, values in columns.items() if values is not None}


def input_objection(told: Mapping[str, int], found: Mapping[str, int], who: str) -> InputObjection | None:
    """The objection that a row's columns are not those of which the trainer made digests. found: of the columns that
    are there. who: the row, as a user knows it."""
    names = [name for name, digest in told.items() if found.get(name) != digest]
    if not names:
        return None
    return InputObjection(
        f"{', '.join(names)} of {who} {'is' if len(names) == 1 else 'are'} not what the trainer's process sent: "
        "something has changed it after the advantages were computed, or exchanged rows; take that code out, or wrap "
        'with mode="observe"'
    )


RowDigests = Mapping[tuple[int, int], Mapping[str, int]]
"""(position, sample) -> the digests of a row's columns."""


class UnsentRows:
    """The rows of a rollout in a trainer's process, from where their advantages are computed to where they are sent."""

    def __init__(self) -> None:
        self._computed: RowDigests = {}

    def computed(self, digests: RowDigests) -> None:
        """Takes down what the rows carry now."""
        self._computed = digests

    def require(self, digests: RowDigests, step: int) -> None:
        """The check (`BatchDrift` at `step`) that the rows carry what they did when their advantages were computed, in
        the columns that they still have; nothing where nobody saw that."""
        for (position, sample), told in self._computed.items():
            found = digests.get((position, sample), {})
            kept = {name: digest for name, digest in told.items() if name in found}
            who = f"the rollout's prompt {position} sample {sample}"
            if (why := input_objection(kept, found, who)) is not None:
                raise BatchDrift(step, why.aspect, why)
        self._computed = {}

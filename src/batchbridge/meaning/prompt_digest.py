"""The identity of a run's prompts: one digest of their texts, which ranks, checkpoints and ledgers compare.

A data set that is shuffled without a seed has the same length in every start, and other prompts at every place: some
are trained twice, others never. Only the prompts' own column is read, so that no image is decoded. A fixed sample of
16, 256 and 4096 rows is hashed first, then all of them, as far as a few seconds reach: two digests are compared by the
most that both have. Standard library only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

SECONDS = 5.0
"""The time that a digest may take."""
_SAMPLES = (16, 256, 4096)
"""The sizes of the sample, of which the smallest is always taken, whatever the time."""
_STRIDE = 2_654_435_761
"""A prime near the golden ratio of 2^32: multiples of it lie evenly among any number of rows."""
_BLOCK = 1024

PromptDigest = Mapping[str, Any]
"""A digest as plain JSON: `prompts`, their number; `sampled`, size of a sample -> its digest; `whole`, the digest of
all prompts, or null where the time did not suffice."""


class PromptColumn(Sequence[Any]):
    """One column of a data set, of which no other column is read or decoded."""

    def __init__(self, dataset: Any, name: str) -> None:
        select = getattr(dataset, "select_columns", None)
        self._dataset, self._name = dataset if select is None else select([name]), name
        self._in_blocks = select is not None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and not self._in_blocks:
            return [self._dataset[index][self._name] for index in range(*place.indices(len(self)))]
        return self._dataset[place][self._name]


def has_rows(prompts: Sequence[Any]) -> bool:
    """Whether prompts have a length, and places to look at: those of a stream have none."""
    try:
        return len(prompts) >= 0
    except TypeError:
        return False


def digest_of(prompts: Sequence[Any], seconds: float = SECONDS) -> PromptDigest:
    """The digest of prompts: texts, or the messages of conversations."""
    from hashlib import blake2b  # it loads OpenSSL, and most commands read no prompts

    until, count = time.monotonic() + seconds, len(prompts)
    sample, found = blake2b(digest_size=8), {}
    for number in range(min(_SAMPLES[-1], count)):
        _add(sample, prompts[_place(number, count)])
        if number + 1 in _SAMPLES:
            found[str(number + 1)] = sample.hexdigest()
        if number + 1 >= _SAMPLES[0] and time.monotonic() > until:
            break
    whole = blake2b(digest_size=8)
    for start in range(0, count, _BLOCK):
        if start and time.monotonic() > until:
            return {"prompts": count, "sampled": found, "whole": None}
        for prompt in prompts[start : start + _BLOCK]:
            _add(whole, prompt)
    return {"prompts": count, "sampled": found, "whole": whole.hexdigest()}


def unlike(one: PromptDigest, other: PromptDigest) -> str | None:
    """The difference of two digests, in words: "24 and 20 prompts"; None where nothing that both have differs."""
    if one["prompts"] != other["prompts"]:
        return f"{one['prompts']} and {other['prompts']} prompts"
    if None not in (one["whole"], other["whole"]):
        alike, what = one["whole"] == other["whole"], f"all {one['prompts']} prompts"
    else:
        common = max(one["sampled"].keys() & other["sampled"].keys(), key=int, default=None)
        if common is None:
            return None
        alike, what = one["sampled"][common] == other["sampled"][common], f"a sample of {common} prompts"
    return None if alike else f"{what}: other texts, or the same in another order"


def other_rank(everyone: Sequence[PromptDigest | None]) -> str | None:
    """The reason why ranks cannot train together, whose prompts are not those of rank 0: groups would mix prompts."""
    for rank, other in enumerate(everyone):
        first = everyone[0]
        change = None if first is None or other is None else unlike(first, other)
        if change is not None:
            return (
                f"rank {rank} has other prompts than rank 0 ({change}): load and shuffle the data set alike on every "
                "rank, with the same seed"
            )
    return None


def sampled(digest: PromptDigest) -> str:
    """The line of a report on a digest that is not of all prompts."""
    most = max(digest["sampled"], key=int, default="0")
    rows = f"{most} of {digest['prompts']} prompts' texts, as all take more than {SECONDS:.0f} s"
    return f"  note: ranks and checkpoints are compared by a sample of {rows}"


def _place(number: int, count: int) -> int:
    """The row that a sample takes as its `number`th, the same in every process and release."""
    return number * _STRIDE % count if count else 0


def _add(digest: Any, prompt: Any) -> None:
    # What is no text and no JSON (an image among the messages) counts by its kind.
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=_kind)
    content = text.encode("utf-8", "surrogatepass")
    digest.update(b"%d:" % len(content))
    digest.update(content)


def _kind(value: object) -> str:
    return type(value).__name__

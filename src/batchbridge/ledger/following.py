"""A ledger that is read while its run writes it: each optimizer step once all ranks have recorded it.

Only what the files have gained is read, so that a look costs the same after an hour and after a week.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchbridge.errors import LedgerError
from batchbridge.ledger.numbers import drift_of
from batchbridge.ledger.reading import RankLine, merge
from batchbridge.ledger.records import is_json
from batchbridge.ledger.scanning import step_of
from batchbridge.ledger.summary import slowest_rank
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import LossTerm, Spec


@dataclass
class _Tail:
    """The end of one rank's file: how far it is read, a line that is not whole yet, and the number of the last line."""

    offset: int = 0
    begun: bytes = b""
    number: int = 0


@dataclass
class FollowedLedger:
    """The ledger in `folder`, as far as it is written. header: of the newest start; None: nothing is written yet."""

    folder: Path
    header: dict[str, Any] | None = None
    total: int | None = None
    """Optimizer steps of the whole run, where its specification says so."""
    _term: LossTerm | None = None
    _tails: defaultdict[int, _Tail] = field(default_factory=lambda: defaultdict(_Tail))
    _starts: dict[int, dict[str, Any]] = field(default_factory=dict)
    _waiting: defaultdict[int, dict[int, RankLine]] = field(default_factory=lambda: defaultdict(dict))

    def news(self) -> Iterator[dict[str, Any]]:
        """The merged steps that all ranks have recorded since the last call, in order; a resumed run says a step again.

        Raises `LedgerError` where a line is none of a ledger's, and where the folder is none."""
        if self.folder.exists() and not self.folder.is_dir():
            raise LedgerError("no folder of a ledger", self.folder)
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            digits = path.name[len("rank-") : -len(".jsonl")]
            if digits.isdecimal():
                self._read(path, int(digits))
        ranks = 0 if self.header is None else self.header["world_size"]
        for step in sorted(self._waiting):
            if len(self._waiting[step]) == ranks:
                parts = self._waiting.pop(step)
                yield merge([parts[rank] for rank in sorted(parts)])

    def drift(self, step: Mapping[str, Any]) -> float | None:
        """The largest relative deviation of a measured weight from the planned one; None: nothing shows it."""
        if self._term is None or step["weights"] is None:
            return None
        rows = zip(step["rollout"], step["prompt"], step["response_tokens"], step["weights"], strict=True)
        return drift_of(self._term, rows)

    def _read(self, path: Path, rank: int) -> None:
        tail = self._tails[rank]
        with path.open("rb") as file:
            file.seek(tail.offset)
            gained = file.read()
        tail.offset += len(gained)
        *lines, tail.begun = (tail.begun + gained).split(b"\n")
        for line in lines:
            tail.number += 1
            if not is_json(line):  # a kill tore it, and the next start went on behind it
                continue
            if (step := step_of(line + b"\n", path, tail.number)) is None:
                self._begin(json.loads(line), rank)
            else:
                self._waiting[step][rank] = RankLine(line, rank, path, tail.number)

    def _begin(self, header: dict[str, Any], rank: int) -> None:
        """A start of one rank: what it had recorded from there on is recorded again."""
        self._starts[rank] = header
        for step in [step for step in self._waiting if step >= header["at_step"]]:
            self._waiting[step].pop(rank, None)
        if rank == 0:
            self.header = header
            try:
                spec = Spec.from_dict(header["spec"])
                steps = derive(spec, header["dataset_size"])["total_optimizer_steps"]
                self.total = None if steps is None else int(steps)
                self._term = spec.loss.policy
            except (KeyError, TypeError, ValueError, ArithmeticError):  # of another time
                self.total = self._term = None


@dataclass
class Progress:
    """The numbers of a run so far, a step at a time. last: the newest step, merged; drift: the largest; slowest: rank
    to the number of steps in which it was the slowest; timed: steps in which that is known."""

    steps: int = 0
    response_tokens: int = 0
    completions: int = 0
    skipped: int = 0
    drift: float | None = None
    drift_step: int | None = None
    last_drift: float | None = None
    last: Mapping[str, Any] | None = None
    timed: int = 0
    slowest: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, step: Mapping[str, Any], drift: float | None) -> None:
        """Counts a step in."""
        self.steps += 1
        self.completions += len(step["prompt"])
        self.response_tokens += sum(step["response_tokens"])
        self.skipped += bool(step["skipped"])
        self.last, self.last_drift = step, drift
        if drift is not None and (self.drift is None or drift > self.drift):
            self.drift, self.drift_step = drift, step["step"]
        if (straggler := slowest_rank(step)) is not None:
            self.timed += 1
            self.slowest[straggler[0]] += 1


def remaining_seconds(total: int | None, done: int, first: int, seconds: float) -> float | None:
    """The seconds that the rest takes at the pace so far. done: steps of the run; first: the step at which we began to
    look; seconds: since then. None: nobody knows."""
    seen = done - first
    if total is None or seen <= 0 or not math.isfinite(seconds):
        return None
    return max(total - done, 0) * seconds / seen

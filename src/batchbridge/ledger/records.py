"""The ledger: what each optimizer step of a running trainer really trained, one JSON Lines file per rank.

`rank-00000.jsonl` holds a header for each start of the process and one record per optimizer step, with columns (lists
of equal length) over the completions that this rank trained in the step; filler rows never appear. A line is written
and flushed at once, so a killed process loses at most the line it was writing. docs/ledger.md describes the format.

Here: the format, and writing. The standard library is enough; lines are written faster where orjson is installed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from batchbridge.errors import LedgerError
from batchbridge.ledger import speedups
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Normaliser

SCHEMA = "batchbridge-ledger/1"

SCALARS = {
    "step": "optimizer step, from 0 over the whole run",
    "epoch": "epoch of the step's first completion, from 0",
    "normaliser": "applied denominators: aggregation, completions B, tokens T, constant c, prompts; null: see weights",
    "learning_rate": "learning rate that the optimizer applied; null: unknown",
    "gradient_norm": "norm of the gradient before clipping; null: unknown",
    "skipped": "true: the optimizer did not step (no token, or a non-finite gradient)",
    "lr_tick": "true: the learning rate schedule advanced after this step",
}
"""Every scalar of a step record, in the order of the line."""

COLUMNS = {
    "rollout": "rollout that generated the completion, from 0",
    "pass": "pass over that rollout, from 0",
    "prompt": "index of the prompt in the dataset",
    "sample": "index of the completion in its group, from 0",
    "prompt_fingerprint": "`fingerprint` of the prompt's token ids, 16 hex digits",
    "completion_fingerprint": "`fingerprint` of the completion's token ids, 16 hex digits",
    "response_tokens": "tokens whose loss mask is 1",
    "reward": "reward; null: unknown",
    "advantage": "advantage; null: unknown, or not one number per completion",
    "old_logprobs": "`digest_floats` of the old log-probabilities, 16 hex digits; null: detached (none were used)",
    "generated_at_step": "optimizer step before whose update the completion was generated",
    "weights": "measured weight of one response token's loss in this step, ranks adding up; null: nothing shows it",
}
"""Every column of a step record, in the order of the line, with its unit."""

TIMES = {
    "compute_seconds": "seconds that this rank took for the step's forward and backward passes, without what it waited "
    "for other ranks; missing: unknown",
}
"""Times that a step record may have at its line's end. Time is not part of what was trained: `diff` and `verify`
leave it out."""

BESIDE = {
    "gradient_ratio": "norm of the gradient that the optimizer found over that of what the micro-batches gave, "
    'clipping apart; where allow="gradient_transform" admits a change; missing: it admits none, or unknown',
}
"""Numbers that a step record may have before its times."""

EVENTS = {
    "halved_budgets": "token budgets that this rank halved in the step, out of memory: [passes, tokens before, tokens "
    'after]; passes: "training" or "scoring"; missing: none',
}
"""Lists of what happened in a step that its record may have before its times. Like these they are no part of what was
trained."""

KEY = ("rollout", "pass", "prompt", "sample")
"""The columns that say which completion a row is."""

FLOATS = ("reward", "advantage", "weights")
_KINDS = {int, str, type(None)}
_FLOAT_KINDS = {float, *_KINDS}
STEP_PREFIX = b'{"record":"step","step":'
ENDED = "observing_ended"
"""The kind of the record that ends a start whose observing turned itself off: `step` is the first that nobody observed,
`why` what could not be read."""


# ---- records


@dataclass(frozen=True, kw_only=True)
class Header:
    """One start of one rank's process.

    dataset_size: prompts. world_size, rank: training processes. started: "fresh" for a run's first start. at_step: the
    first optimizer step that this start will record; 0 when fresh. start_id: any text that all ranks of one start share
    and no other start has; without it readers tell starts apart by `at_step` and `world_size`. evidence: what speaks
    for the framework's code (`batchbridge.contract.evidence.Evidence.to_dict`); None, or missing in older ledgers:
    unknown. prompts: the digest of the prompts' texts (`batchbridge.meaning.prompt_digest`); None, or missing in older
    ledgers: unknown.
    """

    framework: str
    framework_version: str
    mode: Literal["observe", "verify", "enforce"]
    spec: Spec
    dataset_size: int
    world_size: int
    rank: int
    started: Literal["fresh", "resumed"] = "fresh"
    at_step: int = 0
    start_id: str | None = None
    evidence: Mapping[str, Any] | None = None
    prompts: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The header record, JSON types."""
        told: dict[str, Any] = {"record": "header", "schema": SCHEMA}
        for name, value in vars(self).items():
            if name == "spec":
                told["spec_digest"] = self.spec.digest()
            told[name] = self.spec.to_dict() if name == "spec" else value
        return {**told, "evidence": None if self.evidence is None else dict(self.evidence)}


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The training of one rank in one optimizer step; `pass_index` is column "pass".

    Units: `SCALARS`, `COLUMNS`, `BESIDE`, `EVENTS`, `TIMES`.

    Columns hold this rank's completions only, in any order, and all have the same length; a rank that trained nothing
    in the step has empty ones. `weights` may be None as a whole where `normaliser` says what was applied; a run whose
    denominators are not those of the step (a native one) gives `weights`.
    """

    step: int
    epoch: int
    normaliser: Normaliser | None
    learning_rate: float | None
    gradient_norm: float | None
    skipped: bool
    lr_tick: bool
    rollout: Sequence[int]
    pass_index: Sequence[int]
    prompt: Sequence[int]
    sample: Sequence[int]
    prompt_fingerprint: Sequence[str]
    completion_fingerprint: Sequence[str]
    response_tokens: Sequence[int]
    reward: Sequence[float | None]
    advantage: Sequence[float | None]
    old_logprobs: Sequence[str | None]
    generated_at_step: Sequence[int]
    weights: Sequence[float | None] | None = None
    compute_seconds: float | None = None
    gradient_ratio: float | None = None
    halved_budgets: Sequence[Sequence[str | int]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The step record, JSON types, in the order of the line; non-finite floats as "nan", "inf", "-inf"."""
        normaliser = None if self.normaliser is None else dict(vars(self.normaliser))
        record: dict[str, Any] = {"record": "step", "step": self.step, "epoch": self.epoch, "normaliser": normaliser}
        for name in ("learning_rate", "gradient_norm"):
            record[name] = _spell(getattr(self, name))
        record |= {"skipped": self.skipped, "lr_tick": self.lr_tick}
        for name in COLUMNS:
            values = getattr(self, "pass_index" if name == "pass" else name)
            if values is not None:
                values = _spelled(list(values)) if name in FLOATS else list(values)
            record[name] = values
        lengths = {name: len(record[name]) for name in COLUMNS if record[name] is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"optimizer step {self.step}: columns differ in length: {lengths}")
        if self.gradient_ratio is not None:
            record["gradient_ratio"] = _spell(self.gradient_ratio)
        if self.halved_budgets:
            record["halved_budgets"] = [list(one) for one in self.halved_budgets]
        if self.compute_seconds is not None and 0 <= self.compute_seconds < math.inf:
            record["compute_seconds"] = round(self.compute_seconds, 6)
        return record

    def to_line(self) -> bytes:
        """The record as its line in the file, newline included."""
        members = (b"%s:%s" % (_json(name), _member(name, value)) for name, value in self.to_dict().items())
        return b"{%s}\n" % b",".join(members)


class Writer:
    """Appends one rank's records to its file in `folder`; usable as a context manager.

    A fresh start refuses a file that exists. A resumed start repairs a line torn by a kill and writes its own header
    behind what is there. Raises `LedgerError`.
    """

    def __init__(self, folder: Path | str, header: Header) -> None:
        self.path = self.place(folder, header)
        self._next_step = header.at_step
        with _written(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _repair(self.path)
            # Unbuffered: what a full disk did not take is not written again when the file is closed.
            self._file = self.path.open("ab", buffering=0)
        try:
            self._write(_json(header.to_dict()) + b"\n")
        except LedgerError:
            self.close()
            raise

    @staticmethod
    def place(folder: Path | str, header: Header) -> Path:
        """The file that a start with this header writes. Raises `LedgerError` where it cannot; nothing is written."""
        path = Path(folder) / f"rank-{header.rank:05d}.jsonl"
        if not 0 <= header.rank < header.world_size:
            raise LedgerError(f"rank {header.rank} is not in a world of {header.world_size}", path)
        if header.started == "fresh" and header.at_step:
            raise LedgerError(f"at_step = {header.at_step}: a fresh start begins at step 0", path)
        if header.started == "fresh" and path.exists():
            what = (
                "exists already, and this run starts anew: name another folder, move this one away, or resume the run "
                "that wrote it from its newest checkpoint"
            )
            raise LedgerError(what, path)
        return path

    def require_file(self) -> None:
        """The check (`LedgerError`) that the file is still in its place: what is written to one that was deleted is
        gone."""
        try:
            there = os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except OSError:
            there = False
        if not there:
            raise LedgerError("the file was deleted or moved while the run wrote to it", self.path)

    def append(self, record: StepRecord) -> None:
        """Writes and flushes one record. Steps of one start follow each other without a gap; `ValueError` otherwise."""
        if record.step != self._next_step:
            raise ValueError(f"optimizer step {record.step} follows {self._next_step - 1} in {self.path}")
        self._write(record.to_line())
        self._next_step += 1

    def end(self, why: str) -> None:
        """Writes that nothing is observed from the next step on, and why; no step follows in this start."""
        self._write(_json({"record": ENDED, "step": self._next_step, "why": why}) + b"\n")

    def close(self) -> None:
        """Closes the file; closing twice is fine."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        with _written(self.path):
            while left:
                left = left[self._file.write(left) :]


def try_to_write(folder: Path | str, *, leave_folder: bool = False) -> None:
    """The check (`LedgerError`) that a ledger can be written to `folder`. Folders that are made for it go again, for a
    run without a trainer leaves none behind; `leave_folder` lets them stand, for the ranks of a run try at once, and
    none may take away what another one writes to."""
    import tempfile  # which no reader needs

    with _written(folder):
        made = [path for path in (Path(folder), *Path(folder).parents) if not path.exists()]
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        for path in () if leave_folder else made:
            path.rmdir()


@contextmanager
def _written(place: Path | str) -> Iterator[None]:
    """A block whose failure to write is a `LedgerError` that names the place."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        what = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise LedgerError(f"the ledger cannot be written: {what}", place) from error


# ---- fingerprints


class _Buffer(Protocol):
    """An object with the buffer protocol (NumPy arrays, `array.array`); typing has no name for it before 3.12."""

    def __len__(self) -> int: ...


def fingerprint(token_ids: Sequence[int] | _Buffer) -> str:
    """16 hex digits for a sequence of token ids: BLAKE2b (8 bytes) of the ids as little-endian int32.

    Takes any sequence of ints or a one-dimensional integer buffer of any width; an int32 buffer is hashed as it lies.
    Raises `ValueError` for an id outside int32.
    """
    return _digest(_packed(token_ids, "i"))


def digest_floats(values: Sequence[float] | _Buffer) -> str:
    """16 hex digits for a sequence of floats: BLAKE2b (8 bytes) of their exact little-endian float32 bits.

    It tells whether one run computed the same numbers before and after a resume. Two frameworks agree only up to float
    noise, which no digest forgives (rounding first would merely move the noise to the rounding's edges), so `diff`
    compares these digests only with `exact=True`.
    """
    return _digest(_packed(values, "f"))


def _packed(values: Any, code: str) -> bytes | memoryview:
    try:
        view = memoryview(values)
    except TypeError:
        sequence = values if isinstance(values, (list, tuple)) else list(values)
    else:
        if view.format == code and view.ndim == 1 and view.c_contiguous and sys.byteorder == "little":
            return view
        sequence = view.tolist()
    try:
        packed = array(code, sequence)  # floats beyond float32 are infinite, as a cast makes them
    except (TypeError, OverflowError) as error:
        raise ValueError(f"no sequence of {'int32 token ids' if code == 'i' else 'floats'}: {error}") from None
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def _digest(data: bytes | memoryview) -> str:
    import hashlib  # it loads OpenSSL, and most commands write no ledger

    return hashlib.blake2b(data, digest_size=8).hexdigest()


# ---- helpers


def _spell(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else repr(float(value))


def _spelled(values: list[Any]) -> list[Any]:
    """`_spell` of every value. A sum is finite only if all are, and is found much sooner."""
    try:
        if math.isfinite(sum(values)):
            return values
    except (TypeError, OverflowError):  # null among them, or an int beyond floats
        pass
    return [_spell(value) for value in values]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _member(name: str, value: Any) -> bytes:
    """The JSON of a member of a step record. Floats of columns are spelled as their writer does (1e-06 or 1e-6), always
    so that they read back exactly.

    What `json` would not write, or would refuse, must not depend on how fast we are: values of any type but those of
    JSON, and floats that nobody has looked at, are left to it.
    """
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if speedups.orjson is not None and kinds and kinds <= (_FLOAT_KINDS if name in FLOATS else _KINDS):
        with contextlib.suppress(TypeError):  # an int beyond 64 bits, half a surrogate pair
            return bytes(speedups.orjson.dumps(value))
    return _json(value)


def _repair(path: Path) -> None:
    """Ends the file at a whole line: a last line without newline is completed if it is whole, and cut off if torn."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        tail, start = b"", end
        while start and b"\n" not in tail:
            start = max(start - (1 << 20), 0)
            file.seek(start)
            tail = file.read(end - start)
        last = tail.rpartition(b"\n")[2]
        if last and is_json(last):
            file.seek(end)
            file.write(b"\n")
        elif last:
            file.truncate(end - len(last))


def is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False

"""A ledger as one table, a row for each completion of each optimizer step: CSV, or Parquet (extra `parquet`).

Written step by step and in batches: memory does not grow with the run. A file that is begun and not finished is not
left behind.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from batchbridge.errors import LedgerError
from batchbridge.ledger.reading import CountItems, Ledger, unwatched
from batchbridge.ledger.records import COLUMNS, SCALARS

NORMALISER = {
    "normaliser_aggregation": "aggregation of the policy loss; null: see weights",
    "normaliser_completions": "completions that the denominators count, B",
    "normaliser_tokens": "response tokens that the denominators count, T",
    "normaliser_constant": "constant denominator, c; null: none",
    "normaliser_prompts": "prompts that the denominators count",
}
MEANINGS = {
    **{name: said for name, said in SCALARS.items() if name != "normaliser"},
    **NORMALISER,
    "ranks": "training processes at this step",
    "rank": "training process that trained the completion",
    **COLUMNS,
}
"""Every column of the table, in order, with its meaning and unit."""
KINDS = {
    **dict.fromkeys(MEANINGS, "int"),
    **dict.fromkeys(("learning_rate", "gradient_norm", "reward", "advantage", "weights"), "float"),
    **dict.fromkeys(("skipped", "lr_tick"), "bool"),
    **dict.fromkeys(("normaliser_aggregation", "prompt_fingerprint", "completion_fingerprint", "old_logprobs"), "text"),
}
ROWS_AT_A_TIME = 1 << 16


def to_csv(ledger: Ledger, file: Path, watch: CountItems = unwatched) -> int:
    """Writes the table as CSV and returns its rows. An unknown value is empty; floats read back exactly.

    Raises `LedgerError`, and `OSError` where `file` cannot be written.
    """
    rows = 0
    with _whole(file) as begun, begun.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(MEANINGS)
        for table in tables(ledger, watch):
            writer.writerows(zip(*table.values(), strict=True))
            rows += len(table["step"])
    return rows


def to_parquet(ledger: Ledger, file: Path, watch: CountItems = unwatched) -> int:
    """Writes the table as Parquet and returns its rows; each column's metadata have its meaning.

    Raises `ModuleNotFoundError` without pyarrow, `LedgerError`, and `OSError` where `file` cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}
    schema = pa.schema([pa.field(name, kinds[KINDS[name]], metadata={"meaning": MEANINGS[name]}) for name in MEANINGS])
    rows = 0
    with _whole(file) as begun, parquet.ParquetWriter(begun, schema, compression="zstd") as writer:
        for table in _batches(tables(ledger, watch)):
            try:
                batch = pa.Table.from_pydict(table, schema=schema)
            except (pa.ArrowException, OverflowError) as error:
                raise LedgerError(f"a value that Parquet cannot hold: {error}", ledger.folder) from None
            writer.write_table(batch)
            rows += batch.num_rows
    return rows


def tables(ledger: Ledger, watch: CountItems = unwatched) -> Iterator[dict[str, list[Any]]]:
    """The columns of `MEANINGS`, one optimizer step at a time; a step that trained nothing has no row."""
    for step in ledger.whole(watch):
        count, said = len(step["rollout"]), step["normaliser"] or {}
        scalars = {**step, **{name: said.get(name.partition("_")[2]) for name in NORMALISER}}
        yield {name: step[name] if isinstance(step.get(name), list) else [scalars[name]] * count for name in MEANINGS}


def _batches(parts: Iterable[dict[str, list[Any]]]) -> Iterator[dict[str, list[Any]]]:
    """`parts` put together until they have `ROWS_AT_A_TIME` rows."""
    gathered: list[dict[str, list[Any]]] = []
    rows = 0
    for part in itertools.chain(parts, (None,)):
        if part is not None:
            gathered.append(part)
            rows += len(part["step"])
        if gathered and (part is None or rows >= ROWS_AT_A_TIME):
            yield {name: [value for one in gathered for value in one[name]] for name in MEANINGS}
            gathered, rows = [], 0


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """A file beside `file` to write to, which takes its place once it is whole. Raises `OSError` where `file` is a
    device or a pipe: a file in its place would be no device."""
    file = file.resolve()
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    begun = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield begun
        begun.replace(file)
    finally:
        begun.unlink(missing_ok=True)

"""The columns of a batch that decide a row's gradient, and digests of them by row, in the trainer's process and in the
worker that trains the row.

Its own file: the trainer's process makes them of TransferQueue or of a batch, a worker of what has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchbridge.kit.carried_rows import carried
from batchbridge.kit.identified_rows import POSITION, SAMPLE
from batchbridge.kit.row_digests import RowDigests, digests_of
from batchbridge.kit.step_driver import RolloutRows

CARRIED = (
    *("input_ids", "loss_mask", "response_mask", "advantages", "old_log_probs", "ref_log_prob"),
    *("rollout_is_weights", "values", "returns"),
)
"""The columns of which the trainer's process makes digests, by row, where they are there."""


def told_by_queue(batch: Any, rows: RolloutRows) -> RowDigests:
    """The digests of a rollout's rows in TransferQueue, by (position, sample)."""
    import transfer_queue as tq

    keys = [rows.places[row] for row in rows.costs]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*CARRIED])
    return dict(zip(rows.costs, (digests_of(columns) for columns in carried(data, CARRIED)), strict=True))


def told_by_keys(batch: Any, keys: Sequence[str]) -> RowDigests:
    """The digests of rows in TransferQueue of a run that is not enforced. Rows that have one (position, sample) with
    others, of several batches of generation, have none."""
    import transfer_queue as tq

    fields = [*CARRIED, POSITION, SAMPLE]
    data = tq.kv_batch_get(keys=[*keys], partition_id=batch.partition_id, select_fields=fields)
    marks = [(int(one), int(two)) for one, two in zip(column(data, POSITION), column(data, SAMPLE), strict=True)]
    times = Counter(marks)
    rows = zip(marks, carried(data, CARRIED), strict=True)
    return {mark: digests_of(columns) for mark, columns in rows if times[mark] == 1}


def column(data: Any, name: str) -> list[Any]:
    """A column of a TensorDict as plain values."""
    values = data.get(name)
    return [getattr(value, "data", value) for value in (values.tolist() if hasattr(values, "tolist") else values)]

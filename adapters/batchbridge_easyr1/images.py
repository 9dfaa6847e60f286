"""Images of a rollout, in a run that trains its rows one planned optimizer step at a time.

EasyR1 sends a row's images with it, and every training worker makes their tensors: once for all calls of the same
prompts in the same order. Natively a rollout's calls are that; here each has the rows of one step.

Source: EasyR1 0.3.2 to 0.3.3.dev0 FSDPWorker._process_multi_modal_inputs; models/monkey_patch.py.

Its own file: the engine and the trainer both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import CannotAttach

IMAGES = "multi_modal_data"
"""EasyR1's column: a dict per row, of lists of images or videos."""


def processed(worker: Any) -> Callable[[Any], None]:
    """A stand-in for a worker's `_process_multi_modal_inputs`: what it keeps of the last call is forgotten where this
    one has another number of rows, whose prompts EasyR1 cannot compare."""
    native = worker._process_multi_modal_inputs

    def process(data: Any) -> None:
        kept = worker._cache.get("uid")
        if kept is not None and len(kept) != len(data):
            worker._cache.clear()
        native(data)

    return process


def require(columns: Mapping[str, Any], *, ranks: int, padding_free: bool) -> None:
    """Refusal (`CannotAttach`) of a rollout whose rows cannot be trained in any order: rows without an image or video
    beside others, where a rank that does not run the tower leaves those waiting that do."""
    rows = [one or {} for one in columns.get(IMAGES, ())]
    seen = {bool(row.get("images") or row.get("videos")) for row in rows}
    if len(seen) > 1 and ranks > 1 and not padding_free:
        reason = (
            "some prompts of this rollout have images and some have none: without padding_free EasyR1 does not run the "
            "vision tower for those, and ranks wait for each other; set worker.actor.padding_free=true, or leave such "
            "prompts out"
        )
        raise CannotAttach({"multi_modal": reason})

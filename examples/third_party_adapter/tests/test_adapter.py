"""The contract that every adapter keeps; needs no torch."""

from __future__ import annotations

from batchbridge.contract.reading import Context, Source
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from pocketgrpo_batchbridge.config import DEFAULTS, PocketAdapter

CONTEXT = Context(framework_version="1.0", world_size=1, dataset_size=24)


class TestPocketAdapter(AdapterContract):
    adapter_class = PocketAdapter
    framework_modules = ("torch", "pocketgrpo")
    unknown_version = "99.0"
    written_version = "1.0"
    valid = (
        ValidCase(
            name="some settings",
            source=Source(values={"groups": 6, "samples": 4, "updates": 2, "lr": 0.05}),
            context=CONTEXT,
            source_has_world_size=True,  # it trains on one device
        ),
        ValidCase(
            name="all settings",
            source=Source(values={**DEFAULTS, "average": "sequence", "reuse": 2, "seed": 7}),
            context=CONTEXT,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(
            name="uneven", source=Source(values={"groups": 3, "updates": 5}), context=CONTEXT, codes=("BB-POCKET-010",)
        ),
        InvalidCase(name="a stranger", source=Source(values={"grops": 3}), context=CONTEXT, codes=("BB-POCKET-004",)),
        InvalidCase(name="no number", source=Source(values={"micro": "x"}), context=CONTEXT, codes=("BB-POCKET-005",)),
        InvalidCase(
            name="two devices",
            source=Source(values={"groups": 4}),
            context=Context(framework_version="1.0", world_size=2),
            codes=("BB-POCKET-003",),
        ),
    )
    foreign = (Source(values={"per_device_train_batch_size": 4, "num_generations": 8}),)
    unwritable = (
        PocketAdapter().read(valid[0].source, CONTEXT).spec.replace(**{"order.last_rollout": "pad"}),  # type: ignore[union-attr]
    )

"""One meaning of batch size for every RL fine-tuning framework."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Adapter": "batchbridge.adapter",
    "Attachment": "batchbridge.attach",
    "BatchDrift": "batchbridge.attach",
    "Bijection": "batchbridge.order",
    "CannotAttach": "batchbridge.attach",
    "Finding": "batchbridge.findings",
    "Plan": "batchbridge.plan",
    "PlanError": "batchbridge.plan",
    "Reading": "batchbridge.adapter",
    "Spec": "batchbridge.spec",
    "convert": "batchbridge.between.convert",
    "diff": "batchbridge.between.diff",
    "hookimpl": "batchbridge.hookspecs",
    "read": "batchbridge.reading",
    "scale": "batchbridge.between.scale",
    "unwrap": "batchbridge.attach",
    "wrap": "batchbridge.attach",
}

__all__ = sorted(_HOMES)  # the table above is the single list; a test holds it against the modules


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'batchbridge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""What adapter authors need to test an adapter; each name imports its module on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AdapterContract": "batchbridge.testing.contract",
    "AttachContract": "batchbridge.testing.attaching",
    "InvalidCase": "batchbridge.testing.contract",
    "ValidCase": "batchbridge.testing.contract",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'batchbridge.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

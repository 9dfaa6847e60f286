"""Makes the helper modules of this folder and of the one above importable; the record of what tests measure."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


@pytest.fixture
def record() -> Callable[..., None]:
    """Keeps figures, two digits each, in recorded/measured.json, where BATCHBRIDGE_RECORD=1 asks for it."""
    from orl_proofs import keep, rounded

    def kept(what: str, **figures: float) -> None:
        values = {name: rounded(value) for name, value in figures.items()}
        keep("measured.json", importlib.metadata.version("openrlhf"), what, value=values)

    return kept

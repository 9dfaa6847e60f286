"""Makes the toy frameworks of this folder importable, and registers them for one test at a time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.contract import plugins

sys.path.insert(0, str(Path(__file__).parent))

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`anything`, `narrow`, `trl` and `open_r1`, and nothing else, whatever is installed."""
    import toys

    import batchbridge_open_r1
    import batchbridge_trl

    registry = plugins.load(())
    for module in (toys, batchbridge_trl, batchbridge_open_r1):
        registry.manager.register(module, module.__name__)
    monkeypatch.setattr(plugins, "_installed", lambda: registry)


@pytest.fixture
def run(frameworks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """Runs the command line in a fresh folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    return typed


@pytest.fixture
def own_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapters of this distribution, and no others."""
    from registered import adapters

    registry = plugins.load(())
    for name in adapters():
        registry.manager.register(importlib.import_module(f"batchbridge_{name}"), name)
    monkeypatch.setattr(plugins, "_installed", lambda: registry)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder, as the working folder."""
    monkeypatch.chdir(tmp_path)

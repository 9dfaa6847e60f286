"""The toy framework, registered for one test at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge.contract import plugins
from batchbridge_on_cpu.scripts import module_at

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def toy_module() -> ModuleType:
    return module_at(HERE / "toy.py", "batchbridge_tests_toy")


@pytest.fixture
def toy(toy_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The toy framework's plugin, alone: what else is installed, and whether it works, changes no output here."""
    registry = plugins.load(())
    registry.manager.register(toy_module, "toy")
    monkeypatch.setattr(plugins, "_installed", lambda: registry)
    return toy_module


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid toy recipe; tests run in its folder, so that paths in outputs are short and stable."""
    monkeypatch.chdir(tmp_path)
    path = Path("recipe.yaml")
    path.write_text("# a recipe\ntoy:\n  prompts: 4\n  group: 2\n  step: 8\n  devices: 2\n", encoding="utf-8")
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(toy: ModuleType, typed: Run) -> Run:
    """Runs the command line in this process, with the toy framework: (exit code, standard output, standard error)."""
    return typed


@pytest.fixture
def toy_site(tmp_path: Path) -> Path:
    """A folder with the toy framework's distribution, for PYTHONPATH of other processes."""
    folder = tmp_path / "toy_site"
    info = folder / "toy-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 2.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[batchbridge]\ntoy = toy_plugin\n", encoding="utf-8")
    (folder / "toy_plugin.py").write_bytes((HERE / "toy.py").read_bytes())
    return folder

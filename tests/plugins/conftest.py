"""Distributions made of two small files each, as an installer would leave them, for the plugin loader to find."""

from __future__ import annotations

import importlib.metadata
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchbridge.contract import plugins

Install = Callable[..., None]

ADAPTER = """
    from batchbridge import Adapter, hookimpl

    class {name}(Adapter):
        framework = "{framework}"
        versions = ">=1"
        def detect(self, source): return 0.0
        def read(self, source, context): raise NotImplementedError
        def check(self, reading): return ()
        def write(self, spec, framework_version=None): raise NotImplementedError
        def native_steps(self, reading, dataset_size, response_tokens): return iter(())

    @hookimpl
    def batchbridge_adapters():
        return [{name}]
"""


@pytest.fixture
def adapter_source() -> Callable[..., str]:
    """Makes a plugin module with one adapter."""

    def source(framework: str, name: str = "SomeAdapter") -> str:
        return ADAPTER.format(framework=framework, name=name)

    return source


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path`; what was imported from it is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """Installs distribution `name` 1.0 with one module and one entry point."""

    def install(distribution: str, source: str, *, module: str, entry_point: str | None = None) -> None:
        (site / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[batchbridge]\n{entry_point or module} = {module}\n", encoding="utf-8")

    return install


@pytest.fixture
def load(site: Path) -> Callable[[], plugins.Registry]:
    """Loads what was installed, through the real metadata, and nothing else."""

    def load() -> plugins.Registry:
        found = sorted(importlib.metadata.distributions(path=[str(site)]), key=lambda one: one.name)
        return plugins.load(point for one in found for point in one.entry_points if point.group == plugins.GROUP)

    return load

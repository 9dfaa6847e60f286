"""Files of Python as modules: scripts of this repository, which stand in no package. Its own file: tests that need no
framework take it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_at(path: Path, name: str = "") -> ModuleType:
    """The module of a file, executed anew; imported under `name`, by default the file's own."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module

"""What a run means is said in the standard library alone, and reaches back into nothing else of the core."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pkgutil import iter_modules

import pytest

from batchbridge import meaning

MEANING = tuple(module.name for module in iter_modules(meaning.__path__, "batchbridge.meaning."))
LIST_MODULES = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(module: str) -> set[str]:
    """The modules that a fresh interpreter, without the site's own start-up imports, loads for `module`."""
    code = LIST_MODULES.format(module=module)
    return set(json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout))


@pytest.mark.parametrize("module", MEANING)
def test_the_meaning_imports_the_standard_library_and_itself(module: str) -> None:
    own = {
        "batchbridge",
        "batchbridge.lazily",
        "batchbridge.frozen",
        "batchbridge.errors",
        "batchbridge.meaning",
        *MEANING,
    }
    foreign = {name for name in imported_by(module) - own if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == set()


def test_a_foreign_import_is_noticed() -> None:
    assert "pluggy" in imported_by("batchbridge.contract.hookspecs")


def test_numpy_is_there_and_yet_not_imported_before_it_is_needed() -> None:
    assert find_spec("numpy") is not None
    assert "numpy" not in imported_by("batchbridge.meaning.order")

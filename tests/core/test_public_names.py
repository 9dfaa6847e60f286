"""What `import batchbridge` offers."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

import batchbridge
import batchbridge.kit
import batchbridge.testing


@pytest.mark.parametrize("name", batchbridge.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(batchbridge, name) is not None


@pytest.mark.parametrize(
    "package", [batchbridge, batchbridge.kit, batchbridge.testing], ids=lambda package: package.__name__
)
def test_what_is_listed_is_what_is_loaded_on_use(package: ModuleType) -> None:
    """Nothing is imported, since some need torch."""
    assert dir(package) == package.__all__ == sorted(set(package.__all__))
    assert "loader" not in package.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'batchbridge' has no attribute 'batch_size'"):
        _ = batchbridge.batch_size


def test_importing_the_package_imports_what_loads_its_names_and_nothing_else() -> None:
    code = "import sys, batchbridge; print([name for name in sys.modules if name.startswith('batchbridge.')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "['batchbridge.lazily']\n"


FUNCTIONS = [name for name in batchbridge.__all__ if inspect.isfunction(getattr(batchbridge, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_docstring_of_a_public_function_names_each_argument(name: str) -> None:
    function = getattr(batchbridge, name)
    text = inspect.getdoc(function) or ""
    sections = dict(re.findall(r"^(Args|Returns|Raises):\n((?:    .*\n?|\n)+)", text, re.MULTILINE))
    arguments = list(inspect.signature(function).parameters)
    assert re.findall(r"^    (\w+): \S", sections["Args"], re.MULTILINE) == arguments
    assert sections["Returns"].strip()


def test_there_are_public_functions() -> None:
    assert set(FUNCTIONS) >= {"check", "convert", "diff", "doctor", "explain", "read", "scale", "unwrap", "wrap"}


def test_the_version_is_the_distributions() -> None:
    assert batchbridge.__version__ == version("batchbridge")

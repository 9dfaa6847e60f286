"""What `import batchbridge` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import batchbridge


def test_public_names_are_sorted_and_unique() -> None:
    assert batchbridge.__all__ == sorted(set(batchbridge.__all__))


@pytest.mark.parametrize("name", batchbridge.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(batchbridge, name) is not None


def test_dir_lists_the_public_names() -> None:
    assert dir(batchbridge) == batchbridge.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'batchbridge' has no attribute 'batch_size'"):
        _ = batchbridge.batch_size


def test_importing_the_package_imports_no_module_of_it() -> None:
    code = "import sys, batchbridge; print([name for name in sys.modules if name.startswith('batchbridge.')])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"

"""Ranges of versions."""

from __future__ import annotations

import pytest

from batchbridge.versions import holds


@pytest.mark.parametrize(
    ("versions", "version", "expected"),
    [
        ("", "0.1", True),
        (">=1,<2", "1.9.1", True),
        (">=1,<2", "2.0", False),
        (">=0.3.2", "0.3.3.dev0", True),
        ("<0.10.1", "0.10.1.post2", False),
    ],
)
def test_a_version_lies_in_a_range(versions: str, version: str, expected: bool) -> None:
    assert holds(versions, version) == expected

"""Settings of every test run."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "adapters"))  # for by_name.py
import by_name

# No deadline: pauses of a shared machine are no defects. In CI the same examples every time: a red run is a change.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return Path(__file__).parent.parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps what passed of the tests that run by name only."""
    report = yield
    passed = report.when == "call" and report.passed and item.get_closest_marker(by_name.MARK)
    if passed and by_name.wanted() and item.path.parent.name == "native":
        by_name.keep(item)
    return report

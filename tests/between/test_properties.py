"""Laws of reading and writing, over random cases of every framework.

The same cases every time. `nox -s properties -- --cases 100000` draws others, as many for each property.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from cases import VERSIONS, Case, cases, leaf_values, read, writable, write
from hypothesis import HealthCheck, given, settings
from registered import adapters

from batchbridge.adapter import Written
from batchbridge.spec import Spec

CASES = int(os.environ.get("BATCHBRIDGE_CASES", "300"))
"""Cases of each property, over all frameworks."""
FRAMEWORKS = sorted(adapters())
UNKNOWN = ("objective.", "carried.", "advantage.")
"""Where None means unknown, and a default may fill it in. Source: `Adapter.write`."""


def many(shares: int) -> settings:
    """A share of the cases, the same ones every time unless a number was asked for."""
    return settings(
        max_examples=-(-CASES // shares),
        derandomize="BATCHBRIDGE_CASES" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def different(one: Spec, other: Spec | None) -> dict[str, tuple[Any, Any]]:
    """Leaves that differ; a None that may be filled in does not count."""
    if other is None:
        return {"": (one, None)}
    before, after = leaf_values(one), leaf_values(other)
    return {
        path: (before.get(path), after.get(path))
        for path in {**before, **after}
        if before.get(path) != after.get(path) and not (before.get(path) is None and path.startswith(UNKNOWN))
    }


def test_every_registered_framework_has_versions_here() -> None:
    assert sorted(VERSIONS) == FRAMEWORKS


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_specification_that_was_read_is_written_and_read_again(framework: str) -> None:
    seen = {"written": 0, "refused": 0}

    @many(len(FRAMEWORKS))
    @given(case=cases(framework))
    def law(case: Case) -> None:
        written = write(framework, case.version, case.spec)
        if not isinstance(written, Written):
            assert all(written)
            seen["refused"] += 1
            return
        seen["written"] += 1
        assert read(framework, case.version, case.world_size, written.values).spec == case.spec

    law()
    assert seen["written"] >= seen["refused"]  # a law of refusals would say nothing


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_an_adapter_says_it_can_write_is_what_it_reads(framework: str) -> None:
    @many(len(FRAMEWORKS))
    @given(drawn=writable(framework))
    def law(drawn: tuple[str, Spec, Written]) -> None:
        version, spec, written = drawn
        back = read(framework, version, spec.topology.world_size, written.values)
        assert different(spec, back.spec) == {}

    law()

"""Laws of reading, writing and converting, over thousands of random cases of every framework.

The same cases every time. `nox -s properties -- --cases 100000` draws others, as many for each property.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from cases import VERSIONS, Case, cases, leaf_values, read, writable, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registered import adapters
from test_all_pairs import account

from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.comparing.effects import leaves
from batchbridge.contract.reading import Written
from batchbridge.meaning.spec import Spec

ASKED = os.environ.get("BATCHBRIDGE_CASES")
"""Cases of each law, over all frameworks or pairs, where a number was asked for."""
FRAMEWORKS = sorted(adapters())
PAIRS = list(permutations(FRAMEWORKS, 2))
CODE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    # An agent is a Python file of the user's; a filter may have bounds of its own, and only with a filter are prompts
    # generated in batches of their own: the schema holds none of it.
    "openrlhf": {
        "rollout.sample_unit": ("completion",),
        "rollout.group_filter": ("none", "replace_zero_variance"),
        "rollout.prompts_per_generation_batch": (None,),
    },
    "easyr1": {"rollout.group_filter": ("none", "replace_zero_variance")},
}
"""Framework to the fields that may hang on what no specification holds, with the values that hang on nothing: all that
an adapter reads and does not write."""
UNKNOWN = ("objective.", "carried.", "advantage.")
"""Where None means unknown, and a default may fill it in. Source: `Adapter.write`."""


def many(cases: int, shares: int) -> settings:
    """A share of the cases of a law, the same ones every time unless another number was asked for."""
    return settings(
        max_examples=-(-int(ASKED or cases) // shares),
        derandomize=ASKED is None,
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
    @many(1000, len(FRAMEWORKS))
    @given(case=cases(framework))
    def law(case: Case) -> None:
        said = leaf_values(case.spec)
        code = {path: values[0] for path, values in CODE.get(framework, {}).items() if said[path] not in values}
        if code:  # that alone is refused, and by its name
            refused = write(framework, case.version, case.spec)
            assert not isinstance(refused, Written)
            assert sorted(path for problem in refused for path in problem.fields) == sorted(code)
        spec = case.spec.replace(**code)
        written = write(framework, case.version, spec)
        assert isinstance(written, Written), written
        assert read(framework, case.version, case.world_size, written.values).spec == spec

    law()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_an_adapter_says_it_can_write_is_what_it_reads(framework: str) -> None:
    @many(700, len(FRAMEWORKS))
    @given(drawn=writable(framework))
    def law(drawn: tuple[str, Spec, Written]) -> None:
        version, spec, written = drawn
        back = read(framework, version, spec.topology.world_size, written.values)
        assert different(spec, back.spec) == {}

    law()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_conversion_is_valid_wholly_named_and_comes_back(one: str, other: str) -> None:
    @many(300, len(PAIRS))
    @given(case=cases(one), version=st.sampled_from(VERSIONS[other]))
    def law(case: Case, version: str) -> None:
        there = convert_to(adapters()[other], case.reading, version=version)
        assert there.back is not None, there.refused
        assert there.back.verdict == "valid", there.back.findings
        nothing_differs_unnamed(case.reading.spec, there)
        back = convert_to(adapters()[one], there.back, version=case.version)
        assert back.back is not None, back.refused
        what_is_exact_comes_back(case.spec, there, back)

    law()


def nothing_differs_unnamed(source: Spec | None, found: Conversion) -> None:
    assert source is not None
    assert found.back is not None
    assert found.back.spec is not None
    before, after = leaves(source), leaves(found.back.spec)
    named = {path for path, status in account(found).items() if status != "exact"}
    inherited = tuple(
        f"loss.{term}."
        for term in ("kl", "entropy")
        if not getattr(source.loss, term) and not getattr(found.back.spec.loss, term)
    )
    other = {path for path in {**before, **after} if before.get(path) != after.get(path)}
    assert {path for path in other if not inherited or not path.startswith(inherited)} == named


def what_is_exact_comes_back(source: Spec, there: Conversion, back: Conversion) -> None:
    assert back.back is not None
    assert back.back.spec is not None
    own = [f"loss.{term}." for term in ("kl", "entropy") if getattr(source.loss, term) is None]
    exact = [
        path
        for path, status in account(there).items()
        if status == "exact" == account(back).get(path)
        and not path.startswith(tuple(own))  # it follows the policy term, which has a report of its own
    ]
    before, after = leaves(source), leaves(back.back.spec)
    assert {path: before.get(path) for path in exact} == {path: after.get(path) for path in exact}
    if set(account(there).values()) == {"exact"}:
        assert set(account(back).values()) <= {"exact", "filled"}

"""The code of the asynchronous trainer that is observed is the installed one's; its runs are made by hand, see
`by_hand/native/test_asynchronous_runs_openrlhf.py`."""

from __future__ import annotations

from batchbridge.kit.proven import evidence_here
from batchbridge_openrlhf.asynchronous import RUNTIME
from batchbridge_openrlhf.proven import CODE


def test_the_functions_that_an_observed_run_relies_on_are_those_of_the_release_that_was_run() -> None:
    """They are the same in all releases that are tested; it ran on 0.11.2."""
    found = evidence_here(CODE.used(RUNTIME.uses(object())))
    assert found.labels["openrlhf:asynchronous"] == "0.11.2"
    assert found.grade == "proven"

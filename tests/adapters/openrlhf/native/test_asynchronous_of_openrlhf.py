"""The code of the asynchronous trainer that is observed is the installed one's; its runs are made by hand, see
`by_hand/native/test_asynchronous_runs_openrlhf.py`."""

from __future__ import annotations

from importlib.metadata import version

from batchbridge_openrlhf.asynchronous import KNOWN, unknown


def test_the_functions_that_an_observed_run_relies_on_are_those_of_the_release_that_was_run() -> None:
    assert (not unknown()) == (version("openrlhf") == "0.11.2")
    assert all(KNOWN.values())

"""The plan and the refusals of `wrap` that `check` foretells without a trainer.

Its own file: `check` imports it, and not what attaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotAttach
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.lengths import with_one_length
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec


def planned(spec: Spec, dataset_size: int, *, fills_places: bool) -> Plan:
    """The plan that a trainer is asked to follow. Raises `PlanError`. fills_places: see `Adapter`."""
    return plan_of(spec, dataset_size) if fills_places else Plan(with_one_length(spec, dataset_size), dataset_size)


def open_terms(names: Sequence[str], own: Reading) -> str:
    """The reason why terms that the schema has no word for are refused, and the way out."""
    origin = own.provenance.get("open_terms")
    said = f" (here {origin.key} = {origin.value})" if origin is not None and origin.key is not None else ""
    return (
        f"{', '.join(names)}{said}: the schema has no such value, so the weights of the run's tokens are unknown: "
        'choose a value of the schema (docs/schema.md), or mode="observe", which changes and verifies nothing'
    )


def no_loggers(framework: str) -> str:
    """The reason why `report_to` is refused, and the way out."""
    return (
        f"the loggers of {framework}'s trainer are not reached by its adapter: wrap without report_to, and read the "
        "ledger (`batchbridge ledger show`)"
    )


def no_packing(framework: str) -> str:
    """The reason why padding="free" is refused, and the way out."""
    return (
        f'the adapter of {framework} does not lay completions end to end: wrap with padding="padded" (the framework\'s '
        "own setting for it, where it has one, stays as it is)"
    )


def no_finding(framework: str) -> str:
    """The reason why tokens_per_device="auto" is refused, and the way out."""
    return (
        f'the adapter of {framework} does not find a token budget while a run goes on (tokens_per_device="auto"): give '
        "a number of tokens, or leave it out"
    )


@contextmanager
def shared(gather: Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]) -> Iterator[None]:
    """A block whose failure in one process is a `CannotAttach` in all that are wrapped together; collective at its end.

    gather: the reasons of all of them, by rank. The process whose block failed raises what it failed with, with what
    the others say where that is a `CannotAttach`.
    """
    reasons: Mapping[str, str] = {}
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
        reasons = error.reasons if isinstance(error, CannotAttach) else {"error": f"{type(error).__name__}: {error}"}
    parts = gather(reasons)
    if failure is not None and not isinstance(failure, CannotAttach):
        raise failure
    found: dict[str, str] = {}
    for rank, part in enumerate(parts):
        everywhere = all(other == part for other in parts)
        found |= {name: reason if everywhere else f"on rank {rank}: {reason}" for name, reason in part.items()}
    if found:
        raise CannotAttach(found) from failure

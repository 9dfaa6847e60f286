"""Giving training workers that are Ray actors their orders, and holding their receipts against each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from batchbridge.attach import CannotAttach
from batchbridge.workers import Orders, Receipt


def install_everywhere(
    workers: Sequence[Any], orders: Orders | None, install: Callable[[Any, Any], Receipt | None]
) -> list[Receipt]:
    """Runs `install(actor, orders)` in every process of `workers`; orders None: undoes it.

    Raises `CannotAttach` unless every one answers, each for its rank and with the same spec.
    """
    import ray

    if orders is None:
        _undo(workers, install)
        return []
    try:
        answers = ray.get([worker.__ray_call__.remote(install, orders) for worker in workers])
    except ImportError as error:
        reason = f"a training worker cannot import the adapter ({error}); install batchbridge on every node"
        raise CannotAttach({"arrival": reason}) from None
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, CannotAttach):
            raise CannotAttach(cause.reasons) from None
        raise CannotAttach({"arrival": f"a training worker did not take its orders: {cause or error}"}) from error
    receipts = [answer for answer in answers if answer is not None]
    ranks = sorted(receipt.rank for receipt in receipts)
    if ranks != list(range(len(workers))):
        reason = f"of {len(workers)} training workers those answered that have the ranks {ranks}"
        raise CannotAttach({"arrival": reason})
    if {receipt.spec_digest for receipt in receipts} != {orders.spec.digest()}:
        raise CannotAttach({"arrival": "the training workers read another spec out of their orders: other versions"})
    return receipts


def _undo(workers: Sequence[Any], install: Callable[[Any, Any], Receipt | None]) -> None:
    """Undoes the patches in every worker that still answers; those of a dead process died with it."""
    import ray

    gone = 0
    for worker in workers:
        try:
            ray.get(worker.__ray_call__.remote(install, None))
        except ray.exceptions.RayActorError:
            gone += 1
    if gone:
        warnings.warn(f"{gone} of {len(workers)} training workers are gone; unwrapped without them", stacklevel=4)

"""Orders for training workers that are Ray actors, and the comparison of their receipts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from batchbridge.errors import CannotAttach
from batchbridge.kit.workers import Orders, Receipt


def install_everywhere(
    workers: Sequence[Any],
    orders: Orders | None,
    install: Callable[[Any, Any], Receipt | None],
    probe: Callable[[Any], None] | None = None,
) -> list[Receipt]:
    """Runs `install(actor, orders)` in every process of `workers`; orders None: undoes it.

    probe: runs in every process once all have answered, so that ranks may wait for each other in it. Raises
    `CannotAttach` unless every one answers, each for its rank and with the same spec, and none objects; nothing is then
    left installed.
    """
    if orders is None:
        _undo(workers, install)
        return []
    try:
        receipts = [answer for answer in asked(workers, install, orders) if answer is not None]
        ranks = sorted(receipt.rank for receipt in receipts)
        if ranks != list(range(len(workers))):
            reason = f"of {len(workers)} training workers those answered that have the ranks {ranks}"
            raise CannotAttach({"arrival": reason})
        if {receipt.spec_digest for receipt in receipts} != {orders.spec.digest()}:
            reason = "the training workers read another spec out of their orders: other versions"
            raise CannotAttach({"arrival": reason})
        if probe is not None:
            asked(workers, probe)
    except BaseException:
        _undo(workers, install)
        raise
    return receipts


def asked(workers: Sequence[Any], function: Callable[..., Any], *values: Any) -> list[Any]:
    """The answers of `function(actor, *values)` in every process."""
    import ray

    try:
        answers: list[Any] = ray.get([worker.__ray_call__.remote(function, *values) for worker in workers])
    except ImportError as error:
        reason = f"a training worker cannot import the adapter ({error}); install batchbridge on every node"
        raise CannotAttach({"arrival": reason}) from None
    except ray.exceptions.RayActorError as error:
        raise CannotAttach({"arrival": f"a training worker is gone: {error}"}) from error
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, CannotAttach):
            raise CannotAttach(cause.reasons) from None
        raise CannotAttach({"arrival": f"a training worker did not take its orders: {cause or error}"}) from error
    return answers


def _undo(workers: Sequence[Any], install: Callable[[Any, Any], Receipt | None]) -> None:
    """Undoes the patches in every worker that still answers; those of a dead process died with it."""
    import ray

    gone = 0
    for worker in workers:
        if isinstance(worker, ray.actor.ActorHandle) and not ray.is_initialized():
            gone += 1  # Ray was shut down; a call would start another one
            continue
        try:
            ray.get(worker.__ray_call__.remote(install, None))
        except ray.exceptions.RayActorError:
            gone += 1
    if gone:
        warnings.warn(f"{gone} of {len(workers)} training workers are gone; unwrapped without them", stacklevel=4)

"""The core's rules of optimizer steps, over the steps of a critic, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from batchbridge.meaning.critic_run import critics_field, run_of_critic
from batchbridge.meaning.spec import Spec

_V = TypeVar("_V", bound=Any)


def critic_too(violations: Callable[[Spec, int | None], Iterator[_V]]) -> Callable[[Spec, int | None], Iterator[_V]]:
    """`violations` of the policy's steps, and those of the critic's that are others."""

    def both(spec: Spec, dataset_size: int | None) -> Iterator[_V]:
        policys = list(violations(spec, dataset_size))
        yield from policys
        if spec.critic is not None:
            said = {violation.message for violation in policys}
            for violation in violations(run_of_critic(spec), dataset_size):
                if violation.message not in said:
                    fields = tuple(map(critics_field, violation.fields))
                    yield violation._replace(message=f"critic: {violation.message}", fields=fields)

    return both

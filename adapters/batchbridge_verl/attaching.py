"""The attachment to a trainer: `runtime.RUNTIME`, and what trainers of verl.experimental depend on beside its code.

Its own file: `runtime` cannot import what verl.experimental's trainers need.
"""

from __future__ import annotations

import dataclasses

from batchbridge_verl import runtime
from batchbridge_verl.proven import FULLY_ASYNC, ONE_STEP_OFF


def parts_of(trainer: object) -> tuple[str, ...]:
    """The parts of `proven.CODE` that a trainer depends on."""
    from batchbridge_verl.apart import is_one_step_off
    from batchbridge_verl.queued import is_fully_async

    return (*((ONE_STEP_OFF,) * is_one_step_off(trainer)), *((FULLY_ASYNC,) * is_fully_async(trainer)))


RUNTIME = dataclasses.replace(runtime.RUNTIME, uses=parts_of)

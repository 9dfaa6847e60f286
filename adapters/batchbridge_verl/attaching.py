"""The attachment to a trainer: `runtime.RUNTIME`, and what trainers of one feature depend on beside the code of all.

Its own file: `runtime` cannot import what verl.experimental's trainers need.
"""

from __future__ import annotations

import dataclasses

from batchbridge.kit.code_names import has_base
from batchbridge_verl import runtime
from batchbridge_verl.proven import COLOCATE_ASYNC, FULLY_ASYNC, ONE_STEP_OFF

_COLOCATED = "verl.trainer.ppo.v1.trainer_colocate_async", "PPOTrainerColocateAsync"


def parts_of(trainer: object) -> tuple[str, ...]:
    """The parts of `proven.CODE` that a trainer depends on."""
    from batchbridge_verl.apart import is_one_step_off
    from batchbridge_verl.queued import is_fully_async

    known = {
        COLOCATE_ASYNC: has_base(trainer, *_COLOCATED),
        ONE_STEP_OFF: is_one_step_off(trainer),
        FULLY_ASYNC: is_fully_async(trainer),
    }
    return tuple(name for name, used in known.items() if used)


RUNTIME = dataclasses.replace(runtime.RUNTIME, uses=parts_of)

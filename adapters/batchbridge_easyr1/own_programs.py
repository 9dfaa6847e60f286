"""Programs of a user's own that take EasyR1's settings and are not its `verl.trainer.main`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import Condition
from batchbridge.kit.known_programs import condition

ENTRY = "verl.trainer.main"
_TRAINER = "verl.trainer.ray_trainer.RayPPOTrainer"


def own_program(argv: Sequence[str]) -> str | None:
    """The module or file that words start, where it is not EasyR1's program."""
    for before, word in pairwise(("", *argv)):
        if "=" not in word and (before == "-m" or word.endswith(".py")):
            is_theirs = word == ENTRY or word.endswith("verl/trainer/main.py")
            return None if is_theirs else word
    return None


def condition_of(source: Source, program: str, native: Mapping[str, Any]) -> Condition | None:
    """The condition that a run by a program of the user's own rests on; None: it builds EasyR1's trainer alone."""
    built = source.trainers or ()
    if built and all(one.name == _TRAINER for one in built):
        return None
    strange = next((one for one in built if one.name != _TRAINER), None)
    why = f"{program} is not a program of EasyR1's, and what it changes is not seen"
    if strange is not None:
        why = f"{strange.place.file} trains with {strange.name.rpartition('.')[2]}, which is not EasyR1's own"
    where = Where(program) if strange is None else strange.place
    return condition("EasyR1", "RayPPOTrainer", program, why, None, native, where)

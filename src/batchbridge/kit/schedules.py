"""The words of `carried.lr_schedule`: what the learning rate does after its warm-up, in every framework the same.

A text is transformers' name of the schedule, then its arguments as JSON after a blank, where they are not the name's
own defaults. How long the warm-up is says `carried.warmup_steps` or `carried.warmup_ratio`, so `constant` is constant
after whatever warm-up there is. A floor is a share of the peak: `cosine_with_min_lr {"min_lr_rate": 0.1}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from batchbridge.meaning.schedule_rates import WARMUP_START as WARMUP_START
from batchbridge.meaning.schedule_rates import schedule_parts as schedule_parts

WITHOUT_WARMUP = ("constant", "greedy", "reduce_lr_on_plateau")
"""transformers' names whose warm-up settings do nothing. Source: transformers 5.23.0 optimization.get_scheduler."""
WITHOUT_ARGUMENTS = ("constant", "constant_with_warmup")
"""transformers' names that are handed no arguments, whatever is given. Source: the same."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cosine": {"num_cycles": 0.5},
    "cosine_with_min_lr": {"num_cycles": 0.5, "min_lr": None, "min_lr_rate": None},
    "cosine_with_restarts": {"num_cycles": 1},
    "inverse_sqrt": {"timescale": None},
    "polynomial": {"lr_end": 1e-7, "power": 1.0},
}
"""Defaults of the schedules' arguments. Source: transformers 5.23.0, the signatures in optimization.py."""
_DIGITS = 12
"""The digits of a floor that is given as a learning rate: 1e-7 / 1e-6 is no exact 0.1."""


def schedule_text(name: str, arguments: object = None, learning_rate: object = None) -> str:
    """The one text of transformers' schedule `name` with `arguments`; `learning_rate` is the peak (None: open).

    Never raises: what is not a mapping stands in the text as it is, and `schedule_parts` refuses it.
    """
    if arguments is not None and not isinstance(arguments, Mapping):
        if name in WITHOUT_ARGUMENTS:
            return "constant"
        import json

        return f"{name} {json.dumps(arguments, default=str)}"
    own = _DEFAULTS.get(name, {})
    said = {str(key): value for key, value in (arguments or {}).items() if key not in own or value != own[key]}
    if name == "constant_with_warmup":
        name, said = "constant", {}  # get_scheduler hands it no arguments
    if name == "cosine_with_min_lr":
        floor = said.get("min_lr")
        if _number(floor) and _number(learning_rate) and learning_rate and "min_lr_rate" not in said:
            said["min_lr_rate"] = share_of_peak(said.pop("min_lr"), learning_rate)
        if _number(said.get("min_lr_rate")):
            said["min_lr_rate"] = float(said["min_lr_rate"])
        if said.get("min_lr_rate") == 0 and "min_lr" not in said:
            name = "cosine"
            del said["min_lr_rate"]
    if not said:
        return name
    import json

    return f"{name} {json.dumps(said, sort_keys=True, default=str)}"


def share_of_peak(rate: float, peak: float) -> float:
    """A learning rate as a share of the peak, in as many digits as every adapter gives it; 0 of a peak of 0."""
    return float(f"{rate / peak:.{_DIGITS}g}") if peak else 0.0


def transformers_name(name: str, *, warms_up: bool) -> str:
    """The value of `lr_scheduler_type` for the schedule `name` where the run warms up, or does not."""
    return "constant_with_warmup" if name == "constant" and warms_up else name


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

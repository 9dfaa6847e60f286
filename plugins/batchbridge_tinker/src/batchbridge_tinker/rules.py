"""Rules of a loop: settings that are wrong only together."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit import Carried
from batchbridge.kit.rule_table import IN_CONFIG, Rule
from batchbridge.meaning.schedule_rates import ScheduleRates
from batchbridge_tinker.settings import LoopSettings

LOW, HIGH, SCHEDULE = "objective.clip_low", "objective.clip_high", "carried.lr_schedule"


def _one_bound(native: LoopSettings) -> str | None:
    if native[HIGH] is not None or (native[LOW] is None and native["objective.surrogate"] == "ppo"):
        return None
    return f"{HIGH} is open: the service's clip has two finite thresholds"


def _both_bounds(native: LoopSettings) -> tuple[Fix, ...]:
    bound = native[LOW] or 0.2
    return (Fix(f"{HIGH} = {bound}", {HIGH: bound}), Fix("no clip", {LOW: None, "objective.surrogate": "ppo"}))


def _schedule(native: LoopSettings) -> str | None:
    names = ("learning_rate", "lr_schedule", "warmup_steps", "warmup_ratio")
    try:
        ScheduleRates(Carried(**{name: native[f"carried.{name}"] for name in names}), 2)
    except ValueError as why:
        return f"{SCHEDULE}: {why}"
    return None


RULES: tuple[Rule[LoopSettings], ...] = (
    IN_CONFIG(
        "BB-TINKER-010",
        _one_bound,
        (HIGH, LOW, "objective.surrogate"),
        None,
        "tinker-docs, Loss Functions: clip_low_threshold, clip_high_threshold",
        _both_bounds,
    ),
    IN_CONFIG(
        "BB-TINKER-011",
        _schedule,
        (SCHEDULE,),
        None,
        "the loop computes the rate of every step: batchbridge.meaning.schedule_rates",
        lambda native: tuple(Fix(f"{SCHEDULE} = {name}", {SCHEDULE: name}) for name in ("constant", "linear")),
    ),
)

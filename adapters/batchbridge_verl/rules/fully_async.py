"""What verl asserts of its program that trains while it generates, and that no more of it is judged."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq, ge
from typing import Any

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, OPEN, Rules, says
from batchbridge_verl.ahead import HYBRID, LOG_PROBS, STALE, SYNCHRONISED
from batchbridge_verl.rules.ways_out import fix
from batchbridge_verl.run import FULLY_ASYNC, MINI, PROMPTS, REQUIRED, Run
from batchbridge_verl.settings import ROLLOUT, holds

_ASSERTED: dict[str, tuple[Callable[[Any, Any], bool], Any, str]] = {
    # key: how it compares to a value, the value, and why
    PROMPTS: (eq, 0, ": the trainer takes its prompts from a queue"),
    "data.gen_batch_size": (eq, 1, ""),
    STALE: (ge, 0, ""),
    SYNCHRONISED: (ge, 1, ""),
    REQUIRED: (ge, 1, ""),
    MINI: (ge, 1, ""),
    HYBRID: (eq, False, ": training and generation have devices of their own"),
    LOG_PROBS: (eq, True, ""),
    f"{ROLLOUT}mode": (eq, "async", ""),
}


RULES = Rules[Run]()


def _wrong(run: Run) -> dict[str, str]:
    if run.entry != FULLY_ASYNC:
        return {}
    return {
        key: f"has to be {'at least ' if compare is ge else ''}{value}{why}"
        for key, (compare, value, why) in _ASSERTED.items()
        if not compare(run[key], value)
    }


def _as_asserted(run: Run) -> tuple[Fix, ...]:
    return (fix({key: _ASSERTED[key][1] for key in _wrong(run)}),)


@RULES.add(BUILDING, "BB-VERL-093", *_ASSERTED, fixes=_as_asserted)
@says(
    "AssertionError: train_batch_size must be zero, and the like",
    "verl 0.8.0 to 0.9.1 fully_async_rollouter.FullyAsyncRollouter.__init__, _validate_config",
    ">=0.8.0",
)
def _not_asserted(run: Run) -> str | None:
    return "; ".join(f"{key} = {run[key]} {text}" for key, text in _wrong(run).items()) or None


def _instead(run: Run) -> tuple[Fix, ...]:
    other = Fix("python -m verl.trainer.main_ppo, which is judged and can be wrapped")
    watched = Fix(
        "batchbridge run --mode observe, which records what it trains and whose weights generated it, where no engine "
        "generates on the trainer's own devices (use_trainer_do_validate, use_dynamic_resource_scheduling)"
    )
    return (other, watched) if holds(">=0.9.1", run.version) else (other,)


@RULES.add(OPEN, "BB-VERL-094", REQUIRED, fixes=_instead)
@says("it runs", "verl 0.8.0 to 0.9.1 fully_async_main: validate_config is not called", ">=0.8.0")
def _not_judged(run: Run) -> str | None:
    if run.entry != FULLY_ASYNC:
        return None
    return (
        "fully_async_policy trains while it generates: its sizes and the age of its completions are read, and whether "
        "verl takes all other settings there is not judged"
    )

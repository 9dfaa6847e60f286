"""Assertions of verl's program that trains while it generates; no more of it is judged."""

from __future__ import annotations

from collections.abc import Callable

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, OPEN, Rules, says
from batchbridge_verl.ahead import HYBRID, LOG_PROBS, STALE, SYNCHRONISED
from batchbridge_verl.rules.ways_out import fix
from batchbridge_verl.run import FULLY_ASYNC, MINI, PROMPTS, REQUIRED, VerlRun
from batchbridge_verl.settings import ROLLOUT, holds

_ASSERTED: dict[str, tuple[Callable[[VerlRun, str], bool], str, object]] = {
    # key: whether it holds, what has to be, and a value that holds
    PROMPTS: (lambda run, key: run[key] == 0, "has to be 0: the trainer takes its prompts from a queue", 0),
    "data.gen_batch_size": (lambda run, key: run[key] == 1, "has to be 1", 1),
    STALE: (lambda run, key: run[key] >= 0, "has to be at least 0", 0),
    SYNCHRONISED: (lambda run, key: run[key] >= 1, "has to be at least 1", 1),
    REQUIRED: (lambda run, key: run[key] >= 1, "has to be at least 1", 1),
    MINI: (lambda run, key: run[key] >= 1, "has to be at least 1", 1),
    HYBRID: (
        lambda run, key: not run[key],
        "has to be False: training and generation have devices of their own",
        False,
    ),
    LOG_PROBS: (lambda run, key: run[key], "has to be True", True),
    f"{ROLLOUT}mode": (lambda run, key: run[key] == "async", "has to be async", "async"),
}


RULES = Rules[VerlRun]()


def _wrong(run: VerlRun) -> dict[str, str]:
    if run.entry != FULLY_ASYNC:
        return {}
    return {key: text for key, (holds, text, _) in _ASSERTED.items() if not holds(run, key)}


def _as_asserted(run: VerlRun) -> tuple[Fix, ...]:
    return (fix({key: _ASSERTED[key][2] for key in _wrong(run)}),)


@RULES.add(BUILDING, "BB-VERL-093", *_ASSERTED, fixes=_as_asserted)
@says(
    "AssertionError: train_batch_size must be zero, and the like",
    "verl 0.8.0 to 0.9.1 fully_async_rollouter.FullyAsyncRollouter.__init__, _validate_config",
    ">=0.8.0",
)
def _not_asserted(run: VerlRun) -> str | None:
    return "; ".join(f"{key} = {run[key]} {text}" for key, text in _wrong(run).items()) or None


def _instead(run: VerlRun) -> tuple[Fix, ...]:
    other = Fix("python -m verl.trainer.main_ppo, which is judged and can be wrapped")
    watched = Fix(
        "batchbridge run --mode observe, which records what it trains and whose weights generated it, where no engine "
        "generates on the trainer's own devices (use_trainer_do_validate, use_dynamic_resource_scheduling)"
    )
    return (other, watched) if holds(">=0.9.1", run.version) else (other,)


@RULES.add(OPEN, "BB-VERL-094", REQUIRED, fixes=_instead)
@says("it runs", "verl 0.8.0 to 0.9.1 fully_async_main: validate_config is not called", ">=0.8.0")
def _not_judged(run: VerlRun) -> str | None:
    if run.entry != FULLY_ASYNC:
        return None
    return (
        "fully_async_policy trains while it generates: its sizes and the age of its completions are read, and whether "
        "verl takes all other settings there is not judged"
    )

"""Rows that verl deals out to workers, or cuts into micro-batches, outside of the optimizer step.

Each `chunk`, `split` and `//=` that the batch of a rollout comes by, as read in the wheels of 0.4.1, 0.5.0, 0.6.1,
0.7.0, 0.7.1, 0.8.0 and 0.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import GENERATING, Rules, says
from batchbridge_verl.rules.row import DEVICES, ESTIMATOR
from batchbridge_verl.rules.ways_out import fix, near
from batchbridge_verl.run import DYNAMIC, FULLY_ASYNC, GROUP, PROMPTS, VerlRun
from batchbridge_verl.settings import AGENT_WORKERS, REFERENCE, ROLLOUT, holds

_MODE = f"{ROLLOUT}mode"
_LOG_PROBS = {role: f"{role}log_prob_micro_batch_size" for role in (ROLLOUT, REFERENCE)}
_SEQUENCES = "ulysses_sequence_parallel_size"

RULES = Rules[VerlRun]()


def _dealt_at_once(run: VerlRun) -> tuple[tuple[int, str], ...]:
    """The rows that are dealt to the agent loop's workers, each time that it generates, and what they are."""
    rows = run[PROMPTS] * run[GROUP]
    said = f"{PROMPTS} = {run[PROMPTS]} prompts x {GROUP} = {run[GROUP]}"
    if run[ESTIMATOR] != "remax":
        return ((rows, said),)
    if holds(">=0.8.0", run.version):
        return ((rows + run[PROMPTS], f"{said}, and one greedy row of each prompt"),)
    return (rows, said), (run[PROMPTS], f"{PROMPTS} = {run[PROMPTS]} greedy rows")


def _uneven_rows(run: VerlRun) -> Iterator[tuple[int, str]]:
    workers = run[AGENT_WORKERS]
    return ((rows, said) for rows, said in _dealt_at_once(run) if workers < 1 or rows % workers)


def _worker_fixes(run: VerlRun) -> tuple[Fix, ...]:
    smallest = min(rows for rows, _ in _dealt_at_once(run))
    counts = nearest_numbers(max(run[AGENT_WORKERS], 1), divides=smallest)
    fewer = [
        fix({AGENT_WORKERS: count}) for count in counts if all(rows % count == 0 for rows, _ in _dealt_at_once(run))
    ]
    if run[ESTIMATOR] == "remax" or run[AGENT_WORKERS] < 1:
        return tuple(fewer)
    more = near(run, (PROMPTS,), lambda changed: changed[PROMPTS] * changed[GROUP] % run[AGENT_WORKERS] == 0)
    return (*fewer, *more)


@RULES.add(GENERATING, "BB-VERL-099", AGENT_WORKERS, PROMPTS, GROUP, fixes=_worker_fixes)
@says(
    "AssertionError: only support equal chunk. Got size of DataProto ... and chunk ...",
    "verl 0.5.0 to 0.9.1 experimental/agent_loop/agent_loop.py AgentLoopManager.generate_sequences: "
    "prompts.chunk(len(self.agent_loop_workers)); from 0.9.0 on without the V1 trainer",
    ">=0.5.0",
)
def _agent_loop_workers(run: VerlRun) -> str | None:
    if run.v1 or run.entry == FULLY_ASYNC or not run.plain or run[_MODE] != "async":
        return None
    for _, said in _uneven_rows(run):
        return f"{said}, are not a multiple of {AGENT_WORKERS} = {run[AGENT_WORKERS]}, the workers that share them"
    return None


def _forward_fixes(role: str, run: VerlRun) -> tuple[Fix, ...]:
    key = _LOG_PROBS[role]
    return (fix({key: None, f"{key}_per_gpu": 1}), fix({key: _divisor(role, run)}))


def _divisor(role: str, run: VerlRun) -> int:
    """The devices that share the micro-batch of all devices."""
    context = run.native.get(f"{REFERENCE}{_SEQUENCES}") if role == REFERENCE else run.parallel[2]
    return max(run.world // max(int(context or 1), 1), 1)


def _becomes_nothing(role: str, run: VerlRun) -> str | None:
    key = _LOG_PROBS[role]
    budget = run.native.get(f"{role}log_prob_use_dynamic_bsz", run[DYNAMIC])
    if not run.legacy or run.engine != "fsdp" or not run.plain or budget or run[key] is None:
        return None
    divisor = _divisor(role, run)
    if run[key] // divisor:
        return None
    return f"{key} = {run[key]} completions leave 0 for each of {divisor} devices"


_SPLIT = "ValueError: range() arg 3 must not be zero; 0.4.0 and 0.4.1 hang, and their memory grows"
_SPLIT_SOURCE = (
    "verl 0.4.0 to 0.7.1 fsdp_workers.py: log_prob_micro_batch_size //= devices; dp_actor.py compute_log_prob: "
    "split(micro_batch_size)"
)


@RULES.add(GENERATING, "BB-VERL-100", _LOG_PROBS[ROLLOUT], *DEVICES, fixes=lambda run: _forward_fixes(ROLLOUT, run))
@says(_SPLIT, _SPLIT_SOURCE, "<0.8.0")
def _no_log_probs(run: VerlRun) -> str | None:
    return _becomes_nothing(ROLLOUT, run)


@RULES.add(GENERATING, "BB-VERL-100", _LOG_PROBS[REFERENCE], *DEVICES, fixes=lambda run: _forward_fixes(REFERENCE, run))
@says(_SPLIT, _SPLIT_SOURCE, "<0.8.0")
def _no_log_probs_of_the_reference(run: VerlRun) -> str | None:
    return _becomes_nothing(REFERENCE, run) if run.reference else None

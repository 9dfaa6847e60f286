"""Rows that verl deals out to workers, or cuts into micro-batches, outside of the optimizer step.

Each `chunk`, `split` and `//=` that the batch of a rollout comes by, as read in the wheels of 0.4.0 to 0.9.1:
tests/upstream/splits.json has every place, with the rules that hold its sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import GENERATING, Rules, says
from batchbridge_verl.rules.row import DEVICES, ESTIMATOR
from batchbridge_verl.rules.ways_out import fix, near
from batchbridge_verl.run import DYNAMIC, FULLY_ASYNC, GLOBAL_MICRO, GROUP, PROMPTS, VerlRun
from batchbridge_verl.settings import AGENT_MANAGER, AGENT_WORKERS, CRITIC, REFERENCE, ROLLOUT, holds

_MODE = f"{ROLLOUT}mode"
_SEQUENCES = "ulysses_sequence_parallel_size"
_ENGINE_DEVICES = (f"{ROLLOUT}tensor_model_parallel_size", f"{ROLLOUT}data_parallel_size")
_EQUAL_CHUNKS = "AssertionError: only support equal chunk. Got size of DataProto ... and chunk ..."

RULES = Rules[VerlRun]()


def _dealt_at_once(run: VerlRun) -> tuple[tuple[int, str], ...]:
    """The rows that are dealt to the agent loop's workers, each time that it generates, and what they are."""
    rows, by = run.fetched * run[GROUP], run.fetched_by
    said = f"{by} = {run.fetched} prompts x {GROUP} = {run[GROUP]}"
    if run[ESTIMATOR] != "remax":
        return ((rows, said),)
    if holds(">=0.8.0", run.version):
        return ((rows + run.fetched, f"{said}, and one greedy row of each prompt"),)
    return (rows, said), (run.fetched, f"{by} = {run.fetched} greedy rows")


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
    by = run.fetched_by
    more = near(run, (by,), lambda changed: changed[by] * changed[GROUP] % run[AGENT_WORKERS] == 0)
    return (*fewer, *more)


@RULES.add(GENERATING, "BB-VERL-099", AGENT_WORKERS, PROMPTS, GROUP, fixes=_worker_fixes)
@says(
    _EQUAL_CHUNKS,
    "verl 0.5.0 to 0.9.1 experimental/agent_loop/agent_loop.py AgentLoopManager.generate_sequences: "
    "prompts.chunk(len(self.agent_loop_workers)); from 0.9.0 on without the V1 trainer",
    ">=0.5.0",
)
def _agent_loop_workers(run: VerlRun) -> str | None:
    if run.v1 or run.entry == FULLY_ASYNC or not run.plain or run[_MODE] != "async" or run[AGENT_MANAGER]:
        return None
    for _, said in _uneven_rows(run):
        return f"{said}, are not a multiple of {AGENT_WORKERS} = {run[AGENT_WORKERS]}, the workers that share them"
    return None


def _dealt_to_engines(run: VerlRun) -> int | None:
    """The devices, or groups of them, among which a generation deals prompts alone, before they are repeated; None
    where none does.

    0.4 repeats its prompts behind the engines, and later releases deal out ReMax's greedy rows by themselves.
    """
    if run.entry != "main_ppo" or not run.plain or run[_MODE] == "async":
        return None
    if holds("<0.5.0", run.version):
        return run.world
    if run[ESTIMATOR] != "remax":
        return None
    if holds("<0.6.0", run.version) or run[f"{ROLLOUT}name"] == "hf":
        return run.world
    return run.world // max(math.prod(int(run[key]) for key in _ENGINE_DEVICES), 1)


def _engine_fixes(run: VerlRun) -> tuple[Fix, ...]:
    by, shares = run.fetched_by, _dealt_to_engines(run) or 1
    return near(run, (by,), lambda changed: changed[by] % shares == 0)


@RULES.add(
    GENERATING,
    "BB-VERL-104",
    PROMPTS,
    *DEVICES,
    ESTIMATOR,
    *_ENGINE_DEVICES,
    fixes=_engine_fixes,
)
@says(
    _EQUAL_CHUNKS,
    "verl 0.4.0 to 0.6.1 ray_trainer.py fit: actor_rollout_wg.generate_sequences of unrepeated prompts (0.4), of "
    "gen_baseline_batch (0.5.0 on)",
    "<0.7.0",
)
def _prompts_of_engines(run: VerlRun) -> str | None:
    shares = _dealt_to_engines(run)
    if not shares or run.fetched % shares == 0:
        return None
    rows = "greedy rows" if holds(">=0.5.0", run.version) else "prompts, dealt out before they are repeated"
    asked = f"{run.fetched_by} = {run.fetched} {rows}"
    return f"{asked}, are not a multiple of the {shares} engines or devices that share them"


# ---- a reward model that scores the whole rollout

_OLD_REWARDS, _REWARDS = "reward_model.", "reward."
_SCORED = f"{_REWARDS}num_workers"


def _of_rewards(run: VerlRun, name: str, now: str) -> tuple[str, object]:
    """A setting of the reward model, and its key: of `reward_model`, which moved to `reward` with 0.7.1 and still
    counts where it is set. Source: verl 0.7.1 and 0.8.0 reward_loop.py migrate_legacy_reward_impl."""
    old = f"{_OLD_REWARDS}{name}"
    if holds("<0.7.1", run.version) or run[old] is not None:
        return old, run[old]
    return f"{_REWARDS}{now}", run[f"{_REWARDS}{now}"]


def _reward_workers(run: VerlRun) -> tuple[str, int] | None:
    """The key and number of the workers that a rollout's rows are dealt to for their rewards; None where each row is
    scored as it is generated, or by workers that pad."""
    if run.v1 or run.entry != "main_ppo" or not run.plain or run[AGENT_MANAGER]:
        return None
    if holds("<0.7.1", run.version) and not run[f"{_OLD_REWARDS}use_reward_loop"]:
        return None
    enabled = _of_rewards(run, "enable", "reward_model.enable")[1]
    apart = _of_rewards(run, "enable_resource_pool", "reward_model.enable_resource_pool")[1]
    key, workers = _of_rewards(run, "num_workers", "num_workers")
    return (key, int(str(workers))) if enabled and not apart and workers is not None else None


def _scored_at_once(run: VerlRun) -> tuple[int, ...]:
    """The rows that are scored at once, each time that the reward model scores."""
    rows = run.fetched * int(run[GROUP])
    return (rows, run.fetched) if run[ESTIMATOR] == "remax" else (rows,)


def _reward_fixes(run: VerlRun) -> tuple[Fix, ...]:
    found = _reward_workers(run)
    if found is None:
        return ()
    counts = nearest_numbers(max(found[1], 1), divides=math.gcd(*_scored_at_once(run)))
    return tuple(fix({found[0]: count}) for count in counts)


@RULES.add(GENERATING, "BB-VERL-105", _SCORED, f"{_OLD_REWARDS}num_workers", PROMPTS, GROUP, fixes=_reward_fixes)
@says(
    _EQUAL_CHUNKS,
    "verl 0.7.0 to 0.8.0 experimental/reward_loop/reward_loop.py RewardLoopManager.compute_rm_score: "
    "data.chunk(len(self.reward_loop_workers)); 0.9.0 pads",
    ">=0.7.0,<0.9.0",
)
def _rows_of_reward_workers(run: VerlRun) -> str | None:
    found = _reward_workers(run)
    if found is None:
        return None
    key, workers = found
    for rows in _scored_at_once(run):
        if workers < 1 or rows % workers:
            return f"{rows} rows of a rollout are not a multiple of {key} = {workers}, which share them to be scored"
    return None


# ---- micro-batches of all devices, of which each device gets a share


def _sequences(run: VerlRun, key: str) -> int:
    return max(int(run.native.get(key) or 1), 1)


def _of_rollout(run: VerlRun) -> int | None:
    if run.engine == "megatron":  # read in the branch of the actor's own size of all devices
        return run.replicas if run[GLOBAL_MICRO] else None
    return run.world // run.parallel[2]


def _of_reference(run: VerlRun) -> int | None:
    if not run.reference:
        return None
    if run.engine == "megatron":
        own = any(key.startswith(f"{REFERENCE}megatron.") for key in run.given_keys)
        return None if own else run.replicas
    return run.world // _sequences(run, f"{REFERENCE}{_SEQUENCES}")


def _of_critic(run: VerlRun) -> int | None:
    if not run.critic or run.engine != "fsdp" or run[f"{CRITIC}ppo_micro_batch_size"] is None:
        return None
    return run.world // _sequences(run, f"{CRITIC}{_SEQUENCES}")


def _of_reward_model(run: VerlRun) -> int | None:
    loop = holds(">=0.7.0", run.version) and run["reward_model.use_reward_loop"]
    if not run["reward_model.enable"] or loop or holds(">=0.7.1", run.version):
        return None
    return run.world if run.engine == "fsdp" else None


def _micro_batch_of_all(key: str, dynamic: str, shares: Callable[[VerlRun], int | None]) -> None:
    """The row of a micro-batch of all devices that may leave none for each of `shares`."""

    def fixes(run: VerlRun) -> tuple[Fix, ...]:
        return (fix({key: None, f"{key}_per_gpu": 1}), fix({key: max(shares(run) or 1, 1)}))

    @RULES.add(GENERATING, "BB-VERL-100", key, *DEVICES, fixes=fixes)
    @says(
        "ValueError: range() arg 3 must not be zero; 0.4.0 and 0.4.1 hang, and their memory grows",
        "verl 0.4.0 to 0.7.1 fsdp_workers.py, megatron_workers.py: *micro_batch_size //= devices; compute_log_prob, "
        "compute_values, compute_rm_score: split(micro_batch_size)",
        "<0.8.0",
    )
    def leaves_none(run: VerlRun) -> str | None:
        budget = run.native.get(dynamic, run[DYNAMIC])
        if not run.legacy or run.engine not in ("fsdp", "megatron") or not run.plain or budget or run[key] is None:
            return None
        devices = shares(run)
        if devices is None or run[key] // max(devices, 1):
            return None
        return f"{key} = {run[key]} completions leave 0 for each of {devices} devices"


_micro_batch_of_all(f"{ROLLOUT}log_prob_micro_batch_size", f"{ROLLOUT}log_prob_use_dynamic_bsz", _of_rollout)
_micro_batch_of_all(f"{REFERENCE}log_prob_micro_batch_size", f"{REFERENCE}log_prob_use_dynamic_bsz", _of_reference)
_micro_batch_of_all(f"{CRITIC}forward_micro_batch_size", f"{CRITIC}use_dynamic_bsz", _of_critic)
_micro_batch_of_all("reward_model.micro_batch_size", "reward_model.use_dynamic_bsz", _of_reward_model)

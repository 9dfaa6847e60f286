"""Sizes of steps and micro-batches that verl's workers refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import GENERATING, STARTING, UPDATING, Rules, says
from batchbridge_verl.rules import printed
from batchbridge_verl.rules.row import BALANCE, BYPASS, DEVICES, ENGINE_WORKERS, product
from batchbridge_verl.rules.ways_out import WORLD, either, fix, mini_fixes, near, shared, whole_shares, whole_steps
from batchbridge_verl.run import BUDGET, DYNAMIC, FORWARD_BUDGET, FULLY_ASYNC, GROUP, MICRO, MINI, PROMPTS, VerlRun
from batchbridge_verl.settings import ACTOR, CRITIC, PREFIX_GROUPER, ROLLOUT

_CRITIC_MINI, FORWARD_MICRO = f"{CRITIC}ppo_mini_batch_size", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"
_BUDGETS = (BUDGET, FORWARD_BUDGET, "data.max_prompt_length", "data.max_response_length")
_ITERATOR = "AssertionError in tensordict_utils.make_iterator at the first update"
_ITERATOR_SOURCE = "verl 0.9.1 utils/tensordict_utils.py:559"

RULES = Rules[VerlRun]()


@RULES.add(
    UPDATING, "BB-VERL-020", MINI, GROUP, *DEVICES, fixes=whole_shares, core="BB121", text=printed.STEP_OF_REPLICAS
)
@says(
    "AssertionError at the first update: Got mini_batch_size=... and self.engine.get_data_parallel_size()=...",
    "verl 0.9.1 engine_workers.py:267",
)
def _uneven_step(run: VerlRun) -> str | None:
    return _uneven(run, MINI, "optimizer step", run.replicas)


def _uneven(run: VerlRun, mini: str, step: str, replicas: int | None) -> str | None:
    asked = run[mini] * run[GROUP]
    if run.legacy or not run.plain or not replicas or asked < 1 or asked % replicas == 0:
        return None
    return f"{product(run, mini)} is {asked} completions per {step}, not a multiple of {replicas} replicas"


def _group_fixes(run: VerlRun) -> tuple[Fix, ...]:
    others = either((PREFIX_GROUPER, False), (BALANCE, False))(run)
    by = run.fetched_by
    return (*near(run, (by,), lambda v: v[by] % (run.replicas or 1) == 0), *others)


@RULES.add(GENERATING, "BB-VERL-092", PROMPTS, PREFIX_GROUPER, BALANCE, *DEVICES, fixes=_group_fixes)
@says(
    "ValueError: PrefixGrouper with balance_batch requires num_uid_groups (...) % dp_size (...) == 0",
    "verl 0.7.1 to 0.9.1 ray_trainer.py RayPPOTrainer._balance_batch",
    ">=0.7.1",
)
def _groups_over_replicas(run: VerlRun) -> str | None:
    if run.v1 or not run[PREFIX_GROUPER] or not run[BALANCE] or not run.plain or not run.replicas:
        return None
    if run.fetched % run.replicas == 0:
        return None
    return (
        f"{run.fetched_by} = {run.fetched} groups are not a multiple of {run.replicas} replicas, to which balancing "
        f"deals an equal number of whole groups where {PREFIX_GROUPER} is on"
    )


@RULES.add(
    STARTING, "BB-VERL-020", MINI, GROUP, *DEVICES, fixes=whole_shares, core="BB121", text=printed.MINI_BATCH_ZERO
)
@says(
    "AssertionError: ppo_mini_batch_size ... should be larger than 0 after normalization",
    "verl 0.7.1 fsdp_workers.py:251",
    "<0.8.0",
)
def _nothing_per_replica(run: VerlRun) -> str | None:
    if not run.plain or not run.replicas or run.share:
        return None
    asked = f"{product(run, MINI)} = {run.asked_per_step} completions"
    return f"{asked} leave nothing for each of {run.replicas} replicas"


def _micro_fixes(run: VerlRun) -> tuple[Fix, ...]:
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        completions = v[MINI] * v[GROUP] * per_replica
        return completions % v[WORLD] == 0 and completions // v[WORLD] % v[MICRO] == 0

    return near(run, (MICRO, MINI, GROUP), legal)


@RULES.add(
    UPDATING,
    "BB-VERL-021",
    MICRO,
    MINI,
    GROUP,
    *DEVICES,
    fixes=_micro_fixes,
    core="BB122",
    text=(printed.MICRO_OF_SHARE, printed.MICRO_BATCHES_OF_A_RANK),
)
@says(
    "AssertionError: data size must be divisible by micro_batch_size_per_gpu", "verl 0.9.1 workers/engine/utils.py:124"
)
def _micro_fits(run: VerlRun) -> str | None:
    return None if run.legacy else _no_whole_micros(run)


@RULES.add(
    STARTING, "BB-VERL-021", MICRO, MINI, GROUP, *DEVICES, fixes=_micro_fixes, core="BB122", text=printed.MINI_OF_MICRO
)
@says(
    "AssertionError: normalized ppo_mini_batch_size ... should be divisible by ppo_micro_batch_size_per_gpu",
    "verl 0.7.1 fsdp_workers.py:263",
    "<0.8.0",
)
def _micro_fits_legacy(run: VerlRun) -> str | None:
    return _no_whole_micros(run) if run.legacy else None


def _no_whole_micros(run: VerlRun) -> str | None:
    if not run.plain or run.micro is None or run.micro < 1 or not run.share:
        return None
    if run.share % run.micro == 0 or (not run.legacy and run.asked_per_step % (run.replicas or 1)):
        return None
    return (
        f"{run.share} completions per replica and optimizer step are not a multiple of the micro-batch of {run.micro} "
        f"({MICRO})"
    )


def _scored(run: VerlRun) -> int | None:
    """Completions of a rollout on each replica, as their log-probabilities are computed; None where that is open."""
    if run.legacy or not run.plain or not run.replicas or run.entry == FULLY_ASYNC or run[BYPASS] or run[DYNAMIC]:
        return None
    multiple = math.lcm(run.replicas, *_steps_of(run)) if run.v1 else run.replicas
    total = run.completions_per_rollout + (-run.completions_per_rollout % multiple if run.v1 else 0)
    return None if total % run.replicas else total // run.replicas


def _forward_fixes(run: VerlRun) -> tuple[Fix, ...]:
    sizes = nearest_numbers(max(run[FORWARD_MICRO], 1), divides=_scored(run) or 1)
    return tuple(fix({FORWARD_MICRO: size}) for size in sizes)


@RULES.add(
    GENERATING,
    "BB-VERL-098",
    FORWARD_MICRO,
    PROMPTS,
    GROUP,
    *DEVICES,
    fixes=_forward_fixes,
    text=printed.MICRO_OF_SHARE,
)
@says(
    "AssertionError: data size must be divisible by micro_batch_size_per_gpu",
    "verl 0.9.1 engine_workers.py compute_log_prob, workers/engine/utils.py prepare_micro_batches",
    ENGINE_WORKERS,
)
def _forward_fits(run: VerlRun) -> str | None:
    rows, size = _scored(run), run[FORWARD_MICRO]
    if not rows or size is None or (size > 0 and rows % size == 0):
        return None
    return (
        f"{rows} completions of a rollout on each of {run.replicas} replicas are not a multiple of {FORWARD_MICRO} = "
        f"{size}, in which their log-probabilities are computed"
    )


def _steps_of(run: VerlRun) -> tuple[int, ...]:
    """Completions of an optimizer step, of the actor and of a critic."""
    critic = run[_CRITIC_MINI] * run[GROUP] if run.critic else 0
    return (run.asked_per_step, *([critic] if critic > 0 else []))


@RULES.add(UPDATING, "BB-VERL-022", PROMPTS, MINI, fixes=whole_steps, core="BB108", text=printed.MINI_BATCHES_OF_A_RANK)
@says(_ITERATOR, _ITERATOR_SOURCE, ENGINE_WORKERS)
def _remainder_asserts(run: VerlRun) -> str | None:
    if run.v1 or run.legacy or not remainder(run) or run.fetched < run[MINI]:
        return None
    return (
        f"{run.fetched_by} = {run.fetched} prompts are not a multiple of {MINI} = {run[MINI]} prompts: the last "
        "optimizer step of a rollout is not whole"
    )


def remainder(run: VerlRun) -> int:
    """Completions of a rollout that no whole optimizer step takes."""
    if not run.plain or run.completions_per_step < 1:
        return 0
    return run.completions_per_rollout % run.completions_per_step


@RULES.add(UPDATING, "BB-VERL-055", PROMPTS, MINI, DYNAMIC, fixes=mini_fixes(ACTOR))
@says(_ITERATOR, _ITERATOR_SOURCE, ENGINE_WORKERS)
def _dynamic_smaller_than_mini(run: VerlRun) -> str | None:
    if run.v1 or run.fetched >= run[MINI] or not run[DYNAMIC] or not run.plain:
        return None
    return (
        f"{run.fetched_by} = {run.fetched} prompts are fewer than {MINI} = {run[MINI]} prompts, which use_dynamic_bsz "
        "leaves unchecked: verl fails at the first update"
    )


def _critic_fixes(run: VerlRun) -> tuple[Fix, ...]:
    replicas = run.critic_replicas or 1
    per_step = replicas // math.gcd(replicas, run[GROUP])
    below = run[_CRITIC_MINI] // per_step * per_step
    return tuple(fix({_CRITIC_MINI: size}) for size in (below, below + per_step) if size)


@RULES.add(UPDATING, "BB-VERL-067", _CRITIC_MINI, GROUP, *DEVICES, fixes=_critic_fixes, text=printed.STEP_OF_REPLICAS)
@says(
    "AssertionError at the critic's first update: Got mini_batch_size=... and self.engine.get_data_parallel_size()=...",
    "verl 0.9.1 engine_workers.py:267 (TrainingWorker of the critic, which cuts by a token budget)",
)
def _uneven_critic_step(run: VerlRun) -> str | None:
    return _uneven(run, _CRITIC_MINI, "step of the critic", run.critic_replicas) if run.critic else None


def _longest(run: VerlRun) -> int:
    return int(run["data.max_prompt_length"] + run["data.max_response_length"])


def _over_budget(run: VerlRun, key: str) -> str | None:
    longest, held = _longest(run), run[key] * run.parallel[2]
    if not run[DYNAMIC] or held < 1 or held >= longest:
        return None
    return (
        f"{key} = {run[key]} x {run.parallel[2]} (sequence parallel) = {held} tokens is less than the longest "
        f"sequence, data.max_prompt_length {run['data.max_prompt_length']} + data.max_response_length "
        f"{run['data.max_response_length']} = {longest}"
    )


def _any_over_budget(run: VerlRun) -> str | None:
    return _over_budget(run, BUDGET) or _over_budget(run, FORWARD_BUDGET)


def _budget_fixes(run: VerlRun) -> tuple[Fix, ...]:
    key = BUDGET if _over_budget(run, BUDGET) else FORWARD_BUDGET
    return (fix({key: -(-_longest(run) // max(run.parallel[2], 1))}),)


@RULES.add(UPDATING, "BB-VERL-056", *_BUDGETS, fixes=_budget_fixes, core="BB107", text=printed.TOKEN_BUDGET)
@says(
    "AssertionError: max_token_len must be greater than the sequence length (batches have the full width)",
    "verl 0.7.1 utils/seqlen_balancing.py rearrange_micro_batches",
)
def _full_width_over_budget(run: VerlRun) -> str | None:
    return _any_over_budget(run) if run.legacy else None


@RULES.add(
    UPDATING._replace(severity="warning"),
    "BB-VERL-056",
    *_BUDGETS,
    fixes=_budget_fixes,
    core="BB107",
    text=printed.TOKEN_BUDGET,
)
@says(
    "AssertionError: max_token_len must be greater than the sequence length, once a sequence is that long",
    "verl 0.9.1 utils/seqlen_balancing.py rearrange_micro_batches",
)
def _longest_over_budget(run: VerlRun) -> str | None:
    return None if run.legacy else _any_over_budget(run)

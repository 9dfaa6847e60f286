"""What verl refuses of the critic and the reward model before any worker starts; see `validated`."""

from __future__ import annotations

from functools import partial

from batchbridge import Fix
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge_verl.rules.row import DEVICES, instead, mini_fixes, setting
from batchbridge_verl.rules.validated import (
    DATACLASSES,
    ULYSSES,
    below_devices,
    dtype_row,
    one_of_two,
    padding_with_ulysses,
    schedule_row,
    smaller_than_mini,
    whole_micro_batches,
)
from batchbridge_verl.run import PROMPTS, Run
from batchbridge_verl.settings import CRITIC, holds

CRITIC_PADDING = "critic.model.use_remove_padding"


_CRITIC_MINI, _CRITIC_MICRO = f"{CRITIC}ppo_mini_batch_size", f"{CRITIC}ppo_micro_batch_size_per_gpu"
_CRITIC_GLOBAL, _CRITIC_DYNAMIC = f"{CRITIC}ppo_micro_batch_size", f"{CRITIC}use_dynamic_bsz"
_CRITIC_ULYSSES = f"{CRITIC}{ULYSSES}"


def _critic_micros(run: Run) -> str | None:
    if not run.critic or run[_CRITIC_DYNAMIC]:
        return None
    if run[_CRITIC_MICRO] is None and run[_CRITIC_GLOBAL] is None:
        return f"the critic has no micro-batch: neither {_CRITIC_MICRO} nor {_CRITIC_DYNAMIC} is set"
    if run[_CRITIC_MICRO] is not None and run[_CRITIC_GLOBAL] is not None:
        return f"{_CRITIC_GLOBAL} = {run[_CRITIC_GLOBAL]} and {_CRITIC_MICRO} = {run[_CRITIC_MICRO]} are both set"
    return None


def _critic_micro_fixes(run: Run) -> tuple[Fix, ...]:
    if run[_CRITIC_MICRO] is None:
        return (*setting(_CRITIC_MICRO, run.micro or 1)(run), *setting(_CRITIC_DYNAMIC, True)(run))
    return (Fix(f"{_CRITIC_GLOBAL}=null", {_CRITIC_GLOBAL: None, _CRITIC_MICRO: run[_CRITIC_MICRO]}),)


def _below_devices(run: Run) -> str | None:
    # Before 0.6.0 whatever the engine; see `batchbridge_history.verl`.
    return below_devices(CRITIC, run) if run.engine == "fsdp" or holds("<0.6.0", run.version) else None


_SOURCE = "verl 0.6.0 to 0.9.1 workers/config/critic.py CriticConfig; 0.4.0 to 0.5.0 RayPPOTrainer._validate_config"
_REWARD, _REWARD_MICRO = "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu"


def _rewards_in_workers(run: Run) -> bool:
    loop = holds(">=0.7.0", run.version) and run["reward_model.use_reward_loop"]
    return bool(run["reward_model.enable"] and not run["reward_model.use_dynamic_bsz"] and not loop)


OF_REWARDS = IN_CONFIG(
    "BB-VERL-064",
    one_of_two(_REWARD, _REWARD_MICRO, _rewards_in_workers),
    (_REWARD_MICRO, _REWARD),
    "ValueError: [reward_model] Please set at least one of ...; or: You have set both ...",
    "verl 0.4.0 to 0.7.0 validate_config",
    lambda run: (Fix(f"{_REWARD_MICRO} = 1", {_REWARD_MICRO: 1, _REWARD: None}),),
    ">=0.6.0,<0.7.1",
)

OF_CRITIC = (
    schedule_row(CRITIC),
    dtype_row(CRITIC),
    IN_CONFIG(
        "BB-VERL-059",
        _critic_micros,
        (_CRITIC_MICRO, _CRITIC_GLOBAL, _CRITIC_DYNAMIC),
        "ValueError: [critic] Please set at least one of ...; or: You have set both ...",
        _SOURCE,
        _critic_micro_fixes,
        DATACLASSES,
    ),
    IN_CONFIG(
        "BB-VERL-060",
        partial(whole_micro_batches, CRITIC),
        (_CRITIC_MINI, _CRITIC_GLOBAL),
        "ValueError: [critic] ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...)",
        _SOURCE,
        instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
        DATACLASSES,
    ),
    IN_CONFIG(
        "BB-VERL-061",
        partial(padding_with_ulysses, CRITIC, CRITIC_PADDING),
        (_CRITIC_ULYSSES, CRITIC_PADDING),
        "ValueError: When using sequence parallelism for critic, you must enable `use_remove_padding`.",
        "verl 0.6.0 to 0.7.1 workers/config/critic.py FSDPCriticConfig; 0.4.0 to 0.5.0 _validate_config",
        setting(CRITIC_PADDING, True),
        ">=0.6.0,<0.8.0",
    ),
    IN_CONFIG(
        "BB-VERL-062",
        partial(smaller_than_mini, CRITIC),
        (PROMPTS, _CRITIC_MINI),
        "ValueError: train_batch_size (...) must be >= critic.ppo_mini_batch_size (...)",
        _SOURCE,
        mini_fixes(CRITIC),
        DATACLASSES,
    ),
    IN_CONFIG(
        "BB-VERL-060",
        _below_devices,
        (_CRITIC_GLOBAL, *DEVICES),
        "ValueError: critic.ppo_micro_batch_size (...) * ulysses_sequence_parallel_size (...) must be >= n_gpus (...)",
        _SOURCE,
        instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
        DATACLASSES,
    ),
)

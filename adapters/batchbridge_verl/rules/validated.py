"""What verl refuses before any worker starts, in the order in which it looks: the first row that speaks is its error.

`validate_config` takes sizes first, then builds the actor's dataclasses, looks at the actor, the reference policy and
the rollout, then at the critic. Before 0.6.0 `RayPPOTrainer._validate_config` did, in another order and without
dataclasses. A test gives the same configurations to verl's own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from batchbridge import Fix
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge_verl.rules.row import AGGREGATION, DEVICES, Rule, Test, one_of, product
from batchbridge_verl.rules.ways_out import WORLD, either, fix, instead, mini_fixes, near, setting, shared
from batchbridge_verl.run import DYNAMIC, GLOBAL_MICRO, GROUP, MICRO, MINI, PROMPTS, Run
from batchbridge_verl.settings import ACTOR, CRITIC, REFERENCE, ROLLOUT, holds, megatron_sizes
from batchbridge_verl.terms import aggregations

_CONFIG = "verl 0.6.0 to 0.9.1 workers/config"
_SINCE_060 = IN_CONFIG._replace(versions=">=0.6.0")
"""Rows of `validate_config`, which is in 0.6.0 and newer versions."""
PADDING, CRITIC_PADDING = "actor_rollout_ref.model.use_remove_padding", "critic.model.use_remove_padding"
SCHEDULES = ("constant", "cosine")
_ULYSSES = "ulysses_sequence_parallel_size"
_MEGATRON = megatron_sizes(ACTOR)


# ---- sizes


def _sized(run: Run) -> bool:
    """Whether the completions of a rollout are held against the devices: not with a token budget, from 0.6.0 on."""
    return not run[DYNAMIC] or holds("<0.6.0", run.version)


def _replicas(run: Run) -> str | None:
    if run.engine != "megatron" or not _sized(run) or not _product(run) or run.world % _product(run) == 0:
        return None
    return replicas_message(run)


def replicas_message(run: Run) -> str:
    """The devices that do not make whole replicas."""
    sizes = " x ".join(str(size) for size in run.parallel)
    return f"{run.world} devices cannot be shared out to replicas of {sizes} devices (tensor x pipeline x context)"


def replica_fixes(run: Run) -> tuple[Fix, ...]:
    """The nearest numbers of devices that make whole replicas."""
    per_replica = shared(run)
    below = run.world // per_replica * per_replica
    return tuple(fix({WORLD: size}) for size in (below, below + per_replica) if size > 0)


def _product(run: Run) -> int:
    return math.prod(run.parallel)


def _minimal(run: Run) -> int | None:
    """What the completions of a rollout must be a multiple of; None where verl does not come so far."""
    if not _sized(run):
        return None
    if run.engine != "megatron":
        return run.world
    if not _product(run) or run.world % _product(run) or run[MICRO] is None:
        return None
    return run.world // _product(run) * int(run[MICRO])


def _division_by_zero(run: Run) -> str | None:
    megatron = run.engine == "megatron" and _sized(run)
    if megatron and not _product(run):
        return f"{', '.join(f'{key} = {run[key]}' for key in _MEGATRON if not run[key])}: must be at least 1"
    if _minimal(run) != 0:
        return None
    if run.world == 0:
        return "trainer.nnodes x trainer.n_gpus_per_node = 0: must be at least 1"
    return f"{MICRO} = {run[MICRO]}: must be at least 1" if megatron else None


def _megatron_micro(run: Run) -> str | None:
    if run.engine != "megatron" or not _sized(run) or run[MICRO] is not None:
        return None
    if not _product(run) or run.world % _product(run):
        return None
    return f"{MICRO} is not set, and Megatron's check multiplies with it"


def _rollout_over_devices(run: Run) -> str | None:
    minimal = _minimal(run)
    if not minimal or run.completions_per_rollout % minimal == 0:
        return None
    what = f"{minimal} devices" if run.engine != "megatron" else f"replicas x micro-batch = {minimal}"
    asked = f"{product(run, PROMPTS)} is {run.completions_per_rollout} completions"
    return f"{asked}, which is not a multiple of {what}"


def _rollout_fixes(run: Run) -> tuple[Fix, ...]:
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        minimal = v[WORLD] // per_replica * v[MICRO] if run.engine == "megatron" else v[WORLD]
        return v[WORLD] % per_replica == 0 and minimal > 0 and v[PROMPTS] * v[GROUP] % minimal == 0

    return near(run, (PROMPTS, GROUP, WORLD), legal)


# ---- what is asked of the actor and of the critic alike; role: the beginning of its keys


def _trained(role: str, run: Run) -> bool:
    """Whether the run has the actor or the critic."""
    return role == ACTOR or run.critic


def _in_rows(role: str, run: Run) -> bool:
    return _trained(role, run) and not run[f"{role}use_dynamic_bsz"]


def _smaller_than_mini(role: str, run: Run) -> str | None:
    """A rollout that fills no optimizer step."""
    mini = f"{role}ppo_mini_batch_size"
    if not _in_rows(role, run) or run[PROMPTS] >= run[mini]:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {mini} = {run[mini]} prompts"


def _whole_micro_batches(role: str, run: Run) -> str | None:
    """The deprecated size of a micro-batch over all devices, which has to divide the mini-batch."""
    whole, mini = f"{role}ppo_micro_batch_size", f"{role}ppo_mini_batch_size"
    if not _in_rows(role, run) or run[whole] is None:
        return None
    if run[whole] == 0:
        return f"{whole} = 0: must be at least 1"
    return f"{mini} = {run[mini]} is no multiple of {whole} = {run[whole]}" if run[mini] % run[whole] else None


def _below_devices(role: str, run: Run) -> str | None:
    """The same size, with which each device has to have something."""
    whole = f"{role}ppo_micro_batch_size"
    ulysses = run[f"{role}{_ULYSSES}"] if run.engine == "fsdp" else 1
    if not _in_rows(role, run) or run[whole] is None or run[whole] * ulysses >= run.world:
        return None
    return f"{whole} = {run[whole]} x sequence parallel {ulysses} is below {run.world} devices"


def _padding_with_ulysses(role: str, padding: str, run: Run) -> str | None:
    """Sequence parallelism, which takes unpadded rows alone. Source: verl 0.6.0 to 0.7.1 `in {"fsdp", "fsdp2"}`; 0.8.0
    on whatever the strategy."""
    key, counts = f"{role}{_ULYSSES}", holds(">=0.8.0", run.version) or run[f"{role}strategy"] in ("fsdp", "fsdp2")
    if not _trained(role, run) or run.engine != "fsdp" or run[key] <= 1 or run[padding] or not counts:
        return None
    return f"{key} = {run[key]} needs {padding}"


def _two_micros(role: str, run: Run) -> str | None:
    whole, per_gpu = f"{role}ppo_micro_batch_size", f"{role}ppo_micro_batch_size_per_gpu"
    if not _in_rows(role, run) or run[whole] is None or run[per_gpu] is None:
        return None
    return f"{whole} = {run[whole]} and {per_gpu} = {run[per_gpu]} are both set"


# ---- micro-batch keys


def _no_micro(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is not None:
        return None
    return f"neither {MICRO} nor {DYNAMIC} is set: there is no micro-batch"


def _one_of_two(whole: str, per_gpu: str, asked: Callable[[Run], bool]) -> Test:
    """The test that exactly one of two sizes is given, where there must be one."""

    def test(run: Run) -> str | None:
        given = [key for key in (whole, per_gpu) if run[key] is not None]
        if not asked(run) or len(given) == 1:
            return None
        return f"{whole} and {per_gpu} are both set" if given else f"neither {per_gpu} nor {whole} is set"

    return test


def _log_prob(role: str, used: Callable[[Run], bool]) -> Rule:
    whole, per_gpu = f"{role}log_prob_micro_batch_size", f"{role}log_prob_micro_batch_size_per_gpu"

    def fixes(run: Run) -> tuple[Fix, ...]:
        both = run[whole] is not None and run[per_gpu] is not None
        return (setting(whole, None) if both else setting(per_gpu, run.micro or 1))(run)

    return _SINCE_060(
        "BB-VERL-018" if role == REFERENCE else "BB-VERL-016",
        _one_of_two(whole, per_gpu, lambda run: not run[DYNAMIC] and used(run)),
        (per_gpu, whole),
        f"ValueError: [{role[:-1]}] Please set at least one of ...; or: You have set both ...",
        VALIDATE,
        fixes,
    )


# ---- what the dataclasses take


def _schedule_row(role: str) -> Rule:
    """The schedule's name, of the actor or the critic."""
    older, newer = f"{role}optim.warmup_style", f"{role}optim.lr_scheduler_type"

    def test(run: Run) -> str | None:
        key = newer if run[older] is None else older
        if run.engine != "fsdp" or not _trained(role, run):
            return None
        return (
            f"{key} is null: must be one of {', '.join(SCHEDULES)}"
            if run[key] is None
            else one_of(key, run[key], SCHEDULES)
        )

    native, source = "AssertionError, without a message, in FSDPOptimizerConfig", f"{_CONFIG}/optimizer.py"
    where = f"{source} FSDPOptimizerConfig.__post_init__"
    return _SINCE_060("BB-VERL-057", test, (newer, older), native, where, setting(newer, "constant"))


def _megatrons(role: str, key: str, names: tuple[str, ...]) -> Test:
    """The test that a setting of Megatron's engine has one of these values."""
    return lambda run: one_of(key, run[key], names) if run.engine == "megatron" and _trained(role, run) else None


def _dtype_row(role: str) -> Rule:
    """Megatron's precision, of the actor or the critic."""
    key = f"{role}megatron.dtype"
    native, source = "AssertionError: dtype ... not supported", "verl 0.6.1 to 0.9.1 workers/config/engine.py"
    where, test = f"{source} McoreEngineConfig.__post_init__", _megatrons(role, key, ("bfloat16", "float16"))
    return IN_CONFIG("BB-VERL-058", test, (key,), native, where, setting(key, "bfloat16"), ">=0.6.1")


_REPLAY, _BYPASS = f"{ACTOR}megatron.router_replay.mode", "algorithm.rollout_correction.bypass_mode"


def _replay_bypassed(run: Run) -> str | None:
    if run.engine != "megatron" or run[_REPLAY] != "R2" or not run[_BYPASS]:
        return None
    return f"{_REPLAY} = R2 records routes while log-probabilities are computed again, which {_BYPASS} leaves out"


def _aggregation(run: Run) -> str | None:
    return one_of(AGGREGATION, run[AGGREGATION], aggregations(run.version))


def _cold_validation(run: Run) -> str | None:
    key = f"{ROLLOUT}temperature"
    if not run[f"{ROLLOUT}val_kwargs.do_sample"] or run[key] > 0:
        return None
    return f"{key} = {run[key]}: must be above 0 with {ROLLOUT}val_kwargs.do_sample"


VALIDATE = "verl 0.4.0 to 0.5.0 RayPPOTrainer._validate_config; 0.6.0 to 0.9.1 utils/config.py validate_config"
ACTOR_CONFIG = f"{_CONFIG}/actor.py ActorConfig"


SIZES = (
    IN_CONFIG("BB-VERL-010", _division_by_zero, (*_MEGATRON, MICRO, *DEVICES), "ZeroDivisionError", VALIDATE),
    IN_CONFIG(
        "BB-VERL-017",
        _replicas,
        (*DEVICES, *_MEGATRON),
        "AssertionError: n_gpus (...) must be divisible by model_parallel_size (...) times context_parallel_size (...)",
        VALIDATE,
        replica_fixes,
    ),
    IN_CONFIG(
        "BB-VERL-013",
        _megatron_micro,
        (MICRO,),
        "TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'",
        VALIDATE,
        lambda run: (Fix(f"{MICRO} = 1", {MICRO: 1, GLOBAL_MICRO: None}),),
    ),
    IN_CONFIG(
        "BB-VERL-004",
        _rollout_over_devices,
        (PROMPTS, GROUP, *DEVICES),
        "AssertionError: real_train_batch_size (...) must be divisible by minimal possible batch size (...)",
        VALIDATE,
        _rollout_fixes,
    ),
)

OF_ACTOR = (
    _schedule_row(ACTOR),
    IN_CONFIG(
        "BB-VERL-066",
        _megatrons(ACTOR, _REPLAY, ("disabled", "R2", "R3")),
        (_REPLAY,),
        "ValueError: Invalid router_replay mode: ...",
        "verl 0.7.1 to 0.9.1 workers/config/engine.py EngineRouterReplayConfig",
        setting(_REPLAY, "disabled"),
        ">=0.7.1",
    ),
    _dtype_row(ACTOR),
    _SINCE_060(
        "BB-VERL-014",
        partial(_two_micros, ACTOR),
        (GLOBAL_MICRO, MICRO),
        "ValueError: [actor] You have set both 'actor.ppo_micro_batch_size' AND 'actor.ppo_micro_batch_size_per_gpu'.",
        ACTOR_CONFIG,
        setting(GLOBAL_MICRO, None),
    ),
    _SINCE_060(
        "BB-VERL-013",
        _no_micro,
        (MICRO, DYNAMIC),
        "AssertionError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or ...",
        ACTOR_CONFIG,
        either((MICRO, 1), (DYNAMIC, True)),
    ),
    _SINCE_060(
        "BB-VERL-024",
        _aggregation,
        (AGGREGATION,),
        "ValueError: Invalid loss_agg_mode: ...",
        ACTOR_CONFIG,
        setting(AGGREGATION, "token-mean"),
    ),
    _SINCE_060(
        "BB-VERL-012",
        partial(_smaller_than_mini, ACTOR),
        (PROMPTS, MINI),
        "ValueError: train_batch_size (...) must be >= actor.ppo_mini_batch_size (...); before 0.6.0 AssertionError: "
        "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
        f"{VALIDATE}; {ACTOR_CONFIG}.validate",
        mini_fixes(ACTOR),
    ),
    _SINCE_060(
        "BB-VERL-015",
        lambda run: _whole_micro_batches(ACTOR, run) or _below_devices(ACTOR, run),
        (MINI, GLOBAL_MICRO, *DEVICES),
        "ValueError: ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...); or: must be >= n_gpus",
        f"{VALIDATE}; {ACTOR_CONFIG}.validate",
        instead(MICRO, GLOBAL_MICRO),
    ),
    _SINCE_060(
        "BB-VERL-051",
        partial(_padding_with_ulysses, ACTOR, PADDING),
        (f"{ACTOR}{_ULYSSES}", PADDING),
        "ValueError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`.",
        f"{_CONFIG}/actor.py FSDPActorConfig.validate; 0.4.0 to 0.5.0 _validate_config",
        setting(PADDING, True),
    ),
    IN_CONFIG(
        "BB-VERL-066",
        _replay_bypassed,
        (_REPLAY, _BYPASS),
        "ValueError: router_replay.mode='R2' requires algorithm.rollout_correction.bypass_mode=False",
        "verl 0.9.1 utils/config.py _validate_router_replay_config",
        setting(_BYPASS, False),
        ">=0.9.1",
    ),
    _log_prob(REFERENCE, lambda run: run.reference),
    _log_prob(ROLLOUT, lambda run: True),
)

OF_VALIDATION = _SINCE_060(
    "BB-VERL-063",
    _cold_validation,
    (f"{ROLLOUT}temperature", f"{ROLLOUT}val_kwargs.do_sample"),
    "AssertionError: validation gen temperature should be greater than 0 when enabling do_sample",
    VALIDATE,
    setting(f"{ROLLOUT}val_kwargs.do_sample", False),
)


# ---- the critic and the reward model

_CRITIC_MINI, _CRITIC_MICRO = f"{CRITIC}ppo_mini_batch_size", f"{CRITIC}ppo_micro_batch_size_per_gpu"
_CRITIC_GLOBAL, _CRITIC_DYNAMIC = f"{CRITIC}ppo_micro_batch_size", f"{CRITIC}use_dynamic_bsz"


def _critic_micros(run: Run) -> str | None:
    if _in_rows(CRITIC, run) and run[_CRITIC_MICRO] is None and run[_CRITIC_GLOBAL] is None:
        return f"the critic has no micro-batch: neither {_CRITIC_MICRO} nor {_CRITIC_DYNAMIC} is set"
    return _two_micros(CRITIC, run)


def _critic_micro_fixes(run: Run) -> tuple[Fix, ...]:
    if run[_CRITIC_MICRO] is None:
        return (*setting(_CRITIC_MICRO, run.micro or 1)(run), *setting(_CRITIC_DYNAMIC, True)(run))
    return (Fix(f"{_CRITIC_GLOBAL}=null", {_CRITIC_GLOBAL: None, _CRITIC_MICRO: run[_CRITIC_MICRO]}),)


def _critic_below_devices(run: Run) -> str | None:
    # Before 0.6.0 whatever the engine; see `batchbridge_history.verl`.
    return _below_devices(CRITIC, run) if run.engine == "fsdp" or holds("<0.6.0", run.version) else None


_SOURCE = "verl 0.6.0 to 0.9.1 workers/config/critic.py CriticConfig; 0.4.0 to 0.5.0 RayPPOTrainer._validate_config"
_REWARD, _REWARD_MICRO = "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu"


def _rewards_in_workers(run: Run) -> bool:
    loop = holds(">=0.7.0", run.version) and run["reward_model.use_reward_loop"]
    return bool(run["reward_model.enable"] and not run["reward_model.use_dynamic_bsz"] and not loop)


OF_REWARDS = IN_CONFIG(
    "BB-VERL-064",
    _one_of_two(_REWARD, _REWARD_MICRO, _rewards_in_workers),
    (_REWARD_MICRO, _REWARD),
    "ValueError: [reward_model] Please set at least one of ...; or: You have set both ...",
    "verl 0.4.0 to 0.7.0 validate_config",
    lambda run: (Fix(f"{_REWARD_MICRO} = 1", {_REWARD_MICRO: 1, _REWARD: None}),),
    ">=0.6.0,<0.7.1",
)

OF_CRITIC = (
    _schedule_row(CRITIC),
    _dtype_row(CRITIC),
    _SINCE_060(
        "BB-VERL-059",
        _critic_micros,
        (_CRITIC_MICRO, _CRITIC_GLOBAL, _CRITIC_DYNAMIC),
        "ValueError: [critic] Please set at least one of ...; or: You have set both ...",
        _SOURCE,
        _critic_micro_fixes,
    ),
    _SINCE_060(
        "BB-VERL-060",
        partial(_whole_micro_batches, CRITIC),
        (_CRITIC_MINI, _CRITIC_GLOBAL),
        "ValueError: [critic] ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...)",
        _SOURCE,
        instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
    ),
    IN_CONFIG(
        "BB-VERL-061",
        partial(_padding_with_ulysses, CRITIC, CRITIC_PADDING),
        (f"{CRITIC}{_ULYSSES}", CRITIC_PADDING),
        "ValueError: When using sequence parallelism for critic, you must enable `use_remove_padding`.",
        "verl 0.6.0 to 0.7.1 workers/config/critic.py FSDPCriticConfig; 0.4.0 to 0.5.0 _validate_config",
        setting(CRITIC_PADDING, True),
        ">=0.6.0,<0.8.0",
    ),
    _SINCE_060(
        "BB-VERL-062",
        partial(_smaller_than_mini, CRITIC),
        (PROMPTS, _CRITIC_MINI),
        "ValueError: train_batch_size (...) must be >= critic.ppo_mini_batch_size (...)",
        _SOURCE,
        mini_fixes(CRITIC),
    ),
    _SINCE_060(
        "BB-VERL-060",
        _critic_below_devices,
        (_CRITIC_GLOBAL, *DEVICES),
        "ValueError: critic.ppo_micro_batch_size (...) * ulysses_sequence_parallel_size (...) must be >= n_gpus (...)",
        _SOURCE,
        instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
    ),
)

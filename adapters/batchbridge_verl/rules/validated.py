"""Rules that verl checks before any worker starts, in its order: the first row that speaks is its error.

`validate_config` takes sizes first, then builds the actor's dataclasses, looks at the actor, the reference policy and
the rollout, then at the critic. Before 0.6.0 `RayPPOTrainer._validate_config` did, in another order and without
dataclasses. A test gives the same configurations to verl's own code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import IN_CONFIG, Rules, says
from batchbridge_verl.rules import printed
from batchbridge_verl.rules.row import AGGREGATION, BYPASS, DEVICES, one_of, product
from batchbridge_verl.rules.ways_out import WORLD, either, fix, instead, mini_fixes, near, setting, shared
from batchbridge_verl.run import DYNAMIC, GLOBAL_MICRO, GROUP, MICRO, MINI, PROMPTS, VerlRun
from batchbridge_verl.settings import ACTOR, CRITIC, PARALLEL, ROLLOUT, holds, megatron_sizes
from batchbridge_verl.terms import aggregations

_SINCE_060 = IN_CONFIG._replace(versions=">=0.6.0")
"""Rows of `validate_config`, which is in 0.6.0 and newer versions."""
PADDING, CRITIC_PADDING = "actor_rollout_ref.model.use_remove_padding", "critic.model.use_remove_padding"
SCHEDULES = ("constant", "cosine")
_ULYSSES = "ulysses_sequence_parallel_size"
_MEGATRON = megatron_sizes(ACTOR)
_REPLAY = f"{ACTOR}megatron.router_replay.mode"
_TEMPERATURE, _VALIDATION_SAMPLES = f"{ROLLOUT}temperature", f"{ROLLOUT}val_kwargs.do_sample"
_REWARD, _REWARD_MICRO = "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu"
_CRITIC_MINI, _CRITIC_MICRO = f"{CRITIC}ppo_mini_batch_size", f"{CRITIC}ppo_micro_batch_size_per_gpu"
_CRITIC_GLOBAL, _CRITIC_DYNAMIC = f"{CRITIC}ppo_micro_batch_size", f"{CRITIC}use_dynamic_bsz"

# In the rows' sources.
VALIDATE = "verl 0.4.0 to 0.5.0 RayPPOTrainer._validate_config; 0.6.0 to 0.9.1 utils/config.py validate_config"
_CONFIG = "verl 0.6.0 to 0.9.1 workers/config"
ACTOR_CONFIG = f"{_CONFIG}/actor.py ActorConfig"
_CRITIC_CONFIG = f"{_CONFIG}/critic.py CriticConfig; 0.4.0 to 0.5.0 RayPPOTrainer._validate_config"

RULES = Rules[VerlRun]()


# ---- sizes


def _sized(run: VerlRun) -> bool:
    """Whether the completions of a rollout are held against the devices: not with a token budget, from 0.6.0 on."""
    return not run[DYNAMIC] or holds("<0.6.0", run.version)


def _product(run: VerlRun) -> int:
    return math.prod(run.parallel)


def _minimal(run: VerlRun) -> int | None:
    """The number that must divide the completions of a rollout; None where verl does not come so far."""
    if not _sized(run):
        return None
    if run.engine != "megatron":
        return run.world
    if not _product(run) or run.world % _product(run) or run[MICRO] is None:
        return None
    return run.world // _product(run) * int(run[MICRO])


@RULES.add(IN_CONFIG, "BB-VERL-010", *_MEGATRON, MICRO, *DEVICES, core="BB101")
@says("ZeroDivisionError", VALIDATE)
def _division_by_zero(run: VerlRun) -> str | None:
    megatron = run.engine == "megatron" and _sized(run)
    if megatron and not _product(run):
        return f"{', '.join(f'{key} = {run[key]}' for key in _MEGATRON if not run[key])}: must be at least 1"
    if _minimal(run) != 0:
        return None
    if run.world == 0:
        return "trainer.nnodes x trainer.n_gpus_per_node = 0: must be at least 1"
    return f"{MICRO} = {run[MICRO]}: must be at least 1" if megatron else None


def replica_fixes(run: VerlRun) -> tuple[Fix, ...]:
    """The nearest numbers of devices that make whole replicas, and the nearest sizes of theirs that share these out."""
    per_replica = shared(run)
    below = run.world // per_replica * per_replica
    worlds = [fix({WORLD: size}) for size in (below, below + per_replica) if size > 0]
    for key, size in zip((*PARALLEL[run.engine][:2], run.context_key), run.parallel, strict=True):
        if key is not None and size > 1 and run.world % (others := per_replica // size) == 0:
            worlds += [fix({key: near}) for near in nearest_numbers(size, divides=run.world // others)]
    return tuple(worlds)


@RULES.add(
    IN_CONFIG,
    "BB-VERL-017",
    *DEVICES,
    *_MEGATRON,
    fixes=replica_fixes,
    core="BB102",
    text=printed.DEVICES_OF_PARALLEL_SIZES,
)
@says(
    "AssertionError: n_gpus (...) must be divisible by model_parallel_size (...) times context_parallel_size (...)",
    VALIDATE,
)
def _replicas(run: VerlRun) -> str | None:
    if run.engine != "megatron" or not _sized(run) or not _product(run) or run.world % _product(run) == 0:
        return None
    return replicas_message(run)


def replicas_message(run: VerlRun) -> str:
    """The devices that do not make whole replicas."""
    sizes = " x ".join(str(size) for size in run.parallel)
    return f"{run.world} devices cannot be shared out to replicas of {sizes} devices (tensor x pipeline x context)"


def _micro_of_one(run: VerlRun) -> tuple[Fix, ...]:
    return (Fix(f"{MICRO} = 1", {MICRO: 1, GLOBAL_MICRO: None}),)


@RULES.add(IN_CONFIG, "BB-VERL-013", MICRO, fixes=_micro_of_one)
@says("TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'", VALIDATE)
def _megatron_micro(run: VerlRun) -> str | None:
    if run.engine != "megatron" or not _sized(run) or run[MICRO] is not None:
        return None
    if not _product(run) or run.world % _product(run):
        return None
    return f"{MICRO} is not set, and Megatron's check multiplies with it"


def _rollout_fixes(run: VerlRun) -> tuple[Fix, ...]:
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        minimal = v[WORLD] // per_replica * v[MICRO] if run.engine == "megatron" else v[WORLD]
        return v[WORLD] % per_replica == 0 and minimal > 0 and v[PROMPTS] * v[GROUP] % minimal == 0

    return near(run, (PROMPTS, GROUP, WORLD), legal)


@RULES.add(IN_CONFIG, "BB-VERL-004", PROMPTS, GROUP, *DEVICES, fixes=_rollout_fixes, text=printed.MINIMAL_BATCH)
@says("AssertionError: real_train_batch_size (...) must be divisible by minimal possible batch size (...)", VALIDATE)
def _rollout_over_devices(run: VerlRun) -> str | None:
    minimal = _minimal(run)
    completions = run[PROMPTS] * run[GROUP]
    if not minimal or completions % minimal == 0:
        return None
    what = f"{minimal} devices" if run.engine != "megatron" else f"replicas x micro-batch = {minimal}"
    asked = f"{product(run, PROMPTS)} is {completions} completions"
    return f"{asked}, which is not a multiple of {what}"


# ---- rows of the actor and of the critic alike; role: the beginning of its keys


def _trained(role: str, run: VerlRun) -> bool:
    """Whether the run has the actor or the critic."""
    return role == ACTOR or run.critic


def _in_rows(role: str, run: VerlRun) -> bool:
    return _trained(role, run) and not run[f"{role}use_dynamic_bsz"]


def _schedule(role: str) -> None:
    """The row of the schedule's name."""
    older, newer = f"{role}optim.warmup_style", f"{role}optim.lr_scheduler_type"

    @RULES.add(_SINCE_060, "BB-VERL-057", newer, older, fixes=setting(newer, "constant"))
    @says(
        "AssertionError, without a message, in FSDPOptimizerConfig",
        f"{_CONFIG}/optimizer.py FSDPOptimizerConfig.__post_init__",
    )
    def test(run: VerlRun) -> str | None:
        key = newer if run[older] is None else older
        if run.engine != "fsdp" or not _trained(role, run):
            return None
        if run[key] is None:
            return f"{key} is null: must be one of {', '.join(SCHEDULES)}"
        return one_of(key, run[key], SCHEDULES)


def _dtype(role: str) -> None:
    """The row of Megatron's precision."""
    key = f"{role}megatron.dtype"

    @RULES.add(IN_CONFIG, "BB-VERL-058", key, fixes=setting(key, "bfloat16"))
    @says(
        "AssertionError: dtype ... not supported",
        "verl 0.6.1 to 0.9.1 workers/config/engine.py McoreEngineConfig.__post_init__",
        ">=0.6.1",
    )
    def test(run: VerlRun) -> str | None:
        return _megatrons(role, key, ("bfloat16", "float16"), run)


def _megatrons(role: str, key: str, names: tuple[str, ...], run: VerlRun) -> str | None:
    """A setting of Megatron's engine that has none of these values."""
    return one_of(key, run[key], names) if run.engine == "megatron" and _trained(role, run) else None


def _below_mini(role: str, run: VerlRun) -> str | None:
    """A rollout that fills no optimizer step."""
    mini = f"{role}ppo_mini_batch_size"
    if not _in_rows(role, run) or run[PROMPTS] >= run[mini]:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {mini} = {run[mini]} prompts"


def _whole_micro_batches(role: str, run: VerlRun) -> str | None:
    """The deprecated size of a micro-batch over all devices, which has to divide the mini-batch."""
    whole, mini = f"{role}ppo_micro_batch_size", f"{role}ppo_mini_batch_size"
    if not _in_rows(role, run) or run[whole] is None:
        return None
    if run[whole] == 0:
        return f"{whole} = 0: must be at least 1"
    return f"{mini} = {run[mini]} is not a multiple of {whole} = {run[whole]}" if run[mini] % run[whole] else None


def _below_devices(role: str, run: VerlRun) -> str | None:
    """The same size, with which each device has to have something."""
    whole = f"{role}ppo_micro_batch_size"
    ulysses = run[f"{role}{_ULYSSES}"] if run.engine == "fsdp" else 1
    if not _in_rows(role, run) or run[whole] is None or run[whole] * ulysses >= run.world:
        return None
    return f"{whole} = {run[whole]} x sequence parallel {ulysses} is below {run.world} devices"


def _padded(role: str, padding: str, run: VerlRun) -> str | None:
    """Sequence parallelism, which takes unpadded rows alone. Source: verl 0.6.0 to 0.7.1 `in {"fsdp", "fsdp2"}`; 0.8.0
    on whatever the strategy."""
    key, counts = f"{role}{_ULYSSES}", holds(">=0.8.0", run.version) or run[f"{role}strategy"] in ("fsdp", "fsdp2")
    if not _trained(role, run) or run.engine != "fsdp" or run[key] <= 1 or run[padding] or not counts:
        return None
    return f"{key} = {run[key]} needs {padding}"


def _two_micros(role: str, run: VerlRun) -> str | None:
    whole, per_gpu = f"{role}ppo_micro_batch_size", f"{role}ppo_micro_batch_size_per_gpu"
    if not _in_rows(role, run) or run[whole] is None or run[per_gpu] is None:
        return None
    return f"{whole} = {run[whole]} and {per_gpu} = {run[per_gpu]} are both set"


# ---- the actor, the reference policy and the rollout


_schedule(ACTOR)


@RULES.add(IN_CONFIG, "BB-VERL-066", _REPLAY, fixes=setting(_REPLAY, "disabled"))
@says(
    "ValueError: Invalid router_replay mode: ...",
    "verl 0.7.1 to 0.9.1 workers/config/engine.py EngineRouterReplayConfig",
    ">=0.7.1",
)
def _replay_mode(run: VerlRun) -> str | None:
    return _megatrons(ACTOR, _REPLAY, ("disabled", "R2", "R3"), run)


_dtype(ACTOR)


@RULES.add(_SINCE_060, "BB-VERL-014", GLOBAL_MICRO, MICRO, fixes=setting(GLOBAL_MICRO, None))
@says(
    "ValueError: [actor] You have set both 'actor.ppo_micro_batch_size' AND 'actor.ppo_micro_batch_size_per_gpu'.",
    ACTOR_CONFIG,
)
def _two_actor_micros(run: VerlRun) -> str | None:
    return _two_micros(ACTOR, run)


@RULES.add(
    _SINCE_060, "BB-VERL-013", MICRO, DYNAMIC, fixes=either((MICRO, 1), (DYNAMIC, True)), text=printed.NO_MICRO_BATCH
)
@says("AssertionError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or ...", ACTOR_CONFIG)
def _no_micro(run: VerlRun) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is not None:
        return None
    return f"neither {MICRO} nor {DYNAMIC} is set: there is no micro-batch"


@RULES.add(_SINCE_060, "BB-VERL-024", AGGREGATION, fixes=setting(AGGREGATION, "token-mean"))
@says("ValueError: Invalid loss_agg_mode: ...", ACTOR_CONFIG)
def _aggregation(run: VerlRun) -> str | None:
    return one_of(AGGREGATION, run[AGGREGATION], aggregations(run.version))


@RULES.add(_SINCE_060, "BB-VERL-012", PROMPTS, MINI, fixes=mini_fixes(ACTOR), text=printed.MINI_ABOVE_ROLLOUT)
@says(
    "ValueError: train_batch_size (...) must be >= actor.ppo_mini_batch_size (...); before 0.6.0 AssertionError: "
    "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
    f"{VALIDATE}; {ACTOR_CONFIG}.validate",
)
def _smaller_than_mini(run: VerlRun) -> str | None:
    return _below_mini(ACTOR, run)


@RULES.add(_SINCE_060, "BB-VERL-015", MINI, GLOBAL_MICRO, *DEVICES, fixes=instead(MICRO, GLOBAL_MICRO))
@says(
    "ValueError: ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...); or: must be >= n_gpus",
    f"{VALIDATE}; {ACTOR_CONFIG}.validate",
)
def _deprecated_micro(run: VerlRun) -> str | None:
    return _whole_micro_batches(ACTOR, run) or _below_devices(ACTOR, run)


@RULES.add(_SINCE_060, "BB-VERL-051", f"{ACTOR}{_ULYSSES}", PADDING, fixes=setting(PADDING, True))
@says(
    "ValueError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`.",
    f"{_CONFIG}/actor.py FSDPActorConfig.validate; 0.4.0 to 0.5.0 _validate_config",
)
def _padding_with_ulysses(run: VerlRun) -> str | None:
    return _padded(ACTOR, PADDING, run)


@RULES.add(IN_CONFIG, "BB-VERL-066", _REPLAY, BYPASS, fixes=setting(BYPASS, False))
@says(
    "ValueError: router_replay.mode='R2' requires algorithm.rollout_correction.bypass_mode=False",
    "verl 0.9.1 utils/config.py _validate_router_replay_config",
    ">=0.9.1",
)
def _replay_bypassed(run: VerlRun) -> str | None:
    if run.engine != "megatron" or run[_REPLAY] != "R2" or not run[BYPASS]:
        return None
    return f"{_REPLAY} = R2 records routes while log-probabilities are computed again, which {BYPASS} leaves out"


# ---- the reward model, the critic and validation


_schedule(CRITIC)
_dtype(CRITIC)


def _critic_micro_fixes(run: VerlRun) -> tuple[Fix, ...]:
    if run[_CRITIC_MICRO] is None:
        return (*setting(_CRITIC_MICRO, run.micro or 1)(run), *setting(_CRITIC_DYNAMIC, True)(run))
    return (Fix(f"{_CRITIC_GLOBAL}=null", {_CRITIC_GLOBAL: None, _CRITIC_MICRO: run[_CRITIC_MICRO]}),)


@RULES.add(
    _SINCE_060,
    "BB-VERL-059",
    _CRITIC_MICRO,
    _CRITIC_GLOBAL,
    _CRITIC_DYNAMIC,
    fixes=_critic_micro_fixes,
    text=printed.NO_MICRO_BATCH,
)
@says("ValueError: [critic] Please set at least one of ...; or: You have set both ...", _CRITIC_CONFIG)
def _critic_micros(run: VerlRun) -> str | None:
    if _in_rows(CRITIC, run) and run[_CRITIC_MICRO] is None and run[_CRITIC_GLOBAL] is None:
        return f"the critic has no micro-batch: neither {_CRITIC_MICRO} nor {_CRITIC_DYNAMIC} is set"
    return _two_micros(CRITIC, run)


def left_out(code: str, run: VerlRun) -> bool:
    """Whether a finding of a rule's says that a setting is missing, and not that one is wrong."""
    of_critic = code == "BB-VERL-059" and run[_CRITIC_MICRO] is None and run[_CRITIC_GLOBAL] is None
    return code in ("BB-VERL-013", "BB-VERL-035") or of_critic


@RULES.add(_SINCE_060, "BB-VERL-060", _CRITIC_MINI, _CRITIC_GLOBAL, fixes=instead(_CRITIC_MICRO, _CRITIC_GLOBAL))
@says("ValueError: [critic] ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...)", _CRITIC_CONFIG)
def _critic_whole_micros(run: VerlRun) -> str | None:
    return _whole_micro_batches(CRITIC, run)


@RULES.add(IN_CONFIG, "BB-VERL-061", f"{CRITIC}{_ULYSSES}", CRITIC_PADDING, fixes=setting(CRITIC_PADDING, True))
@says(
    "ValueError: When using sequence parallelism for critic, you must enable `use_remove_padding`.",
    "verl 0.6.0 to 0.7.1 workers/config/critic.py FSDPCriticConfig; 0.4.0 to 0.5.0 _validate_config",
    ">=0.6.0,<0.8.0",
)
def _critic_padding_with_ulysses(run: VerlRun) -> str | None:
    return _padded(CRITIC, CRITIC_PADDING, run)


@RULES.add(_SINCE_060, "BB-VERL-062", PROMPTS, _CRITIC_MINI, fixes=mini_fixes(CRITIC))
@says("ValueError: train_batch_size (...) must be >= critic.ppo_mini_batch_size (...)", _CRITIC_CONFIG)
def _critic_smaller_than_mini(run: VerlRun) -> str | None:
    return _below_mini(CRITIC, run)


@RULES.add(_SINCE_060, "BB-VERL-060", _CRITIC_GLOBAL, *DEVICES, fixes=instead(_CRITIC_MICRO, _CRITIC_GLOBAL))
@says(
    "ValueError: critic.ppo_micro_batch_size (...) * ulysses_sequence_parallel_size (...) must be >= n_gpus (...)",
    _CRITIC_CONFIG,
)
def _critic_below_devices(run: VerlRun) -> str | None:
    # Before 0.6.0 whatever the engine; see `batchbridge_history.verl`.
    return _below_devices(CRITIC, run) if run.engine == "fsdp" or holds("<0.6.0", run.version) else None


@RULES.add(_SINCE_060, "BB-VERL-063", _TEMPERATURE, _VALIDATION_SAMPLES, fixes=setting(_VALIDATION_SAMPLES, False))
@says("AssertionError: validation gen temperature should be greater than 0 when enabling do_sample", VALIDATE)
def _cold_validation(run: VerlRun) -> str | None:
    if not run[_VALIDATION_SAMPLES] or run[_TEMPERATURE] > 0:
        return None
    return f"{_TEMPERATURE} = {run[_TEMPERATURE]}: must be above 0 with {_VALIDATION_SAMPLES}"

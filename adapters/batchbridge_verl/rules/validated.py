"""What verl refuses before any worker starts, in the order in which it looks: the first row that speaks is its error.

`validate_config` takes sizes first, then builds the actor's dataclasses, looks at the actor, the reference policy and
the rollout, then at the critic. Before 0.6.0 `RayPPOTrainer._validate_config` did, in another order and without
dataclasses. A test gives the same configurations to verl's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from batchbridge import Fix
from batchbridge_verl.rules.row import AGGREGATION, DEVICES, Fixes, Rule, Test, fix, mini_fixes, near, setting, shared
from batchbridge_verl.run import DYNAMIC, GLOBAL_MICRO, GROUP, MICRO, MINI, PARALLEL, PROMPTS, Run
from batchbridge_verl.settings import ACTOR, CRITIC, REFERENCE, ROLLOUT, holds
from batchbridge_verl.terms import AGGREGATION_VERSIONS, AGGREGATIONS

PADDING = "actor_rollout_ref.model.use_remove_padding"
CRITIC_PADDING = "critic.model.use_remove_padding"
SCHEDULES = ("constant", "cosine")
MEGATRON_DTYPES = ("bfloat16", "float16")
REPLAY_MODES = ("disabled", "R2", "R3")
_ULYSSES = f"{ACTOR}ulysses_sequence_parallel_size"


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
    return tuple(fix({"devices": size}) for size in (below, below + per_replica) if size > 0)


def _product(run: Run) -> int:
    tensor, pipeline, context = run.parallel
    return tensor * pipeline * context


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
        named = {key: run[key] for key in PARALLEL["megatron"] if key is not None}
        return f"{', '.join(f'{key} = {size}' for key, size in named.items() if not size)}: must be at least 1"
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
    return (
        f"{PROMPTS} = {run[PROMPTS]} (prompts) x {GROUP} = {run[GROUP]} is {run.completions_per_rollout} completions, "
        f"which is not a multiple of {what}"
    )


def _rollout_fixes(run: Run) -> tuple[Fix, ...]:
    per_replica = shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        minimal = v["world"] // per_replica * v["micro"] if run.engine == "megatron" else v["world"]
        whole = v["world"] % per_replica == 0 and minimal > 0
        return whole and v["prompts"] * v["group"] % minimal == 0

    return near(run, ("prompts", "group", "world"), legal)


def _smaller_than_mini(run: Run) -> str | None:
    if run[DYNAMIC] or run[PROMPTS] >= run[MINI]:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {MINI} = {run[MINI]} prompts"


# ---- micro-batch keys


def _two_micros(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is None or run[GLOBAL_MICRO] is None:
        return None
    return f"{GLOBAL_MICRO} = {run[GLOBAL_MICRO]} and {MICRO} = {run[MICRO]} are both set"


def _no_micro(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is not None:
        return None
    return f"neither {MICRO} nor {DYNAMIC} is set: there is no micro-batch"


def _global_micro(run: Run) -> str | None:
    size = run[GLOBAL_MICRO]
    if run[DYNAMIC] or size is None:
        return None
    if size == 0:
        return f"{GLOBAL_MICRO} = 0: must be at least 1"
    if run[MINI] % size:
        return f"{MINI} = {run[MINI]} is no multiple of {GLOBAL_MICRO} = {size}"
    ulysses = run[_ULYSSES] if run.engine == "fsdp" else 1
    if size * ulysses < run.world:
        return f"{GLOBAL_MICRO} = {size} x sequence parallel {ulysses} is below {run.world} devices"
    return None


def _log_prob(role: str, used: Callable[[Run], bool]) -> Test:
    whole, per_gpu = f"{role}log_prob_micro_batch_size", f"{role}log_prob_micro_batch_size_per_gpu"

    def test(run: Run) -> str | None:
        if run[DYNAMIC] or not used(run):
            return None
        if run[whole] is None and run[per_gpu] is None:
            return f"neither {per_gpu} nor {whole} is set"
        return f"{whole} and {per_gpu} are both set" if run[whole] is not None and run[per_gpu] is not None else None

    return test


def _log_prob_fixes(role: str) -> Fixes:
    per_gpu, whole = f"{role}log_prob_micro_batch_size_per_gpu", f"{role}log_prob_micro_batch_size"
    return lambda run: (
        setting(whole, None)(run)
        if run[whole] is not None and run[per_gpu] is not None
        else setting(per_gpu, run.micro or 1)(run)
    )


def _instead(size: str, deprecated: str) -> Fixes:
    return lambda run: (Fix(f"{size} = 1 instead", {size: 1, deprecated: None}),)


# ---- what the dataclasses take


def _schedule(role: str, used: Callable[[Run], bool]) -> Test:
    older, newer = f"{role}optim.warmup_style", f"{role}optim.lr_scheduler_type"

    def test(run: Run) -> str | None:
        if run.engine != "fsdp" or not used(run):
            return None
        for key in (older, newer):
            if run[key] is not None and run[key] not in SCHEDULES:
                return f"{key} = {run[key]}: must be one of {', '.join(SCHEDULES)}"
            if run[key] is not None:
                return None
        return f"{newer} is null: must be one of {', '.join(SCHEDULES)}"

    return test


def _dtype(role: str, used: Callable[[Run], bool]) -> Test:
    key = f"{role}megatron.dtype"

    def test(run: Run) -> str | None:
        if run.engine != "megatron" or not used(run) or run[key] in MEGATRON_DTYPES:
            return None
        return f"{key} = {run[key]}: must be one of {', '.join(MEGATRON_DTYPES)}"

    return test


def _replay_mode(run: Run) -> str | None:
    for key in _replay_keys(run):
        if run[key] not in REPLAY_MODES:
            return f"{key} = {run[key]}: must be one of {', '.join(REPLAY_MODES)}"
    return None


def _replay_keys(run: Run) -> tuple[str, ...]:
    return (f"{ACTOR}megatron.router_replay.mode",) if run.engine == "megatron" else ()


def _replay_bypassed(run: Run) -> str | None:
    bypass = "algorithm.rollout_correction.bypass_mode"
    (key,) = _replay_keys(run) or ("",)
    if not key or run[key] != "R2" or not run[bypass]:
        return None
    return f"{key} = R2 records routes while log-probabilities are computed again, which {bypass} leaves out"


def _aggregation(run: Run) -> str | None:
    name = run[AGGREGATION]
    known = [mode for mode in AGGREGATIONS if holds(AGGREGATION_VERSIONS.get(mode, ""), run.version)]
    return None if name in known else f"{AGGREGATION} = {name}: must be one of {', '.join(known)}"


def _padding_with_ulysses(run: Run) -> str | None:
    if run.engine != "fsdp" or run[PADDING] or not _strategy_counts(run, f"{ACTOR}strategy"):
        return None
    keys = [_ULYSSES]
    if holds("<0.6.0", run.version):
        keys.append(f"{REFERENCE}ulysses_sequence_parallel_size")
    for key in keys:
        if run[key] > 1:
            return f"{key} = {run[key]} needs {PADDING}"
    return None


def _strategy_counts(run: Run, key: str) -> bool:
    """Whether the check of sequence parallelism looks at this strategy. Source: verl 0.4.0 and 0.4.1 `== "fsdp"`; 0.5.0
    to 0.7.1 `in {"fsdp", "fsdp2"}`; 0.8.0 on always."""
    names = ("fsdp",) if holds("<0.5.0", run.version) else ("fsdp", "fsdp2")
    return holds(">=0.8.0", run.version) or run[key] in names


# ---- the critic


def _critic(used: Callable[[Run], str | None]) -> Test:
    return lambda run: used(run) if run.critic else None


_CRITIC_MINI, _CRITIC_MICRO = f"{CRITIC}ppo_mini_batch_size", f"{CRITIC}ppo_micro_batch_size_per_gpu"
_CRITIC_GLOBAL, _CRITIC_DYNAMIC = f"{CRITIC}ppo_micro_batch_size", f"{CRITIC}use_dynamic_bsz"
_CRITIC_ULYSSES = f"{CRITIC}ulysses_sequence_parallel_size"


def _critic_micros(run: Run) -> str | None:
    if run[_CRITIC_DYNAMIC]:
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


def _critic_divides(run: Run) -> str | None:
    size = run[_CRITIC_GLOBAL]
    if run[_CRITIC_DYNAMIC] or size is None:
        return None
    if size == 0:
        return f"{_CRITIC_GLOBAL} = 0: must be at least 1"
    if run[_CRITIC_MINI] % size:
        return f"{_CRITIC_MINI} = {run[_CRITIC_MINI]} is no multiple of {_CRITIC_GLOBAL} = {size}"
    return None


def _critic_smaller(run: Run) -> str | None:
    if run[_CRITIC_DYNAMIC] or run[PROMPTS] >= run[_CRITIC_MINI]:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {_CRITIC_MINI} = {run[_CRITIC_MINI]} prompts"


def _critic_below_devices(run: Run) -> str | None:
    size = run[_CRITIC_GLOBAL]
    checked = run.engine == "fsdp" or (run.engine == "megatron" and holds("<0.6.0", run.version))
    if run[_CRITIC_DYNAMIC] or size is None or not checked:
        return None
    ulysses = run[_CRITIC_ULYSSES] if run.engine == "fsdp" else 1
    if size * ulysses >= run.world:
        return None
    return f"{_CRITIC_GLOBAL} = {size} x sequence parallel {ulysses} is below {run.world} devices"


def _critic_padding(run: Run) -> str | None:
    if run.engine != "fsdp" or run[_CRITIC_ULYSSES] <= 1 or run[CRITIC_PADDING]:
        return None
    if not _strategy_counts(run, f"{CRITIC}strategy"):
        return None
    return f"{_CRITIC_ULYSSES} = {run[_CRITIC_ULYSSES]} needs {CRITIC_PADDING}"


# ---- the rest


def _reward_micros(run: Run) -> str | None:
    whole, per_gpu = "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu"
    loop = holds(">=0.7.0", run.version) and run["reward_model.use_reward_loop"]
    if not run["reward_model.enable"] or run["reward_model.use_dynamic_bsz"] or loop:
        return None
    if run[whole] is None and run[per_gpu] is None:
        return f"neither {per_gpu} nor {whole} is set"
    return f"{whole} and {per_gpu} are both set" if run[whole] is not None and run[per_gpu] is not None else None


def _cold_validation(run: Run) -> str | None:
    key = f"{ROLLOUT}temperature"
    if not run[f"{ROLLOUT}val_kwargs.do_sample"] or run[key] > 0:
        return None
    return f"{key} = {run[key]}: must be above 0 with {ROLLOUT}val_kwargs.do_sample"


def _multi_turn(run: Run) -> str | None:
    key, tools = f"{ROLLOUT}multi_turn.enable", f"{ROLLOUT}multi_turn.tool_config_path"
    if not run[key]:
        return None
    interaction = run[f"{ROLLOUT}multi_turn.interaction_config_path"] if holds(">=0.4.1", run.version) else None
    if run[tools] is None and interaction is None:
        return f"{key} needs {tools}"
    if run["algorithm.adv_estimator"] != "grpo":
        return f"{key} with algorithm.adv_estimator = {run['algorithm.adv_estimator']}: only grpo is accepted"
    return None


_VALIDATE = "verl 0.4.0 to 0.5.0 RayPPOTrainer._validate_config; 0.6.0 to 0.9.1 utils/config.py validate_config"
_ACTOR = "verl 0.6.0 to 0.9.1 workers/config/actor.py ActorConfig"
_CRITIC = "verl 0.6.0 to 0.9.1 workers/config/critic.py CriticConfig; 0.4.0 to 0.5.0 RayPPOTrainer._validate_config"
_DATACLASSES, _METHOD = ">=0.6.0", "<0.6.0"


def _row_of(
    code: str, test: Test, keys: tuple[str, ...], native: str, source: str, fixes: Fixes
) -> Callable[..., Rule]:
    """A row that stands at two places of the table, for two ranges of versions."""
    return lambda versions="": Rule(code, "error", "config", test, keys, native, source, fixes, versions)


_both_micros = _row_of(
    "BB-VERL-014",
    _two_micros,
    (GLOBAL_MICRO, MICRO),
    "ValueError: [actor] You have set both 'actor.ppo_micro_batch_size' AND 'actor.ppo_micro_batch_size_per_gpu'.",
    _ACTOR,
    setting(GLOBAL_MICRO, None),
)
_neither_micro = _row_of(
    "BB-VERL-013",
    _no_micro,
    (MICRO, DYNAMIC),
    "AssertionError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or ...",
    _ACTOR,
    lambda run: (*setting(MICRO, 1)(run), *setting(DYNAMIC, True)(run)),
)
_known_aggregation = _row_of(
    "BB-VERL-024",
    _aggregation,
    (AGGREGATION,),
    "ValueError: Invalid loss_agg_mode: ...",
    _ACTOR,
    setting(AGGREGATION, "token-mean"),
)
_few_prompts = _row_of(
    "BB-VERL-012",
    _smaller_than_mini,
    (PROMPTS, MINI),
    "ValueError: train_batch_size (...) must be >= actor.ppo_mini_batch_size (...); before 0.6.0 AssertionError: "
    "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
    f"{_VALIDATE}; {_ACTOR}.validate",
    mini_fixes,
)
_global_micro_sizes = _row_of(
    "BB-VERL-015",
    _global_micro,
    (MINI, GLOBAL_MICRO, *DEVICES),
    "ValueError: ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...); or: must be >= n_gpus",
    f"{_VALIDATE}; {_ACTOR}.validate",
    _instead(MICRO, GLOBAL_MICRO),
)
_actor_padding = _row_of(
    "BB-VERL-051",
    _padding_with_ulysses,
    (_ULYSSES, PADDING),
    "ValueError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`.",
    "verl 0.6.0 to 0.9.1 workers/config/actor.py FSDPActorConfig.validate; 0.4.0 to 0.5.0 _validate_config",
    setting(PADDING, True),
)
_reference_micros = _row_of(
    "BB-VERL-018",
    _log_prob(REFERENCE, lambda run: run.reference),
    (f"{REFERENCE}log_prob_micro_batch_size_per_gpu", f"{REFERENCE}log_prob_micro_batch_size"),
    "ValueError: [actor_rollout_ref.ref] Please set at least one of ...; or: You have set both ...",
    _VALIDATE,
    _log_prob_fixes(REFERENCE),
)
_rollout_micros = _row_of(
    "BB-VERL-016",
    _log_prob(ROLLOUT, lambda run: True),
    (f"{ROLLOUT}log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}log_prob_micro_batch_size"),
    "ValueError: [actor_rollout_ref.rollout] Please set at least one of ...; or: You have set both ...",
    _VALIDATE,
    _log_prob_fixes(ROLLOUT),
)
_reward_model_micros = _row_of(
    "BB-VERL-064",
    _reward_micros,
    ("reward_model.micro_batch_size_per_gpu", "reward_model.micro_batch_size"),
    "ValueError: [reward_model] Please set at least one of ...; or: You have set both ...",
    "verl 0.4.0 to 0.7.0 validate_config",
    lambda run: (
        Fix(
            "reward_model.micro_batch_size_per_gpu = 1",
            {"reward_model.micro_batch_size_per_gpu": 1, "reward_model.micro_batch_size": None},
        ),
    ),
)
_critic_micro_keys = _row_of(
    "BB-VERL-059",
    _critic(_critic_micros),
    (_CRITIC_MICRO, _CRITIC_GLOBAL, _CRITIC_DYNAMIC),
    "ValueError: [critic] Please set at least one of ...; or: You have set both ...",
    _CRITIC,
    _critic_micro_fixes,
)
_critic_divides_row = _row_of(
    "BB-VERL-060",
    _critic(_critic_divides),
    (_CRITIC_MINI, _CRITIC_GLOBAL),
    "ValueError: [critic] ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...)",
    _CRITIC,
    _instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
)
_critic_padding_row = _row_of(
    "BB-VERL-061",
    _critic(_critic_padding),
    (_CRITIC_ULYSSES, CRITIC_PADDING),
    "ValueError: When using sequence parallelism for critic, you must enable `use_remove_padding`.",
    "verl 0.6.0 to 0.7.1 workers/config/critic.py FSDPCriticConfig; 0.4.0 to 0.5.0 _validate_config",
    setting(CRITIC_PADDING, True),
)
_critic_few_prompts = _row_of(
    "BB-VERL-062",
    _critic(_critic_smaller),
    (PROMPTS, _CRITIC_MINI),
    "ValueError: train_batch_size (...) must be >= critic.ppo_mini_batch_size (...)",
    _CRITIC,
    lambda run: (fix({_CRITIC_MINI: run[PROMPTS]}), fix({PROMPTS: run[_CRITIC_MINI]})),
)
_critic_devices = _row_of(
    "BB-VERL-060",
    _critic(_critic_below_devices),
    (_CRITIC_GLOBAL, *DEVICES),
    "ValueError: critic.ppo_micro_batch_size (...) * ulysses_sequence_parallel_size (...) must be >= n_gpus (...)",
    _CRITIC,
    _instead(_CRITIC_MICRO, _CRITIC_GLOBAL),
)

VALIDATED = (
    Rule(
        "BB-VERL-010",
        "error",
        "config",
        _division_by_zero,
        (*(key for key in PARALLEL["megatron"] if key), MICRO, *DEVICES),
        "ZeroDivisionError",
        _VALIDATE,
    ),
    Rule(
        "BB-VERL-017",
        "error",
        "config",
        _replicas,
        (*DEVICES, *(key for key in PARALLEL["megatron"] if key)),
        "AssertionError: n_gpus (...) must be divisible by model_parallel_size (...) times context_parallel_size (...)",
        _VALIDATE,
        replica_fixes,
    ),
    Rule(
        "BB-VERL-013",
        "error",
        "config",
        _megatron_micro,
        (MICRO,),
        "TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'",
        _VALIDATE,
        lambda run: (Fix(f"{MICRO} = 1", {MICRO: 1, GLOBAL_MICRO: None}),),
    ),
    Rule(
        "BB-VERL-004",
        "error",
        "config",
        _rollout_over_devices,
        (PROMPTS, GROUP, *DEVICES),
        "AssertionError: real_train_batch_size (...) must be divisible by minimal possible batch size (...)",
        _VALIDATE,
        _rollout_fixes,
    ),
    # RayPPOTrainer._validate_config
    _both_micros(_METHOD),
    _neither_micro(_METHOD),
    _reference_micros(_METHOD),
    _rollout_micros(_METHOD),
    _critic_micro_keys(_METHOD),
    _reward_model_micros(_METHOD),
    _few_prompts(_METHOD),
    _global_micro_sizes(_METHOD),
    _known_aggregation(_METHOD),
    _critic_few_prompts(_METHOD),
    _critic_divides_row(_METHOD),
    _critic_devices(_METHOD),
    _actor_padding(_METHOD),
    _critic_padding_row(_METHOD),
    # validate_config
    Rule(
        "BB-VERL-057",
        "error",
        "config",
        _schedule(ACTOR, lambda run: True),
        (f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.warmup_style"),
        "AssertionError, without a message, in FSDPOptimizerConfig",
        "verl 0.6.0 to 0.9.1 workers/config/optimizer.py FSDPOptimizerConfig.__post_init__",
        setting(f"{ACTOR}optim.lr_scheduler_type", "constant"),
        _DATACLASSES,
    ),
    Rule(
        "BB-VERL-066",
        "error",
        "config",
        _replay_mode,
        (f"{ACTOR}megatron.router_replay.mode",),
        "ValueError: Invalid router_replay mode: ...",
        "verl 0.7.1 to 0.9.1 workers/config/engine.py EngineRouterReplayConfig",
        setting(f"{ACTOR}megatron.router_replay.mode", "disabled"),
        ">=0.7.1",
    ),
    Rule(
        "BB-VERL-058",
        "error",
        "config",
        _dtype(ACTOR, lambda run: True),
        (f"{ACTOR}megatron.dtype",),
        "AssertionError: dtype ... not supported",
        "verl 0.6.1 to 0.9.1 workers/config/engine.py McoreEngineConfig.__post_init__",
        setting(f"{ACTOR}megatron.dtype", "bfloat16"),
        ">=0.6.1",
    ),
    _both_micros(_DATACLASSES),
    _neither_micro(_DATACLASSES),
    _known_aggregation(_DATACLASSES),
    _few_prompts(_DATACLASSES),
    _global_micro_sizes(_DATACLASSES),
    _actor_padding(_DATACLASSES),
    Rule(
        "BB-VERL-066",
        "error",
        "config",
        _replay_bypassed,
        (f"{ACTOR}megatron.router_replay.mode", "algorithm.rollout_correction.bypass_mode"),
        "ValueError: router_replay.mode='R2' requires algorithm.rollout_correction.bypass_mode=False",
        "verl 0.9.1 utils/config.py _validate_router_replay_config",
        setting("algorithm.rollout_correction.bypass_mode", False),
        ">=0.9.1",
    ),
    _reference_micros(_DATACLASSES),
    _rollout_micros(_DATACLASSES),
    _reward_model_micros(">=0.6.0,<0.7.1"),
    Rule(
        "BB-VERL-057",
        "error",
        "config",
        _schedule(CRITIC, lambda run: run.critic),
        (f"{CRITIC}optim.lr_scheduler_type", f"{CRITIC}optim.warmup_style"),
        "AssertionError, without a message, in FSDPOptimizerConfig",
        "verl 0.6.0 to 0.9.1 workers/config/optimizer.py FSDPOptimizerConfig.__post_init__",
        setting(f"{CRITIC}optim.lr_scheduler_type", "constant"),
        _DATACLASSES,
    ),
    Rule(
        "BB-VERL-058",
        "error",
        "config",
        _dtype(CRITIC, lambda run: run.critic),
        (f"{CRITIC}megatron.dtype",),
        "AssertionError: dtype ... not supported",
        "verl 0.6.1 to 0.9.1 workers/config/engine.py McoreEngineConfig.__post_init__",
        setting(f"{CRITIC}megatron.dtype", "bfloat16"),
        ">=0.6.1",
    ),
    _critic_micro_keys(_DATACLASSES),
    _critic_divides_row(_DATACLASSES),
    _critic_padding_row(">=0.6.0,<0.8.0"),
    _critic_few_prompts(_DATACLASSES),
    _critic_devices(_DATACLASSES),
    # both
    Rule(
        "BB-VERL-063",
        "error",
        "config",
        _cold_validation,
        (f"{ROLLOUT}temperature", f"{ROLLOUT}val_kwargs.do_sample"),
        "AssertionError: validation gen temperature should be greater than 0 when enabling do_sample",
        _VALIDATE,
        setting(f"{ROLLOUT}val_kwargs.do_sample", False),
    ),
    Rule(
        "BB-VERL-065",
        "error",
        "config",
        _multi_turn,
        (f"{ROLLOUT}multi_turn.enable", f"{ROLLOUT}multi_turn.tool_config_path", "algorithm.adv_estimator"),
        "AssertionError: tool_config_path ... must be set when enabling multi_turn with tool; or: only GRPO is tested "
        "for multi-turn with tool",
        "verl 0.4.0 to 0.4.1 RayPPOTrainer._validate_config",
        setting(f"{ROLLOUT}multi_turn.enable", False),
        "<0.5.0",
    ),
)

"""What verl before 0.6 refused before any worker started: `RayPPOTrainer._validate_config`, in its own order.

`validate_config` of later versions, which the adapter knows, looks at much the same in another order. The facts are
those of the adapter's reading: its `run`, settings by native key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchbridge import Finding, Fix, Reading, Where
from batchbridge.kit import rule_table
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge.kit.versions import holds

BEFORE = "<0.6.0"
ACTOR, ROLLOUT, REFERENCE, CRITIC = (*(f"actor_rollout_ref.{name}." for name in ("actor", "rollout", "ref")), "critic.")
PROMPTS, DEVICES = "data.train_batch_size", ("trainer.nnodes", "trainer.n_gpus_per_node")
DYNAMIC, CRITIC_DYNAMIC = f"{ACTOR}use_dynamic_bsz", f"{CRITIC}use_dynamic_bsz"
MINI, CRITIC_MINI = f"{ACTOR}ppo_mini_batch_size", f"{CRITIC}ppo_mini_batch_size"
GLOBAL_MICRO, MICRO = f"{ACTOR}ppo_micro_batch_size", f"{ACTOR}ppo_micro_batch_size_per_gpu"
CRITIC_GLOBAL, CRITIC_MICRO = f"{CRITIC}ppo_micro_batch_size", f"{CRITIC}ppo_micro_batch_size_per_gpu"
REWARD_GLOBAL, REWARD_MICRO = "reward_model.micro_batch_size", "reward_model.micro_batch_size_per_gpu"
PADDING, CRITIC_PADDING = "actor_rollout_ref.model.use_remove_padding", f"{CRITIC}model.use_remove_padding"
ULYSSES, CRITIC_ULYSSES = (f"{role}ulysses_sequence_parallel_size" for role in (ACTOR, CRITIC))
AGGREGATION, MULTI_TURN = f"{ACTOR}loss_agg_mode", f"{ROLLOUT}multi_turn."
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_SOURCE = "verl 0.4.0 to 0.5.0 RayPPOTrainer._validate_config"

Run = Any
"""`batchbridge_verl`'s: settings by native key, engine, version, devices (`world`), `critic`, `reference`, `micro`."""
Fixes = Callable[[Run], tuple[Fix, ...]]


def _set(*changes: tuple[str, Any]) -> Fixes:
    """One way out for each change of a key."""
    shown = [(key, "null" if value is None else value, value) for key, value in changes]
    return lambda run: tuple(Fix(f"{key}={text}", {key: value}) for key, text, value in shown)


def _instead(size: str, deprecated: str) -> Fixes:
    return lambda run: (Fix(f"{size} = 1 instead", {size: 1, deprecated: None}),)


def _one_of_two(whole: str, per_gpu: str, asked: Callable[[Run], bool]) -> Callable[[Run], str | None]:
    def test(run: Run) -> str | None:
        given = [key for key in (whole, per_gpu) if run[key] is not None]
        if not asked(run) or len(given) == 1:
            return None
        return f"{whole} and {per_gpu} are both set" if given else f"neither {per_gpu} nor {whole} is set"

    return test


def _two_micros(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is None or run[GLOBAL_MICRO] is None:
        return None
    return f"{GLOBAL_MICRO} = {run[GLOBAL_MICRO]} and {MICRO} = {run[MICRO]} are both set"


def _no_micro(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is not None:
        return None
    return f"neither {MICRO} nor {DYNAMIC} is set: there is no micro-batch"


def _log_prob_fixes(role: str) -> Fixes:
    whole, per_gpu = f"{role}log_prob_micro_batch_size", f"{role}log_prob_micro_batch_size_per_gpu"

    def fixes(run: Run) -> tuple[Fix, ...]:
        both = run[whole] is not None and run[per_gpu] is not None
        return _set((whole, None) if both else (per_gpu, run.micro or 1))(run)

    return fixes


def _log_prob(code: str, role: str, used: Callable[[Run], bool]) -> rule_table.Rule[Run]:
    whole, per_gpu = f"{role}log_prob_micro_batch_size", f"{role}log_prob_micro_batch_size_per_gpu"
    test = _one_of_two(whole, per_gpu, lambda run: not run[DYNAMIC] and used(run))
    native = f"ValueError: [{role[:-1]}] Please set at least one of ...; or: You have set both ..."
    return IN_CONFIG(code, test, (per_gpu, whole), native, _SOURCE, _log_prob_fixes(role), BEFORE)


def _critic_micros(run: Run) -> str | None:
    if not run.critic or run[CRITIC_DYNAMIC]:
        return None
    if run[CRITIC_MICRO] is None and run[CRITIC_GLOBAL] is None:
        return f"the critic has no micro-batch: neither {CRITIC_MICRO} nor {CRITIC_DYNAMIC} is set"
    if run[CRITIC_MICRO] is None or run[CRITIC_GLOBAL] is None:
        return None
    return f"{CRITIC_GLOBAL} = {run[CRITIC_GLOBAL]} and {CRITIC_MICRO} = {run[CRITIC_MICRO]} are both set"


def _critic_micro_fixes(run: Run) -> tuple[Fix, ...]:
    if run[CRITIC_MICRO] is None:
        return _set((CRITIC_MICRO, run.micro or 1), (CRITIC_DYNAMIC, True))(run)
    return (Fix(f"{CRITIC_GLOBAL}=null", {CRITIC_GLOBAL: None, CRITIC_MICRO: run[CRITIC_MICRO]}),)


def _smaller(mini: str, dynamic: str, used: Callable[[Run], bool]) -> Callable[[Run], str | None]:
    def test(run: Run) -> str | None:
        if not used(run) or run[dynamic] or run[PROMPTS] >= run[mini]:
            return None
        return f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {mini} = {run[mini]} prompts"

    return test


def _as_many(mini: str) -> Fixes:
    def fixes(run: Run) -> tuple[Fix, ...]:
        sizes = ((mini, run[PROMPTS]), (PROMPTS, run[mini]))
        return tuple(Fix(f"{key} = {size}", {key: size}) for key, size in sizes if size > 0)

    return fixes


def _not_divided(size: str, mini: str, dynamic: str, used: Callable[[Run], bool]) -> Callable[[Run], str | None]:
    def test(run: Run) -> str | None:
        if not used(run) or run[dynamic] or run[size] is None or (run[size] and run[mini] % run[size] == 0):
            return None
        if run[size] == 0:
            return f"{size} = 0: must be at least 1"
        return f"{mini} = {run[mini]} is no multiple of {size} = {run[size]}"

    return test


def _below_devices(size: str, ulysses: str, dynamic: str, used: Callable[[Run], bool]) -> Callable[[Run], str | None]:
    def test(run: Run) -> str | None:
        parallel = run[ulysses] if run.engine == "fsdp" else 1
        if not used(run) or run[dynamic] or run[size] is None or run[size] * parallel >= run.world:
            return None
        return f"{size} = {run[size]} x sequence parallel {parallel} is below {run.world} devices"

    return test


_divided = _not_divided(GLOBAL_MICRO, MINI, DYNAMIC, lambda run: True)
_enough = _below_devices(GLOBAL_MICRO, ULYSSES, DYNAMIC, lambda run: True)


def _aggregation(run: Run) -> str | None:
    if run[AGGREGATION] in AGGREGATIONS:
        return None
    return f"{AGGREGATION} = {run[AGGREGATION]}: must be one of {', '.join(AGGREGATIONS)}"


def _counts(run: Run, role: str) -> bool:
    """Source: verl 0.4.0 and 0.4.1 `== "fsdp"`; 0.5.0 `in {"fsdp", "fsdp2"}`."""
    names = ("fsdp",) if holds("<0.5.0", run.version) else ("fsdp", "fsdp2")
    return run.engine == "fsdp" and run[f"{role}strategy"] in names


def _padding(run: Run) -> str | None:
    keys = (ULYSSES, f"{REFERENCE}ulysses_sequence_parallel_size")
    wrong = next((key for key in keys if run[key] > 1), None)
    if wrong is None or run[PADDING] or not _counts(run, ACTOR):
        return None
    return f"{wrong} = {run[wrong]} needs {PADDING}"


def _critic_padding(run: Run) -> str | None:
    if not run.critic or not _counts(run, CRITIC) or run[CRITIC_ULYSSES] <= 1 or run[CRITIC_PADDING]:
        return None
    return f"{CRITIC_ULYSSES} = {run[CRITIC_ULYSSES]} needs {CRITIC_PADDING}"


def _cold_validation(run: Run) -> str | None:
    key, sampled = f"{ROLLOUT}temperature", f"{ROLLOUT}val_kwargs.do_sample"
    return None if not run[sampled] or run[key] > 0 else f"{key} = {run[key]}: must be above 0 with {sampled}"


def _multi_turn(run: Run) -> str | None:
    key, tools, estimator = f"{MULTI_TURN}enable", f"{MULTI_TURN}tool_config_path", run["algorithm.adv_estimator"]
    interaction = run[f"{MULTI_TURN}interaction_config_path"] if holds(">=0.4.1", run.version) else None
    if not run[key]:
        return None
    if run[tools] is None and interaction is None:
        return f"{key} needs {tools}"
    return None if estimator == "grpo" else f"{key} with algorithm.adv_estimator = {estimator}: only grpo is accepted"


RULES: tuple[rule_table.Rule[Run], ...] = (
    IN_CONFIG(
        "BB-VERL-014",
        _two_micros,
        (GLOBAL_MICRO, MICRO),
        "ValueError: [actor_rollout_ref.actor] You have set both ...",
        _SOURCE,
        _set((GLOBAL_MICRO, None)),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-013",
        _no_micro,
        (MICRO, DYNAMIC),
        "ValueError: [actor_rollout_ref.actor] Please set at least one of ...",
        _SOURCE,
        _set((MICRO, 1), (DYNAMIC, True)),
        BEFORE,
    ),
    _log_prob("BB-VERL-018", REFERENCE, lambda run: bool(run.reference)),
    _log_prob("BB-VERL-016", ROLLOUT, lambda run: True),
    IN_CONFIG(
        "BB-VERL-059",
        _critic_micros,
        (CRITIC_MICRO, CRITIC_GLOBAL, CRITIC_DYNAMIC),
        "ValueError: [critic] Please set at least one of ...; or: You have set both ...",
        _SOURCE,
        _critic_micro_fixes,
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-064",
        _one_of_two(
            REWARD_GLOBAL,
            REWARD_MICRO,
            lambda run: bool(run["reward_model.enable"] and not run["reward_model.use_dynamic_bsz"]),
        ),
        (REWARD_MICRO, REWARD_GLOBAL),
        "ValueError: [reward_model] Please set at least one of ...; or: You have set both ...",
        _SOURCE,
        lambda run: (Fix(f"{REWARD_MICRO} = 1", {REWARD_MICRO: 1, REWARD_GLOBAL: None}),),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-012",
        _smaller(MINI, DYNAMIC, lambda run: True),
        (PROMPTS, MINI),
        "AssertionError: train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
        _SOURCE,
        _as_many(MINI),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-015",
        lambda run: _divided(run) or _enough(run),
        (MINI, GLOBAL_MICRO, *DEVICES),
        "AssertionError: ppo_mini_batch_size % ppo_micro_batch_size == 0, ppo_micro_batch_size * sp_size >= n_gpus",
        _SOURCE,
        _instead(MICRO, GLOBAL_MICRO),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-024",
        _aggregation,
        (AGGREGATION,),
        "AssertionError: invalid loss_agg_mode: ...",
        _SOURCE,
        _set((AGGREGATION, "token-mean")),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-062",
        _smaller(CRITIC_MINI, CRITIC_DYNAMIC, lambda run: bool(run.critic)),
        (PROMPTS, CRITIC_MINI),
        "AssertionError: train_batch_size >= config.critic.ppo_mini_batch_size",
        _SOURCE,
        _as_many(CRITIC_MINI),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-060",
        _not_divided(CRITIC_GLOBAL, CRITIC_MINI, CRITIC_DYNAMIC, lambda run: bool(run.critic)),
        (CRITIC_MINI, CRITIC_GLOBAL),
        "AssertionError: ppo_mini_batch_size % ppo_micro_batch_size == 0",
        _SOURCE,
        _instead(CRITIC_MICRO, CRITIC_GLOBAL),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-060",
        _below_devices(CRITIC_GLOBAL, CRITIC_ULYSSES, CRITIC_DYNAMIC, lambda run: bool(run.critic)),
        (CRITIC_GLOBAL, *DEVICES),
        "AssertionError: ppo_micro_batch_size * ulysses_sequence_parallel_size >= n_gpus",
        _SOURCE,
        _instead(CRITIC_MICRO, CRITIC_GLOBAL),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-051",
        _padding,
        (ULYSSES, PADDING),
        "AssertionError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`.",
        _SOURCE,
        _set((PADDING, True)),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-061",
        _critic_padding,
        (CRITIC_ULYSSES, CRITIC_PADDING),
        "AssertionError: When using sequence parallelism for critic, you must enable `use_remove_padding`.",
        _SOURCE,
        _set((CRITIC_PADDING, True)),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-063",
        _cold_validation,
        (f"{ROLLOUT}temperature", f"{ROLLOUT}val_kwargs.do_sample"),
        "AssertionError: validation gen temperature should be greater than 0 when enabling do_sample",
        _SOURCE,
        _set((f"{ROLLOUT}val_kwargs.do_sample", False)),
        BEFORE,
    ),
    IN_CONFIG(
        "BB-VERL-065",
        _multi_turn,
        (f"{MULTI_TURN}enable", f"{MULTI_TURN}tool_config_path", "algorithm.adv_estimator"),
        "AssertionError: tool_config_path ... must be set when enabling multi_turn with tool; or: only GRPO is tested "
        "for multi-turn with tool",
        "verl 0.4.0 to 0.4.1 RayPPOTrainer._validate_config",
        _set((f"{MULTI_TURN}enable", False)),
        "<0.5.0",
    ),
)


def check(reading: Reading) -> list[Finding]:
    """The rows that a reading of verl breaks; none where its settings leave the run open."""
    run, version = getattr(reading, "run", None), reading.framework_version or ""
    if run is None or not holds(BEFORE, version):
        return []

    def where(keys: tuple[str, ...]) -> tuple[Where, ...]:
        said = [key for key in keys if key in reading.given or reading.native.get(key) is not None]
        return reading.where(*(said or keys[:1]))

    return rule_table.findings(RULES, run, version, where)

"""verl's own rules, and what it does silently: a table, each row with phase, source and ways out.

Phases: `config` is validate_config and the config dataclasses, in the driver before any worker; `worker_start` the
workers' construction; `first_rollout` and `optimizer_step` assertions deep in a run; `never` what nothing reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Fix, Phase, Severity, Where
from batchbridge_verl.meaning import AGGREGATIONS, ESTIMATORS, INEXPRESSIBLE_ESTIMATORS, LOSS_MODES, clip_grad_key
from batchbridge_verl.run import (
    BUDGET,
    DYNAMIC,
    EPOCHS,
    GLOBAL_MICRO,
    GPUS,
    GROUP,
    MICRO,
    MINI,
    NODES,
    PARALLEL,
    PROMPTS,
    Run,
)
from batchbridge_verl.settings import ACTOR, REFERENCE, ROLLOUT, holds

AGGREGATION = f"{ACTOR}loss_agg_mode"
ESTIMATOR = "algorithm.adv_estimator"
MODE = f"{ACTOR}policy_loss.loss_mode"
WORKERS = "data.dataloader_num_workers"
DEVICES = (NODES, GPUS)

Test = Callable[[Run], str | None]


@dataclass(frozen=True)
class Rule:
    """One row. `test` gives the message where the rule is broken, else None. `keys`: the settings to point at.
    `native`: what verl does. `undecided`: the run cannot be told in the canonical schema."""

    code: str
    severity: Severity
    phase: Phase
    test: Test
    keys: tuple[str, ...]
    native: str
    source: str
    fixes: Callable[[Run], tuple[Fix, ...]] = lambda run: ()
    versions: str = ""
    undecided: bool = False


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, Run):
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    return [
        _finding(rule, message, run, given)
        for rule in RULES
        if holds(rule.versions, run.version) and (message := rule.test(run)) is not None
    ]


def defects(run: Run) -> tuple[Defect, ...]:
    """The rows that apply, that verl itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule in RULES
        if rule.phase == "never" and rule.severity == "warning" and holds(rule.versions, run.version)
        if (message := rule.test(run)) is not None
    )


def _finding(rule: Rule, message: str, run: Run, given: Mapping[str, Where]) -> Finding:
    keys = [key for key in rule.keys if key in given or run.native.get(key) is not None] or list(rule.keys[:1])
    return Finding(
        rule.code,
        rule.severity,
        rule.phase,
        message,
        where=tuple(given.get(key) or Where(key, run.native.get(key)) for key in keys),
        fixes=rule.fixes(run),
        native=rule.native,
        source=rule.source,
        undecided=rule.undecided,
    )


# ---- ways out


REACH = 4097
"""How far from its present value a size is searched: every multiple of up to 4096 devices lies nearer."""
_SIZE_KEYS = {"prompts": PROMPTS, "group": GROUP, "mini": MINI, "micro": MICRO, "world": "devices"}


def _near(run: Run, names: tuple[str, ...], legal: Callable[[Mapping[str, int]], bool]) -> tuple[Fix, ...]:
    """The nearest legal values of each of `names` below and above its own, the others unchanged."""
    present = {
        "prompts": run[PROMPTS],
        "group": run[GROUP],
        "mini": run[MINI],
        "micro": run.micro or 1,
        "world": run.world,
    }
    fixes = []
    for name in names:
        start = max(present[name], 1)
        for direction in (-1, 1):
            for value in range(start + direction, start + direction * REACH, direction):
                if value < 1:
                    break
                if legal({**present, name: value}):
                    fixes.append(_fix({_SIZE_KEYS[name]: value}))
                    break
    return tuple(fixes)


def _fix(change: Mapping[str, Any]) -> Fix:
    text = ", ".join(f"{key} = {value}" for key, value in change.items())
    changes = {key: value for key, value in change.items() if key != "devices"}
    if "devices" in change:
        changes |= _devices(change["devices"])
    return Fix(text.replace("devices =", "trainer.nnodes x n_gpus_per_node ="), changes)


def _devices(world: int) -> dict[str, int]:
    gpus = next(size for size in range(min(world, 8), 0, -1) if world % size == 0)
    return {NODES: world // gpus, GPUS: gpus}


def _set(key: str, value: Any) -> Callable[[Run], tuple[Fix, ...]]:
    return lambda run: (Fix(f"{key}={'null' if value is None else value}", {key: value}),)


def _shared(run: Run) -> int:
    return max(math.prod(run.parallel), 1)


# ---- sizes


def _not_positive(run: Run) -> str | None:
    named = {
        **{key: run[key] for key in (PROMPTS, GROUP, MINI, EPOCHS)},
        "trainer.nnodes x trainer.n_gpus_per_node": run.world,
        **{key: run[key] for key in (*PARALLEL[run.engine], run.context_key) if key is not None},
    }
    if not run[DYNAMIC] and run[MICRO] is not None:
        named[MICRO] = run[MICRO]
    if run[DYNAMIC]:
        named[BUDGET] = run[BUDGET]
    wrong = [f"{key} = {value}" for key, value in named.items() if value < 1]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


def _minimal(run: Run) -> int | None:
    """What validate_config wants the completions of a rollout to be a multiple of."""
    if run[DYNAMIC] or not run.plain:
        return None
    if run.engine == "megatron":
        return run.replicas * run.micro if run.replicas and run.micro else None
    return run.world


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
    shared = _shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        minimal = v["world"] // shared * v["micro"] if run.engine == "megatron" else v["world"]
        whole = v["world"] % shared == 0 and minimal > 0
        return whole and v["prompts"] * v["group"] % minimal == 0

    return _near(run, ("prompts", "group", "world"), legal)


def _replicas(run: Run) -> str | None:
    if not run.plain or run.replicas is not None:
        return None
    sizes = " x ".join(str(size) for size in run.parallel)
    return f"{run.world} devices cannot be shared out to replicas of {sizes} devices (tensor x pipeline x context)"


def _replica_fixes(run: Run) -> tuple[Fix, ...]:
    shared = _shared(run)
    below = run.world // shared * shared
    return tuple(_fix({"devices": size}) for size in (below, below + shared) if size)


def _smaller_than_mini(run: Run) -> str | None:
    if run[PROMPTS] >= run[MINI]:
        return None
    text = f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {MINI} = {run[MINI]} prompts"
    return text if not run[DYNAMIC] else None


def _dynamic_smaller_than_mini(run: Run) -> str | None:
    if run[PROMPTS] >= run[MINI] or not run[DYNAMIC] or not run.plain:
        return None
    what = "pads the rollout to a whole mini-batch" if run.v1 else "fails at the first update"
    return (
        f"{PROMPTS} = {run[PROMPTS]} prompts are fewer than {MINI} = {run[MINI]} prompts, which use_dynamic_bsz leaves "
        f"unchecked: verl {what}"
    )


def _mini_fixes(run: Run) -> tuple[Fix, ...]:
    return (_fix({MINI: run[PROMPTS]}), _fix({PROMPTS: run[MINI]}))


def _step_over_replicas(run: Run) -> str | None:
    if not run.plain or not run.replicas or run.asked_per_step % run.replicas == 0:
        return None
    text = (
        f"{MINI} = {run[MINI]} (prompts) x {GROUP} = {run[GROUP]} is {run.asked_per_step} completions per optimizer "
        f"step, not a multiple of {run.replicas} replicas"
    )
    return text if not run.legacy else None


def _step_floored(run: Run) -> str | None:
    if not run.legacy or not run.plain or not run.replicas or run.asked_per_step % run.replicas == 0:
        return None
    if not run.share:
        return None
    return (
        f"{MINI} = {run[MINI]} (prompts) x {GROUP} = {run[GROUP]} = {run.asked_per_step} completions are floored to "
        f"{run.share} on each of {run.replicas} replicas: an optimizer step has {run.completions_per_step}"
    )


def _nothing_per_replica(run: Run) -> str | None:
    if not run.plain or not run.replicas or run.share:
        return None
    return (
        f"{MINI} = {run[MINI]} (prompts) x {GROUP} = {run[GROUP]} = {run.asked_per_step} completions leave nothing for "
        f"each of {run.replicas} replicas"
    )


def _step_fixes(run: Run) -> tuple[Fix, ...]:
    shared = _shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        if v["world"] % shared or v["mini"] * v["group"] % (v["world"] // shared):
            return False
        return run[DYNAMIC] or run.micro is None or (v["mini"] * v["group"] * shared // v["world"]) % v["micro"] == 0

    return _near(run, ("mini", "group", "world"), legal)


def _micro_fits(run: Run) -> str | None:
    if not run.plain or run.micro is None or run.micro < 1 or not run.share:
        return None
    if run.asked_per_step % (run.replicas or 1) and not run.legacy:
        return None
    if run.share % run.micro == 0:
        return None
    return (
        f"{run.share} completions per replica and optimizer step are no multiple of the micro-batch of {run.micro} "
        f"({MICRO})"
    )


def _micro_fixes(run: Run) -> tuple[Fix, ...]:
    shared = _shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        completions = v["mini"] * v["group"] * shared
        return completions % v["world"] == 0 and completions // v["world"] % v["micro"] == 0

    return _near(run, ("micro", "mini", "group"), legal)


def _remainder(run: Run) -> int:
    if not run.plain or run.completions_per_step < 1:
        return 0
    return run.completions_per_rollout % run.completions_per_step


def _remainder_asserts(run: Run) -> str | None:
    if run.v1 or run.legacy or not _remainder(run) or _smaller_than_mini(run) or _dynamic_smaller_than_mini(run):
        return None
    return (
        f"{PROMPTS} = {run[PROMPTS]} prompts are no multiple of {MINI} = {run[MINI]} prompts: the last optimizer step "
        "of a rollout is not whole"
    )


def _remainder_padded(run: Run) -> str | None:
    if not run.v1 or not run.plain or not run.replicas:
        return None
    multiple = math.lcm(run.replicas, run.asked_per_step)
    padding = -run.completions_per_rollout % multiple
    if not padding:
        return None
    return (
        f"a rollout of {run.completions_per_rollout} completions is padded with {padding} rows to a multiple of lcm("
        f"{run.replicas} replicas, {run.asked_per_step} completions per step) = {multiple}; they weigh nothing, but "
        "count in the mean over sequences, and are mixed into all steps"
    )


def _remainder_short(run: Run) -> str | None:
    if not run.legacy or not _remainder(run) or not run.replicas:
        return None
    return (
        f"{run.completions_per_rollout} completions per rollout in steps of {run.completions_per_step} leave "
        f"{_remainder(run)} for a last, smaller step, whose loss is still divided as for a whole one"
    )


def _whole_steps_fixes(run: Run) -> tuple[Fix, ...]:
    shared = _shared(run)

    def legal(v: Mapping[str, int]) -> bool:
        return v["prompts"] % v["mini"] == 0 and v["mini"] * v["group"] * shared % v["world"] == 0

    return _near(run, ("mini", "prompts"), legal)


# ---- micro-batch keys


def _no_micro(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is not None:
        return None
    return f"neither {MICRO} nor {DYNAMIC} is set: there is no micro-batch"


def _two_micros(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is None or run[GLOBAL_MICRO] is None:
        return None
    return f"{GLOBAL_MICRO} = {run[GLOBAL_MICRO]} and {MICRO} = {run[MICRO]} are both set"


def _global_micro_unread(run: Run) -> str | None:
    if run[DYNAMIC] or run[MICRO] is not None or run[GLOBAL_MICRO] is None or run.legacy:
        return None
    return f"{GLOBAL_MICRO} = {run[GLOBAL_MICRO]} is deprecated, and the engine workers do not read it"


def _global_micro_divides(run: Run) -> str | None:
    size = run[GLOBAL_MICRO]
    if run[DYNAMIC] or size is None or run[MICRO] is not None or size < 1 or not run.plain:
        return None
    if run[MINI] % size:
        return f"{MINI} = {run[MINI]} is no multiple of {GLOBAL_MICRO} = {size}"
    if size * run.parallel[2] < run.world:
        return f"{GLOBAL_MICRO} = {size} x sequence parallel {run.parallel[2]} is below {run.world} devices"
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


def _needs_reference(run: Run) -> bool:
    return bool(run[f"{ACTOR}use_kl_loss"] or run["algorithm.use_kl_in_reward"])


def _log_prob_fixes(role: str) -> Callable[[Run], tuple[Fix, ...]]:
    per_gpu, whole = f"{role}log_prob_micro_batch_size_per_gpu", f"{role}log_prob_micro_batch_size"
    return lambda run: (
        (Fix(f"{whole}=null", {whole: None}),)
        if run[whole] is not None and run[per_gpu] is not None
        else (Fix(f"{per_gpu}={run.micro or 1}", {per_gpu: run.micro or 1}),)
    )


def _two_kinds_of_batches(run: Run) -> str | None:
    other = f"{ROLLOUT}log_prob_use_dynamic_bsz"
    if run.legacy or run[DYNAMIC] == run[other]:
        return None
    return f"{DYNAMIC} = {run[DYNAMIC]} but {other} = {run[other]}"


def _padding_with_ulysses(run: Run) -> str | None:
    key = "actor_rollout_ref.model.use_remove_padding"
    if run.engine != "fsdp" or run.parallel[2] <= 1 or run[key]:
        return None
    return f"{PARALLEL['fsdp'][2]} = {run.parallel[2]} needs {key}"


def _rollout_tensor_parallel(run: Run) -> str | None:
    key = f"{ROLLOUT}tensor_model_parallel_size"
    size = run[key]
    if run.entry == "one_step_off" or run.world < 1 or (size >= 1 and run.world % size == 0):
        return None
    return f"{key} = {size} does not divide {run.world} devices"


def _rollout_tensor_fixes(run: Run) -> tuple[Fix, ...]:
    key = f"{ROLLOUT}tensor_model_parallel_size"
    size = next(size for size in range(min(max(run[key], 1), run.world), 0, -1) if run.world % size == 0)
    return (_fix({key: size}),)


def _no_rollout_name(run: Run) -> str | None:
    if run[f"{ROLLOUT}name"] is not None:
        return None
    return f"{ROLLOUT}name is mandatory (vllm, sglang)"


# ---- names


def _aggregation_known(run: Run) -> str | None:
    name = run[AGGREGATION]
    if name in AGGREGATIONS and (name != "token-sum" or holds(">=0.9.0", run.version)):
        return None
    return f"{AGGREGATION} = {name}: must be one of {', '.join(AGGREGATIONS)}"


def _mode_known(run: Run) -> str | None:
    mode = LOSS_MODES.get(run.surrogate)
    if run.surrogate in ("bypass_mode", "rollout_correction"):
        return None
    if mode is not None and holds(mode.versions, run.version):
        return None
    names = ", ".join(m.name for m in LOSS_MODES.values() if holds(m.versions, run.version))
    return f"{MODE} = {run.surrogate}: verl {run.version} has {names}"


def _mode_inexpressible(run: Run) -> str | None:
    if run.surrogate not in ("bypass_mode", "rollout_correction"):
        return None
    return f"{MODE} = {run.surrogate} has no canonical form; leave it to algorithm.rollout_correction"


def _estimator_known(run: Run) -> str | None:
    name = run[ESTIMATOR]
    if name in INEXPRESSIBLE_ESTIMATORS or (name in ESTIMATORS and holds(ESTIMATORS[name].versions, run.version)):
        return None
    return (
        f"{ESTIMATOR} = {name} is none of verl's own ({', '.join([*ESTIMATORS, *INEXPRESSIBLE_ESTIMATORS])}); one that "
        "is registered by the run's own code is not read"
    )


def _estimator_inexpressible(run: Run) -> str | None:
    reason = INEXPRESSIBLE_ESTIMATORS.get(run[ESTIMATOR])
    return f"{ESTIMATOR} = {run[ESTIMATOR]} has no canonical form: {reason}" if reason else None


def _two_penalties(run: Run) -> str | None:
    if not (run[f"{ACTOR}use_kl_loss"] and run["algorithm.use_kl_in_reward"]):
        return None
    return "the KL penalty sits in the reward and in the loss; the canonical schema has one place for it"


def _asynchronous(run: Run) -> str | None:
    if not run.v1 or run["trainer.v1.trainer_mode"] == "sync":
        return None
    return (
        f"trainer.v1.trainer_mode = {run['trainer.v1.trainer_mode']}: which completions reach a step depends on "
        "timing, and the size of a local update on parameter_sync_step; this is not read"
    )


def _half_engine(run: Run) -> str | None:
    key = "trainer.use_legacy_worker_impl"
    if run[key] != "disable" or not holds("<0.7.1", run.version):
        return None
    return f"{key} = disable: the engine workers of verl {run.version} are not read"


def _dual_clip(run: Run) -> str | None:
    value = run[f"{ACTOR}clip_ratio_c"]
    return f"{ACTOR}clip_ratio_c = {value}: must be above 1" if run.surrogate == "vanilla" and value <= 1 else None


# ---- what nothing reports


def _default_critic(run: Run) -> str | None:
    if run[ESTIMATOR] != "gae" or ESTIMATOR in run.given:
        return None
    return f"{ESTIMATOR} is not given: its default is gae, which trains a critic too"


def _width_constant(run: Run) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or run[f"{ACTOR}loss_scale_factor"] is not None:
        return None
    if run.legacy or LOSS_MODES.get(run.surrogate, LOSS_MODES["vanilla"]).aggregation is not None:
        return None
    return (
        f"{ACTOR}loss_scale_factor is null: the loss is divided by the padded width of each micro-batch, so the "
        "gradient depends on the split (0.5 to 1.7 relative); the constant told here is data.max_response_length"
    )


def _sum_without_mean(run: Run) -> str | None:
    if run[AGGREGATION] != "seq-mean-token-sum-norm" or not run.legacy:
        return None
    return (
        "seq-mean-token-sum-norm sums over the sequences of a micro-batch instead of taking their mean: the gradient "
        "grows with the micro-batch"
    )


def _micro_batch_scope(run: Run) -> str | None:
    if not run.legacy:
        return None
    if run[AGGREGATION] == "token-mean":
        return (
            "token-mean divides by the tokens of each micro-batch on each device, then by the number of micro-batches: "
            "the gradient depends on the micro-batch size, the devices, and which completions meet"
        )
    if run[AGGREGATION] in ("seq-mean-token-mean", "seq-mean-token-sum") and holds(">=0.6.1", run.version):
        return "the mean over sequences leaves fully masked ones out, micro-batch by micro-batch"
    return None


def _geometric_mean(run: Run) -> str | None:
    if run.surrogate != "geo_mean" or run.legacy:
        return None
    return (
        "geo_mean takes a mean over each micro-batch, and the engine sums micro-batches: the gradient is multiplied by "
        "their number"
    )


def _per_micro_statistics(run: Run) -> str | None:
    if run.surrogate not in ("clip_cov", "kl_cov"):
        return None
    return f"{run.surrogate} picks tokens by statistics of each micro-batch: the gradient depends on the split"


def _sapo_aggregation(run: Run) -> str | None:
    mode = LOSS_MODES.get(run.surrogate)
    if mode is None or mode.aggregation is None or AGGREGATION not in run.given:
        return None
    if AGGREGATIONS.get(run[AGGREGATION]) == mode.aggregation:
        return None
    return f"{AGGREGATION} = {run[AGGREGATION]} is ignored: {run.surrogate} always takes a mean over sequences"


def _balance_ignored(run: Run) -> str | None:
    key = "trainer.balance_batch"
    if not run.v1 or key not in run.given or run[key]:
        return None
    return f"{key} = False is ignored: the V1 trainer always balances"


def _groups_bound_ignored(run: Run) -> str | None:
    key = "algorithm.filter_groups.max_num_gen_batches"
    if not run.v1 or key not in run.given or not run[key]:
        return None
    return f"{key} = {run[key]} is ignored by the V1 trainer"


def _generation_batch_ignored(run: Run) -> str | None:
    key = "data.gen_batch_size"
    if not run.v1 or run[key] in (None, 1) or not run["algorithm.filter_groups.enable"]:
        return None
    return f"{key} = {run[key]} is overridden to 1 where groups are filtered"


def _epochs_misaligned(run: Run) -> str | None:
    size = run["data.gen_batch_size"]
    if size is None or size == run[PROMPTS] or run["algorithm.filter_groups.enable"]:
        return None
    if run.v1:
        return (
            f"data.gen_batch_size = {size} is not {PROMPTS} = {run[PROMPTS]}: epochs are counted in rollouts and end "
            "elsewhere than the data does"
        )
    return (
        f"data.gen_batch_size = {size} is not {PROMPTS} = {run[PROMPTS]}: the trainer takes every fetched batch for a "
        f"rollout, of {size} prompts"
    )


def _order_by_workers(run: Run) -> str | None:
    if not run["data.shuffle"] or run[WORKERS] == 0:
        return None
    return (
        f"{WORKERS} = {run[WORKERS]}: above 0 the sampler is drawn twice per epoch, so the order of prompts differs "
        "from that of 0 workers; a throughput setting decides the data order"
    )


def _slow_clock(run: Run) -> str | None:
    if not run.plain or run.completions_per_step < 1 or run.steps_per_rollout <= 1:
        return None
    return (
        f"the learning rate moves once per rollout, that is once in {math.ceil(run.steps_per_rollout)} optimizer "
        "steps; warm-up and schedule count rollouts"
    )


def _arrival_order(run: Run) -> str | None:
    if not run.v1 or not run.plain or run.completions_per_rollout <= run.completions_per_step:
        return None
    return (
        "the V1 trainer takes completions in the order in which they finish: which optimizer step trains a completion "
        "is decided by timing, not by a seed"
    )


def _raw_rewards(run: Run) -> str | None:
    if run[GROUP] != 1 or run[ESTIMATOR] not in ("grpo", "grpo_vectorized"):
        return None
    estimator = f"{ESTIMATOR} = {run[ESTIMATOR]}"
    return f"{GROUP} = 1 with {estimator}: a group of one has mean 0, so the raw reward is the advantage"


def _clip_unused(run: Run) -> str | None:
    key = f"{ACTOR}clip_ratio"
    sides = [f"{key}_{side}" for side in ("low", "high")]
    if key not in run.given or any(side in run.given for side in sides) or run[key] == run[sides[0]] == run[sides[1]]:
        return None
    if any(run[side] is None for side in sides):
        return None
    return f"{key} = {run[key]} has no effect: {sides[0]} = {run[sides[0]]} and {sides[1]} = {run[sides[1]]} count"


def _norm_unused(run: Run) -> str | None:
    used = clip_grad_key(run)
    other = f"{ACTOR}grad_clip" if used.endswith("clip_grad") else f"{ACTOR}optim.clip_grad"
    if other not in run.given or run[other] == run[used]:
        return None
    return f"{other} = {run[other]} has no effect: {used} = {run[used]} bounds the gradient"


def _adaptive_penalty(run: Run) -> str | None:
    if not run["algorithm.use_kl_in_reward"] or run["algorithm.kl_ctrl.type"] == "fixed":
        return None
    return f"algorithm.kl_ctrl.type = {run['algorithm.kl_ctrl.type']}: the KL coefficient changes during the run"


def _rejected_tokens(run: Run) -> str | None:
    if not run.v1 or run["algorithm.rollout_correction.rollout_rs"] is None:
        return None
    return "rejected tokens leave the loss but stay in its denominator (loss_mask)"


def _unseeded(run: Run) -> str | None:
    if not run["data.shuffle"] or run["data.seed"] is not None:
        return None
    return "data.seed is null: the order is that of a new torch.Generator, the same in every run, not a random one"


def _no_rollout(run: Run) -> str | None:
    size = run["data.gen_batch_size"] if run["data.gen_batch_size"] and not run.v1 else run[PROMPTS]
    if run.prompts_in_dataset is None or run.prompts_in_dataset >= size:
        return None
    return f"the dataset's {run.prompts_in_dataset} prompts do not fill one batch of {size} prompts: nothing is trained"


def _over_budget(run: Run) -> str | None:
    longest = run["data.max_prompt_length"] + run["data.max_response_length"]
    held = run[BUDGET] * run.parallel[2]
    if not run[DYNAMIC] or held < 1 or held >= longest:
        return None
    return (
        f"{BUDGET} = {run[BUDGET]} x {run.parallel[2]} (sequence parallel) = {held} tokens is less than the longest "
        f"sequence, data.max_prompt_length {run['data.max_prompt_length']} + data.max_response_length "
        f"{run['data.max_response_length']} = {longest}"
    )


def _budget_fixes(run: Run) -> tuple[Fix, ...]:
    longest = run["data.max_prompt_length"] + run["data.max_response_length"]
    return (_fix({BUDGET: -(-longest // max(run.parallel[2], 1))}),)


_VALIDATE = "verl 0.4.0 to 0.5.0 RayPPOTrainer._validate_config; 0.6.0 to 0.9.1 utils/config.py validate_config"
_ACTOR_CONFIG = "verl 0.9.1 workers/config/actor.py ActorConfig.validate"
_ENGINE = ">=0.7.1"

RULES = (
    Rule(
        "BB-VERL-010",
        "error",
        "config",
        _not_positive,
        (PROMPTS, GROUP, MINI, EPOCHS, MICRO, *DEVICES),
        "ZeroDivisionError, an empty data loader, or an assertion",
        "verl 0.9.1 utils/config.py",
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
    Rule(
        "BB-VERL-012",
        "error",
        "config",
        _smaller_than_mini,
        (PROMPTS, MINI),
        "ValueError: train_batch_size (...) must be >= actor.ppo_mini_batch_size (...); before 0.6.0 AssertionError: "
        "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
        f"{_VALIDATE}; {_ACTOR_CONFIG}",
        _mini_fixes,
    ),
    Rule(
        "BB-VERL-013",
        "error",
        "config",
        _no_micro,
        (MICRO, DYNAMIC),
        "ValueError: [actor_rollout_ref.actor] Please set at least one of ...",
        "verl 0.9.1 ActorConfig._check_mutually_exclusive",
        lambda run: (*_set(MICRO, 1)(run), *_set(DYNAMIC, True)(run)),
    ),
    Rule(
        "BB-VERL-014",
        "error",
        "config",
        _two_micros,
        (GLOBAL_MICRO, MICRO),
        "ValueError: [actor_rollout_ref.actor] You have set both ...",
        "verl 0.9.1 ActorConfig._check_mutually_exclusive",
        _set(GLOBAL_MICRO, None),
    ),
    Rule(
        "BB-VERL-015",
        "error",
        "config",
        _global_micro_divides,
        (MINI, GLOBAL_MICRO, *DEVICES),
        "ValueError: ppo_mini_batch_size (...) must be divisible by ppo_micro_batch_size (...); or: must be >= n_gpus",
        f"{_VALIDATE}; {_ACTOR_CONFIG}",
        lambda run: (Fix(f"{MICRO} = 1 instead", {MICRO: 1, GLOBAL_MICRO: None}),),
    ),
    Rule(
        "BB-VERL-016",
        "error",
        "config",
        _log_prob(ROLLOUT, lambda run: True),
        (f"{ROLLOUT}log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}log_prob_micro_batch_size"),
        "ValueError: [actor_rollout_ref.rollout] Please set at least one of ...; or: You have set both ...",
        _VALIDATE,
        _log_prob_fixes(ROLLOUT),
    ),
    Rule(
        "BB-VERL-018",
        "error",
        "config",
        _log_prob(REFERENCE, _needs_reference),
        (f"{REFERENCE}log_prob_micro_batch_size_per_gpu", f"{REFERENCE}log_prob_micro_batch_size"),
        "ValueError: [actor_rollout_ref.ref] Please set at least one of ...; or: You have set both ...",
        _VALIDATE,
        _log_prob_fixes(REFERENCE),
    ),
    Rule(
        "BB-VERL-017",
        "error",
        "worker_start",
        _replicas,
        (*DEVICES, *(key for keys in PARALLEL.values() for key in keys if key)),
        "AssertionError: n_gpus (...) must be divisible by model_parallel_size (...); FSDP: the device mesh cannot be "
        "built",
        "verl 0.9.1 utils/config.py:109, workers/engine/fsdp/transformer_impl.py",
        _replica_fixes,
    ),
    Rule(
        "BB-VERL-019",
        "error",
        "worker_start",
        _rollout_tensor_parallel,
        (f"{ROLLOUT}tensor_model_parallel_size", *DEVICES),
        "AssertionError: rollout world_size: ... is not divisible by infer_world_size: ...",
        "verl 0.9.1 engine_workers.py:659; 0.4.0 fsdp_workers._build_rollout",
        _rollout_tensor_fixes,
    ),
    Rule(
        "BB-VERL-020",
        "error",
        "optimizer_step",
        _step_over_replicas,
        (MINI, GROUP, *DEVICES),
        "AssertionError at the first update: mini_batch_size is not divisible by the data-parallel size",
        "verl 0.9.1 engine_workers.py:267",
        _step_fixes,
    ),
    Rule(
        "BB-VERL-020",
        "error",
        "worker_start",
        _nothing_per_replica,
        (MINI, GROUP, *DEVICES),
        "AssertionError: ppo_mini_batch_size ... should be larger than 0 after normalization",
        "verl 0.7.1 fsdp_workers.py:251",
        _step_fixes,
        "<0.8.0",
    ),
    Rule(
        "BB-VERL-041",
        "warning",
        "never",
        _step_floored,
        (MINI, GROUP, *DEVICES),
        "the mini-batch is divided by the replicas and floored",
        "verl 0.7.1 fsdp_workers.py:249",
        _step_fixes,
        "<0.8.0",
    ),
    Rule(
        "BB-VERL-021",
        "error",
        "optimizer_step",
        _micro_fits,
        (MICRO, MINI, GROUP, *DEVICES),
        "AssertionError: data size must be divisible by micro_batch_size_per_gpu; legacy workers, at their start: "
        "normalized ppo_mini_batch_size ... should be divisible by ppo_micro_batch_size_per_gpu",
        "verl 0.9.1 workers/engine/utils.py:124; 0.7.1 fsdp_workers.py:263",
        _micro_fixes,
    ),
    Rule(
        "BB-VERL-022",
        "error",
        "optimizer_step",
        _remainder_asserts,
        (PROMPTS, MINI),
        "AssertionError in tensordict_utils.make_iterator at the first update",
        "verl 0.9.1 utils/tensordict_utils.py:559",
        _whole_steps_fixes,
        _ENGINE,
    ),
    Rule(
        "BB-VERL-023",
        "warning",
        "never",
        _remainder_padded,
        (PROMPTS, GROUP, MINI, *DEVICES),
        "padding_utils.upsample_batch_to_divisible_size adds rows of 128 tokens",
        "verl 0.9.1 trainer/ppo/v1 padding_utils.py:137",
        _whole_steps_fixes,
    ),
    Rule(
        "BB-VERL-023",
        "warning",
        "never",
        _remainder_short,
        (PROMPTS, GROUP, MINI),
        "DataProto.split makes a smaller last mini-batch; the loss is scaled by the accumulation of a whole one",
        "verl 0.7.1 dp_actor.py:548",
        _whole_steps_fixes,
        "<0.8.0",
    ),
    Rule(
        "BB-VERL-024",
        "error",
        "config",
        _aggregation_known,
        (AGGREGATION,),
        "ValueError: Invalid loss_agg_mode: ...",
        "verl 0.4.0 to 0.9.1 core_algos.agg_loss",
        _set(AGGREGATION, "token-mean"),
    ),
    Rule(
        "BB-VERL-025",
        "error",
        "optimizer_step",
        _mode_known,
        (MODE,),
        "ValueError: Unsupported loss mode: ...",
        "verl 0.9.1 core_algos.get_policy_loss_fn",
        _set(MODE, "vanilla"),
    ),
    Rule(
        "BB-VERL-025",
        "error",
        "never",
        _mode_inexpressible,
        (MODE,),
        "the loss of rollout_correction",
        "verl 0.9.1 core_algos.compute_policy_loss_bypass_mode",
        undecided=True,
    ),
    Rule(
        "BB-VERL-026",
        "error",
        "first_rollout",
        _estimator_known,
        (ESTIMATOR,),
        "ValueError: Unknown advantage estimator simply: ...",
        "verl 0.9.1 core_algos.get_adv_estimator_fn",
        _set(ESTIMATOR, "grpo"),
        undecided=True,
    ),
    Rule(
        "BB-VERL-026",
        "error",
        "never",
        _estimator_inexpressible,
        (ESTIMATOR,),
        "it runs",
        "verl 0.9.1 core_algos",
        undecided=True,
    ),
    Rule(
        "BB-VERL-027",
        "warning",
        "never",
        _width_constant,
        (f"{ACTOR}loss_scale_factor", AGGREGATION),
        "agg_loss divides by loss_mask.shape[-1]",
        "verl 0.9.1 core_algos.py:1190 (measured: exp_engine)",
        lambda run: _set(f"{ACTOR}loss_scale_factor", run["data.max_response_length"])(run),
    ),
    Rule(
        "BB-VERL-027",
        "warning",
        "never",
        _sum_without_mean,
        (AGGREGATION,),
        "agg_loss sums the sequences and divides by the response's width only",
        "verl 0.4.1 to 0.6.1 core_algos.agg_loss",
        _set(AGGREGATION, "seq-mean-token-sum"),
        "<0.7.0",
    ),
    Rule(
        "BB-VERL-028",
        "warning",
        "never",
        _geometric_mean,
        (MODE, MICRO, DYNAMIC),
        "torch.mean per micro-batch, summed",
        "verl 0.9.1 core_algos.py:2000 (measured: exp_engine_lm)",
    ),
    Rule(
        "BB-VERL-029",
        "warning",
        "never",
        _per_micro_statistics,
        (MODE,),
        "covariances and top-k are taken per micro-batch",
        "verl 0.9.1 core_algos (measured: exp_engine_lm)",
    ),
    Rule(
        "BB-VERL-030",
        "warning",
        "never",
        _sapo_aggregation,
        (AGGREGATION, MODE),
        "the setting is not read",
        "verl 0.9.1 core_algos.py:1687, :2000",
    ),
    Rule(
        "BB-VERL-031",
        "warning",
        "never",
        _balance_ignored,
        ("trainer.balance_batch",),
        "only RayPPOTrainer reads it",
        "verl 0.9.1 ray_trainer.py:1549, trainer/ppo/v1/trainer_base.py:1608",
        _set("trainer.use_v1", False),
    ),
    Rule(
        "BB-VERL-032",
        "note",
        "never",
        _order_by_workers,
        (WORKERS, "data.seed"),
        "StatefulDataLoader with workers draws the sampler twice per epoch",
        "torchdata StatefulDataLoader (measured: exp_order2)",
        _set(WORKERS, 0),
    ),
    Rule(
        "BB-VERL-033",
        "note",
        "never",
        _slow_clock,
        (PROMPTS, MINI, EPOCHS),
        "update_lr_scheduler is true for the last mini-batch only",
        "verl 0.9.1 engine_workers.py; 0.7.1 fsdp_workers.update_actor",
    ),
    Rule(
        "BB-VERL-034",
        "warning",
        "never",
        _default_critic,
        (ESTIMATOR,),
        "a critic is built and trained",
        "verl 0.4.0 to 0.9.1 ppo_trainer.yaml",
        _set(ESTIMATOR, "grpo"),
    ),
    Rule(
        "BB-VERL-035",
        "error",
        "worker_start",
        _no_rollout_name,
        (f"{ROLLOUT}name",),
        "MissingMandatoryValue: Missing mandatory value: actor_rollout_ref.rollout.name",
        "verl 0.6.0 to 0.9.1 rollout.yaml",
        _set(f"{ROLLOUT}name", "vllm"),
    ),
    Rule(
        "BB-VERL-036",
        "note",
        "never",
        _arrival_order,
        ("trainer.use_v1", PROMPTS, MINI),
        "rows are listed in the order of their arrival in TransferQueue",
        "verl 0.9.1 trainer/ppo/v1/replay_buffer.py _materialize_batch",
    ),
    Rule(
        "BB-VERL-037",
        "warning",
        "never",
        _raw_rewards,
        (GROUP, ESTIMATOR),
        "mean 0 and deviation 1 are taken for a single completion",
        "verl 0.9.1 core_algos.py:268",
        _set(GROUP, 8),
    ),
    Rule(
        "BB-VERL-038",
        "warning",
        "never",
        _clip_unused,
        (f"{ACTOR}clip_ratio",),
        "clip_ratio is read only where clip_ratio_low and clip_ratio_high are null",
        "verl 0.4.0 dp_actor.py:379; 0.9.1 core_algos.py:1321",
        lambda run: (
            _fix(
                {
                    f"{ACTOR}clip_ratio_low": run[f"{ACTOR}clip_ratio"],
                    f"{ACTOR}clip_ratio_high": run[f"{ACTOR}clip_ratio"],
                }
            ),
        ),
    ),
    Rule(
        "BB-VERL-039",
        "warning",
        "never",
        _groups_bound_ignored,
        ("algorithm.filter_groups.max_num_gen_batches",),
        "a warning is logged",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:186",
    ),
    Rule(
        "BB-VERL-040",
        "warning",
        "never",
        _generation_batch_ignored,
        ("data.gen_batch_size", "algorithm.filter_groups.enable"),
        "gen_batch_size is overridden to 1 with a warning",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:731",
        _set("data.gen_batch_size", None),
    ),
    Rule(
        "BB-VERL-040",
        "warning",
        "never",
        _epochs_misaligned,
        ("data.gen_batch_size", PROMPTS),
        "steps per epoch are len(dataset) // train_batch_size in V1, the data loader's length in V0",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py; ray_trainer.py:407",
        _set("data.gen_batch_size", None),
    ),
    Rule(
        "BB-VERL-042",
        "warning",
        "never",
        _micro_batch_scope,
        (AGGREGATION, MICRO, DYNAMIC),
        "a micro-batch's loss is divided by the number of micro-batches or scaled by its rows; ranks are averaged",
        "verl 0.6.1 dp_actor.py:434; emulated in exp_agg",
        versions="<0.8.0",
    ),
    Rule(
        "BB-VERL-043",
        "warning",
        "never",
        _norm_unused,
        (f"{ACTOR}grad_clip", f"{ACTOR}optim.clip_grad"),
        "the setting is not read",
        "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:806; 0.7.1 dp_actor.py:396",
    ),
    Rule(
        "BB-VERL-044",
        "warning",
        "never",
        _adaptive_penalty,
        ("algorithm.kl_ctrl.type",),
        "AdaptiveKLController follows target_kl",
        "verl 0.9.1 core_algos.AdaptiveKLController",
        _set("algorithm.kl_ctrl.type", "fixed"),
    ),
    Rule(
        "BB-VERL-045",
        "warning",
        "never",
        _rejected_tokens,
        ("algorithm.rollout_correction.rollout_rs",),
        "rejection writes response_mask; batch_num_tokens sums loss_mask",
        "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:730",
    ),
    Rule(
        "BB-VERL-046",
        "note",
        "never",
        _unseeded,
        ("data.seed", "data.shuffle"),
        "torch.Generator() has a fixed default seed",
        "verl 0.6.1 to 0.9.1 create_rl_sampler (measured: exp_order)",
        _set("data.seed", 42),
    ),
    Rule(
        "BB-VERL-047",
        "error",
        "never",
        _two_penalties,
        (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward"),
        "NOTICE: You have both enabled in-reward kl and kl loss.",
        _VALIDATE,
        lambda run: (*_set("algorithm.use_kl_in_reward", False)(run), *_set(f"{ACTOR}use_kl_loss", False)(run)),
        undecided=True,
    ),
    Rule(
        "BB-VERL-048",
        "error",
        "worker_start",
        _two_kinds_of_batches,
        (DYNAMIC, f"{ROLLOUT}log_prob_use_dynamic_bsz"),
        "AssertionError: actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz",
        "verl 0.9.1 engine_workers.py:616",
        lambda run: _set(f"{ROLLOUT}log_prob_use_dynamic_bsz", run[DYNAMIC])(run),
        _ENGINE,
    ),
    Rule(
        "BB-VERL-049",
        "error",
        "construction",
        _no_rollout,
        (PROMPTS, "data.gen_batch_size"),
        "AssertionError: Train dataloader is empty!",
        "verl 0.9.1 ray_trainer.py:427",
        lambda run: (_fix({PROMPTS: run.prompts_in_dataset}),) if run.prompts_in_dataset else (),
    ),
    Rule(
        "BB-VERL-050",
        "error",
        "config",
        _global_micro_unread,
        (GLOBAL_MICRO, MICRO),
        "AssertionError: ppo_micro_batch_size_per_gpu is not None",
        "verl 0.9.1 engine_workers.py:637",
        lambda run: (Fix(f"{MICRO} = 1 instead", {MICRO: 1, GLOBAL_MICRO: None}),),
        _ENGINE,
    ),
    Rule(
        "BB-VERL-051",
        "error",
        "config",
        _padding_with_ulysses,
        (f"{ACTOR}ulysses_sequence_parallel_size", "actor_rollout_ref.model.use_remove_padding"),
        "ValueError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`.",
        "verl 0.9.1 workers/config/actor.py:331",
        _set("actor_rollout_ref.model.use_remove_padding", True),
    ),
    Rule(
        "BB-VERL-052",
        "error",
        "never",
        _asynchronous,
        ("trainer.v1.trainer_mode",),
        "it runs",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:129",
        _set("trainer.v1.trainer_mode", "sync"),
        undecided=True,
    ),
    Rule(
        "BB-VERL-053",
        "error",
        "never",
        _half_engine,
        ("trainer.use_legacy_worker_impl",),
        "it runs",
        "verl 0.5.0 to 0.7.0 main_ppo",
        _set("trainer.use_legacy_worker_impl", "auto"),
        undecided=True,
    ),
    Rule(
        "BB-VERL-054",
        "error",
        "optimizer_step",
        _dual_clip,
        (f"{ACTOR}clip_ratio_c",),
        "AssertionError: The lower bound of the clip_ratio_c for dual-clip PPO should be greater than 1.0",
        "verl 0.9.1 core_algos.py:1331",
        _set(f"{ACTOR}clip_ratio_c", 3.0),
    ),
    Rule(
        "BB-VERL-055",
        "error",
        "optimizer_step",
        lambda run: None if run.v1 else _dynamic_smaller_than_mini(run),
        (PROMPTS, MINI, DYNAMIC),
        "AssertionError in tensordict_utils.make_iterator at the first update",
        "verl 0.9.1 utils/tensordict_utils.py:559",
        _mini_fixes,
        _ENGINE,
    ),
    Rule(
        "BB-VERL-056",
        "error",
        "optimizer_step",
        lambda run: _over_budget(run) if run.legacy else None,
        (BUDGET, "data.max_prompt_length", "data.max_response_length"),
        "AssertionError: max_token_len must be greater than the sequence length (batches have the full width)",
        "verl 0.7.1 utils/seqlen_balancing.py rearrange_micro_batches",
        _budget_fixes,
    ),
    Rule(
        "BB-VERL-056",
        "warning",
        "optimizer_step",
        lambda run: None if run.legacy else _over_budget(run),
        (BUDGET, "data.max_prompt_length", "data.max_response_length"),
        "AssertionError: max_token_len must be greater than the sequence length, once a sequence is that long",
        "verl 0.9.1 utils/seqlen_balancing.py rearrange_micro_batches",
        _budget_fixes,
    ),
)
"""Codes are stable; a number is never used again. 001 to 011 belong to reading: see `config` and `given`."""

"""TRL's rules and known defects, one row each: what must hold, when TRL notices, in which versions, and who says so.

`GRPOConfig`'s own rules come first, in the order in which its post-init raises them, so that the first finding with
phase "config" is the exception that a user would see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Fix, Phase, Severity, Where
from batchbridge.solve import LARGEST, Variable, nearest, neighbours
from batchbridge_trl.epochs import Epoch, epoch
from batchbridge_trl.meaning import RATIO_LEVELS, UNCARRIED, loss_types, records_old_logprobs, scales
from batchbridge_trl.settings import TRL_GROUPS, holds, settings_of
from batchbridge_trl.sizes import FIELDS, Rollout, Sizes, accelerator_config, gradient_accumulation_kwargs, sizes_of
from batchbridge_trl.world import KEY as WORLD

MICRO, ACCUMULATION = FIELDS["micro"], FIELDS["accumulation"]
GENERATIONS, PASSES = FIELDS["generations"], FIELDS["iterations"]
BATCH, STEPS = FIELDS["generation_batch"], FIELDS["steps_per_generation"]
EVAL_MICRO, EVAL_GENERATIONS = "per_device_eval_batch_size", "num_generations_eval"


@dataclass(frozen=True)
class Facts:
    """What the rules look at. `rollout` is None where the sizes give none; `prompts`: of the dataset, None: unknown."""

    native: Mapping[str, Any]
    sizes: Sizes
    rollout: Rollout | None
    prompts: int | None
    version: str
    from_object: bool = False

    @property
    def generation_batch(self) -> int:
        """Completions per rollout as GRPOConfig computes them, whatever their sign."""
        s = self.sizes
        if s.generation_batch is not None:
            return s.generation_batch
        steps = s.accumulation if s.steps_per_generation is None else s.steps_per_generation
        return s.micro * s.world * steps

    @property
    def micro_steps_per_rollout(self) -> int:
        """Micro-batches that one rollout feeds, all passes; 0 without a rollout."""
        return 0 if self.rollout is None else self.rollout.steps_per_generation * self.sizes.iterations

    @property
    def loss(self) -> Any:
        """The row of the loss type, or None."""
        return loss_types(self.version).get(self.native["loss_type"])

    @property
    def liger(self) -> bool:
        """Whether Liger's kernel computes the loss: its own switch before 0.25, which wins up to 0.27."""
        own = self.native.get("use_liger_loss")
        return bool(own) if own is not None else bool(self.native["use_liger_kernel"])

    @property
    def groups_per_micro_step(self) -> bool:
        """Whether each micro-batch, over all devices, must hold whole groups: before 0.17."""
        return holds("<0.17", self.version)


@dataclass(frozen=True)
class Rule:
    """One row. `test` gives the message where the rule is broken, else None. `keys`: the settings to point at; those
    that were not given are shown with their defaults. `native`: what TRL does. `fixes`: ways out."""

    code: str
    severity: Severity
    phase: Phase
    test: Callable[[Facts], str | None]
    keys: tuple[str, ...]
    native: str | Callable[[Facts], str]
    source: str
    fixes: Callable[[Facts], tuple[Fix, ...]] = field(default=lambda facts: ())
    versions: str = ""


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its version or sizes are unknown."""
    facts = facts_of(reading)
    if facts is None:
        return []
    return [
        _finding(rule, message, facts, reading)
        for rule in RULES
        if holds(rule.versions, facts.version) and (message := rule.test(facts)) is not None
    ]


def defects(facts: Facts) -> tuple[Defect, ...]:
    """The rows among `RULES` that apply, that TRL itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule in RULES
        if rule.phase == "never" and rule.severity != "note" and holds(rule.versions, facts.version)
        if (message := rule.test(facts)) is not None
    )


def facts_of(reading: Reading) -> Facts | None:
    """The facts of a reading; None while they are unknown, or a default stands where a value could not be read."""
    sizes = sizes_of(reading.native)
    if reading.framework_version is None or sizes is None or not getattr(reading, "decided", True):
        return None
    return Facts(
        reading.native,
        sizes,
        sizes.resolve(),
        reading.dataset_size,
        reading.framework_version,
        getattr(reading, "from_object", False),
    )


def _finding(rule: Rule, message: str, facts: Facts, reading: Reading) -> Finding:
    given: Mapping[str, Where] = getattr(reading, "given", {})
    rows = settings_of(TRL_GROUPS, facts.version)
    known = [key for key in rule.keys if key not in rows or not rows[key].fixed]
    keys = [key for key in known if key in given or facts.native.get(key) is not None]
    return Finding(
        rule.code,
        rule.severity,
        rule.phase,
        message,
        where=tuple(given.get(key) or Where(key, facts.native.get(key)) for key in keys),
        fixes=rule.fixes(facts),
        native=rule.native if isinstance(rule.native, str) else rule.native(facts),
        source=rule.source,
    )


# ---- ways out


def size_fixes(facts: Facts) -> tuple[Fix, ...]:
    """The nearest legal sizes, one setting at a time where that suffices."""
    sizes = facts.sizes
    if sizes.generation_batch is not None and sizes.steps_per_generation is not None:
        return tuple(Fix(f"leave out {key}", {key: None}) for key in (STEPS, BATCH))
    if sizes.generation_batch is not None:
        cut = "generation_batch"
    else:
        cut = "accumulation" if sizes.steps_per_generation is None else "steps_per_generation"
    minimum = {name: 2 if name == "generations" else 1 for name in ("world", "micro", cut, "generations")}
    # Sizes below their minimum must change anyway; what is sought starts where they are mended.
    start = {name: max(getattr(sizes, name), low) for name, low in minimum.items()}
    forced = {name: value for name, value in start.items() if value != getattr(sizes, name)}
    prompts = facts.prompts if not holds("<0.16", facts.version) else None  # 0.15 trains any number of prompts
    shared = ("world", "micro") if facts.groups_per_micro_step else ("world", "micro", cut)
    mended = _legal(start, cut, shared)
    changes: list[dict[str, int]] = [{}] if mended and forced and _fits(start, cut, prompts) else []
    if not mended or prompts is None or prompts > 0:  # no size fits a dataset without prompts
        changes = changes or _neighbours(start, minimum, cut, shared, prompts)
    if not mended:
        changes = changes or _neighbours(start, minimum, cut, shared)
    return tuple(_fix({FIELDS[name]: value for name, value in {**forced, **change}.items()}) for change in changes)


def _completions(sizes: Mapping[str, int], cut: str) -> int:
    return sizes[cut] if cut == "generation_batch" else sizes["world"] * sizes["micro"] * sizes[cut]


def _legal(sizes: Mapping[str, int], cut: str, shared: tuple[str, ...]) -> bool:
    completions = _completions(sizes, cut)
    whole = completions if cut == "generation_batch" else math.prod(sizes[name] for name in shared)
    return whole % sizes["generations"] == 0 and completions % (sizes["world"] * sizes["micro"]) == 0


def _fits(sizes: Mapping[str, int], cut: str, prompts: int | None) -> bool:
    return not prompts or _completions(sizes, cut) // sizes["generations"] <= prompts


def _neighbours(
    start: Mapping[str, int],
    minimum: Mapping[str, int],
    cut: str,
    shared: tuple[str, ...],
    prompts: int | None = None,
) -> list[dict[str, int]]:
    """The nearest legal value below and above each size, the others unchanged; of rollouts of at most `prompts`.

    shared: the sizes whose product holds whole groups, where no rollout size is given. One group of all completions,
    or a rollout of whole groups and micro-batches, is legal: one change always suffices.
    """
    group, per_micro_step = start["generations"], start["world"] * start["micro"]
    completions = _completions(start, cut)
    most = prompts * group if prompts else completions * LARGEST  # completions per rollout
    variables = []
    for name, value in start.items():
        low, high = minimum[name], min(value + max(value, 64), LARGEST)
        if name == "generations":
            factors = (start[cut],) if cut == "generation_batch" else tuple(start[other] for other in shared)
            low = max(low, -(-completions // prompts)) if prompts else low
            variables.append(Variable(name, value, low, max(high, completions), divides=factors))
        elif cut != "generation_batch":
            high = min(high, most // (completions // value))
            others = math.prod(start[other] for other in shared if other != name)
            step = group // math.gcd(group, others) if name in shared else 1
            variables.append(Variable(name, value, low, high, multiple_of=step))
        elif name == cut:
            whole = math.lcm(per_micro_step, group)
            high = min(max(high, value + whole), most, LARGEST)
            variables.append(Variable(name, value, low, high, multiple_of=whole))
        else:
            variables.append(Variable(name, value, low, high, divides=completions))
    return neighbours(variables, lambda sizes: _legal(sizes, cut, shared) and _fits(sizes, cut, prompts))


def _evaluation_fixes(facts: Facts) -> tuple[Fix, ...]:
    world = max(facts.sizes.world, 1)
    micro, group = max(facts.native[EVAL_MICRO], 1), max(_evaluation_generations(facts), 1)
    whole_groups = nearest(micro, multiple_of=group // math.gcd(group, world), high=micro + max(micro, 64))
    groups = nearest(group, divides=(micro, world), high=group + max(group, 64))
    changes = [*({EVAL_MICRO: size} for size in whole_groups), *({EVAL_GENERATIONS: size} for size in groups)]
    return (*map(_fix, changes), Fix('eval_strategy = "no"', {"eval_strategy": "no"}))


def _fix(change: Mapping[str, int]) -> Fix:
    return Fix(", ".join(f"{key} = {value}" for key, value in change.items()), dict(change))


def _set(key: str, value: Any) -> Callable[[Facts], tuple[Fix, ...]]:
    shown = f'"{value}"' if isinstance(value, str) else value
    return lambda facts: (Fix(f"{key} = {shown}" if value is not None else f"leave out {key}", {key: value}),)


def _window_fixes(facts: Facts) -> tuple[Fix, ...]:
    """Rollout and optimizer step of one size."""
    changes: dict[str, Any] = {STEPS: facts.sizes.window, BATCH: None}
    return (Fix(f"{STEPS} = {facts.sizes.window}, as {ACCUMULATION}", changes),)


# ---- GRPOConfig's own rules, in its order


def _both_precisions(facts: Facts) -> str | None:
    return "fp16 and bf16 are both on" if facts.native["fp16"] and facts.native["bf16"] else None


def _negative_warmup(facts: Facts) -> str | None:
    warmup = facts.native["warmup_steps"]
    return f"warmup_steps = {warmup}: must be at least 0" if warmup < 0 else None


def _zero_logging(facts: Facts) -> str | None:
    steps = facts.native["logging_strategy"] in ("steps", None)
    return "logging_steps = 0 with logging_strategy steps" if steps and facts.native["logging_steps"] == 0 else None


def _prefetch_without_workers(facts: Facts) -> str | None:
    workers, factor = facts.native["dataloader_num_workers"], facts.native["dataloader_prefetch_factor"]
    return (
        "dataloader_prefetch_factor needs dataloader_num_workers above 0"
        if workers == 0 and factor is not None
        else None
    )


def _sequence_parallel(facts: Facts) -> str | None:
    config = facts.native["parallelism_config"]
    if not isinstance(config, Mapping):
        return None
    sizes = {key: config.get(key) for key in ("cp_size", "sp_size")}
    over = [f"{key} = {value}" for key, value in sizes.items() if isinstance(value, int) and value > 1]
    return f"parallelism_config: {' and '.join(over)}: GRPO cannot share one sequence among devices" if over else None


def _upload_without_log(facts: Facts) -> str | None:
    repository, logged = facts.native["log_completions_hub_repo"], facts.native["log_completions"]
    return "log_completions_hub_repo needs log_completions" if repository is not None and not logged else None


def _auto_find(facts: Facts) -> str | None:
    return "auto_find_batch_size shrinks batches, which breaks groups" if facts.native["auto_find_batch_size"] else None


def _zero_micro_step(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or s.micro * s.world != 0:
        return None
    return f"{MICRO} x {WORLD} = 0 while {BATCH} is given"


def _zero_micro_batch(facts: Facts) -> str | None:
    return f"{MICRO} x {WORLD} = 0" if facts.sizes.micro * facts.sizes.world == 0 and not _exclusive(facts) else None


def _rollout_of_whole_micro_batches(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or not s.micro:
        return None
    if s.generation_batch % s.micro == 0:
        return None
    return f"{BATCH} = {s.generation_batch} (completions per rollout) is no multiple of {MICRO} {s.micro}"


def _zero_generations(facts: Facts) -> str | None:
    s = facts.sizes
    return f"{GENERATIONS} = 0 (completions per prompt)" if s.generations == 0 and not _exclusive(facts) else None


def _rollout_of_whole_micro_steps(facts: Facts) -> str | None:
    s = facts.sizes
    per_micro_step = s.micro * s.world
    if s.generation_batch is None or s.steps_per_generation is not None or not per_micro_step:
        return None
    if s.generation_batch % per_micro_step == 0:
        return None
    return (
        f"{BATCH} = {s.generation_batch} (completions per rollout) is no multiple of {MICRO} {s.micro} x {WORLD} "
        f"{s.world} = {per_micro_step}"
    )


def _exclusive(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is None:
        return None
    return (
        f"{BATCH} = {s.generation_batch} and {STEPS} = {s.steps_per_generation} are both given; one follows from "
        "the other"
    )


def _evaluates(facts: Facts) -> bool:
    # transformers turns do_eval on by itself when there is a strategy.
    return bool(facts.native["eval_strategy"] != "no")


def _evaluation_generations(facts: Facts) -> int:
    # 0.26.0 has the setting, and its check does not look at it.
    own = None if holds("==0.26.0", facts.version) else facts.native[EVAL_GENERATIONS]
    return own or facts.sizes.generations


def _whole_evaluation_groups(facts: Facts) -> str | None:
    if not _evaluates(facts) or (generations := _evaluation_generations(facts)) == 0:
        return None
    completions = facts.native[EVAL_MICRO] * facts.sizes.world
    if completions % generations == 0:
        return None
    return _broken_evaluation(facts, completions, generations)


def _evaluation_groups_among_divisors(facts: Facts) -> str | None:
    if not _evaluates(facts):
        return None
    completions = facts.native[EVAL_MICRO] * facts.sizes.world
    if _among_divisors(facts.sizes.generations, completions):
        return None
    return _broken_evaluation(facts, completions, facts.sizes.generations)


def _among_divisors(generations: int, completions: int) -> bool:
    """Whether `generations` is among the divisors of `completions` from 2 on, as the versions before 0.20 list them."""
    return 2 <= generations <= completions and completions % generations == 0


def _broken_evaluation(facts: Facts, completions: int, generations: int) -> str:
    return (
        f"evaluation: {EVAL_MICRO} {facts.native[EVAL_MICRO]} x {WORLD} {facts.sizes.world} = {completions} "
        "completions "
        f"are no multiple of {generations} completions per prompt"
    )


def _whole_groups(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is not None and s.steps_per_generation is not None:
        return None
    if s.generations == 0 or facts.generation_batch % s.generations == 0:
        return None
    return _broken_groups(facts)


def _broken_groups(facts: Facts) -> str:
    s = facts.sizes
    if s.generation_batch is not None:
        product = f"{BATCH} = {s.generation_batch}"
    else:
        steps = s.accumulation if s.steps_per_generation is None else s.steps_per_generation
        named = ACCUMULATION if s.steps_per_generation is None else STEPS
        product = f"{MICRO} {s.micro} x {WORLD} {s.world} x {named} {steps} = {facts.generation_batch}"
    return (
        f"{product} (completions per rollout) is no multiple of {GENERATIONS} = {s.generations} (completions per "
        "prompt)"
    )


def _whole_groups_per_micro_step(facts: Facts) -> str | None:
    s = facts.sizes
    if _among_divisors(s.generations, s.micro * s.world):
        return None
    return (
        f"{MICRO} {s.micro} x {WORLD} {s.world} = {s.micro * s.world} (completions per micro-batch, over all devices) "
        f"is no multiple of {GENERATIONS} = {s.generations} (completions per prompt, at least 2); accumulation does "
        "not count before trl 0.17"
    )


def _global_train_batch(facts: Facts) -> str:
    s = facts.sizes
    return (
        f"ValueError: The global train batch size ({s.world} x {s.micro}) must be evenly divisible by the number of "
        f"generations per prompt ({s.generations}), from GRPOTrainer.__init__, after the model has been loaded"
    )


def _groups_among_divisors(facts: Facts) -> str | None:
    if facts.sizes.generations < 2 or _exclusive(facts):
        return None
    s, completions = facts.sizes, facts.generation_batch
    if s.generation_batch is not None and s.micro * s.world:
        completions = s.generation_batch
    return None if _among_divisors(s.generations, completions) else _broken_groups(facts)


def _at_least_two(facts: Facts) -> str | None:
    count = facts.sizes.generations
    zero_divides = count == 0 and holds(">=0.20", facts.version)
    return f"{GENERATIONS} = {count}: a group needs at least 2 completions" if count < 2 and not zero_divides else None


def _correction_bounds(facts: Facts) -> str | None:
    native = facts.native
    cap = native["vllm_importance_sampling_cap"]
    low, high = native["vllm_importance_sampling_clip_min"], native["vllm_importance_sampling_clip_max"]
    high = high if cap is None else cap
    if low is None or high is None or low < high:
        return None
    return f"vllm_importance_sampling_clip_min = {low} must be below the upper bound {high}"


def _truncation_without_bounds(facts: Facts) -> str | None:
    native, mode = facts.native, facts.native["vllm_importance_sampling_mode"]
    bounds = [native[f"vllm_importance_sampling_{name}"] for name in ("cap", "clip_min", "clip_max")]
    if not native["vllm_importance_sampling_correction"] or mode not in ("token_truncate", "sequence_truncate"):
        return None
    return None if any(bound is not None for bound in bounds) else f"{mode} needs a lower or an upper bound"


def _delta_with_liger(facts: Facts) -> str | None:
    delta = facts.native["delta"]
    return f"delta = {delta}: Liger's kernel has no second clipping" if facts.liger and delta is not None else None


def _share_of_warmup(facts: Facts) -> str | None:
    share = facts.native["warmup_ratio"]
    return None if 0 <= share <= 1 else f"warmup_ratio = {share}: must lie in [0, 1]"


def _greedy_schedule(facts: Facts) -> str | None:
    greedy = facts.native["lr_scheduler_type"] == "greedy"
    return "lr_scheduler_type = greedy came with transformers 5" if greedy else None


# ---- what TRL notices later


def _not_positive(facts: Facts) -> str | None:
    wrong = [
        f"{FIELDS[name]} = {value}"
        for name in ("world", "micro", "accumulation", "generation_batch", "steps_per_generation")
        if (value := getattr(facts.sizes, name)) is not None and value < 1
    ]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


def _unknown(key: str, known: Callable[[Any], bool], names: str) -> Callable[[Facts], str | None]:
    def test(facts: Facts) -> str | None:
        value = facts.native[key]
        return None if known(value) else f"{key} = {value}: must be one of {names}"

    return test


def _unknown_loss(facts: Facts) -> str | None:
    known = loss_types(facts.version)
    return _unknown("loss_type", lambda value: value in known, ", ".join(known))(facts)


def _unknown_scale(facts: Facts) -> str | None:
    known = scales(facts.version)
    return _unknown("scale_rewards", lambda value: value in known, "group, batch, none, true, false")(facts)


_LEVEL = _unknown("importance_sampling_level", lambda value: value in RATIO_LEVELS, ", ".join(RATIO_LEVELS))
_OBJECTIVES = ("sum_then_normalize", "normalize_then_sum")
_OBJECTIVE = _unknown("multi_objective_aggregation", lambda value: value in _OBJECTIVES, ", ".join(_OBJECTIVES))


def _unbounded_constant(facts: Facts) -> str | None:
    unbounded = facts.native["loss_type"] == "dr_grpo" and facts.native["max_completion_length"] is None
    return "loss_type = dr_grpo divides by max_completion_length, which is unset" if unbounded else None


def _reference_without_kl(facts: Facts) -> str | None:
    return (
        "sync_ref_model without a KL term (beta = 0)"
        if facts.native["sync_ref_model"] and not facts.native["beta"]
        else None
    )


def _engine_ranks(facts: Facts) -> str | None:
    native, world = facts.native, facts.sizes.world
    ranks = native["vllm_tensor_parallel_size"]
    if not native["use_vllm"] or native["vllm_mode"] != "colocate" or ranks < 1 or world % ranks == 0:
        return None
    return f"vllm_tensor_parallel_size = {ranks} must divide {WORLD} = {world}"


def _dispatch(facts: Facts) -> str | None:
    on = accelerator_config(facts.native).get("dispatch_batches") is True
    return (
        "accelerator_config.dispatch_batches = true cannot send prompts, which are text, between processes"
        if on
        else None
    )


def _two_accumulations(facts: Facts) -> str | None:
    steps = gradient_accumulation_kwargs(facts.native).get("num_steps")
    if steps is None or facts.sizes.accumulation <= 1:
        return None
    return f"gradient_accumulation_kwargs.num_steps = {steps} beside {ACCUMULATION} = {facts.sizes.accumulation}"


def _streamed(facts: Facts) -> bool:
    return bool(facts.native.get("dataset_streaming") or facts.native.get("streaming"))


def _endless(facts: Facts) -> str | None:
    if not _streamed(facts) or facts.native["max_steps"] > 0:
        return None
    return "a streamed dataset has no length, so max_steps must be given"


def _no_streams(facts: Facts) -> str | None:
    return "streamed datasets are not supported before trl 1.9" if _streamed(facts) else None


def _liger_loss_type(facts: Facts) -> str | None:
    name = facts.native["loss_type"]
    return f"loss_type = {name}: Liger's kernel computes bnpo only" if facts.liger and name != "bnpo" else None


def _beyond_liger(facts: Facts) -> str | None:
    native = facts.native
    beyond = [
        f"{key} = {native.get(key)}"
        for key, off, versions in (
            ("top_entropy_quantile", 1.0, ">=0.20"),
            ("importance_sampling_level", "token", ">=0.20,<1.0"),
            ("off_policy_mask_threshold", None, ">=0.27"),
            ("entropy_coef", 0.0, ">=1.8"),
            ("use_adaptive_entropy", False, ">=1.8"),
        )
        if holds(versions, facts.version) and native.get(key) != off
    ]
    return f"{' and '.join(beyond)}: not with Liger's kernel" if facts.liger and beyond else None


# ---- what TRL never notices


def _no_step(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts >= facts.rollout.prompts:
        return None
    return (
        f"the dataset's {facts.prompts} prompts do not fill one rollout of {facts.rollout.prompts} prompts: the "
        "run ends "
        "without an optimizer step"
    )


def _no_pass(facts: Facts) -> str | None:
    count = facts.sizes.iterations
    return f"{PASSES} = {count}: rollouts are trained on {count} times, so nothing is trained" if count < 1 else None


def _no_horizon(facts: Facts) -> str | None:
    epochs = facts.native["num_train_epochs"]
    return f"num_train_epochs = {epochs}: no optimizer step" if facts.native["max_steps"] <= 0 and epochs <= 0 else None


def _dropped(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts < facts.rollout.prompts:
        return None
    rest = facts.prompts % facts.rollout.prompts
    return (
        f"{rest} of {facts.prompts} prompts are dropped every epoch ({facts.rollout.prompts} prompts per rollout)"
        if rest
        else None
    )


def _epoch(facts: Facts) -> Epoch | None:
    """The epochs of the dataset; None while there is none, or nothing is trained on it."""
    if facts.prompts is None or facts.rollout is None or facts.sizes.iterations < 1:
        return None
    drop_last = bool(facts.native["dataloader_drop_last"])
    return epoch(facts.sizes, facts.rollout, facts.prompts, facts.version, drop_last=drop_last)


def _counts_dropped(facts: Facts) -> str | None:
    """0.16 to 0.19: the sampler's length counts prompts that it drops, and transformers plans with the length."""
    found, native = _epoch(facts), facts.native
    if found is None or facts.rollout is None or not found.real:
        return None
    real = found.real // found.window
    if found.planned_steps == real and found.real % found.window == 0:
        return None
    stop, epochs = found.stops(native["num_train_epochs"], native["max_steps"])
    said = (
        f"the sampler's length counts the {found.prompts % facts.rollout.prompts} prompts that it drops: transformers "
        f"plans {found.planned_steps} optimizer steps per epoch where there are {real}, and makes the learning-rate "
        f"schedule for {stop} steps"
    )
    if epochs * real < stop:
        said += f"; the run ends after {epochs * real} of them"
    if found.real % found.window:
        said += (
            f"; the last {found.real % found.window} micro-batches of an epoch are trained in the next one's first step"
        )
    return said


def _last_micro_batch_wraps(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.native["dataloader_drop_last"]:
        return None
    rows, draw = facts.prompts * facts.sizes.generations, facts.sizes.micro * facts.sizes.world
    if facts.sizes.world < 2 or rows % draw == 0:
        return None
    return (
        f"{rows} completions per epoch do not fill micro-batches of {draw} over all devices: accelerate fills the last "
        "one with the epoch's first prompts, which are trained twice"
    )


def _inverted_scale(facts: Facts) -> str | None:
    value = facts.native["scale_rewards"]
    does = scales(facts.version).get(value)
    means = {True: "group", False: "none"}.get(value, value)
    return f"scale_rewards = {value} does what {does} should do" if does not in (None, means) else None


def _untempered_loss(facts: Facts) -> str | None:
    temperature = facts.native["temperature"]
    return (
        f"completions are sampled at temperature {temperature}, and the loss takes their log-probabilities at 1"
        if temperature != 1
        else None
    )


def _counts_masked(facts: Facts) -> str | None:
    if facts.loss is None or not facts.loss.rollout_denominator or not facts.native["mask_truncated_completions"]:
        return None
    return f"loss_type = {facts.loss.name} counts the tokens of masked, truncated completions in its denominator"


def _evaluation_trains(facts: Facts) -> str | None:
    on = bool(facts.native["eval_on_start"]) and _evaluates(facts)
    return "eval_on_start is taken for training: it moves the count that says when to generate" if on else None


def _auto_find_silently(facts: Facts) -> str | None:
    if not facts.native["auto_find_batch_size"]:
        return None
    return (
        "auto_find_batch_size halves the micro-batch when memory runs out; rollouts and groups are cut for the old one"
    )


def _mixed_rollout(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or s.micro < 1 or s.world < 1:
        return None
    per_micro_step = s.micro * s.world
    if s.generation_batch % s.micro or s.generation_batch % per_micro_step == 0:
        return None
    taken = s.generation_batch // per_micro_step * per_micro_step
    if not taken:
        return f"{BATCH} = {s.generation_batch} is less than one micro-batch of {per_micro_step} over all devices"
    return (
        f"{BATCH} = {s.generation_batch} is sampled, and {taken} of it are taken at a time ({MICRO} {s.micro} x "
        f"{WORLD} {s.world} x {s.generation_batch // per_micro_step}): groups are torn, and advantages mix prompts"
    )


def _ignored_prompt_length(facts: Facts) -> str | None:
    limit = facts.native["max_prompt_length"]
    return f"max_prompt_length = {limit} has no effect: prompts are not cut" if limit is not None else None


def _split(facts: Facts) -> str | None:
    if accelerator_config(facts.native).get("split_batches") is not True or facts.sizes.world < 2:
        return None
    return (
        f"accelerator_config.split_batches divides each device's {facts.sizes.micro} completions per micro-batch by "
        f"{facts.sizes.world} devices, and every rollout with them"
    )


def _wrong_world(facts: Facts) -> str | None:
    if not facts.from_object or facts.sizes.generation_batch is None:
        return None
    return (
        f"{BATCH} = {facts.sizes.generation_batch} was derived for another world size than {facts.sizes.world}: "
        "GRPOConfig "
        "reads the world size when it is constructed"
    )


def _rollout_denominator(facts: Facts) -> str | None:
    if facts.rollout is None or facts.loss is None or not facts.loss.rollout_denominator:
        return None
    steps, window = facts.rollout.steps_per_generation, facts.sizes.window
    if steps == window:
        return None
    effect = (
        "each rollout in an optimizer step is normalised by its own tokens"
        if steps < window
        else "every optimizer step is normalised by the rollout's average step, so steps with long completions "
        "weigh more"
    )
    return (
        f"loss_type = {facts.loss.name} counts tokens over the rollout ({steps} micro-batches), not over the "
        "optimizer step "
        f"({window}): {effect}"
    )


def _rollout_tokens_per_micro_batch(facts: Facts) -> str | None:
    if facts.rollout is None or facts.loss is None or not facts.loss.rollout_denominator:
        return None
    steps, window = facts.rollout.steps_per_generation, facts.sizes.window
    if steps == window:
        return None
    return (
        f"loss_type = {facts.loss.name} divides by the tokens of the whole rollout ({steps} micro-batches) in an "
        f"optimizer step of {window}: gradients are {window}/{steps} of a mean over the step's tokens"
    )


def _local_tokens(facts: Facts) -> str | None:
    if facts.native["loss_type"] != "bnpo" or facts.sizes.window * facts.sizes.world <= 1:
        return None
    return (
        f"loss_type = bnpo divides by each micro-batch's own tokens: the gradient depends on how {facts.sizes.window} "
        f"micro-batches x {facts.sizes.world} devices share the completions"
    )


def _misaligned(facts: Facts) -> str | None:
    micro_steps, window = facts.micro_steps_per_rollout, facts.sizes.window
    if micro_steps < 1 or window < 1 or micro_steps % window == 0 or window % micro_steps == 0:
        return None
    return (
        f"rollouts of {micro_steps} micro-batches and optimizer steps of {window} do not line up: a step mixes "
        "completions "
        "of different policies"
    )


def _stale_ratio(facts: Facts) -> str | None:
    """0.18 and 0.19: stale completions that are trained as if they were fresh."""
    if facts.rollout is None or (said := _misaligned(facts)) is None:
        return None
    return None if records_old_logprobs(facts.sizes, facts.rollout.steps_per_generation, facts.version) else said


def _recorded_misaligned(facts: Facts) -> str | None:
    return None if _stale_ratio(facts) else _misaligned(facts)


def _short_step(facts: Facts) -> str | None:
    found = _epoch(facts)
    if found is None or (rest := found.real % found.window) == 0 or found.real < found.promised:
        return None
    ends = f"every epoch ends with an optimizer step of {rest} instead of {found.window} micro-batches"
    if found.loop.plans_short_steps:
        return f"{ends}, with full weight and a full learning-rate tick"
    return (
        f"{ends}, each weighing 1/{found.window}, that transformers does not plan: the run ends before its last prompts"
    )


def _resume(facts: Facts) -> str | None:
    if facts.native["save_strategy"] in ("no", False) or facts.rollout is None:
        return None
    several = facts.micro_steps_per_rollout > facts.sizes.window
    epochs = facts.native["max_steps"] > 0 or facts.native["num_train_epochs"] > 1
    if not several and not epochs:
        return None
    return "a resumed run does not continue the same run: " + " and ".join(
        said
        for said, applies in (
            ("a checkpoint inside a rollout loses it", several),
            ("epochs after the first replay the first epoch's prompt order", epochs),
        )
        if applies
    )


def _batch_scale(facts: Facts) -> str | None:
    if scales(facts.version).get(facts.native["scale_rewards"]) != "batch" or facts.rollout is None:
        return None
    micro_steps = facts.micro_steps_per_rollout
    if micro_steps < 1 or (micro_steps >= facts.sizes.window and micro_steps % facts.sizes.window == 0):
        return None
    return 'scale_rewards = "batch" takes the deviation over each rollout, and an optimizer step draws from several'


def _rewritten(facts: Facts) -> str | None:
    steps = facts.sizes.rewritten_accumulation
    if steps is None or steps < 2 or facts.sizes.accumulation != 1:
        return None
    return (
        f"gradient_accumulation_kwargs.num_steps = {steps} replaces {ACCUMULATION} = 1 after {STEPS} was derived "
        "from it: "
        f"{steps} rollouts per optimizer step"
    )


def _entropy(facts: Facts) -> str | None:
    if not facts.native["entropy_coef"] and not facts.native["use_adaptive_entropy"]:
        return None
    if facts.sizes.window * facts.sizes.world <= 1:
        return None
    if facts.loss is not None and facts.loss.rollout_denominator and holds("<1.10", facts.version):
        return None  # it has the policy loss's own denominator there
    return "the entropy bonus is a mean over each micro-batch's tokens: it depends on the split"


def _entropy_quantile(facts: Facts) -> str | None:
    quantile = facts.native["top_entropy_quantile"]
    if quantile >= 1 or facts.sizes.window <= 1:
        return None
    return (
        f"top_entropy_quantile = {quantile} takes its threshold per micro-batch: which tokens train depends on "
        "the split"
    )


def _luspo_padding(facts: Facts) -> str | None:
    native = facts.native
    widened = native["importance_sampling_level"] == "token" or native["beta"] or native["top_entropy_quantile"] < 1
    if native["loss_type"] != "luspo" or not widened:
        return None
    return "loss_type = luspo averages over padded positions and counts unmasked ones, unless ratios are per sequence"


def _liger_tokens(facts: Facts) -> str | None:
    if not facts.liger or facts.loss is None or not facts.loss.rollout_denominator:
        return None
    return f"use_liger_kernel with loss_type = {facts.loss.name} divides by each micro-batch's own tokens"


def _data_seed(facts: Facts) -> str | None:
    seed = facts.native["data_seed"]
    return f"data_seed = {seed} has no effect in GRPO: seed orders the prompts" if seed is not None else None


def _low_delta(facts: Facts) -> str | None:
    native = facts.native
    high = native["epsilon"] if native["epsilon_high"] is None else native["epsilon_high"]
    if native["delta"] is None or facts.loss is None or facts.loss.surrogate != "ppo" or native["delta"] >= 1 + high:
        return None
    return f"delta = {native['delta']} is below 1 + {high}, so it also bounds the ratio of positive advantages"


def _deprecated_cap(facts: Facts) -> str | None:
    cap = facts.native["vllm_importance_sampling_cap"]
    return (
        f"vllm_importance_sampling_cap = {cap} is deprecated and wins over the upper bound" if cap is not None else None
    )


def _uncarried(facts: Facts) -> str | None:
    rows = settings_of(TRL_GROUPS, facts.version)
    surrogate = facts.loss.surrogate if facts.loss else None
    set_ones = []
    for key, topic in UNCARRIED.items():
        if topic.startswith("surrogate ") and topic.removeprefix("surrogate ") != surrogate:
            continue
        if key == "ref_model_mixup_alpha" and not facts.native["sync_ref_model"]:
            continue
        if key in rows and facts.native[key] != rows[key].default:
            set_ones.append(f"{key} = {facts.native[key]} ({topic})")
    if not set_ones:
        return None
    return f"the schema has no field for {', '.join(set_ones)}: two runs that differ in it do not agree"


_POST_INIT = "GRPOConfig.__post_init__"
_ALL = "trl 0.18.0 to 1.16.0"
_INIT = "GRPOTrainer.__init__"
_ARGUMENTS = "transformers 4.51.3, 4.57.6 and 5.23.0"
_DIVISIBLE = "must be evenly divisible by the number of generations per prompt"
_LATE = "after the model has been loaded"
_SIZES = (MICRO, WORLD, ACCUMULATION, STEPS, BATCH, GENERATIONS)

RULES: tuple[Rule, ...] = (
    # TrainingArguments and GRPOConfig, in the order of their post-init.
    Rule(
        "BB-TRL-010",
        "error",
        "config",
        _zero_logging,
        ("logging_steps",),
        native="ValueError: logging strategy steps requires non-zero --logging_steps",
        source=f"{_ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=_set("logging_steps", 1),
    ),
    Rule(
        "BB-TRL-011",
        "error",
        "config",
        _both_precisions,
        ("fp16", "bf16"),
        native="ValueError: At most one of fp16 and bf16 can be True, but not both",
        source=f"{_ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=_set("fp16", False),
    ),
    Rule(
        "BB-TRL-027",
        "error",
        "config",
        _share_of_warmup,
        ("warmup_ratio",),
        native="ValueError: warmup_ratio must lie in range [0,1]",
        source="transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        fixes=_set("warmup_ratio", 0.1),
        versions="<0.28",
    ),
    Rule(
        "BB-TRL-012",
        "error",
        "config",
        _negative_warmup,
        ("warmup_steps",),
        native="ValueError: Expected value warmup_steps >= 0",
        source="transformers 5.23.0 TrainingArguments._validate_args",
        fixes=_set("warmup_steps", 0),
        versions=">=0.28",
    ),
    Rule(
        "BB-TRL-012",
        "error",
        "config",
        _negative_warmup,
        ("warmup_steps",),
        native="ValueError: warmup_steps must be of type int and must be 0 or a positive integer.",
        source="transformers 4.51.3 and 4.57.6 TrainingArguments.__post_init__",
        fixes=_set("warmup_steps", 0),
        versions="<0.28",
    ),
    Rule(
        "BB-TRL-013",
        "error",
        "config",
        _prefetch_without_workers,
        ("dataloader_prefetch_factor", "dataloader_num_workers"),
        native="ValueError: --dataloader_prefetch_factor can only be set when --dataloader_num_workers > 0",
        source=f"{_ARGUMENTS} TrainingArguments.__post_init__ and _validate_args",
        fixes=_set("dataloader_prefetch_factor", None),
    ),
    Rule(
        "BB-TRL-028",
        "error",
        "config",
        _greedy_schedule,
        ("lr_scheduler_type",),
        native="ValueError: 'greedy' is not a valid SchedulerType",
        source="transformers 4.57.6 SchedulerType",
        fixes=_set("lr_scheduler_type", "linear"),
        versions="<0.28",
    ),
    Rule(
        "BB-TRL-014",
        "error",
        "config",
        _sequence_parallel,
        ("parallelism_config",),
        native="ValueError: GRPOTrainer does not support sequence-dim parallelism",
        source=f"trl 1.4.0 to 1.16.0 {_POST_INIT}",
        fixes=_set("parallelism_config", None),
        versions=">=1.4",
    ),
    Rule(
        "BB-TRL-015",
        "error",
        "config",
        _upload_without_log,
        ("log_completions_hub_repo", "log_completions"),
        native="ValueError: log_completions_hub_repo is set, but log_completions is False",
        source=f"trl 0.28.0 to 1.16.0 {_POST_INIT}",
        fixes=_set("log_completions", True),
        versions=">=0.28",
    ),
    Rule(
        "BB-TRL-016",
        "error",
        "config",
        _auto_find,
        ("auto_find_batch_size",),
        native="ValueError: auto_find_batch_size is not supported by GRPO",
        source=f"trl 1.9.0 to 1.16.0 {_POST_INIT}",
        fixes=_set("auto_find_batch_size", False),
        versions=">=1.9",
    ),
    Rule(
        "BB-TRL-017",
        "error",
        "config",
        _exclusive,
        (BATCH, STEPS),
        native="ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured",
        source=f"{_ALL} {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-018",
        "error",
        "config",
        _zero_micro_batch,
        (MICRO, WORLD),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.18.0 to 0.19.1 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-018",
        "error",
        "config",
        _zero_micro_step,
        (MICRO, WORLD, BATCH),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.20.0 to 1.16.0 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-019",
        "error",
        "config",
        _rollout_of_whole_micro_batches,
        (BATCH, MICRO),
        native="ValueError: generation_batch_size must be divisible by the global batch size",
        source=f"trl 0.18.0 to 0.19.0 {_POST_INIT}: gbs % mb * processes, which tests gbs % mb",
        fixes=size_fixes,
        versions=">=0.18,<0.19.1",
    ),
    Rule(
        "BB-TRL-019",
        "error",
        "config",
        _rollout_of_whole_micro_steps,
        (BATCH, MICRO, WORLD),
        native="ValueError: generation_batch_size must be divisible by the global batch size",
        source=f"trl 0.19.1 to 1.16.0 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.19.1",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "config",
        _at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt",
        source=f"trl 0.18.0 to 0.19.1 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "config",
        _groups_among_divisors,
        _SIZES,
        native=f"ValueError: The effective train batch size {_DIVISIBLE}",
        source=f"trl 0.18.0 to 0.19.1 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "config",
        _evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native=f"ValueError: The global eval batch size {_DIVISIBLE}",
        source=f"trl 0.18.0 to 0.19.1 {_POST_INIT}",
        fixes=_evaluation_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "config",
        _whole_evaluation_groups,
        (EVAL_MICRO, WORLD, EVAL_GENERATIONS, GENERATIONS),
        native=(
            "ValueError: The global eval batch size must be divisible by the number of generations used for evaluation"
        ),
        source=f"trl 0.22.0 to 1.16.0 {_POST_INIT}; that of 0.26.0 does not look at num_generations_eval",
        fixes=_evaluation_fixes,
        versions=">=0.22",
    ),
    Rule(
        "BB-TRL-024",
        "error",
        "config",
        _zero_generations,
        (GENERATIONS,),
        native="ZeroDivisionError: integer modulo by zero",
        source=f"trl 0.20.0 to 1.16.0 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "config",
        _whole_groups,
        _SIZES,
        native="ValueError: generation_batch_size must be divisible by num_generations",
        source=f"trl 0.20.0 to 1.16.0 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "config",
        _at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt",
        source=f"trl 0.20.0 to 1.16.0 {_POST_INIT}",
        fixes=size_fixes,
        versions=">=0.20",
    ),
    Rule(
        "BB-TRL-026",
        "error",
        "config",
        _delta_with_liger,
        ("delta", "use_liger_loss", "use_liger_kernel"),
        native="ValueError: Liger loss does not support two-sided GRPO loss yet",
        source=f"trl 0.18.0 to 1.3.0 {_POST_INIT}",
        fixes=_set("delta", None),
        versions=">=0.18,<1.4",
    ),
    Rule(
        "BB-TRL-023",
        "error",
        "config",
        _correction_bounds,
        ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"),
        native="ValueError: vllm_importance_sampling_clip_min must be less than vllm_importance_sampling_clip_max",
        source=f"trl 1.6.0 to 1.16.0 {_POST_INIT}",
        fixes=_set("vllm_importance_sampling_clip_min", None),
        versions=">=1.6",
    ),
    Rule(
        "BB-TRL-025",
        "error",
        "config",
        _truncation_without_bounds,
        ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
        native="ValueError: At least one of vllm_importance_sampling_clip_min or ..._clip_max must be set",
        source=f"trl 1.6.0 to 1.16.0 {_POST_INIT}",
        fixes=_set("vllm_importance_sampling_clip_max", 3.0),
        versions=">=1.6",
    ),
    # Noticed later.
    Rule(
        "BB-TRL-041",
        "error",
        "construction",
        _liger_loss_type,
        ("use_liger_loss", "loss_type"),
        native="ValueError: The provided loss type is not supported with `use_liger_loss`",
        source=f"trl 0.17.0 {_INIT}",
        fixes=_set("use_liger_loss", False),
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-022",
        "error",
        "construction",
        _at_least_two,
        (GENERATIONS,),
        native="ValueError: GRPO requires at least 2 generations per prompt, after the model has been loaded",
        source=f"trl 0.17.0 {_INIT}",
        fixes=size_fixes,
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "construction",
        _whole_groups_per_micro_step,
        (MICRO, WORLD, GENERATIONS),
        native=_global_train_batch,
        source=f"trl 0.15.0 to 0.16.1 {_INIT}",
        fixes=size_fixes,
        versions="<0.17",
    ),
    Rule(
        "BB-TRL-021",
        "error",
        "construction",
        _groups_among_divisors,
        _SIZES,
        native=f"ValueError: The effective train batch size {_DIVISIBLE}, {_LATE}",
        source=f"trl 0.17.0 {_INIT}",
        fixes=size_fixes,
        versions=">=0.17,<0.18",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "construction",
        _evaluation_groups_among_divisors,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native=f"ValueError: The global eval batch size {_DIVISIBLE}, {_LATE}",
        source=f"trl 0.15.0 to 0.17.0 {_INIT}",
        fixes=_evaluation_fixes,
        versions="<0.18",
    ),
    Rule(
        "BB-TRL-020",
        "error",
        "optimizer_step",
        _whole_evaluation_groups,
        (EVAL_MICRO, WORLD, GENERATIONS),
        native="RuntimeError: shape is invalid for input, at the first evaluation",
        source=f"trl 0.20.0 and 0.21.0 {_POST_INIT} (no check) and GRPOTrainer._generate_and_score_completions",
        fixes=_evaluation_fixes,
        versions=">=0.20,<0.22",
    ),
    Rule(
        "BB-TRL-042",
        "error",
        "construction",
        _beyond_liger,
        (
            "top_entropy_quantile",
            "importance_sampling_level",
            "off_policy_mask_threshold",
            "entropy_coef",
            "use_adaptive_entropy",
        ),
        native="NotImplementedError or ValueError",
        source=f"trl 0.20.0 to 1.13.0 {_INIT}",
        fixes=_set("use_liger_kernel", False),
        versions=">=0.20,<1.14",
    ),
    Rule(
        "BB-TRL-030",
        "error",
        "construction",
        _not_positive,
        _SIZES,
        native="the config is accepted; the data loader fails, or nothing is trained",
        source=f"{_ALL} {_POST_INIT} (no check)",
        fixes=size_fixes,
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-030",
        "error",
        "first_rollout",
        _not_positive,
        _SIZES,
        native="the trainer is built; its data loader or transformers' loop fails",
        source=f"trl 0.15.0 to 0.17.0 {_INIT} (no check)",
        fixes=size_fixes,
        versions="<0.18",
    ),
    Rule(
        "BB-TRL-031",
        "error",
        "construction",
        _reference_without_kl,
        ("sync_ref_model", "beta"),
        native="ValueError: You passed `sync_ref_model=True` while `beta=0.0`",
        source=f"trl 0.28.0 to 1.16.0 {_INIT}",
        fixes=_set("sync_ref_model", False),
        versions=">=0.28",
    ),
    Rule(
        "BB-TRL-032",
        "error",
        "construction",
        _engine_ranks,
        ("vllm_tensor_parallel_size", WORLD),
        native="ValueError: tensor_parallel_size must divide world size evenly",
        source=f"trl 0.18.0 to 0.27.2 {_INIT}; 0.28.0 to 1.16.0 generation/vllm_generation.py",
        fixes=_set("vllm_tensor_parallel_size", 1),
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-033",
        "error",
        "construction",
        _two_accumulations,
        ("accelerator_config", ACCUMULATION),
        native=(
            "ValueError: The `AcceleratorConfig`'s `num_steps` is set but `gradient_accumulation_steps` is "
            "greater than 1"
        ),
        source=f"{_ARGUMENTS} Trainer.create_accelerator_and_postprocess",
        fixes=_set("accelerator_config", None),
    ),
    Rule(
        "BB-TRL-034",
        "error",
        "construction",
        _no_streams,
        ("dataset_streaming", "streaming"),
        native="NotImplementedError: Iterable datasets are not yet supported in GRPOTrainer",
        source=f"trl 0.17.0 to 1.8.0 {_INIT}",
        fixes=_set("dataset_streaming", False),
        versions="<1.9",
    ),
    Rule(
        "BB-TRL-034",
        "error",
        "construction",
        _endless,
        ("dataset_streaming", "streaming", "max_steps"),
        native="ValueError: train_dataset does not implement __len__, max_steps has to be specified",
        source="transformers 5.23.0 Trainer.__init__",
        versions=">=1.9",
    ),
    Rule(
        "BB-TRL-035",
        "error",
        "first_rollout",
        _unknown_scale,
        ("scale_rewards",),
        native="ValueError: Invalid value for scale_rewards, after the first rollout was generated",
        source="trl 0.22.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=_set("scale_rewards", "group"),
        versions=">=0.22",
    ),
    Rule(
        "BB-TRL-036",
        "error",
        "first_rollout",
        _OBJECTIVE,
        ("multi_objective_aggregation",),
        native="ValueError: Invalid multi_objective_aggregation, after the first rollout was generated",
        source="trl 0.27.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=_set("multi_objective_aggregation", _OBJECTIVES[0]),
        versions=">=0.27",
    ),
    Rule(
        "BB-TRL-037",
        "error",
        "first_rollout",
        _dispatch,
        ("accelerator_config",),
        native="TypeError at the first batch; with several processes the others wait",
        source="trl 1.16.0 with accelerate 1.15.0, run on map-style data",
        fixes=_set("accelerator_config", None),
    ),
    Rule(
        "BB-TRL-038",
        "error",
        "optimizer_step",
        _unknown_loss,
        ("loss_type",),
        native="ValueError: Unknown loss type, at the first loss, after generation was paid for",
        source="trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=_set("loss_type", "dapo"),
    ),
    Rule(
        "BB-TRL-039",
        "error",
        "optimizer_step",
        _LEVEL,
        ("importance_sampling_level",),
        native="ValueError: Unknown importance sampling level, at the first loss, after generation was paid for",
        source="trl 0.20.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=_set("importance_sampling_level", "token"),
    ),
    Rule(
        "BB-TRL-040",
        "error",
        "optimizer_step",
        _unbounded_constant,
        ("loss_type", "max_completion_length"),
        native="TypeError at the first loss",
        source="trl 0.17.0 to 1.16.0 GRPOTrainer._compute_loss",
        fixes=_set("max_completion_length", 512),
    ),
    # Never noticed.
    Rule(
        "BB-TRL-050",
        "error",
        "never",
        _no_step,
        _SIZES,
        native="train() ends after 0 optimizer steps, with a warning in the log",
        source="trl 1.16.0 RepeatSampler.__iter__, run; the same since 0.16.0",
        fixes=size_fixes,
        versions=">=0.16",
    ),
    Rule(
        "BB-TRL-051",
        "error",
        "never",
        _no_pass,
        (PASSES,),
        native="train() ends after 0 optimizer steps",
        source="trl 1.16.0 RepeatSampler.__iter__ with repeat_count 0, run",
        fixes=_set(PASSES, 1),
    ),
    Rule(
        "BB-TRL-052",
        "error",
        "never",
        _no_horizon,
        ("num_train_epochs", "max_steps"),
        native="train() ends after 0 optimizer steps",
        source=f"{_ARGUMENTS} Trainer.set_initial_training_values",
        fixes=_set("num_train_epochs", 1),
    ),
    Rule(
        "BB-TRL-053",
        "error",
        "never",
        _split,
        ("accelerator_config", MICRO, WORLD),
        native="micro-batches and rollouts are silently smaller by the number of devices",
        source="trl 1.16.0 with accelerate 1.15.0 BatchSamplerShard, run with 2 processes",
        fixes=_set("accelerator_config", None),
    ),
    Rule(
        "BB-TRL-054",
        "error",
        "never",
        _wrong_world,
        (BATCH, STEPS, WORLD),
        native="rollouts of the wrong size",
        source=f"{_ALL} {_POST_INIT}: generation_batch_size from the world size of that moment",
    ),
    Rule(
        "BB-TRL-055",
        "error",
        "never",
        _mixed_rollout,
        (BATCH, MICRO, WORLD),
        native="accepted; advantages are taken over rows of several prompts, or a reshape fails at the first rollout",
        source=f"trl 0.18.0 to 0.19.0 {_POST_INIT} (gbs % mb * processes) and GRPOTrainer.get_train_dataloader",
        fixes=size_fixes,
        versions=">=0.18,<0.19.1",
    ),
    Rule(
        "BB-TRL-056",
        "warning",
        "never",
        _inverted_scale,
        ("scale_rewards",),
        native="accepted",
        source="trl 0.22.0 and 0.22.1 GRPOTrainer._generate_and_score_completions; mended in 0.22.2",
        versions=">=0.22,<0.22.2",
    ),
    Rule(
        "BB-TRL-057",
        "warning",
        "never",
        _last_micro_batch_wraps,
        _SIZES,
        native="accelerate repeats the first rows of the epoch",
        source="trl 0.15.0 to 0.15.2 RepeatRandomSampler with accelerate 1.15.0 BatchSamplerShard (even_batches)",
        versions="<0.16",
    ),
    Rule(
        "BB-TRL-058",
        "warning",
        "never",
        _counts_dropped,
        _SIZES,
        native="len(sampler) = prompts x generations x repeats, with the dropped ones",
        source="trl 0.16.0 to 0.19.1 RepeatRandomSampler.__len__ and RepeatSampler.__len__; mended in 0.20.0",
        versions=">=0.16,<0.20",
    ),
    Rule(
        "BB-TRL-060",
        "warning",
        "never",
        _dropped,
        _SIZES,
        native="the sampler drops each epoch's incomplete rollout",
        source="trl 0.16.0 to 1.16.0 RepeatSampler.__iter__ (RepeatRandomSampler in 0.16)",
        versions=">=0.16",
    ),
    Rule(
        "BB-TRL-061",
        "warning",
        "never",
        _rollout_tokens_per_micro_batch,
        ("loss_type", STEPS, BATCH, ACCUMULATION),
        native="the loss of a micro-batch is divided by rollout tokens / processes",
        source="trl 0.22.0 to 1.9.0 GRPOTrainer._compute_loss; huggingface/trl issue 5619, mended in 1.9.1",
        fixes=_window_fixes,
        versions=">=0.22,<1.9.1",
    ),
    Rule(
        "BB-TRL-061",
        "warning",
        "never",
        _rollout_denominator,
        ("loss_type", STEPS, BATCH, ACCUMULATION),
        native="the loss of a micro-batch is divided by rollout tokens / processes x window / steps_per_generation",
        source="trl 1.9.1 to 1.16.0 GRPOTrainer._compute_loss (num_items_in_batch)",
        fixes=_window_fixes,
        versions=">=1.9.1",
    ),
    Rule(
        "BB-TRL-062",
        "warning",
        "never",
        _local_tokens,
        ("loss_type", ACCUMULATION, WORLD),
        native="the mean of micro-batch means",
        source="trl 0.16.0 to 1.16.0 GRPOTrainer._compute_loss (compute_loss in 0.16)",
        fixes=_set("loss_type", "dapo"),
        versions=">=0.16",
    ),
    Rule(
        "BB-TRL-063",
        "warning",
        "never",
        _recorded_misaligned,
        (STEPS, BATCH, PASSES, ACCUMULATION),
        native="accepted; old log-probabilities are recorded at the rollout",
        source="trl 0.18.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=_window_fixes,
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-059",
        "warning",
        "never",
        _stale_ratio,
        (STEPS, BATCH, PASSES, ACCUMULATION),
        native="accepted; the ratio is taken as 1, although the weights have moved since the rollout",
        source="trl 0.18.0 to 0.19.1 GRPOTrainer._generate_and_score_completions; mended in 0.20.0",
        fixes=_window_fixes,
        versions=">=0.18,<0.20",
    ),
    Rule(
        "BB-TRL-064",
        "warning",
        "never",
        _short_step,
        (ACCUMULATION, STEPS, BATCH),
        native="current_gradient_accumulation_steps is the remainder",
        source=f"{_ARGUMENTS} Trainer.get_batch_samples and _inner_training_loop",
    ),
    Rule(
        "BB-TRL-065",
        "note",
        "never",
        _resume,
        ("save_strategy",),
        native="the sampler's generator and the rollout buffer start afresh",
        source="trl 1.16.0 RepeatSampler (no state) and GRPOTrainer._prepare_inputs, run; earlier versions read",
    ),
    Rule(
        "BB-TRL-066",
        "warning",
        "never",
        _batch_scale,
        ("scale_rewards", STEPS, ACCUMULATION),
        native="one deviation per rollout",
        source="trl 0.22.0 to 1.16.0 GRPOTrainer._generate_and_score_completions",
        fixes=_window_fixes,
        versions=">=0.22",
    ),
    Rule(
        "BB-TRL-067",
        "warning",
        "never",
        _rewritten,
        ("accelerator_config", ACCUMULATION),
        native="accepted",
        source=f"{_ARGUMENTS} Trainer.create_accelerator_and_postprocess",
        fixes=_set("accelerator_config", None),
        versions=">=0.18",
    ),
    Rule(
        "BB-TRL-068",
        "warning",
        "never",
        _entropy,
        ("entropy_coef", "use_adaptive_entropy"),
        native="the mean of micro-batch means",
        source="trl 1.8.0 to 1.16.0 GRPOTrainer._compute_loss; the dapo family since 1.10.0 only",
        fixes=_set("entropy_coef", 0.0),
    ),
    Rule(
        "BB-TRL-069",
        "warning",
        "never",
        _entropy_quantile,
        ("top_entropy_quantile",),
        native="a quantile over all processes, once per micro-batch",
        source="trl 0.21.0 to 1.16.0 GRPOTrainer.get_high_entropy_mask; over one process in 0.20.0",
        fixes=_set("top_entropy_quantile", 1.0),
    ),
    Rule(
        "BB-TRL-070",
        "warning",
        "never",
        _luspo_padding,
        ("loss_type", "importance_sampling_level", "beta"),
        native="(loss x length).mean() over the padded matrix",
        source="trl 0.28.0 to 1.9.2 GRPOTrainer._compute_loss; mended in 1.10.0",
        fixes=_set("importance_sampling_level", "sequence"),
        versions=">=0.28,<1.10",
    ),
    Rule(
        "BB-TRL-071",
        "warning",
        "never",
        _liger_tokens,
        ("use_liger_kernel", "loss_type"),
        native="num_items_in_batch is not passed on",
        source="trl 0.22.0 to 1.10.0 GRPOTrainer.compute_liger_loss; mended in 1.11.0",
        fixes=_set("use_liger_kernel", False),
        versions="<1.11",
    ),
    Rule(
        "BB-TRL-072",
        "note",
        "never",
        _data_seed,
        ("data_seed",),
        native="ignored",
        source="trl 0.15.0 to 1.16.0 GRPOTrainer._get_train_sampler uses args.seed",
        fixes=_set("data_seed", None),
    ),
    Rule(
        "BB-TRL-073",
        "warning",
        "never",
        _low_delta,
        ("delta", "epsilon_high", "epsilon"),
        native="the ratio is clamped at delta before the minimum is taken",
        source=f"{_ALL} GRPOTrainer._compute_loss",
        fixes=_set("delta", None),
    ),
    Rule(
        "BB-TRL-074",
        "note",
        "never",
        _deprecated_cap,
        ("vllm_importance_sampling_cap",),
        native="FutureWarning",
        source=f"trl 1.6.0 to 1.16.0 {_POST_INIT}",
        versions=">=1.6",
    ),
    Rule(
        "BB-TRL-075",
        "note",
        "never",
        _uncarried,
        tuple(UNCARRIED),
        native="used as given",
        source=f"{_ALL} GRPOTrainer",
    ),
    Rule(
        "BB-TRL-076",
        "warning",
        "never",
        _untempered_loss,
        ("temperature",),
        native="used for sampling only",
        source="trl 0.15.0 to 0.15.2 GRPOTrainer._get_per_token_logps; mended in 0.16.0",
        fixes=_set("temperature", 1.0),
        versions="<0.16",
    ),
    Rule(
        "BB-TRL-077",
        "warning",
        "never",
        _evaluation_trains,
        ("eval_on_start", "eval_strategy"),
        native="training goes on with the rollout of an evaluation, or generates at other micro-batches",
        source="trl 0.16.0 to 0.17.0 GRPOTrainer._prepare_inputs (control.should_evaluate); mended in 0.18.0",
        fixes=_set("eval_on_start", False),
        versions=">=0.16,<0.18",
    ),
    Rule(
        "BB-TRL-078",
        "warning",
        "never",
        _counts_masked,
        ("mask_truncated_completions", "loss_type"),
        native="num_items_in_batch counts them",
        source="trl 0.22.0 to 1.8.0 GRPOTrainer (num_items_in_batch before the mask); mended in 1.9.0",
        versions=">=0.22,<1.9",
    ),
    Rule(
        "BB-TRL-079",
        "warning",
        "never",
        _auto_find_silently,
        ("auto_find_batch_size",),
        native="accepted",
        source=f"trl 0.15.0 to 1.8.0 {_POST_INIT} (no check); refused since 1.9.0",
        fixes=_set("auto_find_batch_size", False),
        versions="<1.9",
    ),
    Rule(
        "BB-TRL-080",
        "note",
        "never",
        _ignored_prompt_length,
        ("max_prompt_length",),
        native="FutureWarning",
        source=f"trl 0.26.0 to 0.27.2 {_POST_INIT}",
        fixes=_set("max_prompt_length", None),
        versions=">=0.26,<0.28",
    ),
)
"""Every rule and known defect."""

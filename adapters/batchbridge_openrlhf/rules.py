"""OpenRLHF's rules and known defects, one row each: what must hold, when OpenRLHF notices, in which versions, and who
says so.

The parser's own checks come first. They stand in the program's main block as assertions: `python -O`, or a call of
`train(args)` from elsewhere, skips them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Fix, Phase, Severity, Where
from batchbridge_openrlhf.meaning import ESTIMATORS, MIN_LR_SCHEDULES, precision, sequence_mean
from batchbridge_openrlhf.options import holds, names_of
from batchbridge_openrlhf.sizes import DROPPED_TAIL, FIELDS, Sizes, sizes_of
from batchbridge_openrlhf.values import LARGEST

ROLLOUT, GROUP, TRAIN, MICRO = FIELDS["rollout_prompts"], FIELDS["group"], FIELDS["train"], FIELDS["micro"]
FORWARD, RING, TENSOR = FIELDS["forward_micro"], FIELDS["ring"], FIELDS["tensor"]
NODES, DEVICES = FIELDS["nodes"], FIELDS["devices_per_node"]
ESTIMATOR, FILTER, GENERATION = (
    "algo.advantage.estimator",
    "algo.dynamic_filtering_enable",
    "rollout.vllm_generate_batch_size",
)
ASYNC, PACKING, ENGINES = "train.async_enable", "ds.packing_samples", "vllm.num_engines"


@dataclass(frozen=True)
class Facts:
    """What the rules look at. `settings` by identity; `prompts`: of the dataset, None: unknown; `names`: identity to
    the version's own name."""

    settings: Mapping[str, Any]
    sizes: Sizes
    prompts: int | None
    version: str
    names: Mapping[str, str]

    def __getitem__(self, identity: str) -> Any:
        return self.settings[identity]

    def name(self, identity: str) -> str:
        """The option as this version spells it."""
        return self.names.get(identity, identity)

    def said(self, identity: str) -> str:
        """`name = value`."""
        return f"{self.name(identity)} = {self.settings[identity]}"

    @property
    def trained_prompts(self) -> int | None:
        """Prompts of an episode: at most data.max_samples."""
        return None if self.prompts is None else max(min(self.prompts, self.settings["data.max_samples"]), 0)

    @property
    def has_critic(self) -> bool:
        """Only gae trains one."""
        return bool(self.settings[ESTIMATOR] == "gae")

    @property
    def packs(self) -> bool:
        """Packing, also where ring attention (since 0.8.4) or dynamic batches turn it on."""
        ring = self.sizes.ring > 1 and holds(">=0.8.4", self.version)
        return bool(self.settings[PACKING] or ring or self.sizes.dynamic)


@dataclass(frozen=True)
class Rule:
    """One row. `test` gives the message where the rule is broken, else None. `keys`: identities to point at. `native`:
    what OpenRLHF does. `fixes`: ways out."""

    code: str
    severity: Severity
    phase: Phase
    test: Callable[[Facts], str | None]
    keys: tuple[str, ...]
    native: str
    source: str
    fixes: Callable[[Facts], tuple[Fix, ...]] = field(default=lambda facts: ())
    versions: str = ""
    positive_sizes: bool = True
    """Whether the test divides by sizes, and waits until all of them are at least 1."""


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its version or sizes are unknown."""
    facts = facts_of(reading)
    if facts is None:
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    return [
        Finding(
            rule.code,
            rule.severity,
            rule.phase,
            message,
            where=tuple(_where(identity, facts, given) for identity in rule.keys if identity in facts.names),
            fixes=rule.fixes(facts),
            native=rule.native,
            source=rule.source,
        )
        for rule, message in _broken(facts)
    ]


def defects(facts: Facts) -> tuple[Defect, ...]:
    """The broken rows that OpenRLHF itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule, message in _broken(facts)
        if rule.phase == "never" and rule.severity != "note"
    )


def facts_of(reading: Reading) -> Facts | None:
    """The facts of a reading; None while they are unknown, or a default stands where a value could not be read."""
    settings: Mapping[str, Any] = getattr(reading, "settings", {})
    version = reading.framework_version
    if version is None or not settings or not getattr(reading, "decided", True):
        return None
    sizes = sizes_of(settings, version, getattr(reading, "asked_world", None))
    return None if sizes is None else Facts(settings, sizes, reading.dataset_size, version, names_of(version))


def _broken(facts: Facts) -> list[tuple[Rule, str]]:
    return [
        (rule, message)
        for rule in RULES
        if holds(rule.versions, facts.version)
        and (facts.sizes.positive or not rule.positive_sizes)
        and (message := rule.test(facts)) is not None
    ]


def _where(identity: str, facts: Facts, given: Mapping[str, Where]) -> Where:
    value = facts[identity]
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return given.get(identity) or Where(facts.name(identity), shown)


# ---- ways out


def nearest_multiples(of: int, value: int) -> list[int]:
    """The nearest multiples of `of` (> 0) below and above `value`, without itself, from `of` to 32 bits."""
    below, above = (value - 1) // of * of, (value // of + 1) * of
    return [number for number in (below, above) if of <= number <= LARGEST]


def nearest_divisors(of: int, value: int, fits: Callable[[int], bool] = lambda number: True) -> list[int]:
    """The nearest divisors of `of` (> 0, at most 32 bits) below and above `value`, itself left out; of those that
    `fits` takes, where there are any."""
    small = [number for number in range(1, math.isqrt(of) + 1) if of % number == 0]
    divisors = sorted({*small, *(of // number for number in small)})
    divisors = [number for number in divisors if fits(number) and number != value] or divisors
    below = [number for number in divisors if number < value]
    above = [number for number in divisors if number > value]
    return [*below[-1:], *above[:1]]


def _set(facts: Facts, changes: Mapping[str, Any]) -> Fix:
    named = {facts.name(identity): value for identity, value in changes.items()}
    said = [f"leave out {name}" if value is None else _spoken(name, value) for name, value in named.items()]
    return Fix(", ".join(said), named)


def _spoken(name: str, value: Any) -> str:
    if value is True:
        return f"add --{name}"
    if value is False:
        return f"leave out --{name}"
    return f"{name} = {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def _fix(**changes: Any) -> Callable[[Facts], tuple[Fix, ...]]:
    """One way out; double underscores stand for the dots of an identity."""
    return lambda facts: (_set(facts, {key.replace("__", "."): value for key, value in changes.items()}),)


def world_changes(facts: Facts, world: int) -> dict[str, int]:
    """The options that say `world` devices, on as many nodes as now where they divide it."""
    nodes = facts.sizes.nodes
    if nodes > 0 and world % nodes == 0:
        return {DEVICES: world // nodes}
    return {NODES: 1, DEVICES: world}


def _below_one_fixes(facts: Facts) -> tuple[Fix, ...]:
    return (_set(facts, dict.fromkeys(facts.sizes.below_one, 1)),)


def _step_fixes(facts: Facts) -> tuple[Fix, ...]:
    """The nearest train batches, micro-batches and worlds that DeepSpeed takes, one at a time where that suffices."""
    s = facts.sizes
    if s.replicas < 1:
        return _world_fixes(facts)
    fixes = [_set(facts, {TRAIN: train}) for train in nearest_multiples(s.micro * s.replicas, s.train)]
    if s.train % s.replicas == 0:
        fixes += [_set(facts, {MICRO: micro}) for micro in nearest_divisors(s.train // s.replicas, s.micro)]
    if s.train % s.micro == 0:
        for replicas in nearest_divisors(s.train // s.micro, s.replicas):
            if s.completions_per_rollout // s.forward_micro >= replicas:
                fixes.append(_set(facts, world_changes(facts, replicas * s.ring * s.tensor)))
    return tuple(fixes)


def _world_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    return tuple(_set(facts, world_changes(facts, w)) for w in nearest_multiples(s.ring * s.tensor, s.world))


def _rollout_fixes(facts: Facts) -> tuple[Fix, ...]:
    """The nearest prompts per rollout and train batches that leave no completion over."""
    s = facts.sizes
    share = _least_common(s.train, s.group) // s.group
    key = ROLLOUT if s.prompts_per_rollout == s.rollout_prompts else GENERATION
    fixes = [_set(facts, {key: prompts}) for prompts in nearest_multiples(share, s.prompts_per_rollout)]
    granule = s.replicas * (1 if s.dynamic else s.micro)
    if granule and s.completions_per_rollout % granule == 0:
        steps = nearest_divisors(s.completions_per_rollout // granule, max(s.train // granule, 1))
        fixes += [_set(facts, {TRAIN: step * granule}) for step in steps]
    return tuple(fixes)


def _chunk_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    wanted = s.forward_micro * max(s.replicas, 1)
    prompts = _least_common(wanted, s.group) // s.group
    fixes = [_set(facts, {FORWARD: 1})] if s.forward_micro > 1 and s.completions_per_rollout >= s.replicas else []
    return (*fixes, *(_set(facts, {ROLLOUT: p}) for p in nearest_multiples(prompts, s.rollout_prompts)))


def _least_common(one: int, other: int) -> int:
    return one * other // math.gcd(one, other)


# ---- the parser's own checks


def _needs_group(*estimators: str) -> Callable[[Facts], str | None]:
    def test(facts: Facts) -> str | None:
        if facts[ESTIMATOR] not in estimators or facts.sizes.group > 1:
            return None
        return (
            f"{facts.said(ESTIMATOR)} compares the completions of a prompt: {facts.name(GROUP)} = {facts.sizes.group} "
            "must be above 1"
        )

    return test


def _oversampling(facts: Facts) -> str | None:
    generation = facts.sizes.generation
    if generation is None or generation <= facts.sizes.rollout_prompts or facts[ASYNC]:
        return None
    return (
        f"{facts.said(GENERATION)} (prompts) is above {facts.said(ROLLOUT)} (prompts), which needs {facts.name(ASYNC)}"
    )


def _filter_range(facts: Facts) -> str | None:
    low, high = facts["algo.dynamic_filtering_range"]
    if not facts.sizes.filtered or low < high:
        return None
    return f"{facts.name('algo.dynamic_filtering_range')} = {low:g} {high:g}: the first must be below the second"


def _filter_range_text(facts: Facts) -> str | None:
    if not facts.sizes.filtered or facts["algo.dynamic_filtering_range"] == (0.0, 1.0):
        return None
    return f"{facts.name('algo.dynamic_filtering_range')} stays text in 0.8.1, which no score can be compared with"


def _filter_reward(facts: Facts) -> str | None:
    if not facts.sizes.filtered or facts["reward.remote_url"] or facts["train.agent_func_path"]:
        return None
    return f"{facts.name(FILTER)} needs scores while it generates: a remote reward or an agent function"


def _filter_group(facts: Facts) -> str | None:
    if not facts.sizes.filtered or facts.sizes.group > 1:
        return None
    return f"{facts.name(FILTER)} filters groups: {facts.name(GROUP)} = {facts.sizes.group} must be above 1"


def _enough_chunks(facts: Facts) -> str | None:
    s = facts.sizes
    completions = s.group * s.rollout_prompts
    replicas = s.world // s.ring if holds("<0.8.1", facts.version) else s.replicas
    if completions // s.forward_micro >= replicas:
        return None
    return (
        f"{facts.name(ROLLOUT)} {s.rollout_prompts} x {facts.name(GROUP)} {s.group} = {completions} completions make "
        f"{completions // s.forward_micro} batches of {facts.name(FORWARD)} = {s.forward_micro}, fewer than the "
        f"{replicas} replicas that score them"
    )


def _chunk_minimum_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    replicas = max(s.world // s.ring if holds("<0.8.1", facts.version) else s.replicas, 1)
    completions = s.group * s.rollout_prompts
    fixes = [_set(facts, {FORWARD: completions // replicas})] if completions >= replicas else []
    prompts = -(-replicas * s.forward_micro // s.group)
    return (*fixes, *([_set(facts, {ROLLOUT: prompts})] if prompts <= LARGEST else []))


def _partial(facts: Facts) -> str | None:
    if not facts["train.partial_rollout_enable"] or facts[ASYNC]:
        return None
    return f"{facts.name('train.partial_rollout_enable')} needs {facts.name(ASYNC)}"


def _packing_engines(facts: Facts) -> str | None:
    if not facts.packs or (facts[ENGINES] or 0) > 0:
        return None
    by = [facts.name(PACKING)] if facts[PACKING] else []
    by += [facts.said(RING)] if not by and facts.sizes.ring > 1 else []
    by += [facts.name("train.dynamic_batch_enable")] if not by else []
    return f"{by[0]} packs samples, which needs vLLM engines: {facts.name(ENGINES)} = {facts[ENGINES]}"


def _asleep(facts: Facts) -> str | None:
    # Without colocation the parser turns sleeping off by itself.
    if not (facts[ASYNC] and facts["vllm.enable_sleep"] and facts["train.colocate_all"]):
        return None
    return f"{facts.name(ASYNC)} cannot run with {facts.name('vllm.enable_sleep')}"


def _evaluation_reward(facts: Facts) -> str | None:
    if not facts["eval.dataset"] or facts["reward.remote_url"] or facts["train.agent_func_path"]:
        return None
    return f"{facts.name('eval.dataset')} needs a remote reward or an agent function"


def _images(facts: Facts) -> str | None:
    if facts["data.max_images_per_prompt"] <= 0:
        return None
    broken = [facts.said(ESTIMATOR) + " trains a critic"] if facts.has_critic else []
    broken += [f"{facts.name(PACKING)} loses which image belongs to which text"] if facts[PACKING] else []
    return f"with images: {' and '.join(broken)}" if broken else None


def _threshold(facts: Facts) -> str | None:
    bounds = facts["algo.advantage.is_correction_threshold"]
    if len(bounds) <= 2:
        return None
    return f"{facts.name('algo.advantage.is_correction_threshold')} has {len(bounds)} numbers: HIGH, or LOW HIGH"


# ---- what OpenRLHF notices later


def _below_one(facts: Facts) -> str | None:
    below = facts.sizes.below_one
    if not below:
        return None
    return ", ".join(f"{facts.name(identity)} = {value}" for identity, value in below.items()) + ": must be at least 1"


def _engines_cover(facts: Facts) -> str | None:
    engines, ranks = facts[ENGINES], facts["vllm.tensor_parallel_size"]
    if not facts["train.colocate_all"] or facts[ASYNC] or not engines or engines < 1:
        return None
    if facts.sizes.world == engines * ranks:
        return None
    return (
        f"{facts.name('train.colocate_all')}: {facts.sizes.world} devices train, and {facts.name(ENGINES)} {engines} x "
        f"{facts.name('vllm.tensor_parallel_size')} {ranks} = {engines * ranks} devices generate; they must be the same"
    )


def _engine_fixes(facts: Facts) -> tuple[Fix, ...]:
    world, ranks = facts.sizes.world, facts["vllm.tensor_parallel_size"]
    fixes = [_set(facts, {ENGINES: world // ranks})] if ranks > 0 and world % ranks == 0 else []
    if 0 < facts[ENGINES] * ranks <= LARGEST:
        fixes.append(_set(facts, world_changes(facts, facts[ENGINES] * ranks)))
    return tuple(fixes)


def _same_places(first: str, second: str, facts: Facts) -> str | None:
    broken = [
        f"{facts.said(f'{first}.{part}')} and {facts.said(f'{second}.{part}')}"
        for part in ("num_nodes", "num_gpus_per_node")
        if facts[f"{first}.{part}"] != facts[f"{second}.{part}"]
    ]
    return f"colocated models need the same devices: {', '.join(broken)}" if broken else None


def _reference_place(facts: Facts) -> str | None:
    colocated = facts["train.colocate_actor_ref"] or facts["train.colocate_all"]
    # A world size that was asked for beside the options stands for all colocated models.
    if not colocated or facts["algo.kl.init_coef"] <= 0 or facts.sizes.asked:
        return None
    return _same_places("actor", "ref", facts)


def _reward_place(facts: Facts) -> str | None:
    if not facts["train.colocate_critic_reward"] or not facts.has_critic:
        return None
    return _same_places("critic", "reward", facts)


def _place_fixes(first: str, second: str) -> Callable[[Facts], tuple[Fix, ...]]:
    parts = ("num_nodes", "num_gpus_per_node")
    return lambda facts: (_set(facts, {f"{second}.{part}": facts[f"{first}.{part}"] for part in parts}),)


def _whole_replicas(facts: Facts) -> str | None:
    s = facts.sizes
    if s.whole_replicas:
        return None
    return (
        f"{s.world} devices cannot be shared out to replicas of {facts.name(RING)} {s.ring} x {facts.name(TENSOR)} "
        f"{s.tensor} devices"
    )


def _whole_steps(facts: Facts) -> str | None:
    s = facts.sizes
    if s.dynamic or not s.whole_replicas or s.whole_accumulation:
        return None
    return (
        f"{facts.said(TRAIN)} (completions per optimizer step) is no multiple of {facts.name(MICRO)} {s.micro} x "
        f"{s.replicas} replicas = {s.micro * s.replicas}"
    )


def _tensor_precision(facts: Facts) -> str | None:
    if facts.sizes.tensor <= 1 or precision(facts.settings, facts.version) == "bf16":
        return None
    return f"{facts.said(TENSOR)} needs bf16"


def _tensor_precision_fixes(facts: Facts) -> tuple[Fix, ...]:
    new = holds(">=0.9.2", facts.version)
    return (_set(facts, {"ds.param_dtype": "bf16"} if new else {"bf16": True}),)


def _schedule_arguments(facts: Facts) -> str | None:
    name = facts["actor.lr_scheduler"]
    if name in (*MIN_LR_SCHEDULES, "constant", "constant_with_warmup"):
        return None
    return f"{facts.said('actor.lr_scheduler')} gets a floor for the learning rate that it does not take"


SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
)
"""Source: transformers 5.23.0 SchedulerType."""


def _schedule_name(facts: Facts) -> str | None:
    if facts["actor.lr_scheduler"] in SCHEDULES:
        return None
    return f"{facts.said('actor.lr_scheduler')} is no schedule of transformers"


def _dual_clip(facts: Facts) -> str | None:
    value = facts["actor.dual_clip"]
    return None if value is None or value > 1 else f"{facts.said('actor.dual_clip')}: must be above 1"


def _correction(facts: Facts) -> str | None:
    level = facts["algo.advantage.is_correction_level"]
    mode, gating = facts["algo.advantage.is_correction_mode"], facts["algo.advantage.is_correction_gating"]
    bounds = facts["algo.advantage.is_correction_threshold"]
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        return f"{facts.said('algo.advantage.is_correction_mode')}: only a token's ratio can be clipped"
    if gating != "ratio" and level != "off" and len(bounds) == 2 and bounds[0] > 0:
        return (
            f"{facts.said('algo.advantage.is_correction_gating')} is bounded from above only; "
            f"{facts.name('algo.advantage.is_correction_threshold')} has the lower bound {bounds[0]:g}"
        )
    return None


def _correction_fixes(facts: Facts) -> tuple[Fix, ...]:
    if facts["algo.advantage.is_correction_mode"] == "clip":
        return (_set(facts, {"algo.advantage.is_correction_mode": "mask"}),)
    bounds = facts["algo.advantage.is_correction_threshold"]
    return (_set(facts, {"algo.advantage.is_correction_threshold": bounds[-1:]}),)


def _queue(facts: Facts) -> str | None:
    if not facts[ASYNC] or facts["train.async_queue_size"] > 0:
        return None
    return f"{facts.said('train.async_queue_size')}: must be at least 1"


def _uneven_ranks(facts: Facts) -> str | None:
    s = facts.sizes
    if s.dynamic or s.replicas < 2 or s.filtered:
        return None
    completions, chunk = s.completions_per_rollout, s.forward_micro
    if completions % (chunk * s.replicas) == 0 or completions // chunk < s.replicas:
        return None
    return (
        f"{completions} completions per rollout are no multiple of {facts.name(FORWARD)} {chunk} x {s.replicas} "
        "replicas: the last replicas get fewer of them, while every micro-batch waits for all replicas"
    )


# ---- what OpenRLHF never notices


def _last_micro_batch(facts: Facts) -> str | None:
    s, stage = facts.sizes, facts["ds.zero_stage"]
    if not s.dynamic or stage not in (1, 2):
        return None
    longest = facts["data.max_len"] or (facts["prompt_max_len"] or 0) + (facts["generate_max_len"] or 0)
    budget = facts["train.max_tokens_per_gpu"] * s.ring * s.tensor
    if longest and s.train // max(s.replicas, 1) * longest <= budget:
        return None  # a step is one micro-batch
    return (
        f"{facts.name('train.dynamic_batch_enable')} with {facts.said('ds.zero_stage')}: only the last micro-batch of "
        "an optimizer step is applied, the gradients of the others are lost"
    )


def _unseeded_order(facts: Facts) -> str | None:
    return f"{facts.said('train.seed')} does not order the prompts: every launch sees another order"


def _left_over(facts: Facts) -> str | None:
    s = facts.sizes
    completions = s.completions_per_rollout
    if completions % s.train == 0:
        return None
    rest = completions % s.train
    start = f"a rollout has {completions} completions: {facts.said(TRAIN)} leaves {rest} over"
    if s.dynamic:
        return f"{start}, which are generated and never trained on"
    return (
        f"{start}; whole micro-batches of them go into the next pass's or rollout's first step, weighed as if they "
        "were a step of their own, the rest is dropped"
    )


def _tail(facts: Facts) -> str | None:
    prompts, s = facts.trained_prompts, facts.sizes
    if prompts is None or not (rest := prompts % s.prompts_per_rollout):
        return None
    completions = rest * s.group
    message = (
        f"every episode ends with a rollout of {rest} instead of {s.prompts_per_rollout} prompts ({completions} "
        "completions)"
    )
    if completions % s.train == 0 and not s.dynamic:
        return message
    if completions < s.train:
        return f"{message}, which make no optimizer step of {facts.said(TRAIN)} by themselves"
    return f"{message}: {completions % s.train} of them are left over from its optimizer steps"


def _tail_dropped(facts: Facts) -> str | None:
    prompts, s = facts.trained_prompts, facts.sizes
    if prompts is None or not (rest := prompts % s.prompts_per_rollout):
        return None
    if prompts < s.prompts_per_rollout:
        return f"{prompts} prompts do not fill a rollout of {s.prompts_per_rollout}: nothing is trained"
    return f"{rest} of {prompts} prompts are dropped in every episode"


def _dataset_fixes(facts: Facts) -> tuple[Fix, ...]:
    prompts = facts.trained_prompts or 0
    if prompts < 1:
        return ()
    s = facts.sizes
    sizes = nearest_divisors(prompts, s.rollout_prompts, lambda size: size * s.group % s.train == 0)
    return tuple(_set(facts, {ROLLOUT: size}) for size in sizes)


def _split_dependent(facts: Facts) -> str | None:
    s = facts.sizes
    old = holds("<0.10.3", facts.version)
    by_token = (facts["algo.kl.use_loss"] and facts["algo.kl.init_coef"]) or facts["actor.entropy_coef"]
    if (s.dynamic and not old) or (sequence_mean(facts.settings, facts.version) and not by_token):
        return None
    if not s.dynamic and s.accumulation * (s.replicas if old else 1) <= 1:
        return None
    over = "each replica's micro-batch" if old else "each micro-batch over all replicas"
    return (
        f"the loss is averaged over {over} and then over micro-batches: with unequal lengths the gradient depends on "
        f"the split"
    )


def _other_rollout(facts: Facts) -> str | None:
    s = facts.sizes
    generation = s.generation
    if generation is None or generation == s.rollout_prompts:
        return None
    name = f"{facts.name(GENERATION)} = {generation}"
    if holds(">=0.9.1,<0.10.0", facts.version):
        return f"{name} is not read: rollouts have {facts.said(ROLLOUT)} prompts"
    if s.prompts_per_rollout == s.rollout_prompts:
        return None
    return f"{name}: a rollout trains on {s.prompts_per_rollout} prompts, not on {facts.said(ROLLOUT)}"


def _filter_discards(facts: Facts) -> str | None:
    if not facts.sizes.filtered:
        return None
    return (
        f"{facts.name(FILTER)}: when an episode's prompts run out before a rollout is full, the groups that passed are "
        "thrown away; a small dataset may train nothing"
    )


def _uneven_dynamic(facts: Facts) -> str | None:
    s = facts.sizes
    if not s.dynamic or s.replicas < 1 or s.train % s.replicas == 0:
        return None
    return (
        f"{facts.said(TRAIN)} over {s.replicas} replicas is rounded down to {s.train // s.replicas} each: a step "
        f"trains {s.train // s.replicas * s.replicas} completions"
    )


def _dynamic_step_fixes(facts: Facts) -> tuple[Fix, ...]:
    return tuple(_set(facts, {TRAIN: train}) for train in nearest_multiples(facts.sizes.replicas, facts.sizes.train))


def _fewer_prompts(facts: Facts) -> str | None:
    if facts.prompts is None or facts.prompts <= facts["data.max_samples"]:
        return None
    return (
        f"{facts.said('data.max_samples')}: the other {facts.prompts - facts['data.max_samples']} prompts are not seen"
    )


def _no_room(facts: Facts) -> str | None:
    total, completion = facts["data.max_len"], facts["rollout.max_new_tokens"]
    if completion is None or completion < total:
        return None
    return f"{facts.said('rollout.max_new_tokens')} leaves no room for a prompt in {facts.said('data.max_len')}"


def _idle_first_step(facts: Facts) -> str | None:
    ratio, name = facts["actor.lr_warmup_ratio"], facts["actor.lr_scheduler"]
    if ratio <= 0 or name == "constant":
        return None
    return (
        f"{facts.said('actor.lr_warmup_ratio')}: the first optimizer step has the learning rate 0 and changes nothing"
    )


def _forced_packing(facts: Facts) -> str | None:
    if facts[PACKING] or not facts.packs:
        return None
    return f"{facts.name(PACKING)} is turned on, by ring attention or dynamic batches"


def _token_gspo(facts: Facts) -> str | None:
    if facts["actor.policy_loss_type"] != "gspo" or sequence_mean(facts.settings, facts.version):
        return None
    return "gspo is averaged over tokens, and over sequences from 0.8.9 on"


def _uncarried(facts: Facts) -> str | None:
    said: list[str] = []
    row = next((r for r in ESTIMATORS if r.name == facts[ESTIMATOR] and holds(r.versions, facts.version)), None)
    if row is not None and row.scale == "batch":
        said.append("advantages are centred once more, over the rollout's tokens, and scaled there")
    if facts.has_critic:
        keys = ("algo.advantage.gamma", "algo.advantage.lambd", "critic.adam.lr", "critic.value_clip")
        said.append("a critic: " + ", ".join(map(facts.said, (*keys, "critic.freezing_steps"))))
    low, high = facts["reward.clip_range"]
    if row is None or row.baseline in ("group_mean", "leave_one_out"):
        said.append(f"rewards are clipped to [{low:g}, {high:g}] after the baseline is subtracted")
    for identity, meaning in _UNCARRIED.items():
        if identity in facts.names and (value := facts[identity]) and value != _SILENT.get(identity):
            said.append(f"{facts.said(identity)} ({meaning})")
    return f"the schema has no field for: {'; '.join(said)}" if said else None


_UNCARRIED = {
    "algo.kl.target": "the KL coefficient follows the KL",
    "train.enable_ema": "moving average of the weights",
    "ds.lora.rank": "LoRA",
    "ds.load_in_4bit": "quantised weights",
    "reward.overlong_buffer_len": "penalty for long completions",
    "reward.stop_properly_penalty_coef": "penalty for truncated completions",
    "reward.normalize_enable": "reward normalisation",
    "data.prompt_probs": "mixed datasets",
    "train.partial_rollout_enable": "weights change inside a completion",
}
"""Options that change training and have no canonical field."""
_SILENT: Mapping[str, Any] = {"data.prompt_probs": "1.0"}


_PARSER = "openrlhf {} cli/train_ppo_ray.py, below parse_args"
_ALL = "openrlhf 0.8.0 to 0.11.2"

RULES: tuple[Rule, ...] = (
    Rule(
        "BB-ORL-010",
        "error",
        "worker_start",
        _below_one,
        (ROLLOUT, GROUP, TRAIN, MICRO, FORWARD, NODES, DEVICES, RING, TENSOR),
        native="ZeroDivisionError, or an assertion of DeepSpeed or Ray",
        source=f"{_ALL} cli/train_ppo_ray.py and DeepspeedStrategy.setup_distributed",
        fixes=_below_one_fixes,
        positive_sizes=False,
    ),
    # The parser's own checks.
    Rule(
        "BB-ORL-011",
        "error",
        "config",
        _needs_group("rloo", "reinforce_baseline", "group_norm"),
        (ESTIMATOR, GROUP),
        native="AssertionError: requires n_samples_per_prompt > 1",
        source=_PARSER.format("0.8.0 to 0.10.4"),
        fixes=_fix(rollout__n_samples_per_prompt=2),
        versions="<0.11",
    ),
    Rule(
        "BB-ORL-012",
        "error",
        "config",
        _needs_group("rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
        (ESTIMATOR, GROUP),
        native="AssertionError: requires n_samples_per_prompt > 1",
        source=_PARSER.format("0.11.0 to 0.11.2"),
        fixes=_fix(rollout__n_samples_per_prompt=2),
        versions=">=0.11",
    ),
    Rule(
        "BB-ORL-013",
        "error",
        "config",
        _oversampling,
        (GENERATION, ROLLOUT, ASYNC),
        native="AssertionError: vllm_generate_batch_size > rollout_batch_size requires async training",
        source=_PARSER.format("0.10.0 to 0.11.2"),
        fixes=lambda facts: (
            _set(facts, {GENERATION: facts.sizes.rollout_prompts}),
            _set(facts, {ASYNC: True}),
        ),
        versions=">=0.10.0",
    ),
    Rule(
        "BB-ORL-014",
        "error",
        "config",
        _filter_range,
        ("algo.dynamic_filtering_range",),
        native="AssertionError: reward_clip_range[0] must be less than reward_clip_range[1]",
        source=_PARSER.format("0.8.1.post1 to 0.11.2"),
        fixes=_fix(algo__dynamic_filtering_range=(0.0, 1.0)),
        versions=">=0.8.1.post1",
    ),
    Rule(
        "BB-ORL-024",
        "error",
        "first_rollout",
        _filter_range_text,
        ("algo.dynamic_filtering_range",),
        native="TypeError: '<' not supported between a text and a number",
        source="openrlhf 0.8.1 cli/train_ppo_ray.py: the option has no type",
        fixes=_fix(algo__dynamic_filtering_range=None),
        versions=">=0.8.1,<0.8.1.post1",
    ),
    Rule(
        "BB-ORL-015",
        "error",
        "config",
        _filter_reward,
        (FILTER, "reward.remote_url", "train.agent_func_path"),
        native="AssertionError: remote_rm_url or agent_func_path must be specified when using dynamic filtering",
        source=_PARSER.format("0.8.1 to 0.11.2"),
        versions=">=0.8.1",
    ),
    Rule(
        "BB-ORL-016",
        "error",
        "config",
        _filter_group,
        (FILTER, GROUP),
        native="AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
        source=_PARSER.format("0.8.1 to 0.11.2"),
        fixes=_fix(rollout__n_samples_per_prompt=2),
        versions=">=0.8.1",
    ),
    Rule(
        "BB-ORL-017",
        "error",
        "config",
        _enough_chunks,
        (ROLLOUT, GROUP, FORWARD, NODES, DEVICES),
        native=(
            "AssertionError: The number of sample batches must be greater than or equal to the effective number of "
            "actor processes."
        ),
        source=_PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
        fixes=_chunk_minimum_fixes,
    ),
    Rule(
        "BB-ORL-018",
        "error",
        "config",
        _partial,
        ("train.partial_rollout_enable", ASYNC),
        native="AssertionError: partial rollouts require async training",
        source=_PARSER.format("0.9.7 to 0.11.2"),
        fixes=lambda facts: (_set(facts, {ASYNC: True}), _set(facts, {"train.partial_rollout_enable": False})),
        versions=">=0.9.7",
    ),
    Rule(
        "BB-ORL-019",
        "error",
        "config",
        _packing_engines,
        (PACKING, ENGINES),
        native="AssertionError: Only support `--packing_samples` with vLLM.; TypeError where the option is not given",
        source=_PARSER.format("0.8.0 to 0.11.2"),
        fixes=_fix(vllm__num_engines=1),
    ),
    Rule(
        "BB-ORL-020",
        "error",
        "config",
        _asleep,
        (ASYNC, "vllm.enable_sleep"),
        native="AssertionError: Async RLHF is not supported with vllm_enable_sleep",
        source=_PARSER.format("0.8.0 to 0.11.2"),
        fixes=_fix(vllm__enable_sleep=False),
    ),
    Rule(
        "BB-ORL-021",
        "error",
        "config",
        _evaluation_reward,
        ("eval.dataset", "reward.remote_url", "train.agent_func_path"),
        native="AssertionError: `--eval_dataset` is only supported with `--remote_rm_url`",
        source=_PARSER.format("0.8.0 to 0.11.2"),
        fixes=_fix(eval__dataset=None),
    ),
    Rule(
        "BB-ORL-022",
        "error",
        "config",
        _images,
        ("data.max_images_per_prompt", ESTIMATOR, PACKING),
        native="AssertionError: VLM training does not support critic model, or --packing_samples",
        source=_PARSER.format("0.10.0 to 0.11.2"),
        fixes=lambda facts: (
            _set(facts, {ESTIMATOR: "reinforce_baseline", PACKING: False, GROUP: max(facts.sizes.group, 2)}),
        ),
        versions=">=0.10.0",
    ),
    Rule(
        "BB-ORL-023",
        "error",
        "config",
        _threshold,
        ("algo.advantage.is_correction_threshold",),
        native="AssertionError: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH",
        source=_PARSER.format("0.11.2"),
        fixes=lambda facts: (
            _set(
                facts,
                {"algo.advantage.is_correction_threshold": facts["algo.advantage.is_correction_threshold"][:2]},
            ),
        ),
        versions=">=0.11.2",
    ),
    # Noticed later.
    Rule(
        "BB-ORL-030",
        "error",
        "construction",
        _engines_cover,
        ("train.colocate_all", NODES, DEVICES, ENGINES, "vllm.tensor_parallel_size"),
        native=(
            "AssertionError: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
            "vllm_tensor_parallel_size"
        ),
        source=f"{_ALL} cli/train_ppo_ray.py train",
        fixes=_engine_fixes,
    ),
    Rule(
        "BB-ORL-031",
        "error",
        "construction",
        _reference_place,
        ("ref.num_nodes", "ref.num_gpus_per_node", NODES, DEVICES),
        native="AssertionError: num_nodes and num_gpus_per_node must be the same when colocate actor and ref model.",
        source=f"{_ALL} cli/train_ppo_ray.py train",
        fixes=_place_fixes("actor", "ref"),
    ),
    Rule(
        "BB-ORL-032",
        "error",
        "construction",
        _reward_place,
        ("critic.num_nodes", "critic.num_gpus_per_node", "reward.num_nodes", "reward.num_gpus_per_node"),
        native="AssertionError: num_nodes and num_gpus_per_node must be the same when colocate critic and reward model",
        source=f"{_ALL} cli/train_ppo_ray.py train",
        fixes=_place_fixes("critic", "reward"),
    ),
    Rule(
        "BB-ORL-033",
        "error",
        "worker_start",
        _whole_replicas,
        (NODES, DEVICES, RING, TENSOR),
        native="RuntimeError of torch's init_device_mesh: the mesh does not have the size of the world",
        source=f"{_ALL} DeepspeedStrategy.setup_distributed",
        fixes=_world_fixes,
    ),
    Rule(
        "BB-ORL-034",
        "error",
        "worker_start",
        _whole_steps,
        (TRAIN, MICRO, NODES, DEVICES),
        native=(
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size (after vLLM and the models are loaded)"
        ),
        source="deepspeed 0.19.6 DeepSpeedConfig, with openrlhf 0.8.0 to 0.11.2 get_ds_train_config",
        fixes=_step_fixes,
    ),
    Rule(
        "BB-ORL-035",
        "error",
        "worker_start",
        _tensor_precision,
        (TENSOR, "ds.param_dtype", "bf16"),
        native="AssertionError: BF16 is required for tensor parallel training",
        source=f"{_ALL} DeepspeedStrategy.__init__",
        fixes=_tensor_precision_fixes,
    ),
    Rule(
        "BB-ORL-036",
        "error",
        "worker_start",
        _schedule_name,
        ("actor.lr_scheduler",),
        native="ValueError: not a valid SchedulerType",
        source="transformers 5.23.0 get_scheduler",
        fixes=_fix(actor__lr_scheduler="cosine_with_min_lr"),
        versions=">=0.8.5",
    ),
    Rule(
        "BB-ORL-037",
        "error",
        "worker_start",
        _schedule_arguments,
        ("actor.lr_scheduler",),
        native="TypeError: unexpected keyword argument 'min_lr' or 'min_lr_rate'",
        source="openrlhf 0.8.5 to 0.10.3 init_model_from_pretrained, prepare; transformers 5.23.0 get_scheduler",
        fixes=lambda facts: (
            _set(facts, {"actor.lr_scheduler": "cosine_with_min_lr"}),
            _set(facts, {"actor.lr_scheduler": "constant_with_warmup"}),
        ),
        versions=">=0.8.5,<0.10.4",
    ),
    Rule(
        "BB-ORL-038",
        "error",
        "worker_start",
        _dual_clip,
        ("actor.dual_clip",),
        native="AssertionError: dual_clip must be > 1.0",
        source="openrlhf 0.8.6 to 0.11.2 PolicyLoss.__init__",
        fixes=_fix(actor__dual_clip=3.0),
        versions=">=0.8.6",
    ),
    Rule(
        "BB-ORL-039",
        "error",
        "worker_start",
        _correction,
        tuple(f"algo.advantage.is_correction_{part}" for part in ("level", "mode", "gating", "threshold")),
        native="ValueError of PolicyLoss",
        source="openrlhf 0.11.2 PolicyLoss.__init__",
        fixes=_correction_fixes,
        versions=">=0.11.2",
    ),
    Rule(
        "BB-ORL-040",
        "error",
        "worker_start",
        _queue,
        ("train.async_queue_size",),
        native="ValueError: async_queue_size must be positive",
        source="openrlhf 0.9.1 to 0.11.2 PPOTrainerAsync.__init__",
        fixes=_fix(train__async_queue_size=1),
        versions=">=0.9.1",
    ),
    Rule(
        "BB-ORL-041",
        "warning",
        "first_rollout",
        _uneven_ranks,
        (ROLLOUT, GROUP, FORWARD, NODES, DEVICES),
        native="it may hang in a collective (read from the code, not run)",
        source="openrlhf 0.11.2 launcher.py async_run_method_batch, ExperienceMaker.split_rollout_samples",
        fixes=_chunk_fixes,
    ),
    # Never noticed.
    Rule(
        "BB-ORL-042",
        "error",
        "never",
        _last_micro_batch,
        ("train.dynamic_batch_enable", "ds.zero_stage", "train.max_tokens_per_gpu"),
        native="it trains on, and logs the last micro-batch's gradient norm",
        source=(
            "measured: openrlhf 0.11.2, deepspeed 0.19.6 stage_1_and_2.py, float32 on CPU; the same calls in openrlhf "
            "0.8.6 to 0.11.1"
        ),
        fixes=_fix(ds__zero_stage=3),
        versions=">=0.8.6",
    ),
    Rule(
        "BB-ORL-043",
        "warning",
        "never",
        _unseeded_order,
        ("train.seed",),
        native="the prompt loader draws its seed from a process that nobody seeds",
        source="measured: openrlhf 0.11.2 DeepspeedStrategy.setup_dataloader in PPOTrainer; read: 0.8.1 to 0.11.1",
        versions=">=0.8.1",
    ),
    Rule(
        "BB-ORL-044",
        "warning",
        "never",
        _left_over,
        (ROLLOUT, GROUP, TRAIN, GENERATION),
        native="DeepSpeed counts micro-batches over the whole run; the replay buffer drops its tail",
        source="measured: openrlhf 0.11.2 ActorPPOTrainer.ppo_train, iter_grad_accum_global_norm, setup_dynamic_batch",
        fixes=_rollout_fixes,
    ),
    Rule(
        "BB-ORL-045",
        "warning",
        "never",
        _tail,
        (ROLLOUT, GROUP, TRAIN),
        native="the short rollout is trained on as far as its micro-batches fill optimizer steps",
        source="measured: openrlhf 0.11.2 SamplesGenerator.generate_samples; read: 0.9.9 to 0.11.1",
        fixes=_dataset_fixes,
        versions=">=0.9.9",
    ),
    Rule(
        "BB-ORL-046",
        "warning",
        "never",
        _tail_dropped,
        (ROLLOUT,),
        native="the prompts are skipped without a word",
        source="openrlhf 0.8.0 to 0.9.0 setup_dataloader(drop_last=True), 0.9.1 to 0.9.8 _generate_vllm",
        fixes=_dataset_fixes,
        versions=DROPPED_TAIL,
    ),
    Rule(
        "BB-ORL-047",
        "warning",
        "never",
        _split_dependent,
        (MICRO, TRAIN, NODES, DEVICES),
        native="masked_mean or aggregate_loss of each micro-batch",
        source="openrlhf 0.8.0 to 0.10.2 PolicyLoss.forward, 0.10.3 get_loss_batch_info; 0.10.4 counts over the step",
        versions="<0.10.4",
    ),
    Rule(
        "BB-ORL-048",
        "warning",
        "never",
        _other_rollout,
        (GENERATION, ROLLOUT),
        native="no message",
        source=(
            "openrlhf 0.8.1 to 0.9.0 PPOTrainer.fit, 0.9.1 to 0.9.10 (not read), 0.10.0 to 0.11.2 "
            "SamplesGenerator.generate_samples"
        ),
        fixes=lambda facts: (_set(facts, {GENERATION: facts.sizes.rollout_prompts}),),
        versions=">=0.8.1",
    ),
    Rule(
        "BB-ORL-049",
        "warning",
        "never",
        _filter_discards,
        (FILTER, ROLLOUT),
        native="the run ends, perhaps without an optimizer step",
        source="OpenRLHF issue 1310; openrlhf 0.8.1 to 0.9.0 PPOTrainer.fit, 0.9.1 to 0.11.0 _generate_vllm",
        versions=">=0.8.1,<0.11.1",
    ),
    Rule(
        "BB-ORL-050",
        "warning",
        "never",
        _uneven_dynamic,
        (TRAIN, NODES, DEVICES),
        native="DeepSpeed's own check of the train batch is off with dynamic batches",
        source="openrlhf 0.8.6 to 0.11.2 NaiveReplayBuffer.setup_dynamic_batch",
        fixes=_dynamic_step_fixes,
        versions=">=0.8.6",
    ),
    Rule(
        "BB-ORL-051",
        "warning",
        "never",
        _no_room,
        ("rollout.max_new_tokens", "data.max_len"),
        native="sequences are cut at data.max_len",
        source="openrlhf 0.9.8 to 0.11.2 SamplesGenerator",
        versions=">=0.9.8",
    ),
    Rule(
        "BB-ORL-060",
        "note",
        "never",
        _uncarried,
        (ESTIMATOR, "reward.clip_range"),
        native="no message",
        source=f"{_ALL} ExperienceMaker.compute_advantages_and_returns, ActorPPOTrainer, CriticPPOTrainer",
    ),
    Rule(
        "BB-ORL-061",
        "note",
        "never",
        _idle_first_step,
        ("actor.lr_warmup_ratio",),
        native="parameters are unchanged by the first step",
        source="measured: openrlhf 0.11.2 with cosine_with_min_lr",
    ),
    Rule(
        "BB-ORL-062",
        "note",
        "never",
        _forced_packing,
        (PACKING, RING, "train.dynamic_batch_enable"),
        native="a printed warning",
        source=_PARSER.format("0.8.4 (ring attention), 0.8.6 (dynamic batches) to 0.11.2"),
    ),
    Rule(
        "BB-ORL-063",
        "note",
        "never",
        _fewer_prompts,
        ("data.max_samples",),
        native="no message",
        source=f"{_ALL} prepare_datasets",
    ),
    Rule(
        "BB-ORL-064",
        "note",
        "never",
        _token_gspo,
        ("actor.policy_loss_type",),
        native="no message",
        source="openrlhf 0.8.8 PolicyLoss",
        versions=">=0.8.8,<0.8.9",
    ),
)

"""The meaning of OpenRLHF's options: settings by identity to a canonical spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.key_table import Key, Unsayable, field_values, keys_of
from batchbridge.kit.kinds import anything, one_of
from batchbridge.kit.records import dataclass
from batchbridge.kit.schedules import WITHOUT_WARMUP, schedule_text
from batchbridge.kit.score_ranges import group_filter
from batchbridge.kit.values import FieldValue
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.critic_words import told_of_critic
from batchbridge_openrlhf.settings import holds
from batchbridge_openrlhf.sizes import SHARED_PROMPTS, OpenRlhfSizes

UNSEEDED = ">=0.8.1"
"""Versions whose prompt loader lives in a process that nobody seeds. Source: openrlhf 0.11.2 (run), 0.8.1 to 0.11.1
DeepspeedStrategy.setup_dataloader in PPOTrainer; in 0.8.0 it is a DistributedSampler keyed by the seed."""
BY_SEQUENCE, KL_BY_SEQUENCE = "<0.7.0", "<=0.7.1"
"""Versions whose policy loss, and whose KL in the loss, are means over sequences. Source: openrlhf 0.5.2 to 0.6.4
PolicyLoss.forward, 0.6.0 to 0.7.1 training_step (`kl_mean.mean()`); from 0.7.0 and 0.7.1.post1 on over tokens."""
KL_CLAMP = 10.0
"""Bound of the KL estimate. Source: openrlhf 0.8.6 to 0.11.2 compute_approx_kl; none before."""


@dataclass(frozen=True)
class OpenRlhfEstimator:
    """One `algo.advantage.estimator`: what it subtracts and divides by, in the versions where that holds."""

    name: str
    baseline: str
    scale: str
    source: str
    versions: str = ""


_BEFORE = "openrlhf 0.8.0 to 0.8.4 ExperienceMaker.compute_advantages_and_returns"
_SINCE = "openrlhf 0.8.5 to 0.11.2 ExperienceMaker.compute_advantages_and_returns"
ESTIMATORS = (
    OpenRlhfEstimator("group_norm", "group_mean", "group", f"{_BEFORE}; {_SINCE}"),
    OpenRlhfEstimator("dr_grpo", "group_mean", "none", f"{_BEFORE}; {_SINCE}"),
    OpenRlhfEstimator("rloo", "leave_one_out", "none", _SINCE, ">=0.8.5"),
    OpenRlhfEstimator("rloo", "leave_one_out", "batch", _BEFORE, "<0.8.5"),
    OpenRlhfEstimator("reinforce_baseline", "group_mean", "batch", f"{_BEFORE}; {_SINCE}"),
    OpenRlhfEstimator("reinforce", "none", "batch", f"{_BEFORE}; {_SINCE}"),
    OpenRlhfEstimator("gae", "value", "batch", f"{_BEFORE}; {_SINCE}"),
)
"""Estimators of the advantage; of two that mean the same, `write` takes the first."""
_FIXED_THERE = "fixed in openrlhf's compute_advantages_and_returns"
SCALED: Mapping[str, Mapping[str, FieldValue]] = {
    "group": {"epsilon": FieldValue(1e-9, None, _FIXED_THERE), "ddof": FieldValue(1, None, "torch's std")},
    "batch": {
        "epsilon": FieldValue(0.0, None, "openrlhf holds the variance above 1e-8 instead"),
        "ddof": FieldValue(0, None, _FIXED_THERE),
    },
}
"""`advantage.scale` to what is fixed with it: of group_norm, and of the whitening over a rollout's tokens. Source: as
`ESTIMATORS`."""

CORRECTION_WORDS = {
    ("token", "clip", "ratio"): "token_truncate",
    ("token", "mask", "ratio"): "token_mask",
    ("seq", "mask", "ratio"): "sequence_geometric_mask",
    ("token", "mask", "binary_kl"): "token_binary_kl_mask",
    ("seq", "mask", "binary_kl"): "sequence_binary_kl_mask",
    ("token", "mask", "tv"): "token_tv_mask",
    ("seq", "mask", "tv"): "sequence_tv_mask",
}
"""Level, mode and gating to the correction's name; masked units lose their weight, the others keep the token's ratio.
Source: openrlhf 0.11.2 PolicyLoss.forward."""
TYPES = {
    "tis": ("token", "clip", "ratio"),
    "icepop": ("token", "mask", "ratio"),
    "mis": ("seq", "mask", "ratio"),
    "seq-mask-tis": ("seq", "mask", "ratio"),
}
"""The older names. Source: openrlhf 0.9.3 to 0.11.1 PolicyLoss.forward."""

MIN_LR_SCHEDULES = ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
"""Schedules that take the floor. Source: openrlhf 0.11.2 DeepspeedStrategy.prepare."""


def _episodes(epochs: float) -> int:
    if epochs != int(epochs):
        raise Unsayable("openrlhf counts whole episodes", nearest=({"horizon.epochs": float(max(round(epochs), 1))},))
    return int(epochs)


def _flag_of_bf16(precision: str) -> bool:
    if precision != "bf16":
        bf16 = {"carried.precision": "bf16"}
        raise Unsayable("openrlhf before 0.9.2 has bf16 or the checkpoint's own", nearest=(bf16,))
    return True


KEYS: tuple[Key, ...] = (
    Key(names.TENSOR, anything, field="topology.tensor_parallel"),
    Key(names.RING, anything, field="topology.context_parallel"),
    Key(names.GROUP, anything, field="rollout.completions_per_prompt"),
    Key(names.TRAIN, anything, field="optimizer_step.completions_per_step"),
    Key(names.PASSES, anything, field="optimizer_step.passes_per_rollout"),
    Key(names.EPISODES, anything, field="horizon.epochs", values=(float, _episodes)),
    Key("train.seed", anything, field="order.seed", versions="<0.8.1"),
    Key(names.ASYNC, anything, field="staleness.mode", values={False: "sync", True: "bounded"}),
    Key("actor.policy_loss_type", anything, field="objective.ratio_level", values={"ppo": "token", "gspo": "sequence"}),
    Key("actor.dual_clip", anything, field="objective.dual_clip"),
    Key(names.CLIP_RANGE, anything, field="objective.reward_clip", values=(lambda pair: pair[1], lambda b: (-b, b))),
    Key(
        "actor.entropy_coef",
        anything,
        field="objective.entropy_coefficient",
        values=(lambda c: c or 0.0, lambda c: c or None),
    ),
    Key("algo.kl.init_coef", anything, field="objective.kl_coefficient"),
    Key("actor.optim", anything, field="carried.optimizer", values={"adam": "adamw", "muon": "muon"}),
    Key("actor.adam.eps", anything, field="carried.optimizer_epsilon"),
    Key("actor.adam.weight_decay", anything, field="carried.weight_decay"),
    Key("actor.max_norm", anything, field="carried.max_gradient_norm"),
    Key("actor.aux_loss_coef", anything, field="carried.router_loss_coefficient"),
    Key("rollout.temperature", anything, field="carried.temperature"),
    Key("rollout.top_p", anything, field="carried.top_p"),
    Key("prompt_max_len", anything, field="carried.max_prompt_tokens", versions="<0.9.8"),
    Key("generate_max_len", anything, field="carried.max_completion_tokens", versions="<0.9.8"),
    Key("rollout.max_new_tokens", anything, field="carried.max_completion_tokens", versions=">=0.9.8"),
    Key(
        "bf16",
        anything,
        field="carried.precision",
        values=(lambda on: "bf16" if on else None, _flag_of_bf16),
        versions="<0.9.2",
    ),
    Key("ds.param_dtype", one_of("bf16", "fp16"), field="carried.precision", versions=">=0.9.2"),
)
"""Options that decide a canonical field alone: read and written by the row."""
FIXED: Mapping[str, tuple[Any, str]] = {
    "order.prompt_shuffle": ("epoch_permutation", "openrlhf always shuffles prompts"),
    "order.last_optimizer_step": ("drop", "micro-batches that fill no optimizer step are never applied"),
    "horizon.lr_tick": ("optimizer_step", "DeepSpeed advances the schedule with each optimizer step"),
    "carried.top_k": (-1, "fixed in openrlhf's sampling parameters"),
    "carried.dropout": ("on", "openrlhf trains with the model in training mode"),
}
"""Canonical fields that no option decides, with the value that OpenRLHF has, and why."""


def inexpressible(settings: Mapping[str, Any]) -> dict[str, str]:
    """Identity of an option whose value the canonical schema has no word for -> why."""
    found = {}
    if settings[names.ESTIMATOR] == "flash_reinforce":
        found[names.ESTIMATOR] = "flash_reinforce subtracts the mean reward of the whole rollout"
    low, high = settings[names.CLIP_RANGE]
    if low != -high or high < 0:
        found[names.CLIP_RANGE] = f"rewards are clipped to [{low:g}, {high:g}], which is not symmetric"
    for row in KEYS:  # a copy of one's own takes words that no release has
        said = settings.get(row.key)
        if isinstance(row.values, Mapping) and row.key in settings and said not in row.values:
            found[row.key] = f"{said} is a word that no release takes"
    return found


def meaning(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue] | None:
    """Canonical field (dotted) -> what the options say; None where they leave the sizes or the objective open."""
    if not sizes.positive or inexpressible(settings):
        return None
    values = {
        **field_values(keys_of(KEYS, sizes.version).values(), settings),
        **{path: FieldValue(value, None, why) for path, (value, why) in FIXED.items()},
        "topology.world_size": _world(sizes),
        **_rollout(settings, sizes),
        **_steps(settings, sizes),
        **_micro_batch(settings, sizes),
        **_loss(settings, sizes),
        **_advantage(settings, sizes),
        **_order(sizes),
        **_staleness(settings, sizes),
        **told_of_critic(settings, sizes, shuffled=shuffles(settings, sizes.version)),
    }
    values |= {f"objective.{name}": entry for name, entry in _objective(settings, sizes).items()}
    return values | {f"carried.{name}": entry for name, entry in _carried(settings, sizes).items()}


def shuffles(settings: Mapping[str, Any], version: str) -> bool:
    """Whether each pass permutes its rollout's completions.

    Source: openrlhf 0.5.2 to 0.11.2 ActorPPOTrainer.ppo_train: not with ring attention, tensor parallelism (since
    0.8.1) or dynamic batches.
    """
    tensor = settings[names.TENSOR] > 1 and holds(">=0.8.1", version)
    return not (settings[names.RING] > 1 or tensor or settings[names.DYNAMIC])


def sequence_mean(settings: Mapping[str, Any], version: str) -> bool:
    """Whether the policy loss is a mean over sequences: by option since 0.11.2, with gspo since 0.8.9; before 0.7.0
    unless samples are packed, whose tokens have no mask. Source: openrlhf 0.5.2 to 0.6.4 PolicyLoss.forward."""
    if holds(BY_SEQUENCE, version):
        return not settings[names.PACKING]
    gspo = settings["actor.policy_loss_type"] == "gspo" and holds(">=0.8.9", version)
    return gspo or settings["actor.loss_agg_mode"] == "seq-mean-token-mean"


def _world(sizes: OpenRlhfSizes) -> FieldValue:
    if sizes.asked:
        return FieldValue(sizes.world, names.DEVICES, "the world size that was asked for")
    nodes = f"{names.NODES} {sizes.nodes} x {names.DEVICES} {sizes.devices_per_node}"
    return FieldValue(sizes.world, names.DEVICES, nodes, (names.NODES,))


def _rollout(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    agent = "train.agent_func_path"
    if sizes.prompts_per_rollout == sizes.rollout_prompts:
        prompts = FieldValue(sizes.rollout_prompts, names.ROLLOUT)
    elif holds(SHARED_PROMPTS, sizes.version):
        prompts = FieldValue(sizes.prompts_per_rollout, names.ROLLOUT, f"floored on {sizes.replicas} replicas")
    else:
        prompts = FieldValue(sizes.prompts_per_rollout, names.GENERATION, "generated at once")
    values = {
        "rollout.prompts_per_rollout": prompts,
        "rollout.group_filter": _filter(settings, sizes),
        "rollout.sample_unit": FieldValue("trajectory" if settings[agent] else "completion", agent),
    }
    if sizes.filtered and sizes.generation not in (None, sizes.prompts_per_rollout):
        values["rollout.prompts_per_generation_batch"] = FieldValue(sizes.generation, names.GENERATION)
    return values


def _filter(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> FieldValue:
    if not sizes.filtered:
        return FieldValue("none", names.FILTER)
    low, high = settings[names.RANGE]
    return FieldValue(
        "custom" if isinstance(low, str) else group_filter(low, high, sizes.group),  # 0.8.1 leaves a range text
        None,
        f"{names.RANGE} {low} to {high} of the mean of {sizes.group} scores, each 0 or 1",
        (names.FILTER, names.RANGE, names.GROUP),
    )


def _steps(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    shuffled = "completions" if shuffles(settings, sizes.version) else "none"
    why = "openrlhf's replay buffer is shuffled in every pass, unless ring attention, tensor parallelism or dynamic "
    span = FieldValue("run", None, "DeepSpeed counts micro-batches over the whole run")
    if sizes.dynamic:
        span = FieldValue("none", None, "dynamic batches cut each rollout on its own")
    return {
        "optimizer_step.rollout_shuffle": FieldValue(shuffled, None, f"{why}batches are on"),
        "optimizer_step.step_may_span": span,
    }


def _micro_batch(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    if not sizes.dynamic:
        values = {"micro_batch.completions_per_device": FieldValue(sizes.micro, names.MICRO, None, (names.DYNAMIC,))}
        if sizes.forward_micro != sizes.micro:
            values["micro_batch.forward_completions_per_device"] = FieldValue(sizes.forward_micro, names.FORWARD)
        return values
    tokens, forward_tokens = settings[names.BUDGET], settings["rollout.max_tokens_per_gpu"]
    values = {
        "micro_batch.tokens_per_device": FieldValue(tokens, names.BUDGET, None, (names.DYNAMIC,)),
        "micro_batch.cap": FieldValue("soft", None, "a completion above the budget is a micro-batch of its own"),
    }
    if forward_tokens not in (None, tokens):
        values["micro_batch.forward_tokens_per_device"] = FieldValue(forward_tokens, "rollout.max_tokens_per_gpu")
    return values


def _loss(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    by_sequence = sequence_mean(settings, sizes.version)
    key = "actor.policy_loss_type" if settings["actor.policy_loss_type"] == "gspo" else "actor.loss_agg_mode"
    key = names.PACKING if holds(BY_SEQUENCE, sizes.version) else key
    values = {"loss.policy.aggregation": FieldValue("sequence_mean" if by_sequence else "token_mean", key)}
    if holds(KL_BY_SEQUENCE, sizes.version):
        if settings["algo.kl.init_coef"] and settings["algo.kl.use_loss"]:
            values["loss.kl.aggregation"] = FieldValue("sequence_mean", None, "openrlhf averages each completion's KL")
        return values
    if not by_sequence:
        return values
    if holds(">=0.10.3", sizes.version):
        values["loss.policy.count_empty"] = FieldValue(False, None, "openrlhf counts completions that have a token")
    always = "openrlhf averages this term over tokens, whatever the policy term does"
    if settings["algo.kl.init_coef"] and settings["algo.kl.use_loss"]:
        values["loss.kl.aggregation"] = FieldValue("token_mean", None, always)
    if settings["actor.entropy_coef"]:
        values["loss.entropy.aggregation"] = FieldValue("token_mean", None, always)
    return values


def _advantage(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    key = names.ESTIMATOR
    row = next(row for row in ESTIMATORS if row.name == settings[key] and holds(row.versions, sizes.version))
    scale, scale_key = row.scale, key
    if scale == "batch" and settings["algo.advantage.no_std_norm"]:
        scale, scale_key = "none", "algo.advantage.no_std_norm"
    values = {"advantage.baseline": FieldValue(row.baseline, key), "advantage.scale": FieldValue(scale, scale_key)}
    return values | {f"advantage.{name}": entry for name, entry in SCALED.get(scale, {}).items()}


def _order(sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    last, does = ("drop", "drops") if sizes.drops_tail else ("short", "trains on")
    values = {
        "order.last_rollout": FieldValue(last, None, f"openrlhf {sizes.version} {does} an epoch's incomplete rollout")
    }
    if holds(UNSEEDED, sizes.version):
        values["order.seed"] = FieldValue(None, None, "openrlhf draws the order from a random state that nothing seeds")
    return values


def _staleness(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    if not settings[names.ASYNC]:
        return {}
    key = "train.async_queue_size"
    ahead, formula = settings[key], None
    if holds("<0.8.2", sizes.version):
        # Source: openrlhf 0.8.0 and 0.8.1 generate before they wait for room; later ones wait first.
        ahead, formula = ahead + 1, "and a rollout that waits for room"
    if holds(">=0.10.0", sizes.version) and sizes.generation is not None:
        # Rollouts that one generation fills beyond the first wait in the generator's own buffer.
        ahead += max(-(-sizes.generation // sizes.rollout_prompts) - 1, 0)
        formula = f"{key} and rollouts of one vllm_generate_batch_size {sizes.generation}"
    return {
        "staleness.maximum": FieldValue(ahead, key, formula, () if sizes.generation is None else (names.GENERATION,)),
        "staleness.unit": FieldValue("rollouts", None, "the queue counts rollouts"),
    }


def _objective(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    version, gspo = sizes.version, settings["actor.policy_loss_type"] == "gspo"
    pair = settings["actor.eps_clip_low_high"]
    key = "actor.eps_clip" if pair is None else "actor.eps_clip_low_high"
    low, high = (settings["actor.eps_clip"],) * 2 if pair is None else pair
    coefficient, in_loss = settings["algo.kl.init_coef"], settings["algo.kl.use_loss"]
    correction = sampler_correction(settings, version)
    replaced = gspo and correction is not None and holds(">=0.9.3", version)
    values = {
        "surrogate": FieldValue("ppo", None, "PolicyLoss of openrlhf clips so, whatever its type"),
        "clip_low": FieldValue(low, key),
        "clip_high": FieldValue(high, key),
        "old_logprobs": FieldValue(
            "sampler" if replaced else "rollout_start",
            None,
            "openrlhf scores a rollout before it trains on it; gspo with a correction takes the sampler's",
        ),
        "sampler_correction": FieldValue(
            None if replaced else correction,
            correction_key(version),
            None,
            correction_words(version) if correction else (),
        ),
        "kl_placement": FieldValue(("loss" if in_loss else "reward") if coefficient else "none", "algo.kl.use_loss"),
    }
    if coefficient:
        unbiased = in_loss and settings["algo.kl.unbiased_gradient"]
        name = settings["algo.kl.estimator"]
        values["kl_estimator"] = FieldValue(f"{name}_unbiased_gradient" if unbiased else name, "algo.kl.estimator")
        if holds(">=0.8.6", version):
            values["kl_clamp"] = FieldValue(KL_CLAMP, None, "fixed in openrlhf's compute_approx_kl")
    return values


def sampler_correction(settings: Mapping[str, Any], version: str) -> str | None:
    """`token_truncate [0.5, 5.0]`; - where a bound does nothing; None: off. See `CORRECTION_WORDS`."""
    threshold = settings[names.THRESHOLD]
    if holds(">=0.11.2", version):
        level = settings[names.LEVEL]
        if level == "off":
            return None
        mode, gating = settings[names.MODE], settings[names.GATING]
        word = CORRECTION_WORDS.get((level, mode, gating), f"{level}_{gating}_{mode}")
    elif not settings[names.CORRECTION]:
        return None
    else:
        kind = "icepop" if settings["use_icepop"] else settings[names.CORRECTION_TYPE]
        word = CORRECTION_WORDS[TYPES[kind]]
    bounds = threshold if isinstance(threshold, tuple) else (threshold,)
    low, high = bounds if len(bounds) == 2 else (0.0, bounds[-1])
    return f"{word} [{'-' if low <= 0 else repr(low)}, {high!r}]"


def correction_key(version: str) -> str:
    """The option that turns a correction on."""
    new = holds(">=0.11.2", version)
    return names.LEVEL if new else names.CORRECTION


def correction_words(version: str) -> tuple[str, ...]:
    """The options that say which correction is turned on."""
    if holds(">=0.11.2", version):
        return names.MODE, names.GATING, names.THRESHOLD
    kind = "use_icepop" if holds("<0.9.3", version) else names.CORRECTION_TYPE
    return kind, names.THRESHOLD


def precision(settings: Mapping[str, Any], version: str) -> str | None:
    """bf16 or fp16; None where the checkpoint decides (before 0.9.2, without bf16)."""
    if holds(">=0.9.2", version):
        return str(settings["ds.param_dtype"])
    return "bf16" if settings["bf16"] else None


_EXCLUDED = "openrlhf get_optimizer_grouped_parameters, Adam only"


def _carried(settings: Mapping[str, Any], sizes: OpenRlhfSizes) -> dict[str, FieldValue]:
    version, muon = sizes.version, settings["actor.optim"] == "muon"
    rate = "actor.muon.lr" if muon else "actor.adam.lr"
    beta1, beta2 = settings["actor.adam.betas"]
    warmup = FieldValue(settings["actor.lr_warmup_ratio"], "actor.lr_warmup_ratio")
    if not warmup.value:
        warmup = FieldValue(0.0, "actor.lr_warmup_ratio", "no warm-up")
    elif settings[names.SCHEDULE] in WITHOUT_WARMUP:
        none = f"actor.lr_scheduler {settings[names.SCHEDULE]} has no warm-up"
        warmup = FieldValue(0.0, None, none, (names.SCHEDULE, "actor.lr_warmup_ratio"))
    values = {
        "learning_rate": FieldValue(settings[rate], rate),
        "lr_schedule": FieldValue(_schedule(settings), names.SCHEDULE),
        "warmup_ratio" if warmup.value else "warmup_steps": warmup,
        "beta1": FieldValue(beta1, "actor.adam.betas"),
        "beta2": FieldValue(beta2, "actor.adam.betas"),
        "weight_decay_excludes": FieldValue("nothing" if muon else "biases_and_norms", None, _EXCLUDED),
    }
    return values | ({} if holds("<0.9.8", version) else {"max_prompt_tokens": _prompt_room(settings)})


def _prompt_room(settings: Mapping[str, Any]) -> FieldValue:
    """Longest prompt (tokens). From 0.9.8 on only the sum of prompt and completion is bounded: the prompt's part is
    what leaves room for the longest completion, or for one token where that has no bound of its own; 0 and less cut
    nothing. Source: openrlhf 0.9.8 to 0.11.2 utils/agent.py SingleTurnAgentExecutor.execute."""
    total, completion = settings["data.max_len"], settings["rollout.max_new_tokens"]
    room = total - (1 if completion is None else completion)
    if room < 1:
        return FieldValue(None, "data.max_len", None, ("rollout.max_new_tokens",))
    left = "1 token of a completion" if completion is None else f"rollout.max_new_tokens {completion}"
    return FieldValue(room, "data.max_len", f"data.max_len {total} - {left}", ("rollout.max_new_tokens",))


def _schedule(settings: Mapping[str, Any]) -> str:
    """The schedule in the words that adapters share."""
    name = str(settings[names.SCHEDULE])
    floor = {"min_lr_rate": settings["actor.min_lr_ratio"]} if name in MIN_LR_SCHEDULES else {}
    return schedule_text(name, floor)

"""A canonical spec as OpenRLHF options: settings by identity, and the command that says them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from batchbridge import Spec
from batchbridge.kit import LossTerm, MicroBatch
from batchbridge.kit.config_texts import option_words
from batchbridge.kit.even_sizes import near_sequences
from batchbridge.kit.key_table import keys_of, written_by
from batchbridge.kit.schedules import transformers_name
from batchbridge.kit.score_ranges import ALIKE
from batchbridge.kit.writing import Problems
from batchbridge_openrlhf import meaning
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.critic_words import write_critic
from batchbridge_openrlhf.settings import ABSENT, RELEASES, defaults_of, holds, names_of, options_of

_CORRECTION = re.compile(r"(\w+) \[(\S+), (\S+)\]")
_DEVICES_PER_NODE = 8
"""Devices of a node, as OpenRLHF's own default has it; a world that is not a multiple of it becomes one node."""


def settings_for(spec: Spec, version: str, problems: Problems) -> dict[str, Any]:
    """The options (by identity) that say `spec`; what they cannot say goes to `problems`.

    None among objective, carried and advantage settings means unknown: OpenRLHF's default stays.
    """
    values = written_by(keys_of(meaning.KEYS, version).values(), spec, problems)
    _sizes(spec, version, values, problems)
    _micro_batch(spec, version, values, problems)
    _loss(spec, values, problems)
    _advantage(spec, version, values, problems)
    _objective(spec, version, values, problems)
    _carried(spec, version, values, problems)
    write_critic(spec, version, values, problems)
    settings = spec.values
    for path, wanted in {**{path: value for path, (value, _) in meaning.FIXED.items()}, **_ONLY}.items():
        allowed = (wanted, None) if path.startswith("carried.") and wanted is not None else (wanted,)
        only = f"openrlhf has only {' or '.join(map(str, allowed))}"
        problems.fits(settings[path] in allowed, path, only, allowed)
    return values


def native(values: Mapping[str, Any], version: str, problems: Problems) -> dict[str, Any]:
    """`values` in the spelling of `version` and its parser's order, without what is unset there anyway."""
    named, options, written = names_of(version), options_of(version), {}
    for identity, value in values.items():
        if value is None:
            continue  # unset, as it is without the option; what a default says otherwise shows when it is read back
        if identity not in named:
            if identity not in ABSENT or ABSENT[identity][0] != value:
                newest = next(release for release in reversed(RELEASES) if identity in names_of(release))
                there = names_of(newest)
                settings = {name: values[one] for one, name in there.items() if values.get(one) is not None}
                reason = f"openrlhf {version} has no option {identity}, which {value} needs"
                problems.no_setting(reason, there[identity], settings, newest)
            continue
        if options[named[identity]].kind != "flag" or value:
            written[named[identity]] = value
    return {name: written[name] for name in options if name in written}


def argv(values: Mapping[str, Any]) -> list[str]:
    """The command as words."""
    words = ["python3", "-m", "openrlhf.cli.train_ppo_ray"]
    for name, value in values.items():
        words += _words(name, value)
    return words


def shell(values: Mapping[str, Any], version: str) -> str:
    """The command for a shell, one option per line."""
    lines = ["python3 -m openrlhf.cli.train_ppo_ray"]
    lines += [shlex.join(_words(name, value)) for name, value in values.items()]
    missing = [] if {"actor.model_name_or_path", "pretrain"} & values.keys() else ["models, data, rewards"]
    missing += [] if {"vllm.num_engines", "vllm_num_engines"} & values.keys() else ["generation engines"]
    add = f"; add {' and '.join(missing)}" if missing else ""
    return f"# for openrlhf {version}{add}\n" + " \\\n  ".join(lines) + "\n"


def _words(name: str, value: Any) -> list[str]:
    return [f"--{name}"] if value is True else option_words(name, value)


_ONLY: Mapping[str, Any] = {
    "topology.pipeline_parallel": 1,
    "rollout.prompts_per_generation_batch": None,
    "rollout.sample_unit": "completion",
    "rollout.truncated_completions": "keep",
    "optimizer_step.tokens_per_step": None,
    "optimizer_step.parts_per_rollout": None,
    "optimizer_step.micro_batches_per_step": None,
    "advantage.minimum": None,
    "advantage.maximum": None,
    "horizon.rollouts": None,
    "horizon.optimizer_steps": None,
    "carried.reference_sync_steps": None,
}
"""Canonical fields with the one value that OpenRLHF has, beside those of `meaning.FIXED`. An agent needs code that the
spec does not hold."""


def _sizes(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    rollout, world = spec.rollout, spec.topology.world_size
    for path in ("rollout.prompts_per_rollout", "optimizer_step.completions_per_step", "horizon.epochs"):
        problems.given(spec.values[path], path)
    step, prompts = spec.optimizer_step.completions_per_step, rollout.prompts_per_rollout
    # A token budget cuts each rollout on its own; else DeepSpeed counts a step over several rollouts.
    if spec.micro_batch.tokens_per_device is not None and step and prompts:
        whole = prompts * rollout.completions_per_prompt
        never = f"openrlhf trains nothing where a rollout of {whole} fills no step"
        problems.fits(whole >= step, "optimizer_step.completions_per_step", never, (whole,))
    if holds(meaning.UNSEEDED, version):
        problems.fits(spec.order.seed is None, "order.seed", "openrlhf orders prompts by no seed (BB-ORL-043)", (None,))
    else:
        problems.given(spec.order.seed, "order.seed", 42)  # openrlhf's own
    filters = rollout.group_filter == "replace_zero_variance"
    values |= {names.FILTER: True, names.RANGE: ALIKE} if filters else {}
    only = "openrlhf has only none or replace_zero_variance, or bounds of mean scores that the spec does not hold"
    problems.fits(
        filters or rollout.group_filter == "none", "rollout.group_filter", only, ("replace_zero_variance", "none")
    )
    several = world > _DEVICES_PER_NODE and world % _DEVICES_PER_NODE == 0
    values |= {
        names.NODES: world // _DEVICES_PER_NODE if several else 1,
        names.DEVICES: _DEVICES_PER_NODE if several else world,
        names.ROLLOUT: rollout.prompts_per_rollout,
    }
    # DeepSpeed holds every model's devices against the train batch, and their own default is 8: BB-ORL-052.
    for model in ("ref", "critic", "reward"):
        values |= {f"{model}.{part}": values[f"actor.{part}"] for part in ("num_nodes", "num_gpus_per_node")}
    staleness = spec.staleness
    if staleness.mode == "bounded":
        maximum = staleness.maximum
        queue = f"staleness.maximum = {maximum} {staleness.unit}: openrlhf's queue holds one rollout or more"
        fits = staleness.unit == "rollouts" and maximum is not None and maximum > 0
        one = {"staleness.unit": "rollouts", "staleness.maximum": max(maximum or 1, 1)}
        problems.need(fits, queue, "staleness.maximum", nearest=(one,))
        values["train.async_queue_size"] = maximum - 1 if maximum and holds("<0.8.2", version) else maximum


def _micro_batch(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    micro = spec.micro_batch
    fixed, tokens = micro.completions_per_device, micro.tokens_per_device
    fields = ("micro_batch.completions_per_device", "micro_batch.tokens_per_device")
    either = "micro_batch: openrlhf needs either completions_per_device or tokens_per_device"
    if not problems.need((fixed is None) != (tokens is None), either, *fields):
        return
    if fixed is not None:
        values[names.MICRO] = fixed
        forward = micro.forward_completions_per_device
        values[names.FORWARD] = fixed if forward is None else forward
    elif tokens is not None and names.DYNAMIC not in names_of(version):
        has = f"micro_batch.tokens_per_device = {tokens}: openrlhf {version} cuts by numbers of completions alone"
        default, carried = defaults_of(version), spec.carried
        longest = carried.max_prompt_tokens or default["prompt_max_len"]
        longest += carried.max_completion_tokens or default["generate_max_len"]
        size = near_sequences(tokens, longest, spec)
        fixed_size = {"micro_batch.": MicroBatch(completions_per_device=size)}
        problems.add(has, "micro_batch.tokens_per_device", nearest=(fixed_size,))
    else:
        # Below ZeRO-3 most releases lose gradients of a dynamic step (BB-ORL-042), or stop (068).
        values |= {names.DYNAMIC: True, names.BUDGET: tokens, names.ZERO: 3}
        values["rollout.max_tokens_per_gpu"] = micro.forward_tokens_per_device
    if tokens is not None or spec.topology.context_parallel > 1:
        # Both turn on packing, which needs a generation engine; how many is not a matter of the spec.
        values[names.ENGINES] = 1


def _loss(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    policy = spec.loss.policy
    modes = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
    known = policy.aggregation in modes
    if not problems.fits(known, "loss.policy.aggregation", "openrlhf has token_mean and sequence_mean", modes):
        return
    if spec.objective.ratio_level != "sequence":
        values["actor.loss_agg_mode"] = modes[policy.aggregation]
    for path, term in (("loss.kl", spec.loss.kl), ("loss.entropy", spec.loss.entropy)):
        has = (None, LossTerm(aggregation="token_mean"))
        text = f"{path}: openrlhf averages this term over tokens of the optimizer step"
        problems.need(term in has, text, path, nearest=({path: one} for one in has))


_OF_GROUPS = ("group_mean", "leave_one_out")


def _advantage(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    baseline, scale = spec.advantage.baseline, spec.advantage.scale
    known = [row for row in meaning.ESTIMATORS if holds(row.versions, version)]
    same = [row for row in known if (row.baseline, row.scale) == (baseline, scale)]
    plain = [row for row in known if (row.baseline, row.scale, scale) == (baseline, "batch", "none")]
    has = ", ".join(f"{row.baseline} with {row.scale}" for row in known)
    reason = f"advantage.baseline = {baseline} with scale = {scale}: openrlhf has {has}"
    alone = spec.rollout.completions_per_prompt == 1  # no group to compare with
    ways = sorted(
        known, key=lambda row: (alone and row.baseline in _OF_GROUPS, row.baseline != baseline, row.scale != scale)
    )
    near = [{"advantage.baseline": row.baseline, "advantage.scale": row.scale} for row in ways]
    if problems.need(bool(same or plain), reason, "advantage.baseline", "advantage.scale", nearest=near):
        values[names.ESTIMATOR] = (same or plain)[0].name
        values["algo.advantage.no_std_norm"] = not same


def _objective(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    only = "openrlhf has ppo, with a ratio of tokens or sequences (gspo)"
    problems.fits(objective.surrogate in ("ppo", None), "objective.surrogate", only, ("ppo",))
    low, high = objective.clip_low, objective.clip_high
    both = "objective.clip_low and clip_high: openrlhf needs both or none"
    one = low if high is None else high
    ways = ({"objective.clip_low": one, "objective.clip_high": one},)
    if problems.need((low is None) == (high is None), both, "objective.clip_low", nearest=ways):
        if low is not None and low == high:
            values["actor.eps_clip"] = low
        elif low is not None:
            values["actor.eps_clip_low_high"] = (low, high)
    _kl(spec, values, problems)
    if objective.sampler_correction is not None:
        _correction(objective.sampler_correction, version, values, problems)
    elif objective.ratio_level == "sequence" and objective.old_logprobs == "sampler":
        # With gspo any correction just takes the sampler's log-probabilities for the ratio.
        values[meaning.correction_key(version)] = "token" if holds(">=0.11.2", version) else True


def _kl(spec: Spec, values: dict[str, Any], problems: Problems) -> None:
    objective = spec.objective
    placement, coefficient = objective.kl_placement, objective.kl_coefficient
    if placement == "none":
        values["algo.kl.init_coef"] = coefficient or 0.0
    if placement is not None:
        values["algo.kl.use_loss"] = placement == "loss"
    if objective.kl_estimator is not None:
        name, _, unbiased = objective.kl_estimator.partition("_")
        known = name in ("k1", "k2", "k3") and unbiased in ("", "unbiased_gradient")
        if problems.fits(known, "objective.kl_estimator", "openrlhf has k1, k2 and k3", ("k3", "k2", "k1")):
            values["algo.kl.estimator"] = name
            values["algo.kl.unbiased_gradient"] = bool(unbiased)
    clamp = f"openrlhf holds the estimate within {meaning.KL_CLAMP:g}"
    problems.fits(objective.kl_clamp in (None, meaning.KL_CLAMP), "objective.kl_clamp", clamp, (None, meaning.KL_CLAMP))


def _correction(text: str, version: str, values: dict[str, Any], problems: Problems) -> None:
    path = "objective.sampler_correction"
    match = _CORRECTION.fullmatch(text)
    parts = {word: parts for parts, word in meaning.CORRECTION_WORDS.items()}.get(match[1]) if match else None
    try:
        bounds = tuple(0.0 if bound == "-" else float(bound) for bound in match.groups()[1:]) if match else ()
    except ValueError:
        parts = None
    if parts is None:
        known = ", ".join(meaning.CORRECTION_WORDS.values())
        problems.fits(False, path, f"openrlhf's are {known} with bounds, as in `token_truncate [0.5, 5.0]`", (None,))
        return
    values[names.THRESHOLD] = bounds
    if holds(">=0.11.2", version):
        values |= dict(zip((names.LEVEL, names.MODE, names.GATING), parts, strict=True))
        return
    kinds = [
        kind for kind, old in meaning.TYPES.items() if old == parts and (kind != "mis" or holds("<0.9.4", version))
    ]
    if holds("<0.9.1", version):
        values[names.THRESHOLD] = bounds[-1]
    if problems.fits(bool(kinds), path, f"not in openrlhf {version}", (None,)):
        values[names.CORRECTION] = True
        early = kinds[0] == "icepop" and holds(">=0.9.1,<0.9.3", version)
        values |= {"use_icepop": True} if early else {names.CORRECTION_TYPE: kinds[0]}


def _carried(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    carried = spec.carried
    if carried.learning_rate is not None:
        values["actor.muon.lr" if carried.optimizer == "muon" else "actor.adam.lr"] = carried.learning_rate
    if carried.beta1 is not None or carried.beta2 is not None:
        defaults = ((carried.beta1, 0.9), (carried.beta2, 0.95))
        values["actor.adam.betas"] = tuple(default if beta is None else beta for beta, default in defaults)
    _schedule(spec, version, values, problems)
    if holds(">=0.9.8", version):
        prompt, completion = carried.max_prompt_tokens, carried.max_completion_tokens or 1
        default = defaults_of(version)["data.max_len"]
        if prompt is None and completion >= default:
            prompt = default  # The default bounds prompt and completion together, and has no room for a prompt then.
        if prompt is not None:
            values["data.max_len"] = prompt + completion


def _schedule(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    carried = spec.carried
    share = "openrlhf takes a share of the run (warmup_ratio)"
    problems.fits(not carried.warmup_steps, "carried.warmup_steps", share, (None,))
    if carried.warmup_ratio is not None or carried.warmup_steps is not None:
        values["actor.lr_warmup_ratio"] = carried.warmup_ratio or 0.0
    parts = None if carried.lr_schedule is None else problems.schedule(carried.lr_schedule)
    if parts is None:
        return
    name, arguments = parts
    if name == "cosine" and holds(">=0.10.2,<0.10.4", version):
        # These hand a floor to every schedule, and cosine does not take one: BB-ORL-037.
        name, arguments = "cosine_with_min_lr", {"min_lr_rate": 0.0}
    warms_up = bool(carried.warmup_steps or carried.warmup_ratio)
    values[names.SCHEDULE] = transformers_name(name, warms_up=warms_up)
    wanted = {"min_lr_rate"} if name in meaning.MIN_LR_SCHEDULES else set()
    takes = f"openrlhf takes min_lr_rate with {' and '.join(meaning.MIN_LR_SCHEDULES)}, and no arguments otherwise"
    near = ("cosine",) if wanted else (name,)
    if problems.fits(set(arguments) == wanted, "carried.lr_schedule", takes, near) and arguments:
        values["actor.min_lr_ratio"] = arguments["min_lr_rate"]

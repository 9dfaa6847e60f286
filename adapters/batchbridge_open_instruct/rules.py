"""Open-Instruct's own checks, and what its scripts do silently, as a table.

Each row: code, what must hold, severity, when the script itself notices, the scripts and checkouts that it holds in,
and the source. Codes are stable; a number is never used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchbridge.findings import Finding, Fix, Phase, Severity, Where
from batchbridge.solve import nearest
from batchbridge_open_instruct.meaning import NAMED_KL, SCALES, learners
from batchbridge_open_instruct.settings import GRPO, GRPO_FAST, PPO, SCRIPT, SCRIPTS

if TYPE_CHECKING:
    from batchbridge_open_instruct.config import OpenInstructReading

Native = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """What a rule says about these settings: the message, the native keys, the fixes."""

    message: str
    keys: tuple[str, ...]
    fixes: tuple[Fix, ...] = ()


Test = Callable[["Facts"], "Problem | None"]


@dataclass(frozen=True)
class Facts:
    """The settings, which of them were given, and what else is known."""

    native: Native
    given: Mapping[str, Where]
    dataset_size: int | None

    @property
    def completions(self) -> int:
        """Nominal completions of a rollout (GRPO)."""
        return int(self.native["num_unique_prompts_rollout"] * self.native["num_samples_per_prompt_rollout"])

    @property
    def replicas(self) -> int:
        """Learners that see different data (GRPO): `world_size // sequence_parallel_size`."""
        if self.native[SCRIPT] == GRPO:
            return learners(self.native)
        return learners(self.native) // int(self.native["sequence_parallel_size"])


@dataclass(frozen=True)
class Rule:
    """One row."""

    code: str
    severity: Severity
    phase: Phase
    test: Test
    scripts: tuple[str, ...]
    source: str
    native: str | None = None
    since: str = ""
    until: str = ""
    """Checkouts from `since` (inclusive) to `until` (exclusive); empty: all."""
    defect: bool = False
    """A defect of the script that shows in its behaviour, not a setting that was chosen badly."""

    def holds(self, native: Native, checkout: str) -> bool:
        """Whether the row is about this script in this checkout."""
        after = not self.since or _key(checkout) >= _key(self.since)
        return native[SCRIPT] in self.scripts and after and (not self.until or _key(checkout) < _key(self.until))


def _key(checkout: str) -> tuple[int, ...]:
    return tuple(int(part) for part in checkout.split("."))


def _set(key: str, value: Any) -> Fix:
    return Fix(f"{key} {value}", {key: value})


# ---- GRPO: errors


def _pack(facts: Facts) -> Problem | None:
    native = facts.native
    need = native["max_prompt_token_length"] + native["response_length"]
    if native["pack_length"] >= need:
        return None
    return Problem(
        f"pack_length {native['pack_length']} is smaller than max_prompt_token_length "
        f"{native['max_prompt_token_length']} + response_length {native['response_length']} = {need} tokens",
        ("pack_length", "max_prompt_token_length", "response_length"),
        (_set("pack_length", need),),
    )


def _no_samples(facts: Facts) -> Problem | None:
    if facts.native["num_samples_per_prompt_rollout"] > 0:
        return None
    return Problem(
        "no completions per prompt", ("num_samples_per_prompt_rollout",), (_set("num_samples_per_prompt_rollout", 4),)
    )


def _no_prompts(facts: Facts) -> Problem | None:
    if facts.native["num_unique_prompts_rollout"] > 0:
        return None
    return Problem("no prompts per rollout", ("num_unique_prompts_rollout",), (_set("num_unique_prompts_rollout", 16),))


def _one_sample(facts: Facts) -> Problem | None:
    if facts.native["num_samples_per_prompt_rollout"] != 1 or not facts.native["filter_zero_std_samples"]:
        return None
    return Problem(
        "with 1 completion per prompt every group has deviation 0, and filter_zero_std_samples drops all of them",
        ("num_samples_per_prompt_rollout", "filter_zero_std_samples"),
        (_set("num_samples_per_prompt_rollout", 2), _set("filter_zero_std_samples", False)),
    )


def _async(facts: Facts) -> Problem | None:
    if facts.native["async_steps"] >= 1:
        return None
    return Problem("async_steps 0: there is no synchronous training", ("async_steps",), (_set("async_steps", 1),))


def _active_needs_lead(facts: Facts) -> Problem | None:
    if not facts.native["active_sampling"] or facts.native["async_steps"] > 1:
        return None
    return Problem(
        "active_sampling needs async_steps of at least 2: dropped groups are replaced from what was generated ahead",
        ("active_sampling", "async_steps"),
        (_set("async_steps", 2), _set("active_sampling", False)),
    )


def _active_needs_filter(facts: Facts) -> Problem | None:
    if not facts.native["active_sampling"] or facts.native["filter_zero_std_samples"]:
        return None
    return Problem(
        "active_sampling replaces the groups that filter_zero_std_samples drops, and that is off",
        ("active_sampling", "filter_zero_std_samples"),
        (_set("filter_zero_std_samples", True), _set("active_sampling", False)),
    )


def _enough_for_ranks(facts: Facts) -> Problem | None:
    if not facts.completions or facts.completions >= facts.replicas:
        return None
    group = facts.native["num_samples_per_prompt_rollout"]
    return Problem(
        f"{facts.completions} completions per rollout for {facts.replicas} replicas: some would get none",
        ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_learners_per_node"),
        (_set("num_unique_prompts_rollout", math.ceil(facts.replicas / group)),),
    )


def _sequence_parallel(facts: Facts) -> Problem | None:
    if facts.native["sequence_parallel_size"] == 1 or facts.native["deepspeed_stage"] == 3:
        return None
    return Problem(
        f"sequence_parallel_size {facts.native['sequence_parallel_size']} needs deepspeed_stage 3",
        ("sequence_parallel_size", "deepspeed_stage"),
        (_set("deepspeed_stage", 3), _set("sequence_parallel_size", 1)),
    )


def _whole_replicas(facts: Facts) -> Problem | None:
    world, size = learners(facts.native), facts.native["sequence_parallel_size"]
    if facts.native[SCRIPT] == GRPO or world % size == 0:
        return None
    return Problem(
        f"{world} learners are no multiple of sequence_parallel_size {size}",
        ("num_learners_per_node", "sequence_parallel_size"),
        (_set("num_learners_per_node", [math.ceil(world / size) * size]),),
    )


def _denominator(facts: Facts) -> Problem | None:
    text = facts.native["loss_denominator"]
    if text == "token":
        return None
    try:
        good = 0 < float(text) < math.inf
    except ValueError:
        good = False
    if good:
        return None
    return Problem(
        f"loss_denominator {text[:40]} is neither token nor a number above 0",
        ("loss_denominator",),
        (_set("loss_denominator", "token"),),
    )


def _reference(facts: Facts) -> Problem | None:
    if facts.native["load_ref_policy"] or facts.native["beta"] == 0:
        return None
    return Problem(
        f"beta {facts.native['beta']} without a reference policy",
        ("load_ref_policy", "beta"),
        (_set("beta", 0.0), _set("load_ref_policy", True)),
    )


def _two_corrections(facts: Facts) -> Problem | None:
    if not facts.native["use_vllm_logprobs"] or not facts.native["use_rho_correction"]:
        return None
    return Problem(
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; use_rho_correction, which is on by default, "
        "would correct towards them",
        ("use_vllm_logprobs", "use_rho_correction"),
        (_set("use_rho_correction", False), _set("use_vllm_logprobs", False)),
    )


def _dataset(facts: Facts) -> Problem | None:
    need = max(facts.native["async_steps"], 1) * facts.native["num_unique_prompts_rollout"]
    if facts.dataset_size is None or facts.dataset_size >= need:
        return None
    return Problem(
        f"{facts.dataset_size} prompts in the dataset; {need} are queued at the start (async_steps "
        f"{facts.native['async_steps']} x num_unique_prompts_rollout {facts.native['num_unique_prompts_rollout']})",
        ("async_steps", "num_unique_prompts_rollout"),
        (Fix(f"at least {need} prompts in the dataset"), _set("async_steps", 1)),
    )


def _normalization(facts: Facts) -> Problem | None:
    if facts.native["advantage_normalization_type"] in SCALES:
        return None
    return Problem(
        f"advantage_normalization_type {facts.native['advantage_normalization_type'][:40]} is none of "
        f"{', '.join(SCALES)}",
        ("advantage_normalization_type",),
        tuple(_set("advantage_normalization_type", name) for name in SCALES),
    )


def _loss_fn(facts: Facts) -> Problem | None:
    if facts.native["loss_fn"] in ("dapo", "cispo"):
        return None
    message = f"loss_fn {facts.native['loss_fn'][:40]} is neither dapo nor cispo"
    return Problem(message, ("loss_fn",), (_set("loss_fn", "dapo"), _set("loss_fn", "cispo")))


def _kl_estimator(facts: Facts) -> Problem | None:
    value = facts.native["kl_estimator"]
    first = "masked_mean_axis" in facts.native
    named = tuple(NAMED_KL) if first else ("kl1", "kl2", "kl3")
    if value in (named if first or facts.native[SCRIPT] == PPO else (0, 1, 2, 3)):
        return None
    good = "kl3" if first else "kl1" if facts.native[SCRIPT] == PPO else 2
    return Problem(
        f"kl_estimator {str(value)[:40]} is not one of the estimators", ("kl_estimator",), (_set("kl_estimator", good),)
    )


def _fsdp(facts: Facts) -> Problem | None:
    shards, copies = facts.native["fsdp_shard_degree"], facts.native["fsdp_num_replicas"]
    world = learners(facts.native)
    if shards is not None and copies is not None:
        bad = shards * copies != world
        what = f"fsdp_shard_degree {shards} x fsdp_num_replicas {copies} = {shards * copies}, not {world} learners"
    else:
        part = shards or copies or 1
        bad, what = world % part != 0, f"{world} learners are no multiple of {part}"
    if not bad:
        return None
    keys = ("fsdp_shard_degree", "fsdp_num_replicas", "num_learners_per_node")
    return Problem(what, keys, (Fix("leave both out: they are found", dict.fromkeys(keys[:2])),))


def _no_steps(facts: Facts) -> Problem | None:
    episodes = facts.native["total_episodes"]
    if not facts.completions or episodes >= facts.completions:
        return None
    return Problem(
        f"total_episodes {episodes} (completions) do not fill one rollout of {facts.completions}: nothing is trained",
        ("total_episodes", "num_unique_prompts_rollout", "num_samples_per_prompt_rollout"),
        (_set("total_episodes", facts.completions),),
    )


# ---- GRPO: what happens silently


def _rows_dropped(facts: Facts) -> Problem | None:
    if facts.replicas < 2:
        return None
    first = "masked_mean_axis" in facts.native
    return Problem(
        f"packed rows beyond a multiple of {facts.replicas} replicas are dropped after every rollout "
        + ("(without a word" if first else "(a warning in the log, no metric")
        + "): up to a quarter of the response tokens where rows are few for many replicas; "
        + (
            "with fewer rows than learners nothing is left, unless allow_world_padding adds empty rows"
            if first
            else "the row length itself shrinks with the replicas"
        ),
        ("num_learners_per_node", "pack_length"),
        (Fix("more completions per rollout for each replica, or a smaller pack_length, lose less"),),
    )


def _truncated(facts: Facts) -> Problem | None:
    if not facts.native["mask_truncated_completions"]:
        return None
    group = facts.native["num_samples_per_prompt_rollout"]
    return Problem(
        f"truncated completions are taken out before rewards are reshaped into groups of {group}: groups are "
        f"misaligned without an error where the rest is a multiple of {group}, and a ValueError otherwise",
        ("mask_truncated_completions", "num_samples_per_prompt_rollout"),
        (_set("mask_truncated_completions", False),),
    )


def _mini_batches(facts: Facts) -> Problem | None:
    parts = facts.native["num_mini_batches"]
    if parts == 1:
        return None
    if facts.native[SCRIPT] == GRPO:
        message = (
            f"num_mini_batches {parts} cuts each rank's m micro-batches into groups of ceil(m / {parts}): a rollout "
            f"may have fewer than {parts} optimizer steps, and the last is smaller"
        )
    else:
        message = (
            f"num_mini_batches {parts} is a request: a step takes max(ceil(m / {parts} - 0.5), 1) of each rank's m "
            f"micro-batches, so that a rollout may have more or fewer than {parts} optimizer steps (7 micro-batches in "
            "4: 3 steps; 10 in 4: 5), micro-batches left over are dropped, and the learning rate's schedule, which "
            f"counts {parts}, drifts"
        )
    return Problem(message, ("num_mini_batches", "per_device_train_batch_size"), (_set("num_mini_batches", 1),))


def _accumulation(facts: Facts) -> Problem | None:
    if "gradient_accumulation_steps" not in facts.given:
        return None
    message = (
        "gradient_accumulation_steps is taken and never read: num_mini_batches decides how micro-batches accumulate"
    )
    if facts.native[SCRIPT] == PPO:
        message = "gradient_accumulation_steps is overwritten by local_mini_batch_size / per_device_train_batch_size"
    fix = Fix("remove gradient_accumulation_steps", {"gradient_accumulation_steps": None})
    return Problem(message, ("gradient_accumulation_steps",), (fix,))


def _episodes_left(facts: Facts) -> Problem | None:
    native = facts.native
    completions = facts.completions if native[SCRIPT] != PPO else _ppo_rollout(native)
    rest = native["total_episodes"] % completions if completions else 0
    if not rest or native["total_episodes"] < completions:
        return None
    lower = native["total_episodes"] - rest
    return Problem(
        f"{rest} of total_episodes {native['total_episodes']} do not fill a rollout of {completions} completions and "
        "are not trained",
        ("total_episodes",),
        (_set("total_episodes", lower), _set("total_episodes", lower + completions)),
    )


def _shrinking(facts: Facts) -> Problem | None:
    native = facts.native
    if not native["filter_zero_std_samples"] or native["active_sampling"] or native["async_steps"] < 1:
        return None
    return Problem(
        "groups whose rewards are all equal are dropped and not replaced: a rollout trains on fewer than "
        f"{facts.completions} completions, while total_episodes counts all of them",
        ("filter_zero_std_samples", "active_sampling"),
        (_set("active_sampling", True), _set("filter_zero_std_samples", False)),
    )


def _lost_targets(facts: Facts) -> Problem | None:
    size = facts.native["sequence_parallel_size"]
    if size == 1:
        return None
    return Problem(
        f"rows are cut into {size} chunks before labels are shifted: {size - 1} targets of every row are never "
        "predicted (read in the source, not run)",
        ("sequence_parallel_size",),
    )


def _ignored_sequence_parallel(facts: Facts) -> Problem | None:
    if facts.native["sequence_parallel_size"] == 1:
        return None
    message = "grpo.py takes sequence_parallel_size and never reads it"
    return Problem(message, ("sequence_parallel_size",), (_set("sequence_parallel_size", 1),))


def _epochs_misaligned(facts: Facts) -> Problem | None:
    if facts.native["num_epochs"] < 2:
        return None
    return Problem(
        "accumulation groups run on from one pass into the next, their denominators do not: groups and denominators "
        "may be misaligned (read in the source, not run)",
        ("num_epochs",),
        (_set("num_epochs", 1),),
    )


def _zero_two(facts: Facts) -> Problem | None:
    if facts.native["deepspeed_stage"] != 2:
        return None
    return Problem(
        "under ZeRO-2 only the last micro-batch of an accumulation group keeps its gradient",
        ("deepspeed_stage", "per_device_train_batch_size"),
        (_set("deepspeed_stage", 3), Fix("a checkout from 2026-02-26 on")),
    )


def _decay_off(facts: Facts) -> Problem | None:
    if facts.native["set_weight_decay_on_bias_and_norm"]:
        return None
    return Problem(
        "with set_weight_decay_on_bias_and_norm off, AdamW gets no weight_decay and takes its own 0.01, for biases and "
        "norms too; on, biases and norms have none: the opposite of what the name says",
        ("set_weight_decay_on_bias_and_norm", "weight_decay"),
        (_set("set_weight_decay_on_bias_and_norm", True),),
    )


def _cap_and_sampler(facts: Facts) -> Problem | None:
    cap = facts.native["truncated_importance_sampling_ratio_cap"]
    if not facts.native["use_vllm_logprobs"] or cap <= 0:
        return None
    return Problem(
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; truncated_importance_sampling_ratio_cap "
        f"{cap:g} would correct towards them",
        ("use_vllm_logprobs", "truncated_importance_sampling_ratio_cap"),
        (_set("truncated_importance_sampling_ratio_cap", 0.0), _set("use_vllm_logprobs", False)),
    )


def _masked_mean(facts: Facts) -> Problem | None:
    value = facts.native["masked_mean_denominator"]
    if value is None or value > 0:
        return None
    message = f"masked_mean_denominator {value:g} must be above 0"
    return Problem(message, ("masked_mean_denominator",), (_set("masked_mean_denominator", None),))


def _means_of_means(facts: Facts) -> Problem | None:
    return Problem(
        "the loss is the mean over the tokens of each micro-batch of packed rows, averaged over micro-batches and "
        "learners: the gradient depends on packing, on the split and on the world size",
        ("per_device_train_batch_size", "pack_length", "num_learners_per_node"),
        (Fix("a checkout from 2025-12-01 on (#1161) divides by the step's tokens"),),
    )


def _order_unseeded(facts: Facts) -> Problem | None:
    return Problem(
        "the seed does not fix a run: rollouts take results as they finish, and rows are permuted by random numbers "
        "that nothing seeds",
        ("seed",),
    )


# ---- PPO


def _ppo_rollout(native: Native) -> int:
    return int(native["local_rollout_batch_size"] * learners(native) * native["number_samples_per_prompt"])


def _ppo_micro(facts: Facts) -> Problem | None:
    mini, micro = facts.native["local_mini_batch_size"], facts.native["per_device_train_batch_size"]
    if mini % micro == 0:
        return None
    return Problem(
        f"local_mini_batch_size {mini} is no multiple of per_device_train_batch_size {micro}",
        ("local_mini_batch_size", "per_device_train_batch_size"),
        tuple(_set("local_mini_batch_size", size) for size in nearest(mini, multiple_of=micro)),
    )


def _ppo_mini(facts: Facts) -> Problem | None:
    native = facts.native
    local, mini = (
        native["local_rollout_batch_size"] * native["number_samples_per_prompt"],
        native["local_mini_batch_size"],
    )
    if local % mini == 0:
        return None
    return Problem(
        f"local_rollout_batch_size {native['local_rollout_batch_size']} (prompts) x number_samples_per_prompt "
        f"{native['number_samples_per_prompt']} = {local} completions per learner are no multiple of "
        f"local_mini_batch_size {mini}",
        ("local_rollout_batch_size", "number_samples_per_prompt", "local_mini_batch_size"),
        tuple(_set("local_mini_batch_size", size) for size in nearest(mini, divides=local)),
    )


def _ppo_whiten(facts: Facts) -> Problem | None:
    if not facts.native["whiten_rewards"] or facts.native["local_mini_batch_size"] >= 8:
        return None
    return Problem(
        f"whiten_rewards needs a local_mini_batch_size of at least 8, not {facts.native['local_mini_batch_size']}",
        ("whiten_rewards", "local_mini_batch_size"),
        (_set("local_mini_batch_size", 8), _set("whiten_rewards", False)),
    )


def _ppo_no_steps(facts: Facts) -> Problem | None:
    completions = _ppo_rollout(facts.native)
    if facts.native["total_episodes"] >= completions:
        return None
    return Problem(
        f"total_episodes {facts.native['total_episodes']} (completions) do not fill one rollout of {completions}: "
        "nothing is trained",
        ("total_episodes", "local_rollout_batch_size"),
        (_set("total_episodes", completions),),
    )


def _ppo_loss(facts: Facts) -> Problem | None:
    micro = facts.native["per_device_train_batch_size"]
    if learners(facts.native) == 1 and micro == facts.native["local_mini_batch_size"]:
        return None
    return Problem(
        f"the loss is the mean over the tokens of each micro-batch of {micro}, averaged over micro-batches and "
        "learners: the gradient depends on the split and on the world size",
        ("per_device_train_batch_size", "actor_num_gpus_per_node"),
        (_set("per_device_train_batch_size", facts.native["local_mini_batch_size"]),),
    )


def _ppo_whitening(facts: Facts) -> Problem | None:
    if learners(facts.native) == 1:
        return None
    message = "advantages are whitened over each learner's own completions: they depend on the world size"
    return Problem(message, ("actor_num_gpus_per_node", "local_rollout_batch_size"))


def _ppo_mini_batches(facts: Facts) -> Problem | None:
    if "num_mini_batches" not in facts.given:
        return None
    message = "num_mini_batches is overwritten: local_rollout_batch_size and local_mini_batch_size give it"
    return Problem(message, ("num_mini_batches",), (Fix("remove num_mini_batches", {"num_mini_batches": None}),))


_FAST, _BOTH, _CORE, _OLD = (GRPO_FAST,), (GRPO_FAST, GRPO), (GRPO,), (PPO,)
_FIRST_RELEASE = "2026.1.26"
_POST = "StreamingDataLoaderConfig.__post_init__"
_EXPERIMENT = "GRPOExperimentConfig.__post_init__"
RULES = (
    Rule(
        "BB-OI-010",
        "error",
        "construction",
        _pack,
        _BOTH,
        _POST,
        "AssertionError: The `pack_length` needs to be greater",
    ),
    Rule(
        "BB-OI-011", "error", "construction", _no_samples, _BOTH, _POST, "AssertionError: Number of samples per prompt"
    ),
    Rule(
        "BB-OI-012",
        "error",
        "construction",
        _one_sample,
        _BOTH,
        _POST,
        "ValueError: `filter_zero_std_samples` cannot",
        since=_FIRST_RELEASE,
    ),
    Rule(
        "BB-OI-068",
        "error",
        "first_rollout",
        _one_sample,
        _FAST,
        "grpo_fast.py, data_preparation_thread, fc22674da",
        "a warning, and then no completion is left",
        until=_FIRST_RELEASE,
    ),
    Rule(
        "BB-OI-013",
        "error",
        "construction",
        _async,
        _BOTH,
        _POST,
        "ValueError: `async_steps` must be greater than 0",
        since=_FIRST_RELEASE,
    ),
    Rule(
        "BB-OI-014", "error", "construction", _active_needs_lead, _BOTH, _POST, "AssertionError: With active_sampling"
    ),
    Rule(
        "BB-OI-015",
        "error",
        "construction",
        _active_needs_filter,
        _BOTH,
        _POST,
        "AssertionError: filter_zero_std_samples",
    ),
    Rule(
        "BB-OI-016",
        "error",
        "worker_start",
        _enough_for_ranks,
        _FAST,
        "grpo_fast.validate_configs",
        "AssertionError",
        since=_FIRST_RELEASE,
    ),
    Rule(
        "BB-OI-017",
        "error",
        "construction",
        _sequence_parallel,
        _BOTH,
        _EXPERIMENT,
        "ValueError: `sequence_parallel_size`",
    ),
    Rule(
        "BB-OI-018", "error", "construction", _denominator, _BOTH, _EXPERIMENT, "ValueError: loss_denominator must be"
    ),
    Rule(
        "BB-OI-019", "error", "construction", _reference, _BOTH, _EXPERIMENT, "ValueError: When load_ref_policy=False"
    ),
    Rule(
        "BB-OI-020",
        "error",
        "construction",
        _two_corrections,
        _BOTH,
        _EXPERIMENT,
        "ValueError: Cannot use both `use_vllm_logprobs` and `use_rho_correction`",
        since="2026.6.10",
    ),
    Rule(
        "BB-OI-021",
        "error",
        "worker_start",
        _dataset,
        _BOTH,
        "grpo_fast.py, main",
        "ValueError: the dataset is too small",
    ),
    Rule(
        "BB-OI-022",
        "error",
        "first_rollout",
        _normalization,
        _BOTH,
        "DataPreparationActor; not validated",
        "ValueError",
    ),
    Rule(
        "BB-OI-023",
        "error",
        "never",
        _no_steps,
        _BOTH,
        "setup_runtime_variables",
        "0 training steps; fails when it ends",
    ),
    Rule(
        "BB-OI-024",
        "error",
        "first_rollout",
        _no_prompts,
        _BOTH,
        "not validated",
        "it is accepted, and nothing is generated",
    ),
    Rule("BB-OI-025", "error", "construction", _fsdp, _BOTH, _EXPERIMENT, "ValueError: must match", since="2026.6.10"),
    Rule("BB-OI-026", "error", "config", _loss_fn, _BOTH, "GRPOExperimentConfig.loss_fn", "argparse: invalid choice"),
    Rule(
        "BB-OI-027",
        "error",
        "config",
        _kl_estimator,
        (*_BOTH, PPO),
        "kl_estimator: Literal",
        "argparse: invalid choice",
    ),
    Rule(
        "BB-OI-028",
        "error",
        "worker_start",
        _whole_replicas,
        _BOTH,
        "grpo_fast.py, sequence parallel groups",
        "DeepSpeed asserts",
    ),
    Rule("BB-OI-030", "error", "construction", _ppo_micro, _OLD, "calculate_runtime_args, exact_div", "ValueError"),
    Rule(
        "BB-OI-031",
        "error",
        "construction",
        _ppo_mini,
        _OLD,
        "calculate_runtime_args, exact_div",
        "ValueError",
        since="2025.11.3",
    ),
    Rule(
        "BB-OI-032",
        "error",
        "construction",
        _ppo_whiten,
        _OLD,
        "calculate_runtime_args",
        "AssertionError: Per-rank minibatch size",
    ),
    Rule("BB-OI-033", "warning", "optimizer_step", _ppo_mini, _OLD, "not validated in 9c2d44bec", until="2025.11.3"),
    Rule("BB-OI-034", "error", "never", _ppo_no_steps, _OLD, "calculate_runtime_args", "0 training steps"),
    Rule(
        "BB-OI-050",
        "warning",
        "never",
        _rows_dropped,
        _BOTH,
        "data_loader.py, prepare_collated_data_for_workers",
        defect=True,
    ),
    Rule(
        "BB-OI-051",
        "warning",
        "first_rollout",
        _truncated,
        _BOTH,
        "#1660; data_loader.py, run on CPU",
        since="2026.6.10",
        defect=True,
    ),
    Rule(
        "BB-OI-052",
        "warning",
        "never",
        _mini_batches,
        _BOTH,
        "grpo_fast.py, step; olmo_core_train_modules.py",
        defect=True,
    ),
    Rule(
        "BB-OI-053",
        "warning",
        "never",
        _accumulation,
        (*_BOTH, PPO),
        "grpo_fast.py: DeepSpeed's accumulation is fixed to 1",
    ),
    Rule("BB-OI-054", "note", "never", _episodes_left, (*_BOTH, PPO), "total_episodes // completions"),
    Rule("BB-OI-055", "note", "never", _shrinking, _BOTH, "data_loader.py, accumulate_inference_batches"),
    Rule("BB-OI-056", "warning", "never", _lost_targets, _FAST, "grpo_fast.py, #1309", defect=True),
    Rule("BB-OI-057", "warning", "never", _ignored_sequence_parallel, _CORE, "grpo.py", defect=True),
    Rule("BB-OI-058", "warning", "never", _epochs_misaligned, _CORE, "olmo_core_train_modules.py", defect=True),
    Rule("BB-OI-059", "warning", "never", _zero_two, _FAST, "#1498, its commit message", until="2026.3.1", defect=True),
    Rule("BB-OI-060", "warning", "never", _decay_off, _BOTH, "grpo_fast.py, from_pretrained", defect=True),
    Rule("BB-OI-061", "note", "never", _order_unseeded, _BOTH, "data_loader.py, DataPreparationActor", defect=True),
    Rule("BB-OI-062", "warning", "never", _ppo_loss, _OLD, "ppo_vllm_thread_ray_gtrl.py, masked_mean", defect=True),
    Rule(
        "BB-OI-063", "warning", "never", _ppo_whitening, _OLD, "ppo_vllm_thread_ray_gtrl.py, masked_whiten", defect=True
    ),
    Rule(
        "BB-OI-065",
        "error",
        "construction",
        _cap_and_sampler,
        _FAST,
        "Args.__post_init__",
        "ValueError: Cannot use both `use_vllm_logprobs` and `truncated_importance_sampling_ratio_cap`",
        until="2026.6.10",
    ),
    Rule(
        "BB-OI-066",
        "error",
        "construction",
        _masked_mean,
        _FAST,
        "Args.__post_init__",
        "AssertionError: masked_mean_denominator must be greater than 0!",
        until=_FIRST_RELEASE,
    ),
    Rule(
        "BB-OI-067",
        "warning",
        "never",
        _means_of_means,
        _FAST,
        "grpo_fast.py, masked_mean; repaired by #1161 (7708f0adf)",
        until=_FIRST_RELEASE,
        defect=True,
    ),
    Rule("BB-OI-064", "warning", "never", _ppo_mini_batches, _OLD, "calculate_runtime_args", since="2025.11.3"),
)
assert all(script in SCRIPTS for rule in RULES for script in rule.scripts)


def check(reading: OpenInstructReading) -> Sequence[Finding]:
    """The findings of every row on this reading; none while a setting could not be read."""
    if not reading.decided or reading.checkout is None:
        return ()
    facts = Facts(reading.native, reading.given, reading.dataset_size)
    return tuple(_findings(facts, reading.checkout, reading))


def known_defects(native: Native, checkout: str) -> list[Finding]:
    """The rows that are defects of the script."""
    facts = Facts(native, {}, None)
    return list(_findings(facts, checkout, None, defects=True))


def _findings(
    facts: Facts, checkout: str, reading: OpenInstructReading | None, *, defects: bool = False
) -> Iterator[Finding]:
    for rule in RULES:
        if not rule.holds(facts.native, checkout) or (defects and not rule.defect):
            continue
        problem = rule.test(facts)
        if problem is not None:
            where = () if reading is None else reading.where(*problem.keys)
            yield Finding(
                rule.code,
                rule.severity,
                rule.phase,
                problem.message,
                where,
                problem.fixes,
                native=rule.native,
                source=f"open-instruct {checkout}: {rule.source}",
            )

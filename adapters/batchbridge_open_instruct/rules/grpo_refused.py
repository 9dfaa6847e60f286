"""What the GRPO scripts refuse, or fail at later: command line, settings, workers, first rollout."""

from __future__ import annotations

import math

from batchbridge import Fix
from batchbridge_open_instruct.meaning import NAMED_KL, learners
from batchbridge_open_instruct.rules.row import BOTH, CORE, FAST, Facts, Problem, Rule, from_1, setting
from batchbridge_open_instruct.settings import BEFORE_1, BEFORE_3, FROM_1, FROM_3, GRPO, NEWEST, PPO, SCALES, SCRIPT

OLMO_SCHEDULES = ("cosine", "constant", "linear")
OLMO_MODELS = frozenset(
    [
        "allenai/OLMo-2-0425-1B",
        "allenai/OLMo-2-1124-7B",
        "allenai/OLMo-2-1124-13B",
        "allenai/OLMo-2-0325-32B",
        "allenai/Olmo-3-1025-7B",
        "allenai/Olmo-Hybrid-7B",
        "allenai/Olmo-Hybrid-Instruct-SFT-7B",
        "allenai/Olmo-Hybrid-Think-SFT-7B",
        "allenai/OLMoE-1B-7B-0924",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-0.6B-Base",
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-4B",
        "Qwen/Qwen3-4B-Base",
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-14B",
        "Qwen/Qwen3-32B",
    ]
)
"""Models whose shape grpo.py knows. Source: olmo_core_utils.OLMO_MODEL_CONFIG_MAP, e6c3044."""
_POST = "StreamingDataLoaderConfig.__post_init__"
_EXPERIMENT = "GRPOExperimentConfig.__post_init__"


def _pack(facts: Facts) -> Problem | None:
    native = facts.native
    need = native["max_prompt_token_length"] + native["response_length"]
    if native["pack_length"] >= need:
        return None
    return Problem(
        f"pack_length {native['pack_length']} is smaller than max_prompt_token_length "
        f"{native['max_prompt_token_length']} + response_length {native['response_length']} = {need} tokens",
        ("pack_length", "max_prompt_token_length", "response_length"),
        (setting("pack_length", need),),
    )


def _no_samples(facts: Facts) -> Problem | None:
    if facts.native["num_samples_per_prompt_rollout"] > 0:
        return None
    return Problem(
        "no completions per prompt",
        ("num_samples_per_prompt_rollout",),
        (setting("num_samples_per_prompt_rollout", 4),),
    )


def _one_sample(facts: Facts) -> Problem | None:
    if facts.native["num_samples_per_prompt_rollout"] != 1 or not facts.native["filter_zero_std_samples"]:
        return None
    return Problem(
        "with 1 completion per prompt every group has deviation 0, and filter_zero_std_samples drops all of them",
        ("num_samples_per_prompt_rollout", "filter_zero_std_samples"),
        (setting("num_samples_per_prompt_rollout", 2), *from_1(facts, setting("filter_zero_std_samples", False))),
    )


def _async(facts: Facts) -> Problem | None:
    if facts.native["async_steps"] >= 1:
        return None
    return Problem("async_steps 0: there is no synchronous training", ("async_steps",), (setting("async_steps", 1),))


def _active_needs_lead(facts: Facts) -> Problem | None:
    if not facts.native["active_sampling"] or facts.native["async_steps"] > 1:
        return None
    return Problem(
        "active_sampling needs async_steps of at least 2: dropped groups are replaced from what was generated ahead",
        ("active_sampling", "async_steps"),
        (setting("async_steps", 2), setting("active_sampling", False)),
    )


def _active_needs_filter(facts: Facts) -> Problem | None:
    if not facts.native["active_sampling"] or facts.native["filter_zero_std_samples"]:
        return None
    return Problem(
        "active_sampling replaces the groups that filter_zero_std_samples drops, and that is off",
        ("active_sampling", "filter_zero_std_samples"),
        (setting("filter_zero_std_samples", True), setting("active_sampling", False)),
    )


def _enough_for_ranks(facts: Facts) -> Problem | None:
    if not facts.completions or facts.completions >= facts.replicas:
        return None
    group = facts.native["num_samples_per_prompt_rollout"]
    return Problem(
        f"{facts.completions} completions per rollout for {facts.replicas} replicas: some would get none",
        ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_learners_per_node"),
        (setting("num_unique_prompts_rollout", math.ceil(facts.replicas / group)),),
    )


def _sequence_parallel(facts: Facts) -> Problem | None:
    if facts.native["sequence_parallel_size"] == 1 or facts.native["deepspeed_stage"] == 3:
        return None
    return Problem(
        f"sequence_parallel_size {facts.native['sequence_parallel_size']} needs deepspeed_stage 3",
        ("sequence_parallel_size", "deepspeed_stage"),
        (setting("deepspeed_stage", 3), setting("sequence_parallel_size", 1)),
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
        (setting("loss_denominator", "token"),),
    )


def _reference(facts: Facts) -> Problem | None:
    if facts.native["load_ref_policy"] or facts.native["beta"] == 0:
        return None
    return Problem(
        f"beta {facts.native['beta']} without a reference policy",
        ("load_ref_policy", "beta"),
        (setting("beta", 0.0), setting("load_ref_policy", True)),
    )


def _two_corrections(facts: Facts) -> Problem | None:
    if not facts.native["use_vllm_logprobs"] or not facts.native["use_rho_correction"]:
        return None
    return Problem(
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; use_rho_correction, which is on by default, "
        "would correct towards them",
        ("use_vllm_logprobs", "use_rho_correction"),
        (setting("use_rho_correction", False), setting("use_vllm_logprobs", False)),
    )


def _dataset(facts: Facts) -> Problem | None:
    need = max(facts.native["async_steps"], 1) * facts.native["num_unique_prompts_rollout"]
    if facts.dataset_size is None or facts.dataset_size >= need:
        return None
    return Problem(
        f"{facts.dataset_size} prompts in the dataset; {need} are queued at the start (async_steps "
        f"{facts.native['async_steps']} x num_unique_prompts_rollout {facts.native['num_unique_prompts_rollout']})",
        ("async_steps", "num_unique_prompts_rollout"),
        (Fix(f"at least {need} prompts in the dataset"), setting("async_steps", 1)),
    )


def _normalization(facts: Facts) -> Problem | None:
    if facts.native["advantage_normalization_type"] in SCALES:
        return None
    return Problem(
        f"advantage_normalization_type {facts.native['advantage_normalization_type'][:40]} is none of "
        f"{', '.join(SCALES)}",
        ("advantage_normalization_type",),
        tuple(setting("advantage_normalization_type", name) for name in SCALES),
    )


def _no_steps(facts: Facts) -> Problem | None:
    episodes = facts.native["total_episodes"]
    if not facts.completions or episodes >= facts.completions:
        return None
    return Problem(
        f"total_episodes {episodes} (completions) do not fill one rollout of {facts.completions}: nothing is trained",
        ("total_episodes", "num_unique_prompts_rollout", "num_samples_per_prompt_rollout"),
        (setting("total_episodes", facts.completions),),
    )


def _no_prompts(facts: Facts) -> Problem | None:
    if facts.native["num_unique_prompts_rollout"] > 0:
        return None
    return Problem(
        "no prompts per rollout", ("num_unique_prompts_rollout",), (setting("num_unique_prompts_rollout", 16),)
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


def _loss_fn(facts: Facts) -> Problem | None:
    if facts.native["loss_fn"] in ("dapo", "cispo"):
        return None
    message = f"loss_fn {facts.native['loss_fn'][:40]} is neither dapo nor cispo"
    return Problem(message, ("loss_fn",), (setting("loss_fn", "dapo"), setting("loss_fn", "cispo")))


def _kl_estimator(facts: Facts) -> Problem | None:
    value = facts.native["kl_estimator"]
    first = "masked_mean_axis" in facts.native
    named = tuple(NAMED_KL) if first else ("kl1", "kl2", "kl3")
    if value in (named if first or facts.native[SCRIPT] == PPO else (0, 1, 2, 3)):
        return None
    good = "kl3" if first else "kl1" if facts.native[SCRIPT] == PPO else 2
    return Problem(
        f"kl_estimator {str(value)[:40]} is not one of the estimators",
        ("kl_estimator",),
        (setting("kl_estimator", good),),
    )


def _slow_attention(facts: Facts) -> Problem | None:
    said = facts.given.get("attn_implementation")
    if said is None or str(said.value).lower() not in ("torch", "te"):
        return None
    return Problem(
        f"attn_implementation {said.value}: grpo.py's completions are told apart within a row by flash attention alone",
        ("attn_implementation",),
        (setting("attn_implementation", "flash_2"),),
    )


def _schedule(facts: Facts) -> Problem | None:
    name = facts.native["lr_scheduler_type"]
    if name in OLMO_SCHEDULES:
        return None
    return Problem(
        f"lr_scheduler_type {str(name)[:40]} is none of grpo.py's: {', '.join(OLMO_SCHEDULES)}",
        ("lr_scheduler_type",),
        tuple(setting("lr_scheduler_type", one) for one in OLMO_SCHEDULES),
    )


def _unknown_model(facts: Facts) -> Problem | None:
    said = facts.given.get("model_name_or_path")
    name = "" if said is None else str(said.value)
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name in OLMO_MODELS:  # a shape's name, or a folder
        return None
    return Problem(
        f"model_name_or_path {name[:80]}: grpo.py finds the shape of a model by its name, and knows none by this one",
        ("model_name_or_path",),
        (setting("model_name_or_path", "Qwen/Qwen3-4B-Base"), Fix("start grpo_fast.py")),
    )


def _whole_replicas(facts: Facts) -> Problem | None:
    world, size = learners(facts.native), facts.native["sequence_parallel_size"]
    if facts.native[SCRIPT] == GRPO or world % size == 0:
        return None
    return Problem(
        f"{world} learners are no multiple of sequence_parallel_size {size}",
        ("num_learners_per_node", "sequence_parallel_size"),
        (setting("num_learners_per_node", [math.ceil(world / size) * size]),),
    )


def _cap_and_sampler(facts: Facts) -> Problem | None:
    cap = facts.native["truncated_importance_sampling_ratio_cap"]
    if not facts.native["use_vllm_logprobs"] or cap <= 0:
        return None
    return Problem(
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; truncated_importance_sampling_ratio_cap "
        f"{cap:g} would correct towards them",
        ("use_vllm_logprobs", "truncated_importance_sampling_ratio_cap"),
        (setting("truncated_importance_sampling_ratio_cap", 0.0), setting("use_vllm_logprobs", False)),
    )


def _masked_mean(facts: Facts) -> Problem | None:
    value = facts.native["masked_mean_denominator"]
    if value is None or value > 0:
        return None
    message = f"masked_mean_denominator {value:g} must be above 0"
    return Problem(message, ("masked_mean_denominator",), (setting("masked_mean_denominator", None),))


GRPO_REFUSED: tuple[Rule, ...] = (
    Rule(
        "BB-OI-010",
        "error",
        "construction",
        _pack,
        BOTH,
        _POST,
        "AssertionError: The `pack_length` needs to be greater",
    ),
    Rule(
        "BB-OI-011", "error", "construction", _no_samples, BOTH, _POST, "AssertionError: Number of samples per prompt"
    ),
    Rule(
        "BB-OI-012",
        "error",
        "construction",
        _one_sample,
        BOTH,
        _POST,
        "ValueError: `filter_zero_std_samples` cannot",
        versions=FROM_1,
    ),
    Rule(
        "BB-OI-068",
        "error",
        "first_rollout",
        _one_sample,
        FAST,
        "grpo_fast.py, data_preparation_thread, fc22674da",
        "a warning, and then no completion is left",
        versions=BEFORE_1,
    ),
    Rule(
        "BB-OI-013",
        "error",
        "construction",
        _async,
        BOTH,
        _POST,
        "ValueError: `async_steps` must be greater than 0",
        versions=FROM_1,
    ),
    Rule("BB-OI-014", "error", "construction", _active_needs_lead, BOTH, _POST, "AssertionError: With active_sampling"),
    Rule(
        "BB-OI-015",
        "error",
        "construction",
        _active_needs_filter,
        BOTH,
        _POST,
        "AssertionError: filter_zero_std_samples",
    ),
    Rule(
        "BB-OI-016",
        "error",
        "worker_start",
        _enough_for_ranks,
        FAST,
        "grpo_fast.validate_configs",
        "AssertionError",
        versions=FROM_1,
    ),
    Rule(
        "BB-OI-017",
        "error",
        "construction",
        _sequence_parallel,
        BOTH,
        _EXPERIMENT,
        "ValueError: `sequence_parallel_size`",
    ),
    Rule("BB-OI-018", "error", "construction", _denominator, BOTH, _EXPERIMENT, "ValueError: loss_denominator must be"),
    Rule("BB-OI-019", "error", "construction", _reference, BOTH, _EXPERIMENT, "ValueError: When load_ref_policy=False"),
    Rule(
        "BB-OI-020",
        "error",
        "construction",
        _two_corrections,
        BOTH,
        _EXPERIMENT,
        "ValueError: Cannot use both `use_vllm_logprobs` and `use_rho_correction`",
        versions=FROM_3,
    ),
    Rule(
        "BB-OI-021",
        "error",
        "worker_start",
        _dataset,
        BOTH,
        "grpo_fast.py, main",
        "ValueError: the dataset is too small",
    ),
    Rule(
        "BB-OI-022",
        "error",
        "first_rollout",
        _normalization,
        BOTH,
        "DataPreparationActor; not validated",
        "ValueError",
    ),
    Rule(
        "BB-OI-023",
        "error",
        "never",
        _no_steps,
        BOTH,
        "setup_runtime_variables",
        "0 training steps; fails when it ends",
    ),
    Rule(
        "BB-OI-024",
        "error",
        "first_rollout",
        _no_prompts,
        BOTH,
        "not validated",
        "it is accepted, and nothing is generated",
    ),
    Rule("BB-OI-025", "error", "construction", _fsdp, BOTH, _EXPERIMENT, "ValueError: must match", versions=FROM_3),
    Rule("BB-OI-026", "error", "config", _loss_fn, BOTH, "GRPOExperimentConfig.loss_fn", "argparse: invalid choice"),
    Rule(
        "BB-OI-027",
        "error",
        "config",
        _kl_estimator,
        (*BOTH, PPO),
        "kl_estimator: Literal",
        "argparse: invalid choice",
    ),
    Rule(
        "BB-OI-028",
        "error",
        "worker_start",
        _whole_replicas,
        BOTH,
        "grpo_fast.py, sequence parallel groups",
        "DeepSpeed asserts",
    ),
    Rule(
        "BB-OI-065",
        "error",
        "construction",
        _cap_and_sampler,
        FAST,
        "Args.__post_init__",
        "ValueError: Cannot use both `use_vllm_logprobs` and `truncated_importance_sampling_ratio_cap`",
        versions=BEFORE_3,
    ),
    Rule(
        "BB-OI-066",
        "error",
        "construction",
        _masked_mean,
        FAST,
        "Args.__post_init__",
        "AssertionError: masked_mean_denominator must be greater than 0!",
        versions=BEFORE_1,
    ),
    Rule(
        "BB-OI-069",
        "error",
        "worker_start",
        _slow_attention,
        CORE,
        "olmo_core_train_modules.py, GRPOTrainModule",
        "AssertionError: GRPOTrainModule requires a flash attention backend",
        versions=f">={NEWEST}",
    ),
    Rule(
        "BB-OI-070",
        "error",
        "worker_start",
        _schedule,
        CORE,
        "grpo_olmo_core_actor.py, setup_model",
        "ValueError: Unsupported lr_scheduler_type",
        versions=f">={NEWEST}",
    ),
    Rule(
        "BB-OI-071",
        "error",
        "construction",
        _unknown_model,
        CORE,
        "olmo_core_utils.py, get_transformer_config",
        "ValueError: Model/config '...' not found",
        versions=f">={NEWEST}",
    ),
)

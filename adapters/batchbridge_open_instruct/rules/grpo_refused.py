"""Rules that the GRPO scripts refuse by, or fail at later: command line, settings, workers, first rollout."""

from __future__ import annotations

import math
from operator import attrgetter

from batchbridge import Fix
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.rule_table import BUILDING, GENERATING, IN_CONFIG, STARTING, WRONG
from batchbridge_open_instruct.meaning import CAP, KL_ESTIMATORS, NAMED_KL, PPO_KL, RHO_KEYS, learners
from batchbridge_open_instruct.rules import printed
from batchbridge_open_instruct.rules.row import (
    ALL,
    BOTH,
    CORE,
    FAST,
    OLD,
    UNTRAINED,
    OpenInstructFacts,
    RuleSubject,
    no_steps,
    ways,
)
from batchbridge_open_instruct.settings import (
    BEFORE_1,
    BEFORE_3,
    FROM_1,
    FROM_3,
    GROUP,
    GRPO,
    NEWEST,
    NODES,
    PPO,
    PROMPTS,
    SCALES,
    SCRIPT,
)

OLMO_SCHEDULES = ("cosine", "constant", "linear")
SCHEDULES = ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup")
"""transformers' schedules that need neither arguments nor a metric; one came with a checkout that takes any text."""
LATER_SCHEDULES = (*SCHEDULES, "inverse_sqrt")
OLMO_MODELS = frozenset(
    {
        *("allenai/OLMo-2-0425-1B", "allenai/OLMo-2-1124-7B", "allenai/OLMo-2-1124-13B", "allenai/OLMo-2-0325-32B"),
        *("allenai/Olmo-3-1025-7B", "allenai/Olmo-Hybrid-7B", "allenai/Olmo-Hybrid-Instruct-SFT-7B"),
        *("allenai/Olmo-Hybrid-Think-SFT-7B", "allenai/OLMoE-1B-7B-0924"),
        *("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-Base", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Base"),
        *("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B"),
    }
)
"""Models whose shape grpo.py knows. Source: olmo_core_utils.OLMO_MODEL_CONFIG_MAP, e6c3044."""


def _longest(facts: OpenInstructFacts) -> int:
    """Tokens of the longest completion with its prompt."""
    return int(facts["max_prompt_token_length"] + facts["response_length"])


def _pack(facts: OpenInstructFacts) -> str | None:
    if facts["pack_length"] >= _longest(facts):
        return None
    return (
        f"pack_length {facts['pack_length']} is smaller than max_prompt_token_length "
        f"{facts['max_prompt_token_length']} + response_length {facts['response_length']} = {_longest(facts)} tokens"
    )


def _enough_for_ranks(facts: OpenInstructFacts) -> str | None:
    if not facts.completions or facts.completions >= facts.replicas:
        return None
    return f"{facts.completions} completions per rollout for {facts.replicas} replicas: some would get none"


def _no_rows(facts: OpenInstructFacts) -> str | None:
    """Fewer packed rows than replicas, in scripts that do not look: rows are never more than completions."""
    if facts[SCRIPT] != GRPO and (not facts.first or facts["allow_world_padding"]):
        return None
    if not facts.completions or facts.completions >= facts.replicas:
        return None
    return (
        f"{facts.completions} completions per rollout fill no more packed rows than that, fewer than the "
        f"{facts.replicas} replicas: every row is dropped, and nothing is trained"
    )


def _one_for_each(facts: OpenInstructFacts) -> int:
    return math.ceil(facts.replicas / int(facts[GROUP]))


def _denominator(facts: OpenInstructFacts) -> str | None:
    text = facts["loss_denominator"]
    try:
        good = text == "token" or 0 < float(text) < math.inf
    except ValueError:
        good = False
    return None if good else f"loss_denominator {text[:40]} is neither token nor a number above 0"


def _queued(facts: OpenInstructFacts) -> int:
    """Prompts that are asked for at the start."""
    return int(max(facts["async_steps"], 1) * facts[PROMPTS])


def _dataset(facts: OpenInstructFacts) -> str | None:
    if facts.dataset_size is None or facts.dataset_size >= _queued(facts):
        return None
    return (
        f"{facts.dataset_size} prompts in the dataset; {_queued(facts)} are queued at the start (async_steps "
        f"{facts['async_steps']} x num_unique_prompts_rollout {facts[PROMPTS]})"
    )


def _more_prompts(facts: OpenInstructFacts) -> tuple[Fix, ...]:
    return Fix(f"at least {_queued(facts)} prompts in the dataset"), *ways(async_steps=1)(facts)


def _fsdp(facts: OpenInstructFacts) -> str | None:
    shards, copies = facts["fsdp_shard_degree"], facts["fsdp_num_replicas"]
    world = learners(facts.native)
    if shards is not None and copies is not None:
        what = f"fsdp_shard_degree {shards} x fsdp_num_replicas {copies} = {shards * copies}, not {world} learners"
        return what if shards * copies != world else None
    part = shards or copies or 1
    return f"{world} learners are not a multiple of {part}" if world % part else None


def _kl_estimator(facts: OpenInstructFacts) -> str | None:
    value = facts["kl_estimator"]
    named = PPO_KL if facts[SCRIPT] == PPO else NAMED_KL if facts.first else range(len(KL_ESTIMATORS))
    return None if value in named else f"kl_estimator {str(value)[:40]} is not one of the estimators"


def _usual_estimator(facts: OpenInstructFacts) -> str | int:
    return "kl1" if facts[SCRIPT] == PPO else "kl3" if facts.first else 2


def _whole_replicas(facts: OpenInstructFacts) -> str | None:
    world, size = learners(facts.native), facts["sequence_parallel_size"]
    return f"{world} learners are not a multiple of sequence_parallel_size {size}" if world % size else None


def _more_learners(facts: OpenInstructFacts) -> list[int]:
    size = facts["sequence_parallel_size"]
    return [math.ceil(learners(facts.native) / size) * size]


def _cap_and_sampler(facts: OpenInstructFacts) -> str | None:
    if not facts["use_vllm_logprobs"] or facts[CAP] <= 0:
        return None
    return (
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; truncated_importance_sampling_ratio_cap "
        f"{facts[CAP]:g} would correct towards them"
    )


def _masked_mean(facts: OpenInstructFacts) -> str | None:
    value = facts["masked_mean_denominator"]
    return None if value is None or value > 0 else f"masked_mean_denominator {value:g} must be above 0"


def _slow_attention(facts: OpenInstructFacts) -> str | None:
    said = facts.given_text("attn_implementation")
    if said.lower() not in ("torch", "te"):
        return None
    return f"attn_implementation {said}: grpo.py's completions are told apart within a row by flash attention alone"


def _unknown_model(facts: OpenInstructFacts) -> str | None:
    name = facts.given_text("model_name_or_path")
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name in OLMO_MODELS:  # a shape's name, or a folder
        return None
    return f"model_name_or_path {name[:80]}: grpo.py finds the shape of a model by its name, and knows none by this one"


_BOUNDS = {key: 2.0 if key == "rho_clamp_upper_bound" else 0.0 for key in RHO_KEYS}
"""Bounds of the ratio with their defaults."""


def _rho(facts: OpenInstructFacts) -> str | None:
    wrong = (key for key in RHO_KEYS if (facts[key] >= 1 if "lower" in key else 0 < facts[key] <= 1))
    said = ", ".join(f"{key} {facts[key]:g}" for key in wrong)
    if not said or not facts["use_rho_correction"]:
        return None
    return f"{said}: a lower bound is below 1, an upper one above it, and 0 is off"


def _evaluation(facts: OpenInstructFacts) -> str | None:
    every = facts.others.get("local_eval_every")
    if not facts.others.get("eval_on_step_0") or every is None or every > 0:
        return None
    return f"eval_on_step_0 with local_eval_every {every}, which turns evaluation off"


def _eval_top_p(facts: OpenInstructFacts) -> str | None:
    top_p = facts.others.get("eval_top_p")
    return None if top_p is None or 0 < top_p <= 1 else f"eval_top_p {top_p:g} is not a probability above 0"


_REWARDS = (
    "apply_verifiable_reward",
    "apply_r1_style_format_reward",
    "non_stop_penalty",
    "apply_evolving_rubric_reward",
)


def _no_reward(facts: OpenInstructFacts) -> str | None:
    if facts.others.get(_REWARDS[0]) is not False or any(facts.others.get(key) for key in _REWARDS):
        return None
    return "apply_verifiable_reward is off, and so is every other reward"


_POST, _EXPERIMENT = "StreamingDataLoaderConfig.__post_init__", "GRPOExperimentConfig.__post_init__"
_ALL_DROPPED = "with 1 completion per prompt every group has deviation 0, and filter_zero_std_samples drops all of them"

GRPO_REFUSED = (
    RuleSubject("BB-OI-010", BUILDING, BOTH, _POST, text=printed.PACK_LENGTH)(
        _pack,
        ("pack_length", "max_prompt_token_length", "response_length"),
        "AssertionError: The `pack_length` needs to be greater",
        ways(pack_length=_longest),
    ),
    RuleSubject("BB-OI-011", BUILDING, BOTH, _POST).when(
        {GROUP: [0]},
        "no completions per prompt",
        "AssertionError: Number of samples per prompt",
        ways(num_samples_per_prompt_rollout=4),
    ),
    RuleSubject("BB-OI-012", BUILDING, BOTH, _POST, FROM_1, text=printed.GROUP_OF_ONE).when(
        {GROUP: [1], "filter_zero_std_samples": [True]},
        _ALL_DROPPED,
        "ValueError: `filter_zero_std_samples` cannot",
        ways(num_samples_per_prompt_rollout=2, filter_zero_std_samples=False),
    ),
    RuleSubject("BB-OI-068", GENERATING, FAST, "grpo_fast.py, data_preparation_thread, fc22674da", BEFORE_1).when(
        {GROUP: [1], "filter_zero_std_samples": [True]},
        _ALL_DROPPED,
        "a warning, and then no completion is left",
        ways(num_samples_per_prompt_rollout=2),
    ),
    RuleSubject("BB-OI-013", BUILDING, BOTH, _POST, FROM_1).when(
        {"async_steps": [0]},
        "async_steps 0: there is no synchronous training",
        "ValueError: `async_steps` must be greater than 0",
        ways(async_steps=1),
    ),
    RuleSubject("BB-OI-014", BUILDING, BOTH, _POST).when(
        {"active_sampling": [True], "async_steps": [0, 1]},
        "active_sampling needs async_steps of at least 2: dropped groups are replaced from what was generated ahead",
        "AssertionError: With active_sampling",
        ways(async_steps=2, active_sampling=False),
    ),
    RuleSubject("BB-OI-015", BUILDING, BOTH, _POST).when(
        {"active_sampling": [True], "filter_zero_std_samples": [False]},
        "active_sampling replaces the groups that filter_zero_std_samples drops, and that is off",
        "AssertionError: filter_zero_std_samples",
        ways(filter_zero_std_samples=True, active_sampling=False),
    ),
    RuleSubject("BB-OI-016", STARTING, FAST, "grpo_fast.validate_configs", FROM_1)(
        _enough_for_ranks, (PROMPTS, GROUP, NODES), "AssertionError", ways(num_unique_prompts_rollout=_one_for_each)
    ),
    RuleSubject("BB-OI-080", UNTRAINED, BOTH, "prepare_collated_data_for_workers, train_batch, run on CPU")(
        _no_rows, (PROMPTS, GROUP, NODES), fixes=ways(num_unique_prompts_rollout=_one_for_each)
    ),
    RuleSubject("BB-OI-017", BUILDING, BOTH, _EXPERIMENT).when(
        {"sequence_parallel_size": {"not": [1]}, "deepspeed_stage": {"not": [3]}},
        "sequence_parallel_size {sequence_parallel_size} needs deepspeed_stage 3",
        "ValueError: `sequence_parallel_size`",
        ways(deepspeed_stage=3, sequence_parallel_size=1),
    ),
    RuleSubject("BB-OI-018", BUILDING, BOTH, _EXPERIMENT)(
        _denominator, ("loss_denominator",), "ValueError: loss_denominator must be", ways(loss_denominator="token")
    ),
    RuleSubject("BB-OI-019", BUILDING, BOTH, _EXPERIMENT).when(
        {"load_ref_policy": [False], "beta": {"not": [0]}},
        "beta {beta} without a reference policy",
        "ValueError: When load_ref_policy=False",
        ways(beta=0.0, load_ref_policy=True),
    ),
    RuleSubject("BB-OI-020", BUILDING, BOTH, _EXPERIMENT, FROM_3).when(
        {"use_vllm_logprobs": [True], "use_rho_correction": [True]},
        "use_vllm_logprobs makes vLLM's log-probabilities the old ones; use_rho_correction, which is on by default, "
        "would correct towards them",
        "ValueError: Cannot use both `use_vllm_logprobs` and `use_rho_correction`",
        ways(use_rho_correction=False, use_vllm_logprobs=False),
    ),
    RuleSubject("BB-OI-021", STARTING, BOTH, "grpo_fast.py, main")(
        _dataset, ("async_steps", PROMPTS), "ValueError: the dataset is too small", _more_prompts
    ),
    RuleSubject("BB-OI-022", GENERATING, BOTH, "DataPreparationActor; not validated").when(
        {"advantage_normalization_type": {"not": SCALES}},
        f"advantage_normalization_type {{advantage_normalization_type:.40}} is not one of {', '.join(SCALES)}",
        "ValueError",
        ways(advantage_normalization_type=tuple(SCALES)),
    ),
    RuleSubject("BB-OI-023", UNTRAINED, BOTH, "setup_runtime_variables", core="BB113")(
        no_steps,
        ("total_episodes", PROMPTS, GROUP),
        "0 training steps; fails when it ends",
        ways(total_episodes=attrgetter("completions")),
    ),
    RuleSubject("BB-OI-024", GENERATING, BOTH, "not validated").when(
        {PROMPTS: [0]},
        "no prompts per rollout",
        "it is accepted, and nothing is generated",
        ways(num_unique_prompts_rollout=16),
    ),
    RuleSubject("BB-OI-025", BUILDING, BOTH, _EXPERIMENT, FROM_3)(
        _fsdp,
        ("fsdp_shard_degree", "fsdp_num_replicas", NODES),
        "ValueError: must match",
        ways(Fix("leave both out: they are found", dict.fromkeys(("fsdp_shard_degree", "fsdp_num_replicas")))),
    ),
    RuleSubject("BB-OI-026", IN_CONFIG, BOTH, "GRPOExperimentConfig.loss_fn").when(
        {"loss_fn": {"not": ["dapo", "cispo"]}},
        "loss_fn {loss_fn:.40} is neither dapo nor cispo",
        "argparse: invalid choice",
        ways(loss_fn=("dapo", "cispo")),
    ),
    RuleSubject("BB-OI-027", IN_CONFIG, ALL, "kl_estimator: Literal")(
        _kl_estimator, ("kl_estimator",), "argparse: invalid choice", ways(kl_estimator=_usual_estimator)
    ),
    RuleSubject("BB-OI-028", STARTING, FAST, "grpo_fast.py, sequence parallel groups")(
        _whole_replicas,
        (NODES, "sequence_parallel_size"),
        "DeepSpeed asserts",
        ways(num_learners_per_node=_more_learners),
    ),
    RuleSubject("BB-OI-065", BUILDING, FAST, "Args.__post_init__", BEFORE_3)(
        _cap_and_sampler,
        ("use_vllm_logprobs", CAP),
        "ValueError: Cannot use both `use_vllm_logprobs` and `truncated_importance_sampling_ratio_cap`",
        ways(truncated_importance_sampling_ratio_cap=0.0, use_vllm_logprobs=False),
    ),
    RuleSubject("BB-OI-066", BUILDING, FAST, "Args.__post_init__", BEFORE_1)(
        _masked_mean,
        ("masked_mean_denominator",),
        "AssertionError: masked_mean_denominator must be greater than 0!",
        ways(masked_mean_denominator=None),
    ),
    RuleSubject("BB-OI-069", STARTING, CORE, "olmo_core_train_modules.py, GRPOTrainModule", f">={NEWEST}")(
        _slow_attention,
        ("attn_implementation",),
        "AssertionError: GRPOTrainModule requires a flash attention backend",
        ways(attn_implementation="flash_2"),
    ),
    RuleSubject("BB-OI-070", STARTING, CORE, "grpo_olmo_core_actor.py, setup_model", f">={NEWEST}").when(
        {"lr_scheduler_type": {"not": OLMO_SCHEDULES}},
        f"lr_scheduler_type {{lr_scheduler_type:.40}} is not one of grpo.py's: {', '.join(OLMO_SCHEDULES)}",
        "ValueError: Unsupported lr_scheduler_type",
        ways(lr_scheduler_type=OLMO_SCHEDULES),
    ),
    RuleSubject("BB-OI-071", BUILDING, CORE, "olmo_core_utils.py, get_transformer_config", f">={NEWEST}")(
        _unknown_model,
        ("model_name_or_path",),
        "ValueError: Model/config '...' not found",
        ways(Fix("start grpo_fast.py"), model_name_or_path="Qwen/Qwen3-4B-Base"),
    ),
    RuleSubject("BB-OI-072", BUILDING, BOTH, _EXPERIMENT, FROM_3)(
        _rho,
        (*RHO_KEYS, "use_rho_correction"),
        "ValueError: rho_..._bound must satisfy 0 < lb < 1, or be > 1, when set",
        ways(Fix("the bounds' defaults", _BOUNDS), use_rho_correction=False),
    ),
    RuleSubject("BB-OI-073", BUILDING, BOTH, _EXPERIMENT, FROM_3)(
        _evaluation,
        ("eval_on_step_0", "local_eval_every"),
        "ValueError: `eval_on_step_0` requires `local_eval_every` > 0",
        ways(local_eval_every=100, eval_on_step_0=False),
    ),
    RuleSubject("BB-OI-074", BUILDING, BOTH, _EXPERIMENT, FROM_3)(
        _eval_top_p, ("eval_top_p",), "ValueError: `eval_top_p` must be in (0, 1]", ways(eval_top_p=1.0)
    ),
    RuleSubject("BB-OI-075", BUILDING, BOTH, _POST)(
        _no_reward, _REWARDS, "AssertionError: At least one reward must be applied!", ways(apply_verifiable_reward=True)
    ),
    RuleSubject("BB-OI-076", WRONG, CORE, "olmo_core train_module.py, TransformerTrainModule._clip_grad_norm").when(
        {"max_grad_norm": [0]},
        "max_grad_norm 0 multiplies every gradient by 0 in grpo.py: nothing is trained; it does not mean off",
        "torch's clip_grads_with_norm_ multiplies by bound / norm",
        ways(max_grad_norm=UNREACHED),
    ),
    RuleSubject("BB-OI-079", IN_CONFIG, ALL, "lr_scheduler_type: Literal", BEFORE_3).when(
        {"lr_scheduler_type": {"not": SCHEDULES}},
        f"lr_scheduler_type {{lr_scheduler_type:.40}} is not one of {', '.join(SCHEDULES)}",
        "argparse: invalid choice",
        ways(lr_scheduler_type=SCHEDULES[:2]),
    ),
    RuleSubject("BB-OI-077", STARTING, FAST, "grpo_fast.py, get_scheduler; transformers optimization.py", FROM_3).when(
        {"lr_scheduler_type": {"not": LATER_SCHEDULES}},
        "lr_scheduler_type {lr_scheduler_type:.40} needs arguments or a metric, which "
        f"grpo_fast.py does not pass; it can use {', '.join(LATER_SCHEDULES)}",
        "ValueError or TypeError of get_scheduler; DeepSpeed takes its train batch size for a metric",
        ways(lr_scheduler_type=SCHEDULES[:2]),
    ),
    RuleSubject("BB-OI-078", STARTING, (*FAST, *OLD), "utils.py, get_train_ds_config; DeepSpeedZeroConfig.stage").when(
        {"deepspeed_stage": {"not": [0, 1, 2, 3]}},
        "deepspeed_stage {deepspeed_stage} is not one of 0, 1, 2 and 3",
        "ValidationError of DeepSpeedZeroConfig",
        ways(deepspeed_stage=(2, 3)),
    ),
)

"""What SkyRL refuses, ignores or does differently, over native settings; in the order in which it comes to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Phase, Variable, neighbours
from batchbridge.kit.rule_table import Rule
from batchbridge_skyrl.meaning import (
    ESTIMATORS,
    FULLY_ASYNC,
    LOOKAHEAD,
    LOSSES,
    MAIN,
    REDUCTIONS,
    Native,
    data_parallel,
    is_async,
)
from batchbridge_skyrl.settings import (
    ALGORITHM,
    ASYNC,
    BETAS,
    BUDGET,
    CONTEXT,
    CORRECTION,
    ENTROPY,
    ENTRY,
    ESTIMATOR,
    GPUS,
    GROUP,
    INPUT_TOKENS,
    KL_LOSS,
    KL_REWARD,
    LOSS,
    MASKED,
    MAX_SEQ,
    MICRO,
    MINI,
    NODES,
    PIPELINE,
    PROMPT_TOKENS,
    PROMPTS,
    REDUCTION,
    SAMPLES,
    SAMPLING,
    SCHEDULER,
    SCHEDULES,
    STEPWISE,
    STRATEGY,
    TENSOR,
    TURNS,
    ULYSSES,
    WARMUP,
)

PLACES = "trainer.placement."
CRITIC, CRITIC_MINI = "trainer.critic.model.path", "trainer.critic_mini_batch_size"
ENGINE, WORKERS = "generator.inference_engine.", f"{ASYNC}.num_parallel_generation_workers"
ASSERTS = "AssertionError"


def _devices(native: Native, model: str = "policy") -> int:
    return int(native[f"{PLACES}{model}_num_nodes"] * native[f"{PLACES}{model}_num_gpus_per_node"])


def _replicas(native: Native, model: str = "policy") -> int:
    return data_parallel(native, _devices(native, model), model)


def _uses_reference(native: Native) -> bool:
    return bool(native[KL_LOSS] or native[KL_REWARD])


def _splits(native: Native) -> tuple[int, int]:
    """Completions of a rollout and of a mini-batch on one replica, as validate_batch_sizes floors them."""
    replicas = max(_replicas(native), 1)
    return native[PROMPTS] * native[GROUP] // replicas, native[MINI] * native[GROUP] // replicas


def _fit(native: Native) -> bool:
    rollout, mini = _splits(native)
    return (
        native[PROMPTS] % native[MINI] == 0
        and mini > 0
        and mini % native[MICRO] == 0
        and rollout % mini == 0
        and native[PROMPTS] * native[GROUP] % math.lcm(max(_replicas(native), 1)) == 0
    )


def _nearest(native: Native) -> tuple[Fix, ...]:
    sizes = [Variable(key, native[key]) for key in (MINI, MICRO, PROMPTS)]
    found = neighbours(sizes, lambda now: _fit({**native, **now}))
    return tuple(Fix(", ".join(f"{key} = {value}" for key, value in fix.items()), fix) for fix in found[:3])


def _mini(native: Native) -> str | None:
    if native[PROMPTS] % native[MINI] == 0:
        return None
    return f"{PROMPTS} = {native[PROMPTS]} is no multiple of {MINI} = {native[MINI]} (prompts both)"


def _micro(native: Native) -> str | None:
    rollout, mini = _splits(native)
    if mini == 0:
        return (
            f"{MINI} x {GROUP} = {native[MINI] * native[GROUP]} completions for {_replicas(native)} replicas: none each"
        )
    if mini % native[MICRO]:
        return f"a replica has {mini} completions of a mini-batch, no multiple of {MICRO} = {native[MICRO]}"
    if rollout % mini:
        return f"a replica has {rollout} completions of a rollout, no multiple of {mini}, those of a mini-batch"
    return None


def _tail(native: Native) -> str | None:
    replicas = math.lcm(_replicas(native), _replicas(native, "ref") if _uses_reference(native) else 1)
    total = native[PROMPTS] * native[GROUP]
    if replicas < 1 or total % replicas == 0:
        return None
    return (
        f"{PROMPTS} x {GROUP} = {total} completions are no multiple of {replicas}, the replicas' common multiple: the \
prompts behind the last multiple are dropped, and the mini-batches are then counted against {PROMPTS}"
    )


def _critic(native: Native) -> str | None:
    if native[CRITIC] is None:
        return None
    replicas = max(_devices(native, "critic") // native["trainer.critic.sequence_parallel_size"], 1)
    mini, rollout = (native[key] * native[GROUP] // replicas for key in (CRITIC_MINI, PROMPTS))
    if native[PROMPTS] % native[CRITIC_MINI] == 0 and mini and mini % native[MICRO] == 0 and rollout % mini == 0:
        return None
    return (
        f"{CRITIC_MINI} = {native[CRITIC_MINI]} (prompts) does not split {PROMPTS} = {native[PROMPTS]} on {replicas} \
replicas into whole micro-batches of {native[MICRO]}"
    )


def _parallel(native: Native) -> str | None:
    keys = (TENSOR, PIPELINE, CONTEXT) if native[STRATEGY] == "megatron" else (ULYSSES,)
    for model in ("policy", *(["ref"] if _uses_reference(native) else [])):
        size = math.prod(native[key.replace("policy", model)] for key in keys)
        if _devices(native, model) % size:
            return (
                f"{_devices(native, model)} devices of the {model} model are no multiple of {size}, those of a replica"
            )
    return None


def _megatron(native: Native) -> str | None:
    if native[STRATEGY] != "megatron":
        return None
    if native[CRITIC] is not None:
        return "megatron trains no critic"
    if native[ULYSSES] > 1:
        return f"{ULYSSES} = {native[ULYSSES]}: megatron has {CONTEXT} instead"
    if native[CONTEXT] > 1 and not native["trainer.remove_microbatch_padding"]:
        return f"{CONTEXT} = {native[CONTEXT]} needs trainer.remove_microbatch_padding"
    if native[SCHEDULER] != "constant_with_warmup":
        return f"{SCHEDULER} = {native[SCHEDULER]}: megatron has only constant_with_warmup"
    return None


def _asynchronous(native: Native) -> str | None:
    """Source: fully_async_trainer.FullyAsyncRayPPOTrainer.__init__."""
    if native[ENTRY] in (FULLY_ASYNC,) and not native[f"{ASYNC}.enabled"]:
        return f"{ASYNC}.enabled is off, and {FULLY_ASYNC} asserts it"
    if not is_async(native):
        return None
    ages, mini, workers = native[f"{ASYNC}.max_staleness_steps"], native[MINI], native[WORKERS]
    if not mini <= workers <= mini * (ages + 1):
        return f"{WORKERS} = {workers} is not between {mini} and {mini * (ages + 1)}: {MINI}, and {ages + 1} times that"
    if native[PROMPTS] != mini:
        return f"{PROMPTS} = {native[PROMPTS]} is not {MINI} = {mini}: a rollout is one optimizer step"
    if native[SAMPLING] is not None:
        return f"{SAMPLING} = {native[SAMPLING]}: not with a fully asynchronous trainer"
    if native[f"{ASYNC}.sample_full_batch"] and not native[MASKED]:
        return f"{ASYNC}.sample_full_batch needs {MASKED}"
    if native["generator.batched"] or native[f"{PLACES}colocate_all"]:
        return "generator.batched and trainer.placement.colocate_all must be off with a fully asynchronous trainer"
    if native[LOSS] in LOSSES and LOSSES[native[LOSS]].old != "sampler":
        return f"{LOSS} = {native[LOSS]} needs log-probabilities that a fully asynchronous trainer does not have"
    return None


def _names(native: Native) -> str | None:
    if native[REDUCTION] not in REDUCTIONS:
        return f"{REDUCTION} = {native[REDUCTION]}: one of {', '.join(REDUCTIONS)}"
    if native[ENTRY] not in (None, MAIN, FULLY_ASYNC, LOOKAHEAD):
        return None  # a program of its own may register more
    if native[LOSS] not in LOSSES:
        return f"{LOSS} = {native[LOSS]}: one of {', '.join(LOSSES)}"
    if native[ESTIMATOR] not in ESTIMATORS:
        return f"{ESTIMATOR} = {native[ESTIMATOR]}: one of {', '.join(ESTIMATORS)}"
    return None


def _off_policy(native: Native) -> str | None:
    asked = any(native[f"{CORRECTION}.{name}"] for name in ("tis_ratio_type", "sequence_mask_metric"))
    if (asked or native[f"{ALGORITHM}.use_tis"]) and native[LOSS] in ("clip_cov", "kl_cov"):
        return f"{CORRECTION} with {LOSS} = {native[LOSS]} is not implemented"
    return None


def _one_correction(native: Native) -> str | None:
    sides = [f"{CORRECTION}.token_mask_is_threshold_{side}" for side in ("low", "high")]
    if (native[sides[0]] is None) == (native[sides[1]] is None):
        return None
    return "only one of the two token_mask_is_threshold is given: nothing is masked"


def _stepwise(native: Native) -> str | None:
    if native["generator.merge_stepwise_output"] and not native[STEPWISE]:
        return f"generator.merge_stepwise_output needs {STEPWISE}"
    if native[STEPWISE] and native[ESTIMATOR] in ("gae", "reinforce++"):
        return f"{ESTIMATOR} = {native[ESTIMATOR]} has an advantage for each token, {STEPWISE} one for a trajectory"
    if native[STEPWISE] and native[REDUCTION] == "token_mean_legacy":
        return f"{REDUCTION} = token_mean_legacy is not there for {STEPWISE}"
    return None


def _lengths(native: Native) -> str | None:
    prompt, most = native[PROMPT_TOKENS], native[INPUT_TOKENS]
    if most < prompt or (native[TURNS] == 1 and most != prompt):
        return (
            f"{INPUT_TOKENS} = {most} must {'be' if native[TURNS] == 1 else 'be at least'} {PROMPT_TOKENS} = {prompt}"
        )
    return None


def _placement(native: Native) -> str | None:
    engines = math.prod(
        native[f"{ENGINE}{name}"]
        for name in ("num_engines", *(f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "data")))
    )
    if native[f"{PLACES}colocate_all"]:
        if engines != _devices(native):
            return f"{engines} devices generate and {_devices(native)} train, but colocate_all shares them"
    elif native[f"{PLACES}colocate_policy_ref"] and _uses_reference(native):
        if _devices(native) != _devices(native, "ref"):
            return (
                f"the reference has {_devices(native, 'ref')} devices, the policy {_devices(native)}, and shares them"
            )
    return None


def _betas(native: Native) -> str | None:
    betas = native[BETAS]
    if isinstance(betas, list) and len(betas) == 2 and all(type(b) in (int, float) and 0 <= b < 1 for b in betas):
        return None
    return f"{BETAS} is no list of two numbers from 0 to below 1"


def _when(broken: Callable[[Native], bool], message: str) -> Callable[[Native], str | None]:
    return lambda native: message if broken(native) else None


def _row(
    number: int,
    test: Callable[[Native], str | None],
    keys: tuple[str, ...],
    symbol: str,
    says: str = ASSERTS,
    phase: Phase = "config",
    **more: Any,
) -> Rule[Native]:
    severity = "error" if phase != "never" else "warning"
    return Rule(
        f"BB-SKYRL-{number:03}", severity, phase, test, keys, native=says, source=f"skyrl 0.3.0 {symbol}", **more
    )


RULES: tuple[Rule[Native], ...] = (
    _row(
        10, _betas, (BETAS,), "OptimizerConfig, torch.optim.AdamW", "ValueError: Invalid beta parameter", "worker_start"
    ),
    _row(11, _lengths, (INPUT_TOKENS, PROMPT_TOKENS, TURNS), "utils.validate_generator_cfg"),
    _row(
        12,
        _when(lambda native: (native[f"{SAMPLES}.logprobs"] or 0) > 1, f"{SAMPLES}.logprobs is 0, 1 or null"),
        (f"{SAMPLES}.logprobs",),
        "utils.validate_generator_cfg",
        "ValueError: logprobs if set should be 0 or 1",
        fixes=lambda native: (Fix(f"{SAMPLES}.logprobs = 1", {f"{SAMPLES}.logprobs": 1}),),
    ),
    _row(13, _megatron, (STRATEGY, ULYSSES, CONTEXT, SCHEDULER, CRITIC), "utils.validate_megatron_cfg"),
    _row(
        14,
        _when(lambda native: native[ESTIMATOR] == "gae" and native[CRITIC] is None, f"gae needs {CRITIC}"),
        (ESTIMATOR, CRITIC),
        "utils.validate_cfg",
    ),
    _row(
        15,
        _when(lambda native: native[KL_LOSS] and native[KL_REWARD], "KL is in the loss or in the reward, not in both"),
        (KL_LOSS, KL_REWARD),
        "utils.validate_cfg",
        fixes=lambda native: (
            Fix(f"{KL_LOSS} = false", {KL_LOSS: False}),
            Fix(f"{KL_REWARD} = false", {KL_REWARD: False}),
        ),
    ),
    _row(
        16, _parallel, (NODES, GPUS, ULYSSES, TENSOR, PIPELINE, CONTEXT), "utils.validate_batch_sizes, init_device_mesh"
    ),
    _row(17, _mini, (PROMPTS, MINI), "utils.validate_batch_sizes", fixes=_nearest),
    _row(18, _micro, (MINI, MICRO, PROMPTS, GROUP, NODES, GPUS), "utils.validate_batch_sizes", fixes=_nearest),
    _row(19, _critic, (CRITIC_MINI, PROMPTS, MICRO), "utils.validate_batch_sizes"),
    _row(
        20,
        _when(
            lambda native: native["trainer.max_ckpts_to_keep"] == 0, "trainer.max_ckpts_to_keep is not 0; -1 keeps all"
        ),
        ("trainer.max_ckpts_to_keep",),
        "utils.validate_cfg",
        "ValueError",
        fixes=lambda native: (Fix("keep all", {"trainer.max_ckpts_to_keep": -1}),),
    ),
    _row(21, _names, (LOSS, ESTIMATOR, REDUCTION), "utils.validate_cfg, ppo_utils registries"),
    _row(22, _stepwise, (STEPWISE, ESTIMATOR, REDUCTION), "utils.validate_cfg", "ValueError"),
    _row(
        23,
        _when(
            lambda native: native[REDUCTION] == "seq_mean_token_sum_norm" and native[MAX_SEQ] is None,
            f"{REDUCTION} = seq_mean_token_sum_norm divides by {MAX_SEQ}, which is not given",
        ),
        (MAX_SEQ, REDUCTION),
        "utils.validate_cfg",
        "ValueError",
    ),
    _row(24, _off_policy, (LOSS, f"{CORRECTION}.tis_ratio_type"), "utils.validate_cfg", "NotImplementedError"),
    _row(25, _placement, (f"{PLACES}colocate_all", NODES, GPUS), "utils.validate_cfg"),
    _row(
        26,
        _when(
            lambda native: native[SCHEDULER] not in SCHEDULES,
            f"the schedule is none of {', '.join(SCHEDULES)}, or needs arguments, which are not handed on",
        ),
        (SCHEDULER,),
        "FSDPStrategy._fsdp_init_train_model, transformers get_scheduler",
        "ValueError",
        "worker_start",
    ),
    _row(
        27,
        _asynchronous,
        (f"{ASYNC}.enabled", PROMPTS, MINI, WORKERS, LOSS),
        "FullyAsyncRayPPOTrainer.__init__",
        phase="construction",
    ),
    _row(
        28,
        _tail,
        (PROMPTS, GROUP, NODES, GPUS),
        "trainer._remove_tail_data, preprocess.compute_prompt_mini_batch_boundaries",
        phase="first_rollout",
        fixes=_nearest,
    ),
    _row(
        29,
        _when(
            lambda native: native[SAMPLING] == "replace",
            f"{SAMPLING} = replace gives two groups one uid, and mini-batches are cut by uids that must differ: the first "
            "rollout with a group to replace ends the run",
        ),
        (SAMPLING,),
        "trainer_utils.handle_replace_sampling, preprocess.compute_prompt_mini_batch_boundaries",
        phase="first_rollout",
        fixes=lambda native: (Fix(f"{SAMPLING} = filter", {SAMPLING: "filter"}),),
    ),
    _row(
        40,
        _when(
            lambda native: native[REDUCTION] == "token_mean_legacy",
            f"{REDUCTION} = token_mean_legacy: tokens of short micro-batches weigh more, so {MICRO} changes the gradient",
        ),
        (REDUCTION, MICRO),
        "ppo_utils.apply_loss_reduction_to_advantages_minibatch",
        "trains it",
        "never",
        fixes=lambda native: (Fix(f"{REDUCTION} = token_mean", {REDUCTION: "token_mean"}),),
    ),
    _row(
        41,
        _when(
            lambda native: native[ENTROPY],
            "entropy is averaged by micro-batch, so its weights depend on how steps are cut",
        ),
        (ENTROPY, MICRO, BUDGET),
        "worker.PolicyWorkerBase._forward_backward_micro",
        "trains it",
        "never",
    ),
    _row(
        42,
        _when(
            lambda native: native[ESTIMATOR] == "grpo" and native[GROUP] == 1,
            f"{GROUP} = 1 with grpo: a group of one has mean 0, so that the advantage is the plain reward",
        ),
        (GROUP, ESTIMATOR),
        "ppo_utils.compute_grpo_outcome_advantage",
        "trains it",
        "never",
    ),
    _row(
        43,
        _when(
            lambda native: native[f"{ASYNC}.enabled"] and native[ENTRY] == MAIN,
            f"{ASYNC}.enabled with {MAIN}: its trainer is synchronous whatever that says",
        ),
        (f"{ASYNC}.enabled", ENTRY),
        "entrypoints.main_base.BasePPOExp.get_trainer",
        "trains synchronously",
        "never",
    ),
    _row(
        44,
        _when(
            lambda native: native[f"{ALGORITHM}.advantage_batch_normalize"],
            "advantage_batch_normalize subtracts a mean over padding too, so that it depends on the longest completion",
        ),
        (f"{ALGORITHM}.advantage_batch_normalize",),
        "trainer._normalize_advantages",
        "trains it",
        "never",
    ),
    _row(
        45,
        _one_correction,
        (f"{CORRECTION}.token_mask_is_threshold_low",),
        "off_policy_correction_utils",
        "ignores it",
        "never",
    ),
    _row(
        46,
        _when(
            lambda native: native[SCHEDULER] == "constant" and native[WARMUP] > 0,
            f"{WARMUP} does nothing with {SCHEDULER} = constant",
        ),
        (WARMUP, SCHEDULER),
        "transformers get_scheduler",
        "ignores it",
        "never",
        fixes=lambda native: (Fix("warm up", {SCHEDULER: "constant_with_warmup"}),),
    ),
)

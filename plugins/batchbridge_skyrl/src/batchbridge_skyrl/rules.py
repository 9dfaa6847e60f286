"""What SkyRL refuses, ignores or does differently, in the order in which it comes to it; a row's name is its test's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Phase, Severity, Variable, neighbours
from batchbridge.kit.rule_table import Rule
from batchbridge_skyrl.meaning import UNCORRECTED, is_async
from batchbridge_skyrl.settings import FULLY_ASYNC, KNOWN, LOOKAHEAD, MAIN, SCHEDULES, Run, full

RULES: list[Rule[Mapping[str, Any]]] = []
"""Filled by `_rule`."""
Test = Callable[[Run], str | None]
STEP, MICRO = "policy_mini_batch_size", "micro_train_batch_size_per_gpu"
CONFIG, SIZES = "utils.validate_cfg", "utils.validate_batch_sizes"
CUT = "trainer._remove_tail_data, preprocess.compute_prompt_mini_batch_boundaries"
SPLIT = f"train_batch_size {STEP} {MICRO} n_samples_per_prompt policy_num_gpus_per_node"


def _rule(number: int, symbol: str, ends: str, phase: Phase = "config", fix: Any = None) -> Callable[[Test], Test]:
    """Makes a row: SkyRL's symbol, the settings to point at, and a way out (settings, or a search for them)."""
    keys = tuple(map(full, ends.split()))
    told: Severity = "warning" if phase == "never" else "error"

    def fixes(native: Mapping[str, Any]) -> tuple[Fix, ...]:
        found = fix(Run(native)) if callable(fix) else [{full(end): value for end, value in fix.items()}] if fix else []
        return tuple(Fix(", ".join(f"{key} = {value}" for key, value in one.items()), one) for one in found)

    def row(test: Test) -> Test:
        does = "trains all the same" if phase == "never" else "AssertionError or ValueError"
        source = f"skyrl 0.3.0 {symbol}"
        RULES.append(Rule(f"BB-SKYRL-{number:03}", told, phase, lambda n: test(Run(n)), keys, does, source, fixes))
        return test

    return row


def _devices(run: Run, model: str) -> int:
    return int(run[f"{model}_num_nodes"] * run[f"{model}_num_gpus_per_node"])


def _replica(run: Run, model: str) -> int:
    """Devices of one replica."""
    megatron = run["trainer.strategy"] == "megatron" and model != "critic"
    kinds = ("tensor_model", "pipeline_model", "context") if megatron else ()
    sizes = [f"megatron_config.{kind}_parallel_size" for kind in kinds] or ["sequence_parallel_size"]
    return math.prod(run[f"{model}.{size}"] for size in sizes)


def _models(run: Run) -> tuple[str, ...]:
    return ("policy", "ref") if run["use_kl_loss"] or run["use_kl_in_reward"] else ("policy",)


def _split(run: Run, model: str) -> str | None:
    """Why a model's mini-batches do not split. Each replica's share is floored, as validate_batch_sizes does."""
    group, prompts, mini = run["n_samples_per_prompt"], run["train_batch_size"], run[f"{model}_mini_batch_size"]
    replicas = max(_devices(run, model) // _replica(run, model), 1)
    own, rollout = mini * group // replicas, prompts * group // replicas
    if prompts % mini:
        return f"train_batch_size = {prompts} is no multiple of {model}_mini_batch_size = {mini} (prompts both)"
    if not own or own % run[MICRO]:
        return (
            f"{own} completions of a mini-batch on each of {replicas} replicas: no multiple of {MICRO} = {run[MICRO]}"
        )
    return f"{rollout} completions of a rollout on each replica: no multiple of {own}" if rollout % own else None


def _nearest(run: Run) -> list[dict[str, int]]:
    sizes = [Variable(full(end), run[end]) for end in (STEP, MICRO, "train_batch_size")]
    return neighbours(sizes, lambda now: not _policy(Run({**run, **now})) and not _tail(Run({**run, **now})))[:3]


@_rule(10, "OptimizerConfig, torch.optim.AdamW", "policy.optimizer_config.adam_betas", "worker_start")
def _betas(run: Run) -> str | None:
    betas = run["policy.optimizer_config.adam_betas"]
    good = isinstance(betas, list) and len(betas) == 2 and all(type(b) in (int, float) and 0 <= b < 1 for b in betas)
    return None if good else "adam_betas is no list of two numbers from 0 to below 1"


@_rule(11, "utils.validate_generator_cfg", "max_input_length trainer.max_prompt_length max_turns")
def _lengths(run: Run) -> str | None:
    most, prompt, turns = run["max_input_length"], run["trainer.max_prompt_length"], run["max_turns"]
    wrong = most < prompt or (turns == 1 and most != prompt)
    return f"max_input_length = {most} with max_prompt_length = {prompt} and {turns} turns" if wrong else None


LOGPROBS = "generator.sampling_params.logprobs"


@_rule(12, "utils.validate_generator_cfg", LOGPROBS, fix={LOGPROBS: 1})
def _logprobs(run: Run) -> str | None:
    return "logprobs is 0, 1 or null" if (run[LOGPROBS] or 0) > 1 else None


@_rule(13, "utils.validate_megatron_cfg", "trainer.strategy policy.sequence_parallel_size trainer.critic.model.path")
def _megatron(run: Run) -> str | None:
    packs = run["policy.megatron_config.context_parallel_size"] == 1 or run["remove_microbatch_padding"]
    right = run["policy.sequence_parallel_size"] == 1 and run["trainer.critic.model.path"] is None and packs
    text = (
        "megatron takes no critic, no sequence_parallel_size, and context_parallel_size with remove_microbatch_padding"
    )
    return None if right or run["trainer.strategy"] != "megatron" else text


@_rule(14, CONFIG, "advantage_estimator trainer.critic.model.path")
def _gae(run: Run) -> str | None:
    alone = run["advantage_estimator"] == "gae" and run["trainer.critic.model.path"] is None
    return "advantage_estimator = gae needs trainer.critic.model.path" if alone else None


@_rule(15, CONFIG, "use_kl_loss use_kl_in_reward", fix={"use_kl_in_reward": False})
def _kl(run: Run) -> str | None:
    both = run["use_kl_loss"] and run["use_kl_in_reward"]
    return "use_kl_loss and use_kl_in_reward exclude each other" if both else None


@_rule(
    16,
    f"{SIZES}, Worker.init_worker_process_group",
    "policy_num_nodes policy_num_gpus_per_node policy.sequence_parallel_size",
)
def _replicas(run: Run) -> str | None:
    torn = [model for model in _models(run) if _devices(run, model) % _replica(run, model)]
    text = "{} devices of the {} are no multiple of {}, those of a replica"
    return text.format(_devices(run, torn[0]), torn[0], _replica(run, torn[0])) if torn else None


@_rule(17, SIZES, SPLIT, fix=_nearest)
def _policy(run: Run) -> str | None:
    return _split(run, "policy")


@_rule(18, SIZES, f"train_batch_size critic_mini_batch_size {MICRO}")
def _critic(run: Run) -> str | None:
    return None if run["trainer.critic.model.path"] is None else _split(run, "critic")


@_rule(19, CONFIG, "max_ckpts_to_keep", fix={"max_ckpts_to_keep": -1})
def _checkpoints(run: Run) -> str | None:
    return "max_ckpts_to_keep is a number from 1, or -1 for all" if run["max_ckpts_to_keep"] == 0 else None


@_rule(20, f"{CONFIG}, ppo_utils registries", "policy_loss_type advantage_estimator loss_reduction")
def _names(run: Run) -> str | None:
    """A program of the user's own may register more estimators and losses."""
    ends = list(KNOWN) if run["entrypoint"] in (None, MAIN, FULLY_ASYNC, LOOKAHEAD) else ["loss_reduction"]
    wrong = [end for end in ends if run[end] not in (*KNOWN[end], "maxrl")]
    return f"{wrong[0]} = {run[wrong[0]]}: known are {', '.join(KNOWN[wrong[0]])}" if wrong else None


@_rule(21, CONFIG, "step_wise_trajectories advantage_estimator loss_reduction merge_stepwise_output")
def _stepwise(run: Run) -> str | None:
    if not run["step_wise_trajectories"]:
        return "merge_stepwise_output needs step_wise_trajectories" if run["merge_stepwise_output"] else None
    wrong = run["advantage_estimator"] in ("gae", "reinforce++") or run["loss_reduction"] == "token_mean_legacy"
    return "step_wise_trajectories takes neither gae, reinforce++ nor token_mean_legacy" if wrong else None


@_rule(22, CONFIG, "algorithm.max_seq_len loss_reduction")
def _constant(run: Run) -> str | None:
    missing = run["loss_reduction"] == "seq_mean_token_sum_norm" and run["algorithm.max_seq_len"] is None
    return "loss_reduction = seq_mean_token_sum_norm divides by max_seq_len, which is not given" if missing else None


@_rule(23, CONFIG, "policy_loss_type tis_ratio_type sequence_mask_metric")
def _corrected(run: Run) -> str | None:
    asked = run["tis_ratio_type"] or run["sequence_mask_metric"] or run["use_tis"]
    wrong = asked and run["policy_loss_type"] in UNCORRECTED[:2]
    return "clip_cov and kl_cov take no off_policy_correction" if wrong else None


@_rule(24, CONFIG, "colocate_all inference_engine.num_engines policy_num_gpus_per_node ref_num_gpus_per_node")
def _shared(run: Run) -> str | None:
    sizes = ("num_engines", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    engines, devices = math.prod(run[f"inference_engine.{size}"] for size in sizes), _devices(run, "policy")
    if run["colocate_all"]:
        return (
            f"{engines} devices generate, {devices} train, and colocate_all shares them" if engines != devices else None
        )
    apart = run["colocate_policy_ref"] and any(_devices(run, model) != devices for model in _models(run))
    return "the reference shares the policy's devices, and has another number of them" if apart else None


SCHEDULER = "policy.optimizer_config.scheduler"


@_rule(
    25, "get_megatron_optimizer_param_scheduler, get_scheduler", SCHEDULER, "worker_start", {SCHEDULER: SCHEDULES[0]}
)
def _schedule(run: Run) -> str | None:
    known = SCHEDULES[:1] if run["trainer.strategy"] == "megatron" else SCHEDULES
    wrong = run[SCHEDULER] not in known
    return f"{run[SCHEDULER]} is no schedule that needs no arguments: {', '.join(known)}" if wrong else None


@_rule(26, "FullyAsyncRayPPOTrainer.__init__", "fully_async.enabled train_batch_size policy_loss_type", "construction")
def _asynchronous(run: Run) -> str | None:
    if not is_async(run):
        return f"{FULLY_ASYNC} needs fully_async.enabled" if run["entrypoint"] == FULLY_ASYNC else None
    most, loss = run[STEP] * (run["max_staleness_steps"] + 1), run["policy_loss_type"]
    demands = {
        f"train_batch_size = {STEP}": run["train_batch_size"] == run[STEP],
        f"num_parallel_generation_workers from {run[STEP]} to {most}": run[STEP]
        <= run["num_parallel_generation_workers"]
        <= most,
        "dynamic_sampling.type = null": run["dynamic_sampling.type"] is None,
        "zero_variance_filter for sample_full_batch": run["zero_variance_filter"] or not run["sample_full_batch"],
        "generator.batched and colocate_all off": not (run["generator.batched"] or run["colocate_all"]),
        "a loss on the sampler's log-probabilities": loss in ("rollout_is", "dppo")
        or loss not in KNOWN["policy_loss_type"],
    }
    missing = [demand for demand, met in demands.items() if not met]
    return f"fully asynchronous training needs {', '.join(missing)}" if missing else None


@_rule(27, CUT, SPLIT, "first_rollout", _nearest)
def _tail(run: Run) -> str | None:
    replicas = math.lcm(*(max(_devices(run, model) // _replica(run, model), 1) for model in _models(run)))
    total = run["train_batch_size"] * run["n_samples_per_prompt"]
    text = (
        f"{total} completions of a rollout are no multiple of {replicas}, the replicas: prompts are cut off and missed"
    )
    return text if total % replicas else None


@_rule(
    28,
    f"trainer_utils.handle_replace_sampling; {CUT}",
    "dynamic_sampling.type",
    "first_rollout",
    {"dynamic_sampling.type": "filter"},
)
def _replace(run: Run) -> str | None:
    text = "replace gives two groups one uid, and mini-batches assert that uids differ: a replaced group ends the run"
    return text if run["dynamic_sampling.type"] == "replace" else None


@_rule(
    40,
    "ppo_utils.apply_loss_reduction_to_advantages_minibatch",
    "loss_reduction",
    "never",
    {"loss_reduction": "token_mean"},
)
def _legacy(run: Run) -> str | None:
    text = "token_mean_legacy averages each micro-batch by itself: micro_train_batch_size_per_gpu changes the gradient"
    return text if run["loss_reduction"] == "token_mean_legacy" else None


@_rule(41, "worker.PolicyWorkerBase._forward_backward_micro", "use_entropy_loss", "never")
def _entropy(run: Run) -> str | None:
    text = "entropy is averaged in each micro-batch: how steps are cut changes the gradient"
    return text if run["use_entropy_loss"] else None


@_rule(42, "ppo_utils.compute_grpo_outcome_advantage", "n_samples_per_prompt advantage_estimator", "never")
def _alone(run: Run) -> str | None:
    alone = run["n_samples_per_prompt"] == 1 and run["advantage_estimator"] == "grpo"
    return "a group of one has mean 0 and deviation 1, so that the reward itself is the advantage" if alone else None


@_rule(43, "entrypoints.main_base.BasePPOExp.get_trainer", "fully_async.enabled entrypoint", "never")
def _synchronous(run: Run) -> str | None:
    wrong = run["fully_async.enabled"] and run["entrypoint"] == MAIN
    return f"{MAIN} trains synchronously, whatever fully_async.enabled says" if wrong else None


@_rule(44, "trainer._normalize_advantages", "advantage_batch_normalize", "never")
def _normalized(run: Run) -> str | None:
    text = "advantage_batch_normalize takes its mean over padding too: the longest completion changes every advantage"
    return text if run["advantage_batch_normalize"] else None


@_rule(45, "off_policy_correction_utils.off_policy_correction_enabled", "token_mask_is_threshold_low", "never")
def _half(run: Run) -> str | None:
    sides = [run[f"token_mask_is_threshold_{side}"] is None for side in ("low", "high")]
    return "with only one token_mask_is_threshold nothing is masked" if sides[0] != sides[1] else None

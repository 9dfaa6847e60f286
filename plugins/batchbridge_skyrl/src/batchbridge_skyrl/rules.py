"""Rules that SkyRL refuses by, ignores or takes differently: `rules.json` has values that do not go together; numbers
that do not fit are here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Phase, Severity
from batchbridge.kit.rule_table import Rule, nearest_fixes, recorded_rules, setting_fixes
from batchbridge_skyrl.meaning import anchored, corrections, is_async
from batchbridge_skyrl.settings import FULLY_ASYNC, KNOWN, SkyRLRun, full

SkyRLTest = Callable[[SkyRLRun], str | None]
FROM_SAMPLER = ("rollout_is", "dppo")
"""Losses whose ratio is to the log-probabilities of the engine."""
STEP, MICRO = "policy_mini_batch_size", "micro_train_batch_size_per_gpu"


def _devices(run: SkyRLRun, model: str) -> int:
    return int(run[f"{model}_num_nodes"] * run[f"{model}_num_gpus_per_node"])


def _replica(run: SkyRLRun, model: str) -> int:
    """Devices of one replica."""
    megatron = run["trainer.strategy"] == "megatron" and model != "critic"
    kinds = ("tensor_model", "pipeline_model", "context") if megatron else ()
    sizes = [f"megatron_config.{kind}_parallel_size" for kind in kinds] or ["sequence_parallel_size"]
    return math.prod(run[f"{model}.{size}"] for size in sizes)


def _models(run: SkyRLRun) -> tuple[str, ...]:
    return ("policy", "ref") if run["use_kl_loss"] or run["use_kl_in_reward"] else ("policy",)


def _split(run: SkyRLRun, model: str) -> str | None:
    """The reason why mini-batches do not split. Each replica's share is floored, as validate_batch_sizes does."""
    group, prompts, mini = run["n_samples_per_prompt"], run["train_batch_size"], run[f"{model}_mini_batch_size"]
    replicas = max(_devices(run, model) // _replica(run, model), 1)
    own, rollout = mini * group // replicas, prompts * group // replicas
    if prompts % mini:
        return f"train_batch_size = {prompts} is not a multiple of {model}_mini_batch_size = {mini} (prompts both)"
    if not own or own % run[MICRO]:
        return (
            f"{own} completions of a mini-batch on each of {replicas} replicas: no multiple of {MICRO} = {run[MICRO]}"
        )
    return f"{rollout} completions of a rollout on each replica: no multiple of {own}" if rollout % own else None


def _policy(run: SkyRLRun) -> str | None:
    return _split(run, "policy")


def _critic(run: SkyRLRun) -> str | None:
    return None if run["trainer.critic.model.path"] is None else _split(run, "critic")


def _cap(run: SkyRLRun) -> str | None:
    cap = run["tis_imp_ratio_cap"]
    text = f"tis_imp_ratio_cap = {cap}: each token's loss is multiplied by it at most, so that none pulls as it should"
    return text if run["use_tis"] and cap <= 0 else None


def _tail(run: SkyRLRun) -> str | None:
    replicas = math.lcm(*(max(_devices(run, model) // _replica(run, model), 1) for model in _models(run)))
    total = run["train_batch_size"] * run["n_samples_per_prompt"]
    text = (
        f"{total} completions of a rollout are not a multiple of {replicas}, the replicas: prompts are cut off "
        "and missed"
    )
    return text if total % replicas else None


def _nearest(native: Mapping[str, Any]) -> tuple[Fix, ...]:
    sizes = [full(end) for end in (STEP, MICRO, "train_batch_size")]
    return nearest_fixes(native, sizes, lambda now: not any(test(SkyRLRun(now)) for test in (_policy, _tail)))[:3]


def _betas(run: SkyRLRun) -> str | None:
    betas = run["policy.optimizer_config.adam_betas"]
    good = isinstance(betas, list) and len(betas) == 2 and all(type(b) in (int, float) and 0 <= b < 1 for b in betas)
    return None if good else "adam_betas is not a list of two numbers from 0 to below 1"


def _lengths(run: SkyRLRun) -> str | None:
    most, prompt, turns = run["max_input_length"], run["trainer.max_prompt_length"], run["max_turns"]
    wrong = most < prompt or (turns == 1 and most != prompt)
    return f"max_input_length = {most} with max_prompt_length = {prompt} and {turns} turns" if wrong else None


def _replicas(run: SkyRLRun) -> str | None:
    torn = [model for model in _models(run) if _devices(run, model) % _replica(run, model)]
    text = "{} devices of the {} are not a multiple of {}, those of a replica"
    return text.format(_devices(run, torn[0]), torn[0], _replica(run, torn[0])) if torn else None


def _shared(run: SkyRLRun) -> str | None:
    sizes = ("num_engines", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    engines, devices = math.prod(run[f"inference_engine.{size}"] for size in sizes), _devices(run, "policy")
    if run["colocate_all"]:
        text = f"{engines} devices generate, {devices} train, and colocate_all shares them"
        return text if engines != devices else None
    apart = run["colocate_policy_ref"] and any(_devices(run, model) != devices for model in _models(run))
    return "the reference shares the policy's devices, and has another number of them" if apart else None


def _asynchronous(run: SkyRLRun) -> str | None:
    if not is_async(run):
        return f"{FULLY_ASYNC} needs fully_async.enabled" if run["entrypoint"] == FULLY_ASYNC else None
    most, loss = run[STEP] * (run["max_staleness_steps"] + 1), run["policy_loss_type"]
    enough = run[STEP] <= run["num_parallel_generation_workers"] <= most
    demands = {
        f"train_batch_size = {STEP}": run["train_batch_size"] == run[STEP],
        f"num_parallel_generation_workers from {run[STEP]} to {most}": enough,
        "dynamic_sampling.type = null": run["dynamic_sampling.type"] is None,
        "zero_variance_filter for sample_full_batch": run["zero_variance_filter"] or not run["sample_full_batch"],
        "generator.batched and colocate_all off": not (run["generator.batched"] or run["colocate_all"]),
        "rollout_is or dppo": loss in FROM_SAMPLER or anchored(run) or loss not in KNOWN["policy_loss_type"],
    }
    missing = [demand for demand, met in demands.items() if not met]
    return f"fully asynchronous training needs {', '.join(missing)}" if missing else None


def _anchor(run: SkyRLRun) -> str | None:
    level = run["tis_ratio_type"]
    text = f"cispo_anchor = rollout is the correction, and tis_ratio_type = {level} would be a second one"
    return text if anchored(run) and level is not None else None


def _capture(run: SkyRLRun) -> str | None:
    """The reason why SkyRL does not return the tokens that sampling chose from."""
    sampling = "generator.sampling_params."
    demands = {
        "top_k above 1": run[f"{sampling}top_k"] > 1,
        "repetition_penalty = 1": run[f"{sampling}repetition_penalty"] == 1,
        "no additional_kwargs": not run[f"{sampling}additional_kwargs"],
        "no vision_language_generator": not run["vision_language_generator"],
    }
    missing = [demand for demand, met in demands.items() if not met]
    return f"{CAPTURE} needs {', '.join(missing)}" if run[CAPTURE] and missing else None


def _replay(run: SkyRLRun) -> str | None:
    if not run[REPLAY] or (run[CAPTURE] and run["use_conversation_multi_turn"]):
        return None
    return f"{REPLAY} needs {CAPTURE} and use_conversation_multi_turn"


def _limited(run: SkyRLRun) -> bool:
    """Whether vLLM's log-probabilities are of the tokens that limits leave, the trainer's of all, and the two are
    compared. Without the capture, vLLM gives those of all (its `raw_logprobs`)."""
    compared = anchored(run) or run["policy_loss_type"] in FROM_SAMPLER or any(corrections(run))
    return bool(run[CAPTURE] and not run[REPLAY] and compared)


def _of_sequences(run: SkyRLRun) -> bool:
    """Whether a completion has one factor, the product over its tokens."""
    named = " ".join(corrections(run))
    return "sequence_truncate" in named or "sequence_mask" in named


_PROCESSED = "vLLM's log-probabilities are of the tokens that top_k, top_p and min_p leave, the trainer's of all tokens"


def _limited_tokens(run: SkyRLRun) -> str | None:
    return (
        f"{_PROCESSED}: each ratio has what is left as a factor" if _limited(run) and not _of_sequences(run) else None
    )


def _limited_sequences(run: SkyRLRun) -> str | None:
    text = f"{_PROCESSED}: a completion's ratio has what is left, of each token, as a factor: 0.95 in 256 tokens is"
    return f"{text} {0.95**256:.0e}" if _limited(run) and _of_sequences(run) else None


def _row(number: int, test: SkyRLTest, ends: str, symbol: str, phase: Phase = "config", fixes: Any = None) -> Rule[Any]:
    keys, source, more = tuple(map(full, ends.split())), f"skyrl 0.3.0 {symbol}", {"fixes": fixes} if fixes else {}
    args = (lambda native: test(SkyRLRun(native)), keys, "AssertionError" if phase != "never" else "trains it", source)
    return Rule(f"BB-SKYRL-{number:03}", "error", phase, *args, **more)


def _later(
    code: str, severity: Severity, phase: Phase, test: SkyRLTest, ends: str, native: str, symbol: str, **fix: Any
) -> Rule[Any]:
    """A row from 0.4.0 on. fix: a setting by the end of its key, with what the way out makes of it."""
    ways = setting_fixes({full(end): value for end, value in fix.items()})
    keys, source = tuple(map(full, ends.split())), f"skyrl 0.4.0 {symbol}, run on CPU"
    args = (lambda native: test(SkyRLRun(native)), keys, native, source, lambda native: ways)
    return Rule(code, severity, phase, *args, versions=">=0.4")


SIZES, ROLLOUT = "utils.validate_batch_sizes", f"train_batch_size {STEP} {MICRO} n_samples_per_prompt"
CAPTURE, REPLAY = "enable_return_sample_support_set", "enable_sample_support_replay"
_LIMITS = f"{CAPTURE} {REPLAY} sampling_params.top_k sampling_params.top_p sampling_params.min_p"
_CISPO, _CONFIG = "ppo_utils.compute_policy_loss_cispo", "SkyRLTrainConfig.__post_init__"
_SERVER = "inference_servers.utils (logprobs_mode)"
DEVICES, CUT = "policy_num_nodes policy_num_gpus_per_node", "preprocess.compute_prompt_mini_batch_boundaries"
_ROWS = (
    _row(10, _betas, "policy.optimizer_config.adam_betas", "FSDPStrategy, torch.optim.AdamW", "worker_start"),
    _row(11, _lengths, "max_input_length trainer.max_prompt_length max_turns", "utils.validate_generator_cfg"),
    _row(16, _replicas, f"{DEVICES} policy.sequence_parallel_size", "Worker.init_worker_process_group"),
    _row(17, _policy, f"{ROLLOUT} {DEVICES}", SIZES, fixes=_nearest),
    _row(18, _critic, f"train_batch_size critic_mini_batch_size {MICRO}", SIZES),
    _row(24, _shared, f"colocate_all inference_engine.num_engines {DEVICES}", "utils.validate_cfg"),
    _row(26, _asynchronous, f"fully_async.enabled {ROLLOUT}", "FullyAsyncRayPPOTrainer.__init__", "construction"),
    _row(27, _tail, f"{ROLLOUT} {DEVICES}", f"trainer._remove_tail_data, {CUT}", "first_rollout", _nearest),
    _row(46, _cap, "use_tis tis_imp_ratio_cap", "off_policy_correction_utils.compute_tis_ratio", "never"),
    _later(
        "BB-SKYRL-029",
        "error",
        "optimizer_step",
        _anchor,
        "cispo_anchor tis_ratio_type",
        "ValueError",
        _CISPO,
        tis_ratio_type=None,
    ),
    _later(
        "BB-SKYRL-030",
        "error",
        "config",
        _capture,
        f"{CAPTURE} sampling_params.top_k",
        "ValueError",
        _CONFIG,
        enable_return_sample_support_set=False,
    ),
    _later(
        "BB-SKYRL-031",
        "error",
        "config",
        _replay,
        f"{REPLAY} {CAPTURE}",
        "ValueError",
        _CONFIG,
        enable_sample_support_replay=False,
    ),
    _later(
        "BB-SKYRL-047",
        "warning",
        "never",
        _limited_tokens,
        _LIMITS,
        "trains it",
        _SERVER,
        enable_return_sample_support_set=False,
    ),
    _later(
        "BB-SKYRL-048",
        "error",
        "never",
        _limited_sequences,
        _LIMITS,
        "trains it",
        _SERVER,
        enable_return_sample_support_set=False,
    ),
    *recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8")), "BB-SKYRL"),
)
RULES = tuple(sorted(_ROWS, key=lambda rule: rule.code))

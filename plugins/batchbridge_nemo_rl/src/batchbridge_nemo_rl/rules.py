"""What NeMo-RL refuses, in the order in which it comes to it. `rules.json` has the settings whose values do not go
together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from batchbridge import Fix
from batchbridge.kit import Variable, neighbours
from batchbridge.kit.rule_table import Rule, recorded_rules
from batchbridge_nemo_rl.meaning import is_megatron, parallel
from batchbridge_nemo_rl.writing import COLOCATED, REWARD, has_reward_model, not_training, policy_nodes

Native = Mapping[str, Any]
PROMPTS, GROUP, STEP = "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"
MICRO, FORWARD = "policy.train_micro_batch_size", "policy.logprob_batch_size"
ENGINES = ("policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled")
CLUSTER = ("cluster.num_nodes", "cluster.gpus_per_node")
FORCED, RATIO = "loss_fn.force_on_policy_ratio", "loss_fn.truncated_importance_sampling_ratio"


def _world(native: Native) -> int:
    return prod(native[key] or 1 for key in CLUSTER) - not_training(native)


def _replica(native: Native) -> int:
    return prod(native[key] for key in parallel(native).values())


def _forced(native: Native) -> str | None:
    rollout = native[PROMPTS] * native[GROUP]
    if not native[FORCED] or rollout == native[STEP]:
        return None
    return f"a step of {native[STEP]} completions, a rollout of {rollout}: a forced ratio needs one step a rollout"


def _bounds(native: Native) -> str | None:
    low, high = native[f"{RATIO}_min"], native[RATIO]
    if native["loss_fn.truncated_importance_sampling_type"] is None:
        return None
    if high is None or high <= 0:
        return "truncated_importance_sampling_ratio must be positive"
    return "the lower bound is above the upper" if low is not None and low > high else None


def _dual(native: Native) -> str | None:
    bound = native["loss_fn.ratio_clip_c"]
    return f"ratio_clip_c = {bound} must exceed 1" if bound is not None and bound <= 1 else None


def _loaders(native: Native) -> str | None:
    size = native["data.num_prompts_per_dataloader"]
    if not native["data.use_multiple_dataloader"] or (size and native[PROMPTS] % size == 0):
        return None
    return f"{native[PROMPTS]} prompts a step are no multiple of {size} a loader"


def _apart(native: Native) -> str | None:
    if native[f"{COLOCATED}enabled"]:
        return None
    nodes, each = policy_nodes(native), native["cluster.gpus_per_node"]
    devices, own = (native[f"{COLOCATED}resources.{end}"] for end in ("gpus_per_node", "num_nodes"))
    if native["cluster.num_nodes"] == 1 and has_reward_model(native):
        each -= native[f"{REWARD}gpus_per_node"] or 0
    if nodes == 1:
        fits = devices is not None and own in (None, 1) and devices < each
    else:
        fits = own is not None and own < nodes and devices == each
    return None if fits else "the devices that generate leave none to train, or are not said"


def _accuracy(native: Native) -> str | None:
    tensor = native[parallel(native)["tensor"]]
    if tensor < 4 or native[FORCED] or native[MICRO] == native[FORWARD]:
        return None
    return f"with tensor parallel {tensor} {FORWARD} = {native[FORWARD]} must be {MICRO} = {native[MICRO]}"


def _divides(native: Native) -> str | None:
    if native["on_policy_distillation.enabled"]:
        return None
    world, replica = _world(native), _replica(native)
    return f"{world} devices are no multiple of the {replica} of a replica" if world < 1 or world % replica else None


def _steps(native: Native) -> str | None:
    rollout, step = native[PROMPTS] * native[GROUP], native[STEP]
    return f"a rollout of {rollout} completions is no multiple of {STEP} = {step}" if rollout % step else None


def _ranks(native: Native) -> str | None:
    ranks = _world(native) // _replica(native)
    if ranks < 1 or native[STEP] % ranks == 0 or native["on_policy_distillation.enabled"]:
        return None
    return f"{STEP} = {native[STEP]} is no multiple of {ranks} data-parallel ranks"


def _micro(native: Native) -> str | None:
    ranks = max(_world(native) // _replica(native), 1)
    cut = native["policy.dynamic_batching.enabled"] or native["policy.sequence_packing.enabled"]
    if cut or native[STEP] // ranks % native[MICRO] == 0:
        return None
    return f"a rank's {native[STEP] // ranks} completions of a step are no multiple of {MICRO} = {native[MICRO]}"


def _even(native: Native) -> tuple[Fix, ...]:
    ranks = max(_world(native) // _replica(native), 1)
    sizes = [Variable(STEP, native[STEP]), Variable(PROMPTS, native[PROMPTS])]
    found = neighbours(
        sizes,
        lambda now: (
            now[PROMPTS] * native[GROUP] % now[STEP] == 0
            and not _ranks({**native, **now})
            and not _micro({**native, **now})
            and not _forced({**native, **now})
            and now[STEP] % ranks == 0
        ),
    )
    return tuple(Fix(", ".join(f"{key} = {value}" for key, value in fix.items()), fix) for fix in found[:3])


def _same(native: Native) -> tuple[Fix, ...]:
    return (Fix(f"{FORWARD} = {native[MICRO]}", {FORWARD: native[MICRO]}),)


def _row(
    number: int,
    test: Callable[[Native], str | None],
    keys: tuple[str, ...],
    symbol: str,
    fixes: Any = None,
    native: str = "AssertionError",
) -> Rule[Native]:
    more = {"fixes": fixes} if fixes else {}
    return Rule(f"BB-NEMO-{number:03}", "error", "config", test, keys, native, f"NeMo-RL v0.7.0 {symbol}", **more)


ALL = (PROMPTS, GROUP, STEP)
_ROWS = (
    _row(11, _loaders, ("data.num_prompts_per_dataloader", PROMPTS), "grpo.setup"),
    _row(16, _bounds, (RATIO, f"{RATIO}_min"), "ClippedPGLossFn.__init__"),
    _row(18, _forced, (*ALL, FORCED), "grpo.setup", _even),
    _row(
        20, _apart, (*CLUSTER, f"{COLOCATED}resources.gpus_per_node", f"{COLOCATED}resources.num_nodes"), "grpo.setup"
    ),
    _row(22, _accuracy, (MICRO, FORWARD), "Policy.__init__", _same),
    _row(23, _divides, CLUSTER, "Policy.__init__", native="ValueError"),
    _row(26, _steps, ALL, "BatchedDataDict.shard_by_batch_size", _even),
    _row(27, _ranks, (STEP, *CLUSTER), "BatchedDataDict.shard_by_batch_size", _even),
    _row(28, _micro, (STEP, MICRO, *CLUSTER), "BatchedDataDict.make_microbatch_iterator", _even),
    _row(29, _dual, ("loss_fn.ratio_clip_c",), "ClippedPGLossFn.__call__"),
    *recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8")), "BB-NEMO"),
)
RULES = tuple(sorted(_ROWS, key=lambda rule: rule.code))
__all__ = ["ENGINES", "RULES", "is_megatron"]

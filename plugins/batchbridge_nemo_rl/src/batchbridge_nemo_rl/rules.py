"""Rules that NeMo-RL refuses by, in its own order. `rules.json` has the settings whose values do not go
together."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from batchbridge import Fix
from batchbridge.kit.rule_table import IN_CONFIG, nearest_fixes, recorded_rules, setting_fixes
from batchbridge_nemo_rl.meaning import NemoSettings, engine
from batchbridge_nemo_rl.settings import FORWARD, MICRO, TIS
from batchbridge_nemo_rl.writing import COLOCATED, REWARD, has_reward_model, not_training, policy_nodes

PROMPTS, GROUP, STEP = "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"
CLUSTER = ("cluster.num_nodes", "cluster.gpus_per_node")
FORCED, RATIO = "loss_fn.force_on_policy_ratio", f"{TIS}ratio"
LOADER, DISTILLED = "data.num_prompts_per_dataloader", "on_policy_distillation.enabled"


def _world(native: NemoSettings) -> int:
    """Devices of the cluster that train."""
    return prod(native[key] or 1 for key in CLUSTER) - not_training(native)


def _replica(native: NemoSettings) -> int:
    """Devices that hold one copy of the policy: the product of its parallel sizes."""
    return prod(native[key] for path, key in engine(native).items() if path.startswith("topology."))


def _ranks(native: NemoSettings) -> int:
    """Data-parallel ranks; 1 where there are not enough devices for one, which a rule of its own says."""
    return max(_world(native) // _replica(native), 1)


def _forced(native: NemoSettings) -> str | None:
    step, rollout = native[STEP], native[PROMPTS] * native[GROUP]
    text = f"a step of {step} completions, a rollout of {rollout}: a forced ratio needs one step a rollout"
    return text if native[FORCED] and rollout != step else None


def _bounds(native: NemoSettings) -> str | None:
    low, high = native[f"{RATIO}_min"], native[RATIO]
    if native[f"{TIS}type"] is None:
        return None
    if high is None or high <= 0:
        return "truncated_importance_sampling_ratio must be positive"
    return "the lower bound is above the upper" if low is not None and low > high else None


def _dual(native: NemoSettings) -> str | None:
    bound = native["loss_fn.ratio_clip_c"]
    return f"ratio_clip_c = {bound} must exceed 1" if bound is not None and bound <= 1 else None


def _loaders(native: NemoSettings) -> str | None:
    prompts, size = native[PROMPTS], native[LOADER]
    text = f"{prompts} prompts a step are not a multiple of {size} a loader"
    return text if native["data.use_multiple_dataloader"] and (not size or prompts % size) else None


def _apart(native: NemoSettings) -> str | None:
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


def _accuracy(native: NemoSettings) -> str | None:
    tensor, micro, forward = native[engine(native)["topology.tensor_parallel"]], native[MICRO], native[FORWARD]
    text = f"with tensor parallel {tensor} {FORWARD} = {forward} must be {MICRO} = {micro}"
    return text if tensor >= 4 and micro != forward and not native[FORCED] else None


def _divides(native: NemoSettings) -> str | None:
    world, replica = _world(native), _replica(native)
    text = f"{world} devices are not a multiple of the {replica} of a replica"
    return text if (world < 1 or world % replica) and not native[DISTILLED] else None


def _steps(native: NemoSettings) -> str | None:
    rollout, step = native[PROMPTS] * native[GROUP], native[STEP]
    return f"a rollout of {rollout} completions is not a multiple of {STEP} = {step}" if rollout % step else None


def _shares(native: NemoSettings) -> str | None:
    step, ranks = native[STEP], _ranks(native)
    text = f"{STEP} = {step} is not a multiple of {ranks} data-parallel ranks"
    return text if step % ranks and not native[DISTILLED] else None


def _micro(native: NemoSettings) -> str | None:
    share, micro = native[STEP] // _ranks(native), native[MICRO]
    cut = native["policy.dynamic_batching.enabled"] or native["policy.sequence_packing.enabled"]
    text = f"a rank's {share} completions of a step are not a multiple of {MICRO} = {micro}"
    return text if share % micro and not cut else None


def _even(native: NemoSettings) -> tuple[Fix, ...]:
    def legal(now: NemoSettings) -> bool:
        return now[STEP] % _ranks(now) == 0 and not any(test(now) for test in (_steps, _micro, _forced))

    return nearest_fixes(native, (STEP, PROMPTS), legal)[:3]


def _same(native: NemoSettings) -> tuple[Fix, ...]:
    return setting_fixes({FORWARD: native[MICRO]})


ASSERTS, GRPO = "AssertionError", "NeMo-RL v0.7.0 grpo.setup"
LOSS, POLICY, DATA = (f"NeMo-RL v0.7.0 {name}" for name in ("ClippedPGLossFn", "Policy.__init__", "BatchedDataDict"))
ALL, APART = (PROMPTS, GROUP, STEP), tuple(f"{COLOCATED}resources.{end}" for end in ("gpus_per_node", "num_nodes"))
_ROWS = (
    IN_CONFIG("BB-NEMO-011", _loaders, (LOADER, PROMPTS), ASSERTS, GRPO),
    IN_CONFIG("BB-NEMO-016", _bounds, (RATIO, f"{RATIO}_min"), ASSERTS, f"{LOSS}.__init__"),
    IN_CONFIG("BB-NEMO-018", _forced, (*ALL, FORCED), ASSERTS, GRPO, _even),
    IN_CONFIG("BB-NEMO-020", _apart, (*CLUSTER, *APART), ASSERTS, GRPO),
    IN_CONFIG("BB-NEMO-022", _accuracy, (MICRO, FORWARD), ASSERTS, POLICY, _same),
    IN_CONFIG("BB-NEMO-023", _divides, CLUSTER, "ValueError", POLICY),
    IN_CONFIG("BB-NEMO-026", _steps, ALL, ASSERTS, f"{DATA}.shard_by_batch_size", _even),
    IN_CONFIG("BB-NEMO-027", _shares, (STEP, *CLUSTER), ASSERTS, f"{DATA}.shard_by_batch_size", _even),
    IN_CONFIG("BB-NEMO-028", _micro, (STEP, MICRO, *CLUSTER), ASSERTS, f"{DATA}.make_microbatch_iterator", _even),
    IN_CONFIG("BB-NEMO-029", _dual, ("loss_fn.ratio_clip_c",), ASSERTS, f"{LOSS}.__call__"),
    *recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text(encoding="utf-8")), "BB-NEMO"),
)
RULES = tuple(sorted(_ROWS, key=lambda rule: rule.code))

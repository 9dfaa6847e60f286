"""slime's options by name: `settings.json` has those that decide something, with kinds and defaults, and every option
that slime's and Megatron's parsers declare, by the number of words that it takes.

Source: slime 0.3.1 (624b824) utils/arguments.py, with Megatron-LM at the commit of its docker/Dockerfile, whose parsers
were built and asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from batchbridge.kit.argparse_adapter import arities
from batchbridge.kit.key_table import Key, recorded
from batchbridge.kit.kinds import anything, flag, one_of

Native = Mapping[str, Any]
RECORDED: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text("utf-8"))
OPTIONS = arities(
    {name: int(words) for words, lines in RECORDED["options"].items() for line in lines for name in line.split()}
)
SERVERS = ("sglang-", "router-")
"""Beginnings of options that a parser of their own takes, for the engines. Source: sglang_utils/arguments.py."""
ESTIMATORS = ("grpo", "gspo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo")
GROUPED = ESTIMATORS[:3]
"""Those whose advantages are read here: rewards of a group, less their mean. Source: compute_advantages_and_returns."""
FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"
GENERATE = "slime.rollout.sglang_rollout.generate_rollout"
SHUFFLES = {True: "epoch_permutation", False: "none"}
KEYS = (
    Key("program", one_of("train.py", "train_async.py"), "train.py", meaning="the program that is started"),
    *recorded(RECORDED["settings"]),
    Key("advantage-estimator", one_of(*ESTIMATORS), "grpo"),
    Key(
        "calculate-per-token-loss",
        flag,
        False,
        "loss.policy.aggregation",
        {True: "token_mean", False: "sequence_mean"},
    ),
    Key("rollout-shuffle", flag, False, "order.prompt_shuffle", SHUFFLES),
    Key("no-check-for-nan-in-loss-and-grad", flag, False, "objective.nonfinite_step", {True: "skip", False: "error"}),
    Key("fp16", flag, False, "carried.precision", {True: "fp16", False: "bf16"}),
    Key("optimizer", anything, "adam"),
)
CONSTANTS = {
    "optimizer_step.passes_per_rollout": 1,
    "order.last_optimizer_step": "drop",
    "carried.weight_decay_excludes": "biases_and_norms",
}


def replica(native: Native) -> int:
    """Devices that hold one copy of the policy."""
    return prod(int(native[f"{kind}-parallel-size"]) for kind in ("tensor-model", "pipeline-model", "context"))


def replicas(native: Native) -> int:
    """Data-parallel replicas; 1 where the devices are too few for one, which a rule says."""
    return max(int(native["actor-num-nodes"] * native["actor-num-gpus-per-node"]) // replica(native), 1)


def rollout_size(native: Native) -> int:
    """Completions of a rollout."""
    return int((native["rollout-batch-size"] or 1) * native["n-samples-per-prompt"])


def size_of_step(native: Native) -> int:
    """Completions of an optimizer step. Source: slime_validate_args, then Megatron's validate_args."""
    if steps := native["num-steps-per-rollout"]:
        return max(rollout_size(native) // int(steps), 1)
    return int(native["global-batch-size"] or native["micro-batch-size"] * replicas(native))


def steps_of_rollout(native: Native) -> int:
    """Optimizer steps of a rollout; 0 where it has too few completions for one."""
    return rollout_size(native) // size_of_step(native)


def corrected(native: Native) -> bool:
    """Whether the loss is corrected towards the sampler: the metrics do that, too. Source: policy_loss_function."""
    return bool(native["use-tis"] or native["get-mismatch-metrics"])


def in_time(native: Native) -> bool:
    """Whether the groups that end first are trained, and others that were begun are not."""
    more = (native["over-sampling-batch-size"] or 0) > (native["rollout-batch-size"] or 0)
    return more or native["dynamic-sampling-filter-path"] is not None

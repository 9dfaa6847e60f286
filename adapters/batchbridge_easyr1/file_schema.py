"""The JSON Schema of EasyR1's config.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit.file_schema import LEAF, ChoiceWords, nested, refused, setting
from batchbridge.kit.key_table import Key
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.meaning import LOSS_TYPES, estimators_of
from batchbridge_easyr1.settings import FREE_GROUPS, SET_BY_EASYR1, kinds_of, settings_of, versions_with

MEANINGS: Mapping[str, tuple[str, str]] = {
    names.NODES: ("nodes", "Nodes of the run."),
    names.GPUS: ("devices", "Devices of a node."),
    f"{names.ROLLOUT}tensor_parallel_size": ("devices", "Devices that share a layer while completions are generated."),
    names.BATCH: (
        "prompts",
        "Prompts of one optimizer step; with the completions of each it is shared out to the devices.",
    ),
    names.CRITIC_BATCH: ("prompts", "Prompts of one optimizer step of the critic."),
    names.MICRO: ("completions", "Completions that a device trains at a time."),
    names.FORWARD: ("completions", "Completions whose log-probabilities a device computes at a time."),
    names.CRITIC_FORWARD: ("completions", "Completions whose values a device computes at a time."),
    names.DYNAMIC: ("", "Whether micro-batches are cut by tokens instead of completions."),
    names.ESTIMATOR: ("", "How advantages are made of rewards."),
    names.LOSS_TYPE: ("", "The surrogate of the policy loss; what is not known trains as default."),
    names.MAX_TRIES: ("rollouts", "Tries to fill a rollout where online_filtering drops groups."),
    names.WARMUP_SHARE: ("share of the rollouts", "Rollouts over which the learning rate rises."),
    names.WARMUP_STEPS: ("rollouts", "Rollouts over which the learning rate rises."),
    "trainer.total_epochs": ("epochs", "Passes over the dataset, where trainer.max_steps is null."),
    "trainer.total_episodes": ("epochs", "Passes over the dataset, where trainer.max_steps is null."),
    names.FILTER: ("", "Whether groups are dropped by their mean score, and replaced."),
    names.FILTER_LOW: ("score", "A group is kept whose mean score lies above this."),
    names.FILTER_HIGH: ("score", "A group is kept whose mean score lies below this."),
    "algorithm.kl_coef": ("", "Factor of the KL penalty."),
    "algorithm.kl_penalty": ("", "How the KL divergence is estimated."),
    "algorithm.kl_horizon": ("completions", "Of an adaptive KL coefficient."),
    f"{names.ROLLOUT}max_num_batched_tokens": ("tokens", "Tokens that vLLM takes at a time."),
    "trainer.critic_warmup": ("rollouts", "Rollouts that train the critic alone."),
}
"""Unit and meaning of keys that no canonical field alone comes from. Source: EasyR1 trainer/config.py and
workers/*/config.py at the versions of `settings`; what they come to is in `run` and `meaning`."""


def words_of(version: str) -> Mapping[str, ChoiceWords]:
    """The words of settings that EasyR1 takes as text and refuses later, and of those that it goes on with."""
    return {
        names.MODE: ChoiceWords(tuple(names.AGGREGATIONS)),
        names.ESTIMATOR: ChoiceWords(estimators_of(version)),
        f"{names.ACTOR}optim.strategy": ChoiceWords(names.OPTIMIZERS),
        f"{names.ACTOR}optim.lr_scheduler_type": ChoiceWords(names.SCHEDULES),
        names.LOSS_TYPE: ChoiceWords(tuple(LOSS_TYPES), only=False),
        "algorithm.kl_penalty": ChoiceWords((*names.KL_ESTIMATORS, "full"), only=False),
        "algorithm.kl_type": ChoiceWords(names.KL_TYPES, only=False),
    }


def settings_schema(version: str, decides: Callable[[str], str | None]) -> dict[str, Any]:
    """Every field of the dataclasses; a key of another version, and what EasyR1 sets itself, say so.

    decides: see `Adapter.decides`.
    """
    rows, words = settings_of(version), words_of(version)
    leaves = {}
    for key, kind in kinds_of(version).items():
        unit, meaning = MEANINGS.get(key, ("", ""))
        if key in SET_BY_EASYR1 and not meaning:
            meaning = "EasyR1 overwrites what stands here."
        row = rows.get(key, Key(key, kind))
        row = row._replace(unit=row.unit or unit, meaning=row.meaning or meaning)
        leaves[key] = setting(row, words.get(key), decides=decides(key), interpolates=True)
        if key not in rows:
            del leaves[key]["default"]  # not recorded
            leaves[key] |= {} if key in FREE_GROUPS else LEAF
    for key, versions in versions_with().items():
        if key not in leaves:
            leaves[key] = refused(f"EasyR1 {version} has no setting {key}; EasyR1 {versions} has it")
    return nested(leaves, [group for group in FREE_GROUPS if group in kinds_of(version)])

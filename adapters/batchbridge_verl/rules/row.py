"""The rows of verl's rules, and what several of them look at.

Its own file: every table of verl's rules uses it.
"""

from __future__ import annotations

from collections.abc import Collection

from batchbridge.kit import rule_table
from batchbridge_verl.run import GPUS, GROUP, NODES, VerlRun
from batchbridge_verl.settings import ACTOR

AGGREGATION = f"{ACTOR}loss_agg_mode"
ESTIMATOR = "algorithm.adv_estimator"
MODE = f"{ACTOR}policy_loss.loss_mode"
FILTERED = "algorithm.filter_groups.enable"
BALANCE = "trainer.balance_batch"
CORRECTION = "algorithm.rollout_correction."
BYPASS = f"{CORRECTION}bypass_mode"
V1 = "trainer.use_v1"
DEVICES = (NODES, GPUS)
ENGINE_WORKERS = ">=0.7.1"
"""Versions with engine workers; 0.7.1 only with `use_legacy_worker_impl=disable`, which `VerlRun.legacy` tells."""
OF_V1 = ">=0.8.0"
"""Versions with the trainer on TransferQueue, `VerlRun.v1`."""

VerlRule = rule_table.Rule[VerlRun]


def product(run: VerlRun, prompts: str) -> str:
    """A number of prompts with the completions of each, in words."""
    return f"{prompts} = {run[prompts]} (prompts) x {GROUP} = {run[GROUP]}"


def one_of(key: str, value: object, names: Collection[str]) -> str | None:
    """The message of a setting with another value than these; None where it has one of them."""
    return None if value in names else f"{key} = {value}: must be one of {', '.join(names)}"

"""Refusals of verl before 0.6 before any worker started: `RayPPOTrainer._validate_config`, in its own order.

The facts are those that `validate_config` of later versions looks at, and the rows theirs, but for what differs: the
order, the strategies, the reference policy's sequence parallelism, Megatron's critic, and multi-turn rollouts.
"""

from __future__ import annotations

import dataclasses

from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge_verl.rules import VALIDATED
from batchbridge_verl.rules.row import VerlRule
from batchbridge_verl.rules.validated import CRITIC_PADDING, PADDING
from batchbridge_verl.rules.ways_out import setting
from batchbridge_verl.run import VerlRun
from batchbridge_verl.settings import ACTOR, CRITIC, REFERENCE, ROLLOUT, holds

BEFORE = "<0.6.0"
ORDER = ("014", "013", "018", "016", "059", "064", "012", "015", "024", "062", "060", "051", "061", "063")
"""Numbers of the rows of `validate_config` that the method had, in its order. Source: verl 0.4.0 to 0.5.0."""
_ULYSSES = "ulysses_sequence_parallel_size"


def _counts(run: VerlRun, role: str) -> bool:
    """Whether a role's engine counts as FSDP in these versions. Source: verl 0.4.0 and 0.4.1 `== "fsdp"`; 0.5.0 `in
    {"fsdp", "fsdp2"}`."""
    names = ("fsdp",) if holds("<0.5.0", run.version) else ("fsdp", "fsdp2")
    return run.engine == "fsdp" and run[f"{role}strategy"] in names


def _padding(run: VerlRun) -> str | None:
    for key in (f"{ACTOR}{_ULYSSES}", f"{REFERENCE}{_ULYSSES}"):
        if _counts(run, ACTOR) and not run[PADDING] and run[key] > 1:
            return f"{key} = {run[key]} needs {PADDING}"
    return None


def _critic_padding(run: VerlRun) -> str | None:
    key = f"{CRITIC}{_ULYSSES}"
    if not run.critic or not _counts(run, CRITIC) or run[key] <= 1 or run[CRITIC_PADDING]:
        return None
    return f"{key} = {run[key]} needs {CRITIC_PADDING}"


def _multi_turn(run: VerlRun) -> str | None:
    key, tools = f"{ROLLOUT}multi_turn.enable", f"{ROLLOUT}multi_turn.tool_config_path"
    interaction = run[f"{ROLLOUT}multi_turn.interaction_config_path"] if holds(">=0.4.1", run.version) else None
    if not run[key]:
        return None
    if run[tools] is None and interaction is None:
        return f"{key} needs {tools}"
    if run["algorithm.adv_estimator"] != "grpo":
        return f"{key} with algorithm.adv_estimator = {run['algorithm.adv_estimator']}: only grpo is accepted"
    return None


_OTHERWISE = {"BB-VERL-051": _padding, "BB-VERL-061": _critic_padding}
"""Checks that these versions made in another way, by code."""


def _older(row: VerlRule) -> VerlRule:
    return dataclasses.replace(row, versions=BEFORE, test=_OTHERWISE.get(row.code, row.test))


ROWS: tuple[VerlRule, ...] = (
    *sorted(
        (_older(row) for row in VALIDATED if row.versions and row.code[-3:] in ORDER),
        key=lambda row: ORDER.index(row.code[-3:]),
    ),
    IN_CONFIG(
        "BB-VERL-065",
        _multi_turn,
        (f"{ROLLOUT}multi_turn.enable", f"{ROLLOUT}multi_turn.tool_config_path", "algorithm.adv_estimator"),
        "AssertionError: tool_config_path ... must be set when enabling multi_turn with tool; or: only GRPO is tested "
        "for multi-turn with tool",
        "verl 0.4.0 to 0.4.1 RayPPOTrainer._validate_config",
        setting(f"{ROLLOUT}multi_turn.enable", False),
        "<0.5.0",
    ),
)

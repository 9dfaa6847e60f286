"""What is asked of runs of OpenRLHF's asynchronous trainer, live and recorded ones alike: whether the versions in the
ledger are those of the weights that engines had, by their content (`batchbridge_on_cpu.openrlhf.ahead`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orl_proofs import rows_of, summary

from batchbridge.ledger import read_steps

STEPS = 2
"""Optimizer steps of a rollout."""
LOADED = "loaded"
"""What an engine calls weights that it loaded itself: those before the first step."""


def told(ledger: Path, truth: Path) -> dict[str, Any]:
    """A ledger as it is recorded, with the version of each completion, and what engines and policy say themselves."""
    found = summary(ledger)
    for kept, step in zip(found["steps"], read_steps(ledger), strict=True):
        kept["generated_at_step"] = list(step["generated_at_step"])
    for name in ("policy", "made"):
        found[name] = [line.split() for line in (truth / name).read_text(encoding="utf-8").splitlines()]
    return found


def rows(run: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """(rollout, prompt, sample, version) of every completion that was trained, in the order of rollouts."""
    names = ("rollout", "prompt", "sample", "generated_at_step")
    return sorted(row for step in run["steps"] for row in rows_of(step, *names))


def versions(run: Mapping[str, Any]) -> dict[int, set[int]]:
    """Rollout to the versions of its completions."""
    found = defaultdict[int, set[int]](set)
    for rollout, _, _, version in rows(run):
        found[rollout].add(version)
    return dict(found)


def check_truth(run: Mapping[str, Any]) -> None:
    """Every completion was generated with the weights that its ledger's row says, by the engine's own account."""
    steps = {weights: int(step) for step, weights in run["policy"]}
    assert len(steps) == len(run["policy"]) > 1, "every optimizer step moves the policy"
    steps[LOADED] = 0
    made = defaultdict[tuple[int, int], list[tuple[str, str]]](list)
    for prompt, sample, began, ended in run["made"]:
        made[int(prompt), int(sample)].append((began, ended))
    for _, prompt, sample, version in rows(run):
        began, ended = made[prompt, sample].pop(0)
        assert began == ended
        assert steps[began] == version


def oldest(run: Mapping[str, Any]) -> int:
    """The most optimizer steps that lie between a completion's weights and the first step of its rollout."""
    ages = [STEPS * rollout - version for rollout, _, _, version in rows(run)]
    assert min(ages) >= 0
    return max(ages)

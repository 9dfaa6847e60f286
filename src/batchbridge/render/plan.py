"""A plan for people and for programs: totals, rollouts and optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.derived import UNITS, derive
from batchbridge.meaning.plan import Plan, RolloutPlan, StepPlan
from batchbridge.render.text import number

_SHOWN = 12
"""Prompts of one line of text; JSON has them all."""
_CANDIDATES = 1 << 16
"""Candidates that are computed to be shown."""


def totals(plan: Plan) -> dict[str, int | float | None]:
    """The derived numbers of the plan's spec and dataset."""
    return derive(plan.asked if isinstance(plan, CandidatePlan) else plan.spec, plan.dataset_size)


def totals_lines(plan: Plan) -> Iterator[str]:
    """One line per total."""
    values = totals(plan)
    yield f"dataset: {number(plan.dataset_size)} prompts"
    for name, unit in UNITS.items():
        if values[name] is not None:
            yield f"{name}: {number(values[name])} {unit}"


def open_dict(plan: CandidatePlan) -> dict[str, Any]:
    """What the run itself decides, by field, and the candidates of its first rollouts."""
    shown = min(2 * plan.prompts_per_rollout, _CANDIDATES)
    return {"fields": dict(plan.undecided), "members_are": plan.members_are, "candidates": plan.candidates(0, shown)}


def open_lines(open_: Mapping[str, Any]) -> Iterator[str]:
    """Text of `open_dict`."""
    for path, why in open_["fields"].items():
        yield f"decided while it runs: {path} = {why}"
    yield f"candidates: {_listed([str(prompt) for prompt in open_['candidates']])}"
    yield f"numbers of prompts below are {open_['members_are']}s of their rollout"


def rollout_dict(rollout: RolloutPlan) -> dict[str, Any]:
    """JSON of one rollout."""
    return {
        "index": rollout.index,
        "epoch": rollout.epoch,
        "generated_at_step": rollout.generated_at_step,
        "completions_per_prompt": rollout.completions_per_prompt,
        "prompts": list(rollout.prompts),
    }


def rollout_line(rollout: RolloutPlan) -> str:
    """Text of one rollout."""
    return (
        f"rollout {rollout.index}  epoch {rollout.epoch}  generated with the weights before step "
        f"{rollout.generated_at_step}  {number(len(rollout.prompts))} prompts x {rollout.completions_per_prompt}: "
        f"{_listed([str(prompt) for prompt in rollout.prompts])}"
    )


def step_dict(step: StepPlan) -> dict[str, Any]:
    """JSON of one optimizer step; members in the order of the stream."""
    members = [
        {"rollout": m.rollout, "pass": m.pass_index, "prompt": m.prompt, "sample": m.sample} for m in step.members
    ]
    return {
        "index": step.index,
        "epoch": step.epoch,
        "rollouts": list(step.rollouts),
        "lr_tick": step.lr_tick,
        "completions": len(members),
        "members": members,
    }


def step_lines(step: StepPlan) -> Iterator[str]:
    """Text of one optimizer step: a head, and a line for every pass over a rollout that it draws from."""
    tick = "" if step.lr_tick else "  (the learning rate stays)"
    yield f"step {step.index}  epoch {step.epoch}  {number(len(step.members))} completions{tick}"
    stretches: dict[tuple[int, int], dict[int, list[int]]] = {}
    for member in step.members:
        prompts = stretches.setdefault((member.rollout, member.pass_index), {})
        prompts.setdefault(member.prompt, []).append(member.sample)
    for (rollout, pass_index), prompts in stretches.items():
        words = [f"{prompt}[{_ranges(samples)}]" for prompt, samples in prompts.items()]
        yield f"  rollout {rollout} pass {pass_index}: prompt[samples] {_listed(words)}"


def _listed(words: Sequence[str]) -> str:
    more = f" ... ({len(words):,} in all)" if len(words) > _SHOWN else ""
    return " ".join(words[:_SHOWN]) + more


def _ranges(samples: Iterable[int]) -> str:
    """`0-3,6` of 0, 1, 2, 3, 6."""
    spans: list[list[int]] = []
    for sample in sorted(samples):
        if spans and sample == spans[-1][1] + 1:
            spans[-1][1] = sample
        else:
            spans.append([sample, sample])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)

"""A plan for people and for programs: totals, rollouts and optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.derived import derive
from batchbridge.meaning.plan import Plan, RolloutPlan, StepPlan
from batchbridge.meaning.spec import Spec
from batchbridge.render.text import count, number, numbers, quantity

_SHOWN = 12
"""Prompts of one line of text; JSON has them all."""
_CANDIDATES = 1 << 16
"""Candidates that are computed to be shown."""


class ShownPlan(NamedTuple):
    """The part of a plan that is shown. dataset_size: prompts; None: places of the first rollout stand for them. open_:
    see `open_dict`."""

    plan: Plan
    dataset_size: int | None
    rollouts: Iterable[RolloutPlan]
    steps: Iterable[StepPlan]
    open_: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "totals": _totals(self.plan, self.dataset_size),
            "decided_while_it_runs": self.open_,
            "rollouts": [_rollout_dict(one) for one in self.rollouts],
            "steps": [_step_dict(one) for one in self.steps],
        }

    def lines(self, *, totals: bool) -> Iterator[str]:
        """The shown part as text, line by line; the derived numbers only with `totals`."""
        if totals:
            yield from _totals_lines(self.plan, self.dataset_size)
        if self.open_ is not None:
            yield from _open_lines(self.open_)
        yield from map(_rollout_line, self.rollouts)
        for step in self.steps:
            yield from _step_lines(step, "prompt" if self.dataset_size is not None else "place")
        if self.dataset_size is None:
            yield from _share(self.plan)


def first_rollout(spec: Spec) -> ShownPlan:
    """The first rollout and the optimizer steps that train it, with places of the rollout instead of prompts. Raises
    `PlanError`."""
    plan = plan_of(spec, _enough_prompts(spec))
    rollout, steps = plan.rollout(0), []
    for step in plan.steps_using(0):
        places = (place // plan.completions_per_prompt for place in step.positions)
        members = tuple(member._replace(prompt=at) for member, at in zip(step.members, places, strict=True))
        steps.append(replace(step, members=members))
    rollouts = [replace(rollout, prompts=tuple(range(len(rollout.prompts))))]
    why = "unknown: which prompts, and how many rollouts and optimizer steps the run has, is open"
    open_ = {"fields": {"dataset_size": why}, "members_are": "place", "candidates": ()}
    return ShownPlan(plan, None, rollouts, steps, open_)


def _totals(plan: Plan, dataset_size: int | None) -> dict[str, int | float | None]:
    return derive(plan.asked if isinstance(plan, CandidatePlan) else plan.spec, dataset_size)


def _totals_lines(plan: Plan, dataset_size: int | None) -> Iterator[str]:
    open_ = "open: which prompts, and how many rollouts and optimizer steps there are (say --dataset-size PROMPTS)"
    yield f"dataset: {open_ if dataset_size is None else count(dataset_size, 'prompt')}"
    for name, value, unit in numbers(_totals(plan, dataset_size)):
        yield f"{name}: {quantity(name, value, unit)}"


def open_dict(plan: CandidatePlan) -> dict[str, Any]:
    """The questions that the run itself decides, by field, and the candidates of its first rollouts."""
    shown = min(2 * plan.prompts_per_rollout, _CANDIDATES)
    return {"fields": dict(plan.undecided), "members_are": plan.members_are, "candidates": plan.candidates(0, shown)}


def _enough_prompts(spec: Spec) -> int:
    """A number of prompts with which the first rollout and its optimizer steps are whole."""
    prompts, step = spec.rollout.prompts_per_rollout or 1, spec.optimizer_step.completions_per_step or 1
    trained = (spec.completions_per_rollout or 1) * spec.optimizer_step.passes_per_rollout
    return prompts * (step // math.gcd(step, trained))


def _share(plan: Plan) -> Iterator[str]:
    """The number of completions of an optimizer step that each device trains, and in how many micro-batches."""
    values, micro = _totals(plan, None), plan.spec.micro_batch.completions_per_device
    each, cuts = values["completions_per_device_per_step"], values["gradient_accumulation_steps"]
    if each is not None:
        world = plan.spec.topology.world_size
        devices = "the device trains" if world == 1 else f"each of {number(world)} devices trains"
        parts = "" if cuts is None else f", in {count(cuts, 'micro-batch', 'micro-batches')} of {number(micro)}"
        yield f"of a step {devices} {count(each, 'completion')}{parts} (which ones depends on their lengths)"


def _open_lines(open_: Mapping[str, Any]) -> Iterator[str]:
    for path, why in open_["fields"].items():
        if path != "dataset_size":
            yield f"decided while it runs: {path} = {why}"
    if open_["candidates"]:
        yield f"candidates: {_listed([str(prompt) for prompt in open_['candidates']])}"
    yield f"numbers of prompts below are {open_['members_are']}s of their rollout"


def _rollout_dict(rollout: RolloutPlan) -> dict[str, Any]:
    return {
        "index": rollout.index,
        "epoch": rollout.epoch,
        "generated_at_step": rollout.generated_at_step,
        "completions_per_prompt": rollout.completions_per_prompt,
        "prompts": list(rollout.prompts),
    }


def _rollout_line(rollout: RolloutPlan) -> str:
    return (
        f"rollout {rollout.index}  epoch {rollout.epoch}  generated with the weights before step "
        f"{rollout.generated_at_step}  {count(len(rollout.prompts), 'prompt')} x {rollout.completions_per_prompt}: "
        f"{_listed([str(prompt) for prompt in rollout.prompts])}"
    )


def _step_dict(step: StepPlan) -> dict[str, Any]:
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


def _step_lines(step: StepPlan, members: str) -> Iterator[str]:
    """Text of one optimizer step: a head, and a line for every pass over a rollout that it draws from.

    members: what `Completion.prompt` counts, prompts of the dataset or places of a rollout.
    """
    tick = "" if step.lr_tick else "  (the learning rate stays)"
    yield f"step {step.index}  epoch {step.epoch}  {count(len(step.members), 'completion')}{tick}"
    stretches: dict[tuple[int, int], dict[int, list[int]]] = {}
    for member in step.members:
        prompts = stretches.setdefault((member.rollout, member.pass_index), {})
        prompts.setdefault(member.prompt, []).append(member.sample)
    for (rollout, pass_index), prompts in stretches.items():
        samples = {_ranges(drawn) for drawn in prompts.values()}
        if members == "place" and len(samples) == 1 and list(prompts) == list(range(min(prompts), max(prompts) + 1)):
            said = f"places {min(prompts)} to {max(prompts)}, samples {samples.pop()} of each"
        else:
            said = f"{members}[samples] {_listed([f'{prompt}[{_ranges(drawn)}]' for prompt, drawn in prompts.items()])}"
        yield f"  rollout {rollout} pass {pass_index}: {said}"


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

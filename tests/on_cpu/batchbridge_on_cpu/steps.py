"""Optimizer steps to measure gradients on, and the oracle's answers to them. Knows no framework.

Six prompts of four scripted completions, three prompts per rollout, five completions per optimizer step: ragged
lengths, a completion whose loss mask is all zero, a short last step, groups that are cut. The old log-probabilities are
those of a policy that is a little behind, so that ratios are clipped; the reference is another one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, Objective, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.testing.oracle import (
    Sample,
    advantages,
    double,
    gradient_bar,
    logprobs,
    relative_error,
    step_gradient,
)
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

PROMPTS, GROUP, STEP_SIZE, STEPS = 6, 4, 5, 3
CONSTANT = 24
AGGREGATIONS = ("token_mean", "token_sum", "sequence_mean", "sequence_sum", "sequence_sum_over_constant")


@dataclasses.dataclass(frozen=True)
class Case:
    """One objective. loss_mode, settings: the framework's. surrogate: the oracle's, where the schema has no words."""

    name: str
    loss_mode: str
    objective: Objective
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    surrogate: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] | None = None
    aggregations: Sequence[str] = AGGREGATIONS


def spec_of(case: Case, aggregation: str) -> Spec:
    """What the steps of `case` should mean."""
    constant = CONSTANT if aggregation == "sequence_sum_over_constant" else None
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=3, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=STEP_SIZE),
        loss=Loss(policy=LossTerm(aggregation=aggregation, constant=constant)),  # type: ignore[arg-type]  # one of AGGREGATIONS
        horizon=Horizon(epochs=1.0),
        order=Order(seed=5),
        objective=dataclasses.replace(case.objective, old_logprobs="rollout_start"),
    )


class Steps:
    """The completions of a plan's optimizer steps, and the oracle's gradients."""

    def __init__(self) -> None:
        self.script, self.tokenizer = ScriptedRollouts(), tiny_tokenizer()
        self.policy = tiny_policy()
        self.behind, self.reference = moved(self.policy, 1, 0.015), moved(self.policy, 2, 0.03)
        self.exact, self.rough = double(self.policy), copy.deepcopy(self.policy).eval()
        self._answers: dict[Any, tuple[torch.Tensor, float, float]] = {}

    def sample(self, plan: Plan, rollout: int, position: int, row: int) -> Sample:
        """Completion `row` of the prompt at `position` of a rollout."""
        sample = self.made(plan, rollout, position, row)
        with torch.no_grad():
            return dataclasses.replace(sample, old_logprobs=logprobs(self.behind, sample))

    def made(self, plan: Plan, rollout: int, position: int, row: int) -> Sample:
        """See `sample`; without old log-probabilities."""
        prompt = plan.rollout(rollout).prompts[position]
        rewards = [self.script.reward(prompt, other) for other in range(GROUP)]
        rule = dataclasses.replace(plan.spec.advantage, epsilon=1e-6, ddof=1)
        return Sample(
            prompt=self.tokenizer(self.script.prompt(prompt))["input_ids"],
            completion=self.script.completion(prompt, row),
            loss_mask=self.script.loss_mask(prompt, row),
            group=prompt,
            advantage=advantages(rewards, GROUP, rule)[row],
        )

    def step(self, plan: Plan, index: int) -> tuple[list[Sample], list[tuple[int, int, int, int]]]:
        """Samples of an optimizer step, and (rollout, prompt, position, sample) of each."""
        step = plan.step(index)
        members = [
            (member.rollout, member.prompt, position // GROUP, member.sample)
            for member, position in zip(step.members, step.positions, strict=True)
        ]
        return [self.sample(plan, rollout, position, row) for rollout, _, position, row in members], members

    def reference_logprobs(self, sample: Sample) -> torch.Tensor:
        """Of the reference policy, float32."""
        with torch.no_grad():
            return logprobs(self.reference, sample)

    def expected(
        self, case: Case, spec: Spec, index: int, samples: Sequence[Sample]
    ) -> tuple[torch.Tensor, float, float]:
        """The oracle's gradient, the same code's error in float32, and the share of clipped tokens."""
        key = case.name, spec.loss.policy.aggregation, index
        if key not in self._answers:
            found = []
            for model in (self.exact, self.rough):
                reference = double(self.reference) if model is self.exact else self.reference
                found.append(
                    step_gradient(
                        model,
                        samples,
                        term=spec.loss.policy,
                        objective=spec.objective,
                        reference=reference if spec.objective.kl_coefficient else None,
                        surrogate=case.surrogate,
                    )
                )
            self._answers[key] = found[0], relative_error(found[1], found[0]), self._clipped(samples, spec.objective)
        return self._answers[key]

    def detached(self, spec: Spec, samples: Sequence[Sample]) -> tuple[torch.Tensor, float]:
        """As `expected`, with ratios over the current policy, detached."""
        current = [dataclasses.replace(sample, old_logprobs=None) for sample in samples]
        expected, rough = (
            step_gradient(model, current, term=spec.loss.policy, objective=spec.objective)
            for model in (self.exact, self.rough)
        )
        return expected, relative_error(rough, expected)

    def measure(
        self, case: Case, spec: Spec, index: int, samples: Sequence[Sample], gradient: torch.Tensor | None
    ) -> dict[str, Any]:
        """A framework's gradient against the oracle's, as JSON types."""
        expected, floor, clipped = self.expected(case, spec, index, samples)
        assert gradient is not None, "no gradient was computed"
        return {
            "case": case.name,
            "aggregation": spec.loss.policy.aggregation,
            "step": index,
            "error": relative_error(gradient, expected),
            "floor": floor,
            "clipped": clipped,
            "norm": float(expected.norm()),
        }

    def _clipped(self, samples: Sequence[Sample], objective: Objective) -> float:
        clipped, total = 0, 0
        for sample in samples:
            with torch.no_grad():
                new = logprobs(self.policy, sample)
            assert sample.old_logprobs is not None
            kl = new - sample.old_logprobs
            ratio = (kl.mean().expand_as(kl) if objective.ratio_level == "sequence" else kl).exp()
            outside = ratio > 1.2 if sample.advantage > 0 else ratio < 0.8
            if objective.surrogate == "cispo":
                outside = (ratio > 1.2) | (ratio < 0.8)
            clipped += int((outside & torch.tensor(sample.loss_mask).bool()).sum())
            total += sum(sample.loss_mask)
        return clipped / max(total, 1)


def moved(policy: Any, seed: int, scale: float) -> Any:
    """A copy of `policy` with noise on every parameter."""
    twin = copy.deepcopy(policy).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return twin


def bar(floor: float) -> float:
    """The bar of a relative error, where the same model's float32 alone errs by `floor`."""
    return gradient_bar(floor)
